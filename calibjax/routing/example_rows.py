"""One row of an outcome file: its checked numbers by dotted name, and which rows count."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from calibjax.errors import InputError
from calibjax.reading import fields
from calibjax.reading.textfiles import Rejected, Row

TOKENS = ("without_prompt", "without_output", "with_prompt", "with_output")
SECONDS = ("without", "with", "retrieval")
UNITS = ("tokens", "seconds")
ARMS = ("correct_without", "correct_with")
PAIRS = ("f1", "repeat")

# How deep each group is nested: scores.<router>, features.<family>.<name>.
_GROUPS = {"scores": 1, "features": 2, "tokens": 1, "seconds": 1, "scoring": 2}
# Measurements: none is below zero, and other kinds of them are ignored.
_MEASURED = {"tokens": TOKENS, "seconds": SECONDS}


@dataclass(frozen=True, slots=True)
class ExampleRow:
    """One row: `numbers` by dotted name, absent ones left out."""

    line: int
    id: str
    group: str
    split: str
    numbers: dict[str, float]


def is_absent(value: Any) -> bool:
    """Null, or the empty cell of a CSV file."""
    return value is None or value == ""


def parse(row: Row) -> ExampleRow:
    """The row with its numbers checked. Raises RowFault naming the first wrong value."""
    flat = Row(row.line, _flatten(row.data), row.is_text)
    numbers = {arm: fields.outcome(flat, arm) for arm in ARMS}
    for key in flat.data:
        if not is_absent(flat.data[key]):
            numbers |= _number(flat, key)
    group, split = flat.data.get("group"), flat.data.get("split")
    return ExampleRow(
        line=row.line,
        id=fields.identifier(flat, "id"),
        group="" if is_absent(group) else fields.identifier(flat, "group"),
        split="" if is_absent(split) else str(split),
        numbers=numbers,
    )


def _number(row: Row, key: str) -> dict[str, float]:
    """The number of a column that has one, {} for columns that are not read."""
    head, _, rest = key.partition(".")
    if head in ("scores", "features") and rest:
        return {key: fields.number(row, key)}
    if rest in _MEASURED.get(head, ()):
        return {key: fields.number(row, key, low=0.0)}
    if head == "scoring" and rest.rpartition(".")[2] in UNITS:
        return {key: fields.number(row, key, low=0.0)}
    if key == "level":
        return {key: fields.number(row, key)}
    pair, _, arm = key.partition("_")
    if pair in PAIRS and arm in ("without", "with"):
        return {key: fields.outcome(row, key)}
    return {}


def _flatten(data: Mapping[str, Any]) -> dict[str, Any]:
    """Nested groups as dotted columns."""
    flat: dict[str, Any] = {}
    for key, value in data.items():
        depth = _GROUPS.get(key)
        flat |= {key: value} if depth is None else _dotted(key, value, depth)
    return flat


def _dotted(key: str, value: Any, depth: int) -> dict[str, Any]:
    if value is None:
        return {}
    if depth == 0:
        return {key: value}
    if not isinstance(value, dict):
        raise fields.fault(key, value, "an object of named numbers")
    flat: dict[str, Any] = {}
    for name, child in value.items():
        flat |= _dotted(f"{key}.{name}", child, depth - 1)
    return flat


def unique(
    examples: Sequence[ExampleRow], path: str
) -> tuple[list[ExampleRow], list[Rejected], int]:
    """One row an id: equal copies count once, differing ones not at all; and how many were copies.

    Raises InputError for an id in two splits.
    """
    copies: dict[str, list[ExampleRow]] = {}
    for example in examples:
        copies.setdefault(example.id, []).append(example)
    kept, rejected, repeated = [], [], 0
    for id, group in copies.items():
        contents = {repr((e.group, e.split, sorted(e.numbers.items()))) for e in group}
        splits = sorted({e.split for e in group})
        if len(splits) > 1:
            lines = ", ".join(str(e.line) for e in group)
            raise InputError(
                f"examples={path}: id={id} is in splits {' and '.join(splits)} (lines {lines}):"
                " expected each question in one; fix: split by question"
            )
        if len(contents) == 1:
            kept.append(group[0])
            repeated += len(group) - 1
            continue
        lines = ", ".join(str(e.line) for e in group)
        reason = f"id={id}: lines {lines} share this id and differ: expected one of them"
        rejected += [Rejected(path, e.line, reason) for e in group]
    return kept, rejected, repeated
