"""The parameters of a decoder and the arithmetic of one block; attention itself is passed in."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from calibjax.backbone import lora, rope
from calibjax.backbone.config import DecoderConfig
from calibjax.backbone.quantize import SCALE

# attend(q_BTHh, k_BTGh, v_BTGh) -> (out_BTHh, whatever the caller wants to keep of the layer).
Attend = Callable[[jax.Array, jax.Array, jax.Array], tuple[jax.Array, Any]]


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
    x_BTD: jax.Array,
    tables: tuple[jax.Array, jax.Array],
    adapted: lora.Layer | None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Rotated queries [B, T, H, h], rotated keys and plain values [B, T, G, h] of a block."""
    normed = rms_norm(block.attention_norm, x_BTD, config.norm_eps)
    shape = (*x_BTD.shape[:2], -1, config.head_dim)
    q_BTHh = project(block.attention.q_proj, "q_proj", normed, adapted).reshape(shape)
    k_BTGh = project(block.attention.k_proj, "k_proj", normed, adapted).reshape(shape)
    v_BTGh = project(block.attention.v_proj, "v_proj", normed, adapted).reshape(shape)
    rotated = rope.rotate(q_BTHh, *tables), rope.rotate(k_BTGh, *tables), v_BTGh
    return checkpoint_name(rotated, "qkv")


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
    tables: tuple[jax.Array, jax.Array],
    attend: Attend,
    adapted: lora.Layer | None = None,
) -> tuple[jax.Array, Any]:
    """One whole block; returns the new residual stream and what `attend` kept."""
    mixed_BTHh, kept = attend(*project_heads(block, config, x_BTD, tables, adapted))
    return finish_block(block, config, x_BTD, mixed_BTHh, adapted), kept


def _scaled(config: DecoderConfig, x: jax.Array) -> jax.Array:
    return x if config.residual_multiplier == 1.0 else x * config.residual_multiplier
