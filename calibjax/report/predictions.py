"""The rows of one method as arrays, and methods paired on their common ids."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibjax.errors import InputError


@dataclass(frozen=True, slots=True)
class Predictions:
    """The rows of one method: ids of text [n], the rest arrays of length n.

    confidence, correct: float64 in [0,1] (soft verdicts allowed); answered: bool, False = the user
    gave no answer; group: text, the cluster that the bootstrap resamples, or None = each row alone.
    """

    ids: np.ndarray
    confidence: np.ndarray
    correct: np.ndarray
    answered: np.ndarray
    group: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, places: np.ndarray) -> "Predictions":
        """The rows at `places`, in that order."""
        return Predictions(
            ids=self.ids[places],
            confidence=self.confidence[places],
            correct=self.correct[places],
            answered=self.answered[places],
            group=None if self.group is None else self.group[places],
        )


def predictions(
    ids: Sequence[Any],
    confidence: Any,
    correct: Any,
    answered: Any = None,
    group: Sequence[Any] | None = None,
) -> Predictions:
    """Predictions from plain sequences; ids and groups become text, `answered` defaults to True."""
    count = len(ids)
    return Predictions(
        ids=_texts(ids),
        confidence=np.asarray(confidence, np.float64),
        correct=np.asarray(correct, np.float64),
        answered=np.ones(count, bool) if answered is None else np.asarray(answered, bool),
        group=None if group is None else _texts(group),
    )


def pair(
    methods: Mapping[str, Predictions], *, name: str = "predictions"
) -> tuple[dict[str, Predictions], int]:
    """All methods on the ids that they share, in one order, and the number of those ids.

    Raises InputError when a method shares less than half of its ids with the others.
    """
    if len(methods) < 2:
        return dict(methods), max(map(len, methods.values()), default=0)
    first, *others = methods.values()
    shared = set(first.ids)
    for rows in others:
        shared &= set(rows.ids)
    for method, rows in methods.items():
        if 2 * len(shared) < len(rows):
            found = f"{len(shared)} of the {len(rows)} ids of {method}"
            counts = ", ".join(f"{key} {len(value)}" for key, value in methods.items())
            raise InputError(
                f"{name}={','.join(methods)}: expected methods over the same ids, found {found} in"
                f" all of them (rows: {counts}); fix: one file at a time, or the same questions"
            )
    order = [value for value in first.ids if value in shared]
    return {method: _reorder(rows, order) for method, rows in methods.items()}, len(order)


def _reorder(rows: Predictions, order: Sequence[str]) -> Predictions:
    places = {value: place for place, value in enumerate(rows.ids)}
    return rows.take(np.fromiter((places[value] for value in order), np.int64, len(order)))


def _texts(values: Sequence[Any]) -> np.ndarray:
    """Text as a one-dimensional object array, whatever the values look like."""
    made = np.empty(len(values), object)
    made[:] = [value if isinstance(value, str) else str(value) for value in values]
    return made
