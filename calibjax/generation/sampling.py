"""From logits to tokens: temperature, truncation, one draw per row; float32 throughout."""

import jax
import jax.numpy as jnp

# Entries per block of the two-level search. About the square root of usual vocabulary sizes.
_BLOCK = 256
# Halvings of the logit range in the search for the top-p threshold: below float32 resolution.
_HALVINGS = 32


def sample(
    uniform_B2: jax.Array,
    logits_BV: jax.Array,
    temperature_B: jax.Array,
    *,
    top_k: int | None = None,
    top_p: jax.Array | None = None,
) -> jax.Array:
    """One token per row, int32 [B], from softmax(logits / temperature), truncated; argmax at 0.

    uniform_B2: two independent uniform numbers in [0, 1) per row decide the draw. top_p:
    probability mass in (0, 1], applied after top_k; of equal logits at a threshold all are kept.
    """
    greedy_B = jnp.argmax(logits_BV, axis=-1).astype(jnp.int32)
    is_greedy_B = temperature_B <= 0.0
    temperature_B = jnp.where(is_greedy_B, 1.0, temperature_B)
    # The largest entry becomes exactly 0, so no temperature can overflow it.
    scaled_BV = (logits_BV - logits_BV.max(axis=-1, keepdims=True)) / temperature_B[:, None]
    weights_BV = jnp.exp(truncate(scaled_BV, top_k=top_k, top_p=top_p))
    return jnp.where(is_greedy_B, greedy_B, _draw(uniform_B2, weights_BV))


def truncate(
    scaled_BV: jax.Array, *, top_k: int | None = None, top_p: jax.Array | None = None
) -> jax.Array:
    """-inf for all but the top_k largest entries, then for all but the top_p of their mass.

    scaled_BV: logits over temperature, the largest of each row 0.
    """
    largest_BK = None
    if top_k is not None and top_k < scaled_BV.shape[-1]:
        largest_BK = jax.lax.top_k(scaled_BV, top_k)[0]
        # The minimum, not the last entry: a slice makes XLA sort the whole vocabulary.
        least_B1 = largest_BK.min(axis=-1, keepdims=True)
        scaled_BV = jnp.where(scaled_BV < least_B1, -jnp.inf, scaled_BV)
    if top_p is not None:
        least_B1 = _threshold(scaled_BV, top_p, largest_BK)
        scaled_BV = jnp.where(scaled_BV < least_B1, -jnp.inf, scaled_BV)
    return scaled_BV


def _threshold(
    scaled_BV: jax.Array, top_p: jax.Array, largest_BK: jax.Array | None
) -> jax.Array:
    """The largest value (to within float32) that entries holding `top_p` of the mass reach, [B, 1].

    largest_BK: the largest entries in order, if no others but their equals are left. Without them
    it is found by bisection: sorting a vocabulary costs more than a decoding step.
    """
    weights_BV = jnp.exp(scaled_BV)
    wanted_B1 = top_p * weights_BV.sum(axis=-1, keepdims=True)
    if largest_BK is not None:
        enough_BK = jnp.cumsum(jnp.exp(largest_BK), axis=-1) >= wanted_B1
        # None is enough when more entries than K equal the last: that one is the threshold then.
        reached_BK = jnp.where(enough_BK, largest_BK, largest_BK.min(axis=-1, keepdims=True))
        return reached_BK.max(axis=-1, keepdims=True)

    def halve(_: int, bounds: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low_B1, high_B1 = bounds
        middle_B1 = 0.5 * (low_B1 + high_B1)
        reaching = jnp.where(scaled_BV >= middle_B1, weights_BV, 0.0)
        enough = reaching.sum(axis=-1, keepdims=True) >= wanted_B1
        return jnp.where(enough, middle_B1, low_B1), jnp.where(enough, high_B1, middle_B1)

    finite_BV = jnp.where(jnp.isfinite(scaled_BV), scaled_BV, 0.0)
    low_B1 = finite_BV.min(axis=-1, keepdims=True)
    return jax.lax.fori_loop(0, _HALVINGS, halve, (low_B1, jnp.zeros_like(low_B1)))[0]


def _draw(uniform_B2: jax.Array, weights_BV: jax.Array) -> jax.Array:
    """Index of each row with probability proportional to its weight, int32 [B].

    Inverse transform in two levels, block then entry, with a uniform number for each. The Gumbel
    trick needs one number per entry, which on a CPU costs as much as a decoding step.
    """
    B, V = weights_BV.shape
    padded = jnp.pad(weights_BV, ((0, 0), (0, -V % _BLOCK)))
    blocks_BNM = padded.reshape(B, -1, _BLOCK)
    block_B = _invert(blocks_BNM.sum(axis=-1), uniform_B2[:, 0])
    chosen_BM = jnp.take_along_axis(blocks_BNM, block_B[:, None, None], axis=1)[:, 0]
    return block_B * _BLOCK + _invert(chosen_BM, uniform_B2[:, 1])


def _invert(weights_BN: jax.Array, uniform_B: jax.Array) -> jax.Array:
    """First index whose cumulative weight passes uniform x total; never one of weight 0."""
    cumulative_BN = jnp.cumsum(weights_BN, axis=-1)
    passes_BN = cumulative_BN > uniform_B[:, None] * cumulative_BN[:, -1:]
    passes_BN &= weights_BN > 0.0
    # Rounding in the sums could leave a row without any: its heaviest entry stands in.
    index_B = jnp.where(
        passes_BN.any(axis=-1), passes_BN.argmax(axis=-1), weights_BN.argmax(axis=-1)
    )
    return index_B.astype(jnp.int32)


def log_prob_and_entropy(
    logits_BV: jax.Array, tokens_B: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Log-probability of the tokens and entropy of the whole vocabulary, nats, float32 [B] each.

    Both of the model's own distribution: temperature 1, nothing truncated.
    """
    log_probs_BV = jax.nn.log_softmax(logits_BV, axis=-1)
    entropy_B = -jnp.sum(jnp.exp(log_probs_BV) * log_probs_BV, axis=-1)
    return jnp.take_along_axis(log_probs_BV, tokens_B[:, None], axis=1)[:, 0], entropy_B
