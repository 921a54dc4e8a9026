"""Reads prediction files, one row in memory at a time, into arrays: one set a method."""

import contextlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from calibjax.errors import InputError, input_error
from calibjax.reading import fields, textfiles
from calibjax.reading.textfiles import Rejected, Row
from calibjax.report.predictions import Predictions, predictions

REQUIRED = ("id", "confidence", "correct")


class Loaded(NamedTuple):
    """All methods of some files, and what was left out on the way.

    truncated: files that end too early; their complete rows are here.
    """

    methods: dict[str, Predictions]
    rejected: list[Rejected]
    n_kept: int
    n_duplicates: int
    truncated: list[str]


def load(
    paths: Sequence[str | Path],
    *,
    rename: Mapping[str, str] | None = None,
    name: str = "predictions",
) -> Loaded:
    """Methods of JSON-lines, CSV and Parquet files: named by column `method`, else by the file.

    A repeated (id, method) is kept once if all copies say the same; copies that differ are all
    rejected. Raises InputError for a file that cannot be used; `name` is the flag to mention.
    """
    collected: dict[str, _Columns] = {}
    rejected: list[Rejected] = []
    truncated: list[str] = []
    n_rows: list[int] = []
    for index, (path, stem) in enumerate(zip(paths, _stems(paths, name), strict=True)):
        scales: dict[str, _Scale] = {}
        records, n_taken = textfiles.stream_records(
            path,
            lambda row: _collect(row, stem, index, collected, scales),
            required=REQUIRED,
            rename=rename,
            name=name,
        )
        _refuse_percent(scales, path, name)
        rejected += records.rejected
        n_rows.append(n_taken + len(records.rejected))
        truncated += [str(path)] if records.truncated else []
    rejected += _reject_conflicts(collected, paths)
    _check_kept(rejected, n_rows, paths, name)
    methods = {method: columns.freeze() for method, columns in collected.items()}
    methods = {method: rows for method, rows in methods.items() if len(rows)}
    return Loaded(
        methods=methods,
        rejected=rejected,
        n_kept=sum(map(len, methods.values())),
        n_duplicates=sum(columns.n_repeated for columns in collected.values()),
        truncated=truncated,
    )


@dataclass(slots=True)
class _Columns:
    """The rows of a method while files are read; compact, since files may be large."""

    ids: list[str] = field(default_factory=list)
    confidence: array = field(default_factory=lambda: array("d"))
    correct: array = field(default_factory=lambda: array("d"))
    answered: bytearray = field(default_factory=bytearray)
    group: list[str] = field(default_factory=list)
    has_group: bool = False
    file: array = field(default_factory=lambda: array("i"))
    line: array = field(default_factory=lambda: array("q"))
    place: dict[str, int] = field(default_factory=dict)
    conflicts: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    n_repeated: int = 0

    def add(self, key: str, content: tuple[float, float, bool, str], file: int, line: int) -> None:
        """Appends a row, or counts it as a copy, or notes that it contradicts an earlier one."""
        known = self.place.setdefault(key, len(self.ids))
        if known < len(self.ids):
            if known in self.conflicts:
                self.conflicts[known].append((file, line))
            elif content == self.content(known):
                self.n_repeated += 1
            else:
                first = (self.file[known], self.line[known])
                self.conflicts[known] = [first, (file, line)]
            return
        confidence, correct, answered, group = content
        self.ids.append(key)
        self.confidence.append(confidence)
        self.correct.append(correct)
        self.answered.append(answered)
        self.group.append(group)
        self.has_group = self.has_group or bool(group)
        self.file.append(file)
        self.line.append(line)

    def content(self, place: int) -> tuple[float, float, bool, str]:
        answered, group = bool(self.answered[place]), self.group[place]
        return self.confidence[place], self.correct[place], answered, group

    def freeze(self) -> Predictions:
        """The rows without contradiction. A row without group is a cluster of its own."""
        group = [own or f"\0{key}" for own, key in zip(self.group, self.ids, strict=True)]
        made = predictions(
            self.ids,
            np.frombuffer(self.confidence, np.float64) if self.ids else [],
            np.frombuffer(self.correct, np.float64) if self.ids else [],
            np.frombuffer(self.answered, bool) if self.ids else [],
            group if self.has_group else None,
        )
        keep = np.ones(len(self.ids), bool)
        keep[list(self.conflicts)] = False
        return made.take(np.flatnonzero(keep))


@dataclass(slots=True)
class _Scale:
    """Where the confidences of a method lie, to tell percent from a few stray values."""

    count: int = 0
    above: int = 0
    first: tuple[float, int] = (0.0, 0)
    low: float = 0.0
    high: float = 0.0

    def add(self, value: float, line: int) -> None:
        self.count += 1
        self.low, self.high = min(self.low, value), max(self.high, value)
        if value > 1:
            self.first = self.first if self.above else (value, line)
            self.above += 1

    def is_percent(self) -> bool:
        """Most values above 1 (not just by a little), all of them from 0 to 100."""
        return 2 * self.above > self.count and self.low >= 0 and 2 < self.high <= 100


def _collect(
    row: Row,
    stem: str,
    file: int,
    collected: dict[str, _Columns],
    scales: dict[str, _Scale],
) -> None:
    """Adds a row to its method. Raises RowFault for a value that is not what it must be."""
    method = fields.identifier(row, "method") if _given(row, "method") else stem
    key = fields.identifier(row, "id")
    with contextlib.suppress(textfiles.RowFault):
        scales.setdefault(method, _Scale()).add(fields.number(row, "confidence"), row.line)
    confidence = fields.number(row, "confidence", 0.0, 1.0)
    correct = fields.outcome(row, "correct")
    answered = fields.boolean(row, "answered") if _given(row, "answered") else True
    group = fields.identifier(row, "group") if _given(row, "group") else ""
    columns = collected.setdefault(method, _Columns())
    columns.add(key, (confidence, correct, answered, group), file, row.line)


def _given(row: Row, key: str) -> bool:
    """Whether an optional column holds a value (null, and in CSV an empty cell, is none)."""
    value = row.data.get(key)
    return value is not None and not (row.is_text and value == "")


def _refuse_percent(scales: Mapping[str, _Scale], path: str | Path, name: str) -> None:
    for method, scale in scales.items():
        if scale.is_percent():
            value, line = scale.first
            raise InputError(
                f"{name}={path}: confidence={value:g} at line {line} looks like percent"
                f" ({scale.above} of {scale.count} rows of {method} are above 1);"
                f" fix: divide by 100"
            )


def _reject_conflicts(
    collected: Mapping[str, _Columns], paths: Sequence[str | Path]
) -> list[Rejected]:
    """One rejected row for every copy of an (id, method) whose copies differ."""
    rejected = []
    for method, columns in collected.items():
        for place, copies in columns.conflicts.items():
            key = columns.ids[place]
            one_file = len({file for file, _ in copies}) == 1
            places = [str(line) if one_file else f"{paths[file]}:{line}" for file, line in copies]
            reason = (
                f'id="{key}": expected one row for method {method},'
                f" found {len(copies)} that differ (at {', '.join(places)})"
            )
            rejected += [Rejected(str(paths[file]), line, reason) for file, line in copies]
    return rejected


class _Kept(NamedTuple):
    rows: range
    rejected: list[Rejected]


def _check_kept(
    rejected: Sequence[Rejected], n_rows: Sequence[int], paths: Sequence[str | Path], name: str
) -> None:
    for path, count in zip(paths, n_rows, strict=True):
        lost = [row for row in rejected if row.file == str(path)]
        textfiles.check_kept(_Kept(range(count - len(lost)), lost), path, name)


def _stems(paths: Sequence[str | Path], name: str) -> list[str]:
    """File names without endings; with their directory where two files are called alike."""
    resolved = [Path(path).resolve() for path in paths]
    for place, path in enumerate(resolved):
        if path in resolved[:place]:
            raise input_error(name, paths[place], "each file once", "drop the second mention")
    stems = [_stem(Path(path)) for path in paths]
    alike = {stem for stem in stems if stems.count(stem) > 1}
    longer = [f"{path.parent.name}/{stem}" for path, stem in zip(resolved, stems, strict=True)]
    return [b if a in alike else a for a, b in zip(stems, longer, strict=True)]


def _stem(path: Path) -> str:
    return Path(path.name.removesuffix(".gz")).stem
