"""GGUF headers: every length, offset and type checked against the file before it is believed."""

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from calibjax.backbone.weight_files import check_weight_file
from calibjax.errors import InputError

_MAX_TENSORS, _MAX_KEYS, _MAX_ELEMENTS = 10**5, 10**6, 2**40
_MAX_ALIGNMENT = 2**16
_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS = {
    0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "u1",
    10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip


@dataclass(frozen=True)
class TensorInfo:
    """Where a tensor lies; `shape` in NumPy order (rows first), `offset` from the file's start."""

    shape: tuple[int, ...]
    kind: int
    offset: int
    num_bytes: int


@dataclass(frozen=True)
class Header:
    """Metadata as plain values, the byte offset of each key, and the tensors by name."""

    fields: dict[str, Any]
    places: dict[str, int]
    tensors: dict[str, TensorInfo]


class _Cursor:
    """A read position that never passes the end of the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with open(path, "rb") as file:
            self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.offset = 0

    def fault(self, field: str, what: str, offset: int | None = None) -> InputError:
        place = self.offset if offset is None else offset
        return InputError(
            f"{self.path}: {field} at byte {place}: {what}; fix: download or convert the file again"
        )

    def take(self, count: int, field: str) -> bytes:
        left = len(self.data) - self.offset
        if count > left:
            raise self.fault(field, f"{count} bytes announced, {left} left")
        start, self.offset = self.offset, self.offset + count
        return self.data[start : self.offset]

    def number(self, code: str, field: str) -> int:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code), field))[0]

    def text(self, field: str) -> str:
        start = self.offset
        raw = self.take(self.number("Q", field), field)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.fault(field, f"not UTF-8 ({error.reason})", start) from error


def read_header(path: Path) -> Header:
    """Checks and reads everything before the tensor data.

    Raises InputError naming file, field and byte. What holds afterwards: sizes within the limits,
    known types, no name twice, every tensor aligned, inside the file and apart from the others.
    """
    check_weight_file(path)
    cursor = _Cursor(path)
    if cursor.take(4, "magic") != b"GGUF":
        raise cursor.fault("magic", "not GGUF", 0)
    version = cursor.number("I", "version")
    if version not in (2, 3):
        raise cursor.fault("version", f"{version}, expected 2 or 3 (little-endian)", 4)
    num_tensors = _count(cursor, "number of tensors", _MAX_TENSORS)
    num_keys = _count(cursor, "number of keys", _MAX_KEYS)
    fields: dict[str, Any] = {}
    places: dict[str, int] = {}
    for _ in range(num_keys):
        start = cursor.offset
        key = cursor.text("key")
        if key in fields:
            raise cursor.fault(f"key {_shown(key)}", "occurs twice", start)
        places[key] = start
        field = f"key {_shown(key)}"
        fields[key] = _value(cursor, cursor.number("I", field), field)
    tensors = _tensors(cursor, num_tensors, _alignment(cursor, fields, places))
    return Header(fields, places, tensors)


def _count(cursor: _Cursor, field: str, most: int) -> int:
    start = cursor.offset
    count = cursor.number("Q", field)
    # The smallest key or tensor entry takes 13 bytes, so a short file cannot hold many.
    most = min(most, (len(cursor.data) - cursor.offset) // 13)
    if count > most:
        raise cursor.fault(field, f"{count}, expected at most {most}", start)
    return count


def _alignment(cursor: _Cursor, fields: dict[str, Any], places: dict[str, int]) -> int:
    name = "general.alignment"
    alignment = fields.get(name, 32)
    whole = type(alignment) is int and 0 < alignment <= _MAX_ALIGNMENT
    if not whole or alignment & (alignment - 1):
        shown = repr(alignment)[:40]
        raise cursor.fault(name, f"{shown}, expected a power of two", places[name])
    return alignment


def _value(cursor: _Cursor, kind: int, field: str) -> Any:
    if kind == _STRING:
        return cursor.text(field)
    if kind == _ARRAY:
        return _array(cursor, field)
    if kind not in _SCALARS:
        raise cursor.fault(field, f"value type {kind} is unknown", cursor.offset - 4)
    return _numbers(cursor, kind, 1, field)[0]


def _array(cursor: _Cursor, field: str) -> list[Any]:
    start = cursor.offset
    kind, count = cursor.number("I", field), cursor.number("Q", field)
    if kind != _STRING and kind not in _SCALARS:
        what = "an array within an array" if kind == _ARRAY else f"element type {kind} is unknown"
        raise cursor.fault(field, what, start)
    if kind != _STRING:
        return _numbers(cursor, kind, count, field)
    left = (len(cursor.data) - cursor.offset) // 8
    if count > left:
        raise cursor.fault(field, f"{count} texts announced, room for {left}", start + 4)
    return [cursor.text(field) for _ in range(count)]


def _numbers(cursor: _Cursor, kind: int, count: int, field: str) -> list[Any]:
    dtype = np.dtype(_SCALARS[kind])
    values = np.frombuffer(cursor.take(count * dtype.itemsize, field), dtype)
    return (values != 0).tolist() if kind == _BOOL else values.tolist()


def _tensors(cursor: _Cursor, count: int, alignment: int) -> dict[str, TensorInfo]:
    entries: dict[str, tuple[int, tuple[int, ...], int, int, int]] = {}
    for _ in range(count):
        start = cursor.offset
        name = cursor.text("tensor name")
        if name in entries:
            raise cursor.fault(f"tensor {_shown(name)}", "occurs twice", start)
        entries[name] = (start, *_entry(cursor, f"tensor {_shown(name)}", alignment))
    data_start = _rounded(cursor.offset, alignment)
    tensors = {}
    end, owner = data_start, "the header"
    for name, (start, shape, kind, size, offset) in sorted(entries.items(), key=lambda e: e[1][4]):
        first = data_start + offset
        if first < end:
            raise cursor.fault(f"tensor {_shown(name)}", f"overlaps {owner}", start)
        end, owner = first + size, _shown(name)
        if end > len(cursor.data):
            what = f"ends at byte {end} of a file of {len(cursor.data)} bytes"
            raise cursor.fault(f"tensor {_shown(name)}", what, start)
        tensors[name] = TensorInfo(shape, kind, first, size)
    # Some writers leave the padding after the last tensor out.
    if len(cursor.data) > _rounded(end, alignment):
        raise cursor.fault("tensor data", f"{len(cursor.data) - end} bytes that no one owns", end)
    return tensors


def _entry(cursor: _Cursor, field: str, alignment: int) -> tuple[tuple[int, ...], int, int, int]:
    """Shape (rows first), type, bytes and offset within the data of one tensor."""
    from gguf.constants import GGML_QUANT_SIZES

    start = cursor.offset
    rank = cursor.number("I", field)
    if not 1 <= rank <= 4:
        raise cursor.fault(field, f"{rank} dimensions, expected 1 to 4", start)
    sizes = [cursor.number("Q", field) for _ in range(rank)]
    elements = math.prod(sizes)
    if not 0 < elements <= _MAX_ELEMENTS:
        raise cursor.fault(field, f"dimensions {sizes}, expected 1 to 2^40 elements", start)
    kind_at = cursor.offset
    kind = cursor.number("I", field)
    known = {int(k): v for k, v in GGML_QUANT_SIZES.items()}
    if kind not in known:
        raise cursor.fault(field, f"type {kind} is unknown", kind_at)
    block, block_bytes = known[kind]
    if sizes[0] % block:
        raise cursor.fault(field, f"rows of {sizes[0]} in blocks of {block}", start)
    offset = cursor.number("Q", field)
    if offset % alignment:
        raise cursor.fault(field, f"offset {offset} is not a multiple of {alignment}")
    return tuple(reversed(sizes)), kind, elements // block * block_bytes, offset


def _rounded(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment


def _shown(name: str) -> str:
    """A name from the file as it may stand in a message: quoted, on one line, not too long."""
    return repr(name if len(name) <= 60 else f"{name[:57]}...")
