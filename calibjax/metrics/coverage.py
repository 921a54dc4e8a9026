"""Accuracy and confidently wrong answers where only the most confident rows are answered."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from calibjax.errors import input_error
from calibjax.metrics._counts import as_fractions, floor_counts, is_sequence
from calibjax.metrics._validation import LABEL, SCORE, Rows, check_rows, total_weight
from calibjax.metrics.selective import accuracy_among


class CoverageDetails(NamedTuple):
    """Accuracy among the `kept` most confident rows."""

    accuracy: jax.Array
    kept: jax.Array
    n_valid: jax.Array


class ConfidentWrong(NamedTuple):
    """Share of wrong rows among those at or above a threshold, and how many those are."""

    rate: jax.Array
    count: jax.Array  # type: ignore[assignment]


def accuracy_at_coverage(
    score: Any,
    correct: Any,
    coverage: float | Sequence[float],
    *,
    weight: Any = None,
    where: Any = None,
) -> jax.Array:
    """Expected accuracy of the k = floor(coverage n) most confident rows; NaN when k = 0.

    coverage: a static number in [0, 1] -> scalar, or a sequence of them -> one value each; the
    floor is of the decimal literal (0.29 of 200 is 58). Other arguments as
    `area_under_accuracy_coverage`.

    >>> print(accuracy_at_coverage([0.9, 0.8, 0.7, 0.6], [1, 0, 1, 1], 0.5))
    0.5
    """
    return accuracy_at_coverage_details(score, correct, coverage, weight=weight, where=where)[0]


def accuracy_at_coverage_details(
    score: Any,
    correct: Any,
    coverage: float | Sequence[float],
    *,
    weight: Any = None,
    where: Any = None,
) -> CoverageDetails:
    """Accuracy at a coverage with the number of rows that it keeps."""
    fractions = as_fractions("coverage", coverage)
    rows = check_rows(weight, where, score=(score, SCORE), correct=(correct, LABEL))
    kept = floor_counts(fractions, total_weight(rows), rows.weight.shape[0])
    accuracy, n_valid = _at_count(rows, kept if is_sequence(coverage) else kept[0])
    return CoverageDetails(accuracy, kept if is_sequence(coverage) else kept[0], n_valid)


@jax.jit
def _at_count(rows: Rows, count: jax.Array) -> tuple[jax.Array, jax.Array]:
    return accuracy_among(rows, count), jnp.sum(rows.where, dtype=jnp.int32)


def cwar_at_coverage(
    score: Any,
    success: Any,
    coverage: float | Sequence[float],
    *,
    weight: Any = None,
    where: Any = None,
) -> jax.Array:
    """Share of wrong rows among the floor(coverage n) most confident: 1 - `accuracy_at_coverage`.

    >>> print(cwar_at_coverage([0.9, 0.8, 0.7, 0.6], [1, 0, 1, 1], 0.75).round(4))
    0.3333
    """
    return 1 - accuracy_at_coverage(score, success, coverage, weight=weight, where=where)


def cwar_at_coverage_details(
    score: Any,
    success: Any,
    coverage: float | Sequence[float],
    *,
    weight: Any = None,
    where: Any = None,
) -> ConfidentWrong:
    """CWAR at a coverage with the number of rows that it keeps."""
    details = accuracy_at_coverage_details(score, success, coverage, weight=weight, where=where)
    return ConfidentWrong(1 - details.accuracy, details.kept)


def confident_wrong_answer_rate(
    score: Any,
    success: Any,
    threshold: Any,
    *,
    empty: str = "nan",
    weight: Any = None,
    where: Any = None,
) -> ConfidentWrong:
    """Share of wrong rows among those with score >= threshold, and their number (rate, count).

    score (n,) real; success (n,) in [0, 1]; threshold: a number, +inf keeps none. Not monotone in
    the threshold. rate: NaN when nothing is kept (`empty="zero"`: 0, as some papers define it).

    >>> rate, count = confident_wrong_answer_rate([0.9, 0.8, 0.7], [1, 0, 1], 0.8)
    >>> print(rate, count)
    0.5 2.0
    """
    if empty not in ("nan", "zero"):
        raise input_error("empty", empty, "nan or zero")
    rows = check_rows(weight, where, score=(score, SCORE), correct=(success, LABEL))
    return _confident_wrong(rows, threshold, empty)


@functools.partial(jax.jit, static_argnums=2)
def _confident_wrong(rows: Rows, threshold, empty: str) -> ConfidentWrong:
    score, correct = rows.columns
    if not jnp.issubdtype(score.dtype, jnp.floating):
        score = score.astype(rows.weight.dtype)
    kept = jnp.where(score >= jnp.asarray(threshold).astype(score.dtype), rows.weight, 0)
    count = jnp.sum(kept)
    rate = jnp.sum(kept * (1 - correct)) / jnp.where(count > 0, count, 1)
    fallback = 0.0 if empty == "zero" else jnp.nan
    return ConfidentWrong(rows.mark(jnp.where(count > 0, rate, fallback)), rows.mark(count))


def confident_wrong_answer_rate_details(
    score: Any,
    success: Any,
    threshold: Any,
    *,
    empty: str = "nan",
    weight: Any = None,
    where: Any = None,
) -> ConfidentWrong:
    """The same as `confident_wrong_answer_rate`, which already returns the count."""
    return confident_wrong_answer_rate(
        score, success, threshold, empty=empty, weight=weight, where=where
    )
