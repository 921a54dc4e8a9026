"""Exact counts from decimal fractions, on the host: floor(rho n) of the literal as written.

Floating point gives floor(0.29 * 200) = 57 and ceil(0.3 * 40) = 13; the answers are 58 and 12.
"""

import functools
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from calibjax.errors import input_error
from calibjax.metrics._validation import is_traced

# Tables over whole counts reach this many times the number of rows, since a traced total weight may
# exceed it; concrete totals need no table.
REACH = 4

Decimalish = Any  # a float, int, str, Decimal, Fraction or NumPy scalar


def as_fraction(name: str, value: Decimalish, low: int = 0, high: int = 1) -> Fraction:
    """The decimal literal of `value` in [low, high] (`str`: NumPy scalars print their own form)."""
    if is_traced(value) or isinstance(value, jax.Array):
        raise input_error(
            name, value, "a static Python number", "pass it as a float, outside jit arguments"
        )
    try:
        fraction = value if isinstance(value, Fraction) else Fraction(str(value))
    except ValueError:
        raise input_error(name, value, f"a number in [{low}, {high}]") from None
    if not low <= fraction <= high:
        raise input_error(name, value, f"a number in [{low}, {high}]")
    return fraction


def as_fractions(name: str, values: Decimalish | Sequence[Decimalish]) -> tuple[Fraction, ...]:
    """One fraction, or one for each entry of a sequence or 1-D array."""
    return tuple(as_fraction(name, v) for v in (values if is_sequence(values) else [values]))


def is_sequence(values: Any) -> bool:
    return isinstance(values, (Sequence, np.ndarray)) and not isinstance(values, str)


def kfloor(rho: Decimalish, n: int) -> int:
    """floor(rho n), exactly.

    >>> kfloor(0.29, 200), int(0.29 * 200)
    (58, 57)
    """
    return int(as_fraction("rho", rho) * int(n))


def kceil(rho: Decimalish, n: int) -> int:
    """ceil(rho n), exactly."""
    product = as_fraction("rho", rho) * int(n)
    return -int(-product // 1)


@functools.lru_cache(maxsize=64)
def floor_table(rho: Fraction, n_max: int) -> np.ndarray:
    """int32 floor(rho n) for n = 0..n_max, for counts that are only known inside a trace."""
    p, q = rho.numerator, rho.denominator
    if p * n_max < 2**63 and q < 2**63:
        table = np.arange(n_max + 1, dtype=np.int64) * p // q
    else:
        table = np.array([p * n // q for n in range(n_max + 1)])
    table = table.astype(np.int32)
    table.setflags(write=False)
    return table


def floor_counts(rhos: tuple[Fraction, ...], total: Any, n: int) -> Any:
    """floor(rho * total) of a scalar total for each rho, (len(rhos),) in the dtype of `total`.

    Exact for concrete totals and for traced whole totals up to REACH n; a larger or fractional
    traced total is multiplied in floating point and nudged up by two rounding errors first.
    """
    if not is_traced(total):
        exact = Fraction(float(total))
        return np.array([int(rho * exact) for rho in rhos], total.dtype)
    n_max = REACH * n
    table = jnp.asarray(np.stack([floor_table(rho, n_max) for rho in rhos]))
    whole = (total == jnp.round(total)) & (total <= n_max)
    index = jnp.clip(total, 0, n_max).astype(jnp.int32)
    looked_up = jnp.take(table, index, axis=1).astype(total.dtype)
    nudge = 1 + 2 * jnp.finfo(total.dtype).eps
    rough = jnp.stack([jnp.floor(total * (float(rho) * nudge)) for rho in rhos])
    return jnp.where(whole[None], looked_up, rough)
