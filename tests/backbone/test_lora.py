"""Adapters: scale, start, targets, dropout, merge."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from calibjax.backbone import decoder as passes
from calibjax.backbone import lora
from calibjax.errors import InputError
from tests.tiny import tiny_decoder

_run = jax.jit(passes.features)


def _inputs():
    rng = np.random.default_rng(0)
    return jnp.asarray(rng.integers(0, 259, (2, 9)), jnp.int32), jnp.asarray([9, 5], jnp.int32)


def _trained(config, **options):
    adapter = lora.Adapter(config, key=jax.random.key(1), **options)
    for number, name in enumerate(adapter.targets):
        pair = getattr(adapter, name)
        pair.b[...] = 0.2 * jax.random.normal(jax.random.key(number), pair.b.shape, jnp.float32)
    return adapter


def test_the_scale_is_alpha_over_rank_not_alpha():
    assert lora.scale_of(8, 16.0) == 2.0
    assert lora.scale_of(8, 16.0, rslora=True) == pytest.approx(5.656854, abs=1e-6)
    config = tiny_decoder().config
    assert lora.Adapter(config, key=jax.random.key(0), rank=8, alpha=16.0).scale == 2.0


def test_the_scale_is_what_the_features_see():
    """One target, one input: doubling alpha equals doubling B."""
    decoder = tiny_decoder()
    once = _trained(decoder.config, alpha=16.0)
    twice = _trained(decoder.config, alpha=32.0)
    for name in once.targets:
        pair = getattr(once, name)
        pair.b[...] = 2.0 * pair.b[...]
    a, b = (_run(decoder.module, *_inputs(), adapter=adapter) for adapter in (once, twice))
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_a_fresh_adapter_changes_nothing():
    decoder = tiny_decoder()
    adapter = lora.Adapter(decoder.config, key=jax.random.key(0), targets=".*")
    with_it = _run(decoder.module, *_inputs(), adapter=adapter)
    np.testing.assert_array_equal(with_it, decoder.features(*_inputs()))


def test_targets_are_a_pattern_over_whole_names():
    config = tiny_decoder().config
    make = lambda targets: lora.Adapter(config, key=jax.random.key(0), targets=targets)  # noqa
    assert make("q_proj|v_proj").targets == ("q_proj", "v_proj")
    assert make(".*").targets == lora.PROJECTIONS
    assert make("(gate|up|down)_proj").targets == ("gate_proj", "up_proj", "down_proj")
    with pytest.raises(InputError, match="targets='q'"):
        make("q")


def test_block_l_has_no_adapter_and_every_leaf_is_a_lora_parameter():
    config = tiny_decoder().config
    adapter = lora.Adapter(config, key=jax.random.key(0), rank=4, targets=".*")
    leaves = jax.tree.leaves(adapter)
    assert len(leaves) == 2 * len(lora.PROJECTIONS)
    assert {leaf.shape[0] for leaf in leaves} == {config.num_layers - 1}
    assert len(jax.tree.leaves(nnx.state(adapter, nnx.LoRAParam))) == len(leaves)
    assert {leaf.dtype for leaf in leaves} == {jnp.dtype("float32")}


def test_merged_weights_give_the_adapters_features():
    decoder = tiny_decoder()
    adapter = _trained(decoder.config, targets=".*", rslora=True)
    before = jax.tree.map(np.asarray, decoder.module)
    merged = lora.merge(decoder.module, adapter)
    expected = _run(decoder.module, *_inputs(), adapter=adapter)
    np.testing.assert_allclose(_run(merged, *_inputs()), expected, rtol=2e-5, atol=2e-5)
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(decoder.module), strict=True):
        np.testing.assert_array_equal(old, new)
    assert jax.tree.structure(merged) == jax.tree.structure(decoder.module)


def test_merging_adds_in_float32_and_casts_last():
    one = jnp.ones((1, 1), jnp.bfloat16)
    a, b = jnp.full((1, 1), 0.003, jnp.float32), jnp.ones((1, 1), jnp.float32)
    exact = lora.merged_kernel(one, a, b, 1.0)
    assert exact.dtype == jnp.float32
    assert float(exact[0, 0]) == pytest.approx(1.003, abs=1e-6)
    # A product that bfloat16 would round before the sum: 1/256 + 1/65536 is kept, so that the sum
    # 1.00392 rounds up to 1.0078125; adding the rounded 1/256 ties to even and stays 1.0.
    a = jnp.full((1, 1), 1 / 256 + 1 / 65536, jnp.float32)
    merged = lora.merged_kernel(one, a, b, 1.0).astype(jnp.bfloat16)
    assert float(merged[0, 0]) == 1.0078125
    assert float((one + (a @ b).astype(jnp.bfloat16))[0, 0]) == 1.0


def test_dropout_acts_only_where_a_key_is_given():
    decoder = tiny_decoder()
    adapter = _trained(decoder.config, dropout=0.5)
    first, second = (_run(decoder.module, *_inputs(), adapter=adapter) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    keys = [jax.random.key(seed) for seed in (0, 0, 1)]
    a, same, other = (
        _run(decoder.module, *_inputs(), adapter=adapter, dropout_key=key) for key in keys
    )
    np.testing.assert_array_equal(a, same)
    assert np.abs(a - other).max() > 1e-3 and np.abs(a - first).max() > 1e-3


def test_dropout_keeps_the_mean_and_the_rate():
    x = jnp.ones((400, 500), jnp.float32)
    for rate in (0.1, 0.5):
        dropped = lora._drop(x, rate, jax.random.key(0))
        # 200,000 draws: three standard deviations are 0.003.
        assert np.mean(dropped == 0.0) == pytest.approx(rate, abs=0.004)
        assert np.mean(dropped) == pytest.approx(1.0, abs=0.01)


def test_a_bfloat16_backbone_trains_float32_adapters():
    decoder = tiny_decoder(dtype="bfloat16")
    adapter = _trained(decoder.config, targets=".*")

    def loss(adapter):
        out = passes.features(decoder.module, *_inputs(), adapter=adapter)
        return jnp.sum(jnp.square(out))

    gradient = jax.jit(jax.grad(loss))(adapter)
    for leaf in jax.tree.leaves(gradient):
        assert leaf.dtype == jnp.float32 and np.isfinite(leaf).all() and np.abs(leaf).max() > 0


@pytest.mark.parametrize(
    ("options", "name"),
    [({"rank": 0}, "rank=0"), ({"dropout": 1.0}, "dropout=1.0"), ({"targets": "x"}, "targets")],
)
def test_impossible_adapters_are_refused(options, name):
    with pytest.raises(InputError, match=name):
        lora.Adapter(tiny_decoder().config, key=jax.random.key(0), **options)
