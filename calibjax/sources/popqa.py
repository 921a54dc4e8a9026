"""PopQA (Mallen et al. 2023): a table; `possible_answers` holds a JSON list as text."""

from collections.abc import Mapping
from typing import Any

from calibjax.reading.strictjson import parse as parse_json
from calibjax.reading.strictjson import shown
from calibjax.reading.textfiles import RowFault
from calibjax.records import Question
from calibjax.sources.fields import answers_of, id_of, make_question, text_of, without
from calibjax.sources.layout import Layout, marks

_USED = ("id", "question", "possible_answers")
_COUNTS = ("s_pop", "o_pop")


def parse(data: Mapping[str, Any]) -> Question:
    """One question with its aliases; the popularity counts in meta are integers."""
    data = {name: _unquoted(value) for name, value in data.items()}
    meta = without(data, *_USED)
    for name in _COUNTS:
        if name in meta:
            meta[name] = _count(name, meta[name])
    answers = parse_json(text_of(data, "possible_answers").encode())
    return make_question(
        id_of(data),
        text_of(data, "question"),
        answers_of({"possible_answers": answers}, "possible_answers"),
        meta=meta,
    )


def _unquoted(value: Any) -> Any:
    # The published table quotes its cells as CSV does, between tabs.
    if isinstance(value, str) and len(value) > 1 and value[0] == value[-1] == '"':
        return value[1:-1].replace('""', '"')
    return value


def _count(name: str, value: Any) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit():
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise RowFault(f"{name}={shown(value)}: expected a whole number")


LAYOUT = Layout(marks("id question possible_answers"), parse)
