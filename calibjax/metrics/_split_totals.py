"""One router on many splits at once: running totals over its sorted rows, two masks a split."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from calibjax.metrics._ranking import Ranking, rank_rows
from calibjax.metrics.deployable import DeployableFrontier

HIGHEST = jax.lax.Precision.HIGHEST


class Inputs(NamedTuple):
    """What all routers share: outcomes without evidence, gains by it (n,), target budgets."""

    without: jax.Array
    utility: jax.Array
    targets: jax.Array


class Part(NamedTuple):
    """Splits that are worked on together: masks (n, splits), counts (splits, budgets).

    limit: test rows that a budget allows; allowed: rule -> calibration rows that it lets through.

    Stacked with a leading axis of parts; the last part is filled up with splits without rows.
    """

    calibration: jax.Array
    test: jax.Array
    limit: jax.Array
    allowed: dict[str, jax.Array]


def all_splits(score, inputs: Inputs, parts: Part, with_shares: bool):
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


def _running_totals(ranking: Ranking, part: Part, utility: jax.Array) -> _Totals:
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


def _some_splits(ranking: Ranking, score, part: Part, inputs: Inputs, with_shares: bool):
    totals = _running_totals(ranking, part, inputs.utility)
    base = jnp.einsum("ns,n->s", part.test, inputs.without, precision=HIGHEST)[:, None]
    exact, share = _exact(ranking, totals, base, part.limit)
    levels = jnp.concatenate([jnp.full(1, jnp.inf, score.dtype), score[ranking.order]])
    deployable, used = {}, {}
    # _Totals at the end of each row's tie block, so that blocks are used whole or not at all.
    ends = totals.calibration[ranking.end]
    for rule, allowed in part.allowed.items():
        place = _cut(ranking, ends, allowed)
        frontier = _deploy(totals, place, base, part.limit, inputs.targets)
        deployable[rule] = frontier._replace(threshold=levels[place])
        if with_shares:
            position = jnp.arange(score.shape[0], dtype=jnp.int32)[:, None, None]
            used[rule] = _times_used(ranking, part, (position < place[None]).astype(base.dtype))
    shares = (_times_used(ranking, part, share), used) if with_shares else ()
    return (exact, deployable), shares


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


def _times_used(ranking: Ranking, part: Part, used: jax.Array) -> jax.Array:
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
