"""Random splits of rows into those that choose thresholds and those that judge them."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from calibjax.errors import input_error
from calibjax.metrics._counts import as_fraction
from calibjax.metrics._resampling import dense_labels


class Splits(NamedTuple):
    """Boolean masks (splits, n) of the rows that choose thresholds and of those that judge them."""

    calibration: np.ndarray
    test: np.ndarray


def random_splits(
    n: int,
    *,
    key: jax.Array,
    num_splits: int,
    calibration: float = 0.3,
    test: float = 0.3,
    cluster: Any = None,
) -> Splits:
    """Seeded random splits of `n` rows; the rows in neither part are free for fitting routers.

    calibration, test: shares of the clusters (of the rows without `cluster` (n,)), rounded down;
    clusters stay whole. Split s depends on (key, s) alone.

    >>> splits = random_splits(10, key=jax.random.key(0), num_splits=3, calibration=0.5, test=0.5)
    >>> print(splits.calibration.sum(1), (splits.calibration & splits.test).any())
    [5 5 5] False
    """
    shares = as_fraction("calibration", calibration), as_fraction("test", test)
    if sum(shares) > 1:
        raise input_error("calibration + test", float(sum(shares)), "at most 1")
    unit = np.arange(n) if cluster is None else dense_labels(np.asarray(cluster))
    if unit.shape != (n,):
        raise input_error("cluster.shape", unit.shape, f"({n},)")
    num_units = int(unit.max()) + 1 if n else 0
    first, second = (int(share * num_units) for share in shares)
    place = np.asarray(_places(key, num_splits, num_units))[:, unit]
    return Splits(place < first, (place >= first) & (place < first + second))


@functools.partial(jax.jit, static_argnums=(1, 2))
def _places(key: jax.Array, num_splits: int, num_units: int) -> jax.Array:
    def one(split):
        return jax.random.permutation(jax.random.fold_in(key, split), num_units)

    return jax.lax.map(one, jnp.arange(num_splits), batch_size=256)
