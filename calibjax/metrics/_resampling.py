"""Bootstrap weights: how often each row is drawn, replicate by replicate."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from calibjax.errors import input_error
from calibjax.metrics._validation import as_mask, check_lengths, is_traced


class Plan(NamedTuple):
    """Who is drawn in place of whom.

    Units are rows, or clusters of rows. The draw of position j comes uniformly from the `size[j]`
    units that start at `offset[j]` (its stratum); size 0 draws nobody. unit_of_row: unit of each
    row, `len(offset)` for rows that are never drawn; None when the units are the rows.
    """

    offset: Any
    size: Any
    unit_of_row: Any


def make_plan(n: int, cluster: Any = None, stratify: Any = None, where: Any = None) -> Plan:
    """Plan for `n` rows; cluster and stratify are (n,) labels of any kind, where (n,) bool.

    A mask may be traced, labels may not.
    """
    labels = {"cluster": cluster, "stratify": stratify}
    given = {k: _label_column(k, v) for k, v in labels.items() if v is not None}
    used = None if where is None else as_mask("where", where)
    columns = given if used is None else {**given, "where": used}
    check_lengths({"arrays": np.empty(n), **columns})
    if not given:
        return _plan_of_rows(n, used)
    if is_traced(used):
        raise input_error("where", "<traced>", "a concrete mask beside cluster or stratify")
    rows = np.arange(n) if used is None else np.flatnonzero(np.asarray(used))
    unit = dense_labels(given["cluster"][rows]) if cluster is not None else np.arange(rows.size)
    num_units = int(unit.max()) + 1 if rows.size else 0
    stratum = np.zeros(num_units, np.int64)
    if stratify is not None:
        of_row = dense_labels(given["stratify"][rows])
        stratum[unit] = of_row
        _check_nested(stratum[unit] == of_row, rows)
    order = np.argsort(stratum, kind="stable")
    position = np.empty(num_units, np.int64)
    position[order] = np.arange(num_units)
    counts = np.bincount(stratum, minlength=1)
    starts = np.cumsum(counts) - counts
    unit_of_row = np.full(n, num_units)
    unit_of_row[rows] = position[unit]
    ordered = stratum[order]
    return Plan(*(a.astype(np.int32) for a in (starts[ordered], counts[ordered], unit_of_row)))


def _plan_of_rows(n: int, used: Any) -> Plan:
    """Rows drawn among those in use, as if the others had never been there."""
    if used is None:
        return Plan(np.zeros(n, np.int32), np.full(n, n, np.int32), None)
    used = jnp.asarray(used)
    count = jnp.sum(used, dtype=jnp.int32)
    position = jnp.cumsum(used, dtype=jnp.int32) - 1
    size = jnp.where(jnp.arange(n, dtype=jnp.int32) < count, count, 0)
    return Plan(jnp.zeros(n, jnp.int32), size, jnp.where(used, position, n))


def _label_column(name: str, value: Any) -> np.ndarray:
    array = np.asarray(value)
    if array.ndim != 1:
        raise input_error(f"{name}.shape", array.shape, "one dimension, one label a row")
    return array


def dense_labels(labels: np.ndarray) -> np.ndarray:
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
    num_units = plan.offset.shape[0]
    bits = jax.random.bits(jax.random.fold_in(key, replicate), (num_units,), jnp.uint32)
    drawn = plan.offset + scale_bits(bits, jnp.asarray(plan.size).astype(jnp.uint32))
    once = jnp.minimum(jnp.asarray(plan.size), 1)
    # The extra slot is the unit of rows that are never drawn.
    counts = jnp.zeros(num_units + 1, jnp.int32).at[drawn].add(once)
    return counts[:-1] if plan.unit_of_row is None else counts[plan.unit_of_row]


def scale_bits(bits: jax.Array, size: jax.Array) -> jax.Array:
    """floor(bits * size / 2^32): random bits to an index below `size`, without 64-bit integers."""
    half, mask = jnp.uint32(16), jnp.uint32(0xFFFF)
    high, low = bits >> half, bits & mask
    size_high, size_low = size >> half, size & mask
    middle = high * size_low + ((low * size_low) >> half)
    carry = (middle >> half) + (((middle & mask) + low * size_high) >> half)
    return (high * size_high + carry).astype(jnp.int32)
