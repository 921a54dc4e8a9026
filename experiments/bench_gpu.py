"""What one accelerator does with the engine, on random weights, as one JSON object.

    python -m experiments.bench_gpu                    # about six minutes on an H100 or H200
    python -m experiments.bench_gpu --tiny             # the same code at toy sizes, on a CPU

Attention of cuDNN and of XLA under the mask of packed rows (error, finite gradients, time); scoring
and LoRA training of a 1B and an 8B shape in bfloat16 at several sizes of a step and remat policies;
documents scored a second with the prefix shared and not; and how soon a second process, which finds
compiled programs, has its first step. Every rate comes with useful tokens a second, the share of
the device's dense peak (`perf.flops`), padding (none here) and seconds of compilation.
"""

import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

from calibjax.backbone.config import DecoderConfig
from calibjax.backbone.decoder import DecoderModule, parameter_shapes
from calibjax.backbone.lora import Adapter
from calibjax.backbone.packed import Packed, packed_features, packed_mask
from calibjax.data.batching import BatchPlan, Group, collate, reach_of
from calibjax.data.loader import Batch
from calibjax.forecaster.model import ForecastModel
from calibjax.forecaster.presets import get_preset
from calibjax.perf import flops
from calibjax.training import sharding
from calibjax.training.mesh import make_mesh, parse_axes
from calibjax.training.optimizer import optimizer
from calibjax.training.state import init_state
from calibjax.training.step import jit_train_step

TINY = flags.DEFINE_bool("tiny", False, "Toy sizes: the same code on a CPU in a minute.")
SECONDS = flags.DEFINE_float("seconds", 330.0, "Cases not begun after so many are left out.")
PEAK = flags.DEFINE_float("peak_tflops", None, "Dense peak of the device; default: if known.")
CASES = flags.DEFINE_list(
    "cases", ["attention", "1b", "8b", "prefix", "start"], "What to measure, in this order."
)
REPEATS = 5
PREFIX, DOCUMENT = 128, 128
LLAMA = dict(
    vocab_size=128256, num_heads=32, num_kv_heads=8, tie_embeddings=True, max_positions=131072
)
MODELS = {
    "1b": dict(hidden_size=2048, intermediate_size=8192, num_layers=16, head_dim=64),
    "8b": dict(hidden_size=4096, intermediate_size=14336, num_layers=32, head_dim=128),
}


def config_of(name: str) -> DecoderConfig:
    fields: dict[str, Any] = LLAMA | MODELS[name]
    if TINY.value:
        fields |= dict(hidden_size=64, intermediate_size=128, num_layers=3, vocab_size=512)
        fields |= dict(num_heads=8, head_dim=8)
    return DecoderConfig(**fields)


def random_module(config: DecoderConfig) -> DecoderModule:
    """bfloat16 weights of a decoder that was never trained; speed does not depend on them."""
    mesh = make_mesh(parse_axes("data=1"))

    @functools.partial(jax.jit, static_argnums=1)
    def draw(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        return 0.02 * jax.random.normal(key, shape, jnp.bfloat16)

    arrays = {
        path: sharding.put(draw(jax.random.key(n), shape), sharding.replicated(mesh))
        for n, (path, shape) in enumerate(parameter_shapes(config).items())
    }
    return DecoderModule(config, arrays)


def groups_of(documents: int, count: int, prefix: int = PREFIX) -> list[Group]:
    """Queries of 128 tokens with documents of 128 tokens each."""
    shorter = 8 if TINY.value else 1
    own = tuple((2,) * (DOCUMENT // shorter) for _ in range(documents))
    numbers = tuple((n,) for n in range(documents))
    return [Group((1,) * (prefix // shorter), own, numbers)] * count


def packed_of(groups: list[Group]) -> Packed:
    numbers = tuple(range(len(groups)))
    plan = BatchPlan(groups[0].length, len(groups), numbers, reach_of(groups))
    packed = collate(groups, plan, num_documents=len(groups[0].suffixes))
    return jax.tree.map(jnp.asarray, packed)


def timed(call: Callable[[], Any]) -> dict[str, float]:
    """Seconds of the first call, and the median of the following ones."""
    first, *others = (_seconds(call) for _ in range(1 + REPEATS))
    median = float(np.median(others))
    return {"seconds": median, "compile_seconds": max(0.0, first - median)}


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - start


def rates(config: DecoderConfig, groups: list[Group], took: dict[str, float], train: bool) -> Any:
    """Documents and useful tokens a second, and the share of the peak."""
    kind = jax.devices()[0].device_kind
    peak = PEAK.value * 1e12 if PEAK.value else flops.peak_flops(kind)
    needed = flops.of_groups(config, groups, train=train) / took["seconds"]
    return {
        "documents_per_second": sum(len(g.suffixes) for g in groups) / took["seconds"],
        "useful_tokens_per_second": flops.useful_tokens(groups) / took["seconds"],
        "tflops_per_second": needed / 1e12,
        "mfu": None if peak is None else needed / peak,
        "padding": 0.0,
        **took,
    }


def adapter_of(config: DecoderConfig) -> Adapter:
    preset = get_preset("fixed")
    key = jax.random.key(0)
    return Adapter(config, key=key, rank=preset.lora_rank, targets=preset.lora_targets)


def score(module: DecoderModule, groups: list[Group]) -> dict[str, Any]:
    packed, adapter = packed_of(groups), adapter_of(module.config)
    run = jax.jit(lambda *inputs: packed_features(inputs[0], inputs[2], adapter=inputs[1]))
    took = timed(lambda: run(module, adapter, packed))
    return rates(module.config, groups, took, train=False)


def train(module: DecoderModule, groups: list[Group], remat: str) -> dict[str, Any]:
    """LoRA on q and v, temperature code and head, as `launch.train` trains them."""
    config, preset = module.config, get_preset("fixed")
    mesh = make_mesh(parse_axes("data=1"))
    model = ForecastModel(preset, config.hidden_size, adapter_of(config), jax.random.key(0))
    graphdef, state = init_state(model, optimizer(preset))
    layout = sharding.layout(state, module, mesh)
    rows = (len(groups), len(groups[0].suffixes), 1)
    half, first = np.full(rows, 0.5, np.float32), np.zeros(rows, np.int32)
    batch = Batch(packed_of(groups), 1.0 + half, half, first == 0, first)
    placed = sharding.put(batch, layout.batch)
    constant = sharding.put((jax.random.key(0), jnp.ones(11)), layout.whole)
    run = jit_train_step(layout)
    held = [sharding.put(state, layout.state)]

    def step() -> Any:
        held[0], metrics = run(graphdef, preset, remat, held[0], module, placed, *constant)
        return metrics.loss

    with jax.set_mesh(mesh):
        took = timed(step)
    return rates(config, groups, took, train=True)


def attention_cases() -> Iterator[dict[str, Any]]:
    """The fused kernel against XLA's products; 192 is 64 modulo 128 (pytorch#196678)."""
    heads, groups, size = (4, 2, 16) if TINY.value else (32, 8, 128)
    for length in (32, 48) if TINY.value else (128, 192, 256, 384, 512):
        keys = jax.random.split(jax.random.key(length), 3)
        shapes = ((8, length, n, size) for n in (heads, groups, groups))
        qkv = [jax.random.normal(k, s, jnp.bfloat16) for k, s in zip(keys, shapes)]
        segments = jnp.minimum(jnp.arange(length, dtype=jnp.int32) * 4 // length, 3)
        mask = packed_mask(segments[None])[:, None]
        found: dict[str, Any] = {"case": "attention", "tokens": length}
        outs = {}
        for kind in ("xla", "cudnn"):

            def run(q: Any, k: Any, v: Any, kind: Any = kind) -> Any:
                return jax.nn.dot_product_attention(q, k, v, mask=mask, implementation=kind)

            def loss(qkv: Any, run: Any = run) -> Any:
                return run(*qkv).astype(jnp.float32).sum()

            gradient = jax.jit(jax.grad(loss))
            try:
                outs[kind] = np.asarray(jax.jit(run)(*qkv), np.float32)
                finite = all(bool(jnp.isfinite(g).all()) for g in gradient(qkv))
                took = timed(lambda: gradient(qkv))
                found[kind] = {"milliseconds": 1e3 * took["seconds"], "finite": finite}
            except Exception as error:  # what a device does not have
                found[kind] = {"error": f"{type(error).__name__}: {error}"[:200]}
        if len(outs) == 2:
            found["largest_difference"] = float(np.abs(outs["xla"] - outs["cudnn"]).max())
        yield found


def model_cases(name: str) -> Iterator[dict[str, Any]]:
    """Sizes of a scoring step, then remat policies of a training step."""
    module = random_module(config_of(name))
    per_row = groups_of(5, 1)[0].length
    sizes = {"1b": (8192, 32768, 65536), "8b": (16384,)}[name]
    for tokens in (2 * per_row,) if TINY.value else sizes:
        groups = groups_of(5, tokens // per_row)
        yield {"case": f"score_{name}", "tokens": tokens, **score(module, groups)}
    policies = {
        "1b": ("none", "save_qkv_context_mlp", "save_qkv_context", "full"),
        "8b": ("save_qkv_context",),
    }[name]
    tokens = 2 * per_row if TINY.value else 8192
    for remat in policies:
        groups = groups_of(5, tokens // per_row)
        yield {"case": f"train_{name}", "remat": remat, **train(module, groups, remat)}


def prefix_cases() -> Iterator[dict[str, Any]]:
    """Twenty documents of a query: five to a row with one prefix, and each by itself."""
    module = random_module(config_of("1b"))
    queries = 1 if TINY.value else 4
    for shared, groups in ((True, groups_of(5, 4 * queries)), (False, groups_of(1, 20 * queries))):
        yield {"case": "prefix_1b", "shared": shared, **score(module, groups)}


def start_cases() -> Iterator[dict[str, Any]]:
    """Two processes, one after the other, with one compilation cache."""
    if os.environ.get("XLA_PYTHON_CLIENT_PREALLOCATE") != "false":
        yield {"case": "start", "left_out": "set XLA_PYTHON_CLIENT_PREALLOCATE=false"}
        return
    with tempfile.TemporaryDirectory() as cache:
        extra = {"JAX_COMPILATION_CACHE_DIR": cache}
        extra["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        command = [sys.executable, "-m", "experiments.bench_gpu", "--cases=1b_step"]
        command += ["--tiny"] if TINY.value else []
        for number in (1, 2):
            start = time.perf_counter()
            subprocess.run(command, env=os.environ | extra, check=True, capture_output=True)
            yield {"case": "start", "process": number, "seconds": time.perf_counter() - start}


def step_case() -> Iterator[dict[str, Any]]:
    module = random_module(config_of("1b"))
    yield {"case": "step_1b", **train(module, groups_of(5, 2), "none")}


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {argv[1:]}")
    makers: dict[str, Callable[[], Iterator[dict[str, Any]]]] = {
        "attention": attention_cases,
        "1b": lambda: model_cases("1b"),
        "8b": lambda: model_cases("8b"),
        "prefix": prefix_cases,
        "start": start_cases,
        "1b_step": step_case,
    }
    began, found, left_out = time.perf_counter(), [], []
    for name in CASES.value:
        cases = makers[name]()
        while True:
            if time.perf_counter() - began > SECONDS.value:
                left_out.append(name)
                break
            try:
                found.append(next(cases))
            except StopIteration:
                break
            except Exception as error:  # out of memory at one size: the others still count
                found.append({"case": name, "error": f"{type(error).__name__}: {error}"[:300]})
                break
            print(json.dumps(found[-1]), file=sys.stderr, flush=True)
    print(
        json.dumps({
            "name": "bench_gpu",
            "device": jax.devices()[0].device_kind,
            "versions": {"jax": jax.__version__, "numpy": np.__version__},
            "flops_counted": flops.FLOPS_COUNTED,
            "tiny": TINY.value,
            "cases": found,
            "left_out": left_out,
        })
    )  # fmt: skip


if __name__ == "__main__":
    app.run(main)
