"""Plots show the report's numbers, are legible in grey, and leave matplotlib as they found it."""

import io

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.image import imread

from calibjax.report import plot_style, plots
from tests.report.sample import cell, method, report


def _texts(figure):
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_the_reliability_diagram_has_a_panel_and_the_counts_of_every_method():
    sample = report()
    figure = plots.reliability_diagram(sample)
    assert len(figure.axes) == 2 * len(sample["methods"])
    titles = [axes.get_title(loc="left") for axes in figure.axes[::2]]
    assert titles == list(sample["methods"])
    for counts in figure.axes[1::2]:
        assert [bar.get_height() for bar in counts.patches] == [40, 30, 0, 30]
    assert [text for text in _texts(figure) if text == "40"] == ["40"] * 3


def test_the_interval_band_and_the_points_are_those_of_the_bins():
    figure = plots.reliability_diagram(report(), methods=["ours"])
    panel = figure.axes[0]
    bands = [(bar.get_x(), bar.get_y(), bar.get_height()) for bar in panel.patches[:3]]
    np.testing.assert_allclose(bands, [(0, 0, 0.25), (0.25, 0.25, 0.25), (0.75, 0.75, 0.25)])
    points = panel.lines[1].get_xydata()
    np.testing.assert_allclose(points, [(0.1, 0.2), (0.35, 0.45), (0.85, 0.95)])


def test_coverage_lines_are_told_apart_without_colour():
    sample = report()
    sample["methods"] |= {f"m{i}": method(f"m{i}") for i in range(5)}
    axes = plots.accuracy_coverage(sample).axes[0]
    looks = {(line.get_linestyle(), line.get_marker()) for line in axes.lines}
    assert len(looks) == len(axes.lines) == 8
    grey = [np.dot(to_rgb(colour), (0.299, 0.587, 0.114)) for colour in plot_style.COLOURS]
    # Neighbours in the legend differ in lightness, so that a copy in grey tells them apart.
    assert min(abs(a - b) for a, b in zip(grey, grey[1:])) > 0.05
    np.testing.assert_allclose(axes.lines[0].get_xydata(), [(0.01, 1), (0.5, 0.8), (1, 0.6)])


def test_metric_panels_turn_higher_is_better_round_and_say_what_is_undefined():
    figure = plots.metric_intervals(report(), metrics=("accuracy", "auroc", "ece"))
    assert [axes.get_title() for axes in figure.axes] == ["1 - ACC", "1 - AUROC", "ECE"]
    span, point = figure.axes[0].lines[0], figure.axes[0].lines[1]
    np.testing.assert_allclose(span.get_xdata(), [0.41, 0.39])
    np.testing.assert_allclose(point.get_xdata(), [0.4])
    assert [text.get_text() for text in figure.axes[1].texts] == ["n/a"]
    plain = plots.metric_intervals(report(), metrics=("accuracy",), as_error=False)
    assert plain.axes[0].get_title() == "ACC"


def test_the_label_histogram_shows_every_count_and_the_mean():
    labels = {"mean": 0.25, "histogram": {"0.0": 60, "0.5": 30, "1.0": 10}}
    axes = plots.label_histogram(labels).axes[0]
    assert [bar.get_height() for bar in axes.patches] == [60, 30, 10]
    assert axes.lines[0].get_xdata()[0] == 0.25


@pytest.mark.parametrize("kind", ["png", "pdf"])
def test_equal_reports_give_equal_bytes(kind):
    first, second = (plots.render(plots.accuracy_coverage(report()), kind) for _ in range(2))
    assert first == second and first.startswith(b"\x89PNG" if kind == "png" else b"%PDF")


def test_the_picture_is_not_blank_and_large_enough_to_read():
    picture = imread(io.BytesIO(plots.render(plots.reliability_diagram(report()))))
    assert picture.shape[0] >= 500 and picture.shape[1] >= 1400
    assert 0.02 < (picture[..., :3].min(axis=-1) < 0.9).mean() < 0.5


def test_plots_leave_no_global_state():
    before = dict(matplotlib.rcParams)
    plots.render(plots.reliability_diagram(report()))
    assert dict(matplotlib.rcParams) == before
    import sys

    if "matplotlib.pyplot" in sys.modules:
        assert not sys.modules["matplotlib.pyplot"].get_fignums()


def test_reports_with_nothing_to_draw_still_give_figures():
    empty = {"methods": {}, "settings": report()["settings"]}
    for draw in (plots.reliability_diagram, plots.accuracy_coverage, plots.metric_intervals):
        assert plots.render(draw(empty)).startswith(b"\x89PNG")
    sample = report()
    odd = method("x")
    odd["metrics"]["ece"] = cell(None, reason="no rows")
    sample["methods"] = {"$ odd_name^2 \N{HANGUL SYLLABLE HAN}": odd}
    assert plots.render(plots.reliability_diagram(sample)).startswith(b"\x89PNG")
