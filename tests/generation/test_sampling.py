"""One draw per row: right frequencies, exact truncation, no NaN at temperature 0."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calibjax.generation import sampling


def _draws(logits_V, temperature: float, count: int, **options) -> np.ndarray:
    """`count` tokens for one row of logits, from evenly random numbers."""
    uniform = jax.random.uniform(jax.random.key(0), (count, 2))
    logits_BV = jnp.broadcast_to(jnp.asarray(logits_V, jnp.float32)[None], (count, len(logits_V)))
    temperature_B = jnp.full((count,), temperature, jnp.float32)
    return np.asarray(jax.jit(sampling.sample)(uniform, logits_BV, temperature_B, **options))


def _softmax(logits_V: np.ndarray) -> np.ndarray:
    weights = np.exp(logits_V - logits_V.max())
    return weights / weights.sum()


def _logits(size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=size).astype(np.float32) * 2.0


def test_temperature_zero_is_argmax_and_leaves_its_neighbours_alone():
    """Bug case F23: logits [1, 2] with temperatures [0, 1]; and rows of all sorts beside."""
    logits = jnp.asarray([[1.0, 2.0], [1.0, 2.0], [2.0, 1.0]])
    uniform = jnp.asarray([[0.0, 0.0], [0.0, 0.0], [0.0, 0.9]])
    tokens = sampling.sample(uniform, logits, jnp.asarray([0.0, 1.0, 0.0]))
    assert tokens.tolist() == [1, 0, 0]
    log_prob, entropy = sampling.log_prob_and_entropy(logits, tokens)
    assert np.isfinite(log_prob).all() and np.isfinite(entropy).all()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("size", [7, 700])
def test_frequencies_are_those_of_the_softmax(temperature, size):
    logits = _logits(size)
    count = 40_000
    frequency = np.bincount(_draws(logits, temperature, count), minlength=size) / count
    expected = _softmax(logits.astype(np.float64) / temperature)
    # Total variation of an exact sampler is about sqrt(size / (2 pi count)): 0.005 and 0.05.
    assert np.abs(frequency - expected).sum() / 2 < 1.5 * np.sqrt(size / (2 * np.pi * count))


@pytest.mark.parametrize("size", [5, 300])
@pytest.mark.parametrize("top_k", [1, 3, 5, 1000])
def test_top_k_draws_from_the_k_largest_only(size, top_k):
    logits = _logits(size, 1)
    kept = np.argsort(-logits)[:top_k]
    drawn = set(_draws_top_k(logits, top_k).tolist())
    assert drawn <= set(kept.tolist())
    if top_k <= 5:
        assert drawn == set(kept.tolist())


def _draws_top_k(logits, top_k):
    uniform = jax.random.uniform(jax.random.key(1), (4000, 2))
    logits_BV = jnp.broadcast_to(jnp.asarray(logits)[None], (4000, len(logits)))
    return np.asarray(
        sampling.sample(uniform, logits_BV, jnp.full((4000,), 3.0, jnp.float32), top_k=top_k)
    )


@pytest.mark.parametrize("top_p", [0.01, 0.3, 0.9, 0.999, 1.0])
@pytest.mark.parametrize("top_k", [None, 20])
def test_top_p_keeps_the_smallest_set_that_holds_the_mass(top_p, top_k):
    rows = np.stack([_logits(500, seed) for seed in range(6)])
    rows -= rows.max(axis=1, keepdims=True)
    kept = sampling.truncate(jnp.asarray(rows), top_k=top_k, top_p=jnp.float32(top_p))
    for row, kept_row in zip(rows, np.asarray(kept)):
        order = np.argsort(-row)[:top_k]
        mass = np.cumsum(_softmax(row[order].astype(np.float64)))
        # 1e-6: at a mass within float32 rounding of top_p either answer is right.
        least = int(np.searchsorted(mass, top_p - 1e-6)) + 1
        most = int(np.searchsorted(mass, min(top_p + 1e-6, mass[-1]))) + 1
        count = np.isfinite(kept_row).sum()
        assert least <= count <= most
        assert set(np.flatnonzero(np.isfinite(kept_row))) == set(order[:count].tolist())


def test_ties_at_the_threshold_are_all_kept():
    logits = jnp.log(jnp.asarray([[0.4, 0.2, 0.2, 0.1, 0.1]]))
    scaled = logits - logits.max()
    assert np.isfinite(sampling.truncate(scaled, top_k=2)).tolist() == [[1, 1, 1, 0, 0]]
    kept = sampling.truncate(scaled, top_p=jnp.float32(0.5))
    assert np.isfinite(kept).tolist() == [[1, 1, 1, 0, 0]]


@pytest.mark.parametrize("temperature", [1e-30, 1e-6, 1e6])
@pytest.mark.parametrize("logits", [[0.0, 80.0, -80.0], [-jnp.inf, 1e4, -1e4], [5.0] * 3])
def test_extreme_logits_and_temperatures_give_possible_tokens(temperature, logits):
    tokens = _draws(logits, temperature, 64)
    possible = [i for i, logit in enumerate(logits) if np.isfinite(logit)]
    if temperature < 1.0:
        possible = [i for i in possible if logits[i] == max(logits)]
    assert set(tokens.tolist()) <= set(possible)


def test_numbers_at_the_ends_of_the_range_draw_only_what_has_mass():
    almost_one = np.nextafter(np.float32(1.0), np.float32(0.0))
    logits = jnp.full((2, 600), -jnp.inf).at[:, 300:310].set(0.0)
    uniform = jnp.asarray([[0.0, 0.0], [almost_one, almost_one]], jnp.float32)
    assert sampling.sample(uniform, logits, jnp.ones(2)).tolist() == [300, 309]


def test_log_probability_and_entropy_are_of_the_whole_distribution():
    rows = np.stack([_logits(1000, seed) * 3 for seed in range(4)])
    tokens = np.array([0, 10, 500, 999], np.int32)
    log_prob, entropy = sampling.log_prob_and_entropy(jnp.asarray(rows), jnp.asarray(tokens))
    probs = np.stack([_softmax(row.astype(np.float64)) for row in rows])
    # float32 sums over 1000 entries: relative error well below 1e-5.
    np.testing.assert_allclose(log_prob, np.log(probs[range(4), tokens]), rtol=1e-5)
    np.testing.assert_allclose(entropy, -(probs * np.log(probs)).sum(axis=1), rtol=1e-5)
