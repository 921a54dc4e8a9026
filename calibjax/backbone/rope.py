"""Rotary position embedding in the rotate-half layout, with per-pair frequency divisors."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np


def inverse_frequencies(
    rotary_dim: int, theta: float, divisors: Sequence[float] = ()
) -> np.ndarray:
    """Radians per token of each rotary pair, float32 [rotary_dim / 2]."""
    inverse = theta ** (-np.arange(0, rotary_dim, 2, dtype=np.float64) / rotary_dim)
    if len(divisors):
        inverse = inverse / np.asarray(divisors, np.float64)
    return inverse.astype(np.float32)


def llama3_divisors(
    rotary_dim: int,
    theta: float,
    *,
    factor: float,
    low_freq_factor: float,
    high_freq_factor: float,
    original_positions: int,
) -> np.ndarray:
    """Divisors of Llama 3.1 context extension, float64 [rotary_dim / 2].

    Pairs that turn more than `high_freq_factor` times within `original_positions` tokens keep their
    frequency, those that turn less than `low_freq_factor` times are slowed by `factor`, and in
    between the frequency (not the divisor) is interpolated linearly in the number of turns.
    """
    inverse = theta ** (-np.arange(0, rotary_dim, 2, dtype=np.float64) / rotary_dim)
    turns = original_positions * inverse / (2 * np.pi)
    keep = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor)
    keep = np.clip(keep, 0.0, 1.0)
    return 1.0 / (keep + (1.0 - keep) / factor)


def tables(
    positions_BT: jax.Array, inverse_h: np.ndarray, magnitude: float = 1.0
) -> tuple[jax.Array, jax.Array]:
    """`magnitude` times cosine and sine of every position and pair, float32 [B, T, rotary / 2]."""
    angles_BTh = positions_BT.astype(jnp.float32)[..., None] * jnp.asarray(inverse_h)[None, None]
    cos_BTh, sin_BTh = jnp.cos(angles_BTh), jnp.sin(angles_BTh)
    if magnitude == 1.0:
        return cos_BTh, sin_BTh
    return cos_BTh * magnitude, sin_BTh * magnitude


def rotate(x_BTHh: jax.Array, cos_BTh: jax.Array, sin_BTh: jax.Array) -> jax.Array:
    """Turn the pairs (i, i + rotary / 2) of every head; float32 inside, x's type outside.

    What a head holds beyond the tables' pairs stays as it is.
    """
    half = cos_BTh.shape[-1]
    rotary, rest = x_BTHh[..., : 2 * half].astype(jnp.float32), x_BTHh[..., 2 * half :]
    first, second = jnp.split(rotary, 2, axis=-1)
    cos_BT1h, sin_BT1h = cos_BTh[:, :, None], sin_BTh[:, :, None]
    turned = jnp.concatenate(
        [first * cos_BT1h - second * sin_BT1h, second * cos_BT1h + first * sin_BT1h], axis=-1
    )
    turned = turned.astype(x_BTHh.dtype)
    return turned if not rest.shape[-1] else jnp.concatenate([turned, rest], axis=-1)
