"""PubMedQA (Jin et al. 2019): {pmid: {QUESTION, CONTEXTS, LABELS, final_decision, ...}}."""

from collections.abc import Iterator, Mapping
from typing import Any

from calibjax.reading.textfiles import RowFault
from calibjax.records import Question
from calibjax.sources import mirage
from calibjax.sources.fields import (
    Candidate,
    id_of,
    make_question,
    member_of,
    text_of,
    without,
)
from calibjax.sources.layout import Layout, marks

CHOICES = ("yes", "no", "maybe")
_USED = ("id", "QUESTION", "CONTEXTS", "LABELS", "final_decision")


def flatten(document: Mapping[str, Any]) -> Iterator[Any]:
    """Rows with the PubMed id among their fields."""
    return mirage.flatten(document, "pubmedqa")


def parse(data: Mapping[str, Any]) -> Question:
    """One question of yes, no or maybe; every section of its abstract is a gold passage."""
    if "options" in data:
        return mirage.parse(data)
    contexts, labels = _list_of(data, "CONTEXTS"), _list_of(data, "LABELS")
    if len(contexts) != len(labels):
        raise RowFault("CONTEXTS, LABELS: expected two lists of one length")
    return make_question(
        id_of(data),
        text_of(data, "QUESTION"),
        (member_of(data, "final_decision", CHOICES),),
        candidates=[Candidate(*pair, True) for pair in zip(labels, contexts, strict=True)],
        options=CHOICES,
        meta=without(data, *_USED),
    )


def _list_of(data: Mapping[str, Any], name: str) -> list[str]:
    value = data.get(name)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise RowFault(f"{name}: expected a list of texts")
    return value


LAYOUT = Layout(marks("QUESTION CONTEXTS final_decision", mirage.MARKS), parse, flatten)
