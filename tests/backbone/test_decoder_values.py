"""The decoder against the float64 reference, through real files."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calibjax.backbone import decoder as passes
from calibjax.backbone import load_decoder
from calibjax.errors import InputError
from calibjax.training.mesh import make_mesh, parse_axes
from tests.backbone import checkpoints, numpy_reference
from tests.tiny import tiny_decoder

ARCHITECTURES = {
    "grouped_untied": {},
    "tied": {"tie_word_embeddings": True},
    "one_kv_head_wide_heads": {"num_key_value_heads": 1, "head_dim": 16},
    "llama3_scaling": {"rope_scaling": checkpoints.LLAMA3_SCALING, "rope_theta": 500000.0},
    "new_rope_fields": {
        "rope_parameters": {**checkpoints.LLAMA3_SCALING, "rope_theta": 500000.0},
        "rope_theta": None,
    },
    "biases_everywhere": {"attention_bias": True},
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True},
    **checkpoints.FAMILIES,
}
LENGTHS = (1, 5, 23, 90)
# float32 sums of up to 48 terms in three blocks against float64: 1e-6 measured, 2e-5 allowed.
RELATIVE = 2e-5


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_features_and_logits_equal_the_float64_reference(name, tmp_path):
    fields = checkpoints.config(**ARCHITECTURES[name])
    tensors = checkpoints.tensors(fields)
    decoder = load_decoder(checkpoints.save(tmp_path, fields, tensors))
    tokens, lengths = _padded_rows(LENGTHS)
    features = decoder.features(tokens, lengths)
    logits = decoder.next_token_logits(tokens, lengths)
    for row, length in enumerate(lengths):
        ids = tokens[row, :length].tolist()
        expected = numpy_reference.features(fields, tensors, ids)
        assert np.linalg.norm(features[row] - expected) <= RELATIVE * np.linalg.norm(expected)
        expected = numpy_reference.logits(fields, tensors, ids)[-1]
        np.testing.assert_allclose(logits[row], expected, atol=1e-4)


def test_what_stands_in_the_padding_does_not_matter():
    decoder = tiny_decoder()
    tokens, lengths = _padded_rows((3, 7))
    other = np.where(np.arange(tokens.shape[1]) < lengths[:, None], tokens, 17)
    for run in (decoder.features, decoder.next_token_logits):
        np.testing.assert_array_equal(run(tokens, lengths), run(other, lengths))


def test_a_row_does_not_depend_on_its_neighbours():
    decoder = tiny_decoder()
    tokens, lengths = _padded_rows((9, 4, 6))
    alone = decoder.features(tokens[:1].repeat(3, axis=0), lengths[:1].repeat(3))
    np.testing.assert_array_equal(decoder.features(tokens, lengths)[0], alone[0])


def test_causality_shown_by_gradients():
    """The Jacobian of the prediction at position t with respect to every input vector.

    It is exactly 0 for inputs after t and not 0 for inputs up to t, whatever the inputs are: no
    finite set of examples could show as much.
    """
    module = tiny_decoder().module
    tokens = jnp.asarray(_padded_rows((8,))[0][:, :8], jnp.int32)
    table = module.embedding[...]

    def at(embedded_TD, length):
        changed = jax.tree.map(lambda leaf: leaf, module)
        # Every position has an id of its own, so that its row of the table is its input alone.
        changed.embedding[...] = table.at[:8].set(embedded_TD)
        ids = jnp.arange(8, dtype=jnp.int32)[None]
        return passes.features(changed, ids, length[None])[0].sum()

    gradient = jax.jit(jax.grad(at))
    for length in (1, 4, 8):
        size = np.abs(gradient(table[tokens[0]], jnp.int32(length))).max(axis=1)
        assert (size[:length] > 0).all()
        np.testing.assert_array_equal(size[length:], 0.0)


def test_tied_embeddings_are_one_array():
    """That the logits are h E^T is what the tied architecture above compares."""
    module = tiny_decoder(tie_embeddings=True).module
    vocabulary = [leaf.shape for leaf in jax.tree.leaves(module) if 259 in leaf.shape]
    assert vocabulary == [(259, 32)]
    untied = tiny_decoder(tie_embeddings=False).module
    vocabulary = [leaf.shape for leaf in jax.tree.leaves(untied) if 259 in leaf.shape]
    assert sorted(vocabulary) == [(32, 259), (259, 32)]


@pytest.mark.parametrize(
    ("tokens", "lengths", "name"),
    [
        ([[1, 259]], [2], "token id=259"),
        ([[1, -1]], [2], "token id=-1"),
        ([[1, 2]], [3], "lengths"),
        ([[1, 2]], [0], "lengths"),
        ([[1, 2]], [1, 1], "lengths"),
        ([[1.0, 2.0]], [1], "token_ids"),
    ],
)
def test_ids_and_lengths_out_of_range_are_refused(tokens, lengths, name):
    with pytest.raises(InputError, match=name):
        tiny_decoder().features(tokens, lengths)


def test_prompts_beyond_the_context_are_refused():
    decoder = tiny_decoder(max_positions=4)
    with pytest.raises(InputError, match="length=5: expected at most 4 tokens"):
        decoder.features([[1, 2, 3, 4, 5]], [5])


def test_bfloat16_weights_give_float32_results_near_the_float32_ones():
    tokens, lengths = _padded_rows((12, 5))
    exact = tiny_decoder().features(tokens, lengths)
    rough = tiny_decoder(dtype="bfloat16").features(tokens, lengths)
    assert rough.dtype == jnp.float32
    # bfloat16 keeps 8 bits: about 0.4 % a step, and some 20 steps in two blocks.
    assert 1e-4 < np.linalg.norm(rough - exact) / np.linalg.norm(exact) < 0.05


def _padded_rows(lengths, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 259, (len(lengths), max(lengths) + 3)), np.array(lengths)


def test_a_mesh_gets_a_copy_of_the_weights_on_every_device(tmp_path):
    fields = checkpoints.config()
    directory = checkpoints.save(tmp_path, fields, checkpoints.tensors(fields))
    mesh = make_mesh(parse_axes("data=8"))
    module = load_decoder(directory, mesh=mesh).module
    for leaf in jax.tree.leaves(module):
        assert leaf.sharding.is_fully_replicated and len(leaf.sharding.device_set) == 8
