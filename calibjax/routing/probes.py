"""Evidence for each question: hits among its own passages, or in one pool of passages."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from calibjax import progress
from calibjax.errors import InputError
from calibjax.protocols import Retriever
from calibjax.records import Hits, Passage, Question


class Probe(NamedTuple):
    """The hits of one question, best first."""

    passages: list[Passage]
    scores: list[float]


def search_own(
    questions: Sequence[Question], make: Callable[[Sequence[Passage]], Retriever], k: int
) -> tuple[list[Probe], float]:
    """Each question's hits among the passages that came with it; and seconds per question.

    Raises InputError when a question brings none.
    """
    bare = [question.id for question in questions if not question.passages]
    if bare:
        text = f"{len(bare)} questions bring no passages, such as {bare[0]}"
        raise InputError(f"evidence=own: {text}; fix: --evidence=global --corpus=FILE")
    probes, start = [], time.monotonic()
    for question in progress.track(questions, "search", "questions"):
        by_id = {passage.id: passage for passage in question.passages}
        hits = make(question.passages).search([question.question], k)
        probes += _probes(hits, by_id)
    return probes, (time.monotonic() - start) / max(1, len(questions))


def search_pool(
    questions: Sequence[Question], retriever: Any, k: int
) -> tuple[list[Probe], float]:
    """Each question's hits in one pool of passages; and seconds per question."""
    start = time.monotonic()
    hits = retriever.search([question.question for question in questions], k)
    seconds = (time.monotonic() - start) / max(1, len(questions))
    return _probes(hits, retriever.passages), seconds


def _probes(hits: Hits, passages: Mapping[str, Passage]) -> list[Probe]:
    probes = []
    for ids, scores, valid in zip(hits.ids, hits.scores, hits.valid, strict=True):
        found = [place for place, is_hit in enumerate(valid) if is_hit]
        kept = [passages[ids[place]] for place in found]
        probes.append(Probe(kept, [float(scores[place]) for place in found]))
    return probes
