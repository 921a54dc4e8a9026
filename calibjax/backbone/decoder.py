"""The decoder: its parameters, and every pass over it as a pure function.

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
        _causal(module.config, T),
        Adapting(adapter, dropout_key, remat),
    )
    return _at_last(x_BTD, lengths_B).astype(jnp.float32)


def shared_features(
    module: DecoderModule,
    prefix_BP: jax.Array,
    prefix_lengths_B: jax.Array,
    suffix_BNS: jax.Array,
    suffix_lengths_BN: jax.Array,
    *,
    adapter: Adapter | None = None,
    dropout_key: jax.Array | None = None,
    remat: str = "none",
) -> jax.Array:
    """`features` of N continuations of each prefix, the prefix computed once; float32 [B, N, D].

    Equal in value and gradient to `features` of the B x N whole sequences (without dropout, which
    draws one mask for the prefix). A suffix of length 0 gives the feature of its prefix.
    """
    B, N, S = suffix_BNS.shape
    P = prefix_BP.shape[1]
    config = module.config
    tokens_BT = jnp.concatenate([prefix_BP, suffix_BNS.reshape(B, N * S)], axis=1)
    prefix_positions = jnp.broadcast_to(jnp.arange(P, dtype=jnp.int32)[None], (B, P))
    offsets_T = jnp.tile(jnp.arange(S, dtype=jnp.int32), N)
    suffix_positions = prefix_lengths_B.astype(jnp.int32)[:, None] + offsets_T[None]
    window = config.sliding_window
    places_11P = jnp.arange(P, dtype=jnp.int32)[None, None]
    suffix_places_B1S = suffix_positions[:, None, :S]
    near = attention.in_window(suffix_places_B1S, places_11P, window)
    mask_B1SP = _real(prefix_lengths_B, P)[:, None, None] & near

    def attend(q_BTHh: jax.Array, k_BTGh: jax.Array, v_BTGh: jax.Array) -> tuple[jax.Array, None]:
        (prefix_q, own_q), (prefix_k, own_k), (prefix_v, own_v) = (
            (x[:, :P], x[:, P:].reshape(B, N, S, *x.shape[2:])) for x in (q_BTHh, k_BTGh, v_BTGh)
        )
        causal = attention.causal_mask(P, window)
        prefix = _key_values(prefix_k[:, None], prefix_v[:, None], causal)
        prefix_out = attention.attend(prefix_q[:, None], prefix, scale=config.attention_scale)
        own = _key_values(own_k, own_v, attention.causal_mask(S, window))
        shared = attention.KeyValues(prefix.k[:, 0], prefix.v[:, 0], mask_B1SP)
        own_out = attention.attend(own_q, own, shared, scale=config.attention_scale)
        own_BTHh = own_out.reshape(B, N * S, *own_out.shape[3:])
        return jnp.concatenate([prefix_out[:, 0], own_BTHh], axis=1), None

    x_BTD, _ = run_blocks(
        module,
        embed(module, tokens_BT),
        jnp.concatenate([prefix_positions, suffix_positions], axis=1),
        attend,
        Adapting(adapter, dropout_key, remat),
    )
    first_N = P + S * jnp.arange(N, dtype=jnp.int32)
    own_last_BN = first_N[None] + suffix_lengths_BN.astype(jnp.int32) - 1
    prefix_last_B1 = prefix_lengths_B.astype(jnp.int32)[:, None] - 1
    last_BN = jnp.where(suffix_lengths_BN > 0, own_last_BN, prefix_last_B1)
    return jnp.take_along_axis(x_BTD, last_BN[..., None], axis=1).astype(jnp.float32)


def next_token_logits(
    module: DecoderModule,
    tokens_BT: jax.Array,
    lengths_B: jax.Array,
    *,
    adapter: Adapter | None = None,
) -> jax.Array:
    """Logits of the token after each row's last real token, float32 [B, V]."""
    return prefill(module, tokens_BT, lengths_B, adapter=adapter)[0]


def prefill(
    module: DecoderModule,
    tokens_BT: jax.Array,
    lengths_B: jax.Array,
    *,
    adapter: Adapter | None = None,
) -> tuple[jax.Array, PrefixCache]:
    """Next-token logits float32 [B, V] of the prompts and the keys and values to continue from."""
    config = module.config
    B, T = tokens_BT.shape
    positions_BT = jnp.broadcast_to(jnp.arange(T, dtype=jnp.int32)[None], (B, T))
    attend = _causal(config, T)
    x_BTD, (k_LBGPh, v_LBGPh) = run_blocks(
        module, embed(module, tokens_BT), positions_BT, attend, Adapting(adapter), keep=True
    )
    tables = _tables(config, positions_BT)
    q, k, v = layers.project_heads(module.last_block, config, x_BTD, tables, None)
    # Of the last block's queries, output and MLP only the last real token is needed.
    last_B111 = (lengths_B.astype(jnp.int32) - 1)[:, None, None, None]
    q_B1Hh = jnp.take_along_axis(q, last_B111, axis=1)
    near = attention.in_window(last_B111[..., 0], positions_BT[:, None], config.sliding_window)
    own = _key_values(k[:, None], v[:, None], _real(lengths_B, T)[:, None, None] & near)
    mixed = attention.attend(q_B1Hh[:, None], own, scale=config.attention_scale)[:, 0]
    x_B1D = jnp.take_along_axis(x_BTD, last_B111[..., 0], axis=1)
    x_B1D = layers.finish_block(module.last_block, config, x_B1D, mixed, None)
    cache = PrefixCache(k_LBGPh, v_LBGPh, own.k[:, 0], own.v[:, 0], lengths_B.astype(jnp.int32))
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
    P, slots = prefix_cache.k_LBGPh.shape[3], suffix_cache.k_LBNGSh.shape[4]
    places_11P = jnp.arange(P, dtype=jnp.int32)[None, None]
    near = attention.in_window(positions_BN[:, :1, None], places_11P, config.sliding_window)
    mask_B11P = _real(prefix_cache.lengths_B, P)[:, None, None] & near
    slots_11S = jnp.arange(slots, dtype=jnp.int32)[None, None]
    near = attention.in_window(step[None, None, None], slots_11S, config.sliding_window)
    mask_111S = (slots_11S <= step)[:, :, None] & near
    tables = _tables(config, positions_BN)

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
    return _head(module, x_BND), suffix_cache


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
    tables = _tables(config, positions_BT)

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


def _causal(config: DecoderConfig, length: int) -> layers.Attend:
    """Causal attention over right-padded rows; keeps the keys and values of the layer."""

    def attend(q_BTHh: jax.Array, k_BTGh: jax.Array, v_BTGh: jax.Array) -> tuple[jax.Array, Any]:
        causal = attention.causal_mask(length, config.sliding_window)
        own = _key_values(k_BTGh[:, None], v_BTGh[:, None], causal)
        out = attention.attend(q_BTHh[:, None], own, scale=config.attention_scale)
        return out[:, 0], (own.k[:, 0], own.v[:, 0])

    return attend


def _key_values(k: jax.Array, v: jax.Array, mask: jax.Array) -> attention.KeyValues:
    return attention.KeyValues(attention.heads_first(k), attention.heads_first(v), mask)


def _write(cache: jax.Array, new_BNGh: jax.Array, layer: Any, step: jax.Array) -> jax.Array:
    """One token of one layer into its slot."""
    update = new_BNGh.astype(cache.dtype)[None, :, :, :, None]
    return jax.lax.dynamic_update_slice(cache, update, (layer, 0, 0, 0, step, 0))


def embed(module: DecoderModule, tokens: jax.Array) -> jax.Array:
    """Residual stream before block 1, [*tokens.shape, D]."""
    # Ids are checked on the host; clipping only keeps an impossible id from becoming NaN.
    x = jnp.take(module.embedding[...], tokens, axis=0, mode="clip")
    multiplier = module.config.embedding_multiplier
    return divide_batch(x if multiplier == 1.0 else x * multiplier)


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


def _tables(config: DecoderConfig, positions_BT: jax.Array) -> tuple[jax.Array, jax.Array]:
    inverse = rope.inverse_frequencies(config.rotary_dim, config.rope_theta, config.rope_divisors)
    return rope.tables(positions_BT, inverse, config.rope_magnitude)


def _real(lengths_B: jax.Array, size: int) -> jax.Array:
    """True at real tokens, bool [B, size]."""
    return jnp.arange(size, dtype=jnp.int32)[None] < lengths_B.astype(jnp.int32)[:, None]


def _at_last(x_BTD: jax.Array, lengths_B: jax.Array) -> jax.Array:
    last_B11 = (lengths_B.astype(jnp.int32) - 1)[:, None, None]
    return jnp.take_along_axis(x_BTD, last_B11, axis=1)[:, 0]
