"""int8 weights: how far off, how small, what they refuse, and that they are off by default."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from calibjax.backbone import decoder as passes
from calibjax.backbone import load_decoder, lora, quantize
from calibjax.errors import InputError
from calibjax.forecaster import Forecaster
from tests.backbone import checkpoints

FLOATS = st.floats(-1e3, 1e3, width=32)


@settings(max_examples=50, deadline=None)
@given(arrays.arrays(np.float32, (2, 5, 3), elements=FLOATS))
def test_a_weight_is_off_by_half_a_step_at_most(kernel):
    whole, scale = quantize.rounded(kernel)
    assert whole.dtype == np.int8 and whole.min() >= -127
    # One more rounding of each of the two float32 numbers.
    bound = 0.5 * scale[:, None] * (1 + 1e-5)
    assert (np.abs(kernel - whole * scale[:, None]) <= bound).all()


def test_outputs_that_are_zero_stay_zero():
    whole, scale = quantize.rounded(np.zeros((4, 2), np.float32))
    np.testing.assert_array_equal(whole * scale, 0.0)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    fields = checkpoints.config()
    path = tmp_path_factory.mktemp("int8")
    return checkpoints.save(path, fields, checkpoints.tensors(fields))


@pytest.fixture(scope="module")
def plain(directory):
    return load_decoder(directory)


@pytest.fixture(scope="module")
def small(directory):
    return load_decoder(directory, quantize="int8")


def test_whole_numbers_are_stored_for_projections_alone(plain, small):
    kinds = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(small.module):
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        kinds.setdefault(str(leaf.dtype), set()).add(name.removesuffix(".value"))
    assert {name.rpartition(".")[2] for name in kinds["int8"]} == {"kernel"}
    assert len(kinds["int8"]) == 2 * 7 and "embedding" in kinds["float32"]
    assert plain.module.blocks.mlp.up_proj.kernel_scale is None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_features_and_logits_are_those_of_the_rounded_weights(directory, plain, dtype):
    small = load_decoder(directory, quantize="int8", dtype=dtype)
    tokens, lengths = np.random.default_rng(0).integers(3, 259, (3, 20)), np.array([20, 9, 1])
    # The same arithmetic on weights that are multiplied out beforehand.
    module = jax.tree.map(lambda leaf: leaf, plain.module)
    for block, stored in ((module.blocks, small.module.blocks),):
        for name in lora.PROJECTIONS:
            room = "attention" if hasattr(block.attention, name) else "mlp"
            linear, kept = getattr(getattr(block, room), name), getattr(getattr(stored, room), name)
            whole = kept.kernel[...].astype(jnp.float32)
            linear.kernel[...] = whole * kept.kernel_scale[...][:, None]
    ids = jnp.asarray(tokens, jnp.int32)
    expected = jax.jit(passes.features)(module, ids, jnp.asarray(lengths))
    found = small.features(tokens, lengths)
    error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    # float32: the scale is applied after the sum, not before. bfloat16: its own 0.4 % a step.
    assert error < (2e-5 if dtype == "float32" else 0.05)
    off = np.linalg.norm(found - plain.features(tokens, lengths)) / np.linalg.norm(expected)
    assert 1e-4 < off < 0.1


def test_adapters_train_on_it_and_do_not_merge_into_it(small):
    adapter = lora.Adapter(small.config, key=jax.random.key(0), targets=".*")
    tokens, lengths = jnp.full((1, 5), 7, jnp.int32), jnp.asarray([5], jnp.int32)

    def loss(adapter):
        return jnp.sum(passes.features(small.module, tokens, lengths, adapter=adapter) ** 2)

    gradient = jax.jit(jax.grad(loss))(adapter)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    assert np.abs(gradient.q_proj.b[...]).max() > 0
    with pytest.raises(InputError, match="kernel type=int8: expected floating-point weights"):
        lora.merge(small.module, adapter)


def test_it_is_another_frozen_model_and_says_so(plain, small, tmp_path):
    assert small.sha256 == f"{plain.sha256}+int8"
    Forecaster(plain, key=jax.random.key(0)).save(tmp_path / "f")
    with pytest.raises(InputError, match=r"\+int8\): expected the weights that"):
        Forecaster.load(tmp_path / "f", backbone=small)


def test_other_widths_are_refused(directory):
    with pytest.raises(InputError, match="quantize=int4: expected int8 or None"):
        load_decoder(directory, quantize="int4")
