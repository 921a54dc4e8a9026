"""The start of the `fixed` head: a ridge regression, planted in the MLP as it is."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

from calibjax.forecaster.heads import probability
from calibjax.forecaster.model import ForecastModel, forecast_logits, standardize, standardized
from calibjax.forecaster.presets import get_preset
from calibjax.training import ridge


def sample(n: int = 120, dim: int = 200, signal: float = 2.0, seed: int = 0):
    """n rows of which three of `dim` coordinates matter, and t a little; five draws a row."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, dim)).astype(np.float32)
    t = rng.uniform(1, 2, n).astype(np.float32)
    logit = signal * (x[:, 0] + x[:, 1] - x[:, 2]) / 2 - 1.0 - (t - 1.5)
    p = 1 / (1 + np.exp(-logit))
    label = (rng.binomial(5, p) / 5).astype(np.float32)
    return x, t, label, [f"q{i // 3}" for i in range(n)], p


def loss(f, label):
    f = np.clip(f, 1e-6, 1 - 1e-6)
    return float(-np.mean(label * np.log(f) + (1 - label) * np.log1p(-f)))


def forecast(model, preset, x, t):
    logits = forecast_logits(model, jnp.asarray(x), jnp.asarray(t)[:, None], preset)
    return np.asarray(probability(logits))[:, 0]


@pytest.mark.parametrize("penalty", [0.3, 10.0, 1000.0])
@pytest.mark.parametrize("shape", [(60, 5), (40, 90)])
def test_ridge_equals_scikit_learn(penalty, shape):
    rng = np.random.default_rng(0)
    x = rng.normal(size=shape)
    label = rng.integers(0, 6, shape[0]) / 5
    ours = ridge.fit_ridge(x, label, penalty)
    # Soft labels are two weighted rows each.
    peer = LogisticRegression(C=1 / penalty, tol=1e-10, max_iter=10_000)
    both = np.concatenate([x, x])
    weight = np.concatenate([label, 1 - label])
    peer.fit(both, np.repeat([1, 0], len(x)), sample_weight=weight)
    np.testing.assert_allclose(ours.w, peer.coef_[0], atol=1e-5)
    assert ours.bias == pytest.approx(peer.intercept_[0], abs=1e-5)


@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_ridge_settles_where_features_separate_the_labels(scale):
    """Whole Newton steps jump back and forth there, further each time."""
    rng = np.random.default_rng(2)
    x = scale * rng.normal(size=(60, 100))
    label = (x[:, 0] > scale).astype(float)
    penalty = 0.01
    fitted = ridge.fit_ridge(x, label, penalty)
    p = expit(x @ fitted.w + fitted.bias)
    np.testing.assert_allclose(x.T @ (p - label) + penalty * fitted.w, 0, atol=1e-5 * scale)
    assert abs(np.sum(p - label)) < 1e-5


def test_ridge_meets_its_stationarity_condition():
    x, _, label, _, _ = sample()
    fitted = ridge.fit_ridge(x.astype(float), label, 5.0)
    p = 1 / (1 + np.exp(-(x @ fitted.w + fitted.bias)))
    np.testing.assert_allclose(x.T @ (p - label) + 5.0 * fitted.w, 0, atol=1e-6)
    assert abs(np.sum(p - label)) < 1e-6


def test_one_sided_labels_do_not_diverge():
    x = np.random.default_rng(0).normal(size=(30, 4))
    fitted = ridge.fit_ridge(x, np.zeros(30), 1.0)
    assert np.isfinite(fitted.w).all() and np.isfinite(fitted.bias)


@pytest.mark.parametrize("head", ["mlp", "linear"])
@pytest.mark.parametrize("method", ["calibrag", "calibrag_no_temperature"])
def test_the_head_computes_exactly_the_regression(head, method):
    preset = dataclasses.replace(get_preset("fixed", method), head=head)
    x, t, label, questions, _ = sample()
    model = ForecastModel(preset, x.shape[1], None, jax.random.key(0))
    standardize(model, x)
    h = np.asarray(standardized(model, x))
    spread = ridge.start_from_ridge(model, preset, h, t, label, questions)
    design = np.concatenate([h, ridge._waves(preset, t, h.shape[1])], axis=1)
    want = ridge.fit_ridge(design, label, design.shape[1] / spread**2)
    z = forecast_logits(model, jnp.asarray(x), jnp.asarray(t)[:, None], preset)[:, 0, 0]
    # float32 sums of 200 terms against float64.
    np.testing.assert_allclose(z, design @ want.w + want.bias, atol=2e-4)


@pytest.mark.parametrize("method", ["calibrag", "calibrag_multi"])
def test_the_start_is_better_than_a_constant_where_there_is_signal(method):
    preset = get_preset("fixed", method)
    x, t, label, questions, _ = sample(n=300)
    new_x, new_t, new_label, _, _ = sample(n=600, seed=1)
    model = ForecastModel(preset, x.shape[1], None, jax.random.key(0))
    standardize(model, x)
    h = np.asarray(standardized(model, x))
    ridge.start_from_ridge(model, preset, h, t, label, questions)
    base = loss(np.full(600, label.mean()), new_label)
    assert loss(forecast(model, preset, new_x, new_t), new_label) < base - 0.02


def test_the_start_is_a_constant_where_there_is_none():
    preset = get_preset("fixed")
    x, t, label, questions, _ = sample(n=150, signal=0.0)
    label = np.random.default_rng(0).permutation(label)
    model = ForecastModel(preset, x.shape[1], None, jax.random.key(0))
    standardize(model, x)
    spread = ridge.start_from_ridge(
        model, preset, np.asarray(standardized(model, x)), t, label, questions
    )
    assert spread <= 0.5
    new_x, new_t, new_label, _, _ = sample(n=400, signal=0.0, seed=1)
    f = forecast(model, preset, new_x, new_t)
    assert loss(f, new_label) < loss(np.full(400, label.mean()), new_label) + 0.01


def test_the_idle_units_of_the_head_can_still_learn():
    preset = get_preset("fixed")
    x, t, label, questions, _ = sample()
    model = ForecastModel(preset, x.shape[1], None, jax.random.key(0))
    standardize(model, x)
    ridge.start_from_ridge(model, preset, np.asarray(standardized(model, x)), t, label, questions)

    def total(model):
        return jnp.sum(forecast_logits(model, jnp.asarray(x), jnp.asarray(t)[:, None], preset))

    gradient = jax.grad(total)(model).head.kernels[-1][...]
    assert (np.abs(gradient) > 0).mean() > 0.8


def test_the_spread_is_the_smallest_within_a_standard_error_of_the_least_loss():
    """Recomputed with scikit-learn's regression and grouped folds taken from the rule's own."""
    x, _, label, questions, _ = sample(n=90, dim=20)
    ids, member = np.unique(questions, return_inverse=True)
    fold = np.random.default_rng(0).permutation(len(ids))[member] % ridge.FOLDS
    both = np.concatenate([label, 1 - label])
    mean, error = [], []
    for spread in ridge.SPREADS:
        of_row = np.empty(len(x))
        for k in range(ridge.FOLDS):
            train = np.tile(fold != k, 2)
            peer = LogisticRegression(C=spread**2 / x.shape[1], tol=1e-10, max_iter=10_000)
            twice, target = np.tile(x, (2, 1)), np.repeat([1, 0], len(x))
            peer.fit(twice[train], target[train], sample_weight=both[train])
            p = peer.predict_proba(x[fold == k])[:, 1]
            y = label[fold == k]
            of_row[fold == k] = -(y * np.log(p) + (1 - y) * np.log1p(-p))
        of_question = np.array([of_row[member == i].mean() for i in range(len(ids))])
        mean.append(of_question.mean())
        error.append(of_question.std(ddof=1) / np.sqrt(len(ids)))
    least = int(np.argmin(mean))
    want = next(s for s, m in zip(ridge.SPREADS, mean) if m <= mean[least] + error[least])
    assert want < ridge.SPREADS[least]
    assert ridge.choose_spread(x.astype(float), label.astype(float), questions) == want


def test_folds_keep_questions_whole_and_few_rows_are_no_error():
    x, _, label, _, _ = sample(n=12, dim=3)
    assert ridge.choose_spread(x, label, ["q"] * 12) == ridge.SPREADS[0]
    assert ridge.choose_spread(x, label, ["a"] * 6 + ["b"] * 6) in ridge.SPREADS


def test_large_sets_start_from_whole_questions_of_a_part():
    questions = [f"q{i // 7}" for i in range(3000)]
    kept = ridge._subset(questions)
    assert 900 < len(kept) <= ridge.MAX_ROWS
    inside = {questions[i] for i in kept}
    assert sum(question in inside for question in questions) == len(kept)
    np.testing.assert_array_equal(ridge._subset(questions[:50]), np.arange(50))
