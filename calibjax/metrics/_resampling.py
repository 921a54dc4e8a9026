"""Bootstrap weights: how often each row is drawn, replicate by replicate."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from calibjax.errors import input_error
from calibjax.metrics._validation import as_column, as_mask, check_lengths, raise_first_fault


class Plan(NamedTuple):
    """Who is drawn in place of whom.

    Units are rows, or clusters of rows. Unit j stands at position j; its draw comes uniformly from
    the `size[j]` units that start at `offset[j]` (its stratum). unit_of_row: unit of each row, or
    `num_units` for rows that are never drawn.
    """

    offset: np.ndarray
    size: np.ndarray
    unit_of_row: np.ndarray

    @property
    def num_units(self) -> int:
        return self.offset.shape[0]


def make_plan(n: int, cluster: Any = None, stratify: Any = None, where: Any = None) -> Plan:
    """Plan for `n` rows; cluster and stratify are (n,) labels of any kind, where (n,) bool."""
    labels = {"cluster": cluster, "stratify": stratify}
    given = {k: _label_column(k, v) for k, v in labels.items() if v is not None}
    used = np.ones(n, bool) if where is None else np.asarray(as_mask("where", where))
    check_lengths({"arrays": np.empty(n), "where": used, **given})
    rows = np.flatnonzero(used)
    unit = _dense(given["cluster"][rows]) if cluster is not None else np.arange(rows.size)
    num_units = int(unit.max()) + 1 if rows.size else 0
    stratum = np.zeros(num_units, np.int64)
    if stratify is not None:
        of_row = _dense(given["stratify"][rows])
        stratum[unit] = of_row
        _check_nested(stratum[unit] == of_row, rows)
    order = np.argsort(stratum, kind="stable")
    position = np.empty(num_units, np.int64)
    position[order] = np.arange(num_units)
    counts = np.bincount(stratum) if num_units else np.zeros(0, np.int64)
    starts = np.cumsum(counts) - counts
    unit_of_row = np.full(n, num_units)
    unit_of_row[rows] = position[unit]
    ordered = stratum[order]
    return Plan(*(a.astype(np.int32) for a in (starts[ordered], counts[ordered], unit_of_row)))


def _label_column(name: str, value: Any) -> np.ndarray:
    array = np.asarray(value)
    if array.ndim != 1:
        raise input_error(f"{name}.shape", array.shape, "one dimension, one label a row")
    return array


def _dense(labels: np.ndarray) -> np.ndarray:
    """Labels as 0, 1, ... in order of first appearance."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse]


def _check_nested(same: np.ndarray, rows: np.ndarray) -> None:
    if not same.all():
        row = int(rows[np.argmin(same)])
        raise input_error(
            f"stratify[row {row}]", "<differs>", "one stratum for all rows of a cluster"
        )


def row_weights(plan: Plan, key: jax.Array, replicate: jax.Array) -> jax.Array:
    """How often each row (n,) int32 is drawn in `replicate`: a function of the arguments alone."""
    bits = jax.random.bits(jax.random.fold_in(key, replicate), (plan.num_units,), jnp.uint32)
    drawn = plan.offset + scale_bits(bits, jnp.asarray(plan.size).astype(jnp.uint32))
    # The extra slot is the unit of rows that are never drawn.
    counts = jnp.zeros(plan.num_units + 1, jnp.int32).at[drawn].add(1)
    if plan.unit_of_row.shape[0] == plan.num_units and np.array_equal(
        plan.unit_of_row, np.arange(plan.num_units)
    ):
        return counts[:-1]
    return counts[plan.unit_of_row]


def scale_bits(bits: jax.Array, size: jax.Array) -> jax.Array:
    """floor(bits * size / 2^32): random bits to an index below `size`, without 64-bit integers."""
    half, mask = jnp.uint32(16), jnp.uint32(0xFFFF)
    high, low = bits >> half, bits & mask
    size_high, size_low = size >> half, size & mask
    middle = high * size_low + ((low * size_low) >> half)
    carry = (middle >> half) + (((middle & mask) + low * size_high) >> half)
    return (high * size_high + carry).astype(jnp.int32)
