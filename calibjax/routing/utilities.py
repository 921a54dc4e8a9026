"""What evidence does to an answer: helps, changes nothing, or harms; how much of it is noise."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from calibjax import metrics
from calibjax.errors import input_error


class Shares(NamedTuple):
    """Shares of rows that evidence makes worse, leaves as they are, makes better; mean utility.

    Each a `metrics.Interval` from resampled questions.
    """

    harmful: metrics.Interval
    neutral: metrics.Interval
    beneficial: metrics.Interval
    mean: metrics.Interval


def utility(correct_without: Any, correct_with: Any) -> Any:
    """u = correct_with - correct_without of each row: [n] in [-1, 1], {-1, 0, 1} for 0/1 outcomes.

    Raises InputError for outcomes outside [0, 1] and for arrays of different lengths; nothing is
    checked inside a JAX trace.

    >>> print(utility([0, 1, 1], [1, 0, 1]))
    [ 1. -1.  0.]
    """
    if any(isinstance(x, jax.core.Tracer) for x in (correct_without, correct_with)):
        return jnp.asarray(correct_with) - jnp.asarray(correct_without)
    without = outcomes("correct_without", correct_without)
    with_evidence = outcomes("correct_with", correct_with)
    if without.shape != with_evidence.shape:
        shapes = f"{without.shape}, {with_evidence.shape}"
        raise input_error("outcomes", shapes, "both outcomes of the same rows")
    return with_evidence - without


def outcomes(name: str, values: Any) -> np.ndarray:
    """Outcomes as float64 [n]. Raises InputError naming the first one outside [0, 1]."""
    column = np.asarray(values, np.float64)
    wrong = np.flatnonzero(~((column >= 0) & (column <= 1)))
    if column.ndim != 1 or wrong.size:
        shown = column.ravel()[wrong[0]] if wrong.size else f"shape {column.shape}"
        where = f" at row {wrong[0]}" if wrong.size else ""
        raise input_error(name, shown, f"outcomes in [0, 1], one a row{where}")
    return column


def shares(
    u: Any, *, seed: int = 0, num_replicates: int = 2000, cluster: Any = None
) -> Shares:
    """Shares of harmful, neutral and beneficial rows of utilities u [n], with intervals.

    cluster [n]: rows to resample together, such as those of one question.
    """
    u = np.asarray(u, np.float64)
    columns = {
        "harmful": u < 0,
        "neutral": u == 0,
        "beneficial": u > 0,
        "mean": u,
    }
    table = np.stack([column.astype(np.float32) for column in columns.values()], axis=1)
    found = metrics.bootstrap(
        {"shares": _weighted_mean},
        {"table": table},
        key=jax.random.key(seed),
        num_replicates=num_replicates,
        cluster=cluster,
    )["shares"]
    return Shares(*(metrics.Interval(*(np.asarray(x)[i] for x in found)) for i in range(4)))


def _weighted_mean(table, weight):
    total = jnp.matmul(weight, table, precision=jax.lax.Precision.HIGHEST)
    return total / jnp.sum(weight)
