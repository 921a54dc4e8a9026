"""What the loss and the heads can learn, on synthetic features with known truth."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calibjax.forecaster.heads import probability
from calibjax.forecaster.model import ForecastModel, forecast_logits, standardize
from calibjax.forecaster.presets import get_preset
from calibjax.training.warmup import Rows, fit_head

DIM = 3
NO_WEIGHTS = jnp.ones(11)


def rows(n: int, truth, seed: int, draws: int = 40) -> tuple[Rows, np.ndarray]:
    """Features x, temperatures t and shares of `draws` decisions, each right with truth(x, t)."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, DIM)).astype(np.float32)
    t = rng.uniform(1, 2, n).astype(np.float32)
    p = truth(x, t)
    label = (rng.binomial(draws, p) / draws).astype(np.float32)
    return Rows(jnp.asarray(x), jnp.asarray(t), jnp.asarray(label)), p


def train(truth, *, method="calibrag", steps=300, learning_rate=1e-2, n=2000, **changes):
    changes |= dict(head_warmup_steps=steps, head_learning_rate=learning_rate)
    changes |= dict(head_weight_decay=0.0)
    preset = dataclasses.replace(get_preset("fixed", method), **changes)
    model = ForecastModel(preset, DIM, None, jax.random.key(0))
    data, _ = rows(n, truth, seed=1)
    held_out, p = rows(1500, truth, seed=2)
    standardize(model, np.asarray(data.features))
    model = fit_head(model, preset, data, held_out, class_weight_C=NO_WEIGHTS)

    def forecast(x, t):
        logits = forecast_logits(model, jnp.asarray(x), jnp.asarray(t)[:, None], preset)
        return np.asarray(probability(logits))[:, 0]

    return forecast, held_out, p


def careless_users_fail_on_hard_pages(x, t):
    """How much t hurts depends on x: no additive score in t can say so."""
    hard = 1 / (1 + np.exp(-2 * x[:, 0]))
    return 0.9 - 0.75 * hard * (t - 1)


@pytest.mark.parametrize("method", ["calibrag", "calibrag_multi"])
def test_the_trained_forecast_is_the_known_probability(method):
    forecast, held_out, p = train(careless_users_fail_on_hard_pages, method=method)
    f = forecast(held_out.features, held_out.temperature)
    # The mean over rows of |f - p|.
    assert np.abs(f - p).mean() < 0.03
    # And in each tenth of the rows by forecast, where errors of one sign would show.
    for part in np.array_split(np.argsort(f), 10):
        assert abs(f[part].mean() - p[part].mean()) < 0.03


def crossing(x, t):
    """Two kinds of page that swap places between t = 1 and t = 2."""
    side = np.tanh(3 * x[:, 0])
    return 0.5 + 0.4 * side * (1.5 - t) * 2


def test_the_mlp_head_lets_temperature_and_page_interact_and_a_linear_head_cannot():
    mlp, held_out, p = train(crossing)
    linear, _, _ = train(crossing, head="linear")
    x, t = np.asarray(held_out.features), np.asarray(held_out.temperature)
    error = {name: np.abs(f(x, t) - p).mean() for name, f in (("mlp", mlp), ("linear", linear))}
    assert error["mlp"] < 0.08 < 0.15 < error["linear"]
    pages = np.zeros((2, DIM), np.float32)
    pages[:, 0] = (-1.5, 1.5)
    low, high = (mlp(pages, np.full(2, t, np.float32)) for t in (1.05, 1.95))
    assert low[1] - low[0] > 0.5 and high[0] - high[1] > 0.5  # the ranking turns round
    for t in (1.05, 1.3, 1.95):
        order = np.argsort(linear(x[:50], np.full(50, t, np.float32)))
        np.testing.assert_array_equal(order, np.argsort(linear(x[:50], np.full(50, 1.5, "f4"))))


def test_without_temperature_the_forecast_is_the_average_over_users():
    forecast, held_out, _ = train(
        careless_users_fail_on_hard_pages, method="calibrag_no_temperature"
    )
    x = np.asarray(held_out.features)
    f = [forecast(x, np.full(len(x), t, np.float32)) for t in (1.0, 2.0)]
    np.testing.assert_array_equal(*f)
    want = careless_users_fail_on_hard_pages(x, np.full(len(x), 1.5))
    assert np.abs(f[0] - want).mean() < 0.04


def test_the_warm_up_keeps_its_best_step():
    """With pure noise every step away from the base rate is over-fitting."""
    forecast, held_out, _ = train(
        lambda x, t: np.full(len(x), 0.3), steps=400, learning_rate=1e-2, n=60
    )
    f = forecast(held_out.features, held_out.temperature)
    b = np.asarray(held_out.label)
    loss = -np.mean(b * np.log(f) + (1 - b) * np.log1p(-f))
    base = -(b.mean() * np.log(b.mean()) + (1 - b.mean()) * np.log1p(-b.mean()))
    assert loss < base + 0.03


def test_standardisation_makes_the_scale_of_features_irrelevant():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, DIM)).astype(np.float32)
    scale = np.array([1e-2, 1, 3e3], np.float32)
    preset = get_preset("fixed")
    logits = []
    for features in (x, x * scale + 100 * scale):
        model = ForecastModel(preset, DIM, None, jax.random.key(0))
        standardize(model, features)
        t = jnp.full((500, 1), 1.3)
        logits.append(forecast_logits(model, jnp.asarray(features), t, preset))
    # A mean of 100 standard deviations costs two of the seven digits.
    np.testing.assert_allclose(*logits, atol=2e-3)


def test_a_coordinate_that_never_moves_is_not_blown_up():
    x = np.random.default_rng(0).normal(size=(50, DIM)).astype(np.float32)
    x[:, 2] = 7.0
    model = ForecastModel(get_preset("fixed"), DIM, None, jax.random.key(0))
    standardize(model, x)
    assert float(model.scale[...][2]) > 5e-4
    x[:, 2] = 7.001  # the same but for rounding
    logits = forecast_logits(model, jnp.asarray(x), jnp.ones((50, 1)), get_preset("fixed"))
    assert np.isfinite(logits).all()
