"""Pooling and padding of the encoder's pure functions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calibjax.backbone import bert, load_encoder
from tests.backbone import bert_checkpoints


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    return load_encoder(bert_checkpoints.write(tmp_path_factory.mktemp("bert"))).module


def inputs(seed=0, batch=3, length=9):
    rng = np.random.default_rng(seed)
    tokens = jnp.asarray(rng.integers(5, 50, (batch, length)), jnp.int32)
    return tokens, jnp.zeros_like(tokens)


def test_mean_pooling_leaves_padding_out():
    hidden = jnp.asarray([[[1.0], [3.0], [100.0]]])
    mask = jnp.asarray([[True, True, False]])
    assert bert.pool(hidden, mask, "mean").tolist() == [[2.0]]
    assert bert.pool(hidden.at[0, 2, 0].set(jnp.nan), mask, "mean").tolist() == [[2.0]]


def test_cls_pooling_takes_the_first_real_token_on_either_side():
    hidden = jnp.arange(8.0).reshape(2, 4, 1)
    mask = jnp.asarray([[False, False, True, True], [True, True, False, False]])
    assert bert.pool(hidden, mask, "cls").tolist() == [[2.0], [4.0]]


hidden_states = jax.jit(bert.hidden_states)


def test_rows_of_padding_stay_finite(module):
    tokens, types = inputs()
    mask = jnp.zeros(tokens.shape, bool)
    hidden = hidden_states(module, tokens, types, mask)
    for pooling in ("mean", "cls"):
        assert bool(jnp.isfinite(bert.pool(hidden, mask, pooling)).all())


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_on_either_side_changes_no_vector(module, side):
    tokens, types = inputs()
    whole = jnp.ones(tokens.shape, bool)
    want = hidden_states(module, tokens, types, whole)
    more = ((0, 0), (4, 0) if side == "left" else (0, 4))
    padded = jnp.pad(tokens, more, constant_values=7), jnp.pad(types, more, constant_values=1)
    mask = jnp.pad(whole, more)
    got = hidden_states(module, *padded, mask)
    for pooling in ("mean", "cls"):
        # float32 sums over 13 instead of 9 terms, the added ones exactly 0.
        np.testing.assert_allclose(
            bert.pool(got, mask, pooling), bert.pool(want, whole, pooling), rtol=1e-5, atol=1e-5
        )


def test_tokens_see_each_other_in_both_directions(module):
    tokens, types = inputs()
    mask = jnp.ones(tokens.shape, bool)
    before = hidden_states(module, tokens, types, mask)
    for place in (0, -1):
        after = hidden_states(module, tokens.at[:, place].add(1), types, mask)
        assert bool((jnp.abs(after - before).max(axis=-1) > 0).all())
