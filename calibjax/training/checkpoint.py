"""Checkpoints that are whole and true, or not there: orbax behind one small class.

orbax makes a checkpoint whole or invisible but does not notice a changed byte. So each step
directory holds `manifest.json` with size and SHA-256 of every file and of itself; a step is
verified before it is read and before an older one is deleted for it.
"""

import errno
import math
import os
import shutil
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import logging
from flax import traverse_util

from calibjax import storage, textfiles
from calibjax.errors import input_error
from calibjax.training import distributed
from calibjax.trees import named_leaves, with_leaves

# 2: the manifest holds its own hash.
FORMAT_VERSION = 2
# What a full disk, a quota and a limit on file sizes are called.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_MANIFEST = "manifest.json"
_ARRAYS = "state"


class CheckpointError(RuntimeError):
    """No usable checkpoint, or one that must not be written. Never answered by a fresh start."""


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
        arrays = _host_arrays(path, state)
        if self.asynchronous:
            finish = _begin(path, arrays, info=info)
            self._writing = Future()
            arguments = (self._writing, lambda: self._finish(path, finish))
            threading.Thread(target=_settle, args=arguments, name="checkpoint").start()
            return path
        try:
            self._finish(path, _begin(path, arrays, info=info))
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
                    raise _full(self.directory, 0, error) from None
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
        needed = _bytes_needed(arrays)
        if distributed.is_joined() or not self.steps():
            raise _full(path, needed, error) from None
        self._prune(1)
        try:
            self._finish(path, _begin(path, arrays, info=info))
        except Exception as again:
            self.remove_temporary()
            raise (_full(path, needed, again) if is_full(again) else again) from None

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


def write_arrays(path: Path, tree: Any, *, info: Mapping[str, Any]) -> None:
    """Write the leaves of `tree` and a manifest to directory `path`, atomically."""
    _begin(path, _host_arrays(path, tree), info=info)()


def _host_arrays(path: Path, tree: Any) -> dict[str, np.ndarray]:
    """Copies of the leaves by name: the next step may take the device's buffers for itself."""
    leaves = named_leaves(tree)
    arrays = {name: np.array(jax.device_get(leaf)) for name, leaf in leaves.items()}
    bad = [name for name, array in arrays.items() if not _finite(array)]
    if bad:
        raise CheckpointError(f"checkpoint={path}: {bad[0]} is not finite; nothing was written")
    return arrays


def _begin(
    path: Path, arrays: Mapping[str, np.ndarray], *, info: Mapping[str, Any]
) -> Callable[[], None]:
    """Starts the write, all processes together; the function that is returned ends it, alone."""
    from orbax.checkpoint import v1 as ocp

    temporary = path.with_name(f"{path.name}.tmp")
    if distributed.is_primary():
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        needed = _bytes_needed(arrays)
        if shutil.disk_usage(temporary).free < needed:  # orbax would tell it in pages
            shutil.rmtree(temporary)
            raise _full(path, needed, OSError(errno.ENOSPC, ""))
    distributed.barrier("checkpoint directory")
    tree = traverse_util.unflatten_dict(dict(arrays), sep="/")
    response = ocp.save_async(temporary / _ARRAYS, tree)

    def finish() -> None:
        response.result()
        if distributed.is_primary():
            _publish(path, temporary, arrays, info)

    return finish


def _publish(
    path: Path, temporary: Path, arrays: Mapping[str, np.ndarray], info: Mapping[str, Any]
) -> None:
    """Manifest, fsync, rename: before the rename there is no checkpoint, after it a whole one."""
    files = {name: _fingerprint(temporary / name) for name in _files(temporary)}
    signatures = {name: _signature(array) for name, array in arrays.items()}
    manifest = {"format": FORMAT_VERSION, **info, "arrays": signatures, "files": files}
    manifest["sha256"] = storage.sha256_json(manifest)
    storage.write_json(temporary / _MANIFEST, manifest)
    for name in files:
        _fsync(temporary / name)
    aside = path.with_name(f"{path.name}.old.tmp")
    if path.exists():
        os.replace(path, aside)
    os.replace(temporary, path)
    _fsync(path.parent)
    shutil.rmtree(aside, ignore_errors=True)


def _settle(future: "Future[None]", work: Callable[[], None]) -> None:
    try:
        work()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(None)


def is_full(error: BaseException) -> bool:
    """Whether a write failed for want of room; orbax tells it in words alone."""
    if isinstance(error, OSError) and error.errno in FULL:
        return True
    texts = ("No space left", "File too large", "quota exceeded", "RESOURCE_EXHAUSTED")
    return any(text in str(error) for text in texts)


def _bytes_needed(arrays: Mapping[str, np.ndarray]) -> int:
    """Bytes of a checkpoint on disk, with what its many small files take."""
    return sum(array.nbytes for array in arrays.values()) + 2**18


def _full(path: Path, needed: int, error: BaseException) -> OSError:
    if isinstance(error, OSError) and error.errno:
        number = error.errno
    else:
        number = errno.EFBIG if "File too large" in str(error) else errno.ENOSPC
    room = f", {needed / 2**20:.1f} MiB needed" if needed else ""
    return OSError(number, f"{os.strerror(number)}{room}", str(path))


def check_room(directory: Path, state: Any) -> None:
    """Raises InputError when the disk cannot hold three checkpoints of `state`."""
    directory = directory.absolute()
    needed = 3 * sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if free < needed:
        found = f"{free / 2**20:.1f} MiB free"
        expected = f"{needed / 2**20:.1f} MiB for three checkpoints"
        raise input_error("out", f"{directory} ({found})", expected, "free some space")


def read_arrays(path: Path, template: Any) -> tuple[Any, dict[str, Any]]:
    """Leaves as in `template` (shape, dtype, sharding) and the manifest. Does not verify.

    The directory may hold more leaves than the template asks for (an optimizer state), not fewer.
    """
    from orbax.checkpoint import v1 as ocp

    manifest = read_manifest(path)
    leaves = named_leaves(template)
    for name, leaf in leaves.items():
        # orbax would cast another type in silence and leave a missing array abstract.
        if manifest["arrays"].get(name) != _signature(leaf):
            found = manifest["arrays"].get(name, "missing")
            text = f"array {name} is {found}, not {_signature(leaf)}"
            raise CheckpointError(f"checkpoint={path}: {text}")
    context = ocp.Context()
    context.pytree.loading.partial_load = True
    with context:
        wanted = {name: _abstract(leaf) for name, leaf in leaves.items()}
        loaded = ocp.load(path / _ARRAYS, traverse_util.unflatten_dict(wanted, sep="/"))
    return with_leaves(template, traverse_util.flatten_dict(loaded, sep="/")), manifest


def read_manifest(path: Path) -> dict[str, Any]:
    """manifest.json of a step directory. Raises OSError or ValueError."""
    manifest = textfiles.read_json(path / _MANIFEST)
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        raise ValueError(f"{path / _MANIFEST}: not a manifest")
    return manifest


def find_fault(path: Path) -> str | None:
    """What is wrong with a step directory in a few words, or None when every byte is as written."""
    if not (path / _MANIFEST).is_file():
        return f"{_MANIFEST} is missing (unfinished save)"
    try:
        manifest = read_manifest(path)
    except (OSError, ValueError):
        return f"file {_MANIFEST} cannot be read"
    own = manifest.pop("sha256", None)
    if manifest.get("format") != 1 and own != storage.sha256_json(manifest):
        return f"file {_MANIFEST} differs from its own hash"
    if path.name.isdigit() and manifest.get("step") != int(path.name):
        return f"file {_MANIFEST} is that of step {manifest.get('step')}"
    for name, expected in manifest["files"].items():
        if not (path / name).is_file():
            return f"file {name} is missing"
        if _fingerprint(path / name) != expected:
            return f"file {name} differs from its manifest"
    return None


def _files(directory: Path) -> list[str]:
    paths = sorted(path for path in directory.rglob("*") if path.is_file())
    return [path.relative_to(directory).as_posix() for path in paths]


def _fingerprint(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": storage.sha256_file(path)}


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _finite(array: np.ndarray) -> bool:
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


def _signature(leaf: Any) -> str:
    return f"{leaf.dtype}{list(leaf.shape)}"


def _abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    sharding = getattr(leaf, "sharding", None)
    if sharding is None:
        sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
