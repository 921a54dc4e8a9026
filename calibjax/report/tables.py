"""Tables of a report: Markdown, LaTeX (booktabs) and CSV, written from report.json alone."""

import csv
import io
import string
from collections.abc import Mapping, Sequence
from typing import Any

from calibjax.report import schema

PRIMARY = (
    "accuracy",
    "ece",
    "ece_mass",
    "brier",
    "log_loss",
    "log_loss_skill",
    "auroc",
    "auc_ac",
    "no_answer_rate",
)
COMPACT = ("accuracy", "ece", "brier", "log_loss", "log_loss_skill", "auroc")


def outcome_groups(report: Mapping[str, Any]) -> list[list[str]]:
    """Methods that forecast the same outcomes, together, in the order of the report."""
    groups: dict[str, list[str]] = {}
    for name, method in report["methods"].items():
        groups.setdefault(method.get("outcomes", ""), []).append(name)
    return list(groups.values())


def best(
    report: Mapping[str, Any], metric: str, *, digits: int = 3, key: str = "metrics"
) -> set[str]:
    """The methods to print in bold: the best and its ties at `digits` decimals.

    Figures that depend on the base rate are ranked only among methods that forecast the same
    outcomes, so there may be one best method a group; a method without a rival is never bold.
    """
    across = schema.base_name(metric) in schema.ACROSS_OUTCOMES
    groups = [list(report["methods"])] if across else outcome_groups(report)
    sign = 1 if schema.higher_is_better(metric) else -1
    chosen: set[str] = set()
    for group in groups:
        cells = {name: schema.estimate(report, name, metric, key)["estimate"] for name in group}
        shown = {name: sign * round(v, digits) for name, v in cells.items() if v is not None}
        if len(shown) > 1 and len(set(shown.values())) > 1:
            top = max(shown.values())
            chosen |= {name for name, value in shown.items() if value == top}
    return chosen


def letters(report: Mapping[str, Any]) -> dict[str, str]:
    """One letter a method, a .. z then aa, ab ..., in the order of the report."""
    alphabet = string.ascii_lowercase
    codes = [*alphabet, *(x + y for x in alphabet for y in alphabet)]
    return dict(zip(report["methods"], codes, strict=False))


def differing(report: Mapping[str, Any], method: str, metric: str) -> list[str]:
    """Letters of the methods whose paired difference to `method` has an interval without 0."""
    codes = letters(report)
    others = (name for name in report["methods"] if name != method)
    return [codes[name] for name in others if schema.differs(report, method, name, metric)]


def number(value: float | None, digits: int = 3) -> str:
    """Fixed decimals, "n/a" for an undefined figure, never "-0.000"."""
    if value is None:
        return "n/a"
    text = f"{value:.{digits}f}"
    return text[1:] if text.startswith("-") and float(text) == 0 else text


def interval(cell: Mapping[str, Any], digits: int = 3) -> str:
    """`[low, high]`, empty where there is no interval."""
    if cell["low"] is None or cell["high"] is None:
        return ""
    return f"[{number(cell['low'], digits)}, {number(cell['high'], digits)}]"


def settings_line(report: Mapping[str, Any]) -> str:
    """One sentence on how the intervals were made."""
    settings = report["settings"]
    if not settings["replicates"]:
        return "No intervals (0 bootstrap replicates)"
    unit = "groups" if settings.get("cluster") == "group" else "rows"
    percent = number(100 * settings["confidence_level"], 1).removesuffix(".0")
    return (
        f"{percent} % percentile intervals from {settings['replicates']} paired bootstrap "
        f"replicates over {unit}, seed {settings['seed']}"
    )


def sizes(report: Mapping[str, Any]) -> str:
    """`n = 500`, or the range where methods differ."""
    counts = sorted({method["n"] for method in report["methods"].values()})
    if not counts:
        return "n = 0"
    return f"n = {counts[0]}" if len(counts) == 1 else f"n = {counts[0]} to {counts[-1]}"


# ------------------------------------------------------------------------------ Markdown


def markdown_text(text: str) -> str:
    """A method name that cannot break a Markdown table."""
    flat = " ".join(text.split())
    for mark in "\\|*`<>[]":
        flat = flat.replace(mark, "\\" + mark)
    return flat


def markdown_grid(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first column is left-aligned, the others are right-aligned."""
    lines = ["| " + " | ".join(header) + " |"]
    lines.append("|:--" + "|--:" * (len(header) - 1) + "|")
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def markdown(
    report: Mapping[str, Any],
    *,
    metrics: Sequence[str] = PRIMARY,
    digits: int = 3,
    key: str = "metrics",
) -> str:
    """Methods by figures: estimate and interval, the best in bold."""
    bold = {metric: best(report, metric, digits=digits, key=key) for metric in metrics}
    rows = []
    for name in report["methods"]:
        cells = [markdown_text(name)]
        for metric in metrics:
            cell = schema.estimate(report, name, metric, key)
            text = number(cell["estimate"], digits)
            text = f"**{text}**" if name in bold[metric] else text
            cells.append(f"{text} {interval(cell, digits)}".strip())
        rows.append(cells)
    return markdown_grid(["Method", *map(schema.title, metrics)], rows)


def markdown_differences(
    report: Mapping[str, Any],
    *,
    metrics: Sequence[str] = COMPACT,
    digits: int = 3,
    section: str = "comparisons",
) -> str:
    """Paired differences, bold where the interval excludes 0; empty when nothing is compared."""
    rows = []
    for pair, cells in report.get(section, {}).items():
        row = [markdown_text(pair)]
        for metric in metrics:
            cell = cells.get(metric)
            if cell is None or cell["estimate"] is None:
                row.append("n/a")
                continue
            text = number(cell["estimate"], digits)
            sure = cell["low"] is not None and (cell["low"] > 0 or cell["high"] < 0)
            text = f"**{text}**" if sure else text
            row.append(f"{text} {interval(cell, digits)}".strip())
        rows.append(row)
    return markdown_grid(["Difference", *map(schema.title, metrics)], rows) if rows else ""


# --------------------------------------------------------------------------------- LaTeX

_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
}


def latex_text(text: str) -> str:
    """Text with every character that LaTeX treats specially escaped."""
    return "".join(_LATEX.get(character, character) for character in " ".join(text.split()))


def _latex_rows(
    report: Mapping[str, Any], name: str, metrics: Sequence[str], digits: int, key: str
) -> list[str]:
    """Two lines of a method: estimates with letters, then the intervals in small type."""
    code = letters(report)[name]
    estimates, intervals = [f"{latex_text(name)}$^{{{code}}}$"], [""]
    for metric in metrics:
        cell = schema.estimate(report, name, metric, key)
        text = number(cell["estimate"], digits) if cell["estimate"] is not None else "--"
        text = text.replace("-", "$-$") if text != "--" else text
        is_best = name in best(report, metric, digits=digits, key=key)
        text = rf"\textbf{{{text}}}" if is_best else text
        marks = ",".join(differing(report, name, metric)) if key == "metrics" else ""
        estimates.append(text + (f"$^{{{marks}}}$" if marks else ""))
        small = interval(cell, digits).replace("-", "$-$")
        intervals.append(rf"{{\scriptsize {small}}}" if small else "")
    return [" & ".join(estimates) + r" \\", " & ".join(intervals) + r" \\"]


def latex(
    report: Mapping[str, Any],
    *,
    metrics: Sequence[str] = COMPACT,
    digits: int = 3,
    caption: str | None = None,
    label: str = "tab:calibration",
    key: str = "metrics",
) -> str:
    """A booktabs table: best in bold, intervals below, letters = differs at the given level.

    Methods that forecast the same outcomes stand together, divided by a rule from the others.
    Needs only `\\usepackage{booktabs}`. `caption` is plain text put before the line on n,
    replicates and seed.
    """
    arrow = {True: r"$\uparrow$", False: r"$\downarrow$"}
    heads = [f"{latex_text(schema.title(m))} {arrow[schema.higher_is_better(m)]}" for m in metrics]
    note = (
        f"{sizes(report)}; {settings_line(report)}. Bold: best among methods that forecast the "
        "same outcomes. A letter marks each method from which a value differs (paired interval "
        "without 0, not corrected for multiple comparisons)."
    )
    revision = report.get("revision")
    note += f" Revision {revision}." if revision else ""
    text = f"{caption.strip()} {note}" if caption else note
    lines = [
        r"\begin{table}[t]",
        r"\centering",
        rf"\caption{{{latex_text(text)}}}",
        rf"\label{{{label}}}",
        rf"\begin{{tabular}}{{l{'r' * len(metrics)}}}",
        r"\toprule",
        " & ".join(["Method", *heads]) + r" \\",
    ]
    for group in outcome_groups(report):
        lines.append(r"\midrule")
        for name in group:
            lines += _latex_rows(report, name, metrics, digits, key)
    lines += [r"\bottomrule", r"\end{tabular}", r"\end{table}"]
    return "\n".join(lines) + "\n"


# ----------------------------------------------------------------------------------- CSV


def csv_text(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Comma-separated values with `\\n` line ends; None is an empty cell, floats are exact."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    for row in rows:
        writer.writerow([_csv_cell(value) for value in row])
    return out.getvalue()


def _csv_cell(value: Any) -> Any:
    if value is None:
        return ""
    return repr(value) if isinstance(value, float) else value


def csv_table(report: Mapping[str, Any], *, metrics: Sequence[str] | None = None) -> str:
    """Figures (all, or `metrics` alone), one a line; kind is `method` or `difference`."""
    sources = {name: ("method", method["metrics"]) for name, method in report["methods"].items()}
    for section in ("comparisons", "across_outcomes"):
        sources |= {pair: ("difference", cells) for pair, cells in report.get(section, {}).items()}
    rows = [
        [kind, name, metric, cell["estimate"], cell["low"], cell["high"], cell.get("reason", "")]
        for name, (kind, cells) in sources.items()
        for metric, cell in cells.items()
        if metrics is None or metric in metrics
    ]
    return csv_text(["kind", "name", "metric", "estimate", "low", "high", "reason"], rows)
