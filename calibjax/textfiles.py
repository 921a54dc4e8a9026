"""Reads JSON lines, CSV, TSV and Parquet strictly: a bad row is set aside, a good one never lost.

A row fault (a torn line, a repeated key, NaN, a column too many) puts the row on the rejected list
with file, line and reason. A file fault (no such file, UTF-16, a missing column, nothing kept, more
than half rejected) raises InputError. Nothing is guessed: CSV cells stay text, "NA" stays "NA".
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from calibjax import rowreaders, strictjson
from calibjax.errors import InputError, closest, input_error
from calibjax.rowreaders import Fault, Row
from calibjax.strictjson import RowFault
from calibjax.textlines import TextFile, existing_file

__all__ = [
    "Parsed",
    "Records",
    "Rejected",
    "Row",
    "RowFault",
    "check_kept",
    "existing_file",
    "find_columns",
    "parse_rows",
    "quoted",
    "read_json",
    "read_records",
    "reject",
    "stream_records",
]

T = TypeVar("T")
# Where a column name should be: a value, so the file has no header.
_DATA = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_RAW_SHOWN = 10_000
# What users call the columns of a prediction file, for the hint of a missing column.
_OTHER_NAMES = {
    "confidence": ("prob", "probability", "score", "conf", "p", "y_prob", "forecast"),
    "correct": ("label", "is_correct", "success", "y", "y_true", "target", "em"),
    "id": ("question_id", "qid", "_id", "idx", "index", "example_id"),
    "question": ("query", "text", "prompt"),
    "answers": ("answer", "golds", "gold", "target"),
}


@dataclass(frozen=True, slots=True)
class Rejected:
    """A row that was set aside; `raw` is what the file says (its first 10,000 characters).

    For Parquet and JSON lists it is the row as JSON. Where the reader no longer has the row,
    `quoted` fills it in.
    """

    file: str
    line: int
    reason: str
    raw: str = ""


@dataclass(slots=True)
class Records:
    """What a file holds. `truncated`: a .gz that ends early (the complete rows are here)."""

    path: str
    rows: list[Row] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
    truncated: bool = False


class Parsed(NamedTuple, Generic[T]):
    """Rows turned into something else, and all that were rejected on the way."""

    rows: list[T]
    rejected: list[Rejected]


class Kept(Protocol):
    @property
    def rows(self) -> Sequence[Any]: ...

    @property
    def rejected(self) -> Sequence[Rejected]: ...


def read_records(
    path: str | Path,
    *,
    required: Sequence[str] = (),
    rename: Mapping[str, str] | None = None,
    columns: Sequence[str] | None = None,
    name: str = "path",
) -> Records:
    """Rows of a .jsonl, .json (lines, or one list), .csv, .tsv (each also .gz) or .parquet file.

    required: keys that each row must have; rename: {"name in the file": "our name"};
    columns: names of a CSV without a header; name: the flag that errors should mention.
    Raises InputError for file faults; call `check_kept` after your own checks of the rows.
    """
    records = Records(str(path))
    _collect(_scan(records, columns, name), records, rename or {})
    _check_required(records, required, name, rename)
    return records


def stream_records(
    path: str | Path,
    take: Callable[[Row], None],
    *,
    required: Sequence[str] = (),
    rename: Mapping[str, str] | None = None,
    name: str = "path",
) -> tuple[Records, int]:
    """Hands each row to `take` and forgets it, for files larger than memory.

    Rows for which `take` raises RowFault join `rejected`; `rows` stays empty; the number is that of
    the rows taken. Otherwise as `read_records`.
    """
    records = Records(str(path))
    found: dict[str, None] = {}
    n_read = n_taken = 0
    for entry in _scan(records, None, name):
        one = Records(str(path))
        _collect(iter([entry]), one, rename or {})
        records.rejected += one.rejected
        for row in one.rows:
            n_read += 1
            found |= dict.fromkeys(row.data) if n_read <= 1000 else {}
            try:
                _require(row, required)
                take(row)
                n_taken += 1
            except RowFault as fault:
                records.rejected.append(reject(records.path, row, str(fault)))
    missing = [key for key in required if key not in found]
    if n_read and not n_taken and missing:
        raise _no_columns(records.path, found, missing, required, name, rename)
    return records, n_taken


def find_columns(path: str | Path, wanted: Iterable[str], *, name: str = "path") -> dict[str, None]:
    """Names of the columns in a file, in order: of as many rows as it takes to meet all `wanted`.

    Rows without a column have no part in it, so a name that is missing was looked for everywhere.
    """
    left, found = set(wanted), {}
    for entry in _scan(Records(str(path)), None, name):
        if isinstance(entry, Row):
            found |= dict.fromkeys(entry.data)
            left -= entry.data.keys()
            if not left:
                break
    return found


def _scan(
    records: Records, columns: Sequence[str] | None, name: str
) -> Iterator[Row | Fault]:
    """The file's entries one after the other; says at the end whether it was cut short."""
    path = records.path
    kind = _kind(path, name)
    if kind == "parquet":
        yield from rowreaders.parquet_rows(existing_file(path, name), name)
        return
    with TextFile(path, name) as source:
        yield from _entries(source, kind, columns, name)
        records.truncated = source.damage is not None


def read_json(path: str | Path, *, name: str = "path") -> Any:
    """The JSON document that a file (.json, .json.gz) holds. Raises InputError with the place."""
    with TextFile(path, name) as source:
        raw = source.read()
        if source.damage:
            expected = f"a whole file, found one {source.damage}"
            raise input_error(name, path, expected, "copy it again")
    try:
        return strictjson.parse(raw)
    except RowFault as fault:
        raise input_error(name, path, f"one JSON document ({fault})", "mend the file") from None


def parse_rows(records: Records, parse: Callable[[Row], T]) -> Parsed[T]:
    """`parse` of each row; where it raises RowFault, the row joins the rejected ones."""
    parsed: list[T] = []
    rejected = list(records.rejected)
    for row in records.rows:
        try:
            parsed.append(parse(row))
        except RowFault as fault:
            rejected.append(reject(records.path, row, str(fault)))
    return Parsed(parsed, sorted(rejected, key=lambda row: row.line))


def check_kept(records: Kept, path: str | Path, name: str = "path") -> None:
    """Raises InputError if nothing was kept or more than half of the rows were rejected."""
    kept, lost = len(records.rows), len(records.rejected)
    if kept and lost <= kept:
        return
    _refuse_other_json(records.rejected, path, name)
    detail = f" ({summarise(records.rejected)})" if lost else ""
    fix = "mend the rows" if lost else "give a file that holds rows"
    raise InputError(f"{name}={path}: kept {kept} of {kept + lost} rows{detail}; fix: {fix}")


def _refuse_other_json(rejected: Sequence[Rejected], path: str | Path, name: str) -> None:
    """InputError for JSON in a file of JSON lines that is not one object a line."""
    first = min(rejected, key=lambda row: row.line, default=None)
    plain = str(path).removesuffix(".gz")
    if first is None or Path(plain).suffix.lower() != ".jsonl":
        return
    start = first.raw.lstrip("\ufeff \t")
    if start.startswith("["):
        target = plain.removesuffix("l") + str(path)[len(plain) :]
        found, fix = "a JSON list", f"mv {path} {target}"
    elif start.strip() == "{":
        found, fix = "an object over several lines", f"jq -c . {path} > {plain[:-6]}.lines.jsonl"
    else:
        return
    raise input_error(name, path, f"one JSON object a line, found {found}", fix)


def quoted(rejected: Sequence[Rejected]) -> list[Rejected]:
    """The same with `raw` filled in where it is empty, from one more pass over each file.

    For rows that turn out bad when they are no longer in memory, such as ids that clash.
    """
    wanted: dict[str, set[int]] = {}
    for row in rejected:
        if not row.raw and Path(row.file).is_file():
            wanted.setdefault(row.file, set()).add(row.line)
    texts = {
        (path, line): raw for path, lines in wanted.items() for line, raw in _raws(path, lines)
    }
    return [replace(row, raw=row.raw or texts.get((row.file, row.line), "")) for row in rejected]


def _raws(path: str, lines: set[int]) -> Iterator[tuple[int, str]]:
    for entry in _scan(Records(path), None, "path"):
        if entry.line in lines:
            yield entry.line, _raw(entry)
        if entry.line >= max(lines):
            return


def _raw(entry: Row | Fault) -> str:
    raw = entry.raw
    if isinstance(entry, Row) and not raw:
        raw = strictjson.write(entry.data)
    return raw.decode("utf-8", "backslashreplace")[:_RAW_SHOWN]


def summarise(rejected: Sequence[Rejected]) -> str:
    """The three most frequent reasons, each with its count, first line and first wording."""
    first: dict[str, Rejected] = {}
    counts: Counter[str] = Counter()
    for row in rejected:
        # `confidence=1.2: expected ...` and `confidence=7: expected ...` are one reason.
        head, colon, rest = row.reason.partition(": ")
        key = head.split("=")[0] + rest if colon else head.split(" at ")[0]
        first.setdefault(key, row)
        counts[key] += 1
    return "; ".join(
        f"{count} x {first[key].reason}, first at line {first[key].line}"
        for key, count in counts.most_common(3)
    )


def _entries(
    source: TextFile, kind: str, columns: Sequence[str] | None, name: str
) -> Iterator[Row | Fault]:
    if kind == "csv":
        return rowreaders.csv_rows(source, columns, name)
    if kind == "tsv":
        return rowreaders.tsv_rows(source, columns, name)
    if kind == "json" and source.peek().lstrip().startswith(b"["):
        return rowreaders.json_list(source, name)
    return rowreaders.json_lines(source)


def _collect(
    entries: Iterator[Row | Fault], records: Records, rename: Mapping[str, str]
) -> None:
    for entry in entries:
        if isinstance(entry, Fault):
            rejected = Rejected(records.path, entry.line, entry.reason, _raw(entry))
            records.rejected.append(rejected)
        elif rename:
            data = {rename.get(key, key): value for key, value in entry.data.items()}
            raw = entry.raw or strictjson.write(entry.data)
            records.rows.append(replace(entry, data=data, raw=raw))
        else:
            records.rows.append(entry)


def _check_required(
    records: Records, required: Sequence[str], name: str, rename: Mapping[str, str] | None
) -> None:
    missing = [key for key in required if not any(key in row.data for row in records.rows)]
    if records.rows and missing:
        found = {key: None for row in records.rows[:1000] for key in row.data}
        raise _no_columns(records.path, found, missing, required, name, rename)
    whole = []
    for row in records.rows:
        try:
            _require(row, required)
            whole.append(row)
        except RowFault as fault:
            records.rejected.append(reject(records.path, row, str(fault)))
    records.rows = whole
    records.rejected.sort(key=lambda row: row.line)


def _require(row: Row, required: Sequence[str]) -> None:
    missing = [key for key in required if key not in row.data]
    if missing:
        raise RowFault(f"{missing[0]}: missing")


def _no_columns(
    path: str,
    found: Mapping[str, None],
    missing: Sequence[str],
    required: Sequence[str],
    name: str,
    rename: Mapping[str, str] | None,
) -> InputError:
    """Names all missing columns, what there is, and what each of them may be called there."""
    free = {key: None for key in found if key not in required}
    near: dict[str, str] = {}
    for wanted in missing:
        match = _nearest_column(wanted, {key: None for key in free if key not in near.values()})
        near |= {wanted: match} if match else {}
    pairs = ",".join(f"{old}:{new}" for new, old in near.items())
    absent = [wanted for wanted in missing if wanted not in near]
    steps = [f"add {', '.join(absent)}"] if absent else []
    if near and rename is not None:  # None: the command has no such flag
        steps.insert(0, f"--rename={pairs} or rename in the file")
    elif near:
        steps.insert(0, f"rename in the file ({pairs})")
    if any(_DATA.fullmatch(key) for key in found):
        steps = [f"write a first line with the names of the columns, such as {','.join(required)}"]
    what = "column" if len(missing) == 1 else "columns"
    return InputError(
        f"{name}={path}: no {what} {', '.join(missing)}: expected {', '.join(required)},"
        f" found {', '.join(found)}; fix: {'; '.join(steps)}"
    )


def reject(path: str, row: Row, reason: str) -> Rejected:
    """`row` as a rejected one."""
    return Rejected(path, row.line, reason, _raw(row))


def _nearest_column(wanted: str, found: Mapping[str, None]) -> str | None:
    lower = {key.lower(): key for key in found}
    known = [lower[key] for key in (wanted, *_OTHER_NAMES.get(wanted, ())) if key in lower]
    return known[0] if known else closest(wanted, found)


def _kind(path: str | Path, name: str) -> str:
    suffix = Path(str(path).removesuffix(".gz")).suffix.lower().removeprefix(".")
    if suffix not in ("jsonl", "json", "csv", "tsv", "parquet"):
        expected = "a .jsonl, .json, .csv, .tsv or .parquet file (text ones also .gz)"
        existing_file(path, name)
        raise input_error(name, path, expected, "convert the file, or end its name so")
    return suffix
