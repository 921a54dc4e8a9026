"""Policies of recomputation: the same gradient from less memory, in the order they are listed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calibjax.backbone.decoder import features
from calibjax.backbone.lora import Adapter
from calibjax.backbone.remat import POLICIES, check_policy
from calibjax.errors import InputError
from tests.tiny import tiny_decoder

DECODER = tiny_decoder(num_layers=4)
TOKENS = np.random.default_rng(0).integers(3, 259, (2, 48)).astype(np.int32)
LENGTHS = np.array([48, 31], np.int32)


@pytest.fixture(scope="module")
def runs():
    """Per policy: the gradient of a loss and the bytes kept for the backward pass."""
    adapter = Adapter(DECODER.config, key=jax.random.key(0), rank=4)
    adapter = jax.tree.map(lambda leaf: leaf + 0.02, adapter)
    found = {}
    for policy in POLICIES:

        def loss(adapter, policy=policy):
            got = features(DECODER.module, TOKENS, LENGTHS, adapter=adapter, remat=policy)
            return jnp.sum(jnp.sin(got))

        _, pull_back = jax.vjp(loss, adapter)
        kept = {id(leaf): leaf.nbytes for leaf in jax.tree.leaves(pull_back)}
        found[policy] = jax.device_get(pull_back(jnp.float32(1.0))), sum(kept.values())
    return found


@pytest.mark.parametrize("policy", POLICIES[1:])
def test_a_policy_changes_no_gradient(runs, policy):
    for ours, plain in zip(jax.tree.leaves(runs[policy]), jax.tree.leaves(runs["none"])):
        if np.ndim(ours):
            # The same sums, fused otherwise, each term rounded; derivatives of scores cancel, so
            # terms may be ten times a block's largest element.
            largest = np.abs(plain).max(axis=(-2, -1), keepdims=True)
            assert (np.abs(ours - plain) <= 1e-5 * largest).all()


def test_policies_are_listed_from_the_most_memory_to_the_least(runs):
    kept = [runs[policy][1] for policy in POLICIES]
    assert kept == sorted(kept, reverse=True) and len(set(kept)) == len(kept)


def test_an_unknown_policy_is_refused():
    with pytest.raises(InputError, match="remat=ful: .*; fix: did you mean full"):
        check_policy("ful")
