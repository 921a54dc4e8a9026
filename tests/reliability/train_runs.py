"""`launch.train` on a tiny backbone, as processes that can be killed, and what they leave."""

import dataclasses
import hashlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import traverse_util

from calibjax.training.checkpoint import Checkpoints, find_fault, read_manifest
from tests.backbone import checkpoints as backbones
from tests.labelled import make_rows
from tests.launch.command import ROOT, command, environment

STEPS = 40
EVALUATIONS = 8  # every fifth step is validated and saved


def inputs(directory: Path) -> list[str]:
    """Backbone and rows on disk; returns the flags that name them."""
    fields = backbones.config()
    backbone = backbones.save(directory / "backbone", fields, backbones.tensors(fields))
    for name, count, seed in (("rows", 16, 0), ("validation", 4, 1)):
        lines = []
        for row in make_rows(num_questions=count, docs=2, seed=seed):
            own = dataclasses.replace(row, question_id=f"{name}-{row.question_id}")
            lines.append(json.dumps(dataclasses.asdict(own)))
        (directory / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    return [
        f"--backbone={backbone}",
        f"--data={directory / 'rows.jsonl'}",
        f"--validation_data={directory / 'validation.jsonl'}",
        f"--steps={STEPS}",
        f"--config.num_evaluations={EVALUATIONS}",
        "--config.batch_size=8",
    ]


def start(argv: list[str], cache: Path, *, script: Path | None = None, **extra: str) -> Any:
    """The command (or a script that wraps it) in a process group of its own."""
    return subprocess.Popen(
        command(script or "train", *argv),
        cwd=ROOT,
        env=environment(CALIBJAX_CACHE=str(cache), **extra),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(argv: list[str], cache: Path, *, code: int = 0, **extra: str) -> str:
    """Runs to the end and returns what it said."""
    with start(argv, cache, **extra) as process:
        _, err = process.communicate(timeout=1800)
    assert process.returncode == code, f"exit code {process.returncode}\n{err}"
    return err


def kill(process: Any) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()  # reads and closes what it said


def wait_until(condition: Callable[[], bool], process: Any, seconds: float = 900.0) -> bool:
    """Whether the condition came true while the process ran."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        if process.poll() is not None:
            return condition()
        time.sleep(0.002)
    raise AssertionError("waited in vain")


def log(out: Path) -> list[dict[str, Any]]:
    """Whole rows of metrics.jsonl."""
    path = out / "metrics.jsonl"
    data = path.read_bytes() if path.exists() else b""
    return [json.loads(line) for line in data.split(b"\n")[:-1]]


def steps(out: Path) -> list[dict[str, Any]]:
    """What is the same in every run of a step: number, batch, loss; each step once.

    Asserts that a step that was repeated told the same to the last bit.
    """
    found: dict[int, dict[str, Any]] = {}
    for row in log(out):
        if "loss" in row:
            told = {key: row[key] for key in ("step", "batch", "loss", "grad_norm", "rows")}
            assert found.setdefault(row["step"], told) == told
    return [found[number] for number in sorted(found)]


def arrays(out: Path, step: int | None = None) -> dict[str, np.ndarray]:
    """Arrays of a checkpoint by name (the newest one if no step is given), verified first."""
    from orbax.checkpoint import v1 as ocp

    kept = Checkpoints(out / "checkpoint")
    path = kept.newest_good() if step is None else out / "checkpoint" / str(step)
    assert find_fault(path) is None
    place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    wanted = {}
    for name, signature in read_manifest(path)["arrays"].items():
        dtype, shape = signature.split("[")
        sizes = tuple(int(n) for n in shape.rstrip("]").split(",") if n)
        wanted[name] = jax.ShapeDtypeStruct(sizes, np.dtype(dtype), sharding=place)
    tree = ocp.load(path / "state", traverse_util.unflatten_dict(wanted, sep="/"))
    return {k: np.asarray(v) for k, v in traverse_util.flatten_dict(tree, sep="/").items()}


def digest(out: Path, step: int | None = None) -> str:
    """SHA-256 of all arrays of a checkpoint by name, type, shape and bytes."""
    sha = hashlib.sha256()
    for name, array in sorted(arrays(out, step).items()):
        sha.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
    return sha.hexdigest()


def result(out: Path) -> dict[str, Any]:
    """What two runs to the end must share."""
    report = json.loads((out / "report.json").read_text())
    report.pop("seconds")
    return {"sha": digest(out), "steps": steps(out), "report": report}


def assert_whole(out: Path) -> None:
    """Every checkpoint verifies and nothing temporary is left."""
    kept = Checkpoints(out / "checkpoint")
    assert all(find_fault(out / "checkpoint" / str(step)) is None for step in kept.steps())
    assert not list(out.rglob("*.tmp"))


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


def start_two(argv: list[str], cache: Path, **options: Any) -> list[Any]:
    """Two processes of one run on this machine."""
    port = free_port()
    flags = [f"--coordinator=127.0.0.1:{port}", "--num_processes=2", "--heartbeat_seconds=10"]
    return [
        start([*argv, *flags, f"--process_id={number}"], cache, **options) for number in (0, 1)
    ]


def finish_all(processes: list[Any], timeout: float = 1800.0) -> list[tuple[int, str]]:
    """Exit code and stderr of each; all are gone afterwards, whatever happens."""
    try:
        told = [process.communicate(timeout=timeout)[1] for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                kill(process)
    return [(process.returncode, err) for process, err in zip(processes, told)]
