"""Figures of a report as {estimate, low, high}, or as plain numbers with the intervals beside."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from calibjax.metrics import Interval

Cell = dict[str, Any]


def cell(estimate: Any, low: Any = None, high: Any = None, reason: str | None = None) -> Cell:
    """{estimate, low, high} with null for what is not defined, and the reason if there is one."""
    numbers = {"estimate": estimate, "low": low, "high": high}
    made: Cell = {
        key: None if value is None or not np.isfinite(value) else float(value)
        for key, value in numbers.items()
    }
    return made | {"reason": reason} if reason else made


def cell_at(
    interval: Interval, *place: int, shift: float = 0.0, reason: str | None = None
) -> Cell:
    """The cell of one place of an `Interval` of arrays."""
    estimate, low, high = (float(np.asarray(x)[place]) + shift for x in interval[:3])
    return cell(estimate, low, high, reason)


def by_budget(budgets: Sequence[float], values: Iterable[Any]) -> dict[str, Any]:
    """One value a budget, under its key "0.5"."""
    return {repr(float(b)): value for b, value in zip(budgets, values, strict=True)}


def along(budgets: Sequence[float], interval: Interval, *place: int) -> dict[str, Cell]:
    """The cells of an `Interval` whose last axis is the budget, at one place of the others."""
    return by_budget(budgets, (cell_at(interval, *place, j) for j in range(len(budgets))))


def of_one_split(report: dict[str, Any]) -> dict[str, Any]:
    """Cells as plain numbers, the intervals of each group of them beside it."""
    if set(report) >= {"estimate", "low", "high"}:
        return report["estimate"]
    made: dict[str, Any] = {}
    intervals: dict[str, Any] = {}
    for key, value in report.items():
        if isinstance(value, dict):
            made[key] = of_one_split(value)
            if set(value) >= {"estimate", "low", "high"} and value["low"] is not None:
                intervals[key] = value
        else:
            made[key] = value
    return made | {"intervals": intervals} if intervals else made
