"""Documents scored per second against transformers + PEFT, as one JSON object.

    python -m experiments.bench_score --path=path/to/hotpotqa.jsonl

A query with K = 10 documents at a time, the mean over six temperatures, as reranking asks for it.
Six temperatures cost one pass of the decoder here, and the peer is given the same: one pass over
the documents padded to the longest, its adapter merged beforehand, `hidden_states[-2]` read with
`logits_to_keep=1`, and the head at six temperatures. The probabilities of both are compared.
"""

from typing import Any

import jax
import numpy as np
from absl import app, flags

from calibjax.data.batching import make_groups, plan_passes
from calibjax.forecaster import MARGINAL_TEMPERATURES, Forecaster
from calibjax.forecaster.extract import TOKENS_PER_PASS
from calibjax.forecaster.forecaster import DOCUMENTS_PER_ROW
from calibjax.forecaster.model import standardize
from calibjax.forecaster.prompts import forecast_prompts
from calibjax.perf import flops
from experiments import _bench

DOCUMENTS = flags.DEFINE_integer("documents", 10, "Documents of a query.", lower_bound=1)


def trained(decoder: Any, queries: list[str], documents: list[list[Any]]) -> Forecaster:
    """A forecaster whose adapter has an effect and whose features are standardised."""
    forecaster = Forecaster(decoder, key=jax.random.key(0))
    adapter = forecaster.model.adapter
    assert adapter is not None
    for number, name in enumerate(adapter.targets):
        pair = getattr(adapter, name)
        pair.b[...] = 0.01 * jax.random.normal(jax.random.key(number), pair.b.shape, "float32")
    features_KD = forecaster.features(queries[:1], documents[:1])[0]
    standardize(forecaster.model, features_KD)
    return forecaster


class Peer:
    """The same forecaster in PyTorch."""

    def __init__(self, forecaster: Forecaster) -> None:
        from experiments import torch_peer

        self.torch, self.peer = torch_peer.torch, torch_peer
        base = torch_peer.load(forecaster.decoder)
        adapter = forecaster.model.adapter
        assert adapter is not None
        tuned = torch_peer.with_adapter(base, forecaster.decoder, adapter, trainable=False)
        self.model = tuned.merge_and_unload().eval()
        self.head = torch_peer.Head(forecaster.model, forecaster.preset)

    def score(self, sequences: list[tuple[int, ...]]) -> np.ndarray:
        temperatures = np.tile(np.float32(MARGINAL_TEMPERATURES), (len(sequences), 1))
        with self.torch.inference_mode():
            logits = self.head(self.peer.features(self.model, sequences), temperatures)
            return self.torch.sigmoid(logits).mean(dim=-1).numpy()


def compared(repeats: int) -> dict[str, Any]:
    decoder = _bench.backbone()
    warm = 2
    found = _bench.questions(warm + repeats, DOCUMENTS.value)
    queries, documents = [q.question for q, _ in found], [passages for _, passages in found]
    forecaster = trained(decoder, queries, documents)
    peer = Peer(forecaster)
    prompts = [
        forecast_prompts(
            decoder.tokenizer,
            query,
            passages,
            max_document_tokens=forecaster.preset.max_document_tokens,
            max_tokens=decoder.config.max_positions,
        )
        for query, passages in zip(queries, documents)
    ]
    scores: dict[str, dict[int, np.ndarray]] = {"ours": {}, "peer": {}}

    def ours(number: int) -> None:
        scores["ours"][number] = forecaster.score([queries[number]], [documents[number]])[0]

    def theirs(number: int) -> None:
        whole = [prompt.prefix + prompt.suffix for prompt in prompts[number]]
        scores["peer"][number] = peer.score(whole)

    # Every length compiles once, whenever it comes: that is `compile`, not scoring.
    first_calls = sum(_bench.seconds(ours, number) for number in range(len(queries)))
    timing = _bench.in_turn(ours, theirs, repeats, warm)
    off = max(float(np.abs(scores["ours"][n] - scores["peer"][n]).max()) for n in scores["peer"])
    groups = [
        make_groups(
            [p.prefix for p in each], [p.suffix for p in each], max_documents=DOCUMENTS_PER_ROW
        )
        for each in prompts[warm:]
    ]
    used = [group for each in groups for group in each]
    plans = [plan for each in groups for plan in plan_passes(each, TOKENS_PER_PASS)]
    padded = sum(p.length * p.batch_size for p in plans)
    longest = [max(len(p.prefix) + len(p.suffix) for p in each) for each in prompts[warm:]]
    return _bench.rate_case(
        f"score_k{DOCUMENTS.value}",
        "documents/s",
        [float(DOCUMENTS.value)] * repeats,
        timing,
        off,
        compile=max(0.0, first_calls - len(queries) * float(np.median(timing.ours))),
        padding=1 - flops.useful_tokens(used) / padded,
        useful_tokens_per_second=flops.useful_tokens(used) / sum(timing.ours),
        computed_tokens={"ours": padded, "peer": DOCUMENTS.value * sum(longest)},
        gflops=flops.of_groups(decoder.config, used) / sum(timing.ours) / 1e9,
        flops_counted=flops.FLOPS_COUNTED,
    )


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {argv[1:]}")
    cases = [compared(_bench.REPEATS.value)]
    _bench.report("bench_score", cases, gemm_gflops=_bench.gemm_gflops())


if __name__ == "__main__":
    app.run(main)
