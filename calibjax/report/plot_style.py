"""How every plot looks: colours, lines, axes. Colour-blind palette, legible in grey."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

# Okabe and Ito's colours, ordered so that neighbours also differ in lightness.
COLOURS = ("#0072B2", "#E69F00", "#000000", "#CC79A7", "#009E73", "#D55E00", "#56B4E9", "#7A7A7A")
DASHES = ("-", "--", "-.", ":")
MARKERS = "osD^vPX*"
GREY = "#5A5A5A"
_NAME_WIDTH = 28


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of so many inches on the Agg canvas."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def line_style(index: int, count: int) -> dict[str, Any]:
    """Colour, dash and marker of a line: no two of 8 x 4 are alike, in grey too."""
    return {
        "color": COLOURS[index % len(COLOURS)],
        "linestyle": DASHES[(index + index // len(COLOURS)) % len(DASHES)],
        "marker": MARKERS[index % len(MARKERS)],
        "markersize": 4.5,
        # Marks of neighbouring lines are set off from each other.
        "markevery": (0.02 + 0.11 * index / max(count, 1), 0.11),
        "linewidth": 1.6,
    }


def plain(axes: Axes, right: bool = False) -> None:
    """Small type, light grid, no frame above (nor right)."""
    axes.spines["top"].set_visible(False)
    axes.spines["right"].set_visible(right)
    axes.tick_params(labelsize=8)
    axes.xaxis.label.set_fontsize(9)
    axes.yaxis.label.set_fontsize(9)
    axes.grid(axis="y", color="#E3E3E3", linewidth=0.6)
    axes.set_axisbelow(True)


def short(name: str) -> str:
    """A method name that fits above a panel, with dollar signs kept from being read as maths."""
    flat = " ".join(name.split())
    cut = flat if len(flat) <= _NAME_WIDTH else flat[: _NAME_WIDTH - 1] + "…"
    return cut.replace("$", r"\$")
