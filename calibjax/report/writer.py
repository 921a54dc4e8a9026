"""Writes a report into a directory: JSON, Markdown, LaTeX, CSV, plots and the data behind them."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from calibjax import storage
from calibjax.report import schema, tables

_READING_GUIDE = """\
- ECE: gap between stated confidence and share correct, {num_bins} bins of equal width. It is never
  below 0 and biased upward, its interval even more, so compare it with what a perfectly calibrated
  model gets at this n (table above). ECE (mass): {num_mass_bins} bins of equal size.
- Brier, log loss (nats): lower is better; they depend on the base rate of the outcome.
- Skill: 1 - log loss / entropy of the base rate; 0 is a constant at the base rate, 1 is perfect.
- AUROC: chance that a right row has a higher confidence than a wrong one.
- AUC-AC: mean accuracy of the k most confident rows over all k; compare it with ACC.
- A row without an answer counts as wrong, except in columns marked (answered), which leave it out.
- Bold: best among methods that forecast the same outcomes (ACC, Skill, No answer: among all).
"""


def write_report(
    out_dir: str | Path,
    report: Mapping[str, Any],
    *,
    title: str = "Calibration report",
    notes: Sequence[str] = (),
    sections: Sequence[str] = (),
    pdf: bool = False,
) -> list[Path]:
    """report.json, .md, .tex, .csv, plots (PNG; with `pdf` also PDF) and one CSV beside each plot.

    Every file is written whole or not at all. `notes` are lines for the top of the Markdown page,
    `sections` are Markdown parts before its reading guide. Returns the paths written, report.json
    last, so that it stands for a complete report.
    """
    out = Path(out_dir)
    out.mkdir(parents=True, exist_ok=True)
    plots = list(_plots(report))
    written = []
    for name, figure, data in plots:
        written.append(_write(out / f"{name}.csv", data))
        written += [_draw(out / f"{name}.{kind}", figure) for kind in ["png", "pdf"][: 1 + pdf]]
    pictures = [name for name, _, _ in plots]
    page = markdown_page(report, title, notes, sections, pictures)
    written.append(_write(out / "report.md", page))
    written.append(_write(out / "report.tex", tables.latex(report, caption=title + ".")))
    written.append(_write(out / "report.csv", tables.csv_table(report)))
    storage.write_json(out / "report.json", report)
    return [*written, out / "report.json"]


def headline(report: Mapping[str, Any]) -> str:
    """One line: rows kept and rejected, and how many of each method's rows are compared."""
    rows = report.get("rows", {})
    kept, rejected = rows.get("n_kept", 0), rows.get("n_rejected", 0)
    copies = rows.get("n_duplicates", 0)
    parts = [f"kept {kept} of {kept + rejected + copies} rows"]
    if copies:
        parts.append(f"{copies} exact copies left out")
    if rejected:
        parts.append(f"{rejected} rejected, see rejected.jsonl")
    if rows.get("truncated"):
        parts.append("TRUNCATED input: " + ", ".join(rows["truncated"]))
    given = rows.get("n_by_method", {})
    if len(given) > 1 and any(count != rows["n_common"] for count in given.values()):
        counts = ", ".join(f"{name} {count}" for name, count in given.items())
        parts.append(f"figures are over the {rows['n_common']} ids in common ({counts})")
    return "; ".join(parts)


def markdown_page(
    report: Mapping[str, Any],
    title: str,
    notes: Sequence[str],
    sections: Sequence[str],
    pictures: Sequence[str],
) -> str:
    """The page report.md: headline, tables, plots, undefined figures and a reading guide."""
    methods = report["methods"]
    parts = [f"# {title}\n", f"{headline(report)}. {tables.sizes(report)}.\n", *notes]
    if methods:
        parts += [tables.settings_line(report) + ".\n", tables.markdown(report)]
    if any(method["n_answered"] < method["n"] for method in methods.values()):
        answered = [name + schema.ANSWERED for name in tables.PRIMARY if name != "no_answer_rate"]
        parts += ["## Answered rows only\n", tables.markdown(report, metrics=answered)]
    parts += list(_difference_parts(report))
    parts += [f"![{name.replace('_', ' ')}]({name}.png)\n" for name in pictures]
    if methods:
        parts += ["## ECE of a perfectly calibrated model at this n\n", _null_table(report)]
    parts += [*_agreement_parts(report), *sections]
    undefined = sorted(set(_undefined(report)))
    if undefined:
        parts += ["## Undefined figures\n", "\n".join(f"- {line}" for line in undefined) + "\n"]
    if methods:
        parts += ["## How to read this\n", _READING_GUIDE.format(**report["settings"])]
    return "\n".join(parts)


def _difference_parts(report: Mapping[str, Any]) -> Iterator[str]:
    same = tables.markdown_differences(report)
    if same:
        yield "## Paired differences on the same outcomes\n"
        yield "First minus second; bold where the interval excludes 0 (no correction for many).\n"
        yield same
    across = tables.markdown_differences(
        report, metrics=schema.ACROSS_OUTCOMES, section="across_outcomes"
    )
    if across:
        yield "## Paired differences where the methods' outcomes differ\n"
        yield "Only figures that do not depend on which outcome is forecast.\n"
        yield across


def _null_table(report: Mapping[str, Any]) -> str:
    rows = []
    for name, method in report["methods"].items():
        ece, null = schema.estimate(report, name, "ece")["estimate"], method["ece_null"]
        values = [tables.number(value) for value in (ece, null["mean"], null["q95"])]
        rows.append([tables.markdown_text(name), *values])
    return tables.markdown_grid(["Method", "ECE", "Mean if calibrated", "95 % quantile"], rows)


def _agreement_parts(report: Mapping[str, Any]) -> Iterator[str]:
    found = report.get("agreement")
    if not found:
        return
    yield "## Agreement of the human and the model user\n"
    rows = []
    for row in [{"confidence": "all", **found}, *found.get("bins", [])]:
        cells = [row["rate"], row["kappa"]]
        shown = [f"{tables.number(c['estimate'])} {tables.interval(c)}".strip() for c in cells]
        rows.append([str(row["confidence"]), str(row["n"]), *shown])
    yield tables.markdown_grid(["Confidence", "n", "Agreement", "Cohen's kappa"], rows)


def _undefined(report: Mapping[str, Any]) -> Iterator[str]:
    for name, method in report["methods"].items():
        for metric, cell in method["metrics"].items():
            if cell.get("reason") and not metric.endswith(schema.ANSWERED):
                yield f"{tables.markdown_text(name)}, {schema.title(metric)}: {cell['reason']}"


def _plots(report: Mapping[str, Any]) -> Iterator[tuple[str, Any, str]]:
    """(file name without ending, figure, CSV text) of every plot that the report has data for."""
    from calibjax.report import plots

    if report["methods"]:
        yield "reliability", plots.reliability_diagram(report), reliability_csv(report)
        yield "accuracy_coverage", plots.accuracy_coverage(report), coverage_csv(report)
        shown = tables.csv_table(report, metrics=plots.PANELS)
        yield "metrics", plots.metric_intervals(report), shown
    labels = report.get("labels")
    if labels:
        pairs = sorted((float(value), count) for value, count in labels["histogram"].items())
        text = tables.csv_text(["label", "rows"], pairs)
        yield "labels", plots.label_histogram(labels), text


def reliability_csv(report: Mapping[str, Any]) -> str:
    """The bins of every method, one a line; counts of a method sum to its n."""
    fields = ["lower", "upper", "count", "confidence", "accuracy", "accuracy_low", "accuracy_high"]
    rows = []
    for name, method in report["methods"].items():
        for row in method.get("curves", {}).get("reliability", []):
            rows.append([name, *(row[field] for field in fields)])
    return tables.csv_text(["method", *fields], rows)


def coverage_csv(report: Mapping[str, Any]) -> str:
    """Points of every method's accuracy-coverage curve."""
    rows = []
    for name, method in report["methods"].items():
        curve = method.get("curves", {}).get("accuracy_coverage")
        if curve:
            points = zip(curve["coverage"], curve["accuracy"], strict=True)
            rows += [[name, coverage, accuracy, 1 - accuracy] for coverage, accuracy in points]
    return tables.csv_text(["method", "coverage", "accuracy", "risk"], rows)


def _write(path: Path, text: str) -> Path:
    storage.write_text(path, text)
    return path


def _draw(path: Path, figure: Any) -> Path:
    from calibjax.report import plots

    storage.write_bytes(path, plots.render(figure, path.suffix.removeprefix(".")))
    return path
