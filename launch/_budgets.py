"""Reads the flags --budgets and --families."""

import math
from collections.abc import Sequence
from fractions import Fraction

from calibjax.errors import input_error


def parse_budgets(text: str) -> list[float]:
    """`0.5,0.25` as ascending shares. Raises InputError for what is no share, or given twice."""
    found: list[Fraction] = []
    for part in (part.strip() for part in text.split(",")):
        try:
            value = Fraction("nan" if "/" in part else part)  # no fractions, no division by zero
            good = 0 <= value <= 1
        except ValueError:
            good = False
        if not good:
            fix = _of_percent(part) or "--budgets=0.1,0.25,0.5"
            raise input_error("budgets", part, "numbers from 0 to 1, with commas", fix)
        if value in found:
            raise input_error("budgets", part, "each budget once", "drop one")
        found.append(value)
    return sorted(float(value) for value in found)


def _of_percent(text: str) -> str | None:
    """What a percentage should have been written as."""
    try:
        value = float(text.removesuffix("%").strip())
    except ValueError:
        return None
    return f"--budgets={value / 100:g}" if math.isfinite(value) and 1 < value <= 100 else None


def parse_families(entries: Sequence[str]) -> dict[str, str]:
    """`entropy=uncertainty` as a mapping; which names and families there are is not checked."""
    pairs = {}
    for entry in entries:
        name, _, family = entry.rpartition("=")
        if not name or not family:
            expected = "NAME=query, NAME=uncertainty, NAME=retrieval or NAME=full"
            raise input_error("families", entry, expected, "--families=entropy=uncertainty")
        pairs[name] = family
    return pairs
