"""What a budget report must contain before it may be shown, and how its figures are read."""

from collections.abc import Iterator, Mapping
from typing import Any

from calibjax.errors import InputError

# Accuracy without these is the misreading that the protocol exists to prevent.
REQUIRED = (
    "accuracy",
    "usage",
    "transfer_error",
    "violation_rate",
    "harm_all",
    "harm_used",
    "benefit_all",
)
SECTIONS = ("never", "always", "utility", "routers", "oracle", "random", "expected_violation")
RULES = ("dkw1", "dkw2", "exact", "predictive")
RULE_TITLES = {
    "quantile": "quantile",
    "dkw1": "DKW, one-sided",
    "dkw2": "DKW, two-sided",
    "exact": "exact",
    "predictive": "predictive",
}


def check_complete(report: Mapping[str, Any]) -> None:
    """Raises InputError naming what is missing; nothing is printed from such a report."""
    missing = list(_missing(report))
    if missing:
        shown = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
        raise InputError(
            f"report: {len(missing)} figures missing ({shown}): expected accuracy with realised"
            " usage, transfer error, violation rate, harm and cost; fix: make the report anew"
        )


def _missing(report: Mapping[str, Any]) -> Iterator[str]:
    yield from (name for name in SECTIONS if name not in report)
    yield from (
        f"utility.{name}"
        for name in ("harmful", "neutral", "beneficial")
        if name not in report.get("utility", {})
    )
    for name, router in report.get("routers", {}).items():
        place = f"routers.{name}"
        budgets = list(router.get("deployable", {}))
        if "cost" not in router or (router["cost"] is None and not router.get("cost_reason")):
            yield f"{place}.cost"
        if not budgets:
            yield f"{place}.deployable"
        for budget in budgets:
            if budget not in router.get("exact", {}):
                yield f"{place}.exact.{budget}"
            yield from _of_entry(f"{place}.deployable.{budget}", router["deployable"][budget])
            for rule in RULES:
                entry = router.get("conservative", {}).get(rule, {}).get(budget, {})
                yield from _of_entry(f"{place}.conservative.{rule}.{budget}", entry)


def _of_entry(place: str, entry: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"{place}.{name}" for name in REQUIRED if name not in entry)


def cell(group: Mapping[str, Any], name: str) -> dict[str, Any]:
    """{estimate, low, high} of a figure, whether it stands as that or as a plain number."""
    value = group[name]
    if isinstance(value, Mapping):
        return dict(value)
    beside = group.get("intervals", {}).get(name)
    return dict(beside) if beside else {"estimate": value, "low": None, "high": None}


def estimate(group: Mapping[str, Any], name: str) -> float | None:
    """The figure itself."""
    return cell(group, name)["estimate"]


def budgets(report: Mapping[str, Any]) -> list[str]:
    """The keys of the budgets, ascending."""
    return [repr(float(budget)) for budget in report["settings"]["budgets"]]
