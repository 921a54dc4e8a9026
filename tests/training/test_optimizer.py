import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calibjax.errors import InputError
from calibjax.training.optimizer import adamw, learning_rate_schedule


def test_linear_schedule_warms_up_and_ends_at_zero():
    rate = learning_rate_schedule("linear", peak=1.0, steps=100, warmup_steps=20)
    got = [float(rate(step)) for step in (0, 10, 20, 60, 100)]
    np.testing.assert_allclose(got, [0.0, 0.5, 1.0, 0.5, 0.0], atol=1e-6)


def test_cosine_schedule_starts_at_the_peak_without_warm_up():
    rate = learning_rate_schedule("cosine", peak=1.0, steps=100, warmup_steps=0)
    got = [float(rate(step)) for step in (0, 50, 100)]
    np.testing.assert_allclose(got, [1.0, 0.5, 0.0], atol=1e-6)


def test_impossible_schedules_are_refused():
    with pytest.raises(InputError, match="warmup_steps=500: expected .* 99; fix:"):
        learning_rate_schedule("linear", peak=1.0, steps=100, warmup_steps=500)
    with pytest.raises(InputError, match="schedule=step"):
        learning_rate_schedule("step", peak=1.0, steps=100, warmup_steps=0)


def test_one_step_is_adamw_with_decay_on_kernels_only():
    tx = adamw(0.1, weight_decay=0.1, clip_norm=1.0)
    params = {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2)}
    zeros = jax.tree.map(jnp.zeros_like, params)
    updates, _ = tx.update(zeros, tx.init(params), params)
    # No gradient: only weight decay moves, lr * wd * w, and biases do not decay.
    np.testing.assert_allclose(updates["kernel"], -0.01 * np.ones((2, 2)), rtol=1e-6)
    np.testing.assert_array_equal(updates["bias"], np.zeros(2))
    grads = {"kernel": jnp.full((2, 2), 0.1), "bias": jnp.full(2, -0.1)}
    updates, _ = tx.update(grads, tx.init(params), params)
    # Adam's first step has size lr in the direction of the sign, whatever the gradient's size.
    np.testing.assert_allclose(updates["kernel"], -0.1 - 0.01, rtol=1e-4)
    np.testing.assert_allclose(updates["bias"], 0.1, rtol=1e-4)


def test_gradients_are_clipped_by_their_global_norm():
    tx = adamw(1.0, weight_decay=0.0, clip_norm=1.0)
    params = {"a": jnp.zeros(3), "b": jnp.zeros(1)}
    grads = {"a": jnp.full(3, 100.0), "b": jnp.full(1, 100.0)}
    _, state = tx.update(grads, tx.init(params), params)
    moments = [leaf for leaf in jax.tree.leaves(state) if leaf.ndim]
    # First moments are 0.1 g: of clipped norm 0.1. Second ones 0.001 g^2: of g = 0.5 each.
    norms = sorted({round(float(jnp.abs(m).max()), 6) for m in moments})
    np.testing.assert_allclose(norms, [0.001 * 0.25, 0.1 * 0.5], rtol=1e-4)


def test_the_optimizer_runs_under_strict_promotion():
    assert jax.config.jax_numpy_dtype_promotion == "strict"
    rate = learning_rate_schedule("linear", peak=1e-3, steps=10, warmup_steps=2)
    tx = adamw(rate, weight_decay=0.01, clip_norm=1.0)
    params = {"a": jnp.ones((2, 2))}
    updates, _ = jax.jit(tx.update)(params, tx.init(params), params)
    assert updates["a"].dtype == jnp.float32
