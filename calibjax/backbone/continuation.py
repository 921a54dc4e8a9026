"""Passes that continue texts: next-token logits, a prompt's keys and values, and one more token."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from calibjax.backbone import attention, layers
from calibjax.backbone.common_prefix import Rows
from calibjax.backbone.config import DecoderConfig
from calibjax.backbone.decoder import (
    Adapting,
    DecoderModule,
    causal_rows,
    embed,
    row_positions,
    run_stack,
    stacked,
    tables,
    within_rows,
)
from calibjax.backbone.lora import Adapter


class KeysValues(NamedTuple):
    """Keys and values of a block, [B, G, P, h] each; of a stack of blocks with an axis before."""

    k: jax.Array
    v: jax.Array


class PrefixCache(NamedTuple):
    """Keys and values of the prompts: of blocks 1..L-2 (stacked), L-1 and L."""

    blocks: KeysValues
    feature_block: KeysValues
    last_block: KeysValues
    lengths_B: jax.Array


class SuffixCache(NamedTuple):
    """Keys and values of what was generated, all L blocks."""

    k_LBNGSh: jax.Array
    v_LBNGSh: jax.Array


def next_token_logits(
    module: DecoderModule,
    tokens_BT: jax.Array,
    lengths_B: jax.Array,
    *,
    adapter: Adapter | None = None,
    common: int = 0,
) -> jax.Array:
    """Logits of the token after each row's last real token, float32 [B, V]; `common` as below."""
    return prefill(module, tokens_BT, lengths_B, adapter=adapter, common=common)[0]


def prefill(
    module: DecoderModule,
    tokens_BT: jax.Array,
    lengths_B: jax.Array,
    *,
    adapter: Adapter | None = None,
    common: int = 0,
) -> tuple[jax.Array, PrefixCache]:
    """Next-token logits float32 [B, V] of the prompts and the keys and values to continue from.

    The first `common` tokens, which must be the same in all rows and shorter than each, are
    computed once: same values, fewer tokens.
    """
    config, adapting = module.config, Adapting(adapter)
    B, T = tokens_BT.shape
    rows = Rows(B, T, common)
    places_BT = row_positions(tokens_BT)
    positions_AX = rows.join(places_BT)
    turns = tables(config, positions_AX)
    causal = attention.causal_mask(T, config.sliding_window)
    attend = rows.attend(config) if common else causal_rows(config, causal)
    x_AXD, stack = run_stack(
        module, embed(module, rows.join(tokens_BT)), positions_AX, attend, adapting, keep=True
    )
    x_AXD, feature = layers.run_block(
        module.feature_block, config, x_AXD, turns, attend, adapting.feature_layer(config)
    )
    last_B1 = lengths_B.astype(jnp.int32)[:, None] - 1
    near = attention.in_window(last_B1[:, None], places_BT[:, None], config.sliding_window)
    attend_last = within_rows(config, _real(lengths_B, T)[:, None, None] & near)
    x_B1D, last = layers.run_block(
        module.last_block,
        config,
        rows.part(x_AXD),
        tables(config, places_BT),
        attend_last,
        places_BN=last_B1,
    )
    cache = PrefixCache(
        KeysValues(*stack), KeysValues(*feature), KeysValues(*last), lengths_B.astype(jnp.int32)
    )
    return _head(module, x_B1D)[:, 0], cache


def empty_suffix_cache(
    config: DecoderConfig, batch: int, samples: int, slots: int, *, dtype: Any = jnp.float32
) -> SuffixCache:
    """Room for `slots` generated tokens of `samples` continuations of each of `batch` prompts."""
    shape = (
        config.num_layers,
        batch,
        samples,
        config.num_kv_heads,
        slots,
        config.head_dim,
    )
    return SuffixCache(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))


def decode_step(
    module: DecoderModule,
    tokens_BN: jax.Array,
    step: jax.Array,
    prefix_cache: PrefixCache,
    suffix_cache: SuffixCache,
    *,
    adapter: Adapter | None = None,
) -> tuple[jax.Array, SuffixCache]:
    """Logits float32 [B, N, V] after the token generated at `step` (0, 1, ...), and the new cache.

    Donate `suffix_cache` (or carry it through a loop): it is then written in place.
    """
    config = module.config
    step = jnp.asarray(step, jnp.int32)
    positions_BN = prefix_cache.lengths_B[:, None] + jnp.broadcast_to(
        step[None, None], tokens_BN.shape
    )
    P, slots = prefix_cache.blocks.k.shape[3], suffix_cache.k_LBNGSh.shape[4]
    places_11P = jnp.arange(P, dtype=jnp.int32)[None, None]
    near = attention.in_window(positions_BN[:, :1, None], places_11P, config.sliding_window)
    mask_B11P = _real(prefix_cache.lengths_B, P)[:, None, None] & near
    slots_11S = jnp.arange(slots, dtype=jnp.int32)[None, None]
    near = attention.in_window(step[None, None, None], slots_11S, config.sliding_window)
    mask_111S = (slots_11S <= step)[:, :, None] & near
    turns, adapting = tables(config, positions_BN), Adapting(adapter)

    def attend_at(layer: Any, cache: SuffixCache, prefix: KeysValues) -> Any:
        def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, SuffixCache]:
            new = SuffixCache(*(_write(c, x, layer, step) for c, x in zip(cache, (k, v))))
            own_k, own_v = (jax.lax.dynamic_index_in_dim(c, layer, 0, False) for c in new)
            own = attention.KeyValues(own_k, own_v, mask_111S)
            shared = attention.KeyValues(*prefix, mask_B11P)
            out = attention.attend(q[:, :, None], own, shared, scale=config.attention_scale)
            return out[:, :, 0], new

        return attend

    def body(carry: Any, layer_of: Any) -> tuple[Any, None]:
        x_BND, cache = carry
        block, pairs, layer, prefix = layer_of
        adapted = adapting.layer(pairs, layer)
        attend = attend_at(layer, cache, prefix)
        return layers.run_block(block, config, x_BND, turns, attend, adapted), None

    stack = (module.blocks, *stacked(config, adapter), prefix_cache.blocks)
    carry, _ = jax.lax.scan(body, (embed(module, tokens_BN), suffix_cache), stack)
    for block, prefix, number, adapted in (
        (module.feature_block, prefix_cache.feature_block, -2, adapting.feature_layer(config)),
        (module.last_block, prefix_cache.last_block, -1, None),
    ):
        x_BND, suffix_cache = carry
        attend = attend_at(config.num_layers + number, suffix_cache, prefix)
        carry = layers.run_block(block, config, x_BND, turns, attend, adapted)
    x_BND, suffix_cache = carry
    return _head(module, x_BND), suffix_cache


def _write(cache: jax.Array, new_BNGh: jax.Array, layer: Any, step: jax.Array) -> jax.Array:
    """One token of one layer into its slot."""
    update = new_BNGh.astype(cache.dtype)[None, :, :, :, None]
    return jax.lax.dynamic_update_slice(cache, update, (layer, 0, 0, 0, step, 0))


def _head(module: DecoderModule, x_BTD: jax.Array) -> jax.Array:
    """Final norm and vocabulary projection, float32 [B, T, V]."""
    normed = layers.rms_norm(module.norm, x_BTD, module.config.norm_eps)
    if module.lm_head is None:
        kernel, spec = module.embedding[...], "BTD,VD->BTV"
    else:
        kernel, spec = module.lm_head.kernel[...], "BTD,DV->BTV"
    logits = jnp.einsum(spec, normed, kernel, preferred_element_type=jnp.float32)
    divisor = module.config.logits_divisor
    return logits if divisor == 1.0 else logits / divisor


def _real(lengths_B: jax.Array, size: int) -> jax.Array:
    """True at real tokens, bool [B, size]."""
    return jnp.arange(size, dtype=jnp.int32)[None] < lengths_B.astype(jnp.int32)[:, None]
