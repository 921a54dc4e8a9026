"""JSON without guessing: what Python's parser lets through in silence is a fault here.

Refused: NaN, Infinity, numbers beyond float64, repeated keys, nesting deeper than 64, lone
surrogates, bytes that are not UTF-8, NUL bytes.
"""

import json
import math
import re
from collections.abc import Iterator
from typing import Any

MAX_DEPTH = 64
# Beyond this an integer cannot become a float; Python itself refuses to print 4300 digits.
_MAX_DIGITS = 308
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")


class RowFault(ValueError):
    """One row is bad; the message is its reason. The rest of the file is still good."""


class _NotFinite(str):
    """Stands for a number that float64 cannot hold, until its key is known."""


def parse(raw: bytes) -> Any:
    """The JSON value in `raw`. Raises RowFault with the reason, and line and column if known."""
    text = decode(raw)
    huge: list[str] = []

    def not_finite(number: str) -> _NotFinite:
        huge.append(number)
        return _NotFinite(number if len(number) <= 20 else f"{number[:12]}...")

    def to_float(number: str) -> float | _NotFinite:
        made = float(number)
        return made if math.isfinite(made) else not_finite(number)

    def to_int(number: str) -> int | _NotFinite:
        return int(number) if len(number) <= _MAX_DIGITS else not_finite(number)

    try:
        value = json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=not_finite,
            parse_float=to_float,
            parse_int=to_int,
        )
    except json.JSONDecodeError as error:
        line = f"line {error.lineno} " if error.lineno > 1 else ""
        reason = f"not JSON at {line}column {error.colno} ({error.msg.lower()})"
        raise RowFault(reason) from None
    except RecursionError:
        raise RowFault(f"nested deeper than {MAX_DEPTH} levels") from None
    if text.count("[") + text.count("{") > MAX_DEPTH:
        check_depth(value)
    if huge:
        check_finite(value)
    if _SURROGATE_ESCAPE.search(raw):
        check_text(value)
    return value


def parse_object(raw: bytes) -> dict[str, Any]:
    """Like `parse`, for one JSON object."""
    value = parse(raw)
    if not isinstance(value, dict):
        raise RowFault(f"expected a JSON object, found {_kind(value)}")
    return value


def write(value: Any) -> bytes:
    """One line of JSON for people to read: what JSON cannot hold is shown, not refused."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text.encode("utf-8", "backslashreplace")


def shown(value: Any) -> str:
    """A value in a message: as JSON writes it, cut after 80 characters."""
    text = write(value).decode()
    return text if len(text) <= 80 else f"{text[:77]}..."


def decode(raw: bytes) -> str:
    """Strict UTF-8. Raises RowFault naming the byte."""
    if b"\0" in raw:
        raise RowFault(f"binary data (NUL byte at column {raw.index(0) + 1})")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = raw[error.start]
        raise RowFault(f"not UTF-8 (byte 0x{byte:02x} at column {error.start + 1})") from None


def check_finite(value: Any) -> None:
    """RowFault `key=NaN: expected a finite number` if one is hidden anywhere in `value`."""
    for key, leaf in _leaves(value):
        if isinstance(leaf, _NotFinite) or (isinstance(leaf, float) and not math.isfinite(leaf)):
            shown = str(leaf).replace("nan", "NaN")
            raise RowFault(f"{key}={shown}: expected a finite number")


def check_text(value: Any) -> None:
    """RowFault if a string (or key) cannot be written as UTF-8 again."""
    for key, leaf in _leaves(value):
        for text in (key, leaf):
            if isinstance(text, str) and not _encodable(text):
                raise RowFault("lone surrogate in a string (half of a character)")


def check_depth(value: Any) -> None:
    """RowFault if containers are nested deeper than 64."""
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH + 1:
            raise RowFault(f"nested deeper than {MAX_DEPTH} levels")
        level = [child for item in level for child in _children(item)]


def _children(value: Any) -> Any:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _leaves(value: Any, key: str = "value") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, child in value.items():
            yield name, None
            yield from _leaves(child, name)
    elif isinstance(value, list):
        for child in value:
            yield from _leaves(child, key)
    else:
        yield key, value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise RowFault(f"key {repeated[:40]!r} occurs twice in one object")
    return made


def _encodable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    return {bool: "a boolean", str: "a string", list: "a list"}.get(type(value), "a number")
