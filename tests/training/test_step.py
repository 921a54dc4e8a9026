import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from calibjax.data.loader import Loader
from calibjax.forecaster import Forecaster
from calibjax.training import sharding
from calibjax.training.labelled import prepare
from calibjax.training.mesh import mesh_of
from calibjax.training.optimizer import adamw, optimizer
from calibjax.training.state import init_state
from calibjax.training.step import batch_logits, jit_train_step
from calibjax.trees import named_leaves
from tests.labelled import make_rows, small_preset
from tests.tiny import tiny_decoder

DECODER = tiny_decoder()
ROWS = make_rows()
KEY = jax.random.key(0)
NO_WEIGHTS = jnp.ones(11)


def setup(batch_size=4, **changes):
    """Preset, graph definition, state, step (state, batch) and loader; no dropout, lr 0.01."""
    fields = dict(lora_dropout=0.0, learning_rate=1e-2, weight_decay=0.1)
    fields |= dict(steps=1000, warmup_steps=0, batch_size=batch_size)
    preset = small_preset(**(fields | changes))
    made = Forecaster(DECODER, preset, key=jax.random.key(0))
    data = prepare(DECODER, preset, ROWS)
    graphdef, state = init_state(made.model, optimizer(preset))
    layout = sharding.layout(state, DECODER.module, mesh_of(DECODER.module))
    loader = Loader(data.groups, ROWS, batch_size=batch_size * preset.accumulation)
    compiled = jit_train_step(layout)

    def step(state, batch):
        return compiled(graphdef, preset, "none", state, DECODER.module, batch, KEY, NO_WEIGHTS)

    step.compiled = compiled
    return preset, graphdef, sharding.put(state, layout.state), step, loader


def copy(state):
    return jax.tree.map(jnp.copy, state)


@pytest.fixture(scope="module")
def usual():
    return setup()


def test_golden_single_step(usual):
    _, _, state, step, loader = usual
    new_state, metrics = step(copy(state), loader.batch(0))
    got = (float(metrics.loss), float(metrics.grad_norm), int(metrics.weight))
    update = sum(
        float(jnp.abs(a - b).sum())
        for a, b in zip(jax.tree.leaves(new_state.params), jax.tree.leaves(state.params))
    )
    message = f"golden values changed: {(*got, update)}; replace GOLDEN if that was meant"
    # Float32 sums in another order move the fifth digit at most.
    np.testing.assert_allclose((*got, update), GOLDEN, rtol=1e-3, err_msg=message)


GOLDEN = (0.740784, 1.137426, 12, 336.7942)


def test_steps_lower_the_loss(usual):
    _, _, state, step, loader = usual
    state, batch = copy(state), loader.batch(0)
    losses = []
    for _ in range(8):
        state, metrics = step(state, batch)
        losses.append(float(metrics.loss))
    assert losses[-1] < losses[0] - 0.02
    assert int(state.step) == 8


def test_frozen_means_frozen(usual):
    """No backbone leaf moves, decays, has a gradient or sits in the optimizer state."""
    _, _, state, step, loader = usual
    before = [np.array(leaf) for leaf in jax.tree.leaves(DECODER.module)]
    constants = [np.array(leaf) for leaf in jax.tree.leaves(state.constants)]
    params = [np.array(leaf) for leaf in jax.tree.leaves(state.params)]
    state = copy(state)
    for number in range(3):
        state, _ = step(state, loader.batch(number))
    for a, b in zip(before, jax.tree.leaves(DECODER.module)):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(constants, jax.tree.leaves(state.constants)):
        np.testing.assert_array_equal(a, b)
    assert all((a != np.asarray(b)).any() for a, b in zip(params, jax.tree.leaves(state.params)))
    names = set(named_leaves(state.params))
    assert {name.split("/")[0] for name in names} == {"adapter", "head", "temperature_kernel"}
    trained = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    held = sum(leaf.size for leaf in jax.tree.leaves(state.opt_state))
    counts = sum(leaf.ndim == 0 for leaf in jax.tree.leaves(state.opt_state))
    assert held == 2 * trained + counts  # two moments per trained value, and nothing else


def test_gradients_do_not_touch_the_backbone(usual):
    preset, graphdef, state, step, loader = usual
    jaxpr = jax.make_jaxpr(step)(state, loader.batch(0))
    out_shapes = {v.aval.shape for v in jaxpr.jaxpr.outvars}
    kernel = DECODER.module.blocks.mlp.gate_proj.kernel[...].shape
    assert kernel not in out_shapes and DECODER.module.embedding[...].shape not in out_shapes


def test_micro_batches_give_the_gradient_of_the_whole_batch(usual):
    """Groups of unequal numbers of rows: a mean of means would differ."""
    whole, split = usual, setup(batch_size=2, accumulation=2)
    batch = whole[4].batch(0)
    mask = batch.mask_BNM.copy()
    mask[0, 1:] = False
    batch = batch._replace(mask_BNM=mask)
    results = []
    for _, _, state, step, _ in (whole, split):
        new_state, metrics = step(copy(state), batch)
        results.append((metrics.loss, metrics.grad_norm, metrics.weight))
    # The same float32 sums in another order.
    np.testing.assert_allclose(results[0], results[1], rtol=1e-5)
    assert int(results[0][2]) == mask.sum()


def test_padding_and_masked_rows_change_nothing(usual):
    preset, graphdef, state, step, loader = usual
    batches = [loader.batch(number) for number in range(loader.batches_per_epoch)]
    short = min(batches, key=lambda batch: batch.mask_BNM.sum())
    noise = np.where(short.mask_BNM, short.label_BNM, 0.77).astype(np.float32)
    padding = short.packed.segments_BT < 0
    tokens = np.where(padding, 7, short.packed.tokens_BT).astype(np.int32)
    other = short._replace(label_BNM=noise, packed=short.packed._replace(tokens_BT=tokens))
    assert padding.any()
    for batch in (short, other):
        new_state, metrics = step(copy(state), batch)
        if batch is short:
            want = metrics.loss, metrics.grad_norm
    np.testing.assert_array_equal((metrics.loss, metrics.grad_norm), want)


def test_one_program_per_bucket_and_no_hidden_transfer(usual):
    _, _, state, step, loader = usual
    state, before = copy(state), step.compiled._cache_size()
    with jax.transfer_guard("disallow"):
        for number in range(2 * loader.batches_per_epoch):
            state, _ = step(state, jax.device_put(loader.batch(number)))
    used = {loader.plan(n).length for n in range(loader.batches_per_epoch)}
    assert step.compiled._cache_size() - before <= len(used) == 1


def poisoned(batch):
    label = batch.label_BNM.copy()
    label[batch.mask_BNM] = np.inf
    return batch._replace(label_BNM=label)


def test_a_batch_that_is_not_finite_is_skipped_and_counted(usual):
    _, _, state, step, loader = usual
    clean, with_bad = copy(state), copy(state)
    for number in (0, 1):
        clean, _ = step(clean, loader.batch(number))
    with_bad, _ = step(with_bad, loader.batch(0))
    with_bad, metrics = step(with_bad, poisoned(loader.batch(1)))
    assert not metrics.ok and not metrics.finite_leaves.all()
    assert int(with_bad.skipped) == int(with_bad.skipped_in_a_row) == 1
    assert int(with_bad.step) == 2
    # Dropout is off, so the next batch does what it would have done without the bad one.
    with_bad, metrics = step(with_bad, loader.batch(1))
    assert metrics.ok and int(with_bad.skipped_in_a_row) == 0 and int(with_bad.skipped) == 1
    for a, b in zip(
        jax.tree.leaves((clean.params, clean.opt_state)),
        jax.tree.leaves((with_bad.params, with_bad.opt_state)),
    ):
        np.testing.assert_array_equal(a, b)


def test_bad_batches_in_a_row_never_get_through(usual):
    _, _, state, step, loader = usual
    start = [np.array(leaf) for leaf in jax.tree.leaves(state.params)]
    state = copy(state)
    for number in range(7):
        state, metrics = step(state, poisoned(loader.batch(0)))
    assert int(metrics.skipped_in_a_row) == 7
    for a, b in zip(start, jax.tree.leaves(state.params)):
        np.testing.assert_array_equal(a, b)


def test_dropout_is_drawn_anew_each_step_and_is_off_without_a_key():
    preset, graphdef, state, step, loader = setup()
    wet = dataclasses.replace(preset, lora_dropout=0.5)
    made = Forecaster(DECODER, wet, key=jax.random.key(0))
    made.model.adapter = jax.tree.map(lambda x: x + 0.05, made.model.adapter)
    graphdef, state = init_state(made.model, adamw(0.0, weight_decay=0.0, clip_norm=1.0))
    args = (graphdef, state.params, state.constants, DECODER.module, loader.batch(0), wet)
    logits = jax.jit(lambda key: batch_logits(*args, key))
    assert (logits(jax.random.key(1)) != logits(jax.random.key(2))).any()
    dry = [batch_logits(*args) for _ in range(2)]
    np.testing.assert_array_equal(*dry)


def test_a_frozen_leaf_beside_adamw_neither_moves_nor_decays():
    """The trap: masking updates before AdamW lets weight decay through."""
    base = {"frozen": jnp.ones((2, 2)), "trained": jnp.ones((2, 2))}
    masked = optax.chain(
        optax.masked(optax.set_to_zero(), {"frozen": True, "trained": False}),
        optax.adamw(0.1, weight_decay=0.1),
    )
    grads = jax.tree.map(jnp.ones_like, base)
    with jax.numpy_dtype_promotion("standard"):
        updates, _ = masked.update(grads, masked.init(base), base)
    assert float(updates["frozen"][0, 0]) != 0.0  # what we must not do
    ours = adamw(0.1, weight_decay=0.1, clip_norm=1.0)
    trained = {"trained": base["trained"]}
    updates, state = ours.update({"trained": grads["trained"]}, ours.init(trained), trained)
    assert set(updates) == {"trained"}
    assert sum(leaf.size for leaf in jax.tree.leaves(state) if leaf.ndim) == 8
