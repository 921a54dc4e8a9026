"""RCS: the convex optimum, readable weights, and an answer for every degenerate data set."""

import json

import numpy as np
import pytest
from scipy.special import expit
from sklearn.datasets import load_breast_cancer, load_wine
from sklearn.linear_model import LogisticRegression

from calibjax.abstention import RCS, features
from calibjax.errors import InputError


def retrieval_data():
    """300 queries whose success depends on the first score and the question's length."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=300)
    lists = [sorted([0.6 + 0.1 * v, *rng.uniform(0, 0.5, 20)], reverse=True) for v in x]
    questions = ["w " * int(k) for k in rng.integers(3, 25, 300)]
    made = features(lists, question=questions)
    y = rng.random(300) < expit(1.5 * x - 0.1 * made.column("query_len") + 1)
    return made, y.astype(float)


def parity_sets():
    cancer, wine = load_breast_cancer(), load_wine()
    made, y = retrieval_data()
    return {
        "retrieval": (made.values, y),
        "breast cancer": (cancer.data[:, :8], cancer.target.astype(float)),
        "wine": (wine.data, (wine.target == 1).astype(float)),
    }


@pytest.mark.parametrize("name", ["retrieval", "breast cancer", "wine"])
@pytest.mark.parametrize("l2", [1e-4, 1.0])
def test_weights_are_those_of_scikit_learn(name, l2):
    x, y = parity_sets()[name]
    got = RCS.fit(x, y, l2=l2)
    z = (x - x.mean(0)) / x.std(0)
    peer = LogisticRegression(C=1 / l2, tol=1e-12, solver="newton-cholesky", max_iter=1000)
    peer.fit(z, y)
    # Wine is separable: at l2 = 1e-4 the weights are some tens and are held by the penalty alone.
    np.testing.assert_allclose(got.coefficients, peer.coef_[0], rtol=1e-5, atol=1e-5)
    assert got.bias == pytest.approx(peer.intercept_[0], abs=1e-5)
    np.testing.assert_allclose(got.score(x), peer.predict_proba(z)[:, 1], atol=1e-6)
    assert got.converged


def test_separable_data_converge_with_the_penalty_and_say_so_without():
    x = np.array([[-2.0], [-1.0], [1.0], [2.0]])
    y = np.array([0.0, 0.0, 1.0, 1.0])
    assert RCS.fit(x, y).converged
    free = RCS.fit(x, y, l2=0.0)
    assert not free.converged and np.isfinite(free.coefficients).all()
    overlapping = RCS.fit(x, np.array([0.0, 1.0, 0.0, 1.0]), l2=0.0)
    assert overlapping.converged


def test_a_constant_feature_keeps_weight_zero_and_its_column():
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.normal(size=50), np.full(50, 0.1)])
    got = RCS.fit(x, (x[:, 0] + rng.normal(size=50) > 0).astype(float), names=("a", "b"))
    assert got.weights["b"] == 0.0 and got.scale[1] == 1.0 and got.mean[1] == 0.1
    # What was constant in the fit may vary later: it still counts for nothing.
    shifted = x.copy()
    shifted[:, 1] = 7.0
    np.testing.assert_array_equal(got.score(x), got.score(shifted))


def test_equal_columns_share_their_weight():
    rng = np.random.default_rng(1)
    column = rng.normal(size=80)
    y = (column + rng.normal(size=80) > 0).astype(float)
    got = RCS.fit(np.column_stack([column, column]), y, l2=0.0)
    assert got.coefficients[0] == pytest.approx(got.coefficients[1], abs=1e-6)


@pytest.mark.parametrize("outcome, expected", [(1.0, 10.5 / 11), (0.0, 0.5 / 11)])
def test_one_outcome_gives_a_constant_that_is_marked(outcome, expected):
    x = np.random.default_rng(0).normal(size=(10, 3))
    got = RCS.fit(x, np.full(10, outcome))
    assert not got.converged and not got.coefficients.any()
    np.testing.assert_allclose(got.score(x), expected)


def test_a_single_row_is_enough_to_answer():
    got = RCS.fit([[1.0, 2.0]], [1.0])
    assert np.isfinite(got.score([[3.0, 4.0]])).all() and not got.converged


# ------------------------------------------------------------------------------ missing hop 2


def test_queries_without_a_second_hop_count_as_average_in_it():
    rng = np.random.default_rng(2)
    hop1 = rng.uniform(0, 1, (60, 5))
    hop2 = [None if i % 4 == 0 else [list(rng.uniform(0, 1, 5))] for i in range(60)]
    made = features(hop1, hop2)
    y = (rng.random(60) < 0.5).astype(float)
    got = RCS.fit(made, y)
    present = made.column("hop2_missing") == 0
    place = made.names.index("hop2_max")
    # The mean is over the queries that have a second hop, and z is 0 for the others.
    assert got.mean[place] == pytest.approx(made.column("hop2_max")[present].mean())
    assert not got.standardise(made)[~present, place].any()


def test_a_score_with_a_second_hop_takes_queries_without_one():
    rng = np.random.default_rng(4)
    hop1, hop2 = rng.uniform(0, 1, (50, 5)), rng.uniform(0, 1, (50, 1, 5)).tolist()
    both = RCS.fit(features(hop1, hop2), (rng.random(50) < 0.5).astype(float))
    alone = both.standardise(features(hop1))
    assert not alone[:, [both.names.index(n) for n in ("hop2_max", "hop2_H")]].any()
    one = both.score(features(hop1[0], hop2[0]))
    assert np.ndim(one) == 0 and one == both.score(features(hop1, hop2))[0]


def test_other_missing_features_are_refused_by_name():
    made, y = retrieval_data()
    with pytest.raises(InputError, match="query_len"):
        RCS.fit(made, y).score(features([[1.0]]))


# ----------------------------------------------------------------------------------- storing


def test_a_stored_score_is_the_same_to_the_last_bit(tmp_path):
    made, y = retrieval_data()
    got = RCS.fit(made, y)
    got.save(tmp_path / "rcs.json", thresholds={"suffix": float("inf"), "first": 0.25})
    again = RCS.load(tmp_path / "rcs.json")
    np.testing.assert_array_equal(got.score(made), again.score(made))
    assert again.names == got.names and again.converged == got.converged and again.n == 300
    stored = json.loads((tmp_path / "rcs.json").read_text())
    assert stored["weights"]["hop1_max"] == got.weights["hop1_max"]
    assert stored["thresholds"] == {"suffix": None, "first": 0.25}


def test_test_rows_change_neither_normalisation_nor_weights():
    made, y = retrieval_data()
    rows = np.arange(300) < 150
    got = RCS.fit(made.take(rows), y[rows])
    # No aggregate over the rows that are scored enters: each row alone gives the same number.
    np.testing.assert_allclose(
        got.score(made)[200:], got.score(made.take(np.arange(300) >= 200)), rtol=1e-12
    )


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"format": "other"}, "format"),
        ({"scale": {"a": 0.0}}, "above 0"),
        ({"mean": {}}, "weights, mean and scale"),
        ({"weights": {"a": "x"}}, "weights, mean and scale"),
    ],
)
def test_a_damaged_file_is_refused_in_one_line(tmp_path, change, reason):
    RCS.fit([[0.0], [1.0], [2.0]], [0, 1, 0], names=("a",)).save(tmp_path / "rcs.json")
    stored = json.loads((tmp_path / "rcs.json").read_text()) | change
    (tmp_path / "rcs.json").write_text(json.dumps(stored))
    with pytest.raises(InputError, match=reason):
        RCS.load(tmp_path / "rcs.json")


@pytest.mark.parametrize(
    "x, y, named",
    [
        ([[1.0], [float("nan")]], [0, 1], r"features\[1\]"),
        ([[1.0], [2.0]], [0, 2], r"success\[1\]=2"),
        ([[1.0], [2.0]], [0, 1, 1], "success.shape"),
    ],
)
def test_bad_rows_are_named(x, y, named):
    with pytest.raises(InputError, match=named):
        RCS.fit(x, y)
