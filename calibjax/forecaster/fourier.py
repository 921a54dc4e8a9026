"""Fourier features of the user temperature t, in the three variants that presets name."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from calibjax.errors import input_error

VARIANTS = ("paper", "code", "fixed")


def fourier_features(
    t: ArrayLike,
    *,
    num_frequencies: int = 6,
    t_min: float = 1.0,
    t_max: float = 2.0,
    variant: str = "paper",
) -> jax.Array:
    """PE(t): float32 [..., 2 * num_frequencies] of temperatures [...] in [t_min, t_max].

    - paper: sin, cos of omega_n t interleaved, omega_n = 2^n 2 pi / (t_max - t_min), n = 1..N. As
      printed (CalibRAG, section 3.2), and degenerate: PE(1.0) = PE(1.5) = PE(2.0).
    - code: the authors' code, n = 0..N-1, all sines first. PE(1.0) = PE(2.0) still collide.
    - fixed: omega_n = 2^n pi / (t_max - t_min), n = 0..N-1, of t - t_min, interleaved. The ends are
      2.0 apart, and so are at least any two temperatures 0.02 apart.

    Outside the range the eager call raises InputError and the traced call gives NaN: the features
    are periodic, so an extrapolated value would be the code of some other temperature.
    """
    if variant not in VARIANTS:
        raise input_error("variant", variant, " or ".join(VARIANTS))
    t = jnp.asarray(t, jnp.float32)
    if not isinstance(t, jax.core.Tracer):
        check_temperature(t, t_min, t_max)
    exponent = np.arange(num_frequencies) + (1 if variant == "paper" else 0)
    cycles = 0.5 if variant == "fixed" else 1.0
    omega_N = (cycles * 2 * np.pi / (t_max - t_min) * 2.0**exponent).astype(np.float32)
    # float32 throughout: bfloat16 would move the phase of the highest frequency by radians.
    origin = t_min if variant == "fixed" else 0.0
    phase = (t - origin)[..., None] * omega_N.reshape((1,) * t.ndim + (-1,))
    waves = jnp.stack([jnp.sin(phase), jnp.cos(phase)], axis=-2 if variant == "code" else -1)
    features = waves.reshape(*t.shape, 2 * num_frequencies)
    inside = (t >= t_min) & (t <= t_max)
    return jnp.where(inside[..., None], features, jnp.nan)


def check_temperature(t: ArrayLike, t_min: float, t_max: float) -> None:
    """Raises InputError naming the first temperature outside [t_min, t_max]."""
    values = np.asarray(t)
    outside = values[~((values >= t_min) & (values <= t_max))]
    if outside.size:
        fix = f"use temperatures that the forecaster was trained for, {t_min} to {t_max}"
        raise input_error("temperature", outside.flat[0], f"a number in [{t_min}, {t_max}]", fix)
