"""Reads JSON lines, CSV, TSV and Parquet strictly: a bad row is set aside, a good one never lost.

A row fault (a torn line, a repeated key, NaN, a column too many) puts the row on the rejected list
with file, line and reason. A file fault (no such file, UTF-16, a missing column, nothing kept, more
than half rejected) raises InputError. Nothing is guessed: CSV cells stay text, "NA" stays "NA".
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from calibjax.errors import input_error
from calibjax.reading import rowreaders, strictjson
from calibjax.reading.columns import no_columns
from calibjax.reading.rejected import Rejected, check_kept
from calibjax.reading.rowreaders import Fault, Row
from calibjax.reading.strictjson import RowFault
from calibjax.reading.textlines import TextFile, existing_file

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

_RAW_SHOWN = 10_000


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
        raise no_columns(records.path, found, missing, required, name, rename)
    return records, n_taken


def find_columns(path: str | Path, wanted: Iterable[str], *, name: str = "path") -> dict[str, None]:
    """Names of the columns in a file, in order: of as many rows as it takes to meet all `wanted`.

    Rows without a column have no part in it, so a name that is missing was looked for everywhere.
    """
    left = set(wanted)
    found: dict[str, None] = {}
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
        raise no_columns(records.path, found, missing, required, name, rename)
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


def reject(path: str, row: Row, reason: str) -> Rejected:
    """`row` as a rejected one."""
    return Rejected(path, row.line, reason, _raw(row))


def _kind(path: str | Path, name: str) -> str:
    suffix = Path(str(path).removesuffix(".gz")).suffix.lower().removeprefix(".")
    if suffix not in ("jsonl", "json", "csv", "tsv", "parquet"):
        expected = "a .jsonl, .json, .csv, .tsv or .parquet file (text ones also .gz)"
        existing_file(path, name)
        raise input_error(name, path, expected, "convert the file, or end its name so")
    return suffix
