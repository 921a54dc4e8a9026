"""The checkpoints of a run: which steps stay, which is the newest good one, and when disks fill up.

A step is verified before it is read and before an older one is deleted for it.
"""

import math
import os
import shutil
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from absl import logging

from calibjax.training import distributed
from calibjax.training.checkpoint_files import (
    CheckpointError,
    begin_write,
    find_fault,
    host_arrays,
    read_arrays,
    read_manifest,
)
from calibjax.training.disk_room import bytes_needed, full_error, is_full


class Checkpoints:
    """The steps under one directory: `<directory>/<step>/{state/, manifest.json}`.

    keep: how many of the newest steps stay, beside the best one by `metric` (lower is better).
    asynchronous: the copy to disk goes on while training does; what goes wrong with it is raised by
    the next `save` or `wait`, so no more than one save interval is trained in vain. With several
    processes all make the same calls, and process 0 writes.
    """

    def __init__(
        self, directory: str | os.PathLike, *, keep: int = 2, asynchronous: bool = False
    ):
        self.directory = Path(directory).absolute()  # orbax takes no relative paths
        self.keep = keep
        self.asynchronous = asynchronous
        self._writing: Future[None] | None = None

    def steps(self) -> list[int]:
        """Step numbers that have a directory, whole or not, ascending."""
        if not self.directory.is_dir():
            return []
        return sorted(int(path.name) for path in self.directory.iterdir() if path.name.isdigit())

    def save(self, step: int, state: Any, *, info: Mapping[str, Any], metric: float | None) -> Path:
        """Write, verify by reading back, then drop what is no longer kept.

        Raises OSError (ENOSPC) for a full disk, after one more try with only the newest and the
        best step kept.
        """
        self.wait()
        path = self.directory / str(step)
        if distributed.agree(self._is_done(path, metric)):
            return path
        info = {**info, "step": step, "metric": metric}
        arrays = host_arrays(path, state)
        if self.asynchronous:
            finish = begin_write(path, arrays, info=info)
            self._writing = Future()
            arguments = (self._writing, lambda: self._finish(path, finish))
            threading.Thread(target=_settle, args=arguments, name="checkpoint").start()
            return path
        try:
            self._finish(path, begin_write(path, arrays, info=info))
        except Exception as error:
            if not is_full(error):
                raise
            self._make_room(path, arrays, info, error)
        return path

    def wait(self) -> None:
        """Returns when nothing is being written; raises what went wrong with the last save."""
        writing, self._writing = self._writing, None
        if writing is not None:
            try:
                writing.result()
            except Exception as error:
                if is_full(error):
                    raise full_error(self.directory, 0, error) from None
                raise

    def _is_done(self, path: Path, metric: float | None) -> bool:
        """Written before: by a signal in mid-validation, or by a run that is being repeated."""
        if not path.exists() or find_fault(path) is not None:
            return False
        return metric is None or self._metric(int(path.name)) < math.inf

    def _finish(self, path: Path, finish: Callable[[], None]) -> None:
        finish()
        if not distributed.is_primary():
            return
        fault = find_fault(path)
        if fault:
            raise CheckpointError(f"checkpoint={path}: {fault} right after it was written")
        self._prune(self.keep)

    def _make_room(self, path: Path, arrays: Any, info: Any, error: Exception) -> None:
        """Another try with fewer old steps; with several processes the others are not asked."""
        self.remove_temporary()
        needed = bytes_needed(arrays)
        if distributed.is_joined() or not self.steps():
            raise full_error(path, needed, error) from None
        self._prune(1)
        try:
            self._finish(path, begin_write(path, arrays, info=info))
        except Exception as again:
            self.remove_temporary()
            raise (full_error(path, needed, again) if is_full(again) else again) from None

    def restore(self, template: Any) -> tuple[Any, dict[str, Any]]:
        """The newest good step as a tree like `template` (arrays or ShapeDtypeStructs), and its
        manifest. Damaged steps are passed over with one warning each; none left: CheckpointError.
        """
        return read_arrays(self.newest_good(), template)

    def newest_good(self) -> Path:
        """Directory of the newest verified step."""
        return self._first_good(list(reversed(self.steps())))

    def best(self) -> Path:
        """Directory of the verified step with the lowest metric; the newest one if none has any."""
        metrics = {step: self._metric(step) for step in self.steps()}
        return self._first_good(sorted(metrics, key=lambda step: (metrics[step], -step)))

    def remove_temporary(self) -> None:
        """Delete what a killed save left behind."""
        if distributed.is_primary():
            for path in self.directory.glob("*.tmp"):
                shutil.rmtree(path, ignore_errors=True)

    def _first_good(self, candidates: list[int]) -> Path:
        """Process 0 looks and tells: file systems may show the others another state."""
        found, faults = -1, []
        for step in candidates if distributed.is_primary() else ():
            fault = find_fault(self.directory / str(step))
            if fault is None:
                found = step
                break
            faults.append(f"checkpoint={self.directory / str(step)}: {fault}")
        found = distributed.agree(found)
        if found < 0:
            reason = "; ".join(faults) if faults else f"checkpoint={self.directory}: no step found"
            raise CheckpointError(f"{reason}; no good checkpoint left")
        for bad in faults:
            logging.warning("%s; using step %d", bad, found)
        return self.directory / str(found)

    def _metric(self, step: int) -> float:
        try:
            metric = read_manifest(self.directory / str(step))["metric"]
        except (OSError, ValueError, KeyError):
            return math.inf
        return math.inf if metric is None else float(metric)

    def _prune(self, keep: int) -> None:
        steps = self.steps()
        best = min(steps, key=lambda step: (self._metric(step), -step))
        for step in steps[:-keep]:
            if step != best:
                shutil.rmtree(self.directory / str(step))


def _settle(future: "Future[None]", work: Callable[[], None]) -> None:
    try:
        work()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(None)
