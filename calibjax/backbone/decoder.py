"""The decoder's parameters, and the passes that read its features.

The feature is read before block L, and of block L-1 it needs keys and values of every token but the
rest at single tokens only. So blocks 1..L-2 are stacked and run by one scan, and the last two stand
apart: slicing them off a stack would copy the weights. Rows are padded on the right.
"""

from collections.abc import Callable, Mapping
from functools import partial
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
        self.feature_block = layers.Block(arrays, "feature_block")
        self.last_block = layers.Block(arrays, "last_block")
        self.norm = layers.RMSNorm(arrays, "norm")
        # Tied embeddings are one array, read both ways.
        self.lm_head = None if config.tie_embeddings else layers.Linear(arrays, "lm_head")


class Adapting(NamedTuple):
    """How blocks are changed (`adapter`) and trained (dropout where a key is given; `remat`)."""

    adapter: Adapter | None = None
    dropout_key: jax.Array | None = None
    remat: str = "none"

    def layer(self, pairs: Adapter | None, number: Any) -> lora.Layer | None:
        """The adapter of block `number` (counted from 0), whose leaves are `pairs`."""
        if pairs is None:
            return None
        key = self.dropout_key
        return lora.Layer(pairs, None if key is None else jax.random.fold_in(key, number))

    def feature_layer(self, config: DecoderConfig) -> lora.Layer | None:
        """The adapter of block L-1."""
        number = config.num_layers - 2
        return self.layer(jax.tree.map(lambda leaf: leaf[number], self.adapter), jnp.int32(number))


def parameter_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Shape of every parameter by its path."""
    D, V = config.hidden_size, config.vocab_size
    shapes: dict[str, tuple[int, ...]] = {"embedding": (V, D), "norm.scale": (D,)}
    if not config.tie_embeddings:
        shapes["lm_head.kernel"] = (D, V)
    for room, numbers in block_numbers(config).items():
        stack = (len(numbers),) if room == "blocks" else ()
        for name, shape in _block_shapes(config).items():
            shapes[f"{room}.{name}"] = (*stack, *shape)
    return shapes


def block_numbers(config: DecoderConfig) -> dict[str, range]:
    """Numbers (from 0) of the blocks by where their parameters are."""
    L = config.num_layers
    return {
        "blocks": range(L - 2),
        "feature_block": range(L - 2, L - 1),
        "last_block": range(L - 1, L),
    }


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
    features_B1D = features_at(
        module,
        tokens_BT,
        row_positions(tokens_BT),
        attention.causal_mask(tokens_BT.shape[1], module.config.sliding_window),
        lengths_B.astype(jnp.int32)[:, None] - 1,
        Adapting(adapter, dropout_key, remat),
    )
    return features_B1D[:, 0]


def features_at(
    module: DecoderModule,
    tokens_BT: jax.Array,
    positions_BT: jax.Array,
    mask_B1TS: jax.Array,
    places_BN: jax.Array,
    adapting: Adapting,
    reach: attention.Reach | None = None,
) -> jax.Array:
    """Residual stream after block L-1 at N tokens of each row, float32 [B, N, D].

    mask_B1TS: who sees whom, never a later token, none beyond `reach`; its first dimension may
    be 1.
    """
    config = module.config
    x_BTD, _ = run_stack(
        module,
        embed(module, tokens_BT),
        positions_BT,
        causal_rows(config, mask_B1TS, reach),
        adapting,
    )
    B, T = tokens_BT.shape
    seen_B1NS = jnp.take_along_axis(
        jnp.broadcast_to(mask_B1TS, (B, 1, T, T)), places_BN[:, None, :, None], axis=2
    )
    x_BND, _ = layers.run_block(
        module.feature_block,
        config,
        divide_batch(x_BTD),
        tables(config, positions_BT),
        within_rows(config, seen_B1NS),
        adapting.feature_layer(config),
        places_BN=places_BN,
    )
    return x_BND.astype(jnp.float32)


def run_stack(
    module: DecoderModule,
    x_BTD: jax.Array,
    positions_BT: jax.Array,
    attend: layers.Attend,
    adapting: Adapting,
    keep: bool = False,
) -> tuple[jax.Array, Any]:
    """Residual stream after blocks 1..L-2 and, with `keep`, what `attend` kept of each, stacked."""
    config = module.config
    turns = tables(config, positions_BT)

    def body(x: jax.Array, layer_of: Any) -> tuple[jax.Array, Any]:
        block, pairs, number = layer_of
        adapted = adapting.layer(pairs, number)
        x, kept = layers.run_block(block, config, divide_batch(x), turns, attend, adapted)
        return x, (kept if keep else None)

    body = rematerialized(body, adapting.remat)
    return jax.lax.scan(body, x_BTD, (module.blocks, *stacked(config, adapting.adapter)))


def stacked(config: DecoderConfig, adapter: Adapter | None) -> tuple[Adapter | None, jax.Array]:
    """Adapter and numbers of blocks 1..L-2, for a scan over them."""
    count = config.num_layers - 2
    return jax.tree.map(lambda leaf: leaf[:count], adapter), jnp.arange(count, dtype=jnp.int32)


def within_rows(config: DecoderConfig, mask_B1NS: jax.Array) -> layers.Attend:
    """Attention of any N tokens to those of their row; keeps the keys and values of the layer."""
    return _attending(mask_B1NS, partial(attention.attend, scale=config.attention_scale))


def causal_rows(
    config: DecoderConfig, mask_B1TS: jax.Array, reach: attention.Reach | None = None
) -> layers.Attend:
    """Attention of all tokens of a row to earlier ones; keeps the keys and values of the layer."""
    attend = partial(attention.attend_rows, reach=reach, scale=config.attention_scale)
    return _attending(mask_B1TS, attend)


def _attending(mask_B1TS: jax.Array, attend: Callable[..., jax.Array]) -> layers.Attend:
    def attend_and_keep(q_BTHh: jax.Array, k_BSGh: jax.Array, v_BSGh: jax.Array) -> Any:
        k_BGSh, v_BGSh = attention.heads_first(k_BSGh), attention.heads_first(v_BSGh)
        own = attention.KeyValues(k_BGSh[:, None], v_BGSh[:, None], mask_B1TS)
        return attend(q_BTHh[:, None], own)[:, 0], (k_BGSh, v_BGSh)

    return attend_and_keep


def row_positions(tokens_BT: jax.Array) -> jax.Array:
    """Positions of rows that start at their first token, int32 [B, T]."""
    return jnp.broadcast_to(jnp.arange(tokens_BT.shape[1], dtype=jnp.int32)[None], tokens_BT.shape)


def embed(module: DecoderModule, tokens: jax.Array) -> jax.Array:
    """Residual stream before block 1, [*tokens.shape, D]."""
    # Ids are checked on the host; clipping only keeps an impossible id from becoming NaN.
    x = jnp.take(module.embedding[...], tokens, axis=0, mode="clip")
    multiplier = module.config.embedding_multiplier
    return divide_batch(x if multiplier == 1.0 else x * multiplier)


def tables(config: DecoderConfig, positions_BT: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Cosines and sines of the positions, as every block turns its queries and keys."""
    inverse = rope.inverse_frequencies(config.rotary_dim, config.rope_theta, config.rope_divisors)
    return rope.tables(positions_BT, inverse, config.rope_magnitude)
