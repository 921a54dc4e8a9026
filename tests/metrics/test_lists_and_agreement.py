"""Ranked lists against hand values and scikit-learn; agreement against the definition."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sklearn.metrics

from calibjax import metrics as m
from tests.metrics import oracle

FUNCTIONS = {
    "recall": m.recall_at_k,
    "full": m.full_success_at_k,
    "any": m.any_correct_at_k,
    "ndcg": m.ndcg_at_k,
    "rank": m.reciprocal_rank,
}


def test_lists_by_hand():
    hits = [0, 1, 0, 1]
    assert float(m.recall_at_k(hits, k=2)) == 0.5
    assert float(m.recall_at_k(hits, k=2, num_relevant=4)) == 0.25
    assert float(m.full_success_at_k(hits, k=4)) == 1
    assert float(m.full_success_at_k(hits, k=4, num_relevant=3)) == 0
    assert [float(m.any_correct_at_k(hits, k=k)) for k in (1, 2)] == [0, 1]
    assert float(m.reciprocal_rank(hits, k=4)) == 0.5
    assert float(m.reciprocal_rank(hits, k=1)) == 0
    gained = 1 / np.log2(3) + 1 / np.log2(5)
    assert float(m.ndcg_at_k(hits, k=4)) == pytest.approx(gained / (1 + 1 / np.log2(3)), rel=1e-6)
    one = m.ndcg_at_k([1], k=5, num_relevant=3)  # a list shorter than k that missed two
    assert float(one) == pytest.approx(1 / (1 + 1 / np.log2(3) + 1 / 2), rel=1e-6)
    missed = 1 + 1 / np.log2(3) + 1 / np.log2(4)
    assert float(m.ndcg_at_k(hits, k=4, num_relevant=3)) == pytest.approx(gained / missed, rel=1e-6)


def test_ndcg_follows_scikit_learn_on_graded_lists():
    rng = np.random.default_rng(0)
    gains = rng.integers(0, 4, (20, 9))
    ranks = np.tile(np.arange(9, 0, -1), (20, 1))
    for k in (1, 3, 9, 20):
        got = m.ndcg_at_k(gains, k=k)
        expected = [sklearn.metrics.ndcg_score(g[None], r[None], k=k) for g, r in zip(gains, ranks)]
        np.testing.assert_allclose(got, expected, rtol=1e-5)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_masked_hits_are_as_good_as_removed_and_batches_equal_loops(name):
    fn, rng = FUNCTIONS[name], np.random.default_rng(1)
    relevant, where = rng.integers(0, 2, (12, 7)), rng.random((12, 7)) < 0.6
    for k in (1, 3, 9):
        batch = fn(np.where(where, relevant, -9), k=k, where=where)
        by_weight = fn(relevant, k=k, weight=where.astype(float))
        traced = jax.jit(lambda r, w: fn(r, k=k, where=w))(relevant, where)
        for i in range(12):
            short = relevant[i][where[i]]
            alone = fn(np.concatenate([short, np.zeros(7 - len(short), int)]), k=k)
            if len(short):
                np.testing.assert_allclose(batch[i], alone, rtol=1e-6)
        np.testing.assert_allclose(batch, by_weight, rtol=1e-6)
        np.testing.assert_allclose(batch, traced, rtol=1e-6)


def test_lists_without_relevant_hits():
    empty = [0, 0, 0]
    assert np.isnan(m.recall_at_k(empty, k=2)) and np.isnan(m.ndcg_at_k(empty, k=2))
    assert np.isnan(m.full_success_at_k(empty, k=2))
    assert float(m.any_correct_at_k(empty, k=2)) == 0 == float(m.reciprocal_rank(empty, k=2))
    assert float(m.recall_at_k(empty, k=2, num_relevant=2)) == 0
    for fn in FUNCTIONS.values():
        assert np.isnan(fn(empty, k=2, where=[False] * 3))
        assert np.isnan(jax.jit(lambda r: fn(r, k=2))(jnp.array([0.0, jnp.nan, 1.0])))


def test_any_correct_never_falls_with_k():
    relevant = np.random.default_rng(2).random((50, 9)) < 0.2
    shares = [float(m.any_correct_at_k(relevant, k=k).mean()) for k in (1, 3, 5, 7, 9)]
    assert shares == sorted(shares)


def test_agreement_follows_scikit_learn():
    rng = np.random.default_rng(0)
    for classes in (2, 5):
        a, b = rng.integers(0, classes, (2, 80))
        got = m.agreement(a, b)
        assert float(got.rate) == pytest.approx(np.mean(a == b))
        assert float(got.kappa) == pytest.approx(sklearn.metrics.cohen_kappa_score(a, b), abs=1e-5)
        weight = rng.integers(0, 3, 80)
        copies = oracle.expand(weight, a, b)
        assert float(m.agreement(a, b, weight=weight).kappa) == pytest.approx(
            oracle.kappa(*copies), abs=1e-5
        )


def test_agreement_by_confidence_bin():
    a, b = [1, 1, 0, 0, 1], [1, 0, 0, 1, 1]
    confidence = [0.1, 0.15, 0.5, 0.95, 1.0]
    got = m.agreement(a, b, confidence=confidence, num_bins=5)
    assert got.bin_weight.tolist() == [2, 0, 1, 0, 2]
    np.testing.assert_allclose(got.bin_rate, [0.5, np.nan, 1, np.nan, 0.5])


def test_agreement_of_words_and_of_judges_with_nothing_to_disagree_on():
    got = m.agreement(["yes", "no", "yes"], ["yes", "no", "no"])
    assert float(got.rate) == pytest.approx(2 / 3)
    same = m.agreement([1, 1, 1], [1, 1, 1])
    assert float(same.rate) == 1 and np.isnan(same.kappa)
    opposite = m.agreement([1, 1, 1], [0, 0, 0])
    assert float(opposite.rate) == 0 == float(opposite.kappa)


def test_agreement_takes_part_in_the_bootstrap():
    a = np.arange(40) % 2
    b = np.where(np.arange(40) < 8, 1 - a, a)

    def rate(a, b, weight):
        return m.agreement(a, b, weight=weight).rate

    got = m.bootstrap({"rate": rate}, {"a": a, "b": b}, key=jax.random.key(0), num_replicates=200)
    assert float(got["rate"].estimate) == pytest.approx(0.8)
    assert 0.6 < float(got["rate"].low) < 0.8 < float(got["rate"].high) < 0.95
