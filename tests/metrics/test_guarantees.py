"""Statistical promises, tested by simulation against their closed forms.

Seeds are fixed, so a pass is a pass for good; limits are four standard errors of the simulation.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from calibjax import metrics as m

KEY = jax.random.key(0)
RULES = ("quantile", "exact", "dkw1", "dkw2", "predictive")


def mean_of(y, weight):
    return m.accuracy(y, weight=weight)


def auroc_of(score, y, weight):
    return m.auroc(score, y, weight=weight)


def test_bootstrap_intervals_of_accuracy_and_auroc_cover_the_truth():
    # Binormal scores: AUROC = Phi(shift / sqrt 2). 500 sets of 150 rows; coverage .95 has standard
    # error .0097, and the percentile interval is known to fall short by about a point at this n.
    sets, n, shift, rate = 500, 150, 1.0, 0.6
    truth = stats.norm.cdf(shift / np.sqrt(2))
    rng = np.random.default_rng(0)
    y = (rng.random((n, sets)) < rate).astype(np.float32)
    score = (rng.normal(size=(n, sets)) + shift * y).astype(np.float32)

    def accuracy(score, y, weight):
        return jax.vmap(lambda y: mean_of(y, weight), in_axes=1)(y)

    def auroc(score, y, weight):
        return jax.vmap(lambda s, y: auroc_of(s, y, weight), in_axes=1)(score, y)

    # The sets share their draws of row numbers: each interval is an ordinary one, and the sets
    # themselves are independent.
    got = m.bootstrap(
        {"accuracy": accuracy, "auroc": auroc},
        {"score": score, "y": y},
        key=KEY,
        num_replicates=500,
    )
    for name, value in (("accuracy", rate), ("auroc", truth)):
        interval = got[name]
        covered = np.mean((interval.low <= value) & (value <= interval.high))
        assert 0.93 <= covered <= 0.97, (name, covered)


@pytest.fixture(scope="module")
def study():
    """Independent random routers over many splits of one pool: usage is beta-binomial exactly."""
    routers, n, num_splits = 40, 200, 250
    rng = np.random.default_rng(1)
    scores = rng.random((routers, n)).astype(np.float32)
    outcomes = rng.integers(0, 2, (2, n))
    splits = m.random_splits(n, key=KEY, num_splits=num_splits, calibration=0.5, test=0.5)
    return m.frontier_study(scores, *outcomes, (0.1, 0.25, 0.5, 0.75), splits, rules=RULES)


@pytest.mark.parametrize("rule", RULES)
def test_violation_rates_are_those_of_the_beta_binomial(study, rule):
    violated = np.asarray(study.deployable[rule].violated, float)
    for i, budget in enumerate((0.1, 0.25, 0.5, 0.75)):
        expected = m.expected_violation(100, 100, budget, rule=rule)
        # Routers are independent given the splits; splits of one pool are not, given the router.
        by_router = violated[:, :, i].mean(1)
        error = max(by_router.std(ddof=1) / np.sqrt(len(by_router)), 1e-3)
        assert abs(by_router.mean() - expected) < 4 * error, (budget, by_router.mean(), expected)
        if rule == "predictive":
            assert expected <= 0.05


def test_mean_usage_is_that_of_an_order_statistic(study):
    usage = np.asarray(study.deployable["quantile"].usage)
    for i, budget in enumerate((0.1, 0.25, 0.5, 0.75)):
        expected = m.budget_count(100, budget) / 101
        by_router = usage[:, :, i].mean(1)
        error = by_router.std(ddof=1) / np.sqrt(len(by_router))
        assert abs(by_router.mean() - expected) < 4 * error


def population_usage(n, count, sims):
    """Population usage of thresholds on uniform scores: P(score >= tau) = 1 - tau."""
    scores = jax.random.uniform(jax.random.fold_in(KEY, n), (sims, n))
    tau = jax.jit(jax.vmap(lambda s: m.budget_threshold(s, count)))(scores)
    return np.where(np.isinf(tau), 0.0, 1 - np.asarray(tau))


@pytest.mark.parametrize("rule", ["quantile", "exact", "dkw1"])
def test_population_usage_exceeds_the_budget_as_often_as_the_binomial_says(rule):
    n, budget, sims = 100, 0.5, 4000
    k = m.budget_count(n, budget, rule=rule)
    expected = stats.binom.cdf(k - 1, n, budget)
    rate = np.mean(population_usage(n, k, sims) > budget)
    assert abs(rate - expected) < 4 * np.sqrt(expected * (1 - expected) / sims) + 1e-3
    assert rule == "quantile" or expected <= 0.05


def test_the_dkw_margin_holds_for_all_budgets_at_once_and_the_exact_rule_does_not():
    n, sims = 100, 4000
    budgets = np.round(np.arange(1, 20) * 0.05, 2)
    above = {}
    scores = np.sort(np.random.default_rng(2).random((sims, n)), axis=1)[:, ::-1]
    for rule in ("dkw1", "exact"):
        counts = np.array([m.budget_count(n, b, rule=rule) for b in budgets])
        tau = np.where(counts > 0, scores[:, np.maximum(counts - 1, 0)], np.inf)
        used = np.where(np.isinf(tau), 0, 1 - tau)
        above[rule] = np.mean((used > budgets).any(1))
    limit = 0.05 + 4 * np.sqrt(0.05 * 0.95 / sims)
    assert above["dkw1"] <= limit
    assert above["exact"] > limit  # one budget fixed beforehand is all that it promises


def cwar_simulation(rule, sims=800, n=500, target=0.25, **options):
    """Share of runs whose population CWAR at tau exceeds the target, and mean coverage.

    Scores are uniform and P(right | s) = s, so the population CWAR at tau is (1 - tau) / 2.
    """
    key_s, key_y = jax.random.split(jax.random.key(3))
    score = jax.random.uniform(key_s, (sims, n))
    right = (jax.random.uniform(key_y, (sims, n)) < score).astype(jnp.float32)

    def one(s, y):
        return m.cwar_threshold(s, y, target, rule=rule, **options)

    result = jax.jit(jax.vmap(one))(score, right)
    tau = np.asarray(result.tau)
    missed = np.where(np.isinf(tau), False, (1 - tau) / 2 > target)
    return missed.mean(), np.asarray(result.coverage).mean()


def test_the_certified_threshold_keeps_its_promise_on_a_fixed_grid():
    grid = tuple(np.round(np.linspace(0.02, 0.98, 49), 2))
    for delta in (0.1, 0.2):
        missed, coverage = cwar_simulation("certified", delta=delta, grid=grid)
        assert missed <= delta + 4 * np.sqrt(delta * (1 - delta) / 800)
        assert coverage > 0.3  # and it is not empty


def test_the_literal_rule_misses_its_target_about_half_the_time():
    first, wide = cwar_simulation("first")
    suffix, narrow = cwar_simulation("suffix")
    assert 0.4 < first < 0.7 and suffix <= first and narrow <= wide


def conformal_simulation(target, alpha, sims=1500, n=60):
    key_s, key_y = jax.random.split(jax.random.key(4))
    score = jax.random.uniform(key_s, (sims, 2 * n))
    right = (jax.random.uniform(key_y, (sims, 2 * n)) < score).astype(jnp.float32)

    def one(s, y):
        options = {"test_score": s[n:]} if target == "selection" else {}
        rule = m.conformal_score_threshold(s[:n], y[:n], alpha=alpha, target=target, **options)
        return s[n:] >= rule.tau, y[n:]

    kept, right = (np.asarray(x) for x in jax.jit(jax.vmap(one))(score, right))
    return kept, right.astype(bool)


def test_conformal_targets_keep_their_promises():
    kept, right = conformal_simulation("positives", 0.1)
    # Rates of single rows, averaged over runs that each share a threshold: error from the runs.
    share = [k[r].mean() for k, r in zip(kept, right) if r.any()]
    assert np.mean(share) >= 0.9 - 4 * np.std(share) / np.sqrt(len(share))
    assert np.mean(share) <= 0.9 + 1 / 20 + 0.02  # no more than one rank too generous

    kept, right = conformal_simulation("negatives", 0.2)
    share = [k[~r].mean() for k, r in zip(kept, right) if (~r).any()]
    assert np.mean(share) <= 0.2 + 4 * np.std(share) / np.sqrt(len(share))
    assert np.mean(share) >= 0.1

    kept, right = conformal_simulation("selection", 0.3)
    wrong = [(~r[k]).mean() if k.any() else 0.0 for k, r in zip(kept, right)]
    assert np.mean(wrong) <= 0.3 + 4 * np.std(wrong) / np.sqrt(len(wrong))
    assert kept.any(1).mean() > 0.2  # and something is selected


def test_split_conformal_covers_new_values():
    values = np.random.default_rng(5).normal(size=(2000, 20))
    covered = np.mean(
        [v[19] <= float(m.conformal_threshold(v[:19], alpha=0.1).threshold) for v in values[:300]]
    )
    # Exactly 18 / 20 for continuous values.
    assert abs(covered - 0.9) < 4 * np.sqrt(0.09 / 300)


def test_a_calibrated_model_stays_below_the_null_quantile_as_often_as_stated():
    rng = np.random.default_rng(6)
    p = rng.random(200).astype(np.float32)
    null = m.ece_null_reference(p, key=KEY, num_bins=10, num_draws=1000)
    y = (rng.random((400, 200)) < p).astype(np.float32)
    ece = jax.jit(
        jax.vmap(lambda y: m.expected_calibration_error(p, y, num_bins=10))
    )(y)
    assert abs(np.mean(np.asarray(ece) <= float(null.quantile)) - 0.95) < 4 * np.sqrt(0.0475 / 400)
