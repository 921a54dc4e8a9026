"""Scoring and training steps of a Llama's shape on random weights, as `bench_gpu` measures them."""

import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from calibjax.backbone.config import DecoderConfig
from calibjax.backbone.decoder import DecoderModule, parameter_shapes
from calibjax.backbone.lora import Adapter
from calibjax.backbone.packed import Packed, packed_features
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
PEAK = flags.DEFINE_float("peak_tflops", None, "Dense peak of the device; default: if known.")
REPEATS = 5
# Options of the compiler.
Options = dict[str, bool] | None
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


def score(module: DecoderModule, groups: list[Group], options: Options = None) -> dict[str, Any]:
    packed, adapter = packed_of(groups), adapter_of(module.config)

    def features(module: DecoderModule, adapter: Adapter, packed: Packed) -> jax.Array:
        return packed_features(module, packed, adapter=adapter)

    run = jax.jit(features, compiler_options=options)
    took = timed(lambda: run(module, adapter, packed))
    return rates(module.config, groups, took, train=False)


def train(
    module: DecoderModule, groups: list[Group], remat: str, options: Options = None
) -> dict[str, Any]:
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
    held = [sharding.put(state, layout.state)]

    @functools.cache
    def compiled() -> Any:
        inputs = (held[0], module, placed, *constant)
        lowered = jit_train_step(layout).lower(graphdef, preset, remat, *inputs)
        return lowered.compile(options)

    def step() -> Any:
        held[0], metrics = compiled()(held[0], module, placed, *constant)
        return metrics.loss

    with jax.set_mesh(mesh):
        took = timed(step)
    return rates(config, groups, took, train=True)
