"""One checkpoint directory: arrays by orbax, and a manifest that tells whether a byte has changed.

orbax makes a checkpoint whole or invisible but does not notice a changed byte. So `manifest.json`
holds size and SHA-256 of every file and of itself.
"""

import errno
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import traverse_util

from calibjax import storage
from calibjax.reading import textfiles
from calibjax.training import distributed
from calibjax.training.disk_room import bytes_needed, full_error
from calibjax.trees import named_leaves, with_leaves

# 2: the manifest holds its own hash.
FORMAT_VERSION = 2
_MANIFEST = "manifest.json"
_ARRAYS = "state"


class CheckpointError(RuntimeError):
    """No usable checkpoint, or one that must not be written. Never answered by a fresh start."""


def write_arrays(path: Path, tree: Any, *, info: Mapping[str, Any]) -> None:
    """Write the leaves of `tree` and a manifest to directory `path`, atomically."""
    begin_write(path, host_arrays(path, tree), info=info)()


def host_arrays(path: Path, tree: Any) -> dict[str, np.ndarray]:
    """Copies of the leaves by name: the next step may take the device's buffers for itself."""
    leaves = named_leaves(tree)
    arrays = {name: np.array(jax.device_get(leaf)) for name, leaf in leaves.items()}
    bad = [name for name, array in arrays.items() if not _finite(array)]
    if bad:
        raise CheckpointError(f"checkpoint={path}: {bad[0]} is not finite; nothing was written")
    return arrays


def begin_write(
    path: Path, arrays: Mapping[str, np.ndarray], *, info: Mapping[str, Any]
) -> Callable[[], None]:
    """Starts the write, all processes together; the function that is returned ends it, alone."""
    from orbax.checkpoint import v1 as ocp

    temporary = path.with_name(f"{path.name}.tmp")
    if distributed.is_primary():
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        needed = bytes_needed(arrays)
        if shutil.disk_usage(temporary).free < needed:  # orbax would tell it in pages
            shutil.rmtree(temporary)
            raise full_error(path, needed, OSError(errno.ENOSPC, ""))
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
        storage.sync(temporary / name)
    aside = path.with_name(f"{path.name}.old.tmp")
    if path.exists():
        os.replace(path, aside)
    os.replace(temporary, path)
    storage.sync(path.parent)
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


def _finite(array: np.ndarray) -> bool:
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


def _signature(leaf: Any) -> str:
    return f"{leaf.dtype}{list(leaf.shape)}"


def _abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    sharding = getattr(leaf, "sharding", None)
    if sharding is None:
        sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
