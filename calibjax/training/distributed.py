"""Several processes as one run: who they are, how they agree, how they leave.

Every process runs the same program on the same rows and holds its part of each batch. Process 0
alone writes, decides what depends on a file system, and speaks.
"""

import os
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

from calibjax.errors import input_error
from calibjax.training import signals

_JOBSET_PORT = 8476


class Cluster(NamedTuple):
    """Address of process 0 ("host:port"; None: the scheduler tells), how many, and which one."""

    coordinator: str | None
    num_processes: int
    process_id: int


class _Joined:
    cluster: Cluster | None = None


def detect(
    environ: Mapping[str, str],
    *,
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
) -> Cluster | None:
    """The cluster that this process belongs to, or None. Raises InputError for half of a setting.

    In this order: the three arguments; a Slurm step of several tasks; a Kubernetes JobSet, whose
    template sets JOBSET_NAME, REPLICATED_JOB_NAME and NUM_PROCESSES beside Kubernetes' own
    JOB_COMPLETION_INDEX.
    """
    given = (coordinator, num_processes, process_id)
    if any(value is not None for value in given):
        if coordinator is None or num_processes is None or process_id is None:
            fix = "--coordinator=HOST:PORT --num_processes=N --process_id=0..N-1"
            raise input_error("coordinator", coordinator or "", "all three flags or none", fix)
        return _checked(Cluster(coordinator, num_processes, process_id))
    if _number(environ, "SLURM_NTASKS") > 1 and "SLURM_STEP_NODELIST" in environ:
        return Cluster(None, _number(environ, "SLURM_NTASKS"), _number(environ, "SLURM_PROCID"))
    if "JOBSET_NAME" in environ and _number(environ, "NUM_PROCESSES") > 1:
        name, job = environ["JOBSET_NAME"], environ.get("REPLICATED_JOB_NAME", "train")
        host = f"{name}-{job}-0-0.{name}:{_JOBSET_PORT}"
        number = _number(environ, "JOB_COMPLETION_INDEX")
        return _checked(Cluster(host, _number(environ, "NUM_PROCESSES"), number))
    return None


def _checked(cluster: Cluster) -> Cluster:
    if not 0 <= cluster.process_id < cluster.num_processes:
        expected = f"an integer from 0 to num_processes - 1 = {cluster.num_processes - 1}"
        raise input_error("process_id", cluster.process_id, expected)
    return cluster


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "")
    return int(text) if text.isdecimal() else 0


def join(cluster: Cluster, *, heartbeat_seconds: int = 60) -> None:
    """Connects this process to the others; before anything else touches JAX.

    A process that dies takes the others with it after `heartbeat_seconds`. From here on a signal to
    one stops all of them at the same `signals.check()`.
    """
    import jax
    from jax.experimental import multihost_utils

    where: dict[str, Any] = {}
    if cluster.coordinator is not None:
        where = {
            "coordinator_address": cluster.coordinator,
            "num_processes": cluster.num_processes,
            "process_id": cluster.process_id,
        }
    jax.distributed.initialize(**where, heartbeat_timeout_seconds=heartbeat_seconds)
    _Joined.cluster = cluster
    signals.agree_through(multihost_utils.reached_preemption_sync_point)


def is_primary() -> bool:
    """Whether this process writes files and speaks; true when it is the only one."""
    return _Joined.cluster is None or _Joined.cluster.process_id == 0


def process_id() -> int:
    """Number of this process, 0 when it is the only one."""
    return 0 if _Joined.cluster is None else _Joined.cluster.process_id


def agree(number: int) -> int:
    """Process 0's number, on every process. All must call it."""
    if _Joined.cluster is None:
        return number
    import numpy as np
    from jax.experimental import multihost_utils

    return int(multihost_utils.broadcast_one_to_all(np.int32(number)))


def from_primary(tree: Any) -> Any:
    """Process 0's arrays, on every process: what each computed for itself may differ in a bit."""
    if _Joined.cluster is None:
        return tree
    from jax.experimental import multihost_utils

    return multihost_utils.broadcast_one_to_all(tree)


def barrier(name: str) -> None:
    """Waits until every process is here."""
    if _Joined.cluster is not None:
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices(name)


def leave_at_once(code: int) -> NoReturn:
    """Ends this process without waiting for the others, which a failed one would do for minutes."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def is_joined() -> bool:
    """Whether this process is one of several."""
    return _Joined.cluster is not None
