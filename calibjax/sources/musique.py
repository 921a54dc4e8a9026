"""MuSiQue (Trivedi et al. 2022): JSON lines, twenty paragraphs a question, 2 to 4 hops."""

from collections.abc import Mapping
from typing import Any

from calibjax.reading.textfiles import RowFault
from calibjax.records import Question
from calibjax.sources.fields import (
    UNANSWERABLE,
    Candidate,
    distinct,
    id_of,
    make_question,
    text_of,
    texts_of,
    without,
)
from calibjax.sources.layout import Layout, marks

_USED = ("id", "question", "answer", "answer_aliases", "paragraphs")


def parse(data: Mapping[str, Any]) -> Question:
    """One question with its aliases; questions of the full set may be unanswerable."""
    meta = without(data, *_USED)
    answers: tuple[str, ...] = ()
    if data.get("answerable") is False:
        meta[UNANSWERABLE] = True
    elif data.get("answer") is not None:
        aliases = texts_of(data, "answer_aliases") if "answer_aliases" in data else ()
        answers = distinct((text_of(data, "answer"), *aliases))
    paragraphs = data.get("paragraphs")
    if not isinstance(paragraphs, list):
        raise RowFault("paragraphs: expected a list")
    return make_question(
        id_of(data),
        text_of(data, "question"),
        answers,
        candidates=[_candidate(paragraph) for paragraph in paragraphs],
        meta=meta,
    )


def _candidate(paragraph: Any) -> Candidate:
    if not isinstance(paragraph, dict):
        raise RowFault("paragraphs: expected objects with title and paragraph_text")
    return Candidate(
        text_of(paragraph, "title"),
        text_of(paragraph, "paragraph_text"),
        paragraph.get("is_supporting") is True,
    )


LAYOUT = Layout(marks("id question paragraphs"), parse)
