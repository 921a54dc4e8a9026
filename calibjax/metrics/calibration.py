"""Calibration error by bins of equal width or equal mass, and its null reference."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from calibjax.errors import input_error
from calibjax.metrics._ranking import before, rank_rows
from calibjax.metrics._validation import LABEL, PROBABILITY, Rows, check_rows

HIGHEST = jax.lax.Precision.HIGHEST


class CalibrationDetails(NamedTuple):
    """Calibration error and the bins behind it; arrays have one entry a bin.

    ece, mce, l2: the three norms; debiased_l2_squared: may be negative, is not clipped.
    n_valid: rows in use; weight: their total weight; nonempty_bins: count.
    bin_weight, bin_confidence (mean), bin_accuracy (mean): NaN means for empty bins.
    """

    ece: jax.Array
    mce: jax.Array
    l2: jax.Array
    debiased_l2_squared: jax.Array
    n_valid: jax.Array
    weight: jax.Array
    nonempty_bins: jax.Array
    bin_weight: jax.Array
    bin_confidence: jax.Array
    bin_accuracy: jax.Array


class NullReference(NamedTuple):
    """Mean and upper quantile of the ECE that a perfectly calibrated model gets on these rows."""

    mean: jax.Array
    quantile: jax.Array


def expected_calibration_error(
    confidence: Any,
    correct: Any,
    *,
    num_bins: int = 15,
    binning: str = "width",
    closed: str = "right",
    norm: str = "l1",
    mode: str = "event",
    weight: Any = None,
    where: Any = None,
) -> jax.Array:
    """Binned gap between confidence and accuracy, a scalar in [0, 1]; 0 is perfect.

    confidence (n,) in [0, 1]; correct (n,) in [0, 1], soft labels allowed; weight (n,) >= 0; where
    (n,) bool, False removes the row. NaN without rows. Biased upwards at small n: read it beside
    `ece_null_reference`.

    binning: "width" = bins of equal width, edges k / num_bins; "mass" = bins of equal weight, tied
    scores together. closed: which side of a width bin holds its edge. norm: "l1" (ECE), "l2" (root
    mean square), "max" (largest gap, MCE). mode: "event" compares P(correct) with correct;
    "top_label" compares max(p, 1 - p) with the correctness of the likelier label.

    Source: Naeini et al. 2015; Kumar et al. 2019 for l2.

    >>> p, y = [0.25, 0.25, 0.55, 0.75, 0.75], [0, 0, 1, 1, 1]
    >>> print(expected_calibration_error(p, y, num_bins=2).round(4))
    0.29
    """
    if norm not in ("l1", "l2", "max"):
        raise input_error("norm", norm, "l1, l2 or max")
    details = expected_calibration_error_details(
        confidence,
        correct,
        num_bins=num_bins,
        binning=binning,
        closed=closed,
        mode=mode,
        weight=weight,
        where=where,
    )
    return {"l1": details.ece, "l2": details.l2, "max": details.mce}[norm]


def expected_calibration_error_details(
    confidence: Any,
    correct: Any,
    *,
    num_bins: int = 15,
    binning: str = "width",
    closed: str = "right",
    mode: str = "event",
    weight: Any = None,
    where: Any = None,
) -> CalibrationDetails:
    """All three norms, the debiased squared l2 error and the bins of a reliability diagram."""
    _check_options(num_bins, binning, closed, mode)
    rows = check_rows(weight, where, confidence=(confidence, PROBABILITY), correct=(correct, LABEL))
    return _details(rows, num_bins, binning, closed, mode)


def _check_options(num_bins: int, binning: str, closed: str, mode: str) -> None:
    if not isinstance(num_bins, (int, np.integer)) or isinstance(num_bins, bool) or num_bins < 1:
        raise input_error("num_bins", num_bins, "a static integer of at least 1")
    for name, value, allowed in (
        ("binning", binning, ("width", "mass")),
        ("closed", closed, ("right", "left")),
        ("mode", mode, ("event", "top_label")),
    ):
        if value not in allowed:
            raise input_error(name, value, " or ".join(allowed))


def top_label(confidence: jax.Array, correct: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Confidence in the likelier label, and its correctness; 0.5 predicts 1."""
    positive = confidence >= 0.5
    confidence = jnp.where(positive, confidence, 1 - confidence)
    return confidence, jnp.where(positive, correct, 1 - correct)


def width_bins(confidence: jax.Array, num_bins: int, closed: str) -> jax.Array:
    """Bin of each row (n,) int32, edges k / num_bins compared in the dtype of the scores."""
    # float64 on the host, rounded once: jnp.linspace has wrong float32 edges for most num_bins.
    edges = jnp.asarray((np.arange(1, num_bins) / num_bins), dtype=confidence.dtype)
    side = "left" if closed == "right" else "right"
    index = jnp.searchsorted(edges, confidence, side=side, method="compare_all")
    return index.astype(jnp.int32)


def mass_bins(confidence: jax.Array, weight: jax.Array, num_bins: int) -> jax.Array:
    """Bin floor(M r / N) of each row, r the total weight strictly below it, N the total weight."""
    ranking = rank_rows(-confidence)
    totals = jnp.cumsum(weight[ranking.order])
    below = before(totals, ranking.start)
    total = jnp.sum(weight)
    bins = _floor_share(below, total, num_bins)
    return jnp.zeros(confidence.shape[0], jnp.int32).at[ranking.order].set(bins)


def _floor_share(below: jax.Array, total: jax.Array, num_bins: int) -> jax.Array:
    """floor(num_bins * below / total), exact for whole weights although M r may exceed 2^24.

    Bin b starts at r >= b N / M. With N = M Q + R this reads M (r - b Q) >= b R, whose terms are
    small whole numbers wherever the comparison is close.
    """
    quotient = jnp.floor(total / num_bins)
    rest = total - num_bins * quotient

    def reaches(b):
        return num_bins * (below - b * quotient) >= b * rest

    guess = jnp.floor(below / jnp.where(total > 0, total, 1) * num_bins)
    guess = jnp.where(reaches(guess + 1), guess + 1, guess)
    guess = jnp.where(reaches(guess), guess, guess - 1)
    return jnp.clip(guess, 0, num_bins - 1).astype(jnp.int32)


@functools.partial(jax.jit, static_argnums=(1, 2, 3, 4))
def _details(
    rows: Rows, num_bins: int, binning: str, closed: str, mode: str
) -> CalibrationDetails:
    confidence, correct = rows.columns
    if mode == "top_label":
        confidence, correct = top_label(confidence, correct)
    if binning == "width":
        bins = width_bins(confidence, num_bins, closed)
    else:
        bins = mass_bins(confidence, rows.weight, num_bins)
    confidence = confidence.astype(correct.dtype)
    mass, gap, stated = _bin_sums(bins, num_bins, confidence, correct, rows.weight)
    return _from_bins(mass, gap, stated, rows)


def _bin_sums(bins, num_bins, confidence, correct, weight) -> tuple[jax.Array, ...]:
    """Weight, weighted gap and weighted confidence of each bin, as products with a one-hot matrix.

    The gap is summed row by row, not as a difference of two large sums. Written as `weight @
    matrix` so that thousands of weightings become one matrix product.
    """
    onehot = (bins[:, None] == jnp.arange(num_bins, dtype=jnp.int32)[None]).astype(weight.dtype)
    columns = [onehot, onehot * (correct - confidence)[:, None], onehot * confidence[:, None]]
    return tuple(jnp.matmul(weight, column, precision=HIGHEST) for column in columns)


def _from_bins(mass, gap, confidence, rows: Rows) -> CalibrationDetails:
    total = jnp.sum(rows.weight)
    filled = mass > 0
    safe = jnp.where(filled, mass, 1)
    share = mass / jnp.where(total > 0, total, 1)
    mean_gap = jnp.abs(gap) / safe
    accuracy = (gap + confidence) / safe
    noise = jnp.where(mass >= 2, accuracy * (1 - accuracy) / jnp.where(mass >= 2, mass - 1, 1), 0)
    # Bins of fewer than two rows have no variance estimate and are left out of the debiased sum.
    debiased = jnp.sum(jnp.where(mass >= 2, share * (mean_gap**2 - noise), 0))

    def value(x):
        return rows.mark(jnp.where(total > 0, x, jnp.nan))

    return CalibrationDetails(
        ece=value(jnp.sum(jnp.abs(gap)) / jnp.where(total > 0, total, 1)),
        mce=value(jnp.max(jnp.where(filled, mean_gap, 0))),
        l2=value(jnp.sqrt(jnp.sum(share * mean_gap**2))),
        debiased_l2_squared=value(debiased),
        n_valid=jnp.sum(rows.where, dtype=jnp.int32),
        weight=total,
        nonempty_bins=jnp.sum(filled, dtype=jnp.int32),
        bin_weight=mass,
        bin_confidence=value(jnp.where(filled, confidence / safe, jnp.nan)),
        bin_accuracy=value(jnp.where(filled, accuracy, jnp.nan)),
    )


def ece_null_reference(
    confidence: Any,
    *,
    key: jax.Array,
    num_draws: int = 2000,
    quantile: float = 0.95,
    num_bins: int = 15,
    binning: str = "width",
    closed: str = "right",
    mode: str = "event",
    weight: Any = None,
    where: Any = None,
) -> NullReference:
    """ECE that a perfectly calibrated model would get on these confidences, by simulation.

    Draws correct ~ Bernoulli(confidence) `num_draws` times; an observed ECE below `quantile` is
    compatible with perfect calibration. NaN without rows.

    >>> null = ece_null_reference([0.5] * 100, key=jax.random.key(0), num_draws=500)
    >>> bool(0.03 < null.mean < 0.05)
    True
    """
    _check_options(num_bins, binning, closed, mode)
    if not isinstance(num_draws, (int, np.integer)) or num_draws < 1:
        raise input_error("num_draws", num_draws, "a static integer of at least 1")
    if not 0 <= quantile <= 1:
        raise input_error("quantile", quantile, "a number in [0, 1]")
    rows = check_rows(weight, where, confidence=(confidence, PROBABILITY))
    draws = _null_draws(rows, key, int(num_draws), num_bins, binning, closed, mode)
    return NullReference(jnp.mean(draws), jnp.quantile(draws, quantile))


@functools.partial(jax.jit, static_argnums=(2, 3, 4, 5, 6))
def _null_draws(rows: Rows, key, num_draws, num_bins, binning, closed, mode) -> jax.Array:
    (confidence,) = rows.columns
    weight = rows.weight
    # Top-label rows of a calibrated model are right with their own confidence: same simulation.
    if mode == "top_label":
        confidence, _ = top_label(confidence, confidence)
    if binning == "width":
        bins = width_bins(confidence, num_bins, closed)
    else:
        bins = mass_bins(confidence, weight, num_bins)
    confidence = confidence.astype(weight.dtype)
    onehot = (bins[:, None] == jnp.arange(num_bins, dtype=jnp.int32)[None]).astype(weight.dtype)
    total = jnp.sum(weight)

    def draw(index):
        uniform = jax.random.uniform(jax.random.fold_in(key, index), confidence.shape, weight.dtype)
        gap = weight * ((uniform < confidence).astype(weight.dtype) - confidence)
        return jnp.sum(jnp.abs(jnp.matmul(gap, onehot, precision=HIGHEST)))

    pieces = -(-num_draws // max(1, 2**23 // max(confidence.shape[0], 1)))
    batch = -(-num_draws // pieces)
    # Equal pieces, so that the body is compiled once.
    indices = jnp.arange(pieces * batch, dtype=jnp.int32).reshape(pieces, batch)
    sums = jax.lax.map(jax.vmap(draw), indices).reshape(-1)[:num_draws]
    return rows.mark(jnp.where(total > 0, sums / jnp.where(total > 0, total, 1), jnp.nan))
