"""Agreement of two judges of the same rows, for instance people and a surrogate user model."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from calibjax.errors import input_error
from calibjax.metrics._validation import PROBABILITY, SCORE, Rows, check_rows
from calibjax.metrics.calibration import HIGHEST, width_bins


class Agreement(NamedTuple):
    """Share of rows with the same verdict, Cohen's kappa, and both by confidence bin.

    kappa: NaN when chance agreement is 1 (both judges always say the same one thing). bin_* have
    one entry a bin, NaN for empty bins, and are empty without confidence.
    """

    rate: jax.Array
    kappa: jax.Array
    bin_weight: jax.Array
    bin_rate: jax.Array
    bin_kappa: jax.Array
    n_valid: jax.Array


def agreement(
    a: Any,
    b: Any,
    *,
    confidence: Any = None,
    num_bins: int = 5,
    weight: Any = None,
    where: Any = None,
) -> Agreement:
    """Agreement rate in [0, 1] and Cohen's kappa in [-1, 1] of two columns of verdicts.

    a, b (n,): verdicts as numbers, compared for equality (any number of classes; strings when
    eager); confidence (n,) in [0, 1]: the confidence shown, for the per-bin figures in equal-width
    bins; weight (n,) >= 0; where (n,) bool. NaN without rows. Source: Cohen 1960.

    >>> result = agreement([1, 1, 0, 0], [1, 0, 0, 0])
    >>> print(result.rate, result.kappa)
    0.75 0.5
    """
    if not isinstance(num_bins, (int, np.integer)) or num_bins < 1:
        raise input_error("num_bins", num_bins, "a static integer of at least 1")
    a, b = _as_codes(a, b)
    columns = {"a": (a, SCORE), "b": (b, SCORE)}
    if confidence is None:
        return _agreement(check_rows(weight, where, **columns), 0)
    columns["confidence"] = (confidence, PROBABILITY)
    return _agreement(check_rows(weight, where, **columns), int(num_bins))


agreement_details = agreement


def _as_codes(a: Any, b: Any) -> tuple[Any, Any]:
    """Strings as shared integer codes; numbers as they are."""
    kinds = {(x if hasattr(x, "dtype") else np.asarray(x)).dtype.kind for x in (a, b)}
    if not kinds & {"U", "S", "O"}:
        return a, b
    a, b = np.asarray(a, str), np.asarray(b, str)
    codes = np.unique(np.concatenate([a, b]), return_inverse=True)[1].astype(np.int32)
    return codes[: a.shape[0]], codes[a.shape[0] :]


@functools.partial(jax.jit, static_argnums=1)
def _agreement(rows: Rows, num_bins: int) -> Agreement:
    a, b = rows.columns[0], rows.columns[1]
    if a.dtype != b.dtype:
        a, b = a.astype(rows.weight.dtype), b.astype(rows.weight.dtype)
    same = (a == b).astype(rows.weight.dtype)
    codes = _class_codes(a, b)
    rate, kappa = _rate_and_kappa(rows.weight, same, codes)
    bins = jnp.zeros((0, a.shape[0]), rows.weight.dtype)
    if num_bins:
        index = width_bins(rows.columns[2], num_bins, "right")
        member = index[None] == jnp.arange(num_bins, dtype=jnp.int32)[:, None]
        bins = member.astype(rows.weight.dtype)
    bin_rate, bin_kappa = jax.vmap(lambda m: _rate_and_kappa(rows.weight * m, same, codes))(bins)
    return Agreement(
        rate=rows.mark(rate),
        kappa=rows.mark(kappa),
        bin_weight=jnp.matmul(bins, rows.weight, precision=HIGHEST),
        bin_rate=rows.mark(bin_rate),
        bin_kappa=rows.mark(bin_kappa),
        n_valid=jnp.sum(rows.where, dtype=jnp.int32),
    )


def _class_codes(a: jax.Array, b: jax.Array) -> jax.Array:
    """Class of each entry of a, then of b, as 0..2n-1; equal values share a class."""
    both = jnp.concatenate([a, b])
    order = jnp.argsort(both)
    ordered = both[order]
    step = (ordered[1:] != ordered[:-1]).astype(jnp.int32)
    step = jnp.concatenate([jnp.zeros(1, jnp.int32), step])
    return jnp.zeros(both.shape[0], jnp.int32).at[order].set(jnp.cumsum(step, dtype=jnp.int32))


def _rate_and_kappa(weight, same, codes) -> tuple[jax.Array, jax.Array]:
    n, total = same.shape[0], jnp.sum(weight)
    safe = jnp.where(total > 0, total, 1)
    share = weight / safe
    # Counts before the division: shares may add up to more than 1.
    rate = jnp.matmul(weight, same, precision=HIGHEST) / safe
    of_a = jax.ops.segment_sum(share, codes[:n], num_segments=2 * n)
    of_b = jax.ops.segment_sum(share, codes[n:], num_segments=2 * n)
    chance = jnp.matmul(of_a, of_b, precision=HIGHEST)
    # One class in all: chance agreement is 1, which rounding would hide.
    pairs, used = codes.reshape(2, n), (weight > 0)[None]
    highest, lowest = jnp.where(used, pairs, -1).max(), jnp.where(used, pairs, 2 * n).min()
    certain = highest == lowest
    kappa = (rate - chance) / jnp.where(certain, 1, 1 - chance)
    empty = total <= 0
    return (
        jnp.where(empty, jnp.nan, rate),
        jnp.where(empty | certain, jnp.nan, kappa),
    )
