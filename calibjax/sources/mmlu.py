"""MMLU (Hendrycks et al. 2021): tables without header: question, A, B, C, D, letter."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from calibjax.reading.textfiles import Row
from calibjax.records import Question
from calibjax.sources import mirage
from calibjax.sources.fields import content_id, make_question, member_of, text_of, without
from calibjax.sources.layout import Layout, marks

LETTERS = ("A", "B", "C", "D")
COLUMNS = ("question", *LETTERS, "answer")


def flatten(document: Mapping[str, Any]) -> Iterator[Any]:
    """Rows of a MIRAGE file."""
    return mirage.flatten(document, "mmlu")


def gather(rows: list[Row], path: Path) -> list[Row]:
    """Adds the subject, which stands in the file's name alone (anatomy_test.csv)."""
    subject = path.name.split(".")[0]
    for split in ("_test", "_val", "_dev"):
        subject = subject.removesuffix(split)
    return [Row(row.line, {"subject": subject, **row.data}) for row in rows]


def parse(data: Mapping[str, Any]) -> Question:
    """One question; the answer is the text of the right option, its letter is in meta."""
    if "options" in data:
        return mirage.parse(data)
    letter = member_of(data, "answer", LETTERS)
    question = text_of(data, "question")
    options = tuple(text_of(data, name) for name in LETTERS)
    return make_question(
        content_id("mmlu", question, *options),
        question,
        (options[LETTERS.index(letter)],),
        options=options,
        meta={**without(data, *COLUMNS), "answer_letter": letter},
    )


LAYOUT = Layout(
    marks(" ".join(COLUMNS), mirage.MARKS), parse, flatten, gather=gather, columns=COLUMNS
)
