"""Learned routers: the utility of evidence, predicted from a family's features.

They must be fitted on rows that neither choose a threshold nor judge it: trees that have seen the
calibration rows rank them better than new ones, and the usage they promise is not the usage they
realise.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from calibjax import storage
from calibjax.errors import input_error
from calibjax.routing import trees

TARGETS = ("utility", "benefit")
_TREES, _DEPTH, _RATE = 100, 3, 0.1
_MIN_ROWS = 2


class BURLinear:
    """A linear router over z-scored features: ridge on the utility, or logistic on u > 0.

    target: "utility" regresses u; "benefit" classifies u > 0. A feature that never varies in
    fitting has no weight.
    """

    kind = "linear"

    def __init__(self, target: str = "utility") -> None:
        self.target = _checked_target(target)

    def fit(self, features: Any, utility: Any) -> "BURLinear":
        """features [n, d] finite, utility [n] in [-1, 1]. Raises InputError for fewer than 2 rows.

        One class of benefit only: every row scores alike.
        """
        x, u = _checked(features, utility)
        self.mean, scale = x.mean(axis=0), x.std(axis=0)
        self.scale = np.where(scale > 0, scale, 1.0)
        z = (x - self.mean) / self.scale
        self.weights, self.bias = _linear(z, u, self.target)
        return self

    def score(self, features: Any) -> np.ndarray:
        """float64 [n]: predicted utility, or log-odds of benefit; higher = retrieve first."""
        z = (np.asarray(features, np.float64) - self.mean) / self.scale
        # Summed row by row in one order: equal rows tie, whatever batch they are in.
        return np.sum(z * self.weights, axis=1) + self.bias


class BURGBM:
    """A router of 100 boosted trees of depth 3: regression on u, or classification of u > 0."""

    kind = "gbm"

    def __init__(self, target: str = "utility", *, seed: int = 0) -> None:
        self.target = _checked_target(target)
        self.seed = seed

    def fit(self, features: Any, utility: Any) -> "BURGBM":
        """features [n, d] finite, utility [n] in [-1, 1]. Raises InputError for fewer than 2 rows.

        One class of benefit only: every row scores alike.
        """
        x, u = _checked(features, utility)
        self.trees = _boosted(x, u, self.target, self.seed)
        return self

    def score(self, features: Any) -> np.ndarray:
        """float64 [n]: predicted utility, or log-odds of benefit; higher = retrieve first."""
        return trees.score(self.trees, features)


Learned = BURLinear | BURGBM


def _checked_target(target: str) -> str:
    if target not in TARGETS:
        raise input_error("target", target, " or ".join(TARGETS))
    return target


def _checked(features: Any, utility: Any) -> tuple[np.ndarray, np.ndarray]:
    x, u = np.asarray(features, np.float64), np.asarray(utility, np.float64)
    if x.ndim != 2 or u.shape != x.shape[:1]:
        raise input_error("features.shape", x.shape, f"({len(u)}, d), a row for each utility")
    if len(u) < _MIN_ROWS:
        fix = "rows with split=train; a router is never fitted on rows that choose its threshold"
        raise input_error("train rows", len(u), f"at least {_MIN_ROWS} to fit a router", fix)
    if not np.isfinite(x).all():
        row, column = np.argwhere(~np.isfinite(x))[0]
        raise input_error(f"features[{row}, {column}]", x[row, column], "finite numbers")
    return x, u


def _linear(z: np.ndarray, u: np.ndarray, target: str) -> tuple[np.ndarray, float]:
    from sklearn.linear_model import LogisticRegression, Ridge

    if target == "utility":
        ridge = Ridge(alpha=1.0).fit(z, u)
        return np.asarray(ridge.coef_), float(ridge.intercept_)
    benefit = u > 0
    if benefit.all() or not benefit.any():
        return np.zeros(z.shape[1]), 0.0
    logistic = LogisticRegression(max_iter=1000).fit(z, benefit)
    return np.asarray(logistic.coef_[0]), float(logistic.intercept_[0])


def _boosted(x: np.ndarray, u: np.ndarray, target: str, seed: int) -> trees.Trees:
    from sklearn.ensemble import GradientBoostingClassifier, GradientBoostingRegressor

    settings: dict[str, Any] = {
        "n_estimators": _TREES,
        "max_depth": _DEPTH,
        "learning_rate": _RATE,
        "random_state": seed,
    }
    if target == "utility":
        model = GradientBoostingRegressor(**settings).fit(x, u)
    else:
        benefit = u > 0
        if benefit.all() or not benefit.any():
            return _no_trees()
        model = GradientBoostingClassifier(**settings).fit(x, benefit)
    return trees.from_sklearn(model, x[:1])


def _no_trees() -> trees.Trees:
    nodes = 2**_DEPTH - 1
    return trees.Trees(
        np.float64(0),
        np.zeros((1, nodes), np.int32),
        np.zeros((1, nodes), np.float32),
        np.zeros((1, nodes + 1)),
    )


def save(router: Learned, path: str | Path, *, features: list[str]) -> None:
    """Writes a fitted router as JSON; `features` are the names of its columns, in order."""
    state = router.trees._asdict() if isinstance(router, BURGBM) else _linear_state(router)
    head = {"kind": router.kind, "target": router.target, "features": features}
    storage.write_json(path, head | storage.plain(_finite(state)))


def _linear_state(router: BURLinear) -> dict[str, Any]:
    return {name: getattr(router, name) for name in ("mean", "scale", "weights", "bias")}


def _finite(state: dict[str, Any]) -> dict[str, Any]:
    """JSON has no infinity: thresholds that send every row left become the largest float32."""
    largest = np.finfo(np.float32).max
    return {k: np.minimum(v, largest) if k == "threshold" else v for k, v in state.items()}


def load(path: str | Path) -> Learned:
    """A router that `save` has written; its scores are the same to the last bit."""
    try:
        state = json.loads(Path(path).read_text())
        if state["kind"] == "gbm":
            gbm = BURGBM(state["target"])
            gbm.trees = trees.Trees(
                np.float64(state["start"]),
                np.array(state["feature"], np.int32),
                np.array(state["threshold"], np.float32),
                np.array(state["value"], np.float64),
            )
            return gbm
        linear = BURLinear(state["target"])
        linear.mean, linear.scale, linear.weights = (
            np.array(state[name], np.float64) for name in ("mean", "scale", "weights")
        )
        linear.bias = float(state["bias"])
        return linear
    except (OSError, ValueError, KeyError, TypeError) as error:
        expected = f"a router written by this library ({type(error).__name__}: {error})"
        raise input_error("router", path, expected) from None
