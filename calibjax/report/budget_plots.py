"""Plots of a budget report, drawn from report.json alone."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from calibjax.report import budget_schema as schema
from calibjax.report.plot_style import GREY, line_style, new_figure, plain, short

# More lines than this cannot be told apart; the tables hold them all.
MAX_LINES = 8
Report = Mapping[str, Any]
Point = tuple[float, float, float | None, float | None]


def chosen(report: Report) -> list[str]:
    """The routers that are drawn: at most eight, those with the best mean exact accuracy."""

    def mean(name: str) -> float:
        cells = report["routers"][name]["exact"]
        return sum(schema.estimate(cells, b) or 0.0 for b in schema.budgets(report))

    best = sorted(report["routers"], key=mean, reverse=True)[:MAX_LINES]
    return [name for name in report["routers"] if name in best]


def frontiers(report: Report) -> Figure:
    """Exact, deployable and conservative frontiers with bands; random, oracle and end points."""
    figure = new_figure(13.2, 4.6)
    panels = figure.subplots(1, 3, sharey=True)
    titles = ("Exact (ranking only)", "Deployable (quantile)", "Conservative (exact rule)")
    for axes, title in zip(panels, titles):
        _references(axes, report)
        axes.set_title(title, fontsize=10.5, loc="left")
        axes.set_xlabel("usage (share of questions with evidence)")
        plain(axes)
    panels[0].set_ylabel("accuracy")
    names = chosen(report)
    for index, name in enumerate(names):
        router = report["routers"][name]
        exact = [
            (float(b), *_ends(schema.cell(router["exact"], b))) for b in schema.budgets(report)
        ]
        # Thresholds are drawn at the usage they realise, not at the one they promise.
        deployed = _realised(router["deployable"], report)
        careful = _realised(router["conservative"]["exact"], report)
        for axes, points in zip(panels, (exact, deployed, careful)):
            _line(axes, points, short(name), index, len(names))
    _legend(figure, panels[0])
    return figure


def _ends(cell: Mapping[str, Any]) -> tuple[float, float | None, float | None]:
    return cell["estimate"], cell["low"], cell["high"]


def _realised(entries: Mapping[str, Any], report: Report) -> list[Point]:
    points = []
    for budget in schema.budgets(report):
        usage = schema.estimate(entries[budget], "usage")
        points.append((usage or 0.0, *_ends(schema.cell(entries[budget], "accuracy"))))
    return sorted(points, key=lambda point: point[0])


def _line(axes: Axes, points: Sequence[Point], label: str, index: int, count: int) -> None:
    style = line_style(index, count) | {"markevery": 1}
    x = [point[0] for point in points]
    axes.plot(x, [point[1] for point in points], label=label, **style)
    bands = [(at, low, high) for at, _, low, high in points if low is not None]
    if bands:
        place, low, high = zip(*bands)
        axes.fill_between(place, low, high, color=style["color"], alpha=0.06, linewidth=0)


def _references(axes: Axes, report: Report) -> None:
    budgets = schema.budgets(report)
    ends: Any = [schema.estimate(report, name) for name in ("never", "always")]
    for name, dash in (("random", (0, (1, 1.5))), ("oracle", (0, (4, 2)))):
        inner: Any = [schema.estimate(report[name], b) for b in budgets]
        x = [0.0, *map(float, budgets), 1.0]
        axes.plot(
            x, [ends[0], *inner, ends[1]], color=GREY, linestyle=dash, linewidth=1.1, label=name
        )
    axes.plot([0, 1], ends, "k*", markersize=8, linestyle="none", label="never, always")
    axes.set_xlim(-0.03, 1.03)


def _legend(figure: Figure, axes: Axes) -> None:
    handles, titles = axes.get_legend_handles_labels()
    figure.legend(handles, titles, loc="outside lower center", ncols=4, fontsize=7.5, frameon=False)


def usage(report: Report) -> Figure:
    """Realised against target usage: above the diagonal the budget is broken."""
    figure = new_figure(9.0, 4.6)
    panels = figure.subplots(1, 2, sharey=True)
    rules = (("quantile", "Quantile thresholds"), ("exact", "Exact rule"))
    names = chosen(report)
    for axes, (rule, title) in zip(panels, rules):
        axes.plot([0, 1], [0, 1], color=GREY, linestyle=(0, (4, 3)), linewidth=1, label="target")
        for index, name in enumerate(names):
            router = report["routers"][name]
            entries = router["deployable"] if rule == "quantile" else router["conservative"][rule]
            points = [
                (float(b), *_ends(schema.cell(entries[b], "usage"))) for b in schema.budgets(report)
            ]
            _line(axes, points, short(name), index, len(names))
        axes.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), xlabel="budget (target usage)")
        axes.set_title(title, fontsize=10.5, loc="left")
        plain(axes)
    panels[0].set_ylabel("realised usage")
    _legend(figure, panels[0])
    return figure


def cost(report: Report) -> Figure:
    """Deployable accuracy against cost per question, in token equivalents."""
    figure = new_figure(6.8, 4.8)
    axes = figure.subplots()
    names = [name for name in chosen(report) if report["routers"][name]["cost"] is not None]
    for index, name in enumerate(names):
        router = report["routers"][name]
        points = sorted(
            (
                schema.estimate(router["cost"], b) or 0.0,
                *_ends(schema.cell(router["deployable"][b], "accuracy")),
            )
            for b in schema.budgets(report)
        )
        _line(axes, points, short(name), index, len(names))
    model = report["cost_model"]["tokens"]
    ends: Any = [schema.estimate(report, name) for name in ("never", "always")]
    axes.plot([model["never"], model["always"]], ends, "k*", markersize=9, label="never, always")
    axes.set(xlabel="cost per question (token equivalents)", ylabel="deployable accuracy")
    axes.set_title("Accuracy against cost", fontsize=11, loc="left")
    plain(axes)
    _legend(figure, axes)
    return figure


def utility(report: Report) -> Figure:
    """Bars: how many questions evidence harms, leaves alone, helps; and two runs of one arm."""
    found = report["utility"]
    groups = {"with against\nwithout": found}
    for arm, group in (found.get("same_arm") or {}).items():
        groups[f"same arm twice,\n{arm}"] = group
    figure = new_figure(2.2 + 1.7 * len(groups), 3.8)
    axes = figure.subplots()
    kinds = (
        ("harmful", "#D55E00", "//"),
        ("neutral", "#C9C9C9", ""),
        ("beneficial", "#0072B2", ""),
    )
    for place, (name, colour, hatch) in enumerate(kinds):
        cells = [schema.cell(group, name) for group in groups.values()]
        x = [index + 0.27 * (place - 1) for index in range(len(groups))]
        heights = [cell["estimate"] for cell in cells]
        axes.bar(x, heights, 0.25, color=colour, hatch=hatch, edgecolor="white", label=name)
        for at, cell in zip(x, cells):
            if cell["low"] is not None:
                axes.plot([at, at], [cell["low"], cell["high"]], color="#000000", linewidth=1.2)
            top = cell["high"] if cell["high"] is not None else cell["estimate"]
            text = f"{100 * cell['estimate']:.1f} %"
            axes.text(at, top + 0.015, text, ha="center", fontsize=7.5)
    axes.set_xticks(range(len(groups)), list(groups), fontsize=8.5)
    axes.set(ylabel="share of questions", ylim=(0, 1.12))
    axes.set_title("What evidence does", fontsize=11, loc="left")
    plain(axes)
    axes.tick_params(labelsize=8.5)
    _legend(figure, axes)
    return figure
