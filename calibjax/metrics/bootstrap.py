"""Percentile bootstrap of any metrics at once, paired, by reweighting rows that are sorted once."""

import functools
import inspect
import warnings
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from calibjax.errors import input_error
from calibjax.metrics._resampling import Plan, make_plan, row_weights
from calibjax.metrics._validation import SCORE, check_rows, float_dtype, is_traced

# Elements of one chunk of weights (rows x replicates): 128 MB in float32, a few copies alive at
# once.
CHUNK = 2**25
# Below this share of defined replicates the interval would describe a selected subset: NaN instead.
MIN_VALID = Fraction(9, 10)


class Interval(NamedTuple):
    """Estimate on all rows, percentile interval, and the number of defined replicates."""

    estimate: jax.Array
    low: jax.Array
    high: jax.Array
    n_valid: jax.Array


class BootstrapDetails(NamedTuple):
    """An interval and its replicates, (num_replicates,) + the shape of the estimate."""

    estimate: jax.Array
    low: jax.Array
    high: jax.Array
    n_valid: jax.Array
    replicates: jax.Array


def bootstrap(
    metrics: Mapping[str, Callable],
    arrays: Mapping[str, Any],
    *,
    key: jax.Array,
    num_replicates: int = 2000,
    confidence_level: float = 0.95,
    cluster: Any = None,
    stratify: Any = None,
    weight: Any = None,
    where: Any = None,
) -> dict[str, Interval]:
    """Percentile intervals of several metrics from the same resampled rows.

    metrics: name -> function, called as `fn(**arrays, weight=w)`; arrays: name -> array with one
    entry a row on its first axis. A metric returns a number or an array (for instance one entry a
    method); the fields of the result have its shape. key: `jax.random.key(seed)`; replicate b
    depends on (key, b) alone, so all metrics and methods are paired and 1000 replicates are the
    first 1000 of 2000; 0 gives the estimates alone, with NaN for the intervals. cluster (n,):
    labels of units that are drawn whole, such as the question; stratify (n,): labels within which
    rows are drawn. weight (n,): multiplies the draws; where (n,) bool.

    An undefined replicate (one class only) is dropped; `n_valid` counts the rest, and the interval
    is NaN when fewer than 90 % are defined. The interval describes the sampling of these rows: not
    training, nor the randomness of a judge; ECE is biased upwards in it.

    A function that takes no `weight`, or that cannot be traced, is called on gathered rows once for
    each replicate: slow, with a warning. Pass the same function objects again to reuse
    compilations.
    Source: Efron 1979.

    >>> y = jnp.arange(100.0)
    >>> mean = lambda y, weight: jnp.sum(weight * y) / jnp.sum(weight)
    >>> ci = bootstrap({"mean": mean}, {"y": y}, key=jax.random.key(0))["mean"]
    >>> print(ci.estimate, bool(43 < ci.low < 44.6), bool(54.4 < ci.high < 56))
    49.5 True True
    """
    details = bootstrap_details(
        metrics,
        arrays,
        key=key,
        num_replicates=num_replicates,
        confidence_level=confidence_level,
        cluster=cluster,
        stratify=stratify,
        weight=weight,
        where=where,
    )
    return {name: Interval(*value[:4]) for name, value in details.items()}


def bootstrap_details(
    metrics: Mapping[str, Callable],
    arrays: Mapping[str, Any],
    *,
    key: jax.Array,
    num_replicates: int = 2000,
    confidence_level: float = 0.95,
    cluster: Any = None,
    stratify: Any = None,
    weight: Any = None,
    where: Any = None,
) -> dict[str, BootstrapDetails]:
    """`bootstrap` with the replicates, for `paired_difference` and for plots."""
    level = _check(metrics, arrays, num_replicates, confidence_level)
    arrays = {name: _as_rows(name, array) for name, array in arrays.items()}
    n = _num_rows(arrays)
    plan = make_plan(n, cluster, stratify, where)
    base = _base_weight(n, weight, where, arrays)
    if where is not None:
        arrays = _fill_masked(arrays, where)
    traced = tuple((name, fn) for name, fn in metrics.items() if _traceable(fn, arrays, base))
    results = {}
    if traced:
        indices = np.arange(num_replicates, dtype=np.int32)
        on_device = {name: jnp.asarray(array) for name, array in arrays.items()}
        results = dict(_bootstrap(traced, level, on_device, base, plan, key, indices))
    for name in metrics.keys() - results.keys():
        estimate, replicates = _gathered(
            name, metrics[name], arrays, base, plan, key, num_replicates
        )
        results[name] = _interval(estimate, replicates, level)
    return {name: results[name] for name in metrics}


def _check(metrics, arrays, num_replicates, confidence_level) -> Fraction:
    if not metrics:
        raise input_error("metrics", dict(metrics), "at least one name and function")
    if not arrays:
        raise input_error("arrays", dict(arrays), "at least one named array")
    if not isinstance(num_replicates, (int, np.integer)) or num_replicates < 0:
        raise input_error("num_replicates", num_replicates, "a static integer of at least 0")
    level = Fraction(str(confidence_level))
    if not 0 < level < 1:
        raise input_error("confidence_level", confidence_level, "a number between 0 and 1")
    return level


def _as_rows(name: str, array: Any) -> Any:
    array = array if isinstance(array, jax.Array) else np.asarray(array)
    if array.ndim == 0:
        raise input_error(f"arrays[{name!r}]", array, "an array with one entry a row")
    return array


def _num_rows(arrays: Mapping[str, Any]) -> int:
    lengths = {name: array.shape[0] for name, array in arrays.items()}
    if len(set(lengths.values())) != 1:
        raise input_error("lengths of arrays", lengths, "the same number of rows in each")
    return next(iter(lengths.values()))


def _fill_masked(arrays: Mapping[str, Any], where: Any) -> dict[str, Any]:
    """Masked rows as copies of the first row in use: harmless to any function at weight 0."""
    xp = jnp if is_traced(where) else np
    mask = xp.asarray(where).astype(bool)
    index = xp.where(mask, xp.arange(mask.shape[0]), xp.argmax(mask))
    return {name: xp.asarray(array)[index] for name, array in arrays.items()}


def _base_weight(n: int, weight: Any, where: Any, arrays: Mapping[str, Any]) -> jax.Array:
    rows = check_rows(weight, where, rows=(np.zeros(n, bool), SCORE))
    return rows.weight.astype(float_dtype(rows.weight, *arrays.values()))


@functools.lru_cache(maxsize=256)
def _takes_weight(fn: Callable) -> bool:
    parameters = inspect.signature(fn).parameters.values()
    return any(p.name == "weight" or p.kind is p.VAR_KEYWORD for p in parameters)


def _traceable(fn: Callable, arrays: Mapping[str, Any], base: jax.Array) -> bool:
    """Whether `fn` takes a weight and runs inside a trace, as functions of NumPy alone do not."""
    if not _takes_weight(fn):
        return False
    try:
        _shape(fn, dict(arrays), base)
    except (jax.errors.TracerArrayConversionError, jax.errors.ConcretizationTypeError):
        return False
    return True


@functools.partial(jax.jit, static_argnums=0)
def call_metric(fn: Callable, arrays: dict, weight: jax.Array) -> jax.Array:
    return jnp.asarray(fn(**arrays, weight=weight))


def _shape(fn: Callable, arrays: dict, weight: jax.Array) -> None:
    call_metric.trace(fn, arrays, weight)  # cached by function and shapes, unlike jax.eval_shape


@functools.partial(jax.jit, static_argnums=(0, 1))
def _bootstrap(functions, level, arrays, base, plan: Plan, key, indices) -> dict:
    """One program: estimates, weights chunk by chunk, replicates and their quantiles."""
    count = indices.shape[0]
    estimates = {name: call_metric(fn, arrays, base) for name, fn in functions}
    if not count:
        return {
            name: _interval(value, jnp.zeros((0, *value.shape), value.dtype), level)
            for name, value in estimates.items()
        }
    # As many bytes in float64 as in float32.
    wanted = 4 * CHUNK // (base.dtype.itemsize * max(base.shape[0], 1))
    pieces = -(-count // max(1, wanted))
    # Equal pieces, a few replicates too many rather than a rest that is compiled once more.
    chunk = -(-count // pieces)
    padded = jnp.resize(indices, pieces * chunk)

    def evaluate(replicates):
        draws = jax.vmap(lambda b: row_weights(plan, key, b), out_axes=1)(replicates)
        weight_nB = draws.astype(base.dtype) * base[:, None]
        return jax.vmap(
            lambda w: {name: call_metric(fn, arrays, w) for name, fn in functions}, in_axes=1
        )(weight_nB)

    results = jax.lax.map(evaluate, padded.reshape(pieces, chunk))
    results = jax.tree.map(lambda x: x.reshape((-1,) + x.shape[2:])[:count], results)
    return {name: _interval(estimates[name], results[name], level) for name in estimates}


def _gathered(name, fn, arrays, base, plan, key, num_replicates):
    """Estimate and replicates of a function that only understands plain rows or NumPy weights."""
    warnings.warn(
        f"metric {name!r} takes no traced weight: called once for each replicate, which is slow",
        RuntimeWarning,
        stacklevel=4,
    )
    base, weighted = np.asarray(base), _takes_weight(fn)
    if not weighted and not np.isin(base, (0, 1)).all():
        raise input_error("weight", "<given>", f"no row weights, since {name!r} takes none")
    host = {column: np.asarray(array) for column, array in arrays.items()}

    def call(counts: np.ndarray) -> np.ndarray:
        if weighted:
            return np.asarray(fn(**host, weight=counts * base))
        rows = np.repeat(np.arange(counts.size), counts)
        return np.asarray(fn(**{column: array[rows] for column, array in host.items()}))

    draw = jax.jit(lambda b: row_weights(plan, key, b))
    replicates = [call(np.asarray(draw(b))) for b in range(num_replicates)]
    estimate = call((base > 0).astype(np.int64))
    drawn = np.array(replicates).reshape(-1, *estimate.shape)
    return jnp.asarray(estimate), jnp.asarray(drawn)


def percentile_interval(
    replicates: Any, *, confidence_level: float = 0.95
) -> tuple[jax.Array, jax.Array]:
    """Linear quantiles (1 -+ level) / 2 of the defined entries of the first axis.

    NaN entries are dropped; both ends are NaN when fewer than 90 % are defined.

    >>> low, high = percentile_interval(jnp.arange(1001.0), confidence_level=0.9)
    >>> print(low, high)
    50.0 950.0
    """
    low, high, _ = _quantiles(jnp.asarray(replicates), Fraction(str(confidence_level)))
    return low, high


@functools.partial(jax.jit, static_argnums=1)
def _quantiles(replicates: jax.Array, level: Fraction) -> tuple[jax.Array, ...]:
    if not replicates.shape[0]:
        shape = replicates.shape[1:]
        return jnp.full(shape, jnp.nan), jnp.full(shape, jnp.nan), jnp.zeros(shape, jnp.int32)
    if not jnp.issubdtype(replicates.dtype, jnp.floating):
        replicates = replicates.astype(jnp.float32)
    ordered = jnp.sort(replicates, axis=0)  # NaN last
    valid = jnp.sum(~jnp.isnan(replicates), axis=0, dtype=jnp.int32)

    def quantile(q: Fraction):
        # The position q (valid - 1), split exactly: a quantile that falls on a replicate is it.
        whole, rest = _exact_position(q, valid - 1, replicates.shape[0], replicates.dtype)
        lower = jnp.take_along_axis(ordered, whole[None], axis=0)[0]
        above = jnp.minimum(whole + 1, jnp.maximum(valid - 1, 0))
        upper = jnp.take_along_axis(ordered, above[None], axis=0)[0]
        # Equal neighbours stay equal, infinite ones too.
        return jnp.where(lower == upper, lower, lower + rest * (upper - lower))

    enough = valid >= -int(-MIN_VALID * replicates.shape[0] // 1)
    ends = (quantile((1 - level) / 2), quantile((1 + level) / 2))
    return tuple(jnp.where(enough, end, jnp.nan) for end in ends) + (valid,)


def _exact_position(q: Fraction, last: jax.Array, size: int, dtype) -> tuple[jax.Array, jax.Array]:
    """floor and remainder of q * last for last in 0..size-1, from a table made on the host."""
    products = [q * i for i in range(size)]
    floors = jnp.asarray(np.array([int(p) for p in products], np.int32))
    rests = jnp.asarray(np.array([float(p - int(p)) for p in products]), dtype)
    last = jnp.maximum(last, 0)
    return floors[last], rests[last]


def interval_of(estimate: jax.Array, replicates: jax.Array, level: Fraction) -> Interval:
    """Percentile interval from replicates on the first axis."""
    return Interval(estimate, *_quantiles(replicates, level))


def _interval(estimate: jax.Array, replicates: jax.Array, level: Fraction) -> BootstrapDetails:
    return BootstrapDetails(*interval_of(estimate, replicates, level), replicates)


def paired_difference(
    a: BootstrapDetails, b: BootstrapDetails, *, confidence_level: float = 0.95
) -> BootstrapDetails:
    """Interval of a - b from two `bootstrap_details` results of the same key, rows and clusters.

    Identical methods give exactly [0, 0]. The difference is significant at 1 - confidence_level
    when the interval leaves out 0.

    >>> mean = lambda y, weight: jnp.sum(weight * y) / jnp.sum(weight)
    >>> ci = bootstrap_details({"y": mean}, {"y": jnp.arange(9.0)}, key=jax.random.key(0))["y"]
    >>> difference = paired_difference(ci, ci)
    >>> print(difference.low, difference.high)
    0.0 0.0
    """
    if a.replicates.shape != b.replicates.shape:
        raise input_error(
            "b.replicates.shape", b.replicates.shape, f"{a.replicates.shape}, as in a"
        )
    level = Fraction(str(confidence_level))
    return _interval(a.estimate - b.estimate, a.replicates - b.replicates, level)
