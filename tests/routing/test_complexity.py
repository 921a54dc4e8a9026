"""Query-only triggers."""

import numpy as np

from calibjax import routing

COMPARISON = "Who is younger, Charles R. Nesbitt or Ruben Trumpelmann?"
BRIDGE = "Where did the director of the film that won in 1987 study?"
PLAIN = "Where is Paris?"


def test_features_by_hand():
    found = routing.query_features([COMPARISON, BRIDGE, PLAIN, ""])
    np.testing.assert_array_equal(
        found,
        [
            [9, 2, 2, 1, 0],  # younger, or; two names
            [12, 0, 0, 1, 1],
            [3, 1, 0, 1, 0],
            [0, 0, 0, 0, 0],
        ],
    )


def test_query_features_are_those_of_the_question_router():
    from calibjax.abstention.question_router import text_features

    assert routing.query_features is text_features


def test_the_rule_ranks_comparisons_and_bridges_above_plain_questions():
    comparison, bridge, plain = routing.complexity_rule([COMPARISON, BRIDGE, PLAIN])
    assert comparison > plain and bridge > plain
    longer, shorter = routing.complexity_rule(["Where is the old town?", PLAIN])
    assert longer > shorter


def test_the_classifier_learns_an_ordered_level_and_scores_its_expectation():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(200, 5))
    level = np.where(features[:, 0] > 0.5, 4.0, np.where(features[:, 0] > -0.5, 3.0, 2.0))
    score = routing.ComplexityClassifier().fit(features, level).score(features)
    assert ((2 <= score) & (score <= 4)).all()
    assert np.corrcoef(score, level)[0, 1] > 0.8


def test_one_level_alone_scores_all_questions_alike():
    model = routing.ComplexityClassifier().fit(np.eye(3), [2, 2, 2])
    np.testing.assert_array_equal(model.score(np.ones((2, 3))), [2.0, 2.0])
