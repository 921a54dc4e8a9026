"""Thresholds by split conformal prediction: of a nonconformity, and of a confidence."""

import functools
from fractions import Fraction
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from calibjax.errors import input_error
from calibjax.metrics._counts import REACH, as_fraction, kceil
from calibjax.metrics._ranking import before, last_true
from calibjax.metrics._validation import BINARY, SCORE, Rows, check_rows, is_traced, total_weight
from calibjax.metrics.budget import make_ladder, observed, threshold_at


class ConformalThreshold(NamedTuple):
    """Accept iff value <= threshold; `feasible` is False when too few rows force +inf."""

    threshold: jax.Array
    feasible: jax.Array


class ScoreThreshold(NamedTuple):
    """Keep a row iff score >= tau; `feasible` is False when too few rows leave no guarantee."""

    tau: jax.Array
    feasible: jax.Array


def conformal_threshold(
    nonconformity: Any, *, alpha: float, weight: Any = None, where: Any = None
) -> ConformalThreshold:
    """Split-conformal threshold: accept iff value <= threshold (threshold, feasible).

    nonconformity (n,): scores of calibration rows, higher = stranger; alpha: static number in
    [0, 1]. The threshold is the k-th smallest value, k = ceil((n + 1)(1 - alpha)) in exact
    arithmetic, so a new exchangeable value is accepted with probability >= 1 - alpha; k > n gives
    +inf (accept all) and feasible False. Source: Vovk et al. 2005; Papadopoulos et al. 2002.

    >>> print(conformal_threshold(range(1, 20), alpha=0.1).threshold)
    18.0
    """
    rows = check_rows(weight, where, nonconformity=(nonconformity, SCORE))
    rank = _conformal_rank(rows, 1 - as_fraction("alpha", alpha))
    threshold, feasible = _kth_smallest(rows, rank)
    return ConformalThreshold(observed(nonconformity, threshold), feasible)


def _conformal_rank(rows: Rows, share: Fraction) -> Any:
    """ceil((n + 1) share) for n the total weight; from a table inside a trace."""
    total = total_weight(rows)
    if not is_traced(total):
        return np.asarray(-int(-share * (Fraction(float(total)) + 1) // 1), total.dtype)
    n_max = REACH * rows.weight.shape[0]
    ranks = jnp.asarray(np.array([kceil(share, n + 1) for n in range(n_max + 1)], np.int32))
    exact = ranks[jnp.clip(total, 0, n_max).astype(jnp.int32)].astype(total.dtype)
    whole = (total == jnp.round(total)) & (total <= n_max)
    nudge = 1 - 2 * jnp.finfo(total.dtype).eps
    return jnp.where(whole, exact, jnp.ceil((total + 1) * (float(share) * nudge)))


conformal_threshold_details = conformal_threshold


@jax.jit
def _kth_smallest(rows: Rows, rank: jax.Array) -> tuple[jax.Array, jax.Array]:
    (value,) = rows.columns
    if not jnp.issubdtype(value.dtype, jnp.floating):
        value = value.astype(rows.weight.dtype)
    value = jnp.where(rows.weight > 0, value, jnp.inf)
    order = jnp.argsort(value)
    totals = jnp.cumsum(rows.weight[order])
    place = jnp.searchsorted(totals, rank, side="left").astype(jnp.int32)
    feasible = (rank <= totals[-1]) & (totals[-1] > 0)
    place = jnp.minimum(place, value.shape[0] - 1)
    chosen = jnp.where(rank > 0, value[order[place]], -jnp.inf)
    return rows.mark(jnp.where(feasible, chosen, jnp.inf)), rows.ok & feasible


def conformal_score_threshold(
    score: Any,
    success: Any,
    *,
    alpha: float,
    target: str = "positives",
    test_score: Any = None,
    weight: Any = None,
    where: Any = None,
) -> ScoreThreshold:
    """Conformal threshold on a confidence: keep a row iff score >= tau (tau, feasible).

    score (n,) and success (n,) 0/1 of calibration rows. target: "positives" = a new success is kept
    with probability >= 1 - alpha (tau=-inf when there are too few successes for that); "negatives"
    = a new failure is kept with probability <= alpha; "selection" = of the rows of `test_score`
    (m,) that are kept, the expected share of failures is <= alpha (conformal p-values with
    Benjamini-Hochberg): the only one of the three that bounds the confident-wrong-answer rate.
    Exchangeable rows throughout. Source: Jin and Candes 2023 for "selection".

    >>> tau, feasible = conformal_score_threshold([0.9, 0.8, 0.3], [1, 1, 0], alpha=0.5)
    >>> print(tau, feasible)
    0.8 True
    """
    rows = check_rows(weight, where, score=(score, SCORE), success=(success, BINARY))
    if target in ("positives", "negatives"):
        wanted = rows.columns[1] if target == "positives" else 1 - rows.columns[1]
        sign = -1 if target == "positives" else 1
        used = rows.weight * wanted
        result = conformal_threshold(sign * _as_float(rows), alpha=alpha, weight=used)
        tau = _score_threshold(rows, result.threshold, target)
        return ScoreThreshold(observed(score, tau), rows.ok & result.feasible)
    if target != "selection":
        raise input_error("target", target, "positives, negatives or selection")
    if test_score is None:
        raise input_error("test_score", None, "the scores to select from, for target=selection")
    level = float(as_fraction("alpha", alpha))
    test = check_rows(None, None, test_score=(test_score, SCORE))
    tau, feasible = _select(rows, test, level)
    return ScoreThreshold(observed(test_score, tau), feasible)


conformal_score_threshold_details = conformal_score_threshold


def _as_float(rows: Rows) -> jax.Array:
    score = rows.columns[0]
    wide = jnp.issubdtype(score.dtype, jnp.floating)
    return score if wide else score.astype(rows.weight.dtype)


@functools.partial(jax.jit, static_argnums=2)
def _score_threshold(rows: Rows, threshold: jax.Array, target: str) -> jax.Array:
    score = _as_float(rows)
    threshold = jnp.asarray(threshold).astype(score.dtype)
    if target == "positives":
        return rows.mark(-threshold)
    # Rows at the threshold are failures that must stay out: the next observed score above it.
    above = (score > threshold) & (rows.weight > 0)
    return rows.mark(jnp.min(jnp.where(above, score, jnp.inf)))


@jax.jit
def _select(rows: Rows, test: Rows, level: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Benjamini-Hochberg over conformal p-values (1 + failures at or above) / (n + 1)."""
    failures = rows.weight * (1 - rows.columns[1])
    ladder = make_ladder(_as_float(rows), failures)
    candidates = make_ladder(_as_float(test), test.weight)
    scores = candidates.scores
    place = jnp.searchsorted(-ladder.scores, -scores.astype(ladder.scores.dtype), side="right")
    at_or_above = before(ladder.totals, jnp.minimum(place.astype(jnp.int32), ladder.length))
    p_value = (1 + at_or_above) / (jnp.sum(rows.weight) + 1)
    kept = candidates.totals
    slack = 1 + 4 * jnp.finfo(kept.dtype).eps
    passes = p_value * jnp.sum(test.weight) <= level * slack * kept
    usable = jnp.arange(scores.shape[0], dtype=jnp.int32) < candidates.length
    chosen = last_true(passes & usable)
    tau = threshold_at(candidates, chosen)
    return jnp.where(rows.ok & test.ok, tau, jnp.nan), rows.ok & test.ok & (chosen > 0)
