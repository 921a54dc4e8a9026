"""A directory of shards that knows its own contents: rows and SHA-256 per shard."""

from pathlib import Path
from typing import Any

from calibjax import storage
from calibjax.errors import InputError
from calibjax.reading import textfiles

NAME = "manifest.json"


def write(directory: Path, shards: dict[str, int], **more: Any) -> None:
    """manifest.json beside the shards, last of all; `shards` maps file names to row counts."""
    entries = {
        name: {"rows": rows, "sha256": storage.sha256_file(directory / name)}
        for name, rows in sorted(shards.items())
    }
    storage.write_json(directory / NAME, {**more, "n": sum(shards.values()), "shards": entries})


def verify(directory: Path, *, name: str, rebuild: str) -> dict[str, Any]:
    """The manifest, after every shard has been compared with it.

    Raises InputError that names the damaged shard and `rebuild`, the command that makes it again.
    """
    if not directory.is_dir():
        raise InputError(f"{name}={directory}: no such directory; fix: {rebuild}")
    path = directory / NAME
    if not path.is_file():
        raise InputError(f"{name}={directory}: no {NAME}: was never finished; fix: {rebuild}")
    found = textfiles.read_json(path, name=name)
    shards = found.get("shards") if isinstance(found, dict) else None
    if not isinstance(shards, dict) or not shards:
        raise InputError(f"{name}={path}: expected the shards and their sha256; fix: {rebuild}")
    for shard, entry in shards.items():
        file = directory / shard
        if not file.is_file():
            raise InputError(f"{name}={file}: shard is missing; fix: {rebuild}")
        if storage.sha256_file(file) != entry.get("sha256"):
            raise InputError(
                f"{name}={file}: shard is damaged: expected the sha256 of {NAME}; fix: {rebuild}"
            )
    return found
