"""Metrics of ranked lists: recall, full success, any correct, NDCG and reciprocal rank at k.

`relevant` (..., L) holds one list a query, best hit first, ties already in the retriever's order
(by document id). Results have the leading shape: a scalar for one list, (Q,) for a batch.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from calibjax.errors import input_error
from calibjax.metrics._validation import float_dtype, is_traced


class RankedDetails(NamedTuple):
    """A metric of ranked lists; hits in use and relevant ones per list."""

    value: jax.Array
    n_valid: jax.Array
    n_relevant: jax.Array


class Lists(NamedTuple):
    """Checked lists: gain (..., L) in rank order with removed hits closed up, 0 behind them."""

    gain: jax.Array
    length: jax.Array
    num_relevant: jax.Array
    ok: jax.Array


def _check_lists(relevant: Any, k: Any, weight: Any, where: Any, num_relevant: Any) -> Lists:
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or k < 1:
        raise input_error("k", k, "a static integer of at least 1")
    relevant = _as_lists("relevant", relevant, None)
    if not relevant.shape:
        raise input_error("relevant", relevant, "a list of hits, best first")
    shape = relevant.shape
    mask = jnp.ones(shape, bool) if where is None else _as_lists("where", where, shape).astype(bool)
    weight = np.ones(shape, bool) if weight is None else _as_lists("weight", weight, shape)
    dtype = float_dtype(*(a for a in (relevant, weight) if a.dtype.kind == "f"))
    ok = jnp.asarray(True)
    columns = []
    for name, values in (("relevant", relevant), ("weight", weight)):
        column = jnp.asarray(values).astype(dtype)
        holds = ((column >= 0) & (column < jnp.inf)) | ~mask
        if not is_traced(holds):
            _raise_first(name, np.asarray(values), np.asarray(holds))
        ok &= jnp.all(holds)
        columns.append(jnp.where(mask, column, 0))
    known = None if num_relevant is None else jnp.asarray(num_relevant).astype(dtype)
    return _close_up(columns[0], columns[1], jnp.asarray(mask), known, ok)


def _as_lists(name: str, value: Any, shape: tuple[int, ...] | None) -> Any:
    array = value if isinstance(value, jax.Array) else np.asarray(value)
    if array.dtype.kind in "OUSMmc":
        raise input_error(name, f"<{array.dtype} array>", "real numbers")
    if shape is not None and array.shape != shape:
        raise input_error(f"{name}.shape", array.shape, f"{shape}, as relevant")
    return array


def _raise_first(name: str, values: np.ndarray, holds: np.ndarray) -> None:
    if not holds.all():
        place = tuple(int(i) for i in np.argwhere(~holds)[0])
        raise input_error(f"{name}{list(place)}", values[place], "a finite number of at least 0")


@jax.jit
def _close_up(gain, weight, mask, known, ok) -> Lists:
    """Drop hits that are masked or of weight 0, as if the list had never held them."""
    used = mask & (weight > 0)
    order = jnp.argsort(~used, axis=-1, stable=True)
    gain = jnp.take_along_axis(jnp.where(used, gain * weight, 0), order, axis=-1)
    length = jnp.sum(used, axis=-1, dtype=jnp.int32)
    if known is None:
        known = jnp.sum(jnp.where(gain > 0, 1, 0), axis=-1).astype(gain.dtype)
    return Lists(gain, length, jnp.broadcast_to(known, length.shape), ok)


def _ranked(
    compute: Callable, relevant: Any, k: int, weight: Any, where: Any, num_relevant: Any = None
) -> RankedDetails:
    lists = _check_lists(relevant, k, weight, where, num_relevant)
    return _evaluate(compute, lists, int(k))


@functools.partial(jax.jit, static_argnums=(0, 2))
def _evaluate(compute: Callable, lists: Lists, k: int) -> RankedDetails:
    short = max(0, k - lists.gain.shape[-1])
    padding = [(0, 0)] * (lists.gain.ndim - 1) + [(0, short)]
    lists = lists._replace(gain=jnp.pad(lists.gain, padding))
    value = compute(lists, lists.gain[..., :k])
    defined = lists.ok & ((lists.length > 0) | (lists.num_relevant > 0))
    return RankedDetails(jnp.where(defined, value, jnp.nan), lists.length, lists.num_relevant)


def _found(top: jax.Array) -> jax.Array:
    return jnp.sum((top > 0).astype(top.dtype), axis=-1)


def _recall(lists: Lists, top: jax.Array) -> jax.Array:
    known = lists.num_relevant
    return jnp.where(known > 0, _found(top) / jnp.where(known > 0, known, 1), jnp.nan)


def _full_success(lists: Lists, top: jax.Array) -> jax.Array:
    known = lists.num_relevant
    return jnp.where(known > 0, (_found(top) >= known).astype(top.dtype), jnp.nan)


def _any_correct(lists: Lists, top: jax.Array) -> jax.Array:
    return jnp.any(top > 0, axis=-1).astype(top.dtype)


def _reciprocal_rank(lists: Lists, top: jax.Array) -> jax.Array:
    rank = 1 + jnp.argmax(top > 0, axis=-1).astype(top.dtype)
    return jnp.where(jnp.any(top > 0, axis=-1), 1 / rank, 0)


def _ndcg(lists: Lists, top: jax.Array) -> jax.Array:
    k = top.shape[-1]
    discount = jnp.asarray(1 / np.log2(np.arange(2, k + 2)), top.dtype)
    highest = jax.lax.Precision.HIGHEST
    gained = jnp.matmul(top, discount, precision=highest)
    best = jnp.sort(lists.gain, axis=-1, descending=True)[..., :k]
    # Relevant documents that the list missed count as gain 1 each, after those it holds.
    missing = lists.num_relevant - _found(lists.gain)
    place = jnp.broadcast_to(jnp.arange(k, dtype=top.dtype), best.shape)
    place = place - _found(lists.gain)[..., None]
    best = jnp.where((place >= 0) & (place < missing[..., None]), 1, best)
    best = jnp.sort(best, axis=-1, descending=True)
    ideal = jnp.matmul(best, discount, precision=highest)
    return jnp.where(ideal > 0, gained / jnp.where(ideal > 0, ideal, 1), jnp.nan)


def recall_at_k(
    relevant: Any, *, k: int, num_relevant: Any = None, weight: Any = None, where: Any = None
) -> jax.Array:
    """Share of the relevant documents among the first k hits, in [0, 1]; NaN if there are none.

    relevant (..., L) >= 0, best hit first, > 0 = relevant; k: static, may exceed L. where (..., L)
    bool: False removes the hit and closes the list up; weight (..., L) >= 0: multiplies the gain, 0
    removes the hit. num_relevant (...): relevant documents of the query, where the list may miss
    some; default: those in the list. NaN for an empty list without num_relevant.

    >>> print(recall_at_k([1, 0, 1, 0], k=2))
    0.5
    """
    return recall_at_k_details(
        relevant, k=k, num_relevant=num_relevant, weight=weight, where=where
    ).value


def recall_at_k_details(
    relevant: Any, *, k: int, num_relevant: Any = None, weight: Any = None, where: Any = None
) -> RankedDetails:
    """`recall_at_k` with the number of hits in use and of relevant documents."""
    return _ranked(_recall, relevant, k, weight, where, num_relevant)


def full_success_at_k(
    relevant: Any, *, k: int, num_relevant: Any = None, weight: Any = None, where: Any = None
) -> jax.Array:
    """1 if all relevant documents are among the first k hits, else 0; NaN if none is relevant.

    Arguments as `recall_at_k`.

    >>> print(full_success_at_k([1, 0, 1, 0], k=3), full_success_at_k([1, 0, 1, 0], k=2))
    1.0 0.0
    """
    return full_success_at_k_details(
        relevant, k=k, num_relevant=num_relevant, weight=weight, where=where
    ).value


def full_success_at_k_details(
    relevant: Any, *, k: int, num_relevant: Any = None, weight: Any = None, where: Any = None
) -> RankedDetails:
    """`full_success_at_k` with the number of hits in use and of relevant documents."""
    return _ranked(_full_success, relevant, k, weight, where, num_relevant)


def any_correct_at_k(
    relevant: Any, *, k: int, num_relevant: Any = None, weight: Any = None, where: Any = None
) -> jax.Array:
    """1 if any of the first k hits is relevant (or answers right), else 0.

    Arguments as `recall_at_k`.

    >>> print(any_correct_at_k([0, 0, 1], k=2), any_correct_at_k([0, 0, 1], k=3))
    0.0 1.0
    """
    return any_correct_at_k_details(
        relevant, k=k, num_relevant=num_relevant, weight=weight, where=where
    ).value


def any_correct_at_k_details(
    relevant: Any, *, k: int, num_relevant: Any = None, weight: Any = None, where: Any = None
) -> RankedDetails:
    """`any_correct_at_k` with the number of hits in use and of relevant documents."""
    return _ranked(_any_correct, relevant, k, weight, where, num_relevant)


def ndcg_at_k(
    relevant: Any, *, k: int, num_relevant: Any = None, weight: Any = None, where: Any = None
) -> jax.Array:
    """Normalised discounted cumulative gain of the first k hits, in [0, 1].

    Arguments as `recall_at_k`. Linear gains, discount 1 / log2(1 + rank); the ideal list holds the
    gains of this list and gain 1 for every document of num_relevant that it missed.
    Source: Jarvelin and Kekalainen 2002.

    >>> print(f"{ndcg_at_k([0, 1, 1], k=3):.4f}")
    0.6934
    """
    return ndcg_at_k_details(
        relevant, k=k, num_relevant=num_relevant, weight=weight, where=where
    ).value


def ndcg_at_k_details(
    relevant: Any, *, k: int, num_relevant: Any = None, weight: Any = None, where: Any = None
) -> RankedDetails:
    """`ndcg_at_k` with the number of hits in use and of relevant documents."""
    return _ranked(_ndcg, relevant, k, weight, where, num_relevant)


def reciprocal_rank(
    relevant: Any, *, k: int, num_relevant: Any = None, weight: Any = None, where: Any = None
) -> jax.Array:
    """1 / rank of the first relevant hit among the first k, 0 if there is none.

    Arguments as `recall_at_k`.

    >>> print(reciprocal_rank([0, 1, 1], k=3))
    0.5
    """
    return reciprocal_rank_details(
        relevant, k=k, num_relevant=num_relevant, weight=weight, where=where
    ).value


def reciprocal_rank_details(
    relevant: Any, *, k: int, num_relevant: Any = None, weight: Any = None, where: Any = None
) -> RankedDetails:
    """`reciprocal_rank` with the number of hits in use and of relevant documents."""
    return _ranked(_reciprocal_rank, relevant, k, weight, where, num_relevant)
