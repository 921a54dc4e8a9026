"""Typed look-ups in a model's metadata, with errors that say where a value stands."""

import math
from collections.abc import Mapping
from typing import Any

from calibjax.errors import input_error


class Fields:
    """Typed look-ups in one metadata mapping; errors name the file, the field and its place."""

    def __init__(
        self, fields: Mapping[str, Any], where: str, places: Mapping[str, int] | None = None
    ) -> None:
        self._fields = fields
        self.where = where
        self._places = places or {}

    def get(self, name: str, default: Any = None) -> Any:
        value = self._fields.get(name)
        return default if value is None else value

    def has(self, name: str) -> bool:
        """Whether the field is there, null included."""
        return name in self._fields

    def integer(self, name: str, default: int | None = None) -> int:
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**31:
            raise self.error(name, value, "a positive integer")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self.get(name, default)
        plain = isinstance(value, int | float) and not isinstance(value, bool)
        if not plain or not math.isfinite(value) or value <= 0:
            raise self.error(name, value, "a positive number")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise self.error(name, value, "true or false")
        return value

    def error(self, name: str, value: object, expected: str, fix: str | None = None) -> ValueError:
        place = f" at byte {self._places[name]}" if name in self._places else ""
        return input_error(f"{self.where}: {name}{place}", repr(value)[:80], expected, fix)
