"""Selective answering: accuracy among the most confident rows, and wrong answers kept."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from calibjax.errors import input_error
from calibjax.metrics._ranking import block_sum, count_lookup, rank_rows
from calibjax.metrics._validation import LABEL, SCORE, Rows, check_rows


class AccuracyCoverageDetails(NamedTuple):
    """Area under the accuracy-coverage curve and what it has to be read against.

    area; accuracy: what a random ranking gets; oracle: what a perfect one gets; gain:
    (area - accuracy) / (oracle - accuracy); aurc = 1 - mean area; augrc: mean over k of the errors
    among the top k, as a share of all rows.
    """

    area: jax.Array
    accuracy: jax.Array
    oracle: jax.Array
    gain: jax.Array
    aurc: jax.Array
    augrc: jax.Array
    n_valid: jax.Array
    weight: jax.Array


class CurveDetails(NamedTuple):
    """Accuracy-coverage curve: `accuracy[k - 1]` among the best k, at `coverage[k - 1]`."""

    accuracy: jax.Array
    coverage: jax.Array
    n_valid: jax.Array


def harmonic_gap(start: jax.Array, length: jax.Array) -> jax.Array:
    """psi(start + length + 1) - psi(start + 1), the sum of 1/k over start < k <= start + length.

    Defined for fractional arguments too. A difference of two digammas loses every digit of float32
    when `start` is large, so: three steps of the recurrence, whose terms have one sign, then one
    log1p and the asymptotic series in 1/z^2, with divisions shared because this runs once for each
    row and replicate. Relative error below 3e-7 in float32; float64 takes twelve steps, 1e-12.
    """
    steps = 12 if start.dtype == jnp.float64 else 3
    end = start + length
    gap = jnp.zeros_like(start)
    for step in range(1, steps + 1, 3):
        one, two, three = ((start + k) * (end + k) for k in range(step, step + 3))
        gap = gap + length * ((two * three + one * (three + two)) / (one * two * three))
    low, high = start + (steps + 0.5), end + (steps + 0.5)
    shared = 1 / (low * high)
    gap = gap + jnp.log1p(length * (high * shared))
    # psi(z + 1/2) = ln z + 1/(24 z^2) - 7/(960 z^4) + 31/(8064 z^6) - 127/(30720 z^8) + ...
    a, b = (high * shared) ** 2, (low * shared) ** 2
    series = 1 / 24 - 7 / 960 * (a + b) + 31 / 8064 * (a * a + a * b + b * b)
    if start.dtype == jnp.float64:
        series = series - 127 / 30720 * (a + b) * (a * a + b * b)
    return gap + (b - a) * series


def _inside_accuracy(inside, right_inside):
    return right_inside / jnp.where(inside > 0, inside, 1)


@block_sum
def _mean_area(above, right_above, inside, right_inside):
    """Sum over k in (a, b] of (C_a + r (k - a)) / k = r w + (C_a - a r) sum of 1/k."""
    accuracy = _inside_accuracy(inside, right_inside)
    return right_inside + (right_above - above * accuracy) * harmonic_gap(above, inside)


@block_sum
def _trapezoid_area(above, right_above, inside, right_inside):
    """Straight line between the block ends; the first accuracy also holds at coverage 0."""
    end = _inside_accuracy(above + inside, right_above + right_inside)
    start = jnp.where(above > 0, _inside_accuracy(above, right_above), end)
    return 0.5 * (start + end) * inside


@block_sum
def _error_area(above, right_above, inside, right_inside):
    """Sum over k in (a, b] of the expected number of errors among the top k."""
    errors = inside - right_inside
    return (above - right_above) * inside + 0.5 * errors * (inside + 1)


def area_under_accuracy_coverage(
    score: Any, correct: Any, *, area: str = "mean", weight: Any = None, where: Any = None
) -> jax.Array:
    """Mean accuracy of the k most confident rows over k = 1..n (AUC-AC), a scalar in [0, 1].

    score (n,) any real numbers, higher = more confident; correct (n,) in [0, 1], soft labels
    allowed; weight (n,) >= 0; where (n,) bool. Ties take their expectation over random orders, so a
    constant score gets exactly the accuracy. The value depends on the accuracy of the data set:
    compare data sets by `normalized_accuracy_coverage_gain`. NaN without rows.

    area: "mean" over k, or "trapz" through one point per distinct score, for comparison with
    published code. Fractional weights use digamma differences, equal to copying rows for whole
    ones.

    >>> print(area_under_accuracy_coverage([4, 3, 2, 1], [1, 1, 0, 0]).round(6))
    0.791667
    """
    return area_under_accuracy_coverage_details(
        score, correct, area=area, weight=weight, where=where
    ).area


def area_under_accuracy_coverage_details(
    score: Any, correct: Any, *, area: str = "mean", weight: Any = None, where: Any = None
) -> AccuracyCoverageDetails:
    """AUC-AC with its random and oracle references, the gain, AURC and AUGRC."""
    if area not in ("mean", "trapz"):
        raise input_error("area", area, "mean or trapz")
    rows = check_rows(weight, where, score=(score, SCORE), correct=(correct, LABEL))
    return _area(rows, area)


def normalized_accuracy_coverage_gain(
    score: Any, correct: Any, *, weight: Any = None, where: Any = None
) -> jax.Array:
    """(AUC-AC - accuracy) / (oracle - accuracy): 0 = random ranking, 1 = perfect, may be negative.

    Shapes as `area_under_accuracy_coverage`; the oracle ranks these very labels. NaN if all rows
    are right or all wrong.

    >>> print(normalized_accuracy_coverage_gain([4, 3, 2, 1], [1, 1, 0, 0]).round(3))
    1.0
    """
    return normalized_accuracy_coverage_gain_details(
        score, correct, weight=weight, where=where
    ).gain


def normalized_accuracy_coverage_gain_details(
    score: Any, correct: Any, *, weight: Any = None, where: Any = None
) -> AccuracyCoverageDetails:
    """The same fields as `area_under_accuracy_coverage_details` with area="mean"."""
    return area_under_accuracy_coverage_details(score, correct, weight=weight, where=where)


@functools.partial(jax.jit, static_argnums=1)
def _area(rows: Rows, area: str) -> AccuracyCoverageDetails:
    score, correct = rows.columns
    weight = rows.weight
    total = jnp.sum(weight)
    safe = jnp.where(total > 0, total, 1)
    ranking = rank_rows(score)
    mean = _mean_area(ranking, correct, weight) / safe
    chosen = mean if area == "mean" else _trapezoid_area(ranking, correct, weight) / safe
    accuracy = jnp.matmul(weight, correct, precision=jax.lax.Precision.HIGHEST) / safe
    best = rank_rows(correct)
    oracle = _mean_area(best, correct, weight) / safe
    spread = jnp.max(jnp.where(weight > 0, correct, -jnp.inf)) > jnp.min(
        jnp.where(weight > 0, correct, jnp.inf)
    )
    gain = (mean - accuracy) / jnp.where(spread, oracle - accuracy, 1)

    def value(x):
        return rows.mark(jnp.where(total > 0, x, jnp.nan))

    return AccuracyCoverageDetails(
        area=value(chosen),
        accuracy=value(accuracy),
        oracle=value(oracle),
        gain=value(jnp.where(spread, gain, jnp.nan)),
        aurc=value(1 - mean),
        augrc=value(_error_area(ranking, correct, weight) / safe / safe),
        n_valid=jnp.sum(rows.where, dtype=jnp.int32),
        weight=total,
    )


def accuracy_coverage_curve(
    score: Any,
    correct: Any,
    *,
    length: int | None = None,
    weight: Any = None,
    where: Any = None,
) -> jax.Array:
    """Expected accuracy of the k most confident rows at k = 1..length, (length,); default length n.

    Shapes and ties as `area_under_accuracy_coverage`. Under weights k counts units of weight.
    Entries beyond the total weight are NaN.

    >>> print(accuracy_coverage_curve([3, 2, 2], [1, 1, 0]).round(4))
    [1.     0.75   0.6667]
    """
    return accuracy_coverage_curve_details(
        score, correct, length=length, weight=weight, where=where
    ).accuracy


def accuracy_coverage_curve_details(
    score: Any,
    correct: Any,
    *,
    length: int | None = None,
    weight: Any = None,
    where: Any = None,
) -> CurveDetails:
    """The curve with the coverage k / n of each point and the number of rows."""
    rows = check_rows(weight, where, score=(score, SCORE), correct=(correct, LABEL))
    length = rows.weight.shape[0] if length is None else int(length)
    return _curve(rows, length)


@functools.partial(jax.jit, static_argnums=1)
def _curve(rows: Rows, length: int) -> CurveDetails:
    total = jnp.sum(rows.weight)
    count = jnp.arange(1, length + 1, dtype=rows.weight.dtype)
    accuracy = jnp.where(count <= total, accuracy_among(rows, count), jnp.nan)
    coverage = jnp.where(count <= total, count / jnp.where(total > 0, total, 1), jnp.nan)
    return CurveDetails(rows.mark(accuracy), coverage, jnp.sum(rows.where, dtype=jnp.int32))


def accuracy_among(rows: Rows, count: jax.Array) -> jax.Array:
    score, correct = rows.columns
    right = count_lookup(rank_rows(score), correct, rows.weight, count)
    return rows.mark(jnp.where(count > 0, right / jnp.where(count > 0, count, 1), jnp.nan))
