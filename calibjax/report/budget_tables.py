"""Tables of a budget report, from report.json alone: Markdown, LaTeX and CSV."""

from collections.abc import Iterator, Mapping
from typing import Any

from calibjax.report import budget_schema as schema
from calibjax.report import tables

# Every table that shows accuracy shows these beside it.
_COLUMNS = {
    "accuracy": "Accuracy",
    "usage": "Usage",
    "transfer_error": "Transfer error",
    "violation_rate": "Violated",
    "harm_all": "Harm (all)",
    "harm_used": "Harm (retrieved)",
    "benefit_all": "Benefit (all)",
}
Report = Mapping[str, Any]


def shown(cell: Mapping[str, Any], digits: int = 3) -> str:
    """Estimate and interval."""
    text = tables.number(cell["estimate"], digits)
    return f"{text} {tables.interval(cell, digits)}".strip()


def at_budget(report: Report, budget: str) -> str:
    """All routers at one budget, thresholds by the plain quantile; reference lines below."""
    rows = []
    for name, router in report["routers"].items():
        entry = router["deployable"][budget]
        cells = [tables.markdown_text(name), router["family"] or "n/a"]
        cells.append(shown(schema.cell(router["exact"], budget)))
        cells += [shown(schema.cell(entry, column)) for column in _COLUMNS]
        cells.append(shown(schema.cell(entry, "gain_over_random")))
        cells.append(_cost(router, budget))
        rows.append(cells)
    for line in ("random", "oracle"):
        blank = [""] * (len(_COLUMNS) + 2)
        rows.append([f"*{line}*", "", shown(schema.cell(report[line], budget)), *blank])
    header = ["Router", "Family", "Exact", *_COLUMNS.values(), "Over random", "Cost"]
    return tables.markdown_grid(header, rows)


def _cost(router: Mapping[str, Any], budget: str) -> str:
    if router["cost"] is None:
        return "n/a"
    return tables.number(schema.estimate(router["cost"], budget), 1)


def rules_at(report: Report, budget: str) -> str:
    """Each rule over all routers at one budget: what caution costs and what it keeps."""
    rows = []
    for name, router in report["routers"].items():
        for rule in schema.RULES:
            entry = router["conservative"][rule][budget]
            cells = [tables.markdown_text(name), schema.RULE_TITLES[rule]]
            cells += [shown(schema.cell(entry, column)) for column in _COLUMNS]
            cells.append(shown(schema.cell(entry, "accuracy_lost")))
            rows.append(cells)
    header = ["Router", "Rule", *_COLUMNS.values(), "Accuracy lost"]
    return tables.markdown_grid(header, rows)


def violations(report: Report) -> str:
    """Observed violation rate over all routers beside what exchangeable rows lead to expect."""
    rows = []
    for rule, by_budget in report["violation_overall"].items():
        for budget in schema.budgets(report):
            expected = report["expected_violation"][rule][budget]
            observed = shown(schema.cell(by_budget, budget))
            rows.append([schema.RULE_TITLES[rule], budget, observed, tables.number(expected)])
    return tables.markdown_grid(["Rule", "Budget", "Violated", "Expected"], rows)


def utility(report: Report) -> str:
    """What evidence does to the answers, and how much of it two runs of one arm show as well."""
    found = report["utility"]
    names = ("harmful", "neutral", "beneficial", "mean")
    groups = {"with against without": found}
    if found.get("graded"):
        groups["graded (F1)"] = found["graded"]
    for arm, group in (found.get("same_arm") or {}).items():
        groups[f"same arm twice, {arm}"] = group
    rows = [
        [label, *(shown(schema.cell(group, name)) for name in names)]
        for label, group in groups.items()
    ]
    return tables.markdown_grid(["", "Harmful", "Neutral", "Beneficial", "Mean utility"], rows)


def costs(report: Report, budget: str) -> str:
    """What each router pays for at one budget, and the accuracy that a share of the price buys."""
    rows, shares = [], []
    for name, router in report["routers"].items():
        if router["cost"] is None:
            continue
        parts = router["cost_parts"][budget]
        shares = list(router["accuracy_at_cost"])
        seconds = (router["seconds"] or {}).get(budget)
        cells = [tables.markdown_text(name), _cost(router, budget)]
        cells += [tables.number(value, 1) for value in parts.values()]
        cells.append(tables.number(seconds, 2))
        cells += [tables.number(value) for value in router["accuracy_at_cost"].values()]
        rows.append(cells)
    if not rows:
        return ""
    titles = [name.replace("_", " ").capitalize() for name in parts]
    bought = [f"Acc. at {float(share):g} x always" for share in shares]
    return tables.markdown_grid(["Router", "Cost", *titles, "Seconds", *bought], rows)


def unknown_costs(report: Report) -> list[str]:
    """Routers whose cost is not known, with the reason; routers of one reason together."""
    names: dict[str, list[str]] = {}
    for name, router in report["routers"].items():
        if router["cost"] is None:
            names.setdefault(router["cost_reason"], []).append(tables.markdown_text(name))
    return [f"{', '.join(group)} ({reason})" for reason, group in names.items()]


def seconds(report: Report) -> str:
    """Measured seconds per question of each router at every budget."""
    budgets = schema.budgets(report)
    rows = [
        [tables.markdown_text(name), *(tables.number(router["seconds"][b], 2) for b in budgets)]
        for name, router in report["routers"].items()
        if router["seconds"] is not None
    ]
    return tables.markdown_grid(["Router", *(f"Seconds at {b}" for b in budgets)], rows)


def differences(report: Report, budget: str) -> tuple[str, int, int]:
    """Pairs of routers whose accuracy differs at a budget (interval without 0), and the counts."""
    rows = []
    for pair, cells in report["comparisons"].items():
        cell = schema.cell(cells["accuracy"], budget)
        if cell["low"] is not None and (cell["low"] > 0 or cell["high"] < 0):
            rows.append([tables.markdown_text(pair), shown(cell)])
    total = len(report["comparisons"])
    text = tables.markdown_grid(["Difference", "Accuracy"], rows) if rows else ""
    return text, len(rows), total


def latex(report: Report, budget: str, caption: str) -> str:
    """A booktabs table of all routers at one budget; needs `\\usepackage{booktabs}`."""
    columns = {"exact": "Exact", **_COLUMNS, "gain_over_random": "Over random"}
    lines = [
        r"\begin{table}[t]",
        r"\centering",
        rf"\caption{{{tables.latex_text(caption)}}}",
        r"\label{tab:budget}",
        rf"\begin{{tabular}}{{ll{'r' * len(columns)}}}",
        r"\toprule",
        " & ".join(["Router", "Family", *map(tables.latex_text, columns.values())]) + r" \\",
        r"\midrule",
    ]
    for name, router in report["routers"].items():
        entry = {**router["deployable"][budget], "exact": router["exact"][budget]}
        figures = [tables.number(schema.estimate(entry, key)) for key in columns]
        cells = [tables.latex_text(name), tables.latex_text(router["family"] or "n/a")]
        cells += [figure.replace("-", "$-$") for figure in figures]
        lines.append(" & ".join(cells) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}"]) + "\n"


def csv(report: Report) -> str:
    """Every figure of every router, one a line."""
    header = ["router", "family", "rule", "budget", "figure", "estimate", "low", "high"]
    return tables.csv_text(header, list(_csv_rows(report)))


def _csv_rows(report: Report) -> Iterator[list[Any]]:
    for name, router in report["routers"].items():
        for budget in schema.budgets(report):
            cell = schema.cell(router["exact"], budget)
            ends = [cell["estimate"], cell["low"], cell["high"]]
            yield [name, router["family"], "", budget, "exact_accuracy", *ends]
            for rule, entries in _entries(router):
                for figure in entries[budget]:
                    if figure == "intervals":
                        continue
                    cell = schema.cell(entries[budget], figure)
                    ends = [cell["estimate"], cell["low"], cell["high"]]
                    yield [name, router["family"], rule, budget, figure, *ends]


def _entries(router: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield "quantile", router["deployable"]
    yield from router["conservative"].items()
