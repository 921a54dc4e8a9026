"""The training loop: steps, metrics one step late, validation, checkpoints, exact resumption."""

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from calibjax import progress
from calibjax.data.loader import Batch, Loader
from calibjax.training import signals
from calibjax.training.checkpoint import Checkpoints
from calibjax.training.state import TrainState
from calibjax.training.step import StepMetrics

MAX_SKIPPED_IN_A_ROW = 5


class TrainingError(RuntimeError):
    """Training cannot go on and a restart would only repeat it."""


class Best(NamedTuple):
    """The state (host arrays) with the lowest validation loss so far."""

    loss: float
    step: int
    params: Any


class Run(NamedTuple):
    """What a run is made of. row_ids, leaf_names: for the log and for error messages.

    evaluate: state -> validation loss in nats per row. log: called with every row of metrics.jsonl.
    info: written into every checkpoint manifest. eval_every: steps between validations, which are
    also when a checkpoint is saved. validate_first: the restored step was saved before it could be
    validated. bad_batch: where a batch that stops the run is written.
    """

    step: Callable[[TrainState, Batch], tuple[TrainState, StepMetrics]]
    loader: Loader
    steps: int
    eval_every: int
    schedule: optax.Schedule
    evaluate: Callable[[TrainState], float]
    validate_first: bool
    row_ids: Sequence[str]
    leaf_names: Sequence[str]
    log: Callable[[Mapping[str, Any]], None]
    checkpoints: Checkpoints | None
    info: Mapping[str, Any]
    bad_batch: Path | None


def train(run: Run, state: TrainState, best: Best | None) -> tuple[TrainState, Best]:
    """Steps from `state.step` to `run.steps`; returns the last state and the best one.

    Step n is dispatched before the metrics of step n - 1 are fetched, so the device never waits for
    the host. A signal saves the current step and lets `Preempted` pass. Batches whose loss or
    gradient is not finite are skipped and counted; 5 in a row, or more than 5 and more than 1 % of
    all batches so far, raise TrainingError.
    """
    done = int(jax.device_get(state.step))
    pending: tuple[Any, ...] | None = None
    try:
        if best is None or run.validate_first:
            best = _validate(run, state, done, best)
        with progress.bar(run.steps - done, "train", "steps") as advance:
            for step in range(done, run.steps):
                signals.check()
                began = time.perf_counter()
                batch = run.loader.batch(step)
                state, metrics = run.step(state, jax.device_put(batch))
                done = step + 1
                if pending is not None:
                    _report(run, *pending)
                pending = (step, batch, metrics, began)
                advance(1)
                if done % run.eval_every == 0 or done == run.steps:
                    _report(run, *pending)
                    pending = None
                    best = _validate(run, state, done, best)
    except signals.Preempted as stop:
        if pending is not None:
            _report(run, *pending)
        if run.checkpoints is not None:
            _save(run, state, done, None)
            stop.args = (f"{stop} at step {done}, saved",)
        raise
    return state, best


def _validate(run: Run, state: TrainState, step: int, best: Best | None) -> Best:
    loss = run.evaluate(state)
    if best is None or loss < best.loss:
        best = Best(loss, step, jax.device_get(state.params))
    run.log({"step": step, "validation_loss": loss, "best_step": best.step})
    _save(run, state, step, loss)
    return best


def _save(run: Run, state: TrainState, step: int, loss: float | None) -> None:
    if run.checkpoints is not None:
        run.checkpoints.save(step, state, info=run.info, metric=loss)


def _report(run: Run, step: int, batch: Batch, metrics: StepMetrics, began: float) -> None:
    values = jax.device_get(metrics)
    rows = _row_ids(run, batch)
    skipped = int(values.skipped)
    run.log(
        {
            "step": step,
            "epoch": step // run.loader.batches_per_epoch,
            "loss": float(values.loss),
            "grad_norm": float(values.grad_norm),
            "learning_rate": float(run.schedule(step - (skipped - (0 if values.ok else 1)))),
            "rows": len(rows),
            "skipped": skipped,
            "batch": hashlib.sha256("\n".join(rows).encode()).hexdigest()[:16],
            "seconds": round(time.perf_counter() - began, 4),
        }
    )
    allowed = max(MAX_SKIPPED_IN_A_ROW, (step + 1) // 100)
    if int(values.skipped_in_a_row) >= MAX_SKIPPED_IN_A_ROW or skipped > allowed:
        _stop(run, step, batch, rows, values)


def _stop(run: Run, step: int, batch: Batch, rows: list[str], values: StepMetrics) -> None:
    bad = [i for i, finite in enumerate(values.finite_leaves) if not finite]
    name = run.leaf_names[bad[0]] if bad else "the loss"
    place = ""
    if run.bad_batch is not None:
        arrays = batch.packed._asdict() | batch._asdict()
        np.savez(run.bad_batch, **{key: arrays[key] for key in arrays if key != "packed"})
        place = f"; batch written to {run.bad_batch}"
    raise TrainingError(
        f"step={step}: {name} is not finite for {int(values.skipped_in_a_row)} batches in a row "
        f"({int(values.skipped)} in all), rows {', '.join(rows[:8])}{place}"
    )


def _row_ids(run: Run, batch: Batch) -> list[str]:
    return [run.row_ids[row] for row in batch.row_BNM[batch.mask_BNM]]
