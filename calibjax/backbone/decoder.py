"""The decoder: its parameters, the pass up to the feature, and the parts that passes are made of.

Blocks 1..L-1 are stacked and run by one scan; block L stands apart, because the feature is read
before it and slicing it off a stack would copy the weights. Rows are padded on the right.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from calibjax.backbone import attention, layers, lora, rope
from calibjax.backbone.config import DecoderConfig
from calibjax.backbone.lora import Adapter
from calibjax.backbone.remat import rematerialized
from calibjax.training.mesh import divide_batch


class DecoderModule(nnx.Module):
    """Parameters of a decoder. `arrays` is keyed as `parameter_shapes(config)`."""

    def __init__(self, config: DecoderConfig, arrays: Mapping[str, jax.Array]) -> None:
        self.config = config
        self.embedding = nnx.Param(arrays["embedding"])
        self.blocks = layers.Block(arrays, "blocks")
        self.last_block = layers.Block(arrays, "last_block")
        self.norm = layers.RMSNorm(arrays, "norm")
        # Tied embeddings are one array, read both ways.
        self.lm_head = None if config.tie_embeddings else layers.Linear(arrays, "lm_head")


def parameter_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Shape of every parameter by its path."""
    D, V = config.hidden_size, config.vocab_size
    shapes: dict[str, tuple[int, ...]] = {"embedding": (V, D), "norm.scale": (D,)}
    if not config.tie_embeddings:
        shapes["lm_head.kernel"] = (D, V)
    for stem, stack in (("blocks", (config.num_layers - 1,)), ("last_block", ())):
        for name, shape in _block_shapes(config).items():
            shapes[f"{stem}.{name}"] = (*stack, *shape)
    return shapes


def _block_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    D = config.hidden_size
    shapes: dict[str, tuple[int, ...]] = {"attention_norm.scale": (D,), "mlp_norm.scale": (D,)}
    biased = {"q_proj": config.qkv_bias, "k_proj": config.qkv_bias, "v_proj": config.qkv_bias}
    biased["o_proj"] = config.output_bias
    for name, size in lora.projection_sizes(config).items():
        stem = f"attention.{name}" if name in biased else f"mlp.{name}"
        shapes[f"{stem}.kernel"] = size
        if biased.get(name, config.mlp_bias):
            shapes[f"{stem}.bias"] = size[1:]
    return shapes


def features(
    module: DecoderModule,
    tokens_BT: jax.Array,
    lengths_B: jax.Array,
    *,
    adapter: Adapter | None = None,
    dropout_key: jax.Array | None = None,
    remat: str = "none",
) -> jax.Array:
    """Residual stream after block L-1 at each row's last real token, float32 [B, D].

    No final norm; the last block is never run. `dropout_key` switches LoRA dropout on; `remat`
    names what the backward pass recomputes (`remat.POLICIES`).
    """
    B, T = tokens_BT.shape
    positions_BT = jnp.broadcast_to(jnp.arange(T, dtype=jnp.int32)[None], (B, T))
    x_BTD, _ = run_blocks(
        module,
        embed(module, tokens_BT),
        positions_BT,
        causal(module.config, T),
        Adapting(adapter, dropout_key, remat),
    )
    return _at_last(x_BTD, lengths_B).astype(jnp.float32)


class Adapting(NamedTuple):
    """How blocks are changed (`adapter`) and trained (dropout where a key is given; `remat`)."""

    adapter: Adapter | None = None
    dropout_key: jax.Array | None = None
    remat: str = "none"


def run_blocks(
    module: DecoderModule,
    x_BTD: jax.Array,
    positions_BT: jax.Array,
    attend: layers.Attend,
    adapting: Adapting,
    keep: bool = False,
) -> tuple[jax.Array, Any]:
    """Residual stream after blocks 1..L-1 and, with `keep`, what `attend` kept of each, stacked."""
    config = module.config
    tables = rope_tables(config, positions_BT)

    def body(x: jax.Array, layer_of: Any) -> tuple[jax.Array, Any]:
        block, pairs, number = layer_of
        adapted = None
        if pairs is not None:
            key = adapting.dropout_key
            adapted = lora.Layer(pairs, None if key is None else jax.random.fold_in(key, number))
        x, kept = layers.run_block(block, config, divide_batch(x), tables, attend, adapted)
        return x, (kept if keep else None)

    body = rematerialized(body, adapting.remat)
    numbers_L = jnp.arange(config.num_layers - 1, dtype=jnp.int32)
    return jax.lax.scan(body, x_BTD, (module.blocks, adapting.adapter, numbers_L))


def causal(config: DecoderConfig, length: int) -> layers.Attend:
    """Causal attention over right-padded rows; keeps the keys and values of the layer."""

    def attend(q_BTHh: jax.Array, k_BTGh: jax.Array, v_BTGh: jax.Array) -> tuple[jax.Array, Any]:
        mask = attention.causal_mask(length, config.sliding_window)
        own = key_values(k_BTGh[:, None], v_BTGh[:, None], mask)
        out = attention.attend(q_BTHh[:, None], own, scale=config.attention_scale)
        return out[:, 0], (own.k[:, 0], own.v[:, 0])

    return attend


def key_values(k: jax.Array, v: jax.Array, mask: jax.Array) -> attention.KeyValues:
    """`KeyValues` of keys and values whose token axis comes first."""
    return attention.KeyValues(attention.heads_first(k), attention.heads_first(v), mask)


def embed(module: DecoderModule, tokens: jax.Array) -> jax.Array:
    """Residual stream before block 1, [*tokens.shape, D]."""
    # Ids are checked on the host; clipping only keeps an impossible id from becoming NaN.
    x = jnp.take(module.embedding[...], tokens, axis=0, mode="clip")
    multiplier = module.config.embedding_multiplier
    return divide_batch(x if multiplier == 1.0 else x * multiplier)


def head(module: DecoderModule, x_BTD: jax.Array) -> jax.Array:
    """Final norm and vocabulary projection, float32 [B, T, V]."""
    normed = layers.rms_norm(module.norm, x_BTD, module.config.norm_eps)
    if module.lm_head is None:
        kernel, spec = module.embedding[...], "BTD,VD->BTV"
    else:
        kernel, spec = module.lm_head.kernel[...], "BTD,DV->BTV"
    logits = jnp.einsum(spec, normed, kernel, preferred_element_type=jnp.float32)
    divisor = module.config.logits_divisor
    return logits if divisor == 1.0 else logits / divisor


def rope_tables(config: DecoderConfig, positions_BT: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Cosines and sines of the rotary embedding at these positions."""
    inverse = rope.inverse_frequencies(config.rotary_dim, config.rope_theta, config.rope_divisors)
    return rope.tables(positions_BT, inverse, config.rope_magnitude)


def real_tokens(lengths_B: jax.Array, size: int) -> jax.Array:
    """True at real tokens, bool [B, size]."""
    return jnp.arange(size, dtype=jnp.int32)[None] < lengths_B.astype(jnp.int32)[:, None]


def _at_last(x_BTD: jax.Array, lengths_B: jax.Array) -> jax.Array:
    last_B11 = (lengths_B.astype(jnp.int32) - 1)[:, None, None]
    return jnp.take_along_axis(x_BTD, last_B11, axis=1)[:, 0]
