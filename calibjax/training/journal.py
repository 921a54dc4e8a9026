"""What a run tells of itself: metrics.jsonl, trackers, the progress line, the stop on bad batches.
"""

import hashlib
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from calibjax.data.loader import Batch
from calibjax.training.step import StepMetrics
from calibjax.training.trackers import Several

MAX_BAD_IN_A_ROW = 5


class TrainingError(RuntimeError):
    """Training cannot go on and a restart would only repeat it."""


class Journal(NamedTuple):
    """How steps become rows. row_ids, leaf_names: for the log and for error messages.

    write: called with every row of metrics.jsonl. learning_rates: of every optimizer step. flops:
    operations that a step needs (`perf.flops`), by its number; peak_flops: operations a second of
    all devices together, None where it is not known (then no utilisation is told).
    max_bad_in_a_row: batches that are not finite before the run stops. bad_batch: where the one
    that stops it is written.
    """

    write: Callable[[Mapping[str, Any]], None]
    trackers: Several
    row_ids: Sequence[str]
    leaf_names: Sequence[str]
    learning_rates: np.ndarray
    batches_per_epoch: int
    flops: Callable[[int], float]
    peak_flops: float | None
    max_bad_in_a_row: int
    bad_batch: Path | None


class Sent(NamedTuple):
    """A step whose metrics have not been fetched yet: its number, batch and device metrics."""

    step: int
    batch: Batch
    metrics: StepMetrics


def report_step(journal: Journal, sent: Sent, began: float) -> str:
    """Fetches the metrics of a step, writes them down and returns a few words on the speed.

    began: when the step before was fetched (or the loop began), seconds of `time.perf_counter`.
    Raises TrainingError after too many batches whose loss or gradient is not finite.
    """
    values: StepMetrics = jax.device_get(sent.metrics)
    seconds = max(time.perf_counter() - began, 1e-9)
    rows = [journal.row_ids[row] for row in sent.batch.row_BNM[sent.batch.mask_BNM]]
    segments_BT = np.asarray(sent.batch.packed.segments_BT)
    tokens = int((segments_BT >= 0).sum())
    skipped = int(values.skipped)
    # Skipped batches do not advance the schedule.
    update = sent.step - (skipped - (0 if values.ok else 1))
    numbers = {
        "loss": float(values.loss),
        "grad_norm": float(values.grad_norm),
        "learning_rate": float(journal.learning_rates[update]),
        "rows": len(rows),
        "tokens": tokens,
        "padding": round(1.0 - tokens / segments_BT.size, 4),
        "skipped": skipped,
        "rows_per_second": round(len(rows) / seconds, 2),
        "tokens_per_second": round(tokens / seconds, 1),
        "memory_bytes": memory_bytes(),
    }
    note = ""
    if journal.peak_flops:
        numbers["mfu"] = float(f"{journal.flops(sent.step) / seconds / journal.peak_flops:.4g}")
        note = f"MFU {numbers['mfu']:.1%}, "
    epoch = sent.step // journal.batches_per_epoch
    row: dict[str, Any] = {"step": sent.step, "epoch": epoch, **numbers}
    row["batch"] = hashlib.sha256("\n".join(rows).encode()).hexdigest()[:16]
    row["seconds"] = round(seconds, 4)
    journal.write(row)
    journal.trackers.log({f"train/{k}": v for k, v in numbers.items()}, step=sent.step)
    allowed = max(journal.max_bad_in_a_row, (sent.step + 1) // 100)
    if int(values.skipped_in_a_row) >= journal.max_bad_in_a_row or skipped > allowed:
        _stop(journal, sent, rows, values)
    return (
        f"loss {numbers['loss']:.4f}, {numbers['rows_per_second']:.0f} rows/s, "
        f"{numbers['tokens_per_second']:.0f} useful tokens/s, padding {numbers['padding']:.0%}, "
        f"{note}{numbers['memory_bytes'] / 2**30:.1f} GiB"
    )


def report_validation(journal: Journal, step: int, loss: float, best_step: int) -> None:
    """Writes down the validation loss after `step` steps."""
    journal.write({"step": step, "validation_loss": loss, "best_step": best_step})
    journal.trackers.log({"validation/loss": loss}, step=step)


def memory_bytes() -> int:
    """Most memory in use so far, bytes: of the first device, or of this process on a CPU."""
    stats = jax.local_devices()[0].memory_stats()
    if stats and "peak_bytes_in_use" in stats:
        return int(stats["peak_bytes_in_use"])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _stop(journal: Journal, sent: Sent, rows: list[str], values: StepMetrics) -> None:
    bad = [i for i, finite in enumerate(values.finite_leaves) if not finite]
    name = journal.leaf_names[bad[0]] if bad else "the loss"
    place = ""
    if journal.bad_batch is not None:
        fields = sent.batch.packed._asdict() | sent.batch._asdict()
        arrays: dict[str, Any] = {k: x for k, x in fields.items() if isinstance(x, np.ndarray)}
        np.savez(journal.bad_batch, **arrays)
        place = f"; batch written to {journal.bad_batch}"
    raise TrainingError(
        f"step={sent.step}: {name} is not finite for {int(values.skipped_in_a_row)} batches in a "
        f"row ({int(values.skipped)} in all), rows {', '.join(rows[:8])}{place}"
    )
