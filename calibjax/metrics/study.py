"""Routers x budgets x splits x replicates in one program: the whole budget protocol in one call.

Each split takes thresholds from its calibration rows and judges them on its test rows. A router is
sorted once for all splits that share its scores; a split is then two masks over the sorted rows.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from calibjax.errors import input_error
from calibjax.metrics._counts import as_fraction, as_fractions
from calibjax.metrics._resampling import make_plan, row_weights
from calibjax.metrics._split_totals import HIGHEST, Inputs, Part, all_splits
from calibjax.metrics._validation import LABEL, SCORE, check_rows, raise_first_fault
from calibjax.metrics.bootstrap import Interval, interval_of
from calibjax.metrics.budget import budget_counts
from calibjax.metrics.deployable import DeployableFrontier
from calibjax.metrics.splits import Splits

# Elements of one block of running totals (rows x splits x five columns): 64 MB in float32.
BLOCK = 2**24


class FrontierStudy(NamedTuple):
    """Frontiers of every router, split and budget.

    exact: accuracy (routers, splits, budgets); deployable: rule -> `DeployableFrontier` of arrays
    of that shape; oracle, random: accuracy (splits, budgets); never, always: accuracy (splits,);
    exact_interval: `Interval` (routers, budgets) of the exact accuracy averaged over splits, from
    resampled questions; intervals: rule -> figure -> the same for accuracy, usage, harm_all and
    benefit_all. times_tested (n,): in how many splits a row is tested; exact_times_used, times_used
    (rule ->), each (routers, n, budgets): in how many of these it is used; figures averaged over
    splits are linear in them. None and empty without replicates.
    """

    exact: jax.Array
    deployable: dict[str, DeployableFrontier]
    oracle: jax.Array
    random: jax.Array
    never: jax.Array
    always: jax.Array
    exact_interval: Interval | None = None
    intervals: dict[str, dict[str, Interval]] = {}
    times_tested: jax.Array | None = None
    exact_times_used: jax.Array | None = None
    times_used: dict[str, jax.Array] = {}


class ViolationRate(NamedTuple):
    """Share of violated splits per router and budget and over all routers, with standard errors.

    The overall error is taken over split means: routers on one split are not independent.
    """

    rate: jax.Array
    standard_error: jax.Array
    overall: jax.Array
    overall_standard_error: jax.Array


def frontier_study(
    scores: Any,
    correct_without: Any,
    correct_with: Any,
    budgets: Sequence[float],
    splits: Splits,
    *,
    rules: Sequence[str] = ("quantile", "exact", "dkw1"),
    alpha: float = 0.05,
    key: jax.Array | None = None,
    num_replicates: int = 0,
    confidence_level: float = 0.95,
    cluster: Any = None,
) -> FrontierStudy:
    """Exact, deployable and conservative frontiers of all routers over all splits and budgets.

    scores: (routers, n), or (routers, splits, n) for routers that are fitted anew in each split;
    higher = evidence first. correct_without, correct_with (n,) in [0, 1]; budgets: static numbers
    in [0, 1]; splits: from `random_splits`, or your own masks. rules, alpha: see `budget_count`.
    With `num_replicates` and `key`, questions (`cluster` (n,), default rows) are resampled with
    thresholds and splits as they are, which gives intervals of the figures averaged over splits.

    Figures are those of `exact_frontier` and `deployable_frontier` on the rows of each split.
    """
    rows = check_rows(
        None,
        None,
        correct_without=(correct_without, LABEL),
        correct_with=(correct_with, LABEL),
    )
    without, with_evidence = rows.columns
    scores = _check_scores(scores, splits, without.shape[0])
    rhos = as_fractions("budgets", list(budgets))
    sizes = splits.calibration.sum(1), splits.test.sum(1)
    if min(map(int, sizes[1])) < 1:
        raise input_error("test rows", 0, "at least one in every split")
    allowed = {rule: _allowed(*sizes, rhos, rule, alpha) for rule in rules}
    limit = np.array([[int(rho * int(m)) for rho in rhos] for m in sizes[1]])
    plan = make_plan(without.shape[0], cluster) if num_replicates else None
    if num_replicates and key is None:
        raise input_error("key", None, "jax.random.key(seed), for the replicates")
    inputs = Inputs(
        without=without,
        utility=with_evidence - without,
        targets=jnp.asarray([float(rho) for rho in rhos], without.dtype),
    )
    parts = _parts(splits, limit, allowed, without.dtype, one_by_one=scores.ndim == 3)
    level = as_fraction("confidence_level", confidence_level)
    return _study(scores, inputs, parts, plan, key, splits.test.shape[0], num_replicates, level)


def _check_scores(scores: Any, splits: Splits, n: int) -> jax.Array:
    scores = jnp.asarray(scores)
    shape = splits.calibration.shape
    if splits.test.shape != shape or shape[1:] != (n,):
        raise input_error("splits", [m.shape for m in splits], f"two masks of shape (splits, {n})")
    if scores.shape[1:] not in ((n,), shape):
        raise input_error(
            "scores.shape", scores.shape, f"(routers, {n}) or (routers, {shape[0]}, {n})"
        )
    for router, row in enumerate(np.asarray(scores)):
        raise_first_fault(f"scores[{router}]", row.reshape(-1), SCORE, None)
    is_float = jnp.issubdtype(scores.dtype, jnp.floating)
    return scores if is_float else scores.astype(jnp.float32)


def _allowed(num_calibration, num_test, rhos, rule: str, alpha: float) -> np.ndarray:
    """Allowed calibration count (splits, budgets); splits of equal sizes are solved once."""
    pairs, inverse = np.unique(
        np.stack([num_calibration, num_test], 1), axis=0, return_inverse=True
    )
    solved = [
        [budget_counts(np.array([int(n)]), rho, rule, alpha, int(m))[0] for rho in rhos]
        for n, m in pairs
    ]
    return np.array(solved)[inverse.reshape(-1)]


def _parts(splits: Splits, limit, allowed, dtype, one_by_one: bool) -> Part:
    num_splits, n = splits.test.shape
    width = 1 if one_by_one else max(1, min(num_splits, BLOCK // (5 * n)))
    missing = -num_splits % width

    def stack(array: np.ndarray) -> np.ndarray:
        padded = np.concatenate([array, np.zeros((missing,) + array.shape[1:], array.dtype)])
        return padded.reshape((-1, width) + array.shape[1:])

    calibration, test = (jnp.asarray(np.swapaxes(stack(mask), 1, 2), dtype) for mask in splits)
    counts = {rule: jnp.asarray(stack(count), dtype) for rule, count in allowed.items()}
    return Part(calibration, test, jnp.asarray(stack(limit), dtype), counts)


@functools.partial(jax.jit, static_argnums=(5, 6, 7))
def _study(scores, inputs, parts, plan, key, num_splits, num_replicates, level) -> FrontierStudy:
    def flatten(values):
        """(parts, width, ...) -> (splits, ...), without the fillers."""
        return values.reshape((-1,) + values.shape[2:])[:num_splits]

    def router(score, part=parts, with_shares=num_replicates > 0):
        frontiers, shares = all_splits(score, inputs, part, with_shares)
        return jax.tree.map(flatten, frontiers), shares

    (exact, deployable), shares = jax.lax.map(router, scores)
    references = (inputs.utility, jnp.zeros_like(inputs.utility))
    oracle, random = (router(r, parts._replace(allowed={}), False)[0][0] for r in references)
    never, always = (
        flatten(_masked_mean(parts.test, column))
        for column in (inputs.without, inputs.without + inputs.utility)
    )
    study = FrontierStudy(exact, deployable, oracle, random, never, always)
    if not num_replicates:
        return study
    tested = jnp.sum(parts.test, axis=(0, 2))
    exact_interval, intervals = _intervals(
        shares, tested, inputs, plan, key, num_replicates, level
    )
    return study._replace(
        exact_interval=exact_interval,
        intervals=intervals,
        times_tested=tested,
        exact_times_used=shares[0],
        times_used=shares[1],
    )


def _masked_mean(mask_PnS: jax.Array, column: jax.Array) -> jax.Array:
    total = jnp.sum(mask_PnS, axis=1)
    sums = jnp.einsum("pns,n->ps", mask_PnS, column, precision=HIGHEST)
    return sums / jnp.where(total > 0, total, 1)


def _intervals(shares, tested, inputs: Inputs, plan, key, num_replicates: int, level):
    """Intervals of means over splits: sums over test rows are linear in the question weights."""
    utility = inputs.utility
    dtype = utility.dtype
    figures = {
        "accuracy": utility,
        "usage": jnp.ones_like(utility),
        "harm_all": (utility < 0).astype(dtype),
        "benefit_all": (utility > 0).astype(dtype),
    }

    def evaluate(weight):
        size = jnp.matmul(weight, tested, precision=HIGHEST)
        never = jnp.matmul(weight, tested * inputs.without, precision=HIGHEST) / size

        def mean(share, column):
            matrix = share * column[None, :, None]
            return jnp.einsum("n,rnk->rk", weight, matrix, precision=HIGHEST) / size

        exact = never + mean(shares[0], utility)
        rules = {}
        for rule, share in shares[1].items():
            rules[rule] = {name: mean(share, column) for name, column in figures.items()}
            rules[rule]["accuracy"] = never + rules[rule]["accuracy"]
        return exact, rules

    def replicate(index):
        return evaluate(row_weights(plan, key, index).astype(dtype))

    batch = max(1, min(num_replicates, BLOCK // utility.shape[0]))
    indices = jnp.arange(num_replicates, dtype=jnp.int32)
    replicates = jax.lax.map(replicate, indices, batch_size=batch)
    estimate = evaluate(jnp.ones_like(utility))
    return jax.tree.map(lambda e, r: interval_of(e, r, level), estimate, replicates)


def violation_rate(violated: Any) -> ViolationRate:
    """Violation rates with standard errors from violated (routers, splits, budgets) booleans.

    >>> rate = violation_rate(np.array([[[True], [False]], [[True], [False]]]))
    >>> print(rate.rate[:, 0], rate.overall, rate.overall_standard_error.round(4))
    [0.5 0.5] [0.5] [0.3536]
    """
    violated = jnp.asarray(violated)
    if violated.ndim != 3:
        raise input_error("violated.shape", violated.shape, "(routers, splits, budgets)")
    flags = violated.astype(jnp.float32)
    num_splits = flags.shape[1]
    rate, by_split = jnp.mean(flags, axis=1), jnp.mean(flags, axis=0)
    overall = jnp.mean(by_split, axis=0)
    spread = jnp.mean((by_split - overall[None]) ** 2, axis=0)
    return ViolationRate(
        rate=rate,
        standard_error=jnp.sqrt(rate * (1 - rate) / num_splits),
        overall=overall,
        overall_standard_error=jnp.sqrt(spread / num_splits),
    )
