"""How many rows may be used under a budget, with what guarantee, and the threshold that does it."""

import functools
import math
from fractions import Fraction
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from calibjax.errors import input_error
from calibjax.metrics._counts import as_fraction, floor_table, kfloor
from calibjax.metrics._ranking import Ranking, before, rank_rows
from calibjax.metrics._validation import SCORE, Rows, check_rows, is_traced

RULES = ("quantile", "exact", "dkw1", "dkw2", "predictive")


class BudgetThreshold(NamedTuple):
    """Threshold (use a row iff score >= threshold), rows at or above it, and their share.

    accept_tie: probability of using rows of the tie block just below the threshold, so that the
    expected count is the allowed one; 0 unless `tie="random"`.
    """

    threshold: jax.Array
    used: jax.Array
    usage: jax.Array
    tie_score: jax.Array
    accept_tie: jax.Array


def dkw_margin(n: int, *, alpha: float = 0.05, sides: int = 1) -> float:
    """Dvoretzky-Kiefer-Wolfowitz margin sqrt(ln(sides / alpha) / (2 n)), in units of usage.

    P(population usage exceeds sample usage by more than this, at any threshold) <= alpha for
    sides=1 (needs alpha <= 0.5); sides=2 bounds both directions. Source: Massart 1990.

    >>> print(round(dkw_margin(100), 4), round(dkw_margin(100, sides=2), 4))
    0.1224 0.1358
    """
    n = _count("n", n, 1)
    if not 0 < alpha < 1:
        raise input_error("alpha", alpha, "a number between 0 and 1")
    if sides not in (1, 2):
        raise input_error("sides", sides, "1 or 2")
    if sides == 1 and alpha > 0.5:
        raise input_error("alpha", alpha, "at most 0.5 for the one-sided bound")
    return math.sqrt(math.log(sides / alpha) / (2 * n))


def _count(name: str, value: Any, low: int = 0) -> int:
    if is_traced(value) or isinstance(value, bool) or int(value) != value or value < low:
        raise input_error(name, value, f"a static integer of at least {low}")
    return int(value)


def budget_count(
    n: int,
    budget: float,
    *,
    rule: str = "quantile",
    alpha: float = 0.05,
    num_new: int | None = None,
) -> int:
    """How many of `n` calibration rows a threshold may let through under a usage budget in [0, 1].

    rule: "quantile" = floor(budget n), no guarantee (violated about half the time); "exact" =
    P(population usage > budget) <= alpha, for one budget fixed beforehand; "dkw1", "dkw2" = that
    for all budgets at once (one- and two-sided margin); "predictive" = P(usage on `num_new` new
    rows > budget) <= alpha, default num_new = n. Guarantees hold for i.i.d. rows and a router that
    was not fitted on them.

    >>> [budget_count(500, 0.5, rule=rule) for rule in ("quantile", "exact", "dkw1", "dkw2")]
    [250, 232, 222, 219]
    """
    n = _count("n", n)
    num_new = n if num_new is None else num_new
    return int(budget_counts(np.array([n]), budget, rule, alpha, num_new)[0])


def budget_counts(
    n: np.ndarray, budget: Any, rule: str, alpha: float, num_new: int
) -> np.ndarray:
    """int32 `budget_count` of each entry of `n`; a table over 0..n_max serves traced counts."""
    rho = as_fraction("budget", budget)
    num_new = _count("num_new", num_new)
    if rule not in RULES:
        raise input_error("rule", rule, ", ".join(RULES))
    if rule == "quantile":
        return floor_table(rho, int(n.max(initial=0)))[n]
    if not 0 < alpha < 1:
        raise input_error("alpha", alpha, "a number between 0 and 1")
    if rule in ("dkw1", "dkw2"):
        unit = dkw_margin(1, alpha=alpha, sides=int(rule[-1]))
        margin = unit / np.sqrt(np.maximum(n, 1))
        return np.maximum(0, np.floor(n * (float(rho) - margin))).astype(np.int32)
    # Bisection on k, all n at once: the risk grows with k.
    low, high = np.zeros_like(n), n.copy()
    while (low < high).any():
        middle = (low + high + 1) // 2
        fits = _risk(n, middle, rho, rule, num_new) <= alpha
        low, high = np.where(fits, middle, low), np.where(fits, high, middle - 1)
    return low.astype(np.int32)


def _risk(n: np.ndarray, k: np.ndarray, rho: Fraction, rule: str, num_new: int) -> np.ndarray:
    """P(violation) when the threshold lets k of n calibration rows through; 0 for k = 0."""
    # Imported here: scipy.stats takes as long to import as JAX, and few calls need it.
    from scipy import stats

    if rule == "exact":
        return np.where(k > 0, stats.binom.cdf(k - 1, n, float(rho)), 0.0)
    # More than t of m new rows lie above the k-th best of n calibration rows (beta-binomial) just
    # when fewer than k of the best k + t of all n + m are calibration rows (hypergeometric).
    t = kfloor(rho, num_new)
    best = np.minimum(k + t, n + num_new)
    return np.where(k > 0, stats.hypergeom.cdf(k - 1, n + num_new, n, best), 0.0)


def expected_violation(
    n: int, num_new: int, budget: float, *, rule: str = "quantile", alpha: float = 0.05
) -> float:
    """P(usage on `num_new` new rows exceeds the budget) for a threshold from `n` calibration rows.

    For continuous scores and exchangeable rows, also for random splits of one finite pool: the
    count above the k-th calibration score is beta-binomial. The reference for observed violation
    rates.

    >>> [round(expected_violation(500, 500, 0.5, rule=r), 3) for r in ("quantile", "exact", "dkw1")]
    [0.475, 0.115, 0.033]
    """
    k = budget_count(n, budget, rule=rule, alpha=alpha, num_new=num_new)
    rho = as_fraction("budget", budget)
    return float(_risk(np.array([n]), np.array([k]), rho, "predictive", int(num_new))[0])


def budget_threshold(
    score: Any, count: Any, *, weight: Any = None, where: Any = None
) -> jax.Array:
    """Smallest observed score with at most `count` rows at or above it, else +inf (use none).

    score (n,) real, higher = used first; count: whole number, may be traced. A tie block is taken
    or left whole. Returned in the dtype of a float score.

    >>> print(budget_threshold([0.9, 0.5, 0.5, 0.2], 2))
    0.9
    """
    return budget_threshold_details(score, count, weight=weight, where=where).threshold


def budget_threshold_details(
    score: Any, count: Any, *, tie: str = "whole", weight: Any = None, where: Any = None
) -> BudgetThreshold:
    """The threshold with the rows it lets through and, for tie="random", the accepted tie share."""
    if tie not in ("whole", "random"):
        raise input_error("tie", tie, "whole or random")
    rows = check_rows(weight, where, score=(score, SCORE))
    result = _budget_threshold(rows, count, tie)
    return result._replace(threshold=observed(score, result.threshold))


def observed(score: Any, threshold: jax.Array) -> Any:
    """`threshold` as it stands in `score`: NumPy float64 scores would lose digits without x64."""
    if is_traced(score, threshold) or isinstance(score, jax.Array):
        return threshold
    values = np.asarray(score)
    if values.dtype != np.float64 or threshold.dtype == jnp.float64 or threshold.ndim:
        return threshold
    rounded = values.astype(np.dtype(threshold.dtype))
    chosen = values[rounded == np.asarray(threshold)]
    return chosen.min() if chosen.size and np.isfinite(chosen).all() else threshold


@functools.partial(jax.jit, static_argnums=2)
def _budget_threshold(rows: Rows, count: jax.Array, tie: str) -> BudgetThreshold:
    count = jnp.asarray(count).astype(rows.weight.dtype)
    ladder = make_ladder(rows.columns[0], rows.weight)
    place = last_within(ladder, count)
    used = before(ladder.totals, place)
    below = jnp.minimum(place, ladder.scores.shape[0] - 1)
    block = ladder.totals[below] - used
    spare = jnp.clip((count - used) / jnp.where(block > 0, block, 1), 0, 1)
    total = jnp.sum(rows.weight)
    return BudgetThreshold(
        threshold=rows.mark(threshold_at(ladder, place)),
        used=rows.mark(used),
        usage=rows.mark(jnp.where(total > 0, used / jnp.where(total > 0, total, 1), jnp.nan)),
        tie_score=rows.mark(ladder.scores[below]),
        accept_tie=rows.mark(jnp.where((block > 0) & (tie == "random"), spare, 0)),
    )


class Ladder(NamedTuple):
    """Scores from best to worst and the total weight down to the end of each one's tie block.

    Rows without weight stand last, at -inf; only the first `length` positions may be a threshold.
    """

    scores: jax.Array
    totals: jax.Array
    length: jax.Array
    ranking: Ranking


def make_ladder(score: jax.Array, weight: jax.Array) -> Ladder:
    if not jnp.issubdtype(score.dtype, jnp.floating):
        score = score.astype(weight.dtype)
    score = jnp.where(weight > 0, score, -jnp.inf)
    ranking = rank_rows(score)
    totals = before(jnp.cumsum(weight[ranking.order]), ranking.end)
    length = jnp.sum(weight > 0, dtype=jnp.int32)
    return Ladder(score[ranking.order], totals, length, ranking)


def last_within(ladder: Ladder, count: jax.Array) -> jax.Array:
    """Number of leading positions whose whole tie blocks fit in `count`."""
    place = jnp.searchsorted(ladder.totals, count, side="right").astype(jnp.int32)
    return jnp.minimum(place, ladder.length)


def threshold_at(ladder: Ladder, place: jax.Array) -> jax.Array:
    """Score of the last of `place` leading positions, +inf for none."""
    padded = jnp.concatenate([jnp.full(1, jnp.inf, ladder.scores.dtype), ladder.scores])
    return padded[place]
