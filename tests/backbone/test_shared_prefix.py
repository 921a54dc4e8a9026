"""One prefix for N continuations: the same values and LoRA gradients as N whole sequences."""

import jax
import jax.numpy as jnp
import numpy as np

from calibjax.backbone import decoder as passes
from calibjax.backbone import lora
from tests.tiny import tiny_decoder

# Compiled once for all tests of this file: small programs cost far more to compile than to run.
_shared = jax.jit(passes.shared_features)

PREFIX_LENGTHS = np.array([9, 4])
SUFFIX_LENGTHS = np.array([[6, 1, 3], [2, 6, 5]])


def _inputs(seed=0):
    rng = np.random.default_rng(seed)
    prefix = jnp.asarray(rng.integers(0, 259, (2, 9)), jnp.int32)
    suffix = jnp.asarray(rng.integers(0, 259, (2, 3, 6)), jnp.int32)
    return prefix, suffix


def _whole_sequences(prefix, suffix):
    """The six sequences spelled out, padded on the right."""
    rows, lengths = [], []
    for b in range(2):
        for n in range(3):
            own = suffix[b, n, : SUFFIX_LENGTHS[b, n]]
            rows.append(np.concatenate([prefix[b, : PREFIX_LENGTHS[b]], own]))
            lengths.append(len(rows[-1]))
    tokens = np.zeros((6, 15), np.int32)
    for row, ids in zip(tokens, rows):
        row[: len(ids)] = ids
    return jnp.asarray(tokens), jnp.asarray(lengths, jnp.int32)


def _adapter(config, **options):
    adapter = lora.Adapter(config, key=jax.random.key(3), **options)
    for number, name in enumerate(adapter.targets):
        # B starts at zero; a trained one is what the comparison must hold for.
        pair = getattr(adapter, name)
        pair.b[...] = 0.2 * jax.random.normal(jax.random.key(number), pair.b.shape, jnp.float32)
    return adapter


def test_shared_equals_independent_in_value_and_lora_gradient():
    decoder = tiny_decoder()
    adapter = _adapter(decoder.config, targets=".*")
    prefix, suffix = _inputs()
    tokens, lengths = _whole_sequences(prefix, suffix)
    # A fixed read-out of every number, so that no part of the gradient can hide.
    weight = jnp.asarray(np.random.default_rng(1).standard_normal((6, 32)), jnp.float32)

    def shared(adapter):
        out = passes.shared_features(
            decoder.module, prefix, PREFIX_LENGTHS, suffix, SUFFIX_LENGTHS, adapter=adapter
        ).reshape(6, -1)
        return jnp.sum(out * weight), out

    def independent(adapter):
        out = passes.features(decoder.module, tokens, lengths, adapter=adapter)
        return jnp.sum(out * weight), out

    (_, ours), gradient = jax.jit(jax.value_and_grad(shared, has_aux=True))(adapter)
    (_, theirs), expected = jax.jit(jax.value_and_grad(independent, has_aux=True))(adapter)
    # Only the order of float32 sums differs: 2e-6 measured, ten times as much allowed.
    assert _distance(ours, theirs) < 2e-5
    for leaf, other in zip(jax.tree.leaves(gradient), jax.tree.leaves(expected), strict=True):
        assert _distance(leaf, other) < 2e-5


def test_a_window_reaches_from_the_suffix_into_the_prefix():
    decoder = tiny_decoder(sliding_window=5)
    prefix, suffix = _inputs()
    ours = _shared(decoder.module, prefix, PREFIX_LENGTHS, suffix, SUFFIX_LENGTHS)
    theirs = decoder.features(*_whole_sequences(prefix, suffix))
    assert _distance(ours.reshape(6, -1), theirs) < 2e-5


def test_empty_and_padded_suffixes_are_finite_and_leave_the_others_alone():
    decoder = tiny_decoder()
    prefix, suffix = _inputs()
    full = _shared(decoder.module, prefix, PREFIX_LENGTHS, suffix, SUFFIX_LENGTHS)
    lengths = SUFFIX_LENGTHS.copy()
    lengths[0, 1] = 0
    some = _shared(decoder.module, prefix, PREFIX_LENGTHS, suffix, lengths)
    assert np.isfinite(some).all()
    kept = lengths > 0
    np.testing.assert_array_equal(some[kept], full[kept])
    alone = decoder.features(prefix, PREFIX_LENGTHS)
    np.testing.assert_allclose(some[0, 1], alone[0], rtol=2e-5, atol=2e-5)


def test_recomputation_changes_no_gradient_and_is_really_there():
    decoder = tiny_decoder()
    prefix, suffix = _inputs()

    lengths = SUFFIX_LENGTHS.copy()
    lengths[0, 1] = 0

    def loss(adapter, remat):
        out = passes.shared_features(
            decoder.module,
            prefix,
            PREFIX_LENGTHS,
            suffix,
            lengths,
            adapter=adapter,
            remat=remat,
        )
        return jnp.sum(jnp.sin(out))

    adapter = _adapter(decoder.config)
    # One suffix is empty: its gradient must be finite as well.
    run = jax.jit(jax.grad(loss), static_argnums=1)
    plain, again = (run(adapter, remat) for remat in ("none", "full"))
    for leaf, other in zip(jax.tree.leaves(plain), jax.tree.leaves(again), strict=True):
        assert np.isfinite(leaf).all() and _distance(leaf, other) < 2e-5
    for remat in ("none", "full"):
        program = str(jax.make_jaxpr(jax.grad(loss), static_argnums=1)(adapter, remat))
        assert ("checkpoint" in program or "remat" in program) == (remat == "full")


def test_the_last_block_is_not_part_of_the_features():
    """Its weights may be anything: the compiled pass does not read them."""
    decoder = tiny_decoder()
    tokens, lengths = _whole_sequences(*_inputs())
    before = decoder.features(tokens, lengths)
    decoder.module.last_block = jax.tree.map(lambda w: w * jnp.nan, decoder.module.last_block)
    decoder.module.norm.scale[...] = decoder.module.norm.scale[...] * jnp.nan
    np.testing.assert_array_equal(decoder.features(tokens, lengths), before)


def _distance(a, b):
    return np.linalg.norm(a - b) / np.linalg.norm(b)
