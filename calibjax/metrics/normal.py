"""Intervals from a normal approximation, in float64 on the host: nothing is compiled for them."""

from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike


def wilson_interval(share: float, n: float, level: float) -> tuple[float, float]:
    """Score interval of a share of n independent rows. Source: Wilson 1927.

    >>> [round(end, 4) for end in wilson_interval(0.0, 20, 0.95)]
    [0.0, 0.1611]
    """
    z = _quantile(level)
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * (share * (1 - share) / n + z * z / (4 * n * n)) ** 0.5
    # Rounding must not move an end past 0, 1 or the share itself.
    return max(0.0, min(share, centre - half)), min(1.0, max(share, centre + half))


def normal_interval(
    estimate: ArrayLike, standard_error: ArrayLike, level: float = 0.95
) -> tuple[np.ndarray, np.ndarray]:
    """Ends of estimate +- z standard errors, each of the shape of the two together.

    >>> [float(end.round(3)) for end in normal_interval(0.5, 0.1)]
    [0.304, 0.696]
    """
    half = _quantile(level) * np.asarray(standard_error, np.float64)
    return np.asarray(estimate, np.float64) - half, np.asarray(estimate, np.float64) + half


def _quantile(level: float) -> float:
    if not 0 < level < 1:
        raise ValueError(f"level={level}: expected a number in (0, 1); fix: level=0.95")
    return NormalDist().inv_cdf((1 + level) / 2)
