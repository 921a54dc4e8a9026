"""Agreement with an independent float64 implementation, with scikit-learn and with scipy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sklearn.calibration
import sklearn.metrics
from scipy import special, stats

from calibjax import metrics as m
from calibjax.metrics.selective import harmonic_gap
from tests.metrics import oracle

N = 60
# float32 against float64 over 60 rows.
TOLERANCE = dict(rtol=2e-5, atol=3e-6)
SEEDS = range(8)


def sample(seed, decimals=None):
    """Scores on a grid of tenths (ties, edges) or continuous, with labels that follow them."""
    rng = np.random.default_rng(seed)
    s = rng.random(N).astype(np.float32).astype(float)
    if seed % 2:
        s = np.round(s, 1)
    return s, (rng.random(N) < s).astype(float), rng


def same(got, expected):
    np.testing.assert_allclose(np.asarray(got, float), expected, **TOLERANCE)


@pytest.mark.parametrize("closed", ["right", "left"])
@pytest.mark.parametrize("num_bins", [1, 10, 15])
def test_width_calibration_error(num_bins, closed):
    for seed in SEEDS:
        s, y, _ = sample(seed)
        bins = oracle.width_bin(s, num_bins, closed)
        got = m.expected_calibration_error_details(s, y, num_bins=num_bins, closed=closed)
        expected = oracle.calibration(s, y, bins)
        same([got.ece, got.l2, got.mce, got.debiased_l2_squared], expected)


@pytest.mark.parametrize("num_bins", [3, 10, 100])
def test_mass_calibration_error(num_bins):
    for seed in SEEDS:
        s, y, _ = sample(seed)
        got = m.expected_calibration_error_details(s, y, num_bins=num_bins, binning="mass")
        expected = oracle.calibration(s, y, oracle.mass_bin(s, num_bins))
        same([got.ece, got.l2, got.mce, got.debiased_l2_squared], expected)


def test_top_label_calibration_error():
    for seed in SEEDS:
        s, y, _ = sample(seed)
        p, right = oracle.top_label(s.astype(np.float32), y)
        expected = oracle.calibration(p, right, oracle.width_bin(np.round(p, 6), 10))[0]
        same(m.expected_calibration_error(s, y, num_bins=10, mode="top_label"), expected)


def test_bins_follow_scikit_learn():
    for seed in SEEDS:
        s, y, _ = sample(seed)
        s = s.astype(np.float32)  # both sides then compare the same numbers
        share, mean = sklearn.calibration.calibration_curve(y, s, n_bins=7)
        got = m.expected_calibration_error_details(s, y, num_bins=7)
        filled = np.asarray(got.bin_weight) > 0
        same(got.bin_accuracy[filled], share)
        same(got.bin_confidence[filled], mean)


def test_proper_scores_follow_scikit_learn():
    for seed in SEEDS:
        s, y, _ = sample(seed)
        s = np.clip(s, 0.01, 0.99)
        same(m.brier_score(s, y), sklearn.metrics.brier_score_loss(y, s))
        same(m.log_loss(s, y), sklearn.metrics.log_loss(y, s))
        rate = y.mean()
        same(m.log_loss_skill(s, y), 1 - oracle.log_loss(s, y) / stats.entropy([rate, 1 - rate]))
        same(m.brier_skill(s, y), 1 - oracle.brier(s, y) / (rate * (1 - rate)))


def test_auroc_follows_scikit_learn_with_weights_and_the_pair_count_with_soft_labels():
    for seed in SEEDS:
        s, y, rng = sample(seed)
        weight = rng.integers(0, 4, N)
        same(m.auroc(s, y), sklearn.metrics.roc_auc_score(y, s))
        expected = sklearn.metrics.roc_auc_score(y, s, sample_weight=weight)
        same(m.auroc(s, y, weight=weight), expected)
        soft = np.round(rng.random(N), 1)
        same(m.auroc(s, soft), oracle.auroc(s, soft))


def test_selective_curves():
    for seed in SEEDS:
        s, y, rng = sample(seed)
        soft = np.where(rng.random(N) < 0.3, 0.5, y)
        for labels in (y, soft):
            same(m.accuracy_coverage_curve(s, labels), oracle.curve(s, labels))
            got = m.area_under_accuracy_coverage_details(s, labels)
            same(got.area, oracle.auc_ac(s, labels))
            same(got.oracle, oracle.auc_ac(labels, labels))
            same(got.augrc, oracle.augrc(s, labels))
            trapezoid = m.area_under_accuracy_coverage(s, labels, area="trapz")
            same(trapezoid, oracle.trapezoid(s, labels))
        for coverage in (0.29, 0.5, 0.7, 1.0):
            got = m.accuracy_at_coverage(s, y, coverage)
            same(got, oracle.accuracy_at(s, y, coverage))


def test_weighted_curve_is_that_of_the_copies():
    s, y, rng = sample(1)
    weight = rng.integers(0, 4, N)
    copies = oracle.expand(weight, s, y)
    total = int(weight.sum())
    got = m.accuracy_coverage_curve(s, y, weight=weight, length=total)
    same(got, oracle.curve(*copies))
    assert np.isnan(m.accuracy_coverage_curve(s, y, weight=weight, length=total + 1)[-1])


def test_weighted_areas_are_those_of_the_copies():
    for seed in SEEDS:
        s, y, rng = sample(seed)
        weight = rng.integers(0, 4, N)
        copies = oracle.expand(weight, s, y)
        same(m.area_under_accuracy_coverage(s, y, weight=weight), oracle.auc_ac(*copies))
        details = m.area_under_accuracy_coverage_details(s, y, weight=weight)
        same(details.augrc, oracle.augrc(*copies))


@pytest.mark.parametrize("dtype, tolerance", [(np.float32, 4e-7), (np.float64, 2e-12)])
def test_harmonic_gap_is_a_difference_of_digammas(dtype, tolerance):
    start = np.array([0, 0, 0, 0.2, 1, 3, 8, 50, 1000, 1e6, 1e6, 0], float)
    length = np.array([1, 1000, 0.5, 0.1, 1e5, 2, 0.3, 12, 1, 3, 1e5, 0], float)
    with jax.enable_x64(True):
        expected = special.digamma(start + length + 1) - special.digamma(start + 1)
        # digamma itself loses digits where the difference is small: sum the few terms instead.
        expected[8:10] = [1 / 1001, sum(1 / (1e6 + k) for k in (1, 2, 3))]
        got = harmonic_gap(jnp.asarray(start, dtype), jnp.asarray(length, dtype))
    np.testing.assert_allclose(np.asarray(got, float), expected, rtol=tolerance)


def test_cwar_and_its_thresholds():
    for seed in SEEDS:
        s, y, _ = sample(seed)
        for tau in (0.0, 0.3, 0.7):
            same(m.confident_wrong_answer_rate(s, y, tau).rate, oracle.cwar(s, y, tau))
        for target in (0.0, 0.1, 0.25, 0.3):
            for rule in ("first", "suffix"):
                got = m.cwar_threshold(s, y, target, rule=rule)
                same(got.tau, oracle.cwar_threshold(s, y, target, rule))


@pytest.mark.parametrize("grid", [None, np.arange(11) / 10])
def test_certified_threshold_and_its_bound(grid):
    for seed in SEEDS:
        s, y, _ = sample(seed)
        for target in (0.2, 0.4, 0.6):
            options = dict(delta=0.2, n_min=10, grid=grid)
            got = m.cwar_threshold_details(s, y, target, rule="certified", **options)
            same(got.tau, oracle.cwar_threshold(s, y, target, "certified", **options))
            errors, kept = int(got.errors), int(got.kept)
            bound = stats.beta.ppf(0.8, errors + 1, kept - errors) if errors < kept else 1.0
            same(got.upper_bound, bound)
            assert not got.feasible or got.upper_bound <= target + 1e-6


@pytest.mark.parametrize("rule", ["quantile", "exact", "dkw1", "dkw2", "predictive"])
def test_budget_counts_and_expected_violations(rule):
    for n in (1, 7, 20, 60):
        for budget in (0.0, 0.1, 0.29, 0.5, 1.0):
            k = m.budget_count(n, budget, rule=rule, num_new=30)
            assert k == oracle.budget_count(n, budget, rule, num_new=30), (n, budget)
            got = m.expected_violation(n, 30, budget, rule=rule)
            limit = oracle.budget_count(30, budget, "quantile")
            exact = stats.betabinom.sf(limit, 30, k, n - k + 1) if k else 0.0
            assert got == pytest.approx(exact, abs=1e-9)


def test_thresholds_for_counts_and_conformal_ranks():
    for seed in SEEDS:
        s, _, _ = sample(seed)
        for count in (0, 1, 7, 30, 59, 60, 100):
            same(m.budget_threshold(s, count), oracle.budget_threshold(s, count))
        for alpha in (0.01, 0.1, 0.29, 0.5, 1.0):
            if alpha < 1:
                got = m.conformal_threshold(s, alpha=alpha).threshold
                same(got, oracle.conformal(s, alpha))


@pytest.mark.parametrize("rule", ["quantile", "exact", "dkw1", "predictive"])
def test_frontiers(rule):
    budgets = (0.0, 0.1, 0.29, 0.5, 0.9, 1.0)
    for seed in SEEDS:
        s, y, rng = sample(seed)
        calibration = sample(seed + 100)[0] if seed % 2 == 0 else np.round(rng.random(N), 1)
        without, with_evidence = (rng.random(N) < 0.4).astype(float), y
        exact = m.exact_frontier(s, without, with_evidence, budgets)
        same(exact, [oracle.exact_frontier(s, without, with_evidence, b) for b in budgets])
        got = m.deployable_frontier(calibration, s, without, with_evidence, budgets, rule=rule)
        for i, budget in enumerate(budgets):
            expected = oracle.deployable(calibration, s, without, with_evidence, budget, rule)
            for field, value in expected.items():
                same(getattr(got, field)[i], value)


def test_the_deployable_frontier_meets_the_exact_one_at_its_realised_usage():
    s, y, rng = sample(0)  # continuous scores: no ties
    details = m.deployable_frontier_details(rng.random(N), s, 1 - y, y, (0.1, 0.5, 0.9))
    np.testing.assert_allclose(details.exact_gap, 0, atol=1e-6)


def test_oracle_and_random_frontiers():
    for seed in SEEDS:
        _, y, rng = sample(seed)
        without = (rng.random(N) < 0.4).astype(float)
        for budget in (0.0, 0.29, 0.5, 1.0):
            k = oracle.budget_count(N, budget, "quantile")
            best = np.sort(y - without)[::-1]
            same(m.oracle_frontier(without, y, budget), without.mean() + best[:k].sum() / N)
            free = np.maximum(best, 0)[:k].sum() / N
            same(m.oracle_frontier(without, y, budget, free=True), without.mean() + free)
            line = without.mean() + k / N * (y - without).mean()
            same(m.random_frontier(without, y, budget), line)


def test_many_rows_keep_five_digits():
    rng = np.random.default_rng(0)
    n = 250_000
    s = rng.random(n).astype(np.float32)
    y = (rng.random(n) < s).astype(np.float32)
    order = np.argsort(-s, kind="stable")
    curve = np.cumsum(y[order].astype(float)) / np.arange(1, n + 1)
    # Ties among so many float32 scores are too few and too small to reach the fifth digit.
    assert float(m.area_under_accuracy_coverage(s, y)) == pytest.approx(curve.mean(), abs=1e-5)
    assert float(m.auroc(s, y)) == pytest.approx(sklearn.metrics.roc_auc_score(y, s), abs=1e-5)
    assert float(m.brier_score(s, y)) == pytest.approx(oracle.brier(s.astype(float), y), abs=1e-6)


def test_a_shifted_router_ranks_alike_but_transfers_differently():
    s, y, rng = sample(0)
    calibration, without = rng.random(N), (rng.random(N) < 0.4).astype(float)
    plain = m.exact_frontier(s, without, y, (0.25, 0.5))
    shifted = m.exact_frontier(s + 0.2, without, y, (0.25, 0.5))
    np.testing.assert_array_equal(plain, shifted)
    steady = m.deployable_frontier(calibration, s, without, y, (0.25, 0.5))
    moved = m.deployable_frontier(calibration, s + 0.2, without, y, (0.25, 0.5))
    assert (moved.usage > steady.usage + 0.1).all() and moved.violated.all()


def test_the_null_reference_runs_inside_jit():
    p = np.full(30, 0.5, np.float32)

    def null(p):
        return m.ece_null_reference(p, key=jax.random.key(0), num_draws=50).mean

    assert float(jax.jit(null)(p)) == pytest.approx(float(null(p)), abs=1e-6)
    assert np.isnan(jax.jit(null)(jnp.asarray(p).at[3].set(1.5)))
