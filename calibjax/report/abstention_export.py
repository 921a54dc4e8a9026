"""The figures of an abstention report as LaTeX tables and as CSV."""

from collections.abc import Mapping
from typing import Any

from calibjax.report import tables
from calibjax.report.abstention_tables import FIGURES, best_signals, figures, regimes_of
from calibjax.report.tables import interval, number


def latex_page(report: Mapping[str, Any]) -> str:
    """One booktabs table a regime; needs only `\\usepackage{booktabs}`."""
    return "\n".join(_latex(report, key, regime) for key, regime in regimes_of(report).items())


def _latex(report: Mapping[str, Any], key: str, regime: Mapping[str, Any]) -> str:
    rows, base, bold = regime["rows"], regime["base"], best_signals(regime)
    caption = (
        f"{key}: {rows['n_tune']} questions to tune on, {rows['n_test']} to test on, success rate "
        f"{number(base['success_rate'])}. {tables.settings_line(report)}."
    )
    lines = [
        r"\begin{table}[t]",
        r"\centering",
        rf"\caption{{{tables.latex_text(caption)}}}",
        rf"\begin{{tabular}}{{l{'r' * len(FIGURES)}}}",
        r"\toprule",
        " & ".join(["Signal", *FIGURES]) + r" \\",
        r"\midrule",
    ]
    for name, signal in regime["signals"].items():
        area, *others = (_latex_number(value) for value in figures(signal))
        area = rf"\textbf{{{area}}}" if name in bold else area
        small = interval(signal["auc_ac"])
        area += rf" {{\scriptsize {small}}}" if small else ""
        lines.append(" & ".join([tables.latex_text(name), area, *others]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}"]) + "\n"


def csv_table(report: Mapping[str, Any]) -> str:
    """Every figure on a line of its own: regime, kind, name, figure, estimate, low, high."""
    rows: list[list[Any]] = []
    for key, regime in regimes_of(report).items():
        for name, signal in regime["signals"].items():
            cells = {"auc_ac": signal["auc_ac"]} | {
                figure: cell
                for figure, cell in signal["intervals"].items()
                if figure != "accuracy_at_coverage"
            }
            for coverage, cell in signal["intervals"]["accuracy_at_coverage"].items():
                cells[f"accuracy_at_{coverage}"] = cell
            rows += [[key, "signal", name, f, *_triple(cell)] for f, cell in cells.items()]
        for name, cell in regime["ablation"].items():
            triple = [cell["delta"], cell["low"], cell["high"]]
            rows.append([key, "ablation", name, "auc_ac", *triple])
        for name, weight in regime["rcs"]["weights"].items():
            rows.append([key, "weight", name, "weight", weight, None, None])
        for name, cell in (regime.get("transfer") or {}).items():
            rows.append([key, "transfer", name, "auc_ac", *_triple(cell["auc_ac"])])
    heads = ["regime", "kind", "name", "figure", "estimate", "low", "high"]
    return tables.csv_text(heads, rows)


def _triple(cell: Mapping[str, Any]) -> list[Any]:
    return [cell["estimate"], cell["low"], cell["high"]]


def _latex_number(value: float | None) -> str:
    return "--" if value is None else number(value).replace("-", "$-$")
