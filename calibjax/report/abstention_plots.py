"""Plots of abstention: accuracy-coverage curves with bands, risk bars, feature weights."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from calibjax.report.abstention import regimes_of
from calibjax.report.plot_style import COLOURS, line_style, new_figure, plain, short

# More curves, or more bands, hide one another; the table holds all signals.
_CURVES = ("rcs", "mlp", "max_score", "entropy", "query_len_inv")
_BANDS = ("rcs", "max_score")
_BAR_COLOURS = ("#9A9A9A", "#0072B2", "#E69F00")
_BARS = (("all", None), ("70 %", "0.7"), ("50 %", "0.5"))


def all_plots(report: Mapping[str, Any]) -> dict[str, Figure]:
    """File name without ending -> figure."""
    return {
        "accuracy_coverage": accuracy_coverage(report),
        "risk": risk_bars(report),
        "weights": feature_weights(report),
    }


def accuracy_coverage(report: Mapping[str, Any]) -> Figure:
    """Success rate of the most confident share of the questions, with bootstrap bands."""
    figure, panels = _panels(report, 4.4, 3.4)
    for axes, (name, regime) in panels:
        shown = [key for key in _CURVES if key in regime["signals"]]
        for index, key in enumerate(shown):
            _band(axes, regime["signals"][key]["curve"], index, len(shown), key)
        rate = regime["base"]["success_rate"]
        axes.axhline(rate, color="#5A5A5A", linestyle=(0, (4, 3)), linewidth=1, label="random")
        axes.set(xlim=(0, 1.02), xlabel="coverage", ylabel="success rate of the answered")
        axes.set_title(short(name), fontsize=10, loc="left")
        plain(axes)
    _shared_legend(figure)
    return figure


def _band(axes: Axes, curve: Mapping[str, Any], index: int, count: int, label: str) -> None:
    points = zip(curve["coverage"], curve["accuracy"], curve["low"], curve["high"], strict=True)
    whole = [row for row in points if None not in row]
    if not whole:
        return
    coverage, accuracy, low, high = np.array(whole).T
    style = line_style(index, count)
    if label in _BANDS:
        axes.fill_between(coverage, low, high, color=style["color"], alpha=0.15, linewidth=0)
    axes.plot(coverage, accuracy, label=label, **style)


def risk_bars(report: Mapping[str, Any]) -> Figure:
    """CWAR of every signal when all, 70 % and 50 % of the questions are answered."""
    figure, panels = _panels(report, 5.4, 3.4)
    for axes, (name, regime) in panels:
        signals = regime["signals"]
        places = np.arange(len(signals), dtype=float)
        for index, (label, coverage) in enumerate(_BARS):
            cells = [_risk(regime, signal, coverage) for signal in signals.values()]
            where = places + 0.27 * (index - 1)
            heights = [np.nan if risk is None else risk for risk, _, _ in cells]
            axes.bar(where, heights, 0.25, color=_BAR_COLOURS[index], label=f"{label} answered")
            for x, (risk, low, high) in zip(where, cells, strict=True):
                if None not in (risk, low, high):
                    axes.plot([x, x], [low, high], color="#222222", linewidth=0.9)
        axes.set_xticks(places, [short(key) for key in signals], rotation=45, ha="right")
        axes.set(ylabel="share of failures (CWAR)", ylim=(0, None))
        axes.set_title(short(name), fontsize=10, loc="left")
        plain(axes)
    _shared_legend(figure)
    return figure


def _risk(regime: Mapping[str, Any], signal: Mapping[str, Any], coverage: str | None) -> tuple:
    if coverage is None:
        return regime["base"]["cwar"], None, None
    cell = signal["intervals"]["accuracy_at_coverage"][coverage]
    values = (cell["estimate"], cell["high"], cell["low"])
    return tuple(None if value is None else 1 - value for value in values)


def feature_weights(report: Mapping[str, Any]) -> Figure:
    """Weights of RCS per standard deviation of the feature."""
    figure, panels = _panels(report, 4.0, 3.2)
    for axes, (name, regime) in panels:
        weights = regime["rcs"]["weights"]
        colours = [COLOURS[0] if weight >= 0 else COLOURS[1] for weight in weights.values()]
        places = range(len(weights))
        axes.barh(places, list(weights.values()), color=colours, height=0.7)
        axes.set_yticks(places, list(weights))
        axes.invert_yaxis()
        axes.axvline(0, color="#222222", linewidth=0.8)
        axes.set_xlabel("weight (log odds per standard deviation)")
        axes.set_title(short(name), fontsize=10, loc="left")
        plain(axes)
    return figure


def _panels(report: Mapping[str, Any], width: float, height: float) -> tuple[Figure, Iterator]:
    """A figure with one panel a regime, and (axes, (name, regime)) of each."""
    regimes = list(regimes_of(report).items())
    columns = min(3, len(regimes))
    rows = math.ceil(len(regimes) / columns)
    figure = new_figure(width * columns, height * rows + 0.5)
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in grid[len(regimes) :]:
        axes.set_axis_off()
    return figure, zip(grid, regimes)


def _shared_legend(figure: Figure) -> None:
    handles, labels = figure.axes[0].get_legend_handles_labels()
    columns = max(1, min(len(labels), int(figure.get_figwidth() / 1.4)))
    figure.legend(
        handles, labels, loc="outside lower center", ncols=columns, fontsize=7.5, frameon=False
    )
