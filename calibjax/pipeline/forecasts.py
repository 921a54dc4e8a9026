"""One forecast for a whole result list: how likely its best passage makes the decision right."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from calibjax.records import Passage, Question
from calibjax.supervision.queries import write_queries


def best_forecasts(
    forecaster: Any, questions: Sequence[Question], passages: Sequence[Sequence[Passage]]
) -> np.ndarray:
    """The best forecast over each question's passages, float64 [n] in [0, 1]; 0 where it has none.

    Passages are forecast for the query that the pipeline asks by default (`queries`, template).
    """
    scores = forecaster.score(write_queries(questions, "template").texts, passages)
    return np.nan_to_num(scores.astype(np.float64), nan=0.0).max(axis=1, initial=0.0)
