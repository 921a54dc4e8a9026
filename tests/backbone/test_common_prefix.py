"""Tokens that all prompts begin with are computed once: the same logits, keys and values."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calibjax.backbone import attention, continuation, lora
from tests.tiny import tiny_decoder

COMMON = 6
LENGTHS = np.array([12, 7, 9])


@functools.cache
def _prompts():
    tokens = np.random.default_rng(0).integers(0, 259, (3, 12))
    tokens[:, :COMMON] = tokens[0, :COMMON]
    return jnp.asarray(tokens, jnp.int32)


@pytest.mark.parametrize("common", [1, COMMON])
@pytest.mark.parametrize("window, adapted", [(0, False), (0, True), (5, False)])
def test_logits_and_caches_are_those_of_separate_rows(common, window, adapted):
    # A window of 5 tokens ends within the common ones for the first tokens of each row alone.
    decoder = tiny_decoder(sliding_window=window)
    adapter = lora.Adapter(decoder.config, key=jax.random.key(3)) if adapted else None
    if adapter is not None:
        for name in adapter.targets:
            pair = getattr(adapter, name)
            pair.b[...] = 0.2 * jax.random.normal(jax.random.key(1), pair.b.shape, jnp.float32)
    run = jax.jit(continuation.prefill, static_argnames="common")
    ours, theirs = (
        run(decoder.module, _prompts(), LENGTHS, adapter=adapter, common=n) for n in (common, 0)
    )
    for leaf, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert leaf.shape == other.shape
        # Only the order of float32 sums differs: 3e-7 measured; the factor covers larger models.
        np.testing.assert_allclose(leaf, other, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("common", [0, COMMON])
def test_attention_in_chunks_of_queries_changes_nothing(common, monkeypatch):
    decoder = tiny_decoder()

    def run(chunk):
        monkeypatch.setattr(attention, "QUERIES_PER_CHUNK", chunk)
        prefill = functools.partial(continuation.prefill, common=common)
        return jax.jit(prefill)(decoder.module, _prompts(), LENGTHS)

    # Chunks of 5 queries: the last one is shorter.
    for leaf, other in zip(*map(jax.tree.leaves, (run(5), run(128))), strict=True):
        np.testing.assert_allclose(leaf, other, rtol=2e-5, atol=2e-6)


def test_the_common_tokens_are_computed_once():
    decoder = tiny_decoder()

    def operations(common):
        run = jax.jit(functools.partial(continuation.prefill, common=common))
        cost = run.lower(decoder.module, _prompts(), LENGTHS).compile().cost_analysis()
        return cost["flops"]

    # 36 tokens of three rows, or 6 + 3 * 6 = 24; the last block's part stays as it is.
    assert operations(COMMON) < 0.8 * operations(0)
