"""Attention's own backward pass against the derivative of the formula."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calibjax.backbone import attention

# Two key-value heads, each read by three query heads; values as wide as the keys.
B, N, T, S, H, G, WIDTH = 2, 3, 7, 11, 6, 2, 8
SCALE = WIDTH**-0.5


def arrays(dtype):
    rng = np.random.default_rng(0)
    shapes = (B, N, T, H, WIDTH), (B, N, G, S, WIDTH), (B, N, G, S, WIDTH)
    q, k, v = (jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes)
    mask = rng.random((B, N, T, S)) < 0.6
    # One query sees a single key, whose probability does not move.
    mask[0, 0, 0] = np.arange(S) == 4
    return q, k, v, jnp.asarray(mask)


def formula(q, k, v, mask):
    """Softmax attention as it is written down, one key-value head for every query head."""
    q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
    k, v = (jnp.repeat(x, H // G, axis=2) for x in (k, v))
    scores = jnp.einsum("BNTHh,BNHSh->BNHTS", q, k, precision="highest") * SCALE
    probs = jax.nn.softmax(jnp.where(mask[:, :, None], scores, -jnp.inf), axis=-1)
    return jnp.einsum("BNHTS,BNHSh->BNTHh", probs, v, precision="highest")


def value_and_gradients(attend, q, k, v, mask):
    def loss(q, k, v):
        out = attend(q, k, v, mask)
        return jnp.sum(jnp.sin(out.astype(jnp.float32))), out

    gradients, out = jax.grad(loss, argnums=(0, 1, 2), has_aux=True)(q, k, v)
    return (out, *gradients)


# Sums of up to S terms as large as the largest element, each rounded: by 2^-24 and 2^-9.
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("bfloat16", 2e-2)])
def test_value_and_gradient_are_those_of_the_formula(dtype, tolerance):
    def ours(q, k, v, mask):
        return attention.attend(q, attention.KeyValues(k, v, mask), scale=SCALE)

    got = value_and_gradients(ours, *arrays(dtype))
    wanted = value_and_gradients(formula, *arrays(dtype))
    for ours_x, x in zip(got, wanted, strict=True):
        assert ours_x.dtype == dtype
        ours_x, x = (np.asarray(y, np.float32) for y in (ours_x, x))
        np.testing.assert_allclose(ours_x, x, rtol=0, atol=tolerance * np.abs(x).max())


def test_no_probabilities_are_kept_for_the_backward_pass():
    q, k, v, mask = arrays("float32")

    def attend(q, k, v):
        return attention.attend(q, attention.KeyValues(k, v, mask), scale=SCALE)

    _, pull_back = jax.vjp(attend, q, k, v)
    largest = max(leaf.size for leaf in jax.tree.leaves(pull_back))
    assert largest <= max(q.size, k.size, mask.size) < B * N * H * T * S
