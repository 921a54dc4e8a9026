"""The forecaster as a router: the best forecast over a question's passages, and what it took."""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from calibjax.records import Passage, Question
from calibjax.supervision.queries import write_queries


class Scored(NamedTuple):
    """Scores of one router, one a question, with the prompt tokens that it read for each of them
    and seconds per question."""

    scores: Sequence[float]
    tokens: Sequence[int]
    seconds: float


def forecast(
    forecaster: Any, questions: Sequence[Question], passages: Sequence[Sequence[Passage]]
) -> Scored:
    """Scores in [0, 1], higher = retrieve first; 0 for a question without passages.

    Passages are forecast for the query that the pipeline asks by default (`queries`, template).
    """
    queries = write_queries(questions, "template").texts
    start = time.monotonic()
    scores = forecaster.score(queries, passages)
    seconds = (time.monotonic() - start) / max(1, len(questions))
    best = np.nan_to_num(scores, nan=0.0).max(axis=1, initial=0.0)
    return Scored(best.tolist(), forecaster.count_tokens(queries, passages), seconds)
