"""z-scores of features by the rows that a model is fitted on; missing values count as average."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibjax.abstention.score_features import HOP2, HOP2_MISSING, Features
from calibjax.errors import input_error


@dataclass(frozen=True, slots=True, eq=False)
class Standardiser:
    """Mean and scale of each feature, float64 [d] in the order of `names`.

    varies: False for a feature that was constant in the fit (scale 1): nothing is known of it, and
    its z is 0 for any query. A query without hop-2 lists has no hop-2 features: they take no part
    in the fit and get z = 0, whether or not the column `hop2_missing` is among the features.
    """

    names: tuple[str, ...]
    mean: np.ndarray
    scale: np.ndarray
    varies: np.ndarray

    @classmethod
    def fit(cls, features: Features | Any, names: Sequence[str] | None = None) -> "Standardiser":
        """features: `Features`, or an array [n >= 1, d] of finite numbers (`names` its columns)."""
        values, names = _named(features, names)
        masked = np.ma.masked_array(values, _absent(features, values, names))
        varies = np.asarray((masked.max(axis=0) - masked.min(axis=0)).filled(0.0) > 0)
        mean = np.asarray(masked.mean(axis=0).filled(0.0))
        # A constant column's mean may be off by a rounding error; its value is not.
        mean = np.where(varies, mean, np.asarray(masked.min(axis=0).filled(0.0)))
        deviation = np.asarray(masked.std(axis=0).filled(0.0))
        varies &= deviation > 0
        return cls(names, mean, np.where(varies, deviation, 1.0), varies)

    def transform(self, features: Features | Any) -> np.ndarray:
        """z-scores [n, d] of any queries.

        `Features` may have their columns in another order and may lack the hop-2 ones; InputError
        when another is lacking.
        """
        values = self._aligned(features)
        known = self.varies & ~_absent(features, values, self.names)
        return np.where(known, (values - self.mean) / self.scale, 0.0)

    def _aligned(self, features: Features | Any) -> np.ndarray:
        if not isinstance(features, Features):
            values = np.atleast_2d(np.asarray(features, np.float64))
            if values.shape[1] != len(self.names):
                expected = f"[n, {len(self.names)}] ({', '.join(self.names)})"
                raise input_error("features.shape", values.shape, expected)
            return values
        given = dict(zip(features.names, np.atleast_2d(features.values).T))
        missing = np.atleast_1d(features.hop2_missing)
        given.setdefault(HOP2_MISSING, missing.astype(np.float64))
        lacking = [name for name in self.names if name not in given and name not in HOP2]
        if lacking:
            expected = f"all of {', '.join(self.names)}"
            raise input_error("features", ", ".join(features.names), expected, f"add {lacking[0]}")
        nothing = np.zeros(len(missing))
        return np.stack([given.get(name, nothing) for name in self.names], axis=1)


def _named(features: Any, names: Sequence[str] | None) -> tuple[np.ndarray, tuple[str, ...]]:
    if isinstance(features, Features):
        values, names = features.values, features.names
    else:
        values = np.asarray(features, np.float64)
        names = tuple(names or (f"x{i + 1}" for i in range(values.shape[-1])))
    if values.ndim != 2 or len(names) != values.shape[1] or not len(values):
        raise input_error("features.shape", values.shape, f"[n >= 1, {len(names)}]")
    if not np.isfinite(values).all():
        row = int(np.argmin(np.isfinite(values).all(axis=1)))
        raise input_error(f"features[{row}]", values[row].tolist(), "finite numbers")
    return np.asarray(values, np.float64), tuple(names)


def _absent(features: Features | Any, values: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """Where a value stands for nothing: hop-2 features of queries without hop-2 lists, [n, d]."""
    is_hop2 = np.isin(names, HOP2)
    if isinstance(features, Features):
        # Features know it of each query; a column that an ablation drops must not change it.
        lacking = is_hop2 & ~np.isin(names, features.names)
        return np.atleast_1d(features.hop2_missing)[:, None] & is_hop2[None] | lacking[None]
    if HOP2_MISSING in names:
        return (values[:, list(names).index(HOP2_MISSING)] > 0)[:, None] & is_hop2[None]
    return np.zeros(values.shape, bool)


def vector(by_name: Mapping[str, Any], names: Sequence[str]) -> np.ndarray:
    """Numbers by name as an array in the order of `names`, float64 [d]."""
    return np.array([float(by_name[name]) for name in names], np.float64)
