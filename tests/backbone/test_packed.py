"""A query's documents in one row give what each whole sequence gives by itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calibjax.backbone import attention
from calibjax.backbone import decoder as passes
from calibjax.backbone import layers
from calibjax.backbone.decoder import features
from calibjax.backbone.lora import Adapter
from calibjax.backbone.packed import packed_features, packed_mask
from calibjax.data.batching import BatchPlan, Group, collate, reach_of
from tests.tiny import tiny_decoder

RNG = np.random.default_rng(0)


def ids(n: int) -> tuple[int, ...]:
    return tuple(RNG.integers(3, 259, n).tolist())


GROUPS = [
    Group(ids(9), (ids(7), ids(1), ids(12)), ((0,), (1,), (2,))),
    Group(ids(4), (ids(20),), ((3,),)),
]
PLAN = BatchPlan(length=48, batch_size=3, groups=(0, 1))


def adapter_with_effect(decoder) -> Adapter:
    adapter = Adapter(decoder.config, key=jax.random.key(1), rank=4, targets=".*_proj")
    # B starts at zero, where the gradient of A is zero too and would hide an error.
    return jax.tree.map(lambda x: x + 0.05, adapter)


def separate(module, adapter):
    """The four features from four plain sequences, padded to one length."""
    sequences = [group.prefix + suffix for group in GROUPS for suffix in group.suffixes]
    tokens = np.zeros((len(sequences), 48), np.int32)
    for i, sequence in enumerate(sequences):
        tokens[i, : len(sequence)] = sequence
    lengths = np.array([len(sequence) for sequence in sequences], np.int32)
    return features(module, jnp.asarray(tokens), jnp.asarray(lengths), adapter=adapter)


def together(module, adapter):
    packed = collate(GROUPS, PLAN, num_documents=3)
    return packed_features(module, jax.tree.map(jnp.asarray, packed), adapter=adapter)


def pick(features_BND):
    return jnp.concatenate([features_BND[0], features_BND[1, :1]])


@pytest.mark.parametrize("num_kv_heads, window", [(1, 0), (2, 0), (4, 0), (2, 6)])
def test_values_equal_those_of_separate_sequences(num_kv_heads, window):
    decoder = tiny_decoder(num_kv_heads=num_kv_heads, sliding_window=window)
    adapter = adapter_with_effect(decoder)
    got = pick(jax.jit(together)(decoder.module, adapter))
    # Sums of at most 100 float32 terms in another order.
    want = jax.jit(separate)(decoder.module, adapter)
    np.testing.assert_allclose(got, want, atol=2e-5, rtol=2e-5)


def test_adapter_gradients_equal_those_of_separate_sequences():
    decoder = tiny_decoder()
    weights = jnp.asarray(RNG.normal(size=(4, 32)), jnp.float32)

    def loss(adapter, run):
        return jnp.sum(weights * jnp.tanh(run(adapter)))

    adapter = adapter_with_effect(decoder)
    ours, theirs = (
        jax.jit(lambda a: jax.grad(loss)(a, run))(adapter)
        for run in (
            lambda a: pick(together(decoder.module, a)),
            lambda a: separate(decoder.module, a),
        )
    )
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs)):
        scale = float(jnp.abs(b).max())
        assert scale > 0
        np.testing.assert_allclose(a, b, atol=2e-5 * scale)


@pytest.mark.parametrize("window", [0, 150])
def test_keys_out_of_reach_change_neither_value_nor_gradient(window):
    """Rows of four chunks of queries, of which the last three leave keys out."""
    decoder = tiny_decoder(sliding_window=window)
    groups = [Group(ids(60), tuple(ids(n) for n in (64, 1, 50, 64, 64, 40, 64)), ((0,),) * 7)]
    reach = reach_of(groups)
    assert reach == attention.Reach(64, 64)
    assert reach.prefix + reach.own + attention.QUERIES_PER_CHUNK < 416
    weights = jnp.asarray(RNG.normal(size=(1, 7, 32)), jnp.float32)

    def loss(adapter, bound):
        plan = BatchPlan(length=416, batch_size=1, groups=(0,), reach=bound)
        packed = collate(groups, plan, num_documents=7)
        found = packed_features(decoder.module, packed, adapter=adapter)
        return jnp.sum(weights * jnp.tanh(found)), found

    adapter = adapter_with_effect(decoder)
    step = jax.jit(jax.grad(loss, has_aux=True), static_argnums=1)
    (ours, near), (theirs, far) = step(adapter, reach), step(adapter, None)
    # Sums of the same float32 terms in another order.
    np.testing.assert_allclose(near, far, atol=2e-5, rtol=2e-5)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs)):
        np.testing.assert_allclose(a, b, atol=2e-5 * float(jnp.abs(b).max()))


@pytest.mark.parametrize("window", [0, 6])
def test_block_l_minus_1_at_the_last_tokens_alone_changes_neither_value_nor_gradient(window):
    """Against the same block run for every token, whose outputs at those tokens are then read."""
    decoder = tiny_decoder(sliding_window=window)
    config, module = decoder.config, decoder.module
    packed = jax.tree.map(jnp.asarray, collate(GROUPS, PLAN, num_documents=3))
    mask_B1TT = packed_mask(packed.segments_BT)[:, None]
    near = attention.in_window(
        packed.positions_BT[:, None], packed.positions_BT[:, None], config.sliding_window
    )
    turns = passes.tables(config, packed.positions_BT)

    def whole(adapter):
        adapting = passes.Adapting(adapter)
        attend = passes.within_rows(config, mask_B1TT & near)
        x = passes.embed(module, packed.tokens_BT)
        x, _ = passes.run_stack(module, x, packed.positions_BT, attend, adapting)
        own = adapting.feature_layer(config)
        x, _ = layers.run_block(module.feature_block, config, x, turns, attend, own)
        return pick(jnp.take_along_axis(x, packed.last_BN[..., None], axis=1))

    weights = jnp.asarray(RNG.normal(size=(4, 32)), jnp.float32)

    def loss(adapter, run):
        found = run(adapter)
        return jnp.sum(weights * jnp.tanh(found)), found

    adapter = adapter_with_effect(decoder)
    ours, theirs = (
        jax.jit(lambda a: jax.grad(loss, has_aux=True)(a, run))(adapter)
        for run in (lambda a: pick(together(module, a)), whole)
    )
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5 * float(jnp.abs(b).max()))


def test_the_last_block_is_not_part_of_the_features():
    """Its weights may be anything: the compiled pass does not read them."""
    decoder = tiny_decoder()
    before = jax.jit(together)(decoder.module, None)
    decoder.module.last_block = jax.tree.map(lambda w: w * jnp.nan, decoder.module.last_block)
    decoder.module.norm.scale[...] = decoder.module.norm.scale[...] * jnp.nan
    np.testing.assert_array_equal(jax.jit(together)(decoder.module, None), before)


def test_documents_and_padding_do_not_see_each_other():
    """By gradient: a document's feature moves with its prefix and its own tokens, no others."""
    decoder = tiny_decoder()
    packed = jax.tree.map(jnp.asarray, collate(GROUPS, PLAN, num_documents=3))
    embedding = decoder.module.embedding[...]
    # Every place gets a token id of its own, so that the embedding's rows stand for places.
    own_ids = jnp.arange(packed.tokens_BT.size, dtype=jnp.int32).reshape(packed.tokens_BT.shape)
    packed = packed._replace(tokens_BT=own_ids)

    def feature(table, b, n):
        module = jax.tree.map(lambda x: x, decoder.module)
        module.embedding = type(module.embedding)(table)
        return packed_features(module, packed)[b, n].sum()

    gradient = jax.jit(jax.grad(feature))
    for b, n in [(0, 0), (0, 1), (0, 2), (1, 0)]:
        touched = np.abs(gradient(embedding, b, n)).sum(axis=1) > 0
        touched = touched[: own_ids.size].reshape(own_ids.shape)
        segments = np.asarray(packed.segments_BT)
        want = np.zeros_like(touched)
        want[b] = (segments[b] == 0) | (segments[b] == n + 1)
        np.testing.assert_array_equal(touched, want)


def test_rematerialisation_changes_no_gradient_and_is_there():
    decoder = tiny_decoder()
    adapter = adapter_with_effect(decoder)
    packed = jax.tree.map(jnp.asarray, collate(GROUPS, PLAN, num_documents=3))

    def loss(adapter, remat):
        features = packed_features(decoder.module, packed, adapter=adapter, remat=remat)
        return jnp.sum(jnp.tanh(features))

    plain, again = (
        jax.jit(lambda a, remat=remat: jax.grad(loss)(a, remat))(adapter)
        for remat in ("none", "full")
    )
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(again)):
        # The same sums, fused otherwise: of terms as large as a block's largest, each rounded.
        largest = np.abs(b).max(axis=(-2, -1), keepdims=True)
        assert (np.abs(a - b) <= 2e-6 * largest).all()
    assert "remat" in str(jax.make_jaxpr(lambda a: jax.grad(loss)(a, "full"))(adapter))
    assert "remat" not in str(jax.make_jaxpr(lambda a: jax.grad(loss)(a, "none"))(adapter))
