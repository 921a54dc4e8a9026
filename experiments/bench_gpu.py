"""What one accelerator does with the engine, on random weights, as one JSON object.

    python -m experiments.bench_gpu                    # about six minutes on an H100 or H200
    python -m experiments.bench_gpu --tiny             # the same code at toy sizes, on a CPU

Attention of cuDNN and of XLA under the mask of packed rows (error, finite gradients, time); scoring
and LoRA training of a 1B and an 8B shape in bfloat16 at several sizes of a step and remat policies;
documents scored a second with the prefix shared and not; how soon a second process, which finds
compiled programs, has its first step; and steps with the loop over blocks unrolled, or with matrix
products left to cuBLAS alone, beside those above. Every rate comes with useful tokens a second, the
share of the device's dense peak (`perf.flops`), padding (none here) and seconds of compilation.
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
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

from calibjax.backbone.packed import packed_mask
from calibjax.perf import flops
from experiments._gpu_steps import TINY, config_of, groups_of, random_module, score, timed, train

SECONDS = flags.DEFINE_float("seconds", 330.0, "Cases not begun after so many are left out.")
CASES = flags.DEFINE_list(
    "cases",
    ["attention", "1b", "8b", "prefix", "start", "programs"],
    "What to measure, in this order.",
)
# XLA's own kernels for matrix products off: cuBLAS computes them all.
CUBLAS = {"xla_gpu_enable_triton_gemm": False}


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


def program_cases() -> Iterator[dict[str, Any]]:
    """The smallest steps of "1b" as other programs: blocks unrolled, products by cuBLAS alone."""
    scan = jax.lax.scan
    module = random_module(config_of("1b"))
    per_row = groups_of(5, 1)[0].length
    groups = groups_of(5, (2 * per_row if TINY.value else 8192) // per_row)
    for name, unroll, options in (("unrolled", True, None), ("cublas", 1, CUBLAS)):
        jax.clear_caches()  # a step is traced anew, with this scan
        with mock.patch.object(jax.lax, "scan", functools.partial(scan, unroll=unroll)):
            scored = score(module, groups, options)
            # Without remat, which XLA would see through and leave out of unrolled blocks; of those
            # it may also keep the scores, which attention's backward pass computes again.
            trained = train(module, groups, "none", options)
        yield {"case": "score_1b", "program": name, **scored}
        yield {"case": "train_1b", "program": name, "remat": "none", **trained}


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
        "programs": program_cases,
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
