"""Plots of a report, drawn from report.json alone: colour-blind palette, legible in grey.

Figures are made with matplotlib's object interface on the Agg canvas: no pyplot, no global state.
"""

import io
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from calibjax.report import schema
from calibjax.report.plot_style import GREY, line_style, new_figure, plain, short
from calibjax.report.tables import interval, number, outcome_groups

PANELS = ("accuracy", "auroc", "ece", "brier")


def render(figure: Figure, kind: str = "png", *, dpi: int = 150) -> bytes:
    """The figure as a PNG or PDF file; equal figures give equal bytes."""
    stamp = {"Software": None} if kind == "png" else {"CreationDate": None}
    out = io.BytesIO()
    with warnings.catch_warnings():
        # Names in scripts that the font lacks show as boxes; the tables hold them in full.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(out, format=kind, dpi=dpi, metadata=stamp)
    return out.getvalue()


def reliability_diagram(report: Mapping[str, Any], *, methods: Sequence[str] = ()) -> Figure:
    """One panel a method: accuracy of each confidence bin with its interval, rows per bin below."""
    names = _with_curve(report, methods, "reliability")
    columns = {0: 1, 1: 1, 2: 2, 4: 2}.get(len(names), 3 if len(names) <= 6 else 4)
    rows = math.ceil(len(names) / columns) or 1
    figure = new_figure(3.5 * columns + 0.4, 4.3 * rows)
    outer = figure.add_gridspec(rows, columns)
    for index, name in enumerate(names):
        inner = outer[divmod(index, columns)].subgridspec(2, 1, height_ratios=(3.4, 1), hspace=0.08)
        axes = figure.add_subplot(inner[0])
        _reliability_panel(axes, report, name)
        _count_panel(figure.add_subplot(inner[1], sharex=axes), report, name)
    if names:
        handles, titles = figure.axes[0].get_legend_handles_labels()
        figure.legend(
            handles, titles, loc="outside lower center", ncols=3, fontsize=7.5, frameon=False
        )
    else:
        _nothing(figure, "no method with a defined reliability diagram")
    return figure


def _reliability_panel(axes: Axes, report: Mapping[str, Any], name: str) -> None:
    bins = [row for row in report["methods"][name]["curves"]["reliability"] if row["count"] > 0]
    axes.plot([0, 1], [0, 1], color=GREY, linestyle=(0, (4, 3)), linewidth=1, label="calibrated")
    for row in bins:
        width, low, high = row["upper"] - row["lower"], row["accuracy_low"], row["accuracy_high"]
        axes.bar(row["lower"], high - low, width, low, align="edge", color="#B9D5E8", linewidth=0)
    axes.bar(0, 0, 0, color="#B9D5E8", label=f"{_percent(report)} interval")
    x = [row["confidence"] for row in bins]
    y = [row["accuracy"] for row in bins]
    axes.plot(x, y, color="#00476E", marker="o", markersize=4.5, linewidth=1.2, label="observed")
    axes.set(xlim=(0, 1), ylim=(-0.02, 1.02), ylabel="share correct")
    axes.set_title(short(name), fontsize=10.5, fontweight="bold", loc="left", pad=18)
    cell = schema.estimate(report, name, "ece")
    null = report["methods"][name].get("ece_null", {}).get("q95")
    note = f"ECE {number(cell['estimate'])} {interval(cell)}"
    note += f", calibrated model up to {number(null)}" if null is not None else ""
    axes.text(0, 1.015, note, transform=axes.transAxes, fontsize=7.2, color=GREY, va="bottom")
    axes.tick_params(labelbottom=False)
    plain(axes)


def _count_panel(axes: Axes, report: Mapping[str, Any], name: str) -> None:
    bins = report["methods"][name]["curves"]["reliability"]
    tallest = max((row["count"] for row in bins), default=0)
    for row in bins:
        width = row["upper"] - row["lower"]
        axes.bar(row["lower"], row["count"], width, align="edge", color="#9A9A9A", ec="white")
        if row["count"] and len(bins) <= 20:
            middle = row["lower"] + width / 2
            shown = _compact(row["count"])
            axes.text(middle, row["count"], shown, ha="center", va="bottom", fontsize=5.6)
    axes.set(xlabel="confidence", ylabel="rows", ylim=(0, 1.25 * tallest or 1))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=3, integer=True))
    plain(axes)


def accuracy_coverage(report: Mapping[str, Any], *, methods: Sequence[str] = ()) -> Figure:
    """Accuracy of the most confident share of the rows, one line a method; risk on the right."""
    names = _with_curve(report, methods, "accuracy_coverage")
    figure = new_figure(6.6, 4.2)
    axes = figure.add_subplot()
    lowest = 1.0
    for index, name in enumerate(names):
        curve = report["methods"][name]["curves"]["accuracy_coverage"]
        lowest = min([lowest, *curve["accuracy"]])
        area = schema.estimate(report, name, "auc_ac")["estimate"]
        label = f"{short(name)} (AUC-AC {number(area)})"
        style = line_style(index, len(names))
        axes.plot(curve["coverage"], curve["accuracy"], label=label, **style)
    axes.set(xlim=(0, 1), xlabel="coverage (share of rows kept, most confident first)")
    axes.set_ylabel("accuracy of the rows kept")
    axes.set_ylim(max(-0.02, lowest - 0.05), 1.02)
    axes.set_title("Accuracy and risk against coverage", fontsize=11, loc="left")
    right = axes.secondary_yaxis("right", functions=(_one_minus, _one_minus))
    right.set_ylabel("risk (1 - accuracy)", fontsize=9)
    right.tick_params(labelsize=8)
    plain(axes, right=True)
    if names:
        _legend(axes, len(names))
    return figure


def _one_minus(value: Any) -> Any:
    return 1 - value


def metric_intervals(
    report: Mapping[str, Any],
    metrics: Sequence[str] = PANELS,
    *,
    as_error: bool = True,
    methods: Sequence[str] = (),
) -> Figure:
    """Estimates with their intervals, one panel a figure.

    as_error: panels of figures where higher is better show one minus them, so that lower is better
    in every panel.
    """
    groups = [[n for n in g if n in methods or not methods] for g in outcome_groups(report)]
    names = [name for group in groups for name in group]
    edges = np.cumsum([len(group) for group in groups if group])[:-1] - 0.5
    figure = new_figure(1.2 + 2.6 * len(metrics), 1.3 + 0.32 * max(len(names), 2))
    if len(edges):
        figure.supxlabel("Dashed lines divide methods that forecast different outcomes.", size=8)
    panels = figure.subplots(1, len(metrics), sharey=True, squeeze=False)[0]
    for axes, metric in zip(panels, metrics, strict=True):
        turn = as_error and schema.higher_is_better(metric)
        for place, name in enumerate(names):
            _interval_mark(axes, schema.estimate(report, name, metric), place, turn)
        heading = ("1 - " if turn else "") + schema.title(metric)
        better = "lower" if turn or not schema.higher_is_better(metric) else "higher"
        axes.set_title(heading, fontsize=10)
        axes.set_xlabel(f"{better} is better", fontsize=8)
        axes.set_yticks(range(len(names)), [short(name) for name in names], fontsize=8.5)
        axes.set_ylim(max(len(names), 1) - 0.5, -0.5)
        if schema.base_name(metric) not in schema.ACROSS_OUTCOMES:
            for edge in edges:
                axes.axhline(edge, color=GREY, linewidth=0.8, linestyle=(0, (5, 4)))
        axes.xaxis.set_major_locator(MaxNLocator(nbins=3))
        plain(axes)
    return figure


def _interval_mark(axes: Axes, cell: Mapping[str, Any], place: int, turn: bool) -> None:
    values = [cell["estimate"], cell["low"], cell["high"]]
    if values[0] is None:
        axes.text(0.5, place, "n/a", transform=axes.get_yaxis_transform(), fontsize=8, va="center")
        return
    if turn:
        values = [None if value is None else 1 - value for value in values]
    if values[1] is not None and values[2] is not None:
        axes.plot(values[1:], [place, place], color="#0072B2", linewidth=2, solid_capstyle="butt")
    axes.plot(values[0], place, marker="o", markersize=5, color="#000000")


def label_histogram(labels: Mapping[str, Any]) -> Figure:
    """Bars of `labels.histogram` ({"0.1": rows}) with the mean label as a line."""
    histogram = {float(value): count for value, count in labels["histogram"].items()}
    figure = new_figure(5.2, 3.4)
    axes = figure.add_subplot()
    places = sorted(histogram)
    gaps = np.diff(places)
    width = 0.85 * float(gaps.min()) if len(gaps) else 0.08
    counts = [histogram[place] for place in places]
    axes.bar(places, counts, width, color="#9CC3DD", edgecolor="#00476E", linewidth=0.8)
    for place, count in zip(places, counts, strict=True):
        axes.text(place, count, _compact(count), ha="center", va="bottom", fontsize=7.5)
    mean = labels.get("mean")
    if mean is not None:
        axes.axvline(mean, color="#D55E00", linestyle="--", linewidth=1.4, label=f"mean {mean:.3f}")
        axes.legend(frameon=False, fontsize=8.5)
    axes.set(xlabel="label (share of decisions that are right)", ylabel="rows")
    axes.set_ylim(0, 1.12 * max(counts, default=1))
    axes.set_title("Labels of the supervision set", fontsize=11, loc="left")
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    plain(axes)
    return figure


# --------------------------------------------------------------------------------- style


def _legend(axes: Axes, count: int) -> None:
    """Inside the plot for a few lines, below it for many."""
    if count <= 4:
        axes.legend(fontsize=8, frameon=False, loc="best", handlelength=3)
    else:
        axes.legend(
            fontsize=7.5, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2
        )


def _with_curve(report: Mapping[str, Any], methods: Sequence[str], curve: str) -> list[str]:
    wanted = list(methods) or list(report["methods"])
    return [name for name in wanted if report["methods"][name].get("curves", {}).get(curve)]


def _nothing(figure: Figure, text: str) -> None:
    axes = figure.add_subplot()
    axes.set_axis_off()
    axes.text(0.5, 0.5, text, ha="center", va="center", fontsize=10)


def _percent(report: Mapping[str, Any]) -> str:
    return f"{number(100 * report['settings']['confidence_level'], 1).removesuffix('.0')} %"


def _compact(count: float) -> str:
    """1234 -> 1.2k, so that counts fit above narrow bars."""
    return f"{count / 1000:.1f}k" if count >= 1000 else f"{count:g}"
