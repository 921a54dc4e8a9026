"""One abstain example: a query with its retrieval scores and whether retrieval succeeded."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from calibjax import storage
from calibjax.reading import fields, strictjson
from calibjax.reading.strictjson import RowFault
from calibjax.reading.textfiles import Row

_JSON_CELLS = ("hop1_scores", "hop2_scores", "hop2_ids", "scores", "pipelines")
_PREFIXES = ("scores", "pipelines")


@dataclass(frozen=True, slots=True)
class Example:
    """One query. success: 1.0 if all gold passages are in the top k, None where not known.

    hop2_scores: one list per bridge query; None: none was asked. split: tune, test or None.
    scores: further signals; pipelines: success of other pipelines; costs: what each costs.
    type: kind of question, for figures of each kind.
    """

    id: str
    hop1_scores: tuple[float, ...]
    success: float | None = None
    question: str | None = None
    hop2_scores: tuple[tuple[float, ...], ...] | None = None
    hop2_ids: tuple[tuple[str, ...], ...] | None = None
    split: str | None = None
    scores: Mapping[str, float] = field(default_factory=dict)
    pipelines: Mapping[str, float] = field(default_factory=dict)
    costs: Mapping[str, float] = field(default_factory=dict)
    rescue_success: float | None = None
    rescue_cost: float | None = None
    type: str | None = None


def parse_example(row: Row, ascending: list[int], needs_success: bool) -> Example:
    """The example of a row. Raises RowFault naming the id; `ascending` collects lines of distances.

    Dotted columns (`scores.x`, `pipelines.a.success`) count as objects, text cells as JSON.
    """
    row = _from_cells(row)
    key = fields.identifier(row, "id")
    try:
        hop1 = tuple(_scores(row.data["hop1_scores"], "hop1_scores"))
        _check_order(hop1, row.line, ascending)
        hop2 = _lists(row.data.get("hop2_scores"), "hop2_scores", _scores)
        names = _lists(row.data.get("hop2_ids"), "hop2_ids", _identifiers)
        if names is not None and list(map(len, names)) != list(map(len, hop2 or ())):
            shapes = [[len(each) for each in lists or ()] for lists in (names, hop2)]
            many = "{} ids for {} scores in the lists of hop2_scores".format(*shapes)
            raise RowFault(f"hop2_ids: expected one id for each score, found {many}")
        optional = {
            "rescue_success": _maybe_binary(row, "rescue_success"),
            "rescue_cost": _cost(row, "rescue_cost"),
        }
        pipelines = _objects(row, "pipelines")
        return Example(
            id=key,
            hop1_scores=hop1,
            success=(_binary if needs_success else _maybe_binary)(row, "success"),
            question=_optional(row, "question", fields.text),
            hop2_scores=hop2 or None,
            hop2_ids=names or None,
            split=_optional(row, "split", fields.text),
            scores={name: fields.number(inner, "x") for name, inner in _numbers(row, "scores")},
            pipelines={name: _binary(inner, "success") for name, inner in pipelines},
            type=_label(row.data.get("type")),
            costs={n: cost for n, i in pipelines if (cost := _cost(i, "cost")) is not None},
            **optional,
        )
    except RowFault as fault:
        raise RowFault(f"id={key}: {fault}") from None


def to_row(example: Example) -> dict[str, Any]:
    """The row of a file that `parse_example` reads back."""
    row = {key: value for key, value in storage.plain(example).items() if value not in (None, {})}
    costs = row.pop("costs", {})
    if "pipelines" in row:
        row["pipelines"] = {
            name: {"success": success, **({"cost": costs[name]} if name in costs else {})}
            for name, success in row["pipelines"].items()
        }
    return row


def _check_order(scores: Sequence[float], line: int, ascending: list[int]) -> None:
    """Best first; ties are fine."""
    steps = np.diff(scores)
    if (steps <= 0).all():
        return
    place = int(np.argmax(steps > 0)) + 1
    if (steps >= 0).all():
        ascending.append(line)
        raise RowFault("hop1_scores: expected best first, found ascending; fix: negate distances")
    raise RowFault(
        f"hop1_scores[{place}]={scores[place]:g}: expected at most {scores[place - 1]:g}, the score"
        " before it (best first); fix: sort the list"
    )


def _binary(row: Row, key: str) -> float:
    value = fields.outcome(row, key)
    if value not in (0.0, 1.0):
        raise fields.fault(key, row.data.get(key), "0 or 1")
    return value


def _maybe_binary(row: Row, key: str) -> float | None:
    return _optional(row, key, _binary)


def _cost(row: Row, key: str) -> float | None:
    return _optional(row, key, lambda row, key: fields.number(row, key, 0.0))


def _optional(row: Row, key: str, read: Callable[[Row, str], Any]) -> Any:
    """None where the row has no value (null, or an empty cell)."""
    value = row.data.get(key)
    return None if value is None or (row.is_text and value == "") else read(row, key)


def _label(value: Any) -> str | None:
    """A text or a whole number as a name; files may use the column for something else."""
    is_name = isinstance(value, (str, int)) and not isinstance(value, bool)
    return (str(value).strip() or None) if is_name else None


def _lists(value: Any, key: str, read: Callable[[Any, str], list]) -> tuple[tuple, ...] | None:
    """A list of lists; null is none, an empty inner list is a query that found nothing."""
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(item, list) for item in value):
        raise fields.fault(key, value, "a list of lists, one per bridge query")
    return tuple(tuple(read(item, key)) if item else () for item in value)


def _scores(value: Any, key: str) -> list[float]:
    """Numbers that float32 holds: features are computed in it."""
    scores = fields.numbers(value, key)
    for score in scores:
        if abs(score) > fields.FLOAT32_MAX:
            raise fields.fault(key, score, "scores below 3.4e38 in size")
    return scores


def _identifiers(items: list[Any], key: str) -> list[str]:
    return [fields.identifier(Row(0, {key: item}), key) for item in items]


def _numbers(row: Row, key: str) -> list[tuple[str, Row]]:
    """The numbers of a nested object, each as a row of its own that keeps its name for errors."""
    found = row.data.get(key) or {}
    if not isinstance(found, dict):
        raise fields.fault(key, found, "an object of numbers")
    named = []
    for name, value in found.items():
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            raise fields.fault(f"{key}.{name}", value, "a number")
        one = Row(row.line, {"x": value}, row.is_text)
        try:
            fields.number(one, "x")
        except RowFault:
            raise fields.fault(f"{key}.{name}", value, "a number") from None
        named.append((name, one))
    return named


def _objects(row: Row, key: str) -> list[tuple[str, Row]]:
    found = row.data.get(key) or {}
    if not isinstance(found, dict) or not all(isinstance(x, dict) for x in found.values()):
        raise fields.fault(key, found, "an object of objects with success")
    return [(name, Row(row.line, inner, row.is_text)) for name, inner in found.items()]


def _from_cells(row: Row) -> Row:
    """Dotted columns (`scores.x`, `pipelines.a.success`) as objects, and lists out of CSV cells."""
    data: dict[str, Any] = {}
    for key, value in row.data.items():
        head, *rest = key.split(".")
        if row.is_text and key in _JSON_CELLS:
            value = _cell(key, value)
        if not rest or head not in _PREFIXES:
            data[key] = {**data.get(key, {}), **value} if isinstance(value, dict) else value
        elif not (row.is_text and value == "") and value is not None:
            inner = data.setdefault(head, {})
            for part in rest[:-1]:
                inner = inner.setdefault(part, {})
            inner[rest[-1]] = value
    return Row(row.line, data, row.is_text)


def _cell(key: str, text: str) -> Any:
    if not text.strip():
        return None
    try:
        return strictjson.parse(text.encode())
    except RowFault:
        raise fields.fault(key, text[:60], "JSON in the cell", "[0.9, 0.5]") from None
