"""report.json holds the oracle's figures, sound intervals, and reasons for what is undefined."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from calibjax.errors import InputError
from calibjax.report import curves, schema
from calibjax.report.predictions import predictions
from calibjax.report.reading import load
from calibjax.report.summary import summarise
from tests.report import oracle

# Enough for structure and pairing; the intervals themselves are tested in tests/metrics. Nearly all
# tests share these two numbers, so that they share one compiled program.
FEW, N = 200, 60


def _sample(n=N, seed=0, ties=True, answered=0.9, soft=False):
    rng = np.random.default_rng(seed)
    p = rng.random(n)
    p = np.round(p, 1) if ties else p
    y = rng.random(n) if soft else (rng.random(n) < p).astype(float)
    return predictions(range(n), p, y, rng.random(n) < answered)


def _estimates(report, name):
    return {k: cell["estimate"] for k, cell in report["methods"][name]["metrics"].items()}


def _assert_equal(found, expected, atol=1e-9):
    assert set(found) == set(expected)
    for name, value in expected.items():
        if value is None:
            assert found[name] is None, name
        else:
            assert found[name] == pytest.approx(value, abs=atol), name


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("ties", [False, True])
def test_every_figure_equals_the_float64_oracle(ties, soft):
    rows = _sample(ties=ties, soft=soft)
    report = summarise({"m": rows}, replicates=FEW)
    expected = oracle.figures(rows.confidence, rows.correct, rows.answered)
    # Both sides are float64; only the order of sums differs.
    _assert_equal(_estimates(report, "m"), expected)


def test_other_bin_counts_are_honoured():
    rows = _sample()
    report = summarise({"m": rows}, num_bins=7, num_mass_bins=3, replicates=FEW)
    expected = oracle.figures(rows.confidence, rows.correct, rows.answered, 7, 3)
    _assert_equal(_estimates(report, "m"), expected)
    assert len(report["methods"]["m"]["curves"]["reliability"]) == 7


def test_no_answer_counts_as_wrong_and_is_left_out_of_the_answered_figures():
    rows = predictions("abc", [0.9, 0.2, 0.6], [1, 0, 1], [True, True, False])
    found = _estimates(summarise({"m": rows}, replicates=2), "m")
    assert found["accuracy"] == pytest.approx(1 / 3)
    assert found["accuracy_answered"] == pytest.approx(1 / 2)
    assert found["brier"] == pytest.approx((0.01 + 0.04 + 0.36) / 3)
    assert found["brier_answered"] == pytest.approx((0.01 + 0.04) / 2)
    assert found["no_answer_rate"] == pytest.approx(1 / 3)
    assert found["no_answer_rate_answered"] == 0
    # The unanswered row keeps its confidence in the ranking: right, wrong, wrong by confidence.
    assert found["auc_ac"] == pytest.approx((1 + 1 / 2 + 1 / 3) / 3)


def test_confidences_that_float32_cannot_tell_apart_keep_their_order():
    p, y = 1 - np.arange(1, N + 1) * 1e-10, np.arange(N) < N / 2
    found = _estimates(summarise({"m": predictions(range(N), p, y)}, replicates=FEW), "m")
    assert found["auroc"] == 1
    assert len(set(p.astype(np.float32))) == 1


def test_the_report_follows_its_schema_and_is_plain_json():
    methods = {"a": _sample(seed=1), "b": _sample(seed=2)}
    report = summarise(methods, replicates=FEW, rows={"n_kept": 120, "n_rejected": 3})
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    names = [m + suffix for suffix in ("", "_answered") for m in schema.METRICS]
    for method in report["methods"].values():
        assert list(method["metrics"]) == names
        for cell in method["metrics"].values():
            assert cell["low"] <= cell["high"] and cell["n_valid"] == FEW
        assert 0 < method["ece_null"]["mean"] < method["ece_null"]["q95"] < 1
    assert (report["methods"]["a"]["n"], report["rows"]["n_rejected"]) == (60, 3)
    assert report["methods"]["a"]["n_answered"] == int(methods["a"].answered.sum())


def test_methods_on_the_same_outcomes_are_compared_pairwise():
    a = _sample(seed=1)
    b = predictions(a.ids, np.clip(a.confidence + 0.1, 0, 1), a.correct, a.answered)
    report = summarise({"a": a, "b": b, "copy": a}, replicates=FEW)
    assert list(report["comparisons"]) == ["a-b", "a-copy", "b-copy"]
    assert report["across_outcomes"] == {}
    for name, cell in report["comparisons"]["a-b"].items():
        expected = _estimates(report, "a")[name] - _estimates(report, "b")[name]
        assert cell["estimate"] == pytest.approx(expected, abs=1e-12), name
    for cell in report["comparisons"]["a-copy"].values():
        assert (cell["estimate"], cell["low"], cell["high"]) == (0, 0, 0)
    for cell in report["comparisons"]["a-b"]["accuracy"], report["comparisons"]["a-b"]["brier"]:
        assert cell["low"] <= cell["estimate"] <= cell["high"]


def test_pairing_narrows_the_interval_of_a_difference():
    a = _sample(seed=3, ties=False, answered=1.1)
    b = predictions(a.ids, np.clip(a.confidence + 0.02, 0, 1), a.correct)
    report = summarise({"a": a, "b": b}, replicates=FEW)
    own, paired = (x["brier"] for x in (report["methods"]["a"]["metrics"], *_pairs(report)))
    assert paired["high"] - paired["low"] < 0.3 * (own["high"] - own["low"])


def _pairs(report):
    return report["comparisons"].values()


def test_other_outcomes_are_compared_only_on_figures_that_allow_it():
    a = _sample(seed=1)
    other = predictions(a.ids, a.confidence, 1 - a.correct, a.answered)
    elsewhere = predictions([f"x{i}" for i in range(60)], a.confidence, a.correct, a.answered)
    report = summarise({"a": a, "other": other, "elsewhere": elsewhere}, replicates=FEW)
    assert report["comparisons"] == {}
    assert list(report["across_outcomes"]) == ["a-other"]
    assert set(report["across_outcomes"]["a-other"]) == set(schema.ACROSS_OUTCOMES)
    assert [m["outcomes"] for m in report["methods"].values()] == ["a", "other", "elsewhere"]


def test_clusters_widen_the_interval():
    rng = np.random.default_rng(0)
    y = np.repeat(rng.random(N // 5) < 0.5, 5).astype(float)
    p = np.full(N, 0.5)
    alone = predictions(range(N), p, y)
    grouped = predictions(range(N), p, y, group=[f"g{i // 5}" for i in range(N)])
    widths = []
    for rows in (alone, grouped):
        report = summarise({"m": rows}, replicates=FEW)
        cell = report["methods"]["m"]["metrics"]["accuracy"]
        widths.append(cell["high"] - cell["low"])
    # Rows of a group are copies, so there are 12 of them, not 60: sqrt(5) = 2.2 times as wide.
    # Both widths are known to about a tenth from 200 replicates.
    assert 1.7 < widths[1] / widths[0] < 2.8
    assert report["settings"]["cluster"] == "group"


def test_one_class_leaves_auroc_and_skill_null_with_a_reason():
    rows = predictions(range(N), np.linspace(0.1, 0.9, N), [1] * N)
    cells = summarise({"m": rows}, replicates=FEW)["methods"]["m"]["metrics"]
    for name in ("auroc", "log_loss_skill"):
        assert cells[name]["estimate"] is cells[name]["low"] is cells[name]["high"] is None
        assert cells[name]["reason"] == "only one class: every row is right"
    for name in ("accuracy", "ece", "brier", "auc_ac"):
        assert cells[name]["estimate"] is not None and "reason" not in cells[name]


def test_one_row_and_equal_confidences_are_reported():
    one = summarise({"m": predictions(["a"], [0.7], [1])}, replicates=FEW)["methods"]["m"]
    brier = one["metrics"]["brier"]
    assert brier["estimate"] == brier["low"] == brier["high"] == pytest.approx(0.09)
    flat = predictions(range(N), [0.5] * N, [0, 1] * (N // 2))
    cells = summarise({"m": flat}, replicates=FEW)["methods"]["m"]["metrics"]
    assert cells["auroc"]["estimate"] == 0.5 and cells["auc_ac"]["estimate"] == 0.5


def test_nothing_answered_is_all_wrong_and_the_answered_figures_are_null():
    rows = predictions(range(N), np.linspace(0, 0.5, N), [1] * N, [False] * N)
    cells = summarise({"m": rows}, replicates=FEW)["methods"]["m"]["metrics"]
    assert cells["accuracy"]["estimate"] == 0 and cells["no_answer_rate"]["estimate"] == 1
    assert cells["auroc"]["reason"] == "only one class: every row is wrong"
    for name in schema.METRICS:
        assert cells[name + "_answered"]["estimate"] is None
        assert cells[name + "_answered"]["reason"] == "no answered rows"


def test_an_interval_that_rests_on_too_few_replicates_is_null_with_the_count():
    # One right row in 60 is missing from (59 / 60)^60 = 36 % of the resamples.
    rows = predictions(range(N), np.arange(N) / N, [1] + [0] * (N - 1))
    cell = summarise({"m": rows}, replicates=FEW)["methods"]["m"]["metrics"]["auroc"]
    assert cell["estimate"] == 0 and cell["low"] is None
    assert cell["reason"].startswith(f"no interval: defined in {cell['n_valid']} of 200 ")
    assert 90 < cell["n_valid"] < 160


def test_a_seed_repeats_the_report_and_another_changes_only_the_random_parts():
    methods = {"a": _sample(seed=1), "b": _sample(seed=2)}
    first, again = (summarise(methods, replicates=FEW, seed=3) for _ in range(2))
    other = summarise(methods, replicates=FEW, seed=4)
    assert first == again
    assert _estimates(first, "a") == _estimates(other, "a")
    assert first["methods"]["a"]["metrics"]["brier"] != other["methods"]["a"]["metrics"]["brier"]


def test_an_empty_method_is_refused():
    with pytest.raises(InputError, match="expected at least one row"):
        summarise({"m": predictions([], [], [])})


# -------------------------------------------------------------------------- data of plots


def test_bins_sum_to_n_and_agree_with_the_ece():
    rows = _sample()
    report = summarise({"m": rows}, replicates=FEW)
    bins = report["methods"]["m"]["curves"]["reliability"]
    assert sum(row["count"] for row in bins) == N
    filled = [row for row in bins if row["count"]]
    ece = sum(row["count"] * abs(row["accuracy"] - row["confidence"]) for row in filled) / N
    assert ece == pytest.approx(_estimates(report, "m")["ece"], abs=1e-12)
    assert all(row["accuracy_low"] <= row["accuracy"] <= row["accuracy_high"] for row in filled)


def test_the_curve_of_few_rows_is_the_whole_curve_and_its_mean_the_auc_ac():
    rows = _sample()
    report = summarise({"m": rows}, replicates=FEW)
    curve = report["methods"]["m"]["curves"]["accuracy_coverage"]
    assert len(curve["accuracy"]) == N and curve["coverage"][-1] == 1
    assert np.mean(curve["accuracy"]) == pytest.approx(_estimates(report, "m")["auc_ac"])


def test_a_long_curve_is_thinned_without_losing_its_ends():
    p, y = np.linspace(0, 1, 5000), np.arange(5000) % 2
    curve = curves.accuracy_coverage(p, y.astype(float))
    assert len(curve["accuracy"]) == curves.CURVE_POINTS
    assert curve["coverage"][0] == 1 / 5000 and curve["accuracy"][0] == 1
    assert curve["coverage"][-1] == 1 and curve["accuracy"][-1] == 0.5


# ------------------------------------------------------------------------------ real data


def _result_files():
    root = os.environ.get("CALIBJAX_DATA")
    return sorted(Path(root, "results").glob("*.jsonl")) if root else []


def _systems(path):
    """(method, id, confidence, correct) of each system that comes with a probability."""
    for line in path.read_text().splitlines():
        row = json.loads(line)
        meta = row["meta"]
        for system, answer in meta.get("systems", {}).items():
            if system in meta.get("router_probs", {}):
                yield system, row["id"], meta["router_probs"][system], answer["em"]
            elif "gedig_score" in answer:
                yield system, row["id"], min(max(answer["gedig_score"], 0), 1), answer["em"]


@pytest.mark.skipif("CALIBJAX_DATA" not in os.environ, reason="CALIBJAX_DATA is not set")
def test_published_results_give_the_oracles_figures(tmp_path):
    seen = 0
    for path in _result_files():
        rows = [dict(zip(("method", "id", "confidence", "correct"), r)) for r in _systems(path)]
        if not rows:
            continue
        file = tmp_path / path.name
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        methods = load([file]).methods
        report = summarise(methods, replicates=2)
        for name in methods:
            own = [row for row in rows if row["method"] == name]
            p, y = ([row[key] for row in own] for key in ("confidence", "correct"))
            _assert_equal(_estimates(report, name), oracle.figures(p, y, [True] * len(y)), 1e-5)
            seen += 1
    assert seen >= 7
