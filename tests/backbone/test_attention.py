"""Attention's own backward pass against the derivative of the formula."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calibjax.backbone import attention

# Two key-value heads, each read by three query heads.
B, N, T, S, H, G, WIDTH = 2, 3, 7, 11, 6, 2, 8
SCALE = WIDTH**-0.5


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape)


def some_mask():
    mask = np.random.default_rng(0).random((B, N, T, S)) < 0.6
    # One query sees a single key, whose probability does not move, and one sees none.
    mask[0, 0, 0] = np.arange(S) == 4
    mask[0, 0, 1] = False
    return mask


def arrays(dtype, mask, num_queries=T, num_keys=S):
    q = normal(1, B, N, num_queries, H, WIDTH)
    k, v = (normal(seed, B, N, G, num_keys, WIDTH) for seed in (2, 3))
    return *(jnp.asarray(x, dtype) for x in (q, k, v)), jnp.asarray(mask)


def formula(q, k, v, mask):
    """Softmax attention as it is written down, one key-value head for every query head."""
    q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
    k, v = (jnp.repeat(x, H // G, axis=2) for x in (k, v))
    scores = jnp.einsum("BNTHh,BNHSh->BNHTS", q, k, precision="highest") * SCALE
    probs = jax.nn.softmax(scores + jnp.where(mask, 0.0, -1e30)[:, :, None], axis=-1)
    return jnp.einsum("BNHTS,BNHSh->BNTHh", probs, v, precision="highest")


def ours(q, k, v, mask):
    return attention.attend(q, attention.KeyValues(k, v, mask), scale=SCALE)


def value_and_gradients(attend, q, k, v, mask):
    def loss(q, k, v):
        out = attend(q, k, v, mask)
        return jnp.sum(jnp.sin(out.astype(jnp.float32))), out

    gradients, out = jax.jit(jax.grad(loss, argnums=(0, 1, 2), has_aux=True))(q, k, v)
    return (out, *gradients)


def assert_close(got, wanted, tolerance):
    for x, exact in zip(got, wanted, strict=True):
        x, exact = (np.asarray(y, np.float32) for y in (x, exact))
        np.testing.assert_allclose(x, exact, rtol=0, atol=tolerance * np.abs(exact).max())


# Sums of up to S terms as large as the largest element, each rounded: by 2^-24 and 2^-9.
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-6), ("bfloat16", 2e-2)])
@pytest.mark.parametrize("mask", [some_mask(), np.tril(np.ones((1, 1, T, S), bool), 4)])
def test_value_and_gradient_are_those_of_the_formula(mask, dtype, tolerance):
    inputs = arrays(dtype, mask)
    got = value_and_gradients(ours, *inputs)
    assert all(x.dtype == dtype for x in got)
    assert_close(got, value_and_gradients(formula, *inputs), tolerance)


def test_the_gradient_of_chunks_within_reach_is_that_of_the_formula(monkeypatch):
    monkeypatch.setattr(attention, "QUERIES_PER_CHUNK", 3)
    reach = attention.Reach(prefix=2, own=4)
    places = np.arange(S)
    near = (places[None] < 2) | (places[:, None] - places[None] < 4)
    mask = (near & np.tril(np.ones((S, S), bool)))[None, None]

    def in_chunks(q, k, v, mask):
        return attention.attend_rows(q, attention.KeyValues(k, v, mask), reach, scale=SCALE)

    inputs = arrays("float32", mask, num_queries=S)
    got, wanted = (value_and_gradients(run, *inputs) for run in (in_chunks, formula))
    assert_close(got, wanted, 2e-6)


def test_a_constant_added_to_all_keys_moves_no_query_in_short_types_either():
    """Scores move alike, so that probabilities do not: the derivatives of a row's scores sum to 0,
    though each is rounded."""
    q, k, v, mask = arrays("bfloat16", some_mask())
    shift = np.zeros(k.shape, np.float32)
    shift[..., 0] = 64.0
    shifted = (k.astype(jnp.float32) + shift).astype(jnp.bfloat16)
    _, dq, _, _ = value_and_gradients(ours, q, shifted, v, mask)
    _, exact, _, _ = value_and_gradients(formula, q, shifted, v, mask)
    dq, exact = (np.asarray(x, np.float32) for x in (dq, exact))
    # What rounding d scores leaves of their sum, times the shift.
    left = 2**-9 * np.abs(exact[..., 1:]).max() * 64.0
    assert np.abs(dq - exact)[..., 0].max() < left


def test_no_probabilities_are_kept_for_the_backward_pass():
    q, k, v, mask = arrays("float32", some_mask())
    _, pull_back = jax.vjp(lambda q, k, v: ours(q, k, v, mask), q, k, v)
    largest = max(leaf.size for leaf in jax.tree.leaves(pull_back))
    assert largest <= max(q.size, k.size, mask.size) < B * N * H * T * S
