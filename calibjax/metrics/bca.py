"""Bias-corrected and accelerated intervals from the replicates of a percentile bootstrap."""

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from calibjax.errors import input_error
from calibjax.metrics._validation import is_traced
from calibjax.metrics.bootstrap import CHUNK, BootstrapDetails, call_metric


class BcaInterval(NamedTuple):
    """A BCa interval; where `is_bca` is False it is undefined and the percentile one stands."""

    low: jax.Array
    high: jax.Array
    is_bca: jax.Array


def bca_interval(
    metric: Callable,
    arrays: Mapping[str, Any],
    result: BootstrapDetails,
    *,
    confidence_level: float = 0.95,
) -> BcaInterval:
    """BCa interval of a `bootstrap_details` result over independent rows; eager only.

    metric, arrays: as given to `bootstrap_details`, without clusters, strata, weights or mask.
    Takes n leave-one-out values of the metric. Falls back to the percentile interval where all
    replicates or all leave-one-out values are equal, or some are undefined. Source: Efron 1987.

    >>> from calibjax.metrics import bootstrap_details
    >>> mean = lambda y, weight: jnp.sum(weight * y) / jnp.sum(weight)
    >>> arrays = {"y": jnp.full(20, 10000.0)}
    >>> result = bootstrap_details({"mean": mean}, arrays, key=jax.random.key(0))["mean"]
    >>> interval = bca_interval(mean, arrays, result)
    >>> print(interval.low, interval.high, interval.is_bca)
    10000.0 10000.0 False
    """
    # Imported here: scipy.stats takes as long to import as JAX, and few calls need it.
    from scipy import stats

    if is_traced(*result):
        raise input_error("result", "<traced>", "concrete replicates: BCa is eager only")
    if result.estimate.ndim:
        raise input_error("result.estimate.shape", result.estimate.shape, "() : one number")
    replicates = np.asarray(result.replicates, np.float64)
    jackknife = _leave_one_out(metric, arrays)
    percentile = BcaInterval(result.low, result.high, jnp.asarray(False))
    if not (np.isfinite(replicates).all() and np.isfinite(jackknife).all()):
        return percentile
    below = np.mean(replicates < float(result.estimate))
    below += 0.5 * np.mean(replicates == float(result.estimate))
    spread = jackknife.mean() - jackknife
    if not 0 < below < 1 or np.allclose(spread, 0, atol=0) or np.ptp(replicates) == 0:
        return percentile
    bias = stats.norm.ppf(below)
    acceleration = (spread**3).sum() / (6 * (spread**2).sum() ** 1.5)
    level = Fraction(str(confidence_level))
    z = bias + stats.norm.ppf([float((1 - level) / 2), float((1 + level) / 2)])
    shares = stats.norm.cdf(bias + z / (1 - acceleration * z))
    low, high = np.quantile(replicates, shares)
    dtype = result.low.dtype
    return BcaInterval(jnp.asarray(low, dtype), jnp.asarray(high, dtype), jnp.asarray(True))


def _leave_one_out(metric: Callable, arrays: Mapping[str, Any]) -> np.ndarray:
    on_device = {name: jnp.asarray(array) for name, array in arrays.items()}
    n = next(iter(on_device.values())).shape[0]

    def without(row):
        weight = (jnp.arange(n) != row).astype(jnp.float32)
        return call_metric(metric, on_device, weight)

    rows = jnp.arange(n)
    values = jax.lax.map(without, rows, batch_size=max(1, min(n, CHUNK // n)))
    return np.asarray(values, np.float64)
