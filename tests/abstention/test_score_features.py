"""Features: every list has defined, finite values, whatever it holds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibjax.abstention import NAMES, features
from calibjax.abstention.score_features import HOP1, TOP, list_features
from calibjax.errors import InputError
from tests.abstention import oracle

LN = np.log
# scores -> max, margin, top3, entropy, lift
EDGES = {
    "empty list": ([], [0, 0, 0, 0, 0]),
    "one score": ([0.7], [0.7, 0.7, 0.7, 0, 1]),
    "one negative score": ([-0.7], [-0.7, -0.7, -0.7, 0, 0]),
    "two scores": ([3.0, 1.0], [3, 2, 2, (LN(4) - 0.75 * LN(3)) / LN(2), 1.5]),
    "all equal": ([0.5] * 4, [0.5, 0, 0.5, 1, 1]),
    "all zero": ([0.0] * 3, [0, 0, 0, 0, 0]),
    "all negative": ([-1.0, -2.0], [-1, 1, -1.5, 0, 0]),
    "negatives carry no mass": ([1.0, -0.5], [1, 1.5, 0.25, 0, 4]),
    "mean exactly zero": ([1.0, -1.0], [1, 2, 0, 0, 0]),
    "ties at the top": ([2.0, 2.0, 1.0], [2, 0, 5 / 3, None, 1.2]),
    "unsorted": ([0.1, 0.9, 0.5], [0.9, 0.4, 0.5, None, 1.8]),
    "missing hits of faiss": ([0.9, -3.4028234663852886e38], [0.9, 0.9, 0.9, 0, 1]),
    "sixty scores": ([1.0] * 50 + [0.0] * 10, [1, 0, 1, 1, 1]),
    "tiny scores": ([1e-300, 1e-300], [1e-300, 0, 1e-300, 1, 1]),
}


@pytest.mark.parametrize("name", EDGES)
def test_degenerate_lists_have_the_values_of_the_definitions(name):
    scores, expected = EDGES[name]
    got = features([scores])
    for feature, value in zip(HOP1, expected):
        if value is not None:
            assert got.column(feature)[0] == pytest.approx(value, abs=1e-12), feature
    assert np.isfinite(got.values).all()


def test_an_undefined_lift_is_flagged():
    assert features([[1.0, -1.0], [1.0, 0.0], []]).lift_bad.tolist() == [True, False, True]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.lists(st.floats(-1e6, 1e6, allow_subnormal=False), max_size=60), min_size=1, max_size=8
    )
)
def test_features_equal_a_plain_loop_over_any_lists(lists):
    got = features(lists, question=[""] * len(lists)).values[:, :5]
    for row, scores in zip(got, lists):
        want = oracle.list_features(scores)
        # A lift over a mean of nearly 0 amplifies the rounding of the mean itself.
        mean = abs(np.mean(sorted(scores)[-TOP:])) if scores else 1.0
        slack = 1e-9 + 1e-12 * (np.max(np.abs(scores), initial=0) / max(mean, 1e-300)) ** 2
        np.testing.assert_allclose(row[:4], want[:4], rtol=1e-9, atol=1e-9)
        assert row[4] == pytest.approx(want[4], rel=slack, abs=slack)
        assert np.isfinite(row).all() and 0 <= row[3] <= 1


def test_order_and_batch_do_not_matter():
    rng = np.random.default_rng(0)
    lists = rng.normal(size=(7, 30))
    together = features(lists).values
    for row, scores in zip(together, lists):
        np.testing.assert_array_equal(features(rng.permutation(scores)).values, row)


def test_the_core_works_in_float32_and_inside_other_programs():
    scores = np.array([[0.9, 0.5, 0.0]], np.float32)
    valid = np.array([[True, True, False]])
    values, bad = list_features(scores, valid)
    assert values.dtype == np.float32 and not bad[0]
    np.testing.assert_allclose(values[0], oracle.list_features([0.9, 0.5]), rtol=1e-6)


def test_the_question_counts_its_words_after_normalisation():
    # The combining accent joins its letter; a no-break space is white space.
    got = features([[1.0]] * 3, question=["who  was\tthe first", "cafe\u0301 is\u00a0open", " "])
    assert got.column("query_len").tolist() == [4, 3, 0]


def test_softmax_entropy_is_that_of_the_scores_over_the_temperature():
    p = np.exp([0.0, -2.0]) / np.exp([0.0, -2.0]).sum()
    expected = -(p * np.log(p)).sum() / np.log(2)
    got = features([1.0, 0.0], entropy="softmax", temperature=0.5).values[3]
    assert got == pytest.approx(expected)


# ------------------------------------------------------------------------------ second hop


def test_hop_1_alone_gives_six_features_and_both_hops_nine():
    assert features([1.0], question="a b").names == (*HOP1, "query_len")
    assert features([1.0], [[0.5]], "a b").names == NAMES


def test_lists_of_all_bridges_are_pooled():
    got = features([1.0], [[0.9, 0.1], [0.6]])
    want = oracle.list_features([0.9, 0.1, 0.6])
    assert [got.values[5], got.values[6], got.values[7]] == pytest.approx(
        [want[0], want[1], want[3]]
    )


def test_with_ids_a_passage_counts_once_with_its_best_score():
    got = features([1.0], [[0.9, 0.1], [0.6]], hop2_ids=[["a", "b"], ["a"]])
    assert got.values[6] == pytest.approx(0.8)  # .9 and .1: the .6 is passage a again


def test_queries_without_bridges_are_told_apart():
    got = features([[1.0]] * 3, [[[0.5]], None, [[]]])
    assert got.names[-1] == "hop2_missing"
    # A bridge query that found nothing is an answer; no bridge query is none.
    assert got.column("hop2_missing").tolist() == [0, 1, 0]
    assert got.column("hop2_max").tolist() == [0.5, 0, 0]
    assert features([[1.0]] * 2, [None, []]).names == HOP1


# --------------------------------------------------------------------------------- faults


@pytest.mark.parametrize(
    "scores, named",
    [
        ([[1.0], [0.5, float("nan")]], r"hop1_scores\[1\]"),
        ([[1.0, 0.5], [float("inf"), 0.1]], r"hop1_scores\[1\]"),
        ([[1.0], ["high"]], r"hop1_scores\[1\]=high"),
    ],
)
def test_what_is_no_number_is_named_by_row(scores, named):
    with pytest.raises(InputError, match=named):
        features(scores)


def test_bridge_lists_have_to_fit_the_queries():
    with pytest.raises(InputError, match=r"len\(hop2_scores\)=1"):
        features([[1.0], [1.0]], [[[0.5]]])
    with pytest.raises(InputError, match="one id for each score"):
        features([1.0], [[0.5, 0.4]], hop2_ids=[["a"]])
