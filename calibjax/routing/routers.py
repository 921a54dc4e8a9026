"""The routers of a study: the scores that a file brings, and routers fitted on its features."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from calibjax.abstention import RCS
from calibjax.errors import InputError, closest, input_error
from calibjax.metrics import Splits
from calibjax.progress import track
from calibjax.routing.complexity import ComplexityClassifier
from calibjax.routing.costs import FAMILIES
from calibjax.routing.examples import Outcomes
from calibjax.routing.learned import BURGBM, BURLinear, Learned
from calibjax.routing.utilities import utility
from calibjax.training import signals

LEARNED = ("both", "utility", "benefit", "none")
# Families of the scores that `launch.outcomes` writes.
KNOWN_FAMILIES = {
    "query_length": "query",
    "complexity": "query",
    "mean_entropy": "uncertainty",
    "max_entropy": "uncertainty",
    "min_confidence": "uncertainty",
    "sequence_log_prob": "uncertainty",
    "bm25_top": "retrieval",
    "bm25_top_inverse": "retrieval",
    "bm25_margin": "retrieval",
    "dense_top": "retrieval",
    "dense_top_inverse": "retrieval",
    "dense_margin": "retrieval",
    "forecaster": "retrieval",
    "rcs": "retrieval",
}
TRAINED_COMPLEXITY = "complexity_trained"
# The retrieval confidence score of `abstention`, fitted to tell evidence that brings the answer.
RETRIEVAL_CONFIDENCE = "rcs"


class Routers(NamedTuple):
    """Scores of R routers, in the order of `names`.

    fixed [R0, n]: of the first R0; fitted [R1, splits, n]: of the others, fitted anew in each
    split, or None. families: by name, None where it is not known. models: what was fitted in the
    last split, by name, with the names of its feature columns.
    """

    names: list[str]
    families: dict[str, str | None]
    fixed: np.ndarray
    fitted: np.ndarray | None
    models: dict[str, tuple[Any, list[str]]]

    def of_split(self, router: int, split: int) -> np.ndarray:
        """Scores [n] of one router in one split."""
        if router < len(self.fixed):
            return self.fixed[router]
        assert self.fitted is not None
        return self.fitted[router - len(self.fixed), split]


class _Recipe(NamedTuple):
    """A router to fit: its family, its columns of all features, what it learns.

    labels: of the rows of a mask, which are all that it may look at.
    """

    name: str
    family: str
    columns: np.ndarray
    make: Any
    labels: Callable[[np.ndarray], np.ndarray]


class _RetrievalConfidence:
    """RCS over the probe's features: how likely the answer with evidence is right."""

    def fit(self, features: Any, correct_with: Any) -> "_RetrievalConfidence":
        self._model = RCS.fit(features, correct_with)
        return self

    def score(self, features: Any) -> np.ndarray:
        """Log-odds: probabilities near 1 round to equal numbers."""
        return self._model.logit(features)


def build(
    outcomes: Outcomes,
    splits: Splits,
    *,
    families: Mapping[str, str] | None = None,
    learned: str = "utility",
    seed: int = 0,
) -> Routers:
    """Scores of all routers; learned ones are fitted on rows outside calibration and test alone.

    families: of the file's own routers. learned: which targets are fitted (utility by regression,
    benefit by classification). Raises InputError without rows to fit on, and for unknown names.
    """
    names = list(outcomes.scores)
    given = _checked_families(families or {}, names)
    recipes = list(_recipes(outcomes, learned, seed))
    clash = sorted(set(names) & {recipe.name for recipe in recipes})
    if clash:
        fix = f"rename scores.{clash[0]}, or --learned=none"
        raise input_error("router", clash[0], "a name that no learned router has", fix)
    known: dict[str, str | None] = {
        name: given.get(name, KNOWN_FAMILIES.get(name)) for name in names
    }
    fixed = np.stack([*outcomes.scores.values()]) if names else np.zeros((0, len(outcomes)))
    if not recipes:
        return Routers(names, known, fixed, None, {})
    fitted, models = _fit_all(outcomes, splits, recipes)
    known |= {recipe.name: recipe.family for recipe in recipes}
    return Routers([*names, *(recipe.name for recipe in recipes)], known, fixed, fitted, models)


def _checked_families(families: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    for name, family in families.items():
        if name not in names:
            near = closest(name, names)
            fix = f"did you mean {near}" if near else None
            raise input_error("families", f"{name}={family}", f"one of {', '.join(names)}", fix)
        if family not in FAMILIES:
            near = closest(family, FAMILIES)
            fix = f"did you mean {name}={near}" if near else None
            raise input_error("families", f"{name}={family}", f"one of {', '.join(FAMILIES)}", fix)
    return dict(families)


def _recipes(outcomes: Outcomes, learned: str, seed: int) -> Iterator[_Recipe]:
    if learned not in LEARNED:
        raise input_error("learned", learned, f"one of {', '.join(LEARNED)}")
    if learned == "none" or not outcomes.features:
        return
    u = utility(outcomes.correct_without, outcomes.correct_with).__getitem__
    places = _columns_by_family(outcomes)
    for target in ("utility", "benefit"):
        if learned not in ("both", target):
            continue
        suffix = "" if target == "utility" else "_benefit"
        for family, columns in places.items():
            linear = lambda target=target: BURLinear(target)
            boosted = lambda target=target: BURGBM(target, seed=seed)
            yield _Recipe(f"bur_linear_{family}{suffix}", family, columns, linear, u)
            yield _Recipe(f"bur_gbm_{family}{suffix}", family, columns, boosted, u)
    if "query" in places:
        levels = functools.partial(_levels, outcomes)
        yield _Recipe(
            TRAINED_COMPLEXITY, "query", places["query"], ComplexityClassifier, levels
        )
    if "retrieval" in places:
        right = outcomes.correct_with.__getitem__
        columns = places["retrieval"]
        yield _Recipe(RETRIEVAL_CONFIDENCE, "retrieval", columns, _RetrievalConfidence, right)


def _columns_by_family(outcomes: Outcomes) -> dict[str, np.ndarray]:
    """Places of each family's columns in all features; "full" is all, where there are several."""
    places, start = {}, 0
    for family, (names, _) in outcomes.features.items():
        places[family] = np.arange(start, start + len(names))
        start += len(names)
    if len(places) > 1:
        places["full"] = np.arange(start)
    return places


def _levels(outcomes: Outcomes, rows: np.ndarray) -> np.ndarray:
    """Complexity to learn: the file's `level` (hops) where it varies; else 1 - right unaided."""
    if outcomes.level is not None and np.ptp(outcomes.level[rows]) > 0:
        return outcomes.level[rows]
    return (outcomes.correct_without[rows] < 0.5).astype(np.float64)


def _fit_all(
    outcomes: Outcomes, splits: Splits, recipes: Sequence[_Recipe]
) -> tuple[np.ndarray, dict[str, tuple[Any, list[str]]]]:
    names = [f"{f}.{name}" for f, (columns, _) in outcomes.features.items() for name in columns]
    x = np.concatenate([matrix for _, matrix in outcomes.features.values()], axis=1)
    free = ~(splits.calibration | splits.test)
    if outcomes.split is not None:
        free &= outcomes.split == "train"
    if not free.any(axis=1).all():
        raise InputError(
            "train: no rows to fit the learned routers on: expected rows with split=train;"
            " fix: mark some rows train, or --learned=none"
        )
    scores = np.empty((len(recipes), len(free), len(outcomes)))
    models: dict[str, tuple[Any, list[str]]] = {}
    for number in track(len(free), "fit routers", "splits"):
        signals.check()
        rows = free[number]
        for place, recipe in enumerate(recipes):
            own = x[:, recipe.columns]
            model = recipe.make().fit(own[rows], recipe.labels(rows))
            scores[place, number] = model.score(own)
            if isinstance(model, Learned):
                models[recipe.name] = (model, [names[c] for c in recipe.columns])
    return scores, models


def ranks(scores: np.ndarray) -> np.ndarray:
    """Each row of scores [..., n] as dense ranks, float32: the same order and ties, exactly.

    Budgets see nothing but the order; float32 would make ties of scores that differ in float64.
    """
    flat = scores.reshape(-1, scores.shape[-1])
    ranked = [np.unique(row, return_inverse=True)[1] for row in flat]
    return np.array(ranked, np.float32).reshape(scores.shape)
