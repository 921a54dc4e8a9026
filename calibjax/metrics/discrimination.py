"""AUROC: the probability that a right row is scored above a wrong one."""

import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from calibjax.metrics._ranking import block_sum, rank_rows
from calibjax.metrics._validation import LABEL, SCORE, Rows, check_rows, is_traced


class AurocDetails(NamedTuple):
    """AUROC with the weight of each class and the number of rows in use."""

    auroc: jax.Array
    positive_weight: jax.Array
    negative_weight: jax.Array
    n_valid: jax.Array


@block_sum
def _pairs_won(above, right_above, inside, right_inside):
    """Each wrong row of a block loses to the right rows above it, and to half of its own block."""
    return (inside - right_inside) * (right_above + 0.5 * right_inside)


def auroc(score: Any, correct: Any, *, weight: Any = None, where: Any = None) -> jax.Array:
    """P(score of a right row > score of a wrong row) + half the ties, a scalar in [0, 1].

    score (n,) any real numbers, +-inf included: probabilities, logits, BM25 scores; correct (n,) in
    [0, 1], a soft label counts y as right and 1 - y as wrong; weight (n,) >= 0; where (n,) bool.
    Ties are decided by exact equality in the dtype of `score`. NaN (with a warning when eager) if
    one class is missing. Source: Mann-Whitney U with mid-ranks.

    >>> print(auroc([0.1, 0.4, 0.4, 0.8], [0, 0, 1, 1]))
    0.875
    """
    return auroc_details(score, correct, weight=weight, where=where).auroc


def auroc_details(
    score: Any, correct: Any, *, weight: Any = None, where: Any = None
) -> AurocDetails:
    """AUROC with the weight of each class and the number of rows."""
    rows = check_rows(weight, where, score=(score, SCORE), correct=(correct, LABEL))
    details = _auroc(rows)
    if not is_traced(details.auroc) and bool(jnp.isnan(details.auroc)):
        warnings.warn("auroc is undefined: only one class is present", RuntimeWarning, stacklevel=3)
    return details


@jax.jit
def _auroc(rows: Rows) -> AurocDetails:
    score, correct = rows.columns
    weight = rows.weight
    product = jnp.matmul(
        weight, jnp.stack([correct, 1 - correct], axis=1), precision=jax.lax.Precision.HIGHEST
    )
    positive, negative = product[0], product[1]
    won = _pairs_won(rank_rows(score), correct, weight)
    # One division after the other: the product of the two counts would lose digits.
    defined = (positive > 0) & (negative > 0)
    value = won / jnp.where(defined, positive, 1) / jnp.where(defined, negative, 1)
    value = rows.mark(jnp.where(defined, value, jnp.nan))
    return AurocDetails(value, positive, negative, jnp.sum(rows.where, dtype=jnp.int32))
