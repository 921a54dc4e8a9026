"""WikiQA (Yang et al. 2015): a table with one candidate sentence a line; golds are sentences."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from calibjax.reading.textfiles import Row, RowFault
from calibjax.records import Question
from calibjax.sources.fields import (
    SENTENCE_ANSWERS,
    UNANSWERABLE,
    Candidate,
    distinct,
    id_of,
    make_question,
    text_of,
)
from calibjax.sources.layout import Layout, marks

# Names in the copies on hubs -> published names.
_NAMES = {
    "question_id": "QuestionID",
    "question": "Question",
    "document_title": "DocumentTitle",
    "answer": "Sentence",
    "label": "Label",
}


def gather(rows: list[Row], path: Path) -> list[Row]:
    """Lines -> one row per question, at the line where the question first appears."""
    groups: dict[str, Row] = {}
    for row in rows:
        data = {_NAMES.get(name, name): value for name, value in row.data.items()}
        key = str(data.get("QuestionID"))
        if key not in groups:
            groups[key] = Row(row.line, {**data, "sentences": []})
        groups[key].data["sentences"].append((data.get("Sentence"), str(data.get("Label"))))
    return list(groups.values())


def parse(data: Mapping[str, Any]) -> Question:
    """One question; its only passage is the candidates joined, gold when a sentence answers it.

    meta["sentence_answers"] tells that the golds are whole sentences.
    """
    sentences = data["sentences"]
    if any(label not in ("0", "1") for _, label in sentences):
        raise RowFault("Label: expected 0 or 1 on every line of the question")
    if not all(isinstance(sentence, str) for sentence, _ in sentences):
        raise RowFault("Sentence: expected text on every line of the question")
    answers = distinct(sentence for sentence, label in sentences if label == "1")
    meta: dict[str, Any] = {SENTENCE_ANSWERS: True}
    if not answers:
        meta[UNANSWERABLE] = True
    text = " ".join(sentence.strip() for sentence, _ in sentences)
    document = Candidate(text_of(data, "DocumentTitle"), text, bool(answers))
    return make_question(
        id_of(data, "QuestionID"),
        text_of(data, "Question"),
        answers,
        candidates=[document],
        meta=meta,
    )


LAYOUT = Layout(
    marks(
        "QuestionID Question DocumentTitle Sentence Label",
        "question_id question document_title answer label",
    ),
    parse,
    gather=gather,
)
