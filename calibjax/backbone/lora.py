"""Low-rank adapters beside a frozen decoder: y + scale * (x A) B for chosen projections.

The adapter is a tree of its own, so the paths of the base weights never move. Its leaves are
stacked over blocks 1..L-1, which the scan runs over; block L has none, for the feature is read
before it (Hu et al. 2021; rank-stabilised scale: Kalajdzievski 2023).
"""

import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from calibjax.backbone.config import DecoderConfig
from calibjax.errors import input_error

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def scale_of(rank: int, alpha: float, rslora: bool = False) -> float:
    """alpha / rank, or alpha / sqrt(rank) when rank-stabilised."""
    return alpha / (rank**0.5 if rslora else rank)


class LowRank(nnx.Module):
    """A [.., in, R] and B [.., R, out] of one projection; B starts at zero."""

    def __init__(self, num_blocks: int, size_in: int, size_out: int, rank: int, key: jax.Array):
        bound = size_in**-0.5
        a = jax.random.uniform(key, (num_blocks, size_in, rank), jnp.float32, -bound, bound)
        self.a = nnx.LoRAParam(a)
        self.b = nnx.LoRAParam(jnp.zeros((num_blocks, rank, size_out), jnp.float32))


class Adapter(nnx.Module):
    """float32 LoRA parameters; attribute `q_proj` and so on for every chosen projection.

    `targets` is a regular expression that must match whole projection names. `dropout` is the
    probability of dropping an input of A, applied only where a dropout key is given.
    """

    def __init__(
        self,
        config: DecoderConfig,
        *,
        key: jax.Array,
        rank: int = 8,
        alpha: float = 16.0,
        dropout: float = 0.0,
        targets: str = "q_proj|v_proj",
        rslora: bool = False,
    ) -> None:
        names = [name for name in PROJECTIONS if re.fullmatch(targets, name)]
        if not names:
            raise input_error("targets", repr(targets), f"a pattern for some of {PROJECTIONS}")
        if rank < 1:
            raise input_error("rank", rank, "a positive integer")
        if not 0.0 <= dropout < 1.0:
            raise input_error("dropout", dropout, "a probability in [0, 1)")
        self.rank, self.alpha, self.dropout, self.rslora = rank, alpha, dropout, rslora
        sizes = projection_sizes(config)
        for name in names:
            name_key = jax.random.fold_in(key, PROJECTIONS.index(name))
            setattr(self, name, LowRank(config.num_layers - 1, *sizes[name], rank, name_key))

    @property
    def scale(self) -> float:
        return scale_of(self.rank, self.alpha, self.rslora)

    @property
    def targets(self) -> tuple[str, ...]:
        """Names of the projections that are adapted."""
        return tuple(name for name in PROJECTIONS if hasattr(self, name))


def projection_sizes(config: DecoderConfig) -> dict[str, tuple[int, int]]:
    """(in, out) of every projection of a block."""
    D, F = config.hidden_size, config.intermediate_size
    heads, kv_heads = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    return {
        "q_proj": (D, heads),
        "k_proj": (D, kv_heads),
        "v_proj": (D, kv_heads),
        "o_proj": (heads, D),
        "gate_proj": (D, F),
        "up_proj": (D, F),
        "down_proj": (F, D),
    }


class Layer(NamedTuple):
    """The adapter of one block (leaves without the layer axis) and its dropout key, if training."""

    adapter: Adapter
    dropout_key: jax.Array | None

    def add(self, name: str, x: jax.Array, y: jax.Array) -> jax.Array:
        """y plus the low-rank term of projection `name`; y itself when it is not adapted."""
        pair = getattr(self.adapter, name, None)
        if pair is None:
            return y
        if self.dropout_key is not None and self.adapter.dropout > 0.0:
            key = jax.random.fold_in(self.dropout_key, PROJECTIONS.index(name))
            x = _drop(x, self.adapter.dropout, key)
        # Products in the backbone's type, sums in float32: what the float32 parameters learn from
        # is exact, and a bfloat16 backbone keeps its fast matrix units.
        low = jnp.dot(x, pair.a[...].astype(x.dtype), preferred_element_type=jnp.float32)
        term = jnp.dot(
            low.astype(x.dtype), pair.b[...].astype(x.dtype), preferred_element_type=jnp.float32
        )
        return (y.astype(jnp.float32) + self.adapter.scale * term).astype(y.dtype)


def _drop(x: jax.Array, rate: float, key: jax.Array) -> jax.Array:
    """Inverted dropout; 16 random bits an element, and the rate they really give in the scale."""
    dropped = round(rate * 65536)
    keep = jax.random.bits(key, x.shape, jnp.uint16) >= jnp.uint16(dropped)
    return jnp.where(keep, x * (65536 / (65536 - dropped)), jnp.zeros_like(x))


def merged_kernel(kernel: jax.Array, a: jax.Array, b: jax.Array, scale: float) -> jax.Array:
    """kernel + scale A B in float32, whatever the type of the kernel."""
    product = jnp.matmul(a.astype(jnp.float32), b.astype(jnp.float32), precision="highest")
    return kernel.astype(jnp.float32) + scale * product


def merge(module: Any, adapter: Adapter) -> Any:
    """A copy of the decoder with the adapter added to its kernels; all other leaves are shared.

    The sum is taken in float32 and cast last: in bfloat16 a small change would vanish. Raises
    InputError for int8 kernels, in which it would vanish whatever the order.
    """
    merged = jax.tree.map(lambda leaf: leaf, module)
    for name in adapter.targets:
        pair = getattr(adapter, name)
        attention, mlp = merged.blocks.attention, merged.blocks.mlp
        room = attention if hasattr(attention, name) else mlp
        old = getattr(room, name).kernel[...]
        if old.dtype == jnp.int8:
            fix = "merge into the decoder loaded without quantize"
            raise input_error("kernel type", old.dtype, "floating-point weights", fix)
        new = merged_kernel(old, pair.a[...], pair.b[...], adapter.scale)
        getattr(room, name).kernel = nnx.Param(new.astype(old.dtype))
    return merged
