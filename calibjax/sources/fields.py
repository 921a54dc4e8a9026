"""Checks of single fields and the small builders that every reader of questions shares."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from calibjax.reading.strictjson import shown
from calibjax.reading.textfiles import RowFault
from calibjax.records import Passage, Question, passage_id

# Marks in Question.meta.
UNANSWERABLE = "unanswerable"
GOLD_TITLES = "gold_titles"
SENTENCE_ANSWERS = "sentence_answers"
CHOICES = "choices"
_YES_NO = {"yes", "no", "maybe"}


class Candidate(NamedTuple):
    """One passage that came with a question, before it has an id."""

    title: str
    text: str
    is_gold: bool


def text_of(data: Mapping[str, Any], name: str) -> str:
    """A field that must hold text that is not blank; its outer white space is cut."""
    value = data.get(name)
    if not isinstance(value, str) or not value.strip():
        raise RowFault(f"{name}={shown(value)}: expected text that is not blank")
    return value.strip()


def id_of(data: Mapping[str, Any], name: str = "id") -> str:
    """An id as text; integers and text share one name space."""
    value = data.get(name)
    if isinstance(value, bool) or not isinstance(value, (str, int)) or not str(value).strip():
        raise RowFault(f"{name}={shown(value)}: expected text or an integer")
    return str(value).strip()


def texts_of(data: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """A field that must hold a list of texts. Blanks and repeats are left out; "None" is text."""
    value = data.get(name)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        fix = f'; fix: ["{value}"]' if isinstance(value, str) else ""
        raise RowFault(f"{name}={shown(value)}: expected a list of texts{fix}")
    return distinct(value)


def answers_of(data: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Gold answers: texts, at least one of them not blank."""
    answers = texts_of(data, name)
    if not answers:
        raise RowFault(f"{name}={shown(data[name])}: expected an answer that is not blank")
    return answers


def member_of(data: Mapping[str, Any], name: str, allowed: Sequence[str]) -> str:
    """A field that must hold one of a few words."""
    value = data.get(name)
    if value not in allowed:
        raise RowFault(f"{name}={shown(value)}: expected one of {', '.join(allowed)}")
    return str(value)


def distinct(texts: Iterable[str]) -> tuple[str, ...]:
    """The texts that are not blank, outer white space cut, each once, in order."""
    return tuple(dict.fromkeys(text.strip() for text in texts if text.strip()))


def content_id(dataset: str, *parts: str) -> str:
    """Id of a question whose file gives it none: the same in every slice of the set."""
    digest = hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()
    return f"{dataset}-{digest[:12]}"


def make_question(
    id: str,
    question: str,
    answers: tuple[str, ...],
    *,
    candidates: Iterable[Candidate] = (),
    options: tuple[str, ...] = (),
    meta: Mapping[str, Any] | None = None,
) -> Question:
    """A Question whose passages carry content ids, each passage once.

    A candidate without text gives no passage; the title of a gold one is kept in
    meta["gold_titles"]. Text is gold when any of its copies is. Choices of yes, no and maybe are
    no options, because such a question is answered with the word, not with a letter; they go to
    meta["choices"].
    """
    passages: dict[str, Passage] = {}
    gold: dict[str, None] = {}
    gold_titles: dict[str, None] = {}
    for title, text, is_gold in candidates:
        if text.strip():
            passage = Passage(passage_id(title, text), title, text)
            passages.setdefault(passage.id, passage)
            if is_gold:
                gold[passage.id] = None
        elif is_gold:
            gold_titles[title] = None
    kept = dict(meta or {})
    if options and {option.lower() for option in options} <= _YES_NO:
        kept[CHOICES] = list(options)
        options = ()
    if gold_titles:
        kept.setdefault(GOLD_TITLES, list(gold_titles))
    return Question(
        id=id,
        question=question,
        answers=answers,
        passages=tuple(passages.values()),
        gold_ids=tuple(gold),
        options=options,
        meta=kept,
    )


def without(data: Mapping[str, Any], *used: str) -> dict[str, Any]:
    """The columns of a row that the reader did not use; they go into meta."""
    return {name: value for name, value in data.items() if name not in used}
