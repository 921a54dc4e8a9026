"""The parameters of a decoder and the arithmetic of one block; attention itself is passed in."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from calibjax.backbone import lora, rope
from calibjax.backbone.config import DecoderConfig
from calibjax.backbone.quantize import SCALE
from calibjax.training.mesh import divide_batch

# attend(q_BTHh, k_BTGh, v_BTGh) -> (out_BTHh, whatever the caller wants to keep of the layer).
Attend = Callable[[jax.Array, jax.Array, jax.Array], tuple[jax.Array, Any]]
# Cosines and sines of the rotary embedding.
Tables = Sequence[jax.Array]


class Linear(nnx.Module):
    """y = x W + b with W stored [in, out]; b may be absent.

    An int8 W has a scale for every output (`backbone.quantize`).
    """

    def __init__(self, arrays: Mapping[str, jax.Array], path: str) -> None:
        self.kernel = nnx.Param(arrays[f"{path}.kernel"])
        scale = arrays.get(f"{path}.{SCALE}")
        self.kernel_scale = None if scale is None else nnx.Param(scale)
        bias = arrays.get(f"{path}.bias")
        self.bias = None if bias is None else nnx.Param(bias)


class RMSNorm(nnx.Module):
    def __init__(self, arrays: Mapping[str, jax.Array], path: str) -> None:
        self.scale = nnx.Param(arrays[f"{path}.scale"])


class Attention(nnx.Module):
    def __init__(self, arrays: Mapping[str, jax.Array], path: str) -> None:
        self.q_proj = Linear(arrays, f"{path}.q_proj")
        self.k_proj = Linear(arrays, f"{path}.k_proj")
        self.v_proj = Linear(arrays, f"{path}.v_proj")
        self.o_proj = Linear(arrays, f"{path}.o_proj")


class MLP(nnx.Module):
    def __init__(self, arrays: Mapping[str, jax.Array], path: str) -> None:
        self.gate_proj = Linear(arrays, f"{path}.gate_proj")
        self.up_proj = Linear(arrays, f"{path}.up_proj")
        self.down_proj = Linear(arrays, f"{path}.down_proj")


class Block(nnx.Module):
    """One decoder block, or a stack of blocks when every leaf has a leading layer axis."""

    def __init__(self, arrays: Mapping[str, jax.Array], path: str) -> None:
        self.attention_norm = RMSNorm(arrays, f"{path}.attention_norm")
        self.attention = Attention(arrays, f"{path}.attention")
        self.mlp_norm = RMSNorm(arrays, f"{path}.mlp_norm")
        self.mlp = MLP(arrays, f"{path}.mlp")


def rms_norm(norm: RMSNorm, x: jax.Array, eps: float) -> jax.Array:
    """Root-mean-square normalisation, computed in float32, returned in x's type."""
    x32 = x.astype(jnp.float32)
    x32 = x32 * jax.lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + eps)
    scale = norm.scale[...]
    return x32.astype(x.dtype) * scale.reshape((1,) * (x.ndim - 1) + scale.shape)


def project(linear: Linear, name: str, x: jax.Array, adapted: lora.Layer | None) -> jax.Array:
    """Linear projection plus what the adapter adds to the projection called `name`."""
    if linear.kernel_scale is None:
        y = jnp.dot(x, linear.kernel[...])
    else:
        y = jnp.dot(
            x, linear.kernel[...].astype(x.dtype), preferred_element_type=jnp.float32
        )
        scale = linear.kernel_scale[...]
        y = (y * scale.reshape((1,) * (y.ndim - 1) + scale.shape)).astype(x.dtype)
    if linear.bias is not None:
        bias = linear.bias[...]
        y = y + bias.reshape((1,) * (y.ndim - 1) + bias.shape)
    return y if adapted is None else adapted.add(name, x, y)


def project_heads(
    block: Block,
    config: DecoderConfig,
    normed_BTD: jax.Array,
    tables: Tables,
    name: str,
    adapted: lora.Layer | None,
) -> jax.Array:
    """Heads [B, T, heads, h] of "q", "k" (both rotated) or "v" from the normed input of a block."""
    name = f"{name}_proj"
    flat = project(getattr(block.attention, name), name, normed_BTD, adapted)
    heads_BTHh = flat.reshape(*normed_BTD.shape[:2], -1, config.head_dim)
    if name != "v_proj":
        heads_BTHh = rope.rotate(heads_BTHh, *tables)
    return checkpoint_name(heads_BTHh, "qkv")


def finish_block(
    block: Block,
    config: DecoderConfig,
    x_BTD: jax.Array,
    mixed_BTHh: jax.Array,
    adapted: lora.Layer | None,
) -> jax.Array:
    """Residual stream after the block, given its attention output."""
    flat = checkpoint_name(mixed_BTHh.reshape(*x_BTD.shape[:2], -1), "context")
    x_BTD = x_BTD + _scaled(config, project(block.attention.o_proj, "o_proj", flat, adapted))
    x_BTD = checkpoint_name(x_BTD, "middle")
    normed = rms_norm(block.mlp_norm, x_BTD, config.norm_eps)
    gate_BTF = project(block.mlp.gate_proj, "gate_proj", normed, adapted)
    up_BTF = project(block.mlp.up_proj, "up_proj", normed, adapted)
    gate_BTF, up_BTF = checkpoint_name(gate_BTF, "gate"), checkpoint_name(up_BTF, "up")
    hidden_BTF = jax.nn.silu(gate_BTF) * up_BTF
    return x_BTD + _scaled(config, project(block.mlp.down_proj, "down_proj", hidden_BTF, adapted))


def run_block(
    block: Block,
    config: DecoderConfig,
    x_BTD: jax.Array,
    tables: Tables,
    attend: Attend,
    adapted: lora.Layer | None = None,
    *,
    places_BN: jax.Array | None = None,
) -> tuple[jax.Array, Any]:
    """One block; returns the new residual stream and what `attend` kept.

    places_BN: the only tokens whose residual stream is wanted, [B, N, D] then. Of the others keys
    and values alone are computed, and `attend` gets the queries of these places.
    """
    normed_BTD = rms_norm(block.attention_norm, x_BTD, config.norm_eps)
    k_BTGh, v_BTGh = (
        project_heads(block, config, normed_BTD, tables, name, adapted) for name in "kv"
    )
    if places_BN is not None:
        places_BN1 = places_BN[..., None]
        x_BTD, normed_BTD, *tables = (
            divide_batch(jnp.take_along_axis(divide_batch(whole), places_BN1, axis=1))
            for whole in (x_BTD, normed_BTD, *tables)
        )
    q_BTHh = project_heads(block, config, normed_BTD, tables, "q", adapted)
    mixed_BTHh, kept = attend(q_BTHh, k_BTGh, v_BTGh)
    return finish_block(block, config, x_BTD, mixed_BTHh, adapted), kept


def _scaled(config: DecoderConfig, x: jax.Array) -> jax.Array:
    return x if config.residual_multiplier == 1.0 else x * config.residual_multiplier
