"""Checks shared by every metric: eager calls raise, traced calls turn the result into NaN."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from calibjax.errors import input_error


class Rule(NamedTuple):
    """What a column may hold; `holds` works on NumPy and on JAX arrays."""

    holds: Callable[[Any], Any]
    text: str


# NaN fails every comparison, so no rule needs a separate test for it.
SCORE = Rule(lambda x: x == x, "a number, not NaN")
PROBABILITY = Rule(lambda x: (x >= 0) & (x <= 1), "a number in [0, 1]")
LABEL = Rule(lambda x: (x >= 0) & (x <= 1), "a label in [0, 1]")
BINARY = Rule(lambda x: (x == 0) | (x == 1), "0 or 1")
WEIGHT = Rule(lambda x: (x >= 0) & (x < np.inf), "a finite weight of at least 0")
MASK = Rule(lambda x: (x == 0) | (x == 1), "a boolean")


class Rows(NamedTuple):
    """Checked columns of one call.

    Masked rows hold 0 in every column and have weight 0. `ok` is False when a traced column broke
    its rule; pass results through `mark`.
    """

    columns: tuple[jax.Array, ...]
    weight: jax.Array
    where: jax.Array
    ok: jax.Array

    def mark(self, value: jax.Array) -> jax.Array:
        """`value`, or NaN where the traced input was invalid."""
        return jnp.where(self.ok, value, jnp.nan)


def is_traced(*values: Any) -> bool:
    return any(isinstance(value, jax.core.Tracer) for value in values)


def float_dtype(*values: Any) -> Any:
    """float64 if any value is float64 (needs x64), else float32: never less than float32."""
    wide = any(jnp.asarray(value).dtype == jnp.float64 for value in values if value is not None)
    return jnp.float64 if wide else jnp.float32


def as_column(name: str, value: Any) -> Any:
    """`value` as a 1-D array of numbers, still on its own side (host or device)."""
    array = value if isinstance(value, jax.Array) else np.asarray(value)
    if array.dtype.kind in "OUSMmc":
        raise input_error(name, f"<{array.dtype} array>", "real numbers")
    if array.ndim != 1:
        raise input_error(f"{name}.shape", array.shape, "one dimension, one value a row")
    return array


def as_mask(name: str, value: Any) -> Any:
    array = as_column(name, value)
    if not is_traced(array):
        raise_first_fault(name, np.asarray(array), MASK, None)
    return array.astype(bool)


def raise_first_fault(name: str, values: np.ndarray, rule: Rule, where: np.ndarray | None) -> None:
    """Raise InputError for the first row that is in use and breaks `rule`."""
    bad = ~np.asarray(rule.holds(values), bool)
    if where is not None:
        bad &= where
    if bad.any():
        row = int(np.argmax(bad))
        raise input_error(f"{name}[row {row}]", values[row], rule.text, "mend or drop the row")


def check_lengths(columns: dict[str, Any]) -> int:
    lengths = {name: column.shape[0] for name, column in columns.items()}
    first, n = next(iter(lengths.items()))
    for name, length in lengths.items():
        if length != n:
            raise input_error(
                f"len({name})", length, f"{n} rows, as in {first}", "pass columns of equal length"
            )
    return n


def check_rows(weight: Any, where: Any, **columns: tuple[Any, Rule]) -> Rows:
    """Validate columns given as `name=(values, rule)`; scores keep their dtype.

    A column is checked on the host when it and the mask are concrete; otherwise inside the trace.
    """
    arrays = {name: as_column(name, value) for name, (value, _) in columns.items()}
    rules = {name: rule for name, (_, rule) in columns.items()}
    if weight is not None:
        arrays["weight"] = as_column("weight", weight)
        rules["weight"] = WEIGHT
    mask = None if where is None else as_mask("where", where)
    n = check_lengths(arrays if mask is None else {**arrays, "where": mask})
    if n == 0:
        # One masked row in place of none: every definition then ends in its own "no rows" case.
        arrays = {name: np.zeros(1, array.dtype) for name, array in arrays.items()}
        mask, n = np.zeros(1, bool), 1

    ok = jnp.asarray(True)
    for name, array in arrays.items():
        if is_traced(array) or is_traced(mask):
            holds = rules[name].holds(jnp.asarray(array))
            ok = ok & jnp.all(holds if mask is None else holds | ~jnp.asarray(mask))
        else:
            host_mask = None if mask is None else np.asarray(mask)
            raise_first_fault(name, np.asarray(array), rules[name], host_mask)
    return _assemble(arrays, rules, mask, ok, n)


def _assemble(arrays: dict, rules: dict, mask: Any, ok: jax.Array, n: int) -> Rows:
    dtype = float_dtype(*arrays.values())
    keep = None if mask is None else jnp.asarray(mask)
    cleaned = {}
    for name, array in arrays.items():
        column = jnp.asarray(array)
        if rules[name] not in (SCORE, PROBABILITY) or column.dtype == bool:
            column = column.astype(dtype)
        if rules[name] is PROBABILITY and not jnp.issubdtype(column.dtype, jnp.floating):
            column = column.astype(dtype)
        cleaned[name] = column if keep is None else jnp.where(keep, column, jnp.zeros_like(column))
    used = jnp.ones(n, bool) if keep is None else keep
    row_weight = cleaned.pop("weight", None)
    if row_weight is None:
        row_weight = used.astype(dtype)
    return Rows(tuple(cleaned.values()), row_weight, used, ok)
