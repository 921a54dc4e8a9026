"""The report of a regime: figures are those of their definitions, whatever the data hold."""

import json
from dataclasses import replace

import numpy as np
import pytest

from calibjax import storage
from calibjax.abstention.fitting import Settings, fit_regime
from calibjax.abstention.study import judge_regime, oracle_area
from tests.abstention import oracle
from tests.abstention.data import make_examples

SETTINGS = Settings(replicates=100, target=0.3)


def extended(examples, seed=0):
    """Examples with a signal from outside, two pipelines and a rescue pass."""
    rng = np.random.default_rng(seed)
    return [
        replace(
            example,
            scores={"outside": float(rng.random())},
            pipelines={"dense": example.success, "judge": float(rng.random() < 0.8)},
            rescue_success=1.0,
        )
        for example in examples
    ]


@pytest.fixture(scope="module")
def regime():
    return fit_regime(extended(make_examples(300)), SETTINGS)


@pytest.fixture(scope="module")
def other():
    return fit_regime(make_examples(300, 5, driver="hop2"), SETTINGS).rcs


@pytest.fixture(scope="module")
def report(regime, other):
    return judge_regime(regime, SETTINGS, {"other": other, "self": regime.rcs})


def test_areas_equal_a_plain_loop(regime, report):
    success = regime.success[regime.test]
    for name, signal in regime.signals.items():
        expected = oracle.area(signal.score[regime.test], success)
        # float32 sums over 150 rows.
        assert report["signals"][name]["auc_ac"]["estimate"] == pytest.approx(expected, abs=2e-6)


def test_all_signals_are_there_with_the_keys_of_the_format(report):
    names = "rcs mlp max_score margin lift entropy query_len_inv temp_scaled random outside"
    conformal = ("conformal_positives", "conformal_negatives", "conformal_selection")
    assert {*names.split(), *conformal} == report["signals"].keys()
    for signal in report["signals"].values():
        assert {"estimate", "low", "high"} <= signal["auc_ac"].keys()
        assert signal["cwar_at_coverage"].keys() == {"0.7", "0.5"}
        assert signal["accuracy_at_coverage"].keys() == {"0.7", "0.5"}
        assert (signal["ece"] is None) == (not signal["is_probability"])
    for cell in report["thresholds"].values():
        assert {"tau", "target", "tune", "test", "coverage", "violated"} <= cell.keys()
    assert {"weights", "bias", "mean", "scale", "converged"} <= report["rcs"].keys()
    json.dumps(storage.plain(report), allow_nan=False)


def test_random_gets_the_success_rate_and_perfect_the_oracle(regime, report):
    base = report["base"]
    assert report["signals"]["random"]["auc_ac"]["estimate"] == pytest.approx(
        base["success_rate"], abs=1e-6
    )
    success = regime.success[regime.test]
    assert base["auc_ac_oracle"] == pytest.approx(oracle.area(success, success), abs=1e-12)
    assert oracle_area(np.ones(4)) == 1.0 and oracle_area(np.zeros(4)) == 0.0


def test_a_feature_that_says_nothing_costs_nothing(report):
    assert report["ablation"].keys() == report["rcs"]["weights"].keys()
    worst = min(report["ablation"], key=lambda name: report["ablation"][name]["delta"])
    assert worst.startswith("hop1")  # what drives success here
    for cell in report["ablation"].values():
        assert cell["low"] <= cell["delta"] <= cell["high"]


def test_a_fit_from_elsewhere_is_applied_unchanged(regime, report):
    own = report["transfer"]["self"]
    assert own["difference"] == {"estimate": 0.0, "low": 0.0, "high": 0.0, "n_valid": 100}
    other = report["transfer"]["other"]
    assert other["difference"]["high"] < 0  # driven by another feature
    assert other["rcs"]["mean"].keys() == report["rcs"]["mean"].keys()


def test_rescue_and_router_add_up(report):
    rescued, router = report["rescue"], report["router"]
    assert rescued["n_flagged"] + round(rescued["coverage"] * rescued["n"]) == rescued["n"]
    assert rescued["recovered"] == rescued["flagged_failures"] and rescued["lost"] == 0
    assert sum(router["counts"].values()) == router["n"] == report["rows"]["n_test"]
    assert router["success_oracle"] >= max(router["pipelines"].values())


def test_certified_sees_no_fitted_row(regime, report):
    assert not (regime.honest_fit & regime.test).any()
    cells = report["thresholds"]
    assert cells["certified"]["n_chosen_on"] == 75 and not cells["certified"]["in_sample"]
    assert cells["first"]["n_chosen_on"] == 150 and cells["first"]["in_sample"]
    assert cells["first"]["coverage"] >= cells["suffix"]["coverage"]


def test_test_rows_change_nothing_that_is_fitted(regime):
    changed = [
        replace(example, success=1 - example.success) if is_test else example
        for example, is_test in zip(regime.examples, regime.test)
    ]
    again = fit_regime(changed, SETTINGS)
    assert again.rcs.as_dict() == regime.rcs.as_dict()
    for name, signal in regime.signals.items():
        np.testing.assert_array_equal(signal.score, again.signals[name].score)


@pytest.mark.parametrize("part", ["tune", "test", "all"])
def test_one_outcome_leaves_figures_undefined_and_the_rest_given(part, other):
    examples = extended(make_examples(300))
    tune = fit_regime(examples, SETTINGS).tune
    rows = {"tune": tune, "test": ~tune, "all": np.ones(300, bool)}[part]
    same = [replace(e, success=1.0) if one else e for e, one in zip(examples, rows)]
    foreign = {"a": other, "b": other}  # the shapes of the other reports: no new programs
    found = judge_regime(fit_regime(same, SETTINGS), SETTINGS, foreign)
    assert found["rcs"]["converged"] == (part == "test")
    gain = found["signals"]["max_score"]["gain"]
    assert (gain is None) == (part != "tune")
    assert found["signals"]["rcs"]["auc_ac"]["estimate"] is not None
    json.dumps(storage.plain(found), allow_nan=False)


def test_platt_adds_probabilities_for_signals_that_are_none():
    found = fit_regime(make_examples(300), SETTINGS._replace(platt=True)).signals
    assert found["max_score"].probability is None and "random_platt" not in found
    for name in ("max_score_platt", "lift_platt"):
        assert ((found[name].probability > 0) & (found[name].probability < 1)).all()
