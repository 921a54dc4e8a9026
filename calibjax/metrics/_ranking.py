"""Sort once: tie blocks of a ranking, and sums over them that stay fast under many weightings.

A rank metric of weighted rows is a sum over tie blocks of an elementwise function of four numbers:
the weight and the right-answer weight above the block, and the same two inside it. The bootstrap
evaluates such sums for thousands of weightings of the same ranking, so the sum has two forms:
prefix sums for one weighting, and one pass over the rows with all weightings side by side for many.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

Area = Callable[[jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]


class Ranking(NamedTuple):
    """Rows from best to worst and the tie block of each position.

    order: row at each position; start: first position of the block; end: first position after it.
    """

    order: jax.Array
    start: jax.Array
    end: jax.Array


def rank_rows(score: jax.Array) -> Ranking:
    """Ranking of `score` (n,), highest first; exactly equal scores share a block."""
    n = score.shape[0]
    order = jnp.argsort(score, descending=True, stable=True).astype(jnp.int32)
    ordered = score[order]
    position = jnp.arange(n, dtype=jnp.int32)
    edge = ordered[1:] != ordered[:-1]
    first = jnp.concatenate([jnp.ones(min(n, 1), bool), edge])
    last = jnp.concatenate([edge, jnp.ones(min(n, 1), bool)])
    start = jax.lax.cummax(jnp.where(first, position, 0))
    end = jax.lax.cummin(jnp.where(last, position + 1, n), reverse=True)
    return Ranking(order, start, end)


def before(total: jax.Array, position: jax.Array) -> jax.Array:
    """Sum of the entries ahead of `position`, from running totals (n,)."""
    padded = jnp.concatenate([jnp.zeros(1, total.dtype), total])
    return padded[position]


def _prefix_form(area: Area, ranking: Ranking, right: jax.Array, weight: jax.Array) -> jax.Array:
    weight, right = weight[ranking.order], right[ranking.order]
    totals, rights = jnp.cumsum(weight), jnp.cumsum(weight * right)
    above, right_above = before(totals, ranking.start), before(rights, ranking.start)
    inside = before(totals, ranking.end) - above
    right_inside = before(rights, ranking.end) - right_above
    last = jnp.arange(weight.shape[0], dtype=jnp.int32) + 1 == ranking.end
    return jnp.sum(jnp.where(last, area(above, right_above, inside, right_inside), 0))


def _scan_form(area: Area, ranking: Ranking, right: jax.Array, weight_nB: jax.Array) -> jax.Array:
    """The same for `weight_nB` (n, B) in one pass over rows, B weightings abreast."""
    n, width = weight_nB.shape

    def close(carry):
        above, right_above, inside, right_inside, total, lost = carry
        term = area(above, right_above, inside, right_inside) - lost
        new_total = total + term
        # Compensated: tens of thousands of float32 terms would otherwise lose digits one by one.
        lost = (new_total - total) - term if n > 2**14 else lost
        zero = jnp.zeros_like(inside)
        return above + inside, right_above + right_inside, zero, zero, new_total, lost

    def step(carry, row):
        above, right_above, inside, right_inside, total, lost = carry
        index, right, last = row
        # Sliced here and not gathered beforehand: no second copy of the weights is written.
        weight = jax.lax.dynamic_index_in_dim(weight_nB, index, 0, keepdims=False)
        carry = (above, right_above, inside + weight, right_inside + weight * right, total, lost)
        return jax.lax.cond(last, close, lambda unchanged: unchanged, carry), None

    last = jnp.arange(n, dtype=jnp.int32) + 1 == ranking.end
    zero = jnp.zeros(width, weight_nB.dtype)
    carry, _ = jax.lax.scan(step, (zero,) * 6, (ranking.order, right[ranking.order], last))
    return carry[4]


def block_sum(area: Area) -> Callable[[Ranking, jax.Array, jax.Array], jax.Array]:
    """Turn `area(above, right_above, inside, right_inside)` into a sum over tie blocks.

    The returned function takes (ranking, right (n,), weight (n,)) and returns a scalar. Under
    `vmap` over the weights alone it makes one pass for all of them; under `vmap` over rankings it
    maps one ranking at a time, so memory stays that of a single ranking.
    """

    @jax.custom_batching.custom_vmap
    def total(ranking: Ranking, right: jax.Array, weight: jax.Array) -> jax.Array:
        return _prefix_form(area, ranking, right, weight)

    @total.def_vmap
    def _rule(axis_size, in_batched, ranking, right, weight):
        ranking_batched, right_batched, weight_batched = in_batched
        if not (right_batched or any(ranking_batched)):
            return _scan_form(area, ranking, right, weight.T), True
        batched = jax.tree.leaves((ranking, right, weight))
        flags = jax.tree.leaves((ranking_batched, right_batched, weight_batched))
        mapped = [leaf for leaf, flag in zip(batched, flags) if flag]

        def one(leaves):
            moving = iter(leaves)
            row = [next(moving) if flag else leaf for leaf, flag in zip(batched, flags)]
            return total(Ranking(*row[:3]), row[3], row[4])

        return jax.lax.map(one, mapped), True

    return total


def count_lookup(ranking: Ranking, right: jax.Array, weight: jax.Array, count: jax.Array):
    """Right-answer weight expected among the best `count` units of weight, ties averaged.

    count: any shape, 0 to the total weight. Linear inside a tie block.
    """
    weight, right = weight[ranking.order], right[ranking.order]
    totals, rights = jnp.cumsum(weight), jnp.cumsum(weight * right)
    ends = before(totals, ranking.end)
    position = jnp.searchsorted(ends, count, side="left")
    position = jnp.minimum(position, weight.shape[0] - 1)
    above, right_above = before(totals, ranking.start), before(rights, ranking.start)
    inside = jnp.maximum(ends - above, jnp.finfo(ends.dtype).tiny)[position]
    right_inside = (before(rights, ranking.end) - right_above)[position]
    return right_above[position] + right_inside * ((count - above[position]) / inside)


def last_true(flags: jax.Array) -> jax.Array:
    """1 + index of the last True, 0 for none."""
    return jnp.max(jnp.where(flags, jnp.arange(1, flags.shape[0] + 1, dtype=jnp.int32), 0))
