"""The loop by itself: when it waits for the device, what it moves, how often it compiles."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calibjax.data.loader import Loader
from calibjax.forecaster import Forecaster
from calibjax.training import loop, sharding
from calibjax.training.fit import prepare
from calibjax.training.journal import Journal
from calibjax.training.loop import Run, train
from calibjax.training.mesh import make_mesh, parse_axes
from calibjax.training.optimizer import learning_rates, optimizer
from calibjax.training.state import init_state
from calibjax.training.step import jit_train_step
from calibjax.training.trackers import Several
from calibjax.trees import named_leaves
from tests.labelled import make_row, make_rows, small_preset
from tests.tiny import tiny_decoder

MESH = make_mesh(parse_axes("data=1"))
STEPS = 6


def rows_of_two_lengths():
    """Short and long documents: two buckets."""
    long = [
        make_row(f"long{q}", "p", f"Lake {q}?", "good " * 120, 1.5, 0.5) for q in range(8)
    ]
    return [*make_rows(num_questions=8, docs=1), *long]


def setup(decoder=None, **changes):
    """A run of a few steps on one device, and its first state; rows of the log go to a list."""
    decoder = decoder or tiny_decoder()
    preset = small_preset(**(dict(steps=STEPS, batch_size=4) | changes))
    rows = rows_of_two_lengths()
    made = Forecaster(decoder, preset, key=jax.random.key(0))
    graphdef, state = init_state(made.model, optimizer(preset))
    module = sharding.put(decoder.module, sharding.replicated(MESH))
    layout = sharding.layout(state, module, MESH)
    data = prepare(decoder, preset, rows)
    loader = Loader(data.groups, rows, batch_size=4)
    compiled = jit_train_step(layout)
    constant = sharding.put((jax.random.key(0), jnp.ones(11)), layout.whole)
    written = []
    journal = Journal(
        write=written.append,
        trackers=Several({}),
        row_ids=[f"{row.question_id}/{row.passage_id}" for row in rows],
        leaf_names=list(named_leaves(state.params)),
        learning_rates=learning_rates(preset),
        batches_per_epoch=loader.batches_per_epoch,
        max_bad_in_a_row=5,
        bad_batch=None,
    )
    run = Run(
        step=lambda state, batch: compiled(
            graphdef, preset, "none", state, module, batch, *constant
        ),
        loader=loader,
        put=lambda batch: sharding.put(batch, layout.batch),
        steps=STEPS,
        eval_every=STEPS,
        evaluate=lambda state: 1.0,
        validate_first=False,
        journal=journal,
        checkpoints=None,
        info={},
        watchdog=None,
    )
    return run, sharding.put(state, layout.state), compiled, written


def test_nothing_moves_in_silence_and_each_bucket_is_compiled_once():
    """Every copy between host and device is asked for; two lengths make two programs."""
    run, state, compiled, written = setup()
    lengths = {run.loader.plan(number).length for number in range(STEPS)}
    before = compiled._cache_size()
    with jax.set_mesh(MESH), jax.transfer_guard("disallow"):
        state, best = train(run, state, None)
    assert compiled._cache_size() - before == len(lengths) == 2
    assert [row["step"] for row in written if "loss" in row] == list(range(STEPS))
    assert best.step == 0 and int(state.step) == STEPS


def test_metrics_are_fetched_one_step_late(monkeypatch):
    """The next step is under way before the host waits for the one before."""
    run, state, _, _ = setup()
    events = []
    step, report = run.step, loop.report_step

    def counted(*arguments):
        events.append("step")
        return step(*arguments)

    def told(journal, sent, began):
        events.append(sent.step)
        return report(journal, sent, began)

    monkeypatch.setattr(loop, "report_step", told)
    train(run._replace(step=counted), state, None)
    assert events == ["step", "step", 0, "step", 1, "step", 2, "step", 3, "step", 4, 5]


def test_a_row_of_the_log_says_how_fast_and_how_full():
    run, state, _, written = setup()
    train(run, state, None)
    rows = [row for row in written if "loss" in row]
    for number, row in enumerate(rows):
        plan = run.loader.plan(number)
        useful = sum(run.loader.groups[group].length for group in plan.groups)
        assert row["tokens"] == useful
        padding = 1 - useful / (plan.batch_size * plan.length)
        assert row["padding"] == pytest.approx(padding, abs=1e-4)
        assert row["rows_per_second"] == pytest.approx(row["rows"] / row["seconds"], rel=0.02)
        assert row["tokens_per_second"] > 0 and row["memory_bytes"] > 1e6


def test_batches_come_in_the_order_of_their_numbers_from_any_start():
    run, _, _, _ = setup()
    for start in (0, 3):
        for number, batch in loop._batches(run.loader, start, STEPS):
            np.testing.assert_array_equal(batch.row_BNM, run.loader.batch(number).row_BNM)
    assert [number for number, _ in loop._batches(run.loader, 3, STEPS)] == [3, 4, 5]


def test_a_bfloat16_backbone_keeps_what_is_trained_and_the_loss_in_float32():
    run, state, _, written = setup(tiny_decoder(dtype="bfloat16"))
    dtypes = {leaf.dtype for leaf in jax.tree.leaves((state.params, state.opt_state))}
    batch = run.put(run.loader.batch(0))
    new_state, metrics = run.step(jax.tree.map(jnp.copy, state), batch)
    assert dtypes == {jnp.dtype("float32"), jnp.dtype("int32")}
    after = {leaf.dtype for leaf in jax.tree.leaves((new_state.params, new_state.opt_state))}
    assert after == dtypes and metrics.loss.dtype == metrics.grad_norm.dtype == jnp.float32
    exact, state32, _, _ = setup()
    _, wanted = exact.step(state32, batch)
    # Eight bits of mantissa in the backbone; the head and the loss add nothing to that.
    np.testing.assert_allclose(metrics.loss, wanted.loss, rtol=3e-2)


def test_the_log_shows_the_learning_rate_of_each_update():
    run, state, _, written = setup(warmup_steps=2, learning_rate=1e-3)
    train(run, state, None)
    rates = [row["learning_rate"] for row in written if "loss" in row]
    preset = small_preset(steps=STEPS, batch_size=4, warmup_steps=2, learning_rate=1e-3)
    np.testing.assert_allclose(rates, learning_rates(preset)[:STEPS], rtol=1e-6)
    assert rates[0] == 0.0 and max(rates) == pytest.approx(1e-3)
