"""Flags of a training run on its machine: devices, processes, memory, checkpoints, trackers."""

import dataclasses
import os
from pathlib import Path
from typing import Any

from absl import flags

from calibjax.errors import input_error
from launch._run_directory import RunDirectory

MESH = flags.DEFINE_string(
    "mesh",
    "auto",
    "devices by axis, such as data=4,fsdp=2: data and fsdp divide the batch, fsdp and tensor the "
    "weights; auto: all devices on data for a backbone of up to 9B parameters, else on fsdp",
)
DTYPE = flags.DEFINE_enum(
    "dtype",
    "float32",
    ["float32", "bfloat16"],
    "type of the frozen backbone; what is trained, the head and the loss are float32",
)
REMAT = flags.DEFINE_enum(
    "remat",
    "save_qkv_context_mlp",
    ["none", "dots", "save_qkv_context_mlp", "save_qkv_context", "full"],
    "what the backward pass recomputes, from the most memory to the least",
)
TRACKER = flags.DEFINE_string(
    "tracker", "", "tensorboard, wandb, mlflow or several by commas, beside OUT/metrics.jsonl"
)
KEEP = flags.DEFINE_integer(
    "keep", 2, "newest checkpoints to keep, beside the best one", lower_bound=1
)
ASYNC = flags.DEFINE_boolean(
    "async_checkpoints", False, "train on while a checkpoint is written (for slow file systems)"
)
BAD_BATCHES = flags.DEFINE_enum(
    "bad_batches",
    "skip",
    ["skip", "stop"],
    "what to do with a batch whose loss or gradient is not finite: skip and count it (five in a "
    "row stop the run), or stop at the first",
)
HANG_SECONDS = flags.DEFINE_float(
    "hang_seconds",
    300.0,
    "a step that takes longer, and longer than 20 usual ones, ends the process with exit code 134 "
    "(0: never)",
    lower_bound=0.0,
)
PEAK_TFLOPS = flags.DEFINE_float(
    "peak_tflops",
    None,
    "dense peak of one device in 10^12 operations a second, of which the utilisation (mfu) is a "
    "share; default: known for A100, H100, H200 and TPU v5 and v6, else no utilisation is told",
    lower_bound=1e-6,
)
COORDINATOR = flags.DEFINE_string(
    "coordinator", None, "HOST:PORT of process 0 (several processes; found by itself under Slurm "
    "and in the JobSet of launch/gke)",
)  # fmt: skip
NUM_PROCESSES = flags.DEFINE_integer("num_processes", None, "how many processes", lower_bound=1)
PROCESS_ID = flags.DEFINE_integer("process_id", None, "number of this one", lower_bound=0)
HEARTBEAT = flags.DEFINE_integer(
    "heartbeat_seconds", 60, "a process that is silent for so long ends the others", lower_bound=2
)
NAMES = (
    "mesh", "dtype", "remat", "tracker", "keep", "async_checkpoints", "bad_batches",
    "hang_seconds", "peak_tflops", "coordinator", "num_processes", "process_id",
    "heartbeat_seconds",
)  # fmt: skip
# A run may go on with other values of these; numbers change by rounding at most.
HARMLESS = tuple(name for name in NAMES if name != "dtype")


def join_processes() -> None:
    """Connects to the other processes of the run, if the flags or the scheduler name any."""
    from calibjax.training import distributed

    cluster = distributed.detect(
        os.environ,
        coordinator=COORDINATOR.value,
        num_processes=NUM_PROCESSES.value,
        process_id=PROCESS_ID.value,
    )
    if cluster is not None:
        distributed.join(cluster, heartbeat_seconds=HEARTBEAT.value)


def load_decoder(source: str) -> Any:
    """The backbone in --dtype on the devices of --mesh."""
    from calibjax import backbone
    from calibjax.training.mesh import make_mesh, parse_axes

    mesh = "auto" if MESH.value == "auto" else make_mesh(parse_axes(str(MESH.value)))
    return backbone.load_decoder(source, dtype=DTYPE.value, mesh=mesh)


def engine(out: RunDirectory, preset: Any) -> Any:
    """`training.engine.Engine` from the flags; trackers are opened by process 0 alone."""
    from calibjax.training import distributed
    from calibjax.training.engine import Engine
    from calibjax.training.trackers import open_trackers

    names = [name for name in str(TRACKER.value).split(",") if name]
    trackers = open_trackers(
        names if distributed.is_primary() else [],
        out.path,
        run_ids=out.noted("tracker_runs", {}),
    )
    if trackers.run_ids:
        out.note(tracker_runs=trackers.run_ids)
    trackers.log_hyperparameters(dataclasses.asdict(preset))
    return Engine(
        remat=str(REMAT.value),
        keep=KEEP.value,
        asynchronous=ASYNC.value,
        max_bad_in_a_row=1 if BAD_BATCHES.value == "stop" else Engine().max_bad_in_a_row,
        hang_seconds=HANG_SECONDS.value or None,
        peak_flops=None if PEAK_TFLOPS.value is None else PEAK_TFLOPS.value * 1e12,
        trackers=trackers,
    )


def finish(made: Any, fitted: Any) -> bool:
    """Ends the trackers; whether this process is the one that writes the report."""
    from calibjax.training import distributed

    made.trackers.log_summary(fitted._asdict())
    made.trackers.finish()
    return distributed.is_primary()


def rows(out: Any, path: str | None, name: str) -> list[Any]:
    """Labelled rows of supervision sets, or JSON-lines files of them (several by commas)."""
    from calibjax.data import supervision

    if not path:
        fix = "--data=runs/label/supervision, written by launch.label"
        raise input_error(name, "", "a supervision set", fix)
    whole: list[Any] = []
    for part in path.split(","):
        if Path(part).is_dir():
            whole += supervision.load(part, name=name)
        else:
            found = supervision.read_file(part, name=name)
            out.reject(found.rejected)
            whole += found.rows
    return whole


def check_flags() -> None:
    """Raises InputError for flags that no device is needed to refuse."""
    from calibjax.training.mesh import parse_axes
    from calibjax.training.trackers import PACKAGES

    if MESH.value != "auto":
        parse_axes(str(MESH.value))
    for name in filter(None, str(TRACKER.value).split(",")):
        if name not in PACKAGES:
            raise input_error("tracker", name, ", ".join(PACKAGES), "--tracker=tensorboard")
