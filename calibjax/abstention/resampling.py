"""Every figure of a regime's test rows with its replicates, in one compiled bootstrap pass."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from calibjax import metrics
from calibjax.abstention.signals import Signal

# Coverages of the curve; .5 and .7 are the operating points that papers print.
COVERAGES = tuple(round(0.05 * k, 2) for k in range(1, 21))
NUM_BINS = 10


class Resampled(NamedTuple):
    """`BootstrapDetails` of the test rows.

    areas: [2, all columns]: AUC-AC and normalised gain; curves: [signals, coverages]
    accuracy at each of `COVERAGES`; calibration: [3, probabilities]: ECE (10 bins of equal size),
    Brier, Brier skill. columns, shown, probable: the names along these axes.
    """

    areas: metrics.BootstrapDetails
    curves: metrics.BootstrapDetails
    calibration: metrics.BootstrapDetails
    columns: tuple[str, ...]
    shown: tuple[str, ...]
    probable: tuple[str, ...]


def resample(
    signals: Mapping[str, Signal],
    others: Mapping[str, np.ndarray],
    success: np.ndarray,
    *,
    seed: int,
    replicates: int,
    confidence_level: float = 0.95,
) -> Resampled:
    """Bootstrap of all signals, and of the areas of further scores, over the same drawn rows.

    signals: of the test rows; others: scores [n] of which the area alone is wanted (ablations,
    transferred fits). Scores enter as their dense ranks, which float32 holds exactly: what differs
    in float64 is never tied.
    """
    probable = tuple(name for name, signal in signals.items() if signal.probability is not None)
    every = {name: signal.score for name, signal in signals.items()} | dict(others)
    rank = np.stack([dense_rank(score) for score in every.values()], axis=1)
    arrays = {
        "rank": rank,
        "shown": rank[:, : len(signals)],
        "probability": np.stack(
            [s.probability for s in signals.values() if s.probability is not None], axis=1
        ),
        "success": success,
    }
    found = metrics.bootstrap_details(
        {"areas": _areas, "curves": _curves, "calibration": _calibration},
        {name: array.astype(np.float32) for name, array in arrays.items()},
        key=jax.random.key(seed),
        num_replicates=replicates,
        confidence_level=confidence_level,
    )
    found = jax.device_get(found)
    return Resampled(**found, columns=tuple(every), shown=tuple(signals), probable=probable)


def dense_rank(score: np.ndarray) -> np.ndarray:
    """0 for the lowest score, 1 for the next distinct one, ..."""
    return np.unique(score, return_inverse=True)[1]


def null_ece(probability: np.ndarray, *, seed: int, draws: int) -> Any:
    """Mean and 95 % quantile of the ECE that a perfectly calibrated model gets on these rows."""
    return metrics.ece_null_reference(
        probability.astype(np.float32),
        # The bootstrap folds in its replicates 0, 1, ...; this number is out of their reach.
        key=jax.random.fold_in(jax.random.key(seed), 2**32 - 1),
        num_draws=draws,
        num_bins=NUM_BINS,
        binning="mass",
    )


def _areas(rank, success, weight, **_):
    def area(column):
        return metrics.area_under_accuracy_coverage(column, success, weight=weight)

    # One column after the other: all at once would hold columns x replicates x rows in memory.
    area_C = jax.lax.map(area, rank.T)
    best = metrics.area_under_accuracy_coverage_details(success, success, weight=weight)
    varies = best.oracle > best.accuracy
    spread = jnp.where(varies, best.oracle - best.accuracy, jnp.nan)
    return jnp.stack([area_C, (area_C - best.accuracy) / spread])


def _curves(shown, success, weight, **_):
    def one(column):
        return metrics.accuracy_at_coverage(column, success, COVERAGES, weight=weight)

    return jax.lax.map(one, shown.T)


def _calibration(probability, success, weight, **_):
    def one(column):
        ece = metrics.expected_calibration_error(
            column, success, num_bins=NUM_BINS, binning="mass", weight=weight
        )
        brier = metrics.brier_score(column, success, weight=weight)
        return jnp.stack([ece, brier, metrics.brier_skill(column, success, weight=weight)])

    return jax.lax.map(one, probability.T).T
