"""What a reader of one published format says about it."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from calibjax.reading.textfiles import Row
from calibjax.records import Question


class Layout(NamedTuple):
    """One published format.

    marks: sets of field names; a row that has all names of any set is in this format.
    parse: one row -> Question; None when the row is of a kind that the set leaves out (counted).
    flatten: the document -> rows, for formats that are one JSON object.
    gather: rows of the file -> rows of one question each, for formats that need more than one line.
    columns: the column names of tables that have no header.
    """

    marks: tuple[frozenset[str], ...]
    parse: Callable[[Mapping[str, Any]], Question | None]
    flatten: Callable[[Mapping[str, Any]], Iterable[Any]] | None = None
    gather: Callable[[list[Row], Path], list[Row]] | None = None
    columns: tuple[str, ...] = ()

    def fits(self, data: Mapping[str, Any]) -> bool:
        """Whether a row looks like this format."""
        return any(mark <= data.keys() for mark in self.marks)


def marks(*names: str) -> tuple[frozenset[str], ...]:
    """One set of field names per argument, written "question answer"."""
    return tuple(frozenset(text.split()) for text in names)
