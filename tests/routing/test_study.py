"""The protocol as a whole: promises by simulation, ends, ties, references, learned routers."""

import numpy as np
import pytest

from calibjax import metrics
from calibjax.routing import routers, study
from calibjax.routing.examples import Outcomes
from calibjax.routing.study import RULES, Settings
from calibjax.routing.utilities import utility

BUDGETS = (0.0, 0.25, 0.5, 1.0)
CONTINUOUS = 20


def outcomes(n, scores, seed=0, **more):
    rng = np.random.default_rng(seed)
    columns = (rng.random((2, n)) < [[0.3], [0.5]]).astype(float)
    ids = np.array([f"q{i}" for i in range(n)], object)
    return Outcomes(ids, *columns, scores=scores, **more)


@pytest.fixture(scope="module")
def found():
    """Twenty routers without ties, two with nothing but ties, and the truth itself."""
    n = 120
    rng = np.random.default_rng(1)
    scores = {f"r{i}": rng.random(n) for i in range(CONTINUOUS)}
    rows = outcomes(n, scores)
    rows.scores["constant"] = np.ones(n)
    rows.scores["coarse"] = rng.integers(0, 3, n).astype(float)
    rows.scores["truth"] = utility(rows.correct_without, rows.correct_with)
    settings = Settings(budgets=BUDGETS, num_splits=300, replicates=40)
    return rows, settings, study.run(rows, settings)


def test_violation_rates_are_beta_binomial_for_every_rule(found):
    _, _, made = found
    sizes = (int(made.splits.calibration[0].sum()), int(made.splits.test[0].sum()))
    for rule in RULES:
        violated = np.asarray(made.frontiers.deployable[rule].violated)[:CONTINUOUS]
        rate = metrics.violation_rate(violated)
        for j, budget in enumerate(BUDGETS):
            expected = metrics.expected_violation(*sizes, budget, rule=rule)
            # Splits are independent given the rows, routers on one split are not; where nothing
            # was violated the estimate of the error is 0, so a count of splits stands in.
            error = max(float(rate.overall_standard_error[j]), 1 / 300)
            assert abs(float(rate.overall[j]) - expected) < 4 * error, (rule, budget)


def test_exact_at_budget_0_is_never_and_at_1_is_always(found):
    _, _, made = found
    exact = np.asarray(made.frontiers.exact)
    for place, ends in ((0, made.frontiers.never), (-1, made.frontiers.always)):
        np.testing.assert_allclose(exact[:, :, place], np.tile(ends, (len(exact), 1)), atol=1e-6)
    ends = made.ends
    np.testing.assert_allclose(exact[0, :, 0].mean(), ends.estimate[0], atol=1e-6)
    np.testing.assert_allclose(exact[0, :, -1].mean(), ends.estimate[1], atol=1e-6)


def test_ties_are_averaged_in_the_exact_frontier_and_left_whole_by_thresholds(found):
    _, _, made = found
    constant = made.routers.names.index("constant")
    exact = np.asarray(made.frontiers.exact)[constant]
    np.testing.assert_allclose(exact, made.frontiers.random, atol=1e-6)
    usage = np.asarray(made.frontiers.deployable["quantile"].usage)[constant]
    np.testing.assert_array_equal(usage, np.tile([0, 0, 0, 1.0], (300, 1)))


def test_the_oracle_is_the_truth_and_dominates_every_router(found):
    _, _, made = found
    exact = np.asarray(made.frontiers.exact)
    oracle = np.asarray(made.frontiers.oracle)
    assert (exact <= oracle + 1e-6).all()
    truth = made.routers.names.index("truth")
    np.testing.assert_allclose(exact[truth], oracle, atol=1e-6)
    np.testing.assert_allclose(made.oracle.estimate, oracle.mean(axis=0), atol=1e-6)
    random = np.asarray(made.frontiers.random).mean(axis=0)
    np.testing.assert_allclose(made.random.estimate, random, atol=1e-6)


def test_gain_over_random_is_accuracy_beyond_random_use_of_the_same_usage(found):
    rows, _, made = found
    place = made.routers.names.index("truth")
    frontier = made.frontiers.deployable["quantile"]
    accuracy, usage = (
        np.asarray(x)[place].mean(axis=0) for x in (frontier.accuracy, frontier.usage)
    )
    never, always = made.ends.estimate
    expected = accuracy - never - usage * (always - never)
    np.testing.assert_allclose(made.gain.estimate[place], expected, atol=1e-6)
    # Random routers gain nothing on average; 20 of them over 120 shared rows.
    assert abs(np.mean(made.gain.estimate[:CONTINUOUS, 2])) < 0.03


def test_caution_and_pairs_are_differences_of_the_reported_accuracies(found):
    _, _, made = found
    accuracy = {
        rule: np.asarray(made.frontiers.deployable[rule].accuracy).mean(axis=1) for rule in RULES
    }
    for rule in RULES[1:]:
        lost = accuracy["quantile"] - accuracy[rule]
        np.testing.assert_allclose(made.caution[rule].estimate, lost, atol=2e-6)
    names = made.routers.names
    for pair in (("r0", "r1"), ("r3", "truth"), ("coarse", "truth")):
        a, b = (accuracy["quantile"][names.index(name)] for name in pair)
        np.testing.assert_allclose(made.pairs[pair].estimate, a - b, atol=2e-6)
    assert len(made.pairs) == len(names) * (len(names) - 1) // 2


def one_split(scores, **more):
    n = len(next(iter(scores.values())))
    split = np.array(["calibration"] * (n // 2) + ["test"] * (n - n // 2))
    rows = outcomes(n, scores, split=split, **more)
    return rows, study.run(rows, Settings(budgets=(0.5,), replicates=10))


def test_scores_that_shift_on_new_questions_rank_alike_and_transfer_differently():
    s = np.linspace(0.01, 0.99, 80)
    s = np.random.default_rng(0).permutation(s)
    shifted = s + np.where(np.arange(80) < 40, 0.0, 5.0)
    _, made = one_split({"steady": s, "shifted": shifted})
    steady, moved = np.asarray(made.frontiers.exact)[:, 0, 0]
    assert steady == moved
    usage = np.asarray(made.frontiers.deployable["quantile"].usage)[:, 0, 0]
    assert usage[0] < 0.8 and usage[1] == 1.0
    assert np.asarray(made.frontiers.deployable["quantile"].violated)[1, 0, 0]


def test_a_published_threshold_below_all_scores_uses_everything_and_says_so():
    calibration = np.where(np.arange(40) < 20, 0.2, 0.1)
    scores = np.concatenate([calibration, np.linspace(0.2, 0.9, 40)])
    _, made = one_split({"r": scores})
    frontier = made.frontiers.deployable["quantile"]
    assert np.asarray(frontier.usage)[0, 0, 0] == 1.0
    assert np.asarray(frontier.violated)[0, 0, 0]


def test_five_calibration_rows_leave_the_conservative_rules_nothing():
    scores = np.arange(12.0)
    split = np.array(["calibration"] * 5 + ["test"] * 7)
    rows = outcomes(12, {"r": scores}, split=split)
    made = study.run(rows, Settings(budgets=(0.5,), replicates=10))
    for rule in ("dkw1", "dkw2"):
        frontier = made.frontiers.deployable[rule]
        assert np.asarray(frontier.usage)[0, 0, 0] == 0
        assert np.isnan(np.asarray(frontier.harm_used)[0, 0, 0])


def test_float64_scores_that_float32_would_tie_are_told_apart():
    base = 0.9 + np.arange(8) * 1e-12
    _, made = one_split({"r": base, "ordinal": np.arange(8.0)})
    r, ordinal = np.asarray(made.frontiers.deployable["quantile"].accuracy)[:, 0, 0]
    assert r == ordinal


def _learned(n=90, seed=0, split=True):
    rng = np.random.default_rng(seed)
    parts = np.array(["train", "calibration", "test"])[np.arange(n) % 3]
    features = {
        "query": (["length"], rng.normal(size=(n, 1))),
        "uncertainty": (["entropy", "min_probability"], rng.normal(size=(n, 2))),
    }
    return outcomes(n, {}, features=features, split=parts if split else None)


def test_learned_routers_see_the_outcomes_of_train_rows_alone():
    rows = _learned()
    splits = study.make_splits(rows, Settings())
    first = routers.build(rows, splits, learned="both")
    assert first.names[:2] == ["bur_linear_query", "bur_gbm_query"]
    assert "bur_gbm_full_benefit" in first.names
    held_out = rows.split != "train"
    rows.correct_with[held_out] = 1 - rows.correct_with[held_out]
    again = routers.build(rows, splits, learned="both")
    np.testing.assert_array_equal(again.fitted, first.fitted)


def test_learned_routers_are_fitted_anew_in_each_split():
    rows = _learned(split=False)
    del rows.features["uncertainty"]
    made = study.run(rows, Settings(budgets=(0.5,), num_splits=2, replicates=10))
    fitted = made.routers.fitted
    assert fitted.shape == (len(made.routers.names), 2, len(rows))
    assert not np.array_equal(fitted[:, 0], fitted[:, 1])
    assert made.frontiers.exact.shape == (len(made.routers.names), 2, 1)


def test_what_is_learned_is_chosen_by_train_rows_alone():
    """Hops that vary among the judged rows only teach nothing: the classifier falls back."""
    rows = _learned()
    held_out = rows.split != "train"
    rows.level = np.where(held_out, np.arange(90) % 3, 2.0)
    splits = study.make_splits(rows, Settings())
    found = routers.build(rows, splits).fitted
    rows.level = None
    np.testing.assert_array_equal(routers.build(rows, splits).fitted, found)


def test_retrieval_confidence_is_fitted_to_tell_evidence_that_brings_the_answer():
    rows = outcomes(300, {}, split=np.array(["train", "calibration", "test"])[np.arange(300) % 3])
    top = np.random.default_rng(3).normal(size=300)
    rows.correct_with = (top > 0.2).astype(float)
    rows.features = {"retrieval": (["top"], top[:, None])}
    found = routers.build(rows, study.make_splits(rows, Settings()))
    place = found.names.index("rcs")
    assert found.families["rcs"] == "retrieval"
    order = np.argsort(found.of_split(place, 0))
    np.testing.assert_array_equal(order, np.argsort(top))


def test_learned_routers_without_train_rows_are_refused():
    rows = _learned()
    rows.split = np.where(rows.split == "train", "test", rows.split)
    with pytest.raises(ValueError, match="train: no rows to fit.*--learned=none"):
        routers.build(rows, study.make_splits(rows, Settings()))


def test_too_few_questions_to_split_are_refused():
    with pytest.raises(ValueError, match="3 questions: expected at least 4"):
        study.run(outcomes(3, {"r": np.arange(3.0)}), Settings(replicates=10))


def test_a_router_family_is_one_of_four_and_its_name_is_known():
    rows = outcomes(20, {"entropy": np.arange(20.0)})
    for wrong, near in (("entropi=query", "entropy"), ("entropy=qury", "entropy=query")):
        name, family = wrong.split("=")
        with pytest.raises(ValueError, match=f"families={wrong}.*did you mean {near}"):
            study.run(rows, Settings(replicates=10), families={name: family})
