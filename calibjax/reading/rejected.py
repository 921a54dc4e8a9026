"""Rows that were set aside, why, and whether enough is left to go on."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from calibjax.errors import InputError, input_error


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


class Kept(Protocol):
    @property
    def rows(self) -> Sequence[Any]: ...

    @property
    def rejected(self) -> Sequence[Rejected]: ...


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
