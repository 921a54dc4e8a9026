"""One field of a row, checked: each function returns the value or raises RowFault."""

import math
import re
from typing import Any

from calibjax.reading import strictjson
from calibjax.reading.rowreaders import Row
from calibjax.reading.strictjson import RowFault

# Scores beyond it would become infinite where they are computed with.
FLOAT32_MAX = 3.4028234663852886e38
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_TRUTH = {"true": True, "false": False, "1": True, "0": False}


def fault(key: str, value: object, expected: str, fix: str | None = None) -> RowFault:
    """RowFault `key=value: expected ...; fix: ...` with the value as JSON would write it."""
    text = f"{key}={strictjson.shown(value)}: expected {expected}"
    return RowFault(f"{text}; fix: {fix}" if fix else text)


def number(row: Row, key: str, low: float = -math.inf, high: float = math.inf) -> float:
    """A finite number in [low, high]. Text counts as a number in CSV rows only, booleans never."""
    expected = "a number" + _range(low, high)
    value = row.data.get(key)
    if row.is_text and isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise fault(key, value, expected)
    if not (math.isfinite(value) and low <= value <= high):
        raise fault(key, value, expected)
    return float(value)


def outcome(row: Row, key: str) -> float:
    """A verdict in [0,1]: true, false or a number (soft verdicts are allowed)."""
    value = row.data.get(key)
    if isinstance(value, bool):
        return float(value)
    if row.is_text and isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return float(value.strip().lower() == "true")
    try:
        return number(row, key, 0.0, 1.0)
    except RowFault:
        raise fault(key, value, "true, false or a number in [0,1]") from None


def boolean(row: Row, key: str) -> bool:
    """true or false; in CSV rows also 1 or 0."""
    value = row.data.get(key)
    if isinstance(value, bool):
        return value
    if row.is_text and isinstance(value, str) and value.strip().lower() in _TRUTH:
        return _TRUTH[value.strip().lower()]
    raise fault(key, value, "true or false")


def text(row: Row, key: str, *, empty: bool = False) -> str:
    """A string; blank ones only with `empty`."""
    value = row.data.get(key)
    if not isinstance(value, str) or not (empty or value.strip()):
        raise fault(key, value, "a string" if empty else "a string that is not blank")
    return value


def identifier(row: Row, key: str = "id") -> str:
    """An id as text: a non-empty string or an integer (1 and "1" are one id), exact."""
    value = row.data.get(key)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, str) and value.strip():
        return value
    raise fault(key, value, "a text or integer id")


def numbers(value: Any, key: str) -> list[float]:
    """A list of at least one finite number."""
    if not isinstance(value, list) or not value:
        raise fault(key, value, "a list of numbers, at least one")
    for item in value:
        if isinstance(item, bool) or not isinstance(item, (int, float)):
            raise fault(key, item, "numbers")
        if not math.isfinite(item):
            raise fault(key, item, "finite numbers")
    return [float(item) for item in value]


def _range(low: float, high: float) -> str:
    if math.isfinite(low) and math.isfinite(high):
        return f" in [{low:g},{high:g}]"
    if math.isfinite(low):
        return f" >= {low:g}"
    return f" <= {high:g}" if math.isfinite(high) else ""
