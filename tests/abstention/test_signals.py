"""The comparison signals: higher is more confident, and their fits are what they say."""

import numpy as np
import pytest

from calibjax import metrics
from calibjax.abstention import RCS, features, signals
from calibjax.abstention.mlp import mlp_scores
from calibjax.abstention.score_features import Features, score_lists

# A sure query and an unsure one: a high peaked list and a short question against a flat one.
LISTS = [[0.9, 0.2, 0.1], [0.5, 0.49, 0.48]]
QUESTIONS = ["who", "who of all these people was it then"]


@pytest.mark.parametrize("name", ["entropy", "max_score", "margin", "lift", "query_len_inv"])
def test_signals_rank_the_sure_query_first(name):
    found = signals.untrained_signals(features(LISTS, question=QUESTIONS))
    sure, unsure = found[name].score
    assert sure > unsure


def test_temperature_scaled_confidence_ranks_the_sure_query_first():
    sure, unsure = signals.max_softmax(score_lists(LISTS), 0.5)
    assert sure > unsure


def test_random_is_a_constant_so_that_it_gets_its_expectation():
    found = signals.untrained_signals(features(LISTS))["random"]
    area = metrics.area_under_accuracy_coverage(found.score, np.array([1.0, 0.0]))
    assert area == 0.5


def test_the_temperature_is_the_one_that_fits_the_success_rate():
    # Lists [2, 0]: the confidence is sigmoid(2 / T), so 7 of 10 right need T = 2 / ln(7/3).
    lists = score_lists([[2.0, 0.0]] * 10)
    fitted = signals.fit_temperature(lists, np.array([1.0] * 7 + [0.0] * 3))
    assert fitted.temperature == pytest.approx(2.360445, abs=1e-4) and not fitted.at_bound


@pytest.mark.parametrize("success, at_bound", [(1.0, True), (0.0, True)])
def test_a_temperature_without_optimum_is_marked(success, at_bound):
    fitted = signals.fit_temperature(score_lists([[2.0, 0.0]] * 5), np.full(5, success))
    assert fitted.at_bound == at_bound and np.isfinite(fitted.temperature)


def test_short_lists_have_a_confidence():
    assert signals.max_softmax(score_lists([[0.3], []]), 1.0).tolist() == [1.0, 0.0]


@pytest.mark.parametrize("target", signals.CONFORMAL_TARGETS)
def test_conformal_confidence_accepts_what_the_threshold_accepts(target):
    rng = np.random.default_rng(0)
    score = rng.normal(size=80)
    success = (rng.random(80) < 0.6).astype(float)
    new = rng.normal(size=200)
    confidence = signals.conformal_confidence(new, score, success, target)
    assert ((confidence >= 0) & (confidence <= 1)).all()
    # It is monotone in the score.
    assert (np.diff(confidence[np.argsort(new)]) >= 0).all()
    if target == "selection":
        return
    tau, _ = metrics.conformal_score_threshold(score, success, alpha=0.2, target=target)
    accepted = new >= float(tau)
    # positives: p > alpha; negatives: p <= alpha, where confidence = 1 - p.
    by_p = confidence > 0.2 if target == "positives" else 1 - confidence <= 0.2 + 1e-12
    np.testing.assert_array_equal(accepted, by_p)


# -------------------------------------------------------------------------------------- MLP


def xor_data():
    """200 tune rows and 200 test rows of a rule that no line follows."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 2))
    y = (x[:, 0] * x[:, 1] > 0).astype(float)
    made = Features(x, ("hop1_max", "query_len"), np.zeros(400, bool), np.ones(400, bool))
    return made, y, np.arange(400) < 200


def test_the_mlp_learns_what_a_line_cannot_and_from_tune_rows_alone():
    made, y, tune = xor_data()
    score = mlp_scores(made, y, tune, 0)
    linear = RCS.fit(made.values[tune], y[tune]).score(made.values)
    assert metrics.auroc(score[~tune], y[~tune]) > 0.85
    assert metrics.auroc(linear[~tune], y[~tune]) < 0.65
    # Other outcomes of the test rows: the same nets to the last bit, so a second run is the same.
    np.testing.assert_array_equal(score, mlp_scores(made, np.where(tune, y, 1 - y), tune, 0))


@pytest.mark.parametrize("n_tune", [1, 2, 5])
def test_a_handful_of_rows_gives_a_finite_score(n_tune):
    made, y, _ = xor_data()
    assert np.isfinite(mlp_scores(made, y, np.arange(400) < n_tune, 0)).all()
