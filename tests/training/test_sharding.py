"""Every array has its place on every mesh, and a mesh changes no result."""

import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from calibjax.backbone.decoder import DecoderModule
from calibjax.data.loader import Loader
from calibjax.errors import InputError
from calibjax.forecaster import Forecaster
from calibjax.perf.programs import count_collectives
from calibjax.training import sharding
from calibjax.training.checkpoint import Checkpoints
from calibjax.training.fit import prepare
from calibjax.training.mesh import default_axes, make_mesh, mesh_of, parse_axes
from calibjax.training.optimizer import optimizer
from calibjax.training.state import init_state
from calibjax.training.step import jit_train_step
from calibjax.trees import named_leaves
from tests.labelled import make_rows, small_preset
from tests.tiny import random_arrays, tiny_config, tiny_decoder

GOLDEN = Path(__file__).parent / "shardings.json"
MESHES = ("data=8", "fsdp=8", "data=2,fsdp=2,tensor=2")
# Sizes that 8 devices divide on every axis; biases and an own output projection, so that every
# rule has something to say.
FIELDS = dict(
    vocab_size=264, hidden_size=64, num_layers=3, num_heads=8, num_kv_heads=8, qkv_bias=True,
    output_bias=True, mlp_bias=True, tie_embeddings=False,
)  # fmt: skip
CONFIG = tiny_config(**FIELDS)
PRESET = small_preset(batch_size=8, lora_dropout=0.1)
ROWS = make_rows(num_questions=16)
KEY, NO_WEIGHTS = jax.random.key(0), jnp.ones(11)


def placed_decoder(mesh):
    """A decoder of seeded weights as `load_decoder(..., mesh=mesh)` places them."""
    decoder = tiny_decoder(**FIELDS)
    arrays = {
        path: sharding.put(array, sharding.sharding_of(path.replace(".", "/"), array.shape, mesh))
        for path, array in random_arrays(CONFIG).items()
    }
    decoder.module = DecoderModule(CONFIG, arrays)
    return decoder


def setup(axes: str, preset=PRESET):
    """Compiled step, its arguments on the mesh, and the layout."""
    mesh = make_mesh(parse_axes(axes))
    decoder = placed_decoder(mesh)
    made = Forecaster(decoder, preset, key=jax.random.key(0))
    # B starts at zero and would hide the gradient of A.
    made.model.adapter = jax.tree.map(lambda x: x + 0.01, made.model.adapter)
    graphdef, state = init_state(made.model, optimizer(preset))
    layout = sharding.layout(state, decoder.module, mesh)
    data = prepare(decoder, preset, ROWS)
    loader = Loader(data.groups, ROWS, batch_size=preset.batch_size * preset.accumulation)
    constant = sharding.put((KEY, NO_WEIGHTS), layout.whole)
    batch = sharding.put(loader.batch(0), layout.batch)
    arguments = (sharding.put(state, layout.state), decoder.module, batch, *constant)
    return mesh, jit_train_step(layout), (graphdef, preset, "none", *arguments), layout


@pytest.fixture(scope="module")
def meshes():
    """Per mesh: collectives of the compiled step, new state and metrics of one step."""
    found = {}
    for axes in ("data=1", *MESHES):
        mesh, step, arguments, layout = setup(axes)
        with jax.set_mesh(mesh):
            compiled = step.lower(*arguments).compile()
            state, metrics = compiled(*arguments[3:])
        placed = jax.tree.map(lambda leaf: leaf.sharding, state)
        same = jax.tree.map(lambda a, b, leaf: a.is_equivalent_to(b, leaf.ndim), placed,
                            layout.state, state)  # fmt: skip
        found[axes] = (
            count_collectives(compiled.as_text()),
            jax.device_get(state),
            jax.device_get(metrics),
            all(jax.tree.leaves(same)),
        )
    return found


def test_every_leaf_has_its_golden_place():
    """A change here moves memory and traffic of every user: look at it, then replace the file."""
    shapes = {}
    for axes in MESHES:
        mesh = make_mesh(parse_axes(axes))
        decoder = placed_decoder(mesh)
        made = Forecaster(decoder, PRESET, key=jax.random.key(0))
        _, state = init_state(made.model, optimizer(PRESET))
        leaves = named_leaves(decoder.module) | named_leaves(state)
        where = named_leaves(sharding.shardings(decoder.module, mesh))
        where |= named_leaves(sharding.shardings(state, mesh))
        shapes[axes] = {
            name: f"{where[name].spec} {list(where[name].shard_shape(leaf.shape))}"
            for name, leaf in leaves.items()
        }
    text = json.dumps(shapes, indent=1, sort_keys=True) + "\n"
    new = GOLDEN.with_name("shardings.new.json")
    if not GOLDEN.exists() or GOLDEN.read_text() != text:
        new.write_text(text)
    assert GOLDEN.exists() and GOLDEN.read_text() == text, f"compare {GOLDEN} with {new}"


def test_every_rule_is_needed():
    decoder = placed_decoder(make_mesh(parse_axes("data=8")))
    made = Forecaster(decoder, PRESET, key=jax.random.key(0))
    _, state = init_state(made.model, optimizer(PRESET))
    leaves = named_leaves(decoder.module) | named_leaves(state)
    for unneeded in range(len(sharding.RULES)):
        rules = [rule for number, rule in enumerate(sharding.RULES) if number != unneeded]
        with pytest.raises(InputError, match="no sharding rule covers it"):
            for name, leaf in leaves.items():
                sharding.spec_of(name, leaf.ndim, rules)


def test_a_leaf_without_rule_and_a_size_that_does_not_divide_are_named():
    mesh = make_mesh(parse_axes("fsdp=4,tensor=2"))
    with pytest.raises(InputError, match=r"params/head/gate \[2 dimensions\]: no sharding rule"):
        sharding.shardings({"params": {"head": {"gate": jnp.zeros((2, 2))}}}, mesh)
    odd = {"blocks": {"mlp": {"up_proj": {"kernel": jnp.zeros((3, 8, 7))}}}}
    with pytest.raises(InputError) as caught:
        sharding.shardings(odd, mesh)
    assert str(caught.value) == (
        "blocks/mlp/up_proj/kernel: size of dimension 2=7: expected a multiple of tensor=2; "
        "fix: another size of tensor in --mesh"
    )


def test_data_parallel_training_moves_gradients_and_nothing_else(meshes):
    """A replicated backbone is never gathered: all-reduces alone, few of them."""
    assert meshes["data=1"][0] == {}
    assert set(meshes["data=8"][0]) == {"all-reduce"}
    assert meshes["data=8"][0]["all-reduce"] <= 8


def test_divided_weights_are_gathered_and_activations_stay(meshes):
    """Two blocks of seven kernels, forward and backward; no activation changes its owner."""
    for axes in ("fsdp=8", "data=2,fsdp=2,tensor=2"):
        counts = meshes[axes][0]
        assert counts["all-gather"] >= 2 * 7
        assert "all-to-all" not in counts, counts


def test_what_comes_out_lies_as_what_went_in(meshes):
    assert all(same for *_, same in meshes.values())


@pytest.mark.parametrize("axes", MESHES)
def test_any_mesh_gives_the_loss_and_the_gradient_of_one_device(meshes, axes):
    """Float32 sums in another order: 1e-5 of the norm. The first moment is a tenth of the gradient;
    parameters after Adam would show the sign of vanishing entries."""
    _, one_state, one, _ = meshes["data=1"]
    _, state, metrics, _ = meshes[axes]
    np.testing.assert_allclose(metrics.loss, one.loss, rtol=1e-5)
    np.testing.assert_allclose(metrics.grad_norm, one.grad_norm, rtol=1e-5)
    assert metrics.weight == one.weight and metrics.ok
    ours, theirs = (
        np.concatenate([
            np.ravel(leaf) for name, leaf in named_leaves(s.opt_state).items() if "/mu/" in name
        ])
        for s in (state, one_state)
    )  # fmt: skip
    assert np.linalg.norm(theirs) > 0
    assert np.linalg.norm(ours - theirs) < 1e-5 * np.linalg.norm(theirs)


def test_micro_batches_on_a_mesh_give_the_gradient_of_one_device():
    preset = dataclasses.replace(PRESET, batch_size=4, accumulation=2, lora_dropout=0.0)
    losses = []
    for axes in ("data=1", "data=2,fsdp=2"):
        mesh, step, arguments, _ = setup(axes, preset)
        with jax.set_mesh(mesh):
            _, metrics = step(*arguments)
        losses.append((metrics.loss, metrics.grad_norm))
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)


def test_a_state_saved_on_one_mesh_is_restored_bit_for_bit_on_another(tmp_path, meshes):
    _, _, arguments, _ = setup("data=8")
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, arguments[3], info={}, metric=None)
    for axes in ("data=1", "data=2,fsdp=2,tensor=2"):
        _, _, (*_, template, _, _, _, _), layout = setup(axes)
        restored, _ = checkpoints.restore(template)
        for name, leaf in named_leaves(restored).items():
            assert leaf.sharding == named_leaves(layout.state)[name]
            np.testing.assert_array_equal(leaf, named_leaves(arguments[3])[name])


def test_features_do_not_depend_on_the_mesh():
    documents = [[{"title": f"T{i}", "text": "good " * (i + 1)} for i in range(3)]] * 3
    scores = []
    for axes in ("data=1", *MESHES):
        made = Forecaster(
            placed_decoder(make_mesh(parse_axes(axes))), PRESET, key=jax.random.key(0)
        )
        scores.append(made.score(["a?", "b?", "c?"], documents))
    for other in scores[1:]:
        np.testing.assert_allclose(other, scores[0], rtol=1e-5)


def test_a_batch_that_does_not_divide_is_refused_with_both_remedies():
    decoder = placed_decoder(make_mesh(parse_axes("data=8")))
    made = Forecaster(decoder, small_preset(batch_size=6), key=jax.random.key(0))
    with pytest.raises(InputError) as caught:
        made.fit(ROWS)
    assert str(caught.value) == (
        "batch_size=6: expected a multiple of 8, the number of parts of a batch on this mesh; "
        "fix: --config.batch_size=8, or --mesh=data=6"
    )


def test_mesh_flags_are_read_and_refused():
    assert parse_axes("fsdp=2,data=4") == {"data": 4, "fsdp": 2, "tensor": 1}
    for text, message in (
        ("dta=8", "fix: did you mean data"),
        ("data=0", "mesh: data=0: expected a positive integer"),
        ("data", "mesh: data=: expected a positive integer"),
    ):
        with pytest.raises(InputError, match=message):
            parse_axes(text)
    with pytest.raises(InputError, match="mesh=data=16: expected at most 8 devices, found sizes"):
        make_mesh(parse_axes("data=16"))


def test_a_backbone_is_divided_only_when_a_device_cannot_hold_it():
    assert default_axes(8_030_000_000, 8)["data"] == 8
    assert default_axes(70_000_000_000, 8) == {"data": 1, "fsdp": 8, "tensor": 1}


def test_arrays_without_a_mesh_lie_on_one_device():
    mesh = mesh_of({"a": jax.device_put(jnp.zeros(2), jax.devices()[3])})
    assert mesh.size == 1 and mesh.devices.ravel()[0] == jax.devices()[3]
    assert sharding.spec_of("blocks/mlp/up_proj/kernel", 3) == P(None, "fsdp", "tensor")
