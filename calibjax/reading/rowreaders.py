"""One generator per file format: good rows as `Row`, bad ones as `Fault`, in file order."""

import csv
import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

from calibjax.errors import InputError, input_error
from calibjax.reading import strictjson
from calibjax.reading.strictjson import RowFault
from calibjax.reading.textlines import MAX_LINE_BYTES, TextFile

# A quoted CSV cell may hold line ends; one stray quote must not swallow the rest of the file.
_MAX_RECORD_LINES = 1000
Line = tuple[int, bytes | None]
_SEPARATORS = {"\t": "tabs", ";": "semicolons", "|": "bars", ",": "commas"}
_NOT_WHOLE = f"longer than {MAX_LINE_BYTES // 2**20} MiB, or cut off by the end of the data"


@dataclass(frozen=True, slots=True)
class Row:
    """One record: `line` is its first line in the file (row number for Parquet), from 1.

    `is_text` marks rows whose values are all text (CSV), where "0.9" may be read as a number;
    `raw` is what a text file says there (b"" for formats that are no lines of text).
    """

    line: int
    data: dict[str, Any]
    is_text: bool = False
    raw: bytes = b""


class Fault(NamedTuple):
    """A row that cannot be read, and the bytes that the file has there."""

    line: int
    reason: str
    raw: bytes


def json_lines(source: TextFile) -> Iterator[Row | Fault]:
    """One object a line; blank lines do not count."""
    for number, raw in source.lines():
        if raw is None:
            yield Fault(number, _NOT_WHOLE, b"")
        elif raw.strip():
            try:
                yield Row(number, strictjson.parse_object(raw), raw=raw)
            except RowFault as fault:
                yield Fault(number, str(fault), raw)


def json_list(source: TextFile, name: str) -> Iterator[Row | Fault]:
    """One document that is a list of objects; `line` is the place in the list."""
    raw = source.read()
    try:
        items = strictjson.parse(raw)
    except RowFault as fault:
        raise input_error(name, source.path, f"a JSON list ({fault})", "mend the file") from None
    for number, item in enumerate(items, start=1):
        if isinstance(item, dict):
            yield Row(number, item)
        else:
            yield Fault(number, "expected a JSON object", strictjson.write(item))


def csv_rows(source: TextFile, columns: Sequence[str] | None, name: str) -> Iterator[Row | Fault]:
    """Comma-separated records; all values stay text. The first record names the columns.

    A record goes on over line ends while a quote is open. When such a record cannot be read, only
    its first line is a fault and reading goes on with the next: a stray quote costs one row.
    """
    lines = _Lines(source)
    names = list(columns) if columns else None
    for number, raw in lines:
        if raw is not None and not raw.strip():
            continue
        following = [] if raw is None else lines.open_quote(raw)
        try:
            text = _joined(raw, following)
            if names is None:
                _refuse_json(text, source.path, name)
            cells = _cells(text)
            if names is None:
                names = _header(cells, source.path, name)
            else:
                yield _named(number, names, cells, text.encode())
        except RowFault as fault:
            if names is None:
                expected = f"a header line ({fault})"
                raise input_error(name, source.path, expected, "mend it") from None
            yield Fault(number, str(fault), raw or b"")
            lines.put_back(following)


def tsv_rows(source: TextFile, columns: Sequence[str] | None, name: str) -> Iterator[Row | Fault]:
    """Tab-separated lines; quotes are text as any other character."""
    names = list(columns) if columns else None
    for line, raw in source.lines():
        if raw is None:
            yield Fault(line, _NOT_WHOLE, b"")
            continue
        try:
            text = strictjson.decode(raw)
            cells = text.split("\t")
            if names is None:
                _refuse_json(text, source.path, name)
                names = _header(cells, source.path, name)
            elif raw.strip():
                yield _named(line, names, cells, raw)
        except RowFault as fault:
            yield Fault(line, str(fault), raw)


def parquet_rows(path: Path, name: str) -> Iterator[Row | Fault]:
    """Rows of a Parquet file in batches; a file whose footer is gone is a file fault.

    NaN is read as null, for that is what pandas writes for a missing value; decimals as numbers.
    """
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(path)
        _refuse_repeated(file.schema_arrow.names, path, name)
        line = 0
        for batch in file.iter_batches(batch_size=1024):
            for data in batch.to_pylist():
                line += 1
                data = _plain(data)
                try:
                    strictjson.check_finite(data)
                    yield Row(line, data)
                except RowFault as fault:
                    yield Fault(line, str(fault), strictjson.write(data))
    except InputError:
        raise
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError, ValueError) as error:
        reason = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
        expected = f"a whole Parquet file ({reason})"
        raise input_error(name, path, expected, "write the file again") from None


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return None if math.isnan(value) else value
    if isinstance(value, Decimal):
        return int(value) if value.as_tuple().exponent == 0 else float(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _header(cells: list[str], path: Path, name: str) -> list[str]:
    names = [cell.strip() for cell in cells]
    _check_separator(names, path, name)
    _refuse_repeated(names, path, name)
    return names


def _refuse_repeated(names: Sequence[str], path: Path, name: str) -> None:
    repeated = sorted({cell for cell in names if names.count(cell) > 1})
    if repeated:
        shown = ", ".join(repr(cell) for cell in repeated)
        raise input_error(name, path, f"each column once, found {shown} twice", "rename one")


def _refuse_json(text: str, path: Path, name: str) -> None:
    start = text.lstrip()[:1]
    if start in tuple("{["):
        fix = _other_ending(path, ".jsonl" if start == "{" else ".json")
        raise input_error(name, path, "a header line, found JSON", fix)


def _check_separator(names: list[str], path: Path, name: str) -> None:
    """InputError for a table of one column whose name looks like several."""
    head, is_csv = names[0], ".csv" in path.suffixes
    if len(names) > 1:
        return
    for separator, called in _SEPARATORS.items():
        if separator not in head or (is_csv and separator == ","):
            continue
        fix = f"write commas between columns and points in numbers: {head.replace(separator, ',')}"
        if separator in "\t,":
            fix = _other_ending(path, ".tsv" if is_csv else ".csv")
        expected = f"a line of column names, found {head!r}: separated by {called}"
        raise input_error(name, path, expected, fix)


def _other_ending(path: Path, kind: str) -> str:
    packed = ".gz" if path.suffix == ".gz" else ""
    stem = path.name.removesuffix(".gz").rpartition(".")[0]
    return f"mv {path} {path.with_name(stem + kind + packed)}"


def _named(line: int, names: list[str], cells: list[str], raw: bytes) -> Row:
    if len(cells) != len(names):
        raise RowFault(f"expected {len(names)} columns, found {len(cells)}")
    return Row(line, dict(zip(names, cells)), is_text=True, raw=raw)


class _Lines:
    """The lines of a file, with a way to put some back."""

    def __init__(self, source: TextFile) -> None:
        self._lines = source.lines()
        self._waiting: deque[Line] = deque()

    def __iter__(self) -> Iterator[Line]:
        return self

    def __next__(self) -> Line:
        return self._waiting.popleft() if self._waiting else next(self._lines)

    def put_back(self, lines: list[Line]) -> None:
        self._waiting.extendleft(reversed(lines))

    def open_quote(self, raw: bytes) -> list[Line]:
        """The lines up to the one that closes a quote left open in `raw` (none if none is)."""
        taken: list[Line] = []
        is_open = raw.count(b'"') % 2 == 1
        while is_open and len(taken) < _MAX_RECORD_LINES:
            line = next(self, None)
            if line is None:
                break
            taken.append(line)
            is_open = line[1] is not None and line[1].count(b'"') % 2 == 0
        return taken


def _joined(raw: bytes | None, following: list[Line]) -> str:
    parts = [raw, *(line for _, line in following)]
    if None in parts:
        raise RowFault(_NOT_WHOLE)
    return strictjson.decode(b"\n".join(part for part in parts if part is not None))


def _cells(text: str) -> list[str]:
    # The module's limit on a cell is global; ours is the length of a line.
    limit = csv.field_size_limit(len(text) + 1)
    try:
        return next(csv.reader([text], strict=True))
    except csv.Error as error:
        raise RowFault(f"not CSV ({error})") from None
    finally:
        csv.field_size_limit(limit)
