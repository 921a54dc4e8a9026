"""Decisions sampled per second against transformers' generate, as one JSON object.

    python -m experiments.bench_generate --path=path/to/hotpotqa.jsonl

R = 10 decisions of the user model per prompt, as labelling asks for them: 24 tokens at most, at
t = 1.3 from the five likeliest tokens, each ending where the model ends it. The peer calls
`generate(num_return_sequences=10)` on as many prompts at a time, padded on the left. Samples
differ, so what is compared is the greedy decision of every prompt, token by token.
"""

from typing import Any

import numpy as np
from absl import app, flags

from calibjax.generation import Sampler
from calibjax.generation.prompts import decision_messages
from experiments import _bench

PROMPTS = flags.DEFINE_integer("prompts", 6, "Prompts of a call.", lower_bound=1)
DRAWS = flags.DEFINE_integer("draws", 10, "Decisions of a prompt.", lower_bound=1)
TOKENS = flags.DEFINE_integer("max_new_tokens", 24, "Tokens of a decision.", lower_bound=1)

TEMPERATURE, TOP_K = 1.3, 5


class Peer:
    """`generate` on left-padded prompts."""

    def __init__(self, decoder: Any) -> None:
        from experiments import torch_peer

        self.torch = torch_peer.torch
        self.torch.manual_seed(0)
        self.model, self.tokenizer = torch_peer.load(decoder), decoder.tokenizer

    def generate(self, prompts: list[list[int]], **settings: Any) -> list[list[int]]:
        """Ids of every sample, up to and with the first that ends it."""
        longest, pad = max(map(len, prompts)), self.tokenizer.pad_id
        ids = self.torch.tensor([[pad] * (longest - len(p)) + p for p in prompts])
        mask = self.torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
        with self.torch.inference_mode():
            out = self.model.generate(
                input_ids=ids,
                attention_mask=mask,
                max_new_tokens=TOKENS.value,
                pad_token_id=pad,
                eos_token_id=list(self.tokenizer.eos_ids),
                **settings,
            )
        return [self._until_end(row) for row in out[:, longest:].tolist()]

    def _until_end(self, ids: list[int]) -> list[int]:
        ends = [place for place, number in enumerate(ids) if number in self.tokenizer.eos_ids]
        return ids[: ends[0] + 1] if ends else ids


def prompts_of(decoder: Any, count: int) -> list[list[int]]:
    """Decision prompts whose note is the first sentence of a passage."""
    return [
        decoder.tokenizer.encode_prompt(
            decision_messages(question.question, passages[0].text.split(". ")[0])
        )
        for question, passages in _bench.questions(count, 1)
    ]


def compared(repeats: int) -> dict[str, Any]:
    decoder = _bench.backbone()
    sampler, peer = Sampler(decoder), Peer(decoder)
    prompts = prompts_of(decoder, PROMPTS.value)
    sizes: dict[str, list[int]] = {"ours": [], "peer": []}

    def ours(number: int) -> None:
        found = sampler.generate(
            prompts,
            max_new_tokens=TOKENS.value,
            temperature=TEMPERATURE,
            top_k=TOP_K,
            num_samples=DRAWS.value,
            seed=number,
            return_details=True,
        )
        sizes["ours"] += [len(sample.token_ids) for samples in found for sample in samples]

    def theirs(number: int) -> None:
        found = peer.generate(
            prompts,
            do_sample=True,
            temperature=TEMPERATURE,
            top_k=TOP_K,
            num_return_sequences=DRAWS.value,
        )
        sizes["peer"] += [len(sample) for sample in found]

    timing = _bench.in_turn(ours, theirs, repeats)
    greedy = sampler.generate(prompts, max_new_tokens=TOKENS.value, return_details=True)
    expected = peer.generate(prompts, do_sample=False)
    same = [list(samples[0].token_ids) == ids for samples, ids in zip(greedy, expected)]
    return _bench.rate_case(
        f"sample_r{DRAWS.value}",
        "decisions/s",
        [float(len(prompts) * DRAWS.value)] * repeats,
        timing,
        float(np.mean(same)),
        agreement_is="share of prompts with the same greedy tokens",
        tokens_per_decision={side: float(np.mean(size)) for side, size in sizes.items()},
        prompt_tokens=float(np.mean([len(p) for p in prompts])),
    )


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {argv[1:]}")
    _bench.report("bench_generate", [compared(_bench.REPEATS.value)])


if __name__ == "__main__":
    app.run(main)
