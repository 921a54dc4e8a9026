"""One attention for every use: queries of N continuations see a shared prefix and their own suffix.

Scores over prefix and suffix are concatenated before a single float32 softmax. Two softmaxes merged
by their log-sum-exp would give the same values but wrong gradients in the fused kernels.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

# Large enough to vanish in a float32 softmax, finite so that rows with nothing to see stay finite.
_MASKED = -1e30

# Queries of one row that are looked at together: few enough that a part of the keys suffices.
QUERIES_PER_CHUNK = 128


class KeyValues(NamedTuple):
    """Keys and values with the head axis before the token axis, so that no step transposes a cache.

    A prefix holds k_BGPh, v_BGPh and mask_BNTP; suffixes hold k_BNGSh, v_BNGSh and mask_BNTS, where
    T are the queries (of a mask, any of B, N, T may be 1).
    """

    k: jax.Array
    v: jax.Array
    mask: jax.Array


def attend(
    q_BNTHh: jax.Array, own: KeyValues, shared: KeyValues | None = None, *, scale: float
) -> jax.Array:
    """Attention of N continuations of T queries over the shared prefix and their own suffix.

    Query head i reads key-value head i // (H / G). Returns [B, N, T, H, h] in the values' type; a
    query that may see nothing gets the mean of all values (finite, never used).
    """
    B, N, T, H, h = q_BNTHh.shape
    G = own.k.shape[2]
    # Heads before tokens, so that the scores, the largest array, come out in the order of the sums.
    q_BNGMTh = q_BNTHh.reshape(B, N, T, G, H // G, h).transpose(0, 1, 3, 4, 2, 5)
    if shared is None:
        out = _attend_own(q_BNGMTh, own.k, own.v, own.mask, scale)
    else:
        P = shared.k.shape[2]
        scores = _scores("BNGMTh,BNGSh->BNGMTS", q_BNGMTh, own.k, own.mask, scale)
        prefix_scores = _scores("BNGMTh,BGPh->BNGMTP", q_BNGMTh, shared.k, shared.mask, scale)
        probs = jax.nn.softmax(jnp.concatenate([prefix_scores, scores], axis=-1), axis=-1)
        probs = probs.astype(own.v.dtype)
        out = jnp.einsum("BNGMTP,BGPh->BNGMTh", probs[..., :P], shared.v)
        out += jnp.einsum("BNGMTS,BNGSh->BNGMTh", probs[..., P:], own.v)
    return out.transpose(0, 1, 4, 2, 3, 5).reshape(B, N, T, H, h)


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def _attend_own(
    q_BNGMTh: jax.Array, k_BNGSh: jax.Array, v_BNGSh: jax.Array, mask_BNTS: jax.Array, scale: float
) -> jax.Array:
    """`attend` without a prefix, [B, N, G, M, T, h].

    Its backward pass keeps no probabilities but computes them again from largest score and sum, as
    in FlashAttention (Dao et al. 2022). Their mean derivative is taken from the very products that
    it is subtracted from: taken from the rounded output, it would push along the mean key.
    """
    return _attend_own_forward(q_BNGMTh, k_BNGSh, v_BNGSh, mask_BNTS, scale)[0]


def _attend_own_forward(
    q_BNGMTh: jax.Array, k_BNGSh: jax.Array, v_BNGSh: jax.Array, mask_BNTS: jax.Array, scale: float
) -> tuple[jax.Array, Any]:
    scores = _scores("BNGMTh,BNGSh->BNGMTS", q_BNGMTh, k_BNGSh, mask_BNTS, scale)
    largest = jnp.max(scores, axis=-1, keepdims=True)
    unscaled = jnp.exp(scores - largest)
    total = jnp.sum(unscaled, axis=-1, keepdims=True)
    probs = (unscaled / total).astype(v_BNGSh.dtype)
    out = jnp.einsum("BNGMTS,BNGSh->BNGMTh", probs, v_BNGSh)
    largest, total = (checkpoint_name(x, "softmax") for x in (largest, total))
    return out, (q_BNGMTh, k_BNGSh, v_BNGSh, mask_BNTS, largest, total)


def _attend_own_backward(scale: float, kept: Any, dout_BNGMTh: jax.Array) -> tuple[Any, ...]:
    q_BNGMTh, k_BNGSh, v_BNGSh, mask_BNTS, largest, total = kept
    product = partial(jnp.einsum, preferred_element_type=jnp.float32)
    scores = _scores("BNGMTh,BNGSh->BNGMTS", q_BNGMTh, k_BNGSh, mask_BNTS, scale)
    probs = jnp.exp(scores - largest) / total
    dprobs = product("BNGMTh,BNGSh->BNGMTS", dout_BNGMTh, v_BNGSh)
    dscores = probs * (dprobs - jnp.sum(probs * dprobs, axis=-1, keepdims=True))
    dscores = dscores.astype(q_BNGMTh.dtype)
    dq_BNGMTh = product("BNGMTS,BNGSh->BNGMTh", dscores, k_BNGSh) * scale
    dk_BNGSh = product("BNGMTS,BNGMTh->BNGSh", dscores, q_BNGMTh) * scale
    dv_BNGSh = product("BNGMTS,BNGMTh->BNGSh", probs.astype(v_BNGSh.dtype), dout_BNGMTh)
    derivatives = ((dq_BNGMTh, q_BNGMTh), (dk_BNGSh, k_BNGSh), (dv_BNGSh, v_BNGSh))
    return *(d.astype(x.dtype) for d, x in derivatives), None


_attend_own.defvjp(_attend_own_forward, _attend_own_backward)


@jax.tree_util.register_static
@dataclass(frozen=True, slots=True)
class Reach:
    """Bounds on what a token of a packed row sees: the first `prefix` tokens of the row, and itself
    with the `own` - 1 tokens before it. Part of the program, so keep their number small."""

    prefix: int
    own: int


def attend_rows(
    q_BNTHh: jax.Array,
    own: KeyValues,
    reach: Reach | None = None,
    *,
    first: int = 0,
    scale: float,
) -> jax.Array:
    """`attend` where query t is of token `first` + t and sees no later one: without their scores.

    Queries are taken in chunks, each with the keys up to its end and, given `reach`, of these only
    what is within it. A scoring pass of rows of 880 tokens takes two thirds of the time on a CPU.
    """
    T = q_BNTHh.shape[2]
    chunks = []
    for start in range(0, T, QUERIES_PER_CHUNK):
        end = min(T, start + QUERIES_PER_CHUNK)
        near = first + start + 1 - reach.own if reach else 0
        seen = (own.k, own.v, own.mask[:, :, start:end])
        part = KeyValues(*[_visible(x, reach, near, first + end) for x in seen])
        chunks.append(attend(q_BNTHh[:, :, start:end], part, scale=scale))
    return jnp.concatenate(chunks, axis=2)


def _visible(x: jax.Array, reach: Reach | None, near: int, end: int) -> jax.Array:
    """x along axis 3, that of the keys, up to `end`, without those between prefix and `near`."""
    if reach is None or near <= reach.prefix:
        return x[:, :, :, :end]
    return jnp.concatenate([x[:, :, :, : reach.prefix], x[:, :, :, near:end]], axis=3)


def _scores(spec: str, q: jax.Array, k: jax.Array, mask: jax.Array, scale: float) -> jax.Array:
    # In float32 the smaller array is scaled; a scaled bfloat16 query would be rounded. The mask is
    # added: on a CPU, loops over the scores take twice as long with a choice in them.
    exact = q.dtype == jnp.float32
    scores = jnp.einsum(spec, q * scale if exact else q, k, preferred_element_type=jnp.float32)
    hidden = jnp.where(mask, 0.0, _MASKED)[:, :, None, None]
    return (scores if exact else scores * scale) + hidden


def heads_first(x_BNSGh: jax.Array) -> jax.Array:
    """[..., S, G, h] -> [..., G, S, h], the layout of `KeyValues`."""
    return jnp.swapaxes(x_BNSGh, -3, -2)


def causal_mask(length: int, window: int = 0) -> jax.Array:
    """Token t sees tokens 0..t, or the last `window` of them: bool [1, 1, T, T].

    Right padding needs no mask of its own: a pad comes after every real token of its row.
    """
    places = jnp.arange(length, dtype=jnp.int32)[None, None]
    mask = jnp.tril(jnp.ones((length, length), bool))[None, None]
    return mask if not window else mask & in_window(places, places, window)


def in_window(queries_BNT: jax.Array, keys_BNS: jax.Array, window: int) -> jax.Array:
    """Whether a key's position is less than `window` before the query's (0: always), [B, N, T, S].

    True of keys after the query too, which the causal mask takes care of.
    """
    if not window:
        return jnp.ones((1, 1, 1, 1), bool)
    return queries_BNT[..., :, None] - keys_BNS[..., None, :] < window
