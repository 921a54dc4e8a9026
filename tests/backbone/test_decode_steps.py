"""Generation passes: prefill and step by step equal one forward pass over the whole sequence."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calibjax.backbone import decoder as passes
from calibjax.backbone import lora
from tests.tiny import tiny_decoder

_prefill = jax.jit(passes.prefill)
_step = jax.jit(passes.decode_step)

LENGTHS = np.array([7, 3])
SAMPLES, STEPS = 3, 4


def _tokens():
    rng = np.random.default_rng(0)
    prompt = rng.integers(0, 259, (2, 7))
    return prompt, rng.integers(0, 259, (STEPS, 2, SAMPLES))


@pytest.mark.parametrize("adapted, window", [(False, 0), (True, 0), (False, 3)])
def test_every_step_equals_the_full_forward_pass(adapted, window):
    # A window of 3 tokens: the prompts are left behind before the last step.
    decoder = tiny_decoder(sliding_window=window)
    adapter = None
    if adapted:
        adapter = lora.Adapter(decoder.config, key=jax.random.key(0), targets=".*")
        for name in adapter.targets:
            pair = getattr(adapter, name)
            pair.b[...] = jnp.full(pair.b.shape, 0.1, jnp.float32)
    prompt, drawn = _tokens()
    prompt_ids = jnp.asarray(prompt, jnp.int32)
    logits, prefix = _prefill(decoder.module, prompt_ids, LENGTHS, adapter=adapter)
    cache = passes.empty_suffix_cache(decoder.config, 2, SAMPLES, STEPS + 2)
    full = jax.jit(partial(passes.next_token_logits, adapter=adapter))
    step = partial(_step, adapter=adapter)
    for b in range(2):
        expected = _full(full, decoder, prompt[b, : LENGTHS[b]])
        np.testing.assert_allclose(logits[b], expected, rtol=1e-4, atol=2e-5)
    for number, tokens in enumerate(drawn):
        logits, cache = step(
            decoder.module, jnp.asarray(tokens, jnp.int32), jnp.int32(number), prefix, cache
        )
        for b in range(2):
            for n in range(SAMPLES):
                ids = np.concatenate([prompt[b, : LENGTHS[b]], drawn[: number + 1, b, n]])
                expected = _full(full, decoder, ids)
                # The order of float32 sums differs, nothing else: 3e-6 measured.
                np.testing.assert_allclose(logits[b, n], expected, rtol=1e-4, atol=2e-5)


def _full(run, decoder, ids):
    padded = np.zeros((1, 12), np.int32)
    padded[0, : len(ids)] = ids
    return run(decoder.module, jnp.asarray(padded), jnp.asarray([len(ids)], jnp.int32))[0]


def test_empty_slots_and_padding_never_leak_into_the_logits():
    decoder = tiny_decoder()
    prompt, drawn = _tokens()
    _, prefix = _prefill(decoder.module, jnp.asarray(prompt, jnp.int32), LENGTHS)
    cache = passes.empty_suffix_cache(decoder.config, 2, SAMPLES, STEPS)
    noise = jax.tree.map(lambda c: jnp.full_like(c, 3.0), cache)
    beyond = jnp.arange(7, dtype=jnp.int32)[None, :] >= LENGTHS[:, None]
    dirty = prefix._replace(
        k_LBGPh=jnp.where(beyond[None, :, None, :, None], 5.0, prefix.k_LBGPh),
        v_LBGPh=jnp.where(beyond[None, :, None, :, None], 5.0, prefix.v_LBGPh),
    )
    tokens = jnp.asarray(drawn[0], jnp.int32)
    clean_logits, _ = _step(decoder.module, tokens, jnp.int32(0), prefix, cache)
    dirty_logits, _ = _step(decoder.module, tokens, jnp.int32(0), dirty, noise)
    np.testing.assert_array_equal(clean_logits, dirty_logits)


def test_bfloat16_caches_follow_the_backbone():
    decoder = tiny_decoder(dtype="bfloat16")
    prompt, drawn = _tokens()
    _, prefix = _prefill(decoder.module, jnp.asarray(prompt, jnp.int32), LENGTHS)
    assert prefix.k_LBGPh.dtype == jnp.bfloat16
    cache = passes.empty_suffix_cache(decoder.config, 2, SAMPLES, STEPS, dtype=jnp.bfloat16)
    tokens = jnp.asarray(drawn[0], jnp.int32)
    logits, cache = _step(decoder.module, tokens, jnp.int32(0), prefix, cache)
    assert logits.dtype == jnp.float32 and cache.k_LBNGSh.dtype == jnp.bfloat16
    assert np.isfinite(logits).all()
