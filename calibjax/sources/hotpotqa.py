"""HotpotQA (Yang et al. 2018): one JSON list of questions, each with ten titled paragraphs."""

from collections.abc import Mapping
from typing import Any

from calibjax.reading.textfiles import RowFault
from calibjax.records import Question
from calibjax.sources.fields import Candidate, id_of, make_question, text_of, without
from calibjax.sources.layout import Layout, marks

_USED = ("_id", "id", "question", "answer", "context")


def parse(data: Mapping[str, Any]) -> Question:
    """One question; a paragraph is gold when a supporting fact names its title.

    Sentences carry their own leading space. The hidden test set has no answers.
    """
    return titled_paragraphs(data, separator="")


def titled_paragraphs(data: Mapping[str, Any], *, separator: str) -> Question:
    """A question of the shape that HotpotQA introduced and 2WikiMultiHopQA took over."""
    gold = {title for title, _ in pairs(data.get("supporting_facts") or [], "title", "sent_id")}
    candidates = [
        Candidate(title, _joined(sentences, separator), title in gold)
        for title, sentences in pairs(data.get("context"), "title", "sentences")
    ]
    return make_question(
        id_of(data, "_id" if "_id" in data else "id"),
        text_of(data, "question"),
        (text_of(data, "answer"),) if data.get("answer") is not None else (),
        candidates=candidates,
        meta=without(data, *_USED),
    )


def pairs(value: Any, first: str, second: str) -> list[tuple[str, Any]]:
    """[[title, x], ...] as published, or {first: [...], second: [...]} as in Parquet copies."""
    if isinstance(value, dict) and {first, second} <= value.keys():
        value = list(zip(value[first], value[second], strict=False))
    whole = isinstance(value, list) and all(
        isinstance(pair, (list, tuple)) and len(pair) == 2 and isinstance(pair[0], str)
        for pair in value
    )
    if not whole:
        raise RowFault(f"context, supporting_facts: expected pairs of {first} and {second}")
    return [(pair[0], pair[1]) for pair in value]


def _joined(sentences: Any, separator: str) -> str:
    if not isinstance(sentences, list) or not all(isinstance(item, str) for item in sentences):
        raise RowFault("context: expected a list of sentences after each title")
    return separator.join(sentences).strip()


LAYOUT = Layout(marks("_id question context", "id question context supporting_facts"), parse)
