"""The training loop: steps, metrics one step late, validation, checkpoints, exact resumption."""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax

from calibjax import progress
from calibjax.data.loader import Batch, Loader
from calibjax.training import signals
from calibjax.training.checkpoint import Checkpoints
from calibjax.training.journal import Journal, Sent, report_step, report_validation
from calibjax.training.state import TrainState
from calibjax.training.step import StepMetrics
from calibjax.training.watchdog import Watchdog


class Best(NamedTuple):
    """The state (host arrays) with the lowest validation loss so far."""

    loss: float
    step: int
    params: Any


class Run(NamedTuple):
    """What a run is made of.

    put: host batch -> device arrays. evaluate: state -> validation loss in nats per row. info:
    written into every checkpoint manifest. eval_every: steps between validations, which are also
    when a checkpoint is saved. validate_first: the restored step was saved before it could be
    validated.
    """

    step: Callable[[TrainState, Batch], tuple[TrainState, StepMetrics]]
    loader: Loader
    put: Callable[[Batch], Batch]
    steps: int
    eval_every: int
    evaluate: Callable[[TrainState], float]
    validate_first: bool
    journal: Journal
    checkpoints: Checkpoints | None
    info: Mapping[str, Any]
    watchdog: Watchdog | None


def train(run: Run, state: TrainState, best: Best | None) -> tuple[TrainState, Best]:
    """Steps from `state.step` to `run.steps`; returns the last state and the best one.

    Step n is dispatched before the metrics of step n - 1 are fetched, so the device never waits for
    the host. A signal saves the current step and lets `Preempted` pass. Batches whose loss or
    gradient is not finite are skipped and counted until there are too many (`journal`).
    """
    done = int(jax.device_get(state.step))
    pending: Sent | None = None
    began = time.perf_counter()
    try:
        if best is None or run.validate_first:
            best = _validate(run, state, done, best)
        began = time.perf_counter()
        shapes: set[Any] = set()
        with progress.bar(run.steps - done, "train", "steps") as advance:
            for step, batch in _batches(run.loader, done, run.steps):
                signals.check()
                _await_step(run.watchdog, batch, shapes)
                state, metrics = run.step(state, run.put(batch))
                done = step + 1
                note = ""
                if pending is not None:
                    began, note = _fetch(run, pending, began)
                pending = Sent(step, batch, metrics)
                advance(1, note)
                if done % run.eval_every == 0 or done == run.steps:
                    began, note = _fetch(run, pending, began)
                    pending = None
                    best = _validate(run, state, done, best)
                    began = time.perf_counter()
    except signals.Preempted as stop:
        if pending is not None:
            _fetch(run, pending, began)
        if run.checkpoints is not None:
            _save(run, state, done, None)
            run.checkpoints.wait()
            stop.args = (f"{stop} at step {done}, saved",)
        raise
    if run.checkpoints is not None:
        run.checkpoints.wait()
    return state, best


def _batches(loader: Loader, start: int, stop: int) -> Iterator[tuple[int, Batch]]:
    """Batches by number, made two steps ahead of the device in another thread."""
    import grain

    options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)
    numbers = grain.MapDataset.range(start, stop)
    return iter(numbers.map(lambda number: (number, loader.batch(number))).to_iter_dataset(options))


def _await_step(watchdog: Watchdog | None, batch: Batch, shapes: set[Any]) -> None:
    """A shape that has not been seen is compiled first, which may take long."""
    if watchdog is None:
        return
    shape = batch.packed.tokens_BT.shape
    if shape in shapes:
        watchdog.expect_step()
    else:
        watchdog.expect_long()
    shapes.add(shape)


def _fetch(run: Run, sent: Sent, began: float) -> tuple[float, str]:
    """Waits for a step and reports it; returns the time and a few words."""
    note = report_step(run.journal, sent, began)
    now = time.perf_counter()
    if run.watchdog is not None:
        run.watchdog.step_done(now - began)
    return now, note


def _validate(run: Run, state: TrainState, step: int, best: Best | None) -> Best:
    if run.watchdog is not None:
        run.watchdog.expect_long()
    loss = run.evaluate(state)
    if best is None or loss < best.loss:
        best = Best(loss, step, jax.device_get(state.params))
    report_validation(run.journal, step, loss, best.step)
    _save(run, state, step, loss)
    return best


def _save(run: Run, state: TrainState, step: int, loss: float | None) -> None:
    if run.checkpoints is not None:
        if run.watchdog is not None:
            run.watchdog.expect_long()
        run.checkpoints.save(step, state, info=run.info, metric=loss)
