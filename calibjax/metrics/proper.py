"""Proper scoring rules: Brier score, its skill and decomposition, log loss; and plain accuracy."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from calibjax.errors import input_error
from calibjax.metrics._validation import LABEL, PROBABILITY, Rows, check_rows
from calibjax.metrics.calibration import _bin_sums, _check_options, mass_bins, width_bins


class MeanDetails(NamedTuple):
    """A weighted mean of rows and how many rows it stands on."""

    value: jax.Array
    n_valid: jax.Array
    weight: jax.Array


class BrierDecomposition(NamedTuple):
    """brier = reliability - resolution + uncertainty + within_bin, exactly by construction."""

    reliability: jax.Array
    resolution: jax.Array
    uncertainty: jax.Array
    within_bin: jax.Array


class BrierDecompositionDetails(NamedTuple):
    """The four parts, and the Brier score that they sum to."""

    parts: BrierDecomposition
    brier: jax.Array
    n_valid: jax.Array
    weight: jax.Array


class SkillDetails(NamedTuple):
    """A score, the score of always stating the base rate, and 1 - score / reference."""

    skill: jax.Array
    score: jax.Array
    reference: jax.Array
    base_rate: jax.Array
    n_valid: jax.Array


def weighted_mean(rows: Rows, column: jax.Array) -> jax.Array:
    """Mean of `column` (n,) under the row weights; NaN without weight or for invalid rows."""
    total = jnp.sum(rows.weight)
    # A product with the weights, so that many weightings become one matrix-vector product.
    mean = jnp.matmul(rows.weight, column, precision=jax.lax.Precision.HIGHEST) / total
    return rows.mark(jnp.where(total > 0, mean, jnp.nan))


def _mean_details(rows: Rows, column: jax.Array) -> MeanDetails:
    n_valid = jnp.sum(rows.where, dtype=jnp.int32)
    return MeanDetails(weighted_mean(rows, column), n_valid, jnp.sum(rows.weight))


def _forecast_rows(confidence: Any, correct: Any, weight: Any, where: Any) -> Rows:
    return check_rows(weight, where, confidence=(confidence, PROBABILITY), correct=(correct, LABEL))


def accuracy(correct: Any, *, weight: Any = None, where: Any = None) -> jax.Array:
    """Share of right rows, a scalar in [0, 1]; correct (n,) in [0, 1]. NaN without rows.

    >>> print(accuracy([1, 0, 1, 1]))
    0.75
    """
    return accuracy_details(correct, weight=weight, where=where).value


def accuracy_details(correct: Any, *, weight: Any = None, where: Any = None) -> MeanDetails:
    """Accuracy with the number of rows and their weight."""
    rows = check_rows(weight, where, correct=(correct, LABEL))
    return _accuracy(rows)


@jax.jit
def _accuracy(rows: Rows) -> MeanDetails:
    return _mean_details(rows, rows.columns[0])


def brier_score(
    confidence: Any, correct: Any, *, weight: Any = None, where: Any = None
) -> jax.Array:
    """Mean squared error of a probability, a scalar in [0, 1]; 0 is perfect, 0.25 a constant 0.5.

    confidence (n,) in [0, 1]; correct (n,) in [0, 1], soft labels allowed; weight (n,) >= 0; where
    (n,) bool. NaN without rows. The two-class sum over classes is twice this. Source: Brier 1950.

    >>> print(brier_score([1.0, 0.5], [1, 0]))
    0.125
    """
    return brier_score_details(confidence, correct, weight=weight, where=where).value


def brier_score_details(
    confidence: Any, correct: Any, *, weight: Any = None, where: Any = None
) -> MeanDetails:
    """Brier score with the number of rows and their weight."""
    return _brier(_forecast_rows(confidence, correct, weight, where))


@jax.jit
def _brier(rows: Rows) -> MeanDetails:
    confidence, correct = rows.columns
    return _mean_details(rows, (confidence.astype(correct.dtype) - correct) ** 2)


def brier_skill(
    confidence: Any, correct: Any, *, weight: Any = None, where: Any = None
) -> jax.Array:
    """1 - Brier / (r (1 - r)), r the base rate: 1 is perfect, 0 no better than always stating r.

    Shapes as `brier_score`; negative values mean worse than the base rate; NaN if r is 0 or 1.

    >>> print(brier_skill([0.5, 0.5], [1, 0]))
    0.0
    """
    return brier_skill_details(confidence, correct, weight=weight, where=where).skill


def brier_skill_details(
    confidence: Any, correct: Any, *, weight: Any = None, where: Any = None
) -> SkillDetails:
    """Brier skill with the score, the base rate and the score of stating it."""
    return _brier_skill(_forecast_rows(confidence, correct, weight, where))


@jax.jit
def _brier_skill(rows: Rows) -> SkillDetails:
    rate = weighted_mean(rows, rows.columns[1])
    return _skill(_brier(rows), rate * (1 - rate), rate)


def _skill(score: MeanDetails, reference: jax.Array, rate: jax.Array) -> SkillDetails:
    undefined = reference <= 0
    skill = jnp.where(undefined, jnp.nan, 1 - score.value / jnp.where(undefined, 1, reference))
    return SkillDetails(skill, score.value, reference, rate, score.n_valid)


def brier_decomposition(
    confidence: Any,
    correct: Any,
    *,
    num_bins: int = 15,
    binning: str = "width",
    closed: str = "right",
    weight: Any = None,
    where: Any = None,
) -> BrierDecomposition:
    """Reliability - resolution + uncertainty + within-bin rest = Brier score, on ECE bins.

    reliability: squared gap of the bins (0 is best); resolution: spread of bin accuracies (large is
    best); uncertainty: r (1 - r) of the base rate r; within_bin: what binning hides.
    Source: Murphy 1973; the rest as in Stephenson et al. 2008.

    >>> parts = brier_decomposition([0.2, 0.8], [0, 1])
    >>> print(parts.uncertainty, parts.resolution)
    0.25 0.25
    """
    return brier_decomposition_details(
        confidence,
        correct,
        num_bins=num_bins,
        binning=binning,
        closed=closed,
        weight=weight,
        where=where,
    ).parts


def brier_decomposition_details(
    confidence: Any,
    correct: Any,
    *,
    num_bins: int = 15,
    binning: str = "width",
    closed: str = "right",
    weight: Any = None,
    where: Any = None,
) -> BrierDecompositionDetails:
    """The four parts, and the Brier score that they sum to with its row count."""
    _check_options(num_bins, binning, closed, "event")
    rows = _forecast_rows(confidence, correct, weight, where)
    return _decompose(rows, num_bins, binning, closed)


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def _decompose(rows: Rows, num_bins, binning, closed) -> BrierDecompositionDetails:
    confidence, correct = rows.columns
    brier = _brier(rows)
    if binning == "width":
        bins = width_bins(confidence, num_bins, closed)
    else:
        bins = mass_bins(confidence, rows.weight, num_bins)
    mass, gap, stated = _bin_sums(
        bins, num_bins, confidence.astype(correct.dtype), correct, rows.weight
    )
    total = jnp.sum(rows.weight)
    rate = weighted_mean(rows, correct)
    share = mass / jnp.where(total > 0, total, 1)
    safe = jnp.where(mass > 0, mass, 1)
    bin_accuracy = (gap + stated) / safe
    reliability = jnp.sum(share * (gap / safe) ** 2)
    resolution = jnp.sum(share * (bin_accuracy - rate) ** 2)
    uncertainty = rate * (1 - rate)
    within = brier.value - (reliability - resolution + uncertainty)
    # NaN rates mark empty or invalid input; `reliability` alone does not depend on the rate.
    parts = BrierDecomposition(reliability + 0 * rate, resolution, uncertainty, within)
    return BrierDecompositionDetails(parts, *brier)


def log_loss(
    confidence: Any,
    correct: Any,
    *,
    clip: float = 1e-7,
    weight: Any = None,
    where: Any = None,
) -> jax.Array:
    """Mean negative log likelihood in nats, >= 0; soft labels allowed.

    confidence is clipped to [clip, 1 - clip], so one confident error costs at most -ln(clip):
    16.118 at the default. Shapes as `brier_score`. NaN without rows.

    >>> print(log_loss([0.0], [1]).round(3), log_loss([0.5], [1]).round(3))
    16.118 0.693
    """
    return log_loss_details(confidence, correct, clip=clip, weight=weight, where=where).value


def log_loss_details(
    confidence: Any,
    correct: Any,
    *,
    clip: float = 1e-7,
    weight: Any = None,
    where: Any = None,
) -> MeanDetails:
    """Log loss with the number of rows and their weight."""
    if not 0 <= clip < 0.5:
        raise input_error("clip", clip, "a number in [0, 0.5)")
    return _log_loss(_forecast_rows(confidence, correct, weight, where), clip)


@jax.jit
def _log_loss(rows: Rows, clip) -> MeanDetails:
    confidence, correct = rows.columns
    confidence = confidence.astype(correct.dtype)
    log_right = _clipped_log(confidence, clip)
    log_wrong = _clipped_log(1 - confidence, clip)
    loss = -jnp.where(correct > 0, correct * log_right, 0)
    loss = loss - jnp.where(correct < 1, (1 - correct) * log_wrong, 0)
    return _mean_details(rows, loss)


def _clipped_log(p: jax.Array, clip: jax.Array) -> jax.Array:
    """log(clip(p, clip, 1 - clip)); near 1 from the complement, since 1 - 1e-7 is no float32."""
    near_one = jnp.log1p(-jnp.maximum(1 - p, clip))
    return jnp.where(p < 0.5, jnp.log(jnp.maximum(p, clip)), near_one)


def log_loss_skill(
    confidence: Any,
    correct: Any,
    *,
    clip: float = 1e-7,
    weight: Any = None,
    where: Any = None,
) -> jax.Array:
    """1 - log loss / entropy of the base rate: 1 is perfect, 0 no better than stating the rate.

    Comparable between systems whose outcomes differ, which log loss itself is not. NaN if the rate
    is 0 or 1.

    >>> print(log_loss_skill([0.5, 0.5], [1, 0]).round(6) + 0.0)
    0.0
    """
    return log_loss_skill_details(confidence, correct, clip=clip, weight=weight, where=where).skill


def log_loss_skill_details(
    confidence: Any,
    correct: Any,
    *,
    clip: float = 1e-7,
    weight: Any = None,
    where: Any = None,
) -> SkillDetails:
    """Log-loss skill with the loss, the base rate and the loss of stating it."""
    if not 0 <= clip < 0.5:
        raise input_error("clip", clip, "a number in [0, 0.5)")
    return _log_loss_skill(_forecast_rows(confidence, correct, weight, where), clip)


@jax.jit
def _log_loss_skill(rows: Rows, clip) -> SkillDetails:
    rate = weighted_mean(rows, rows.columns[1])
    inside = (rate > 0) & (rate < 1)
    safe = jnp.where(inside, rate, 0.5)
    entropy = -(safe * jnp.log(safe) + (1 - safe) * jnp.log1p(-safe))
    return _skill(_log_loss(rows, clip), jnp.where(inside, entropy, 0 * rate), rate)
