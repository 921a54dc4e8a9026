"""Accuracy under a budget with a threshold taken from calibration rows: what deployment gives."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from calibjax.metrics._counts import REACH, as_fractions, floor_counts, is_sequence
from calibjax.metrics._ranking import count_lookup, rank_rows
from calibjax.metrics._validation import SCORE, Rows, check_rows, is_traced, total_weight
from calibjax.metrics.budget import budget_counts, last_within, make_ladder, threshold_at
from calibjax.metrics.frontier import HIGHEST, num_rows, outcome_rows


class DeployableFrontier(NamedTuple):
    """What a threshold from calibration rows does on new rows; one entry a budget.

    usage: realised share of rows used; transfer_error: usage - budget; violated: more rows used
    than floor(budget n); harm_all, harm_used: rows made worse, as a share of all rows and of those
    used (NaN if none); benefit_all: rows made better; missed: rows left out that would have become
    better.
    """

    accuracy: jax.Array
    usage: jax.Array
    transfer_error: jax.Array
    violated: jax.Array
    harm_all: jax.Array
    harm_used: jax.Array
    benefit_all: jax.Array
    missed: jax.Array
    threshold: jax.Array


class DeployableDetails(NamedTuple):
    """The frontier with the counts behind it.

    allowed: rows that the rule let through on calibration; calibration_used: rows at or above the
    threshold there (less when a tie block did not fit); used: new rows used; exact_gap: accuracy
    minus the exact frontier at the same count, 0 up to ties.
    """

    frontier: DeployableFrontier
    allowed: jax.Array
    calibration_used: jax.Array
    used: jax.Array
    exact_gap: jax.Array
    n_valid: jax.Array


def deployable_frontier(
    calibration_score: Any,
    score: Any,
    correct_without: Any,
    correct_with: Any,
    budgets: float | Sequence[float],
    *,
    rule: str = "quantile",
    alpha: float = 0.05,
    calibration_weight: Any = None,
    calibration_where: Any = None,
    weight: Any = None,
    where: Any = None,
) -> DeployableFrontier:
    """What thresholds chosen on calibration scores do on new rows, one entry a budget.

    calibration_score (c,), not used to fit the router; score, correct_without, correct_with (n,) of
    the new rows; budgets: static numbers in [0, 1]; rule, alpha: see `budget_count` ("quantile" has
    no guarantee, "dkw1" or "exact" are conservative). A tie block on the calibration side is left
    out whole when it does not fit. Rates are NaN without rows.

    >>> s = [0.9, 0.8, 0.7, 0.6]
    >>> out = deployable_frontier(s, s, [0, 1, 0, 0], [1, 0, 1, 0], 0.5)
    >>> print(out.threshold, out.usage, out.harm_used, out.violated)
    0.8 0.5 0.5 False
    """
    return deployable_frontier_details(
        calibration_score,
        score,
        correct_without,
        correct_with,
        budgets,
        rule=rule,
        alpha=alpha,
        calibration_weight=calibration_weight,
        calibration_where=calibration_where,
        weight=weight,
        where=where,
    ).frontier


def deployable_frontier_details(
    calibration_score: Any,
    score: Any,
    correct_without: Any,
    correct_with: Any,
    budgets: float | Sequence[float],
    *,
    rule: str = "quantile",
    alpha: float = 0.05,
    num_new: int | None = None,
    tolerance: int = 0,
    calibration_weight: Any = None,
    calibration_where: Any = None,
    weight: Any = None,
    where: Any = None,
) -> DeployableDetails:
    """The frontier with its counts. tolerance: rows over the budget that are not yet a violation.

    num_new: rows that rule="predictive" guards; default: the rows in use, and inside a trace with a
    mask all rows, since the guarantee needs a static number.
    """
    rhos = as_fractions("budgets", budgets)
    calibration = check_rows(
        calibration_weight, calibration_where, calibration_score=(calibration_score, SCORE)
    )
    rows = outcome_rows(weight, where, correct_without, correct_with, score=(score, SCORE))
    total, n = total_weight(rows), num_rows(rows)
    if num_new is None:
        num_new = n if is_traced(total) else int(total)
    calibration, allowed = _allowed_counts(calibration, rhos, rule, alpha, num_new)
    limit = floor_counts(rhos, total, n) + tolerance
    targets = np.array([float(rho) for rho in rhos], rows.weight.dtype)
    details = _deploy(calibration, rows, allowed, limit, targets)
    if not is_sequence(budgets):
        return jax.tree.map(lambda x: x[0] if x.ndim else x, details)
    return details


def _allowed_counts(
    calibration: Rows, rhos: tuple[Fraction, ...], rule: str, alpha: float, num_new: int
) -> tuple[Rows, Any]:
    """`budget_count` for each budget from the calibration weight, by a table inside a trace.

    Rows of a traced weight that the table does not reach come back marked as not ok.
    """
    total = total_weight(calibration)
    if not is_traced(total):
        n = np.array([int(total)])
        counts = [budget_counts(n, rho, rule, alpha, num_new)[0] for rho in rhos]
        return calibration, np.array(counts, total.dtype)
    # The predictive rule has no quick tail function to fill a larger table with.
    n_max = num_rows(calibration) * (1 if rule == "predictive" else REACH)
    ns = np.arange(n_max + 1)
    tables = np.stack([budget_counts(ns, rho, rule, alpha, num_new) for rho in rhos])
    index = jnp.clip(total, 0, n_max).astype(jnp.int32)
    allowed = jnp.take(jnp.asarray(tables), index, axis=1).astype(total.dtype)
    return calibration._replace(ok=calibration.ok & (total <= n_max)), allowed


@jax.jit
def _deploy(calibration: Rows, rows: Rows, allowed, limit, targets) -> DeployableDetails:
    without, with_evidence, score = rows.columns
    weight, total = rows.weight, jnp.sum(rows.weight)
    calibration_score, score = _same_dtype(calibration.columns[0], score, weight.dtype)
    ladder = make_ladder(calibration_score, calibration.weight)
    place = last_within(ladder, allowed)
    threshold = threshold_at(ladder, place)
    used = (score[None] >= threshold[:, None]).astype(weight.dtype)
    utility = with_evidence - without
    worse, better = ((u > 0).astype(weight.dtype) for u in (-utility, utility))
    columns = jnp.stack([jnp.ones_like(utility), utility, worse, better], axis=1)
    sums = jnp.matmul(used * weight[None], columns, precision=HIGHEST)
    count, gained, harmed, helped = sums.T
    safe = jnp.where(total > 0, total, 1)
    base = jnp.matmul(weight, without, precision=HIGHEST)
    helpful = jnp.matmul(weight, better, precision=HIGHEST)
    exact = count_lookup(rank_rows(score), utility, weight, count)

    def value(x):
        return jnp.where(rows.ok & calibration.ok & (total > 0), x, jnp.nan)

    frontier = DeployableFrontier(
        accuracy=value((base + gained) / safe),
        usage=value(count / safe),
        transfer_error=value(count / safe - targets),
        violated=count > limit,
        harm_all=value(harmed / safe),
        harm_used=value(jnp.where(count > 0, harmed / jnp.where(count > 0, count, 1), jnp.nan)),
        benefit_all=value(helped / safe),
        missed=value((helpful - helped) / safe),
        threshold=jnp.where(calibration.ok, threshold, jnp.nan),
    )
    calibration_used = jnp.concatenate([jnp.zeros(1, weight.dtype), ladder.totals])[place]
    n_valid = jnp.sum(rows.where, dtype=jnp.int32)
    gap = value((gained - exact) / safe)
    return DeployableDetails(frontier, allowed, calibration_used, count, gap, n_valid)


def _same_dtype(a: jax.Array, b: jax.Array, dtype: Any) -> tuple[jax.Array, jax.Array]:
    """Both in one float dtype, so that a threshold taken from `a` means the same in `b`."""
    if a.dtype == b.dtype and jnp.issubdtype(a.dtype, jnp.floating):
        return a, b
    return a.astype(dtype), b.astype(dtype)
