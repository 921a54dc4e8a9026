"""BioASQ yes/no (Tsatsaronis et al. 2015): {"questions": [{id, body, type, exact_answer, ...}]}."""

from collections.abc import Iterator, Mapping
from typing import Any

from calibjax.reading.strictjson import shown
from calibjax.reading.textfiles import RowFault
from calibjax.records import Question
from calibjax.sources import mirage
from calibjax.sources.fields import Candidate, id_of, make_question, text_of, without
from calibjax.sources.layout import Layout, marks

CHOICES = ("yes", "no")
_USED = ("id", "body", "exact_answer", "snippets")


def flatten(document: Mapping[str, Any]) -> Iterator[Any]:
    """Questions of a BioASQ or of a MIRAGE file."""
    if isinstance(document.get("questions"), list):
        return iter(document["questions"])
    return mirage.flatten(document, "bioasq")


def parse(data: Mapping[str, Any]) -> Question | None:
    """One yes/no question with its snippets, all gold; other types (list, factoid) give None."""
    if "options" in data:
        return mirage.parse(data)
    if data.get("type", "yesno") != "yesno":
        return None
    snippets = data.get("snippets") or []
    if not isinstance(snippets, list):
        raise RowFault("snippets: expected a list")
    return make_question(
        id_of(data),
        text_of(data, "body"),
        (_answer(data.get("exact_answer")),),
        candidates=[_candidate(snippet) for snippet in snippets],
        options=CHOICES,
        meta=without(data, *_USED),
    )


def _answer(value: Any) -> str:
    # Some years hold a list of one, some years "Yes" or "yes.".
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    word = value.strip().strip(".").lower() if isinstance(value, str) else None
    if word not in CHOICES:
        raise RowFault(f"exact_answer={shown(value)}: expected yes or no")
    return word


def _candidate(snippet: Any) -> Candidate:
    if not isinstance(snippet, dict):
        raise RowFault("snippets: expected objects with text and document")
    document = snippet.get("document")
    # The address of an abstract ends in its PubMed id, which serves as its title.
    title = document.rstrip("/").rsplit("/", 1)[-1] if isinstance(document, str) else ""
    return Candidate(title, text_of(snippet, "text"), True)


LAYOUT = Layout(marks("id body type", "id body exact_answer", mirage.MARKS), parse, flatten)
