"""Our own rows: id, question, answers, passages [{title, text, is_gold}], options, meta."""

from collections.abc import Mapping
from typing import Any

from calibjax.reading import strictjson
from calibjax.reading.textfiles import RowFault
from calibjax.records import Question
from calibjax.sources.fields import (
    UNANSWERABLE,
    Candidate,
    answers_of,
    id_of,
    make_question,
    text_of,
    texts_of,
    without,
)

_JSON_CELLS = ("answers", "passages", "options", "meta")
_USED = ("id", "question", "answers", "passages", "options", "meta", "dataset")


def fits(data: Mapping[str, Any]) -> bool:
    """Whether a row looks like one of ours."""
    return {"id", "question"} <= data.keys()


def parse(data: Mapping[str, Any], *, may_be_unanswerable: bool = False) -> Question:
    """One row of ours. Columns that are not ours go into meta.

    Questions without gold leave `answers` out (or null). An empty list is a fault, unless the set
    has unanswerable questions or the row says so (meta.is_impossible).
    """
    meta = _meta_of(data)
    unanswerable = data.get("answers") == [] and (
        may_be_unanswerable or meta.get("is_impossible") is True
    )
    if unanswerable:
        meta[UNANSWERABLE] = True
    has_gold = data.get("answers") is not None and not unanswerable
    return make_question(
        id_of(data),
        text_of(data, "question"),
        answers_of(data, "answers") if has_gold else (),
        candidates=[_candidate(item) for item in _list_of(data, "passages")],
        options=_options_of(data, meta),
        meta=meta,
    )


def from_cells(data: Mapping[str, Any]) -> dict[str, Any]:
    """A row of a table, whose lists and objects are JSON inside their cells."""
    row = dict(data)
    for name in _JSON_CELLS:
        cell = str(row.get(name, "")).strip()
        try:
            row[name] = strictjson.parse(cell.encode()) if cell else None
        except RowFault:
            raise RowFault(f'{name}="{cell[:60]}": expected JSON; fix: ["{cell[:60]}"]') from None
    return row


def _meta_of(data: Mapping[str, Any]) -> dict[str, Any]:
    meta = data.get("meta")
    if meta is None:
        meta = {}
    if not isinstance(meta, dict):
        raise RowFault("meta: expected an object")
    return {**without(data, *_USED), **meta}


def _options_of(data: Mapping[str, Any], meta: dict[str, Any]) -> tuple[str, ...]:
    if data.get("options") is not None:
        return texts_of(data, "options")
    return texts_of(meta, "choices") if meta.get("choices") is not None else ()


def _list_of(data: Mapping[str, Any], name: str) -> list[Any]:
    value = data.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise RowFault(f"{name}: expected a list of objects with title and text")
    return value


def _candidate(item: Any) -> Candidate:
    if not isinstance(item, dict) or not isinstance(item.get("text"), str):
        raise RowFault("passages: expected objects with title, text and is_gold")
    title = item.get("title") or ""
    is_gold = item.get("is_gold", False)
    if not isinstance(title, str) or not isinstance(is_gold, bool):
        raise RowFault("passages: expected title to be text and is_gold to be true or false")
    return Candidate(title, item["text"], is_gold)
