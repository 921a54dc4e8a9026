"""Passes that keep keys and values: the prefill of prompts, and one decoding step at a time.

Prompts of a batch that begin alike have their common tokens computed once.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from calibjax.backbone import attention, layers, lora
from calibjax.backbone.config import DecoderConfig
from calibjax.backbone.decoder import (
    Adapting,
    DecoderModule,
    causal,
    embed,
    head,
    key_values,
    real_tokens,
    run_blocks,
    rope_tables,
)
from calibjax.backbone.lora import Adapter


class PrefixCache(NamedTuple):
    """Keys and values of the prompts; the arrays of blocks 1..L-1 are stacked."""

    k_LBGPh: jax.Array
    v_LBGPh: jax.Array
    last_k_BGPh: jax.Array
    last_v_BGPh: jax.Array
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
    config = module.config
    B, T = tokens_BT.shape
    rows = _Rows(B, T, common)
    places_BT = jnp.broadcast_to(jnp.arange(T, dtype=jnp.int32)[None], (B, T))
    positions_AX = rows.join(places_BT)
    attend = causal(config, T) if not common else _forked(config, rows)
    x_AXD, (k_LBGPh, v_LBGPh) = run_blocks(
        module,
        embed(module, rows.join(tokens_BT)),
        positions_AX,
        attend,
        Adapting(adapter),
        keep=True,
    )
    tables = rope_tables(config, positions_AX)
    heads = layers.project_heads(module.last_block, config, x_AXD, tables, None)
    q, k, v, x_BTD = (rows.part(x) for x in (*heads, x_AXD))
    # Of the last block's queries, output and MLP only the last real token is needed.
    last_B111 = (lengths_B.astype(jnp.int32) - 1)[:, None, None, None]
    q_B1Hh = jnp.take_along_axis(q, last_B111, axis=1)
    near = attention.in_window(last_B111[..., 0], places_BT[:, None], config.sliding_window)
    own = key_values(k[:, None], v[:, None], real_tokens(lengths_B, T)[:, None, None] & near)
    mixed = attention.attend(q_B1Hh[:, None], own, scale=config.attention_scale)[:, 0]
    x_B1D = jnp.take_along_axis(x_BTD, last_B111[..., 0], axis=1)
    x_B1D = layers.finish_block(module.last_block, config, x_B1D, mixed, None)
    cache = PrefixCache(k_LBGPh, v_LBGPh, own.k[:, 0], own.v[:, 0], lengths_B.astype(jnp.int32))
    return head(module, x_B1D)[:, 0], cache


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
    P, slots = prefix_cache.k_LBGPh.shape[3], suffix_cache.k_LBNGSh.shape[4]
    places_11P = jnp.arange(P, dtype=jnp.int32)[None, None]
    near = attention.in_window(positions_BN[:, :1, None], places_11P, config.sliding_window)
    mask_B11P = real_tokens(prefix_cache.lengths_B, P)[:, None, None] & near
    slots_11S = jnp.arange(slots, dtype=jnp.int32)[None, None]
    near = attention.in_window(step[None, None, None], slots_11S, config.sliding_window)
    mask_111S = (slots_11S <= step)[:, :, None] & near
    tables = rope_tables(config, positions_BN)

    def attend_at(layer: Any, cache: SuffixCache, prefix_k: jax.Array, prefix_v: jax.Array) -> Any:
        def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, SuffixCache]:
            new = SuffixCache(*(_write(c, x, layer, step) for c, x in zip(cache, (k, v))))
            own_k, own_v = (jax.lax.dynamic_index_in_dim(c, layer, 0, False) for c in new)
            own = attention.KeyValues(own_k, own_v, mask_111S)
            shared = attention.KeyValues(prefix_k, prefix_v, mask_B11P)
            out = attention.attend(q[:, :, None], own, shared, scale=config.attention_scale)
            return out[:, :, 0], new

        return attend

    def body(carry: Any, layer_of: Any) -> tuple[Any, None]:
        x_BND, cache = carry
        block, pairs, layer, prefix_k, prefix_v = layer_of
        adapted = None if pairs is None else lora.Layer(pairs, None)
        attend = attend_at(layer, cache, prefix_k, prefix_v)
        return layers.run_block(block, config, x_BND, tables, attend, adapted), None

    numbers_L = jnp.arange(config.num_layers - 1, dtype=jnp.int32)
    stacked = (module.blocks, adapter, numbers_L, prefix_cache.k_LBGPh, prefix_cache.v_LBGPh)
    start = (embed(module, tokens_BN), suffix_cache)
    (x_BND, suffix_cache), _ = jax.lax.scan(body, start, stacked)
    last = config.num_layers - 1
    attend = attend_at(last, suffix_cache, prefix_cache.last_k_BGPh, prefix_cache.last_v_BGPh)
    x_BND, suffix_cache = layers.run_block(module.last_block, config, x_BND, tables, attend)
    return head(module, x_BND), suffix_cache


class _Rows(NamedTuple):
    """B rows of T tokens whose first `common` are the same, and those tokens held once, [1, X]."""

    B: int
    T: int
    common: int

    def join(self, x_BT: jax.Array) -> jax.Array:
        if not self.common:
            return x_BT
        own_1Y = x_BT[:, self.common :].reshape(1, -1)
        return jnp.concatenate([x_BT[:1, : self.common], own_1Y], axis=1)

    def split(self, x_1X: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The common tokens' part [1, common, ...] and the rows' own, [1, B, T - common, ...]."""
        own = x_1X[:, self.common :]
        return x_1X[:, : self.common], own.reshape(1, self.B, self.T - self.common, *own.shape[2:])

    def part(self, x_1X: jax.Array) -> jax.Array:
        """Whole rows again, [B, T, ...]."""
        if not self.common:
            return x_1X
        common, own = self.split(x_1X)
        common = jnp.broadcast_to(common, (self.B, *common.shape[1:]))
        return jnp.concatenate([common, own[0]], axis=1)


def _forked(config: DecoderConfig, rows: _Rows) -> layers.Attend:
    """What `causal` does, for rows whose common tokens are computed once."""
    window, P = config.sliding_window, rows.common
    places_11T = jnp.arange(rows.T, dtype=jnp.int32)[None, None]
    near = attention.in_window(places_11T[..., P:], places_11T[..., :P], window)
    mask_11SP = jnp.broadcast_to(near, (1, 1, rows.T - P, P))

    def attend(q_1XHh: jax.Array, k_1XGh: jax.Array, v_1XGh: jax.Array) -> tuple[jax.Array, Any]:
        q, k, v = (rows.split(x) for x in (q_1XHh, k_1XGh, v_1XGh))
        common = key_values(k[0][:, None], v[0][:, None], attention.causal_mask(P, window))
        common_out = attention.attend(q[0][:, None], common, scale=config.attention_scale)[:, 0]
        own = key_values(k[1], v[1], attention.causal_mask(rows.T - P, window))
        seen = attention.KeyValues(common.k[:, 0], common.v[:, 0], mask_11SP)
        own_out = attention.attend(q[1], own, seen, scale=config.attention_scale)
        out = jnp.concatenate([common_out, own_out.reshape(1, -1, *own_out.shape[3:])], axis=1)
        return out, tuple(attention.heads_first(rows.part(x)) for x in (k_1XGh, v_1XGh))

    return attend


def _write(cache: jax.Array, new_BNGh: jax.Array, layer: Any, step: jax.Array) -> jax.Array:
    """One token of one layer into its slot."""
    update = new_BNGh.astype(cache.dtype)[None, :, :, :, None]
    return jax.lax.dynamic_update_slice(cache, update, (layer, 0, 0, 0, step, 0))
