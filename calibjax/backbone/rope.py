"""Rotary position embedding in the rotate-half layout, with per-pair frequency divisors."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np


def inverse_frequencies(
    head_dim: int, theta: float, divisors: Sequence[float] = ()
) -> np.ndarray:
    """Radians per token of each rotary pair, float32 [head_dim / 2]."""
    inverse = theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    if len(divisors):
        inverse = inverse / np.asarray(divisors, np.float64)
    return inverse.astype(np.float32)


def llama3_divisors(
    head_dim: int,
    theta: float,
    *,
    factor: float,
    low_freq_factor: float,
    high_freq_factor: float,
    original_positions: int,
) -> np.ndarray:
    """Divisors of Llama 3.1 context extension, float64 [head_dim / 2].

    Pairs that turn more than `high_freq_factor` times within `original_positions` tokens keep their
    frequency, those that turn less than `low_freq_factor` times are slowed by `factor`, and in
    between the frequency (not the divisor) is interpolated linearly in the number of turns.
    """
    inverse = theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    turns = original_positions * inverse / (2 * np.pi)
    keep = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor)
    keep = np.clip(keep, 0.0, 1.0)
    return 1.0 / (keep + (1.0 - keep) / factor)


def tables(positions_BT: jax.Array, inverse_h: np.ndarray) -> tuple[jax.Array, jax.Array]:
    """Cosine and sine of every position and pair, float32 [B, T, head_dim / 2]."""
    angles_BTh = positions_BT.astype(jnp.float32)[..., None] * jnp.asarray(inverse_h)[None, None]
    return jnp.cos(angles_BTh), jnp.sin(angles_BTh)


def rotate(x_BTHh: jax.Array, cos_BTh: jax.Array, sin_BTh: jax.Array) -> jax.Array:
    """Turn the pairs (i, i + head_dim / 2) of every head; float32 inside, x's type outside."""
    first, second = jnp.split(x_BTHh.astype(jnp.float32), 2, axis=-1)
    cos_BT1h, sin_BT1h = cos_BTh[:, :, None], sin_BTh[:, :, None]
    turned = jnp.concatenate(
        [first * cos_BT1h - second * sin_BT1h, second * cos_BT1h + first * sin_BT1h], axis=-1
    )
    return turned.astype(x_BTHh.dtype)
