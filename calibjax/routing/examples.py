"""Reads per-example outcomes of any system: right without evidence, right with it, router scores.

A row: `id`, `correct_without`, `correct_with` in [0, 1]; `scores.<router>` (higher = retrieve
first), nested or as dotted columns; optional `features.<family>.<name>`, `tokens.<kind>`,
`seconds.<kind>`, `scoring.<router>.{tokens, seconds}`, `split`, `group`, `f1_without`, `f1_with`,
`repeat_without`, `repeat_with`, `level`. Other columns are ignored.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from calibjax.errors import InputError, input_error
from calibjax.reading import textfiles
from calibjax.reading.textfiles import Rejected
from calibjax.routing.costs import FAMILIES
from calibjax.routing.example_rows import (
    ARMS,
    PAIRS,
    SECONDS,
    TOKENS,
    UNITS,
    ExampleRow,
    is_absent,
    parse,
    unique,
)

SPLITS = ("train", "calibration", "test")

_FEATURE_FAMILIES = FAMILIES[:-1]


@dataclass(slots=True)
class Outcomes:
    """n rows as columns; float64 [n] unless said otherwise.

    scores: by router; features: family -> (column names, [n, d]); tokens, seconds: by kind, empty
    with `reasons[...]` saying why; scoring: "tokens" and "seconds" -> router -> what making its
    score took; pairs: "f1" and "repeat" -> (without, with); split: "train", "calibration" or "test"
    [n], or None; group: text [n], rows of one question, or None.
    """

    ids: np.ndarray
    correct_without: np.ndarray
    correct_with: np.ndarray
    scores: dict[str, np.ndarray]
    features: dict[str, tuple[list[str], np.ndarray]] = field(default_factory=dict)
    tokens: dict[str, np.ndarray] = field(default_factory=dict)
    seconds: dict[str, np.ndarray] = field(default_factory=dict)
    scoring: dict[str, dict[str, np.ndarray]] = field(
        default_factory=lambda: {unit: {} for unit in UNITS}
    )
    pairs: dict[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    level: np.ndarray | None = None
    split: np.ndarray | None = None
    group: np.ndarray | None = None
    reasons: dict[str, str] = field(default_factory=dict)
    rejected: list[Rejected] = field(default_factory=list)
    n_duplicates: int = 0
    truncated: bool = False

    def __len__(self) -> int:
        return len(self.ids)


def load(
    path: str | Path, *, rename: Mapping[str, str] | None = None, name: str = "examples"
) -> Outcomes:
    """The outcomes in a file. Raises InputError for a file that cannot be used.

    A missing arm, or a router's score missing in some rows, would judge each figure on other rows:
    such a file is refused, with the number of rows and the first of them. Equal copies of a row
    count once; rows of one id that differ are all rejected.
    """
    records = textfiles.read_records(path, required=("id",), rename=rename, name=name)
    for arm in ARMS:
        _check_arm(records, arm, path, name, rename)
    parsed = textfiles.parse_rows(records, parse)
    kept, rejected, n_duplicates = unique(parsed.rows, str(path))
    rejected = sorted([*parsed.rejected, *rejected], key=lambda row: row.line)
    textfiles.check_kept(textfiles.Parsed(kept, rejected), path, name)
    outcomes = _columns(kept, path, name)
    outcomes.rejected, outcomes.n_duplicates = rejected, n_duplicates
    outcomes.truncated = records.truncated
    return outcomes


def _check_arm(
    records: textfiles.Records,
    arm: str,
    path: str | Path,
    name: str,
    rename: Mapping[str, str] | None,
) -> None:
    lines = [row.line for row in records.rows if is_absent(row.data.get(arm))]
    if records.rows and len(lines) == len(records.rows):
        # One wording for missing columns everywhere, with the closest name.
        textfiles.read_records(path, required=(arm,), rename=rename, name=name)
    if lines:
        fix = "answer these questions in both arms, or leave the rows out"
        raise InputError(f"{name}={path}: {_missing(arm, lines, len(records.rows))}; fix: {fix}")


def _missing(what: str, lines: Sequence[int], total: int) -> str:
    return f"{what} is missing in {len(lines)} of {total} rows, first at line {lines[0]}"


def _columns(rows: Sequence[ExampleRow], path: str | Path, name: str) -> Outcomes:
    found = dict.fromkeys(key for row in rows for key in row.numbers)
    table = _Table(rows, f"{name}={path}")
    outcomes = Outcomes(
        ids=_texts([row.id for row in rows]),
        correct_without=table.column("correct_without"),
        correct_with=table.column("correct_with"),
        scores={
            key.removeprefix("scores."): table.whole(key, "router")
            for key in found
            if key.startswith("scores.")
        },
        features=_features(list(found), table),
        split=_split(rows, f"{name}={path}"),
        group=_group(rows),
    )
    outcomes.tokens = _kinds("tokens", TOKENS, found, table, outcomes.reasons)
    outcomes.seconds = _kinds("seconds", SECONDS, found, table, outcomes.reasons)
    outcomes.scoring = _scoring(found, table, outcomes.reasons)
    for pair in PAIRS:
        arms = (f"{pair}_without", f"{pair}_with")
        if all(arm in found and not table.missing(arm) for arm in arms):
            outcomes.pairs[pair] = (table.column(arms[0]), table.column(arms[1]))
    if "level" in found and not table.missing("level"):
        outcomes.level = table.column("level")
    if not outcomes.scores and not outcomes.features:
        expected = "a router: a column scores.<name>, or features.<family>.<name>"
        raise input_error(name, path, expected, "add one, such as scores.entropy")
    return outcomes


class _Table:
    """Named numbers of the rows; `source` is how errors call the file."""

    def __init__(self, rows: Sequence[ExampleRow], source: str) -> None:
        self.rows, self.source = rows, source

    def missing(self, key: str) -> list[int]:
        """Lines of the rows without this number."""
        return [row.line for row in self.rows if key not in row.numbers]

    def column(self, key: str) -> np.ndarray:
        return np.array([row.numbers[key] for row in self.rows], np.float64)

    def whole(self, key: str, what: str) -> np.ndarray:
        """The column. Raises InputError if a row lacks it."""
        lines = self.missing(key)
        if lines:
            fix = f"score every row, or drop {key}"
            text = _missing(f"{what} {key}", lines, len(self.rows))
            raise InputError(f"{self.source}: {text}; fix: {fix}")
        return self.column(key)


def _features(found: Sequence[str], table: _Table) -> dict[str, tuple[list[str], np.ndarray]]:
    families: dict[str, list[str]] = {}
    for key in found:
        if key.startswith("features."):
            family, _, column = key.removeprefix("features.").partition(".")
            if family not in _FEATURE_FAMILIES or not column:
                expected = f"features.<family>.<name>, family {', '.join(_FEATURE_FAMILIES)}"
                raise InputError(f"{table.source}: column {key}: expected {expected}")
            families.setdefault(family, []).append(key)
    return {
        family: (
            [key.split(".", 2)[2] for key in keys],
            np.stack([table.whole(key, "feature") for key in keys], axis=1),
        )
        for family, keys in families.items()
    }


def _kinds(
    head: str,
    kinds: Sequence[str],
    found: Mapping[str, None],
    table: _Table,
    reasons: dict[str, str],
) -> dict[str, np.ndarray]:
    """All columns of one kind of measurement, or none and the reason."""
    keys = [f"{head}.{kind}" for kind in kinds]
    for key in keys:
        if key not in found:
            reasons[head] = f"no column {key}"
            return {}
        lines = table.missing(key)
        if lines:
            reasons[head] = _missing(key, lines, len(table.rows))
            return {}
    return {kind: table.column(key) for kind, key in zip(kinds, keys)}


def _scoring(
    found: Mapping[str, None], table: _Table, reasons: dict[str, str]
) -> dict[str, dict[str, np.ndarray]]:
    """What making a router's score took, of the routers where every row has it."""
    made: dict[str, dict[str, np.ndarray]] = {unit: {} for unit in UNITS}
    for key in found:
        if key.startswith("scoring."):
            router, _, unit = key.removeprefix("scoring.").rpartition(".")
            lines = table.missing(key)
            if lines:
                reasons[key] = _missing(key, lines, len(table.rows))
            else:
                made[unit][router] = table.column(key)
    return made


def _split(rows: Sequence[ExampleRow], source: str) -> np.ndarray | None:
    counts = Counter(row.split for row in rows)
    if set(counts) == {""}:
        return None
    shown = ", ".join(f"{name or 'none'} {count}" for name, count in sorted(counts.items()))
    unknown = sorted(set(counts) - set(SPLITS))
    if unknown:
        expected = f"each row in one of {', '.join(SPLITS)}, found {shown}"
        raise InputError(f"{source}: split={unknown[0]}: expected {expected}; fix: rename it")
    for part in ("calibration", "test"):
        if not counts[part]:
            fix = f"mark some rows {part}, or drop the column: the rows are then split at random"
            raise InputError(f"{source}: split: no {part} rows, found {shown}; fix: {fix}")
    _check_disjoint(rows, source)
    return np.array([row.split for row in rows])


def _check_disjoint(rows: Sequence[ExampleRow], source: str) -> None:
    """Rows of one question must share a split, else its threshold has seen the test."""
    seen: dict[str, str] = {}
    clash = [r.group for r in rows if r.group and seen.setdefault(r.group, r.split) != r.split]
    if clash:
        ids = ", ".join(dict.fromkeys(clash[:5]))
        text = f"{len(set(clash))} groups are in two splits ({ids})"
        raise InputError(f"{source}: {text}; fix: split by question")


def _group(rows: Sequence[ExampleRow]) -> np.ndarray | None:
    if not any(row.group for row in rows):
        return None
    return _texts([row.group or f"\0{row.id}" for row in rows])


def _texts(values: Sequence[str]) -> np.ndarray:
    made = np.empty(len(values), object)
    made[:] = list(values)
    return made
