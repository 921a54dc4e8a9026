"""Checkpoints that are whole and true, or not there: orbax behind one small class.

orbax makes a checkpoint whole or invisible but does not notice a changed byte. So each step
directory holds `manifest.json` with size and SHA-256 of every file; a step is verified before it is
read and before an older one is deleted for it.
"""

import math
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import logging
from flax import traverse_util

from calibjax import storage, textfiles
from calibjax.training.state import named_leaves, with_leaves

FORMAT_VERSION = 1
_MANIFEST = "manifest.json"
_ARRAYS = "state"


class CheckpointError(RuntimeError):
    """No usable checkpoint, or one that must not be written. Never answered by a fresh start."""


class Checkpoints:
    """The steps under one directory: `<directory>/<step>/{state/, manifest.json}`.

    keep: how many of the newest steps stay, beside the best one by `metric` (lower is better).
    """

    def __init__(self, directory: str | os.PathLike, *, keep: int = 2):
        self.directory = Path(directory).absolute()  # orbax takes no relative paths
        self.keep = keep

    def steps(self) -> list[int]:
        """Step numbers that have a directory, whole or not, ascending."""
        if not self.directory.is_dir():
            return []
        return sorted(int(path.name) for path in self.directory.iterdir() if path.name.isdigit())

    def save(self, step: int, state: Any, *, info: Mapping[str, Any], metric: float | None) -> Path:
        """Write, verify by reading back, then drop what is no longer kept. Blocks until done."""
        path = self.directory / str(step)
        if path.exists() and find_fault(path) is None:
            # Written before: by a signal in mid-validation, or by a run that is being repeated.
            if metric is None or self._metric(step) < math.inf:
                return path
        write_arrays(path, state, info={**info, "step": step, "metric": metric})
        fault = find_fault(path)
        if fault:
            raise CheckpointError(f"checkpoint={path}: {fault} right after it was written")
        self._prune()
        return path

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
        for path in self.directory.glob("*.tmp"):
            shutil.rmtree(path, ignore_errors=True)

    def _first_good(self, candidates: list[int]) -> Path:
        faults: list[str] = []
        for step in candidates:
            path = self.directory / str(step)
            fault = find_fault(path)
            if fault is None:
                for bad in faults:
                    logging.warning("%s; using step %d", bad, step)
                return path
            faults.append(f"checkpoint={path}: {fault}")
        reason = "; ".join(faults) if faults else f"checkpoint={self.directory}: no step found"
        raise CheckpointError(f"{reason}; no good checkpoint left")

    def _metric(self, step: int) -> float:
        try:
            metric = read_manifest(self.directory / str(step))["metric"]
        except (OSError, ValueError, KeyError):
            return math.inf
        return math.inf if metric is None else float(metric)

    def _prune(self) -> None:
        steps = self.steps()
        best = min(steps, key=lambda step: (self._metric(step), -step))
        for step in steps[: -self.keep]:
            if step != best:
                shutil.rmtree(self.directory / str(step))


def write_arrays(path: Path, tree: Any, *, info: Mapping[str, Any]) -> None:
    """Write the leaves of `tree` and a manifest to directory `path`, atomically."""
    from orbax.checkpoint import v1 as ocp

    leaves = named_leaves(tree)
    bad = [name for name, leaf in leaves.items() if not _finite(leaf)]
    if bad:
        raise CheckpointError(f"checkpoint={path}: {bad[0]} is not finite; nothing was written")
    temporary = path.with_name(f"{path.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    ocp.save(temporary / _ARRAYS, traverse_util.unflatten_dict(leaves, sep="/"))
    files = {name: _fingerprint(temporary / name) for name in _files(temporary)}
    arrays = {name: _signature(leaf) for name, leaf in leaves.items()}
    manifest = {"format": FORMAT_VERSION, **info, "arrays": arrays, "files": files}
    storage.write_json(temporary / _MANIFEST, manifest)
    for name in files:
        _fsync(temporary / name)
    aside = path.with_name(f"{path.name}.old.tmp")
    if path.exists():
        os.replace(path, aside)
    os.replace(temporary, path)
    _fsync(path.parent)
    shutil.rmtree(aside, ignore_errors=True)


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


def _finite(leaf: jax.Array) -> bool:
    return leaf.dtype.kind != "f" or bool(np.isfinite(np.asarray(leaf)).all())


def _signature(leaf: Any) -> str:
    return f"{leaf.dtype}{list(leaf.shape)}"


def _abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    sharding = getattr(leaf, "sharding", None)
    if sharding is None:
        sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
