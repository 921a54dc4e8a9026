"""Would it fit? Train and score steps compiled from shapes alone, on devices that are simulated.

Arguments are counted exactly, each by the shard that a device holds. The program itself is compiled
in float32 for CPU devices (which would compute bfloat16 products on float32 copies of all
weights), so its temporaries are an upper bound of those in bfloat16.
"""

import json
import math
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from calibjax.backbone.config import DecoderConfig
from calibjax.backbone.decoder import DecoderModule, parameter_shapes
from calibjax.backbone.lora import Adapter, projection_sizes
from calibjax.backbone.packed import Packed
from calibjax.data.loader import Batch
from calibjax.forecaster.extract import features_pass
from calibjax.forecaster.model import ForecastModel
from calibjax.forecaster.presets import get_preset
from calibjax.perf.programs import count_collectives, matmul_flops
from calibjax.training import sharding
from calibjax.training.mesh import batch_shards, make_mesh
from calibjax.training.optimizer import optimizer
from calibjax.training.state import init_state
from calibjax.training.step import jit_train_step

_LLAMA = dict(
    vocab_size=128256, num_kv_heads=8, head_dim=128, max_positions=131072, tie_embeddings=False
)
MODELS: dict[str, dict[str, Any]] = {
    "llama-3.1-8b": _LLAMA
    | dict(hidden_size=4096, intermediate_size=14336, num_layers=32, num_heads=32),
    "llama-3.1-70b": _LLAMA
    | dict(hidden_size=8192, intermediate_size=28672, num_layers=80, num_heads=64),
}
# Memory of one device, bytes, as the vendors state it.
ACCELERATORS = {
    "a100-40gb": 40e9, "a100-80gb": 80e9, "h100": 80e9, "h200": 141e9,
    "tpu-v5e": 16e9, "tpu-v5p": 95e9, "tpu-v6e": 32e9,
}  # fmt: skip
# What the runtime, the collectives and fragmentation take.
USABLE = 0.9


class Case(NamedTuple):
    """task: train or score. shape: fields of the DecoderConfig of `model`. axes: sizes of the mesh.
    groups: rows of `tokens` tokens and `documents` documents a batch shard holds."""

    task: str
    model: str
    shape: dict[str, Any]
    axes: dict[str, int]
    dtype: str = "bfloat16"
    remat: str = "full"
    groups: int = 4
    tokens: int = 1024
    documents: int = 5


class Fit(NamedTuple):
    """Bytes a device: frozen backbone, what is trained, temporaries (upper bound), all together.

    collectives: how often each kind runs in one step. flops_per_token: matrix products of the
    traced step; formula_per_token: what the formula says, 2N + a or 4N + 3a.
    """

    backbone_bytes: int
    trained_bytes: int
    temporary_bytes: int
    total_bytes: int
    collectives: dict[str, int]
    flops_per_token: float
    formula_per_token: float


def formula(config: DecoderConfig, task: str, tokens: int) -> float:
    """FLOPs per token of a step without recomputation, from the sizes alone.

    N counts the kernels of blocks 1..L-1, which is all that the feature needs. Attention is counted
    as the step computes it: every pair of a row's tokens, masked or not.
    """
    blocks = config.num_layers - 1
    n = blocks * sum(math.prod(size) for size in projection_sizes(config).values())
    a = blocks * 4 * tokens * config.num_heads * config.head_dim
    return 4.0 * n + 3.0 * a if task == "train" else 2.0 * n + a


def compile_case(case: Case) -> Fit:
    """Lowers and compiles one step. The process must have as many devices as the mesh needs."""
    config, mesh = DecoderConfig(**case.shape), make_mesh(case.axes)
    backbone = _backbone(config, mesh, "float32")
    batch = _batch(case, case.groups * batch_shards(mesh))
    with jax.set_mesh(mesh):
        if case.task == "train":
            traced, trained = _trace_train(case, config, backbone, batch, mesh)
        else:
            adapter = jax.eval_shape(lambda key: _adapter(config, key), _key())
            run: Any = features_pass(backbone, mesh)
            traced = run.trace(backbone, adapter, batch.packed)
            trained = adapter
        compiled = traced.lower().compile()
    held = _device_bytes(_backbone(config, mesh, case.dtype))
    own = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(trained))
    temporary = int(compiled.memory_analysis().temp_size_in_bytes)
    return Fit(
        backbone_bytes=held,
        trained_bytes=own,
        temporary_bytes=temporary,
        total_bytes=held + own + temporary,
        collectives=count_collectives(compiled.as_text()),
        flops_per_token=matmul_flops(traced.jaxpr) / batch.packed.tokens_BT.size,
        formula_per_token=formula(config, case.task, case.tokens),
    )


def _trace_train(case: Case, config: DecoderConfig, backbone: Any, batch: Batch, mesh: Any) -> Any:
    """The traced training step, and the shapes of its state."""
    preset = get_preset("fixed")
    found: dict[str, Any] = {}

    def initial(key: jax.Array) -> Any:
        model = ForecastModel(preset, config.hidden_size, _adapter(config, key), key)
        found["graphdef"], state = init_state(model, optimizer(preset))
        return state

    state = jax.eval_shape(initial, _key())
    step: Any = jit_train_step(sharding.layout(state, backbone, mesh))
    weights_C = jax.ShapeDtypeStruct((11,), np.float32)
    arguments = (state, backbone, batch, _key(), weights_C)
    return step.trace(found["graphdef"], preset, case.remat, *arguments), state


def _adapter(config: DecoderConfig, key: jax.Array) -> Adapter:
    preset = get_preset("fixed")
    return Adapter(config, key=key, rank=preset.lora_rank, targets=preset.lora_targets)


def _key() -> Any:
    return jax.eval_shape(lambda: jax.random.key(0))


def _backbone(config: DecoderConfig, mesh: Any, dtype: str) -> DecoderModule:
    """The decoder as shapes that know where they would lie."""
    arrays = {}
    for path, shape in parameter_shapes(config).items():
        where = sharding.sharding_of(path.replace(".", "/"), shape, mesh)
        arrays[path] = jax.ShapeDtypeStruct(shape, jnp.dtype(dtype), sharding=where)
    return DecoderModule(config, arrays)  # type: ignore[arg-type]


def _batch(case: Case, rows: int) -> Batch:
    def ints(*shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, np.int32)

    tokens, per_document = (rows, case.tokens), (rows, case.documents, 1)
    floats: Any = jax.ShapeDtypeStruct(per_document, np.float32)
    packed = Packed(ints(*tokens), ints(*tokens), ints(*tokens), ints(rows, case.documents))
    mask: Any = jax.ShapeDtypeStruct(per_document, np.bool_)
    return Batch(packed, floats, floats, mask, ints(*per_document))


def _device_bytes(tree: Any) -> int:
    """Bytes of the shards of one device."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
    )


def compile_apart(case: Case, environ: Mapping[str, str]) -> Fit:
    """`compile_case` in a process of its own with as many simulated CPU devices as it needs."""
    settings = {
        **environ,
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": str(math.prod(case.axes.values())),
        # What the machine code looks like does not matter here, and takes most of the time.
        "XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true",
    }
    settings.pop("JAX_COMPILATION_CACHE_DIR", None)
    command = [sys.executable, "-m", "calibjax.perf.aot", json.dumps(case._asdict())]
    done = subprocess.run(command, env=settings, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{case}: {done.stderr[-2000:]}")
    return Fit(**json.loads(done.stdout.splitlines()[-1]))


if __name__ == "__main__":
    print(json.dumps(compile_case(Case(**json.loads(sys.argv[1])))._asdict()))
