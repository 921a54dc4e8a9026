"""MIRAGE (Xiong et al. 2024): {set: {id: {question, options, answer}}}, answers as letters."""

from collections.abc import Iterator, Mapping
from typing import Any

from calibjax.reading.textfiles import RowFault
from calibjax.records import Question
from calibjax.sources.fields import Candidate, id_of, make_question, member_of, text_of, without

MARKS = "id question options answer"
_USED = ("id", "question", "options", "answer")


def flatten(document: Mapping[str, Any], dataset: str) -> Iterator[dict[str, Any]]:
    """Rows of one set of the benchmark file, or of a file that holds that set alone."""
    inner = document.get(dataset)
    for id, row in (inner if isinstance(inner, dict) else document).items():
        yield {"id": id, **row} if isinstance(row, dict) else row


def parse(
    data: Mapping[str, Any], *, candidates: tuple[Candidate, ...] = ()
) -> Question:
    """One multiple-choice question; the answer is the text of the right option."""
    options = data.get("options")
    if not isinstance(options, dict) or not all(isinstance(v, str) for v in options.values()):
        raise RowFault("options: expected an object of letters and texts")
    letters = sorted(options)
    letter = member_of(data, "answer", letters)
    return make_question(
        id_of(data),
        text_of(data, "question"),
        (text_of(options, letter),),
        candidates=candidates,
        options=tuple(text_of(options, name) for name in letters),
        meta={**without(data, *_USED), "answer_letter": letter},
    )
