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

    columns: tuple[Any, ...]
    weight: Any
    where: Any
    ok: Any

    def mark(self, value: jax.Array) -> jax.Array:
        """`value`, or NaN where the traced input was invalid."""
        return jnp.where(self.ok, value, jnp.nan)


def is_traced(*values: Any) -> bool:
    return any(isinstance(value, jax.core.Tracer) for value in values)


def float_dtype(*arrays: Any) -> Any:
    """float64 if any array is float64 (needs x64), else float32: never less than float32."""
    dtypes = (jax.dtypes.canonicalize_dtype(array.dtype) for array in arrays)
    return jnp.float64 if any(dtype == jnp.float64 for dtype in dtypes) else jnp.float32


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
    if is_traced(array):
        return array.astype(bool)
    raise_first_fault(name, np.asarray(array), MASK, None)
    return np.asarray(array).astype(bool)


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
    Concrete rows come back as NumPy arrays.
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
        mask = np.zeros(1, bool)

    ok: Any = np.asarray(True)
    for name, array in arrays.items():
        if is_traced(array, mask):
            column = jnp.asarray(array)
            if rules[name] is not SCORE and not jnp.issubdtype(column.dtype, jnp.floating):
                column = column.astype(jnp.float32)
            holds = rules[name].holds(column)
            ok = ok & jnp.all(holds if mask is None else holds | ~jnp.asarray(mask))
        else:
            raise_first_fault(name, np.asarray(array), rules[name], mask)
    # Concrete columns are prepared by NumPy: eager JAX compiles each small step anew per shape.
    xp = jnp if is_traced(mask, *arrays.values()) else np
    return _assemble(xp, {k: xp.asarray(v) for k, v in arrays.items()}, rules, mask, ok)


def _assemble(xp: Any, arrays: dict, rules: dict, mask: Any, ok: Any) -> Rows:
    dtype = float_dtype(*arrays.values())
    for name, column in arrays.items():
        is_float = jnp.issubdtype(column.dtype, jnp.floating)
        if rules[name] in (LABEL, BINARY, WEIGHT) or (rules[name] is PROBABILITY and not is_float):
            column = column.astype(dtype)
        if mask is not None:
            column = xp.where(xp.asarray(mask), column, xp.zeros_like(column))
        arrays[name] = column
    n = next(iter(arrays.values())).shape[0]
    used = xp.ones(n, bool) if mask is None else xp.asarray(mask)
    weight = arrays.pop("weight", None)
    weight = used.astype(dtype) if weight is None else weight
    return Rows(tuple(arrays.values()), weight, used, ok)


def total_weight(rows: Rows) -> Any:
    """Sum of the weights; a NumPy scalar for concrete rows."""
    return jnp.sum(rows.weight) if is_traced(rows.weight) else np.sum(rows.weight)
