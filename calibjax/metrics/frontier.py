"""Accuracy against a usage budget: exact, deployable, oracle and random frontiers.

Each row has an outcome without evidence and one with it; a router's score says which rows to give
evidence first. u = with - without is a row's utility.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from calibjax.metrics._counts import as_fractions, floor_counts, is_sequence
from calibjax.metrics._ranking import count_lookup, rank_rows
from calibjax.metrics._validation import LABEL, SCORE, Rows, check_rows, total_weight

HIGHEST = jax.lax.Precision.HIGHEST


class FrontierDetails(NamedTuple):
    """Accuracy per budget, the rows used for it, and their share."""

    accuracy: jax.Array
    used: jax.Array
    usage: jax.Array
    n_valid: jax.Array


def outcome_rows(weight, where, correct_without, correct_with, **extra) -> Rows:
    return check_rows(
        weight,
        where,
        correct_without=(correct_without, LABEL),
        correct_with=(correct_with, LABEL),
        **extra,
    )


def exact_frontier(
    score: Any,
    correct_without: Any,
    correct_with: Any,
    budgets: float | Sequence[float],
    *,
    weight: Any = None,
    where: Any = None,
) -> jax.Array:
    """Accuracy when exactly the floor(budget n) best-scored rows get evidence, one a budget.

    score (n,) real, higher = first; correct_without, correct_with (n,) in [0, 1]; budgets: static
    numbers in [0, 1]; weight (n,) >= 0; where (n,) bool. Ties take their expectation. Budget 0
    gives the accuracy without evidence, budget 1 with it. Judges the ranking; not deployable, since
    the cut looks at the very rows it is judged on. NaN without rows.

    >>> print(exact_frontier([0.9, 0.8, 0.7, 0.6], [0, 1, 0, 0], [1, 0, 1, 0], [0.0, 0.5, 1.0]))
    [0.25 0.25 0.5 ]
    """
    return exact_frontier_details(
        score, correct_without, correct_with, budgets, weight=weight, where=where
    ).accuracy


def exact_frontier_details(
    score: Any,
    correct_without: Any,
    correct_with: Any,
    budgets: float | Sequence[float],
    *,
    weight: Any = None,
    where: Any = None,
) -> FrontierDetails:
    """The exact frontier with the rows used at each budget."""
    rows = outcome_rows(weight, where, correct_without, correct_with, score=(score, SCORE))
    return _top_frontier(rows, rows.columns[2], budgets)


def _top_frontier(rows: Rows, score: jax.Array, budgets: Any, free: bool = False):
    count = floor_counts(as_fractions("budgets", budgets), total_weight(rows), num_rows(rows))
    details = _top(rows, score, count, free)
    if not is_sequence(budgets):
        return jax.tree.map(lambda x: x[0] if x.ndim else x, details)
    return details


def num_rows(rows: Rows) -> int:
    return rows.weight.shape[0]


@functools.partial(jax.jit, static_argnums=3)
def _top(rows: Rows, score: jax.Array, count: jax.Array, free: bool) -> FrontierDetails:
    utility = rows.columns[1] - rows.columns[0]
    if free:  # as many of the best rows as help, up to the count
        useful = jnp.matmul(rows.weight, (utility > 0).astype(rows.weight.dtype))
        count = jnp.minimum(count, useful)
    total = jnp.sum(rows.weight)
    gained = count_lookup(rank_rows(score), utility, rows.weight, count)
    safe = jnp.where(total > 0, total, 1)
    accuracy = (jnp.matmul(rows.weight, rows.columns[0], precision=HIGHEST) + gained) / safe
    return FrontierDetails(
        accuracy=rows.mark(jnp.where(total > 0, accuracy, jnp.nan)),
        used=count,
        usage=rows.mark(jnp.where(total > 0, count / safe, jnp.nan)),
        n_valid=jnp.sum(rows.where, dtype=jnp.int32),
    )


def oracle_frontier(
    correct_without: Any,
    correct_with: Any,
    budgets: float | Sequence[float],
    *,
    free: bool = False,
    weight: Any = None,
    where: Any = None,
) -> jax.Array:
    """Accuracy when rows get evidence in the order of their true utility, one a budget.

    Shapes as `exact_frontier`. free=True may use fewer rows than the budget allows, so rows that
    evidence harms are never used.

    >>> print(oracle_frontier([0, 1, 0, 0], [1, 0, 1, 0], [0.0, 0.5, 1.0]))
    [0.25 0.75 0.5 ]
    """
    return oracle_frontier_details(
        correct_without, correct_with, budgets, free=free, weight=weight, where=where
    ).accuracy


def oracle_frontier_details(
    correct_without: Any,
    correct_with: Any,
    budgets: float | Sequence[float],
    *,
    free: bool = False,
    weight: Any = None,
    where: Any = None,
) -> FrontierDetails:
    """The oracle frontier with the rows used at each budget."""
    rows = outcome_rows(weight, where, correct_without, correct_with)
    return _top_frontier(rows, rows.columns[1] - rows.columns[0], budgets, free)


def random_frontier(
    correct_without: Any,
    correct_with: Any,
    budgets: float | Sequence[float],
    *,
    weight: Any = None,
    where: Any = None,
) -> jax.Array:
    """Expected accuracy when floor(budget n) rows drawn at random get evidence, one a budget.

    >>> print(random_frontier([0, 1, 0, 0], [1, 0, 1, 0], [0.0, 0.5, 1.0]))
    [0.25  0.375 0.5  ]
    """
    return random_frontier_details(
        correct_without, correct_with, budgets, weight=weight, where=where
    ).accuracy


def random_frontier_details(
    correct_without: Any,
    correct_with: Any,
    budgets: float | Sequence[float],
    *,
    weight: Any = None,
    where: Any = None,
) -> FrontierDetails:
    """The random line with the rows used at each budget."""
    rows = outcome_rows(weight, where, correct_without, correct_with)
    # All scores tied: the expectation over tie orders is the random line.
    return _top_frontier(rows, 0 * rows.weight, budgets)
