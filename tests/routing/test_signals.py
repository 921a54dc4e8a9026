"""Signals of drafts and probes: hand cases, orientation, missing values."""

import numpy as np
import pytest

from calibjax import routing
from calibjax.routing.signals import RETRIEVAL_FEATURES, UNCERTAINTY_FEATURES


def test_uncertainty_features_of_a_draft_by_hand():
    log_probs, entropies = np.log([0.5, 0.25, 1.0]), [0.3, 0.9, 0.0]
    found = dict(zip(UNCERTAINTY_FEATURES, routing.uncertainty_features(log_probs, entropies)))
    expected = {
        "mean_entropy": 0.4,
        "max_entropy": 0.9,
        "min_probability": 0.25,
        "mean_probability": 1.75 / 3,
        "length": 3.0,
        "first_probability": 0.5,
    }
    assert found == pytest.approx(expected)


def test_uncertainty_scores_are_higher_for_the_less_sure_draft():
    sure = routing.uncertainty_scores(np.log([0.99, 0.98]), [0.05, 0.1])
    unsure = routing.uncertainty_scores(np.log([0.4, 0.3]), [1.2, 1.9])
    assert all(unsure[name] > sure[name] for name in sure)
    assert sure["sequence_log_prob"] == pytest.approx(-np.log(0.99 * 0.98))
    assert sure["min_confidence"] == pytest.approx(0.02)


@pytest.mark.parametrize("told", [([], []), (np.log([0.9]), []), ([], [0.1])])
def test_a_draft_of_which_nothing_is_known_is_less_sure_than_any_other(told):
    vocabulary = 2**18
    flat = [-np.log(vocabulary)] * 32, [np.log(vocabulary)] * 32
    unknown, unsure = (routing.uncertainty_scores(*draft) for draft in (told, flat))
    assert all(unknown[name] >= unsure[name] for name in unsure)
    assert np.isfinite([*unknown.values(), *routing.uncertainty_features(*told)]).all()


def test_retrieval_features_by_hand():
    found = dict(zip(RETRIEVAL_FEATURES, routing.retrieval_features([4.0, 3.0, 1.0, 0.0])))
    p = np.array([4, 3, 1]) / 8
    expected = {
        "top": 4.0,
        "margin": 1.0,
        "top3": 8 / 3,
        "lift": 2.0,
        "entropy": -(p * np.log(p)).sum() / np.log(4),
    }
    assert found == pytest.approx(expected)


def test_retrieval_features_of_few_hits_and_of_scores_below_zero():
    assert routing.retrieval_features([]) == [0.0] * 5
    top, margin, top3, lift, entropy = routing.retrieval_features([2.5])
    assert (top, margin, top3, lift, entropy) == (2.5, 2.5, 2.5, 1.0, 0.0)
    assert routing.retrieval_features([-0.1, -0.2])[3:] == [0.0, 0.0]


def test_fifty_hits_are_seen_and_no_more():
    scores = list(np.linspace(9, 1, 50))
    assert routing.retrieval_features(scores) == routing.retrieval_features([*scores, 0.5, 0.1])


# D01 of the bug cases: a missing token was scored -100 and its ratio came out above 1.
def test_a_missing_reflection_token_counts_zero_not_minus_a_hundred():
    assert routing.reflection_score(None, 0.9) == 0.0
    assert routing.reflection_score(0.3, None) == 1.0
    assert routing.reflection_score(0.1, 0.3) == pytest.approx(0.25)
    assert routing.reflection_score(None, None) == 0.0
