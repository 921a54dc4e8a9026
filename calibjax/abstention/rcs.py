"""Retrieval confidence score (RCS): a logistic model of full success with readable weights.

RCS(q) = sigmoid(w . z(phi(q)) + b), with the mean and standard deviation of the rows it is fitted
on. Source: RegimeAbstain. The problem is convex and small: Newton's method on the host in float64.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit

from calibjax import storage, textfiles
from calibjax.abstention.score_features import HOP2, HOP2_MISSING, Features
from calibjax.errors import input_error

_TOLERANCE = 1e-7
_MAX_STEPS = 200
_FORMAT = "calibjax-rcs-1"


@dataclass(frozen=True, slots=True, eq=False)
class RCS:
    """A fitted score; `score` gives P(full success).

    coefficients, mean, scale: float64 [d], one a feature in the order of `names`. A feature that
    was constant has coefficient exactly 0 and scale 1. converged: False for separable data without
    a penalty, and where all rows had one outcome (then it is a constant).
    """

    names: tuple[str, ...]
    coefficients: np.ndarray
    bias: float
    mean: np.ndarray
    scale: np.ndarray
    converged: bool
    l2: float
    n: int

    @classmethod
    def fit(
        cls,
        features: Features | Any,
        success: Any,
        *,
        l2: float = 1e-4,
        names: Sequence[str] | None = None,
    ) -> "RCS":
        """Minimises the summed log loss + l2/2 |w|^2 over z-scored features; the bias is free.

        features: `Features`, or an array [n, d] (`names` then name its columns); success: [n] in
        [0, 1]. Equals scikit-learn's LogisticRegression(C=1/l2) on standardised features. Queries
        without hop-2 lists count as average in the hop-2 features (decisions: z = 0).
        """
        values, names = _named(features, names)
        y = np.asarray(success, np.float64)
        if y.shape != (len(values),):
            raise input_error("success.shape", y.shape, f"({len(values)},), one a query")
        if not ((y >= 0) & (y <= 1)).all():
            row = int(np.argmin((y >= 0) & (y <= 1)))
            raise input_error(f"success[{row}]", y[row], "a number in [0, 1]")
        if not l2 >= 0:
            raise input_error("l2", l2, "a number >= 0", "l2=1e-4")
        mean, scale, varies = _moments(values, names)
        z = _standardise(values, names, mean, scale)
        found = fit_logistic(z[:, varies], y, l2)
        coefficients = np.zeros(len(names))
        coefficients[varies] = found.coefficients
        return cls(
            names, coefficients, found.bias, mean, scale, found.converged, float(l2), len(y)
        )

    def logit(self, features: Features | Any) -> np.ndarray:
        """w . z + b, float64 [n]: rank by it, since probabilities near 1 round to equal numbers."""
        single = np.ndim(getattr(features, "values", features)) == 1
        logit = self.standardise(features) @ self.coefficients + self.bias
        return logit[0] if single else logit

    def standardise(self, features: Features | Any) -> np.ndarray:
        """z-scores [n, d] by the mean and scale of the rows that the score was fitted on."""
        return _standardise(self._aligned(features), self.names, self.mean, self.scale)

    def score(self, features: Features | Any) -> np.ndarray:
        """P(full success), float64 [n] (of one query: a number), in [0, 1]."""
        return expit(self.logit(features))

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each feature by name, per standard deviation."""
        return dict(zip(self.names, self.coefficients.tolist()))

    def save(self, path: str | Path, *, thresholds: Mapping[str, float] | None = None) -> None:
        """Writes a JSON file that `load` reads back to the last bit; thresholds: by rule, if any.

        A threshold of inf (abstain on everything) is written as null.
        """
        more = {} if thresholds is None else {"thresholds": dict(thresholds)}
        storage.write_json(path, {"format": _FORMAT, **self.as_dict(), **more})

    def as_dict(self) -> dict[str, Any]:
        """weights, mean and scale by feature name, bias, converged, l2, n."""
        return {
            "weights": self.weights,
            "bias": self.bias,
            "mean": dict(zip(self.names, self.mean.tolist())),
            "scale": dict(zip(self.names, self.scale.tolist())),
            "converged": self.converged,
            "l2": self.l2,
            "n": self.n,
        }

    @classmethod
    def load(cls, path: str | Path, *, name: str = "rcs") -> "RCS":
        """The score in a file that `save` wrote. Raises InputError naming what is wrong with it."""
        data = textfiles.read_json(path, name=name)
        fix = "a file written by RCS.save or launch.abstain"
        if not isinstance(data, dict) or data.get("format") != _FORMAT:
            raise input_error(name, path, f"a JSON object with format {_FORMAT}", fix)
        try:
            names = tuple(data["weights"])
            arrays = [_vector(data[key], names) for key in ("weights", "mean", "scale")]
            bias, converged = float(data["bias"]), bool(data["converged"])
            l2, n = float(data["l2"]), int(data["n"])
        except (KeyError, TypeError, ValueError) as error:
            raise input_error(name, path, f"weights, mean and scale ({error!r})", fix) from None
        if not np.isfinite([*np.concatenate(arrays), bias]).all() or not (arrays[2] > 0).all():
            raise input_error(name, path, "finite weights and scales above 0", fix)
        return cls(names, arrays[0], bias, arrays[1], arrays[2], converged, l2, n)

    def _aligned(self, features: Features | Any) -> np.ndarray:
        """Values [n, d] in the order of `names`; absent hop-2 features count as missing.

        Raises InputError when another feature is missing.
        """
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
        own = dict(zip(self.names, self.mean))
        columns = []
        for name in self.names:
            column = given.get(name, np.full(len(missing), np.nan))
            if name in HOP2:
                # The mean is z = 0, whether or not this score knows the indicator.
                column = np.where(missing, own[name], column)
            columns.append(column)
        return np.stack(columns, axis=1)


class Solution(NamedTuple):
    """Weights of a logistic model."""

    coefficients: np.ndarray
    bias: float
    converged: bool


def fit_logistic(x: np.ndarray, y: np.ndarray, l2: float) -> Solution:
    """Minimum of sum(log loss) + l2/2 |w|^2 with a free bias, by Newton's method with halving.

    One outcome only: no minimum; the constant (k + 1/2) / (n + 1), not converged.
    """
    n, d = x.shape
    total = float(y.sum())
    if total in (0.0, float(n)):
        return Solution(np.zeros(d), float(np.log((total + 0.5) / (n - total + 0.5))), False)
    design = np.concatenate([np.ones((n, 1)), x], axis=1)
    penalty = np.full(d + 1, l2)
    penalty[0] = 0.0
    w = np.zeros(d + 1)
    w[0] = np.log(total / (n - total))
    value = _loss(design, y, penalty, w)
    step = np.full(d + 1, np.inf)
    gradient = step
    for _ in range(_MAX_STEPS):
        p = expit(design @ w)
        gradient = design.T @ (p - y) + penalty * w
        hessian = (design * (p * (1 - p))[:, None]).T @ design + np.diag(penalty)
        # Least squares: without a penalty, two equal columns make the matrix singular.
        step = np.linalg.lstsq(hessian, gradient, rcond=None)[0]
        if np.abs(gradient).max() <= _TOLERANCE and np.abs(step).max() <= _TOLERANCE:
            break
        w, value, moved = _descend(design, y, penalty, w, value, step, gradient)
        if not moved:
            break
    # Without a minimum the gradient dies out too, but steps do not: each adds about 1 to |w|.
    small_step = np.abs(step).max() <= 1e-4 * (1 + np.abs(w).max())
    converged = bool(np.abs(gradient).max() <= _TOLERANCE * max(1, n) and small_step)
    return Solution(w[1:], float(w[0]), converged)


def _descend(design, y, penalty, w, value, step, gradient):
    """The Newton step, halved until the loss falls enough; whether any step helped."""
    slope = float(gradient @ step)
    size = 1.0
    while size > 1e-10:
        trial = w - size * step
        found = _loss(design, y, penalty, trial)
        if found <= value - 1e-4 * size * slope:
            return trial, found, True
        size /= 2
    return w, value, False


def _loss(design: np.ndarray, y: np.ndarray, penalty: np.ndarray, w: np.ndarray) -> float:
    eta = design @ w
    return float(np.sum(np.logaddexp(0.0, eta) - y * eta) + 0.5 * np.sum(penalty * w * w))


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


def _absent(values: np.ndarray, names: tuple[str, ...]) -> np.ndarray:
    """Where a value stands for nothing: hop-2 features of queries without hop-2 lists, [n, d]."""
    absent = np.zeros(values.shape, bool)
    if HOP2_MISSING in names:
        missing = values[:, names.index(HOP2_MISSING)] > 0
        for place, name in enumerate(names):
            absent[:, place] = missing & (name in HOP2)
    return absent


def _moments(values: np.ndarray, names: tuple[str, ...]) -> tuple[np.ndarray, ...]:
    """Mean and standard deviation of each feature, and whether it varies at all."""
    masked = np.ma.masked_array(values, _absent(values, names))
    varies = np.asarray((masked.max(axis=0) - masked.min(axis=0)).filled(0.0) > 0)
    mean = np.asarray(masked.mean(axis=0).filled(0.0))
    # A constant column's mean may be off by a rounding error; its value is not.
    mean = np.where(varies, mean, np.asarray(masked.min(axis=0).filled(0.0)))
    deviation = np.asarray(masked.std(axis=0).filled(0.0))
    varies &= deviation > 0
    return mean, np.where(varies, deviation, 1.0), varies


def _standardise(
    values: np.ndarray, names: tuple[str, ...], mean: np.ndarray, scale: np.ndarray
) -> np.ndarray:
    return np.where(_absent(values, names), 0.0, (values - mean) / scale)


def _vector(by_name: Mapping[str, Any], names: tuple[str, ...]) -> np.ndarray:
    return np.array([float(by_name[name]) for name in names], np.float64)
