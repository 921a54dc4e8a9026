"""Abstain examples: one query with its retrieval scores and whether retrieval succeeded, per row.

Rows come from a file (JSON lines, CSV, Parquet), from TREC runs, or from our own retrievers.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from calibjax import fields, strictjson, textfiles
from calibjax.abstention.score_features import Features, batch_features, pooled_lists, score_lists
from calibjax.errors import InputError, input_error
from calibjax.textfiles import Rejected, Row, RowFault

TUNE, TEST = "tune", "test"
_JSON_CELLS = ("hop1_scores", "hop2_scores", "hop2_ids", "scores", "pipelines")
_PREFIXES = ("scores", "pipelines")


@dataclass(frozen=True, slots=True)
class Example:
    """One query. success: 1.0 if all gold passages are in the top k, None where not known.

    hop2_scores: one list per bridge query; None: none was asked. split: tune, test or None.
    scores: further signals; pipelines: success of other pipelines; costs: what each costs.
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


class Loaded(NamedTuple):
    """Examples, rows set aside, exact copies left out, and whether the file ends early."""

    examples: list[Example]
    rejected: list[Rejected]
    n_duplicates: int
    truncated: bool


def load_examples(
    path: str | Path, *, name: str = "examples", needs_success: bool = True
) -> Loaded:
    """The examples in a file; `name` is the flag that errors mention.

    A bad row is set aside, by line and id. Raises InputError for file faults: a missing column,
    more than half of the rows rejected, lists that ascend (distances), a wrong split, an id in both
    splits, a signal that some rows lack.
    """
    required = ["id", "hop1_scores", *(["success"] if needs_success else [])]
    records = textfiles.read_records(path, required=required, name=name)
    ascending: list[int] = []

    def parse(row: Row) -> tuple[int, Example]:
        return row.line, _parse(_from_cells(row), ascending, needs_success)

    parsed = textfiles.parse_rows(records, parse)
    total = len(parsed.rows) + len(parsed.rejected)
    if 2 * len(ascending) > total:
        raise InputError(
            f"{name}={path}: hop1_scores: looks like distances (lower = better): {len(ascending)}"
            f" of {total} lists ascend, the first at line {ascending[0]}; fix: negate them"
        )
    check_splits([example for _, example in parsed.rows], path, name)
    kept, clashing, n_duplicates = _unique(parsed.rows, str(path))
    rejected = sorted([*parsed.rejected, *clashing], key=lambda row: row.line)
    textfiles.check_kept(textfiles.Parsed(kept, rejected), path, name)
    _check_complete(kept, path, name)
    examples = [example for _, example in kept]
    return Loaded(examples, rejected, n_duplicates, records.truncated)


def split_of(examples: Sequence[Example], seed: int, name: str = "examples") -> np.ndarray:
    """True for rows to tune on, [n]: by their `split`, else a seeded half of the ids.

    The half depends on seed and ids alone, not on the order of rows or on the machine.
    """
    if examples and examples[0].split is not None:
        tune = np.array([example.split == TUNE for example in examples])
    else:
        tune = half_of([example.id for example in examples], seed)
    for part, count in ((TUNE, int(tune.sum())), (TEST, int((~tune).sum()))):
        if not count:
            expected = f"at least one row to {'tune on' if part == TUNE else 'test on'}"
            found = f"{len(examples)} rows"
            raise input_error(name, found, f"{expected}, found no {part} row", "give more rows")
    return tune


def half_of(ids: Sequence[str], seed: int) -> np.ndarray:
    """A seeded half (rounded down) of the ids as a mask [n], whatever their order."""
    digests = [hashlib.sha256(f"{seed}\0{key}".encode("utf-8", "replace")).digest() for key in ids]
    mask = np.zeros(len(ids), bool)
    mask[sorted(range(len(ids)), key=digests.__getitem__)[: len(ids) // 2]] = True
    return mask


def split_hash(ids: Sequence[str], tune: np.ndarray) -> str:
    """SHA-256 of a split: equal ids in equal parts, equal hash."""
    text = "\n".join(sorted(f"{key}\t{int(part)}" for key, part in zip(ids, tune)))
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def example_features(examples: Sequence[Example]) -> Features:
    """Features of the examples; the question's length only where all have a question."""
    hop2: list[Any] = [example.hop2_scores for example in examples]
    with_ids = [e.hop2_ids is not None for e in examples if e.hop2_scores]
    ids = [e.hop2_ids for e in examples] if with_ids and all(with_ids) else None
    questions = [e.question for e in examples if e.question is not None]
    return batch_features(
        score_lists([example.hop1_scores for example in examples]),
        pooled_lists(hop2, ids, len(examples)),
        questions if len(questions) == len(examples) else None,
    )


def column(examples: Sequence[Example], take: Callable[[Example], float | None]) -> np.ndarray:
    """A number of each example, float64 [n]; NaN where it has none."""
    values = [take(example) for example in examples]
    return np.array([np.nan if value is None else value for value in values], np.float64)


def check_splits(examples: Sequence[Example], path: str | Path, name: str) -> None:
    """InputError unless `split` is absent everywhere, or tune or test in every row, no id in both.

    Every row has to say it once one does.
    """
    counts: dict[str, int] = {}
    for example in examples:
        key = "(none)" if example.split is None else example.split
        counts[key] = counts.get(key, 0) + 1
    if set(counts) <= {"(none)"}:
        return
    found = ", ".join(f"{key} {count}" for key, count in counts.items())
    if not set(counts) <= {TUNE, TEST}:
        fix = "name each row's split tune or test, or drop the column"
        raise InputError(f"{name}={path}: split: expected tune or test, found {found}; fix: {fix}")
    for part in (TUNE, TEST):
        if part not in counts:
            fix = "add some, or drop the column for a seeded half split"
            raise InputError(f"{name}={path}: no {part} row: found {found}; fix: {fix}")
    places: dict[str, set[str | None]] = {}
    for example in examples:
        places.setdefault(example.id, set()).add(example.split)
    both = [key for key, parts in places.items() if len(parts) > 1]
    if both:
        shown = ", ".join(both[:5]) + (", ..." if len(both) > 5 else "")
        raise InputError(
            f"{name}={path}: {len(both)} ids are in tune and in test ({shown});"
            " fix: keep each in one of them"
        )


def _parse(row: Row, ascending: list[int], needs_success: bool) -> Example:
    key = fields.identifier(row, "id")
    try:
        hop1 = tuple(fields.numbers(row.data["hop1_scores"], "hop1_scores"))
        _check_order(hop1, row.line, ascending)
        hop2 = _lists(row.data.get("hop2_scores"), "hop2_scores", fields.numbers)
        names = _lists(row.data.get("hop2_ids"), "hop2_ids", _identifiers)
        if names is not None and list(map(len, names)) != list(map(len, hop2 or ())):
            raise fields.fault("hop2_ids", "<shape>", "one id for each of hop2_scores")
        optional = {
            "rescue_success": _maybe_binary(row, "rescue_success"),
            "rescue_cost": _optional(row, "rescue_cost", fields.number),
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
            costs={n: fields.number(i, "cost", 0.0) for n, i in pipelines if "cost" in i.data},
            **optional,
        )
    except RowFault as fault:
        raise RowFault(f"id={key}: {fault}") from None


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


def _optional(row: Row, key: str, read: Callable[[Row, str], Any]) -> Any:
    """None where the row has no value (null, or an empty cell)."""
    value = row.data.get(key)
    return None if value is None or (row.is_text and value == "") else read(row, key)


def _lists(value: Any, key: str, read: Callable[[Any, str], list]) -> tuple[tuple, ...] | None:
    """A list of lists; null is none, an empty inner list is a query that found nothing."""
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(item, list) for item in value):
        raise fields.fault(key, value, "a list of lists, one per bridge query")
    return tuple(tuple(read(item, key)) if item else () for item in value)


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


def _unique(
    rows: Iterable[tuple[int, Example]], path: str
) -> tuple[list[tuple[int, Example]], list[Rejected], int]:
    """Each id once: equal copies count as one, copies that differ are all set aside."""
    copies: dict[str, list[tuple[int, Example]]] = {}
    for line, example in rows:
        copies.setdefault(example.id, []).append((line, example))
    kept, rejected, repeated = [], [], 0
    for key, group in copies.items():
        if all(example == group[0][1] for _, example in group):
            kept.append(group[0])
            repeated += len(group) - 1
            continue
        lines = ", ".join(str(line) for line, _ in group)
        reason = f'id="{key}": expected one row, found {len(group)} that differ (at {lines})'
        rejected += [Rejected(path, line, reason, key) for line, _ in group]
    return kept, rejected, repeated


def _check_complete(rows: Sequence[tuple[int, Example]], path: str | Path, name: str) -> None:
    """A signal or a pipeline has to be in every row: else each would be judged on other queries."""
    for kind in ("scores", "pipelines"):
        columns = {key for _, example in rows for key in getattr(example, kind)}
        for key in sorted(columns):
            missing = [line for line, example in rows if key not in getattr(example, kind)]
            if missing:
                raise InputError(
                    f"{name}={path}: {kind}.{key}: missing in {len(missing)} of {len(rows)} rows,"
                    f" the first at line {missing[0]}; fix: give it in every row, or leave it out"
                )
