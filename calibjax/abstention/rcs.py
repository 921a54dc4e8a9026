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

from calibjax import storage
from calibjax.abstention.score_features import Features
from calibjax.abstention.standardise import Standardiser, vector
from calibjax.errors import input_error
from calibjax.reading import textfiles

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
        scaling = Standardiser.fit(features, names)
        z, names = scaling.transform(features), scaling.names
        y = np.asarray(success, np.float64)
        if y.shape != (len(z),):
            raise input_error("success.shape", y.shape, f"({len(z)},), one a query")
        if not ((y >= 0) & (y <= 1)).all():
            row = int(np.argmin((y >= 0) & (y <= 1)))
            raise input_error(f"success[{row}]", y[row], "a number in [0, 1]")
        if not l2 >= 0:
            raise input_error("l2", l2, "a number >= 0", "l2=1e-4")
        found = fit_logistic(z[:, scaling.varies], y, l2)
        coefficients = np.zeros(len(names))
        coefficients[scaling.varies] = found.coefficients
        return cls(
            names=names,
            coefficients=coefficients,
            bias=found.bias,
            mean=scaling.mean,
            scale=scaling.scale,
            converged=found.converged,
            l2=float(l2),
            n=len(y),
        )

    def logit(self, features: Features | Any) -> np.ndarray:
        """w . z + b, float64 [n]: rank by it, since probabilities near 1 round to equal numbers."""
        values = features.values if isinstance(features, Features) else features
        single = np.ndim(values) == 1
        logit = self.standardise(features) @ self.coefficients + self.bias
        return logit[0] if single else logit

    def standardise(self, features: Features | Any) -> np.ndarray:
        """z-scores [n, d] by the mean and scale of the fitted rows; 0 where the weight is 0."""
        varies = self.coefficients != 0
        return Standardiser(self.names, self.mean, self.scale, varies).transform(features)

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
            arrays = [vector(data[key], names) for key in ("weights", "mean", "scale")]
            bias, converged = float(data["bias"]), bool(data["converged"])
            l2, n = float(data["l2"]), int(data["n"])
        except (KeyError, TypeError, ValueError) as error:
            raise input_error(name, path, f"weights, mean and scale ({error!r})", fix) from None
        if not np.isfinite([*np.concatenate(arrays), bias]).all() or not (arrays[2] > 0).all():
            raise input_error(name, path, "finite weights and scales above 0", fix)
        return cls(names, arrays[0], bias, arrays[1], arrays[2], converged, l2, n)


class Solution(NamedTuple):
    """Weights of a logistic model."""

    coefficients: np.ndarray
    bias: float
    converged: bool


def has_one_outcome(y: np.ndarray) -> bool:
    """Whether all rows succeeded or all failed: then no model has an optimum."""
    return float(y.sum()) in (0.0, float(len(y)))


def fit_logistic(x: np.ndarray, y: np.ndarray, l2: float) -> Solution:
    """Minimum of sum(log loss) + l2/2 |w|^2 with a free bias, by Newton's method with halving.

    One outcome only: no minimum; the constant (k + 1/2) / (n + 1), not converged.
    """
    n, d = x.shape
    total = float(y.sum())
    if has_one_outcome(y):
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
