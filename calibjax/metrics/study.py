"""Routers x budgets x splits x replicates in one program: the whole budget protocol in one call.

Each split takes thresholds from its calibration rows and judges them on its test rows. A router is
sorted once for all splits that share its scores; a split is then two masks over the sorted rows.
"""

import functools
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from calibjax.errors import input_error
from calibjax.metrics._counts import as_fraction, as_fractions
from calibjax.metrics._ranking import Ranking, rank_rows
from calibjax.metrics._resampling import make_plan, row_weights
from calibjax.metrics._validation import LABEL, SCORE, check_rows, raise_first_fault
from calibjax.metrics.bootstrap import Interval, interval_of
from calibjax.metrics.budget import budget_counts
from calibjax.metrics.deployable import DeployableFrontier
from calibjax.metrics.splits import Splits

# Elements of one block of running totals (rows x splits x five columns): 64 MB in float32.
BLOCK = 2**24
HIGHEST = jax.lax.Precision.HIGHEST


class FrontierStudy(NamedTuple):
    """Frontiers of every router, split and budget.

    exact: accuracy (routers, splits, budgets); deployable: rule -> `DeployableFrontier` of arrays
    of that shape; exact_gap: rule -> its accuracy minus the exact one at the same count, 0 up to
    rounding, since a threshold takes the best rows; oracle, random: accuracy (splits, budgets);
    never, always: accuracy (splits,). exact_interval: `Interval` (routers, budgets) of the exact
    accuracy averaged over splits, from resampled questions; intervals: rule -> figure -> the same
    for accuracy, usage, harm_all, benefit_all and missed, and for harm_used, which is harm_all over
    usage (NaN where nothing is used). times_tested (n,): in how many splits a row is tested;
    exact_times_used, times_used (rule ->), each (routers, n, budgets): in how many of these it is
    used; figures averaged over splits are linear in them. None and empty without replicates.
    """

    exact: jax.Array
    deployable: dict[str, DeployableFrontier]
    exact_gap: dict[str, jax.Array]
    oracle: jax.Array
    random: jax.Array
    never: jax.Array
    always: jax.Array
    intervals: dict[str, dict[str, Interval]]
    times_used: dict[str, jax.Array]
    exact_interval: Interval | None = None
    times_tested: jax.Array | None = None
    exact_times_used: jax.Array | None = None


class ViolationRate(NamedTuple):
    """Share of violated splits per router and budget and over all routers, with standard errors.

    The overall error is taken over split means: routers on one split are not independent.
    overall_low, overall_high: normal interval, cut to [0, 1]; NaN for a single split, which says
    nothing of others.
    """

    rate: jax.Array
    standard_error: jax.Array
    overall: jax.Array
    overall_standard_error: jax.Array
    overall_low: jax.Array
    overall_high: jax.Array


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
    inputs = _Inputs(
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


class _Inputs(NamedTuple):
    without: jax.Array
    utility: jax.Array
    targets: jax.Array


class _Part(NamedTuple):
    """Splits that are worked on together: masks (n, splits), counts (splits, budgets).

    limit: test rows that a budget allows; allowed: rule -> calibration rows that it lets through.

    Stacked with a leading axis of parts; the last part is filled up with splits without rows.
    """

    calibration: jax.Array
    test: jax.Array
    limit: jax.Array
    allowed: dict[str, jax.Array]


def _parts(splits: Splits, limit, allowed, dtype, one_by_one: bool) -> _Part:
    num_splits, n = splits.test.shape
    width = 1 if one_by_one else max(1, min(num_splits, BLOCK // (5 * n)))
    missing = -num_splits % width

    def stack(array: np.ndarray) -> np.ndarray:
        padded = np.concatenate([array, np.zeros((missing,) + array.shape[1:], array.dtype)])
        return padded.reshape((-1, width) + array.shape[1:])

    calibration, test = (jnp.asarray(np.swapaxes(stack(mask), 1, 2), dtype) for mask in splits)
    counts = {rule: jnp.asarray(stack(count), dtype) for rule, count in allowed.items()}
    return _Part(calibration, test, jnp.asarray(stack(limit), dtype), counts)


@functools.partial(jax.jit, static_argnums=(5, 6, 7))
def _study(scores, inputs, parts, plan, key, num_splits, num_replicates, level) -> FrontierStudy:
    def flatten(values):
        """(parts, width, ...) -> (splits, ...), without the fillers."""
        return values.reshape((-1,) + values.shape[2:])[:num_splits]

    def router(score, part=parts, with_shares=num_replicates > 0):
        frontiers, shares = _all_splits(score, inputs, part, with_shares)
        return jax.tree.map(flatten, frontiers), shares

    (exact, deployable, gaps), shares = jax.lax.map(router, scores)
    references = (inputs.utility, jnp.zeros_like(inputs.utility))
    oracle, random = (router(r, parts._replace(allowed={}), False)[0][0] for r in references)
    never, always = (
        flatten(_masked_mean(parts.test, column))
        for column in (inputs.without, inputs.without + inputs.utility)
    )
    study = FrontierStudy(exact, deployable, gaps, oracle, random, never, always, {}, {})
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


def _all_splits(score, inputs: _Inputs, parts: _Part, with_shares: bool):
    """One router over all splits: ((exact accuracy, rule -> frontier), how often rows are used).

    The second is (exact, rule -> ...), each (n, budgets): in how many splits a test row is used.
    """
    together = rank_rows(score) if score.ndim == 1 else None
    zero = jnp.zeros((inputs.without.shape[0], inputs.targets.shape[0]), inputs.without.dtype)
    shares = (zero, {rule: zero for rule in parts.allowed}) if with_shares else ()

    def step(shares, xs):
        part, own = xs
        own = score if own is None else own
        ranking = rank_rows(own) if together is None else together
        frontiers, used = _some_splits(ranking, own, part, inputs, with_shares)
        return jax.tree.map(jnp.add, shares, used), frontiers

    shares, frontiers = jax.lax.scan(step, shares, (parts, score if together is None else None))
    return frontiers, shares


class _Totals(NamedTuple):
    """Running totals over sorted rows with a leading zero, (n + 1, splits) each."""

    calibration: jax.Array
    test: jax.Array
    gain: jax.Array
    harm: jax.Array
    benefit: jax.Array


def _running_totals(ranking: Ranking, part: _Part, utility: jax.Array) -> _Totals:
    """One pass over the rows with all splits abreast: five running sums at once."""
    calibration, test = part.calibration[ranking.order], part.test[ranking.order]
    ordered = utility[ranking.order]

    def step(totals, row):
        in_calibration, in_test, u = row
        worse, better = (u < 0).astype(u.dtype), (u > 0).astype(u.dtype)
        terms = _Totals(in_calibration, in_test, in_test * u, in_test * worse, in_test * better)
        totals = jax.tree.map(jnp.add, totals, terms)
        return totals, totals

    zero = jnp.zeros(test.shape[1], utility.dtype)
    _, totals = jax.lax.scan(step, _Totals(*(zero,) * 5), (calibration, test, ordered))
    return jax.tree.map(lambda t: jnp.concatenate([zero[None], t]), totals)


def _first_reaching(totals: jax.Array, count: jax.Array, side: str) -> jax.Array:
    """Position of count (splits, budgets) in non-decreasing totals (n, splits)."""
    search = functools.partial(jnp.searchsorted, side=side)
    return jax.vmap(search, in_axes=(1, 0))(totals, count).astype(jnp.int32)


def _at(totals: jax.Array, place: jax.Array) -> jax.Array:
    """totals (n, splits) at place (splits, budgets)."""
    split = jnp.arange(totals.shape[1], dtype=jnp.int32)[:, None]
    return totals[place, split]


def _some_splits(ranking: Ranking, score, part: _Part, inputs: _Inputs, with_shares: bool):
    totals = _running_totals(ranking, part, inputs.utility)
    base = jnp.einsum("ns,n->s", part.test, inputs.without, precision=HIGHEST)[:, None]
    exact, share = _exact(ranking, totals, base, part.limit)
    levels = jnp.concatenate([jnp.full(1, jnp.inf, score.dtype), score[ranking.order]])
    deployable, gaps, used = {}, {}, {}
    # Totals at the end of each row's tie block, so that blocks are used whole or not at all.
    ends = totals.calibration[ranking.end]
    for rule, allowed in part.allowed.items():
        place = _cut(ranking, ends, allowed)
        frontier = _deploy(totals, place, base, part.limit, inputs.targets)
        deployable[rule] = frontier._replace(threshold=levels[place])
        same_count, _ = _exact(ranking, totals, base, _at(totals.test, place))
        gaps[rule] = frontier.accuracy - same_count
        if with_shares:
            position = jnp.arange(score.shape[0], dtype=jnp.int32)[:, None, None]
            used[rule] = _times_used(ranking, part, (position < place[None]).astype(base.dtype))
    shares = (_times_used(ranking, part, share), used) if with_shares else ()
    return (exact, deployable, gaps), shares


def _cut(ranking: Ranking, ends: jax.Array, allowed: jax.Array) -> jax.Array:
    """Rows ahead of the cut: through the tie block of the last calibration row that fits."""
    fitting = _first_reaching(ends, allowed, "right")
    reached = jnp.where(fitting > 0, _at(ends, jnp.maximum(fitting - 1, 0)), 0)
    last = _first_reaching(ends, reached, "left")
    last = jnp.minimum(last, ends.shape[0] - 1)
    return jnp.where(reached > 0, ranking.end[last], 0)


def _exact(ranking: Ranking, totals: _Totals, base, count):
    """Accuracy with the best `count` test rows used; share of each row (n, splits, budgets)."""
    ends = totals.test[ranking.end]
    block = jnp.minimum(_first_reaching(ends, count, "left"), ends.shape[0] - 1)
    start, end = ranking.start[block], ranking.end[block]
    inside = _at(totals.test, end) - _at(totals.test, start)
    share = (count - _at(totals.test, start)) / jnp.where(inside > 0, inside, 1)
    gain = _at(totals.gain, start)
    gain = gain + share * (_at(totals.gain, end) - gain)
    num_test = totals.test[-1][:, None]
    accuracy = (base + gain) / jnp.where(num_test > 0, num_test, 1)
    position = jnp.arange(ranking.order.shape[0], dtype=jnp.int32)[:, None, None]
    within = jnp.where(position < end[None], share[None], 0)
    return accuracy, jnp.where(position < start[None], 1, within)


def _times_used(ranking: Ranking, part: _Part, used: jax.Array) -> jax.Array:
    """Sum over splits of used (n, splits, budgets), test rows only, back in row order."""
    summed = jnp.sum(part.test[ranking.order][:, :, None] * used, axis=1)
    return jnp.zeros_like(summed).at[ranking.order].set(summed)


def _deploy(totals: _Totals, place, base, limit, targets) -> DeployableFrontier:
    used, gain = _at(totals.test, place), _at(totals.gain, place)
    harmed, helped = _at(totals.harm, place), _at(totals.benefit, place)
    num_test = totals.test[-1][:, None]
    size = jnp.where(num_test > 0, num_test, 1)
    return DeployableFrontier(
        accuracy=(base + gain) / size,
        usage=used / size,
        transfer_error=used / size - targets[None],
        violated=used > limit,
        harm_all=harmed / size,
        harm_used=jnp.where(used > 0, harmed / jnp.where(used > 0, used, 1), jnp.nan),
        benefit_all=helped / size,
        missed=(totals.benefit[-1][:, None] - helped) / size,
        threshold=place.astype(base.dtype),
    )


def _intervals(shares, tested, inputs: _Inputs, plan, key, num_replicates: int, level):
    """Intervals of means over splits: sums over test rows are linear in the question weights."""
    utility = inputs.utility
    dtype = utility.dtype
    better = (utility > 0).astype(dtype)
    figures = {
        "accuracy": utility,
        "usage": jnp.ones_like(utility),
        "harm_all": (utility < 0).astype(dtype),
        "benefit_all": better,
    }

    def evaluate(weight):
        size = jnp.matmul(weight, tested, precision=HIGHEST)
        never = jnp.matmul(weight, tested * inputs.without, precision=HIGHEST) / size

        def mean(share, column):
            matrix = share * column[None, :, None]
            return jnp.einsum("n,rnk->rk", weight, matrix, precision=HIGHEST) / size

        exact = never + mean(shares[0], utility)
        helpful = jnp.matmul(weight, tested * better, precision=HIGHEST) / size
        rules = {}
        for rule, share in shares[1].items():
            found = {name: mean(share, column) for name, column in figures.items()}
            usage = found["usage"]
            found["accuracy"] = never + found["accuracy"]
            found["missed"] = helpful - found["benefit_all"]
            found["harm_used"] = jnp.where(
                usage > 0, found["harm_all"] / jnp.where(usage > 0, usage, 1), jnp.nan
            )
            rules[rule] = found
        return exact, rules

    def replicate(index):
        return evaluate(row_weights(plan, key, index).astype(dtype))

    batch = max(1, min(num_replicates, BLOCK // utility.shape[0]))
    indices = jnp.arange(num_replicates, dtype=jnp.int32)
    replicates = jax.lax.map(replicate, indices, batch_size=batch)
    estimate = evaluate(jnp.ones_like(utility))
    return jax.tree.map(lambda e, r: interval_of(e, r, level), estimate, replicates)


def violation_rate(violated: Any, *, confidence_level: float = 0.95) -> ViolationRate:
    """Violation rates with standard errors from violated (routers, splits, budgets) booleans.

    >>> rate = violation_rate(np.array([[[True], [False]], [[True], [False]]]))
    >>> print(rate.rate[:, 0], rate.overall, rate.overall_standard_error.round(4))
    [0.5 0.5] [0.5] [0.3536]
    """
    violated = jnp.asarray(violated)
    if violated.ndim != 3:
        raise input_error("violated.shape", violated.shape, "(routers, splits, budgets)")
    level = as_fraction("confidence_level", confidence_level)
    flags = violated.astype(jnp.float32)
    num_splits = flags.shape[1]
    rate, by_split = jnp.mean(flags, axis=1), jnp.mean(flags, axis=0)
    overall = jnp.mean(by_split, axis=0)
    spread = jnp.mean((by_split - overall[None]) ** 2, axis=0)
    error = jnp.sqrt(spread / num_splits)
    reach = NormalDist().inv_cdf(float(1 + level) / 2) * error if num_splits > 1 else jnp.nan
    return ViolationRate(
        rate=rate,
        standard_error=jnp.sqrt(rate * (1 - rate) / num_splits),
        overall=overall,
        overall_standard_error=error,
        overall_low=jnp.clip(overall - reach, 0, 1),
        overall_high=jnp.clip(overall + reach, 0, 1),
    )
