"""SQuAD 2.0 (Rajpurkar et al. 2018): articles, paragraphs, questions, some without an answer."""

from collections.abc import Iterator, Mapping
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
    without,
)
from calibjax.sources.layout import Layout, marks

_USED = ("id", "question", "answers", "context", "title")


def flatten(document: Mapping[str, Any]) -> Iterator[Any]:
    """Questions of the published document, each with the title and the paragraph it belongs to."""
    for article in document["data"]:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                # Titles are those of Wikipedia addresses: words joined by underscores.
                title = article["title"].replace("_", " ")
                yield {**question, "title": title, "context": paragraph["context"]}


def parse(data: Mapping[str, Any]) -> Question:
    """One question. Unanswerable ones keep answers () and meta["unanswerable"] = True."""
    answers = distinct(_spans(data.get("answers")))
    meta = without(data, *_USED)
    if not answers:
        meta[UNANSWERABLE] = True
    context = Candidate(text_of(data, "title"), text_of(data, "context"), bool(answers))
    return make_question(
        id_of(data), text_of(data, "question"), answers, candidates=[context], meta=meta
    )


def _spans(answers: Any) -> list[str]:
    if isinstance(answers, dict):  # {"text": [...], "answer_start": [...]} in copies on hubs
        texts = answers.get("text")
    elif isinstance(answers, list):
        texts = [answer.get("text") if isinstance(answer, dict) else None for answer in answers]
    else:
        texts = None
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise RowFault("answers: expected a list of objects with text and answer_start")
    return texts


LAYOUT = Layout(
    marks("id question context answers is_impossible", "id question context answers title"),
    parse,
    flatten,
)
