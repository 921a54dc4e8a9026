"""TriviaQA (Joshi et al. 2017): one JSON document, {"Data": [{"Question", "Answer": {...}}]}."""

from collections.abc import Iterable, Mapping
from typing import Any

from calibjax.reading.textfiles import RowFault
from calibjax.records import Question
from calibjax.sources.fields import distinct, id_of, make_question, text_of, texts_of, without
from calibjax.sources.layout import Layout, marks

_USED = ("Question", "QuestionId", "Answer", "SearchResults", "EntityPages")


def flatten(document: Mapping[str, Any]) -> Iterable[Any]:
    """The questions inside the published document."""
    return document["Data"]


def parse(data: Mapping[str, Any]) -> Question:
    """One question: the answer's value first, then all its aliases, plain and normalised.

    The evidence that it names lies in files of its own and is not read. Copies on hubs use lower
    case names. The hidden test set has no answers.
    """
    row = {_published_name(name): value for name, value in data.items()}
    answer = row.get("Answer")
    return make_question(
        id_of(row, "QuestionId"),
        text_of(row, "Question"),
        () if answer is None else _answers(answer),
        meta=without(row, *_USED),
    )


def _published_name(name: str) -> str:
    return "".join(part[:1].upper() + part[1:] for part in name.split("_"))


def _answers(answer: Any) -> tuple[str, ...]:
    if not isinstance(answer, dict):
        raise RowFault("Answer: expected an object with Value and Aliases")
    row = {_published_name(name): value for name, value in answer.items()}
    plain = distinct((text_of(row, "Value"), *texts_of(row, "Aliases")))
    known = {text.casefold() for text in plain}
    normalised = texts_of(row, "NormalizedAliases") if row.get("NormalizedAliases") else ()
    return plain + tuple(text for text in normalised if text.casefold() not in known)


LAYOUT = Layout(
    marks("Question QuestionId", "question question_id answer", "question question_id"),
    parse,
    flatten,
)
