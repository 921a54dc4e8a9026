"""Thresholds on a confidence that keep the rate of confidently wrong answers within a target."""

import functools
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from calibjax.errors import input_error
from calibjax.metrics._counts import REACH, as_fraction, floor_table
from calibjax.metrics._ranking import before, last_true
from calibjax.metrics._validation import (
    BINARY,
    LABEL,
    SCORE,
    Rows,
    check_rows,
    is_traced,
    total_weight,
)
from calibjax.metrics.budget import make_ladder, observed


class CwarThreshold(NamedTuple):
    """Keep a row iff score >= tau; the share of rows kept; whether any threshold qualifies."""

    tau: jax.Array
    coverage: jax.Array
    feasible: jax.Array


class CwarThresholdDetails(NamedTuple):
    """A CWAR threshold with the rows kept, the wrong ones among them and their upper bound.

    upper_bound: one-sided Clopper-Pearson bound of the rate at level 1 - delta; NaN inside a trace.
    """

    tau: jax.Array
    coverage: jax.Array
    feasible: jax.Array
    kept: jax.Array
    errors: jax.Array
    rate: jax.Array
    upper_bound: jax.Array


def clopper_pearson_upper(errors: float, count: float, *, delta: float = 0.1) -> float:
    """Upper confidence bound of an error rate at level 1 - delta; 1.0 if all are wrong.

    >>> print(round(clopper_pearson_upper(0, 10), 4))
    0.2057
    """
    # Imported here: scipy.stats takes as long to import as JAX, and few calls need it.
    from scipy import stats

    if errors >= count:
        return 1.0
    return float(stats.beta.ppf(1 - delta, errors + 1, count - errors))


def cwar_threshold(
    score: Any,
    success: Any,
    target: float,
    *,
    rule: str = "suffix",
    delta: float = 0.1,
    n_min: int = 60,
    grid: Sequence[float] | None = None,
    weight: Any = None,
    where: Any = None,
) -> CwarThreshold:
    """Threshold to keep the share of wrong answers within `target` (tau, coverage, feasible).

    score (n,) real; success (n,), 0/1 (soft labels for "first" and "suffix"); target: static number
    in [0, 1]. tau runs over observed scores, or over `grid`; +inf keeps none.

    rule: "first" = smallest tau with rate <= target: the largest coverage, in sample, missed on new
    data about half the time; "suffix" = smallest tau such that it and every larger one qualify;
    "certified" = going down from the top, once n_min rows are in, as long as the Clopper-Pearson
    upper bound at level 1 - delta stays <= target (a fixed-sequence test). P(population rate >
    target) <= delta holds for "certified" with a `grid` fixed beforehand (say, quantiles of
    training scores) on rows that the score was not fitted on; walking over the observed scores is
    approximate.
    Source: Angelopoulos et al. 2021 (learn then test); Bauer 1991 (fixed sequences).

    >>> cwar_threshold([0.9, 0.8, 0.7, 0.6], [1, 0, 1, 1], 0.3, rule="first").tau.item()
    0.6
    >>> cwar_threshold([0.9, 0.8, 0.7, 0.6], [1, 0, 1, 1], 0.3, rule="suffix").tau.item()
    0.9
    """
    details = cwar_threshold_details(
        score,
        success,
        target,
        rule=rule,
        delta=delta,
        n_min=n_min,
        grid=grid,
        weight=weight,
        where=where,
    )
    return CwarThreshold(*details[:3])


def cwar_threshold_details(
    score: Any,
    success: Any,
    target: float,
    *,
    rule: str = "suffix",
    delta: float = 0.1,
    n_min: int = 60,
    grid: Sequence[float] | None = None,
    weight: Any = None,
    where: Any = None,
) -> CwarThresholdDetails:
    """The threshold with the rows kept, the errors among them, their rate and its upper bound."""
    if rule not in ("first", "suffix", "certified"):
        raise input_error("rule", rule, "first, suffix or certified")
    if not 0 < delta < 1:
        raise input_error("delta", delta, "a number between 0 and 1")
    gamma = as_fraction("target", target)
    kind = BINARY if rule == "certified" else LABEL
    rows = check_rows(weight, where, score=(score, SCORE), success=(success, kind))
    n_max = _largest_count(rows)
    if rule == "certified":
        allowed = certified_errors(gamma, float(delta), n_max)
    else:
        allowed = floor_table(gamma, n_max)
    steps = None if grid is None else np.unique(np.asarray(grid, float))[::-1].copy()
    if steps is not None and np.isnan(steps).any():
        raise input_error("grid", "NaN", "numbers")
    details = _cwar_threshold(rows, allowed, float(gamma), n_min, steps, rule)
    details = details._replace(tau=observed(score if steps is None else steps, details.tau))
    if not is_traced(details.kept):
        bound = clopper_pearson_upper(float(details.errors), float(details.kept), delta=delta)
        details = details._replace(upper_bound=jnp.asarray(bound, details.rate.dtype))
    return details


def _largest_count(rows: Rows) -> int:
    """Size of a table over whole counts: the total weight, or what a traced one may reach."""
    n = rows.weight.shape[0]
    return REACH * n if is_traced(rows.weight) else max(n, int(np.ceil(total_weight(rows))))


@functools.lru_cache(maxsize=64)
def certified_errors(gamma: Fraction, delta: float, n_max: int) -> np.ndarray:
    """int32 largest e with Clopper-Pearson upper bound <= gamma among m rows, m = 0..n_max; or -1.

    The bound is <= gamma just when Binomial(m, gamma) puts at most delta on 0..e.
    """
    # Imported here: scipy.stats takes as long to import as JAX, and few calls need it.
    from scipy import stats

    m = np.arange(n_max + 1)
    errors = stats.binom.ppf(delta, m, float(gamma))
    errors = np.where(stats.binom.cdf(errors, m, float(gamma)) <= delta, errors, errors - 1)
    table = np.minimum(errors, m - 1).astype(np.int32)
    table.setflags(write=False)
    return table


@functools.partial(jax.jit, static_argnums=5)
def _cwar_threshold(rows: Rows, allowed, gamma, n_min, grid, rule: str) -> CwarThresholdDetails:
    score, success = rows.columns
    ladder = make_ladder(score, rows.weight)
    wrong = (rows.weight * (1 - success))[ladder.ranking.order]
    errors = before(jnp.cumsum(wrong), ladder.ranking.end)
    if grid is None:
        steps, counts, wrongs = ladder.scores, ladder.totals, errors
        usable = jnp.arange(steps.shape[0], dtype=jnp.int32) < ladder.length
    else:
        steps = jnp.asarray(grid, ladder.scores.dtype)
        place = jnp.searchsorted(-ladder.scores, -steps, side="right").astype(jnp.int32)
        place = jnp.minimum(place, ladder.length)
        counts, wrongs = before(ladder.totals, place), before(errors, place)
        usable = counts > 0
    passes = _passes(counts, wrongs, allowed, gamma, rule)
    if rule == "certified":
        tested = usable & (counts >= n_min)
        passes = jnp.cumprod(jnp.where(tested, passes, True).astype(jnp.int32)) > 0
        usable = tested
    elif rule == "suffix":
        passes = jnp.cumprod(jnp.where(usable, passes, True).astype(jnp.int32)) > 0
    chosen = last_true(passes & usable)
    return _at_step(rows, steps, counts, wrongs, chosen)


def _passes(counts, errors, allowed, gamma, rule: str) -> jax.Array:
    """Whether each step qualifies: exact for whole counts, in floating point for others."""
    index = jnp.clip(counts, 0, allowed.shape[0] - 1).astype(jnp.int32)
    whole = (counts == jnp.round(counts)) & (counts < allowed.shape[0])
    whole &= errors == jnp.round(errors)
    exact = errors <= jnp.asarray(allowed)[index].astype(errors.dtype)
    if rule == "certified":
        return whole & exact
    slack = 1 + 4 * jnp.finfo(counts.dtype).eps
    return jnp.where(whole, exact, errors <= gamma * slack * counts)


def _at_step(rows: Rows, steps, counts, errors, chosen) -> CwarThresholdDetails:
    inf = jnp.full(1, jnp.inf, steps.dtype)
    count, error = (jnp.concatenate([jnp.zeros(1, x.dtype), x])[chosen] for x in (counts, errors))
    total = jnp.sum(rows.weight)
    rate = jnp.where(count > 0, error / jnp.where(count > 0, count, 1), jnp.nan)
    coverage = jnp.where(total > 0, count / jnp.where(total > 0, total, 1), jnp.nan)
    return CwarThresholdDetails(
        tau=rows.mark(jnp.concatenate([inf, steps])[chosen]),
        coverage=rows.mark(coverage),
        feasible=rows.ok & (chosen > 0),
        kept=count,
        errors=error,
        rate=rows.mark(rate),
        upper_bound=jnp.full_like(rate, jnp.nan),
    )
