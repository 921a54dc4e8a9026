"""The forecaster as a router: the best forecast over a question's passages, and what it took."""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from calibjax.pipeline.forecasts import best_forecasts
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
    """Scores in [0, 1], higher = retrieve first; 0 for a question without passages."""
    start = time.monotonic()
    scores = best_forecasts(forecaster, questions, passages)
    seconds = (time.monotonic() - start) / max(1, len(questions))
    # Counted for the query that `best_forecasts` asks.
    queries = write_queries(questions, "template").texts
    return Scored(scores.tolist(), forecaster.count_tokens(queries, passages), seconds)
