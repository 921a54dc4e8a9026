"""What holds for every metric: row order, weights as copies, masks, jit, vmap, monotone maps."""

import warnings

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calibjax import metrics as m
from tests.metrics.registry import ALL, RANK, N, evaluate

# float32 sums of 24 terms in another order: some units of 6e-8, over rates as small as 1 / 24.
TOLERANCE = dict(rtol=1e-5, atol=3e-6)
SETTINGS = hypothesis.settings(max_examples=40, deadline=None, derandomize=True)

rows = st.lists(
    st.tuples(st.integers(0, 10), st.booleans(), st.integers(0, 3)), min_size=1, max_size=8
)


def pad(score, y, weight, where=None, seed=0):
    """Columns of length N; unused places hold NaN and nonsense under a False mask."""
    n = len(score)
    used = np.zeros(N, bool)
    used[:n] = True if where is None else where
    columns = [np.full(N, value, np.float32) for value in (np.nan, 7.0, -1.0)]
    for column, values in zip(columns, (score, y, weight)):
        column[:n] = values
    return *columns, used


def unpack(drawn):
    score, y, weight = (np.array(x, np.float32) for x in zip(*drawn))
    return score / np.float32(10), y, weight


def assert_same(a, b):
    for name in a:
        np.testing.assert_allclose(a[name], b[name], **TOLERANCE, err_msg=name)


@SETTINGS
@hypothesis.given(rows, st.randoms(use_true_random=False))
def test_row_order_does_not_matter(drawn, random):
    columns = pad(*unpack(drawn))
    order = list(range(N))
    random.shuffle(order)
    assert_same(evaluate(*columns), evaluate(*(column[order] for column in columns)))


@SETTINGS
@hypothesis.given(rows)
def test_weight_k_is_k_copies(drawn):
    score, y, weight = unpack(drawn)
    copies = np.repeat(np.arange(len(score)), weight.astype(int))
    ones = np.ones(len(copies), np.float32)
    assert_same(evaluate(*pad(score, y, weight)), evaluate(*pad(score[copies], y[copies], ones)))


@SETTINGS
@hypothesis.given(rows, st.integers(0, 255))
def test_masked_rows_are_as_good_as_removed(drawn, bits):
    score, y, weight = unpack(drawn)
    where = np.array([bits >> i & 1 for i in range(len(score))], bool)
    kept = (column[where] for column in (score, y, weight))
    hidden = np.where(where, score, np.nan), np.where(where, y, 5), np.where(where, weight, -2)
    assert_same(evaluate(*pad(*hidden, where)), evaluate(*pad(*kept)))


@pytest.mark.parametrize("name", ALL)
def test_jit_equals_eager(name):
    rng = np.random.default_rng(0)
    fn = ALL[name]
    score = (rng.integers(0, 11, N) / 10).astype(np.float32)
    y = rng.integers(0, 2, N).astype(np.float32)
    for where in (rng.random(N) < 0.7, rng.random(N) < 0.5):
        for weight in (None, rng.integers(0, 4, N).astype(np.float32)):
            eager = fn(score, y, weight=weight, where=where)
            full = np.ones(N, np.float32) if weight is None else weight
            traced = evaluate(score, y, full, where)[name]
            np.testing.assert_allclose(eager, traced, **TOLERANCE)


def test_vmap_equals_a_loop_over_scores_and_over_weights():
    rng = np.random.default_rng(1)
    score = jnp.asarray(rng.integers(0, 11, (3, N)) / 10, jnp.float32)
    y = jnp.asarray(rng.integers(0, 2, (3, N)), jnp.float32)
    weight = jnp.asarray(rng.integers(0, 4, (3, N)), jnp.float32)
    where = jnp.asarray(rng.random((3, N)) < 0.7)
    everything = jax.jit(jax.vmap(evaluate))(score, y, weight, where)
    for i in range(3):
        one = {name: value[i] for name, value in everything.items()}
        assert_same(one, evaluate(score[i], y[i], weight[i], where[i]))


def test_many_weightings_of_one_ranking_equal_a_loop():
    # The one-pass form that the bootstrap runs on.
    rng = np.random.default_rng(1)
    score = jnp.asarray(rng.integers(0, 11, N) / 10, jnp.float32)
    y = jnp.asarray(rng.integers(0, 2, N), jnp.float32)
    weight = jnp.asarray(rng.integers(0, 4, (5, N)), jnp.float32)
    where = jnp.asarray(rng.random(N) < 0.7)

    def areas(weight):
        return {name: RANK[name](score, y, weight=weight, where=where) for name in list(RANK)[:5]}

    together = jax.jit(jax.vmap(areas))(weight)
    for i in range(5):
        alone = evaluate(score, y, weight[i], where)
        assert_same({k: v[i] for k, v in together.items()}, alone)


def test_nested_vmap_over_methods_and_replicates_equals_two_loops():
    rng = np.random.default_rng(2)
    score = jnp.asarray(rng.integers(0, 11, (2, N)) / 10, jnp.float32)
    y = jnp.asarray(rng.integers(0, 2, N), jnp.float32)
    weight = jnp.asarray(rng.integers(0, 4, (3, N)), jnp.float32)
    for fn in (m.auroc, m.area_under_accuracy_coverage):
        methods = jax.vmap(lambda s, w: fn(s, y, weight=w), in_axes=(0, None))
        nested = jax.jit(jax.vmap(methods, in_axes=(None, 0)))(score, weight)
        for b in range(3):
            for r in range(2):
                alone = fn(score[r], y, weight=weight[b])
                np.testing.assert_allclose(nested[b, r], alone, **TOLERANCE)


@SETTINGS
@hypothesis.given(rows, st.permutations(range(11)))
def test_monotone_maps_leave_rank_metrics_alone(drawn, steps):
    score, y, weight = unpack(drawn)
    rising = np.cumsum(np.array(steps, np.float32) + 1) / 66  # strictly increasing to 1
    mapped = np.minimum(rising, 1)[np.round(score * 10).astype(int)]
    a, b = evaluate(*pad(score, y, weight)), evaluate(*pad(mapped, y, weight))
    assert_same({name: a[name] for name in RANK}, {name: b[name] for name in RANK})


@SETTINGS
@hypothesis.given(rows)
def test_frontiers_start_at_never_end_at_always_and_stay_below_the_oracle(drawn):
    score, y, weight = unpack(drawn)
    hypothesis.assume(weight.sum() > 0)
    got = evaluate(*pad(score, y, weight))
    without, with_evidence = np.average(y, weights=weight), np.average(1 - score, weights=weight)
    np.testing.assert_allclose(got["exact_frontier"][0], without, **TOLERANCE)
    np.testing.assert_allclose(got["exact_frontier"][3], with_evidence, **TOLERANCE)
    assert (got["oracle_frontier"] >= got["exact_frontier"][1:3] - 1e-5).all()
    assert (got["oracle_frontier"] >= got["random_frontier"] - 1e-5).all()


@SETTINGS
@hypothesis.given(rows)
def test_ranges_and_references(drawn):
    score, y, weight = unpack(drawn)
    hypothesis.assume(weight.sum() > 0)
    got = evaluate(*pad(score, y, weight))
    for name in ("ece", "ece_l2", "ece_mass", "brier", "auc_ac", "auc_ac_trapz", "accuracy"):
        assert -1e-6 <= got[name] <= 1 + 1e-6, name
    assert np.isnan(got["auroc"]) or 0 <= got["auroc"] <= 1 + 1e-6
    parts = got["decomposition"]
    np.testing.assert_allclose(parts[0] - parts[1] + parts[2] + parts[3], got["brier"], atol=1e-6)
    assert np.isnan(got["gain"]) or got["gain"] <= 1 + 1e-4


def test_a_constant_score_gets_exactly_the_accuracy():
    rng = np.random.default_rng(3)
    for _ in range(5):
        y, weight = rng.random(N).astype(np.float32), rng.random(N).astype(np.float32)
        flat = evaluate(np.full(N, 0.5, np.float32), y.round(), weight, np.ones(N, bool))
        expected = np.average(y.round(), weights=weight)
        np.testing.assert_allclose(flat["auc_ac"], expected, **TOLERANCE)
        np.testing.assert_allclose(flat["auroc"], 0.5, **TOLERANCE)


def test_fractional_weights_only_matter_up_to_scale_for_scale_free_metrics():
    rng = np.random.default_rng(4)
    score, weight = rng.random(N).astype(np.float32), rng.random(N).astype(np.float32)
    y, where = rng.integers(0, 2, N).astype(np.float32), np.ones(N, bool)
    one, double = (evaluate(score, y, scale * weight, where) for scale in (1, 2))
    for name in ("auroc", "ece", "brier", "log_loss", "accuracy", "auc_ac_trapz", "agreement"):
        np.testing.assert_allclose(one[name], double[name], **TOLERANCE, err_msg=name)


def test_eager_warnings_are_for_undefined_auroc_alone():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name, fn in ALL.items():
            if name != "auroc":
                fn(np.full(N, 0.5, np.float32), np.ones(N, np.float32))
