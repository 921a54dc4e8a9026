"""Where the weights of a source lie: a path, an installed weights package, the local hub cache."""

import importlib.metadata
import re
from dataclasses import dataclass
from pathlib import Path, PurePath

from calibjax.errors import InputError


@dataclass(frozen=True)
class Found:
    """A .gguf file or a directory. `trusted`: it belongs to an installed package."""

    path: Path
    trusted: bool = False


def locate(source: str | PurePath) -> Found:
    """The weights of `source`; without any, InputError saying what was looked for, and where.

    Nothing is downloaded and no package is imported: a package's files are read from its record.
    """
    path = Path(source).expanduser()
    if path.exists():
        return Found(_weights_at(path))
    name = str(source)
    if path.suffix == ".gguf" or name.startswith((".", "/", "~")):
        raise InputError(f"{name}: no such file or directory; fix: check the path")
    in_package = _in_package(name)
    if in_package is not None:
        return Found(in_package, trusted=True)
    cached = _in_hub_cache(name)
    if cached is not None:
        return Found(cached)
    raise InputError(
        f"{name}: no weights found: no such path in {Path.cwd()}, no installed package of "
        f"that name with weights, no such model in the local hub cache ({_hub_cache()}); "
        f"fix: give a Hugging Face directory or a .gguf file, or install or download {name}"
    )


def _weights_at(path: Path) -> Path:
    """The path itself, or the one GGUF file of a directory that has nothing else."""
    if path.is_dir() and not (path / "config.json").exists():
        files = sorted(path.glob("*.gguf"))
        if len(files) == 1:
            return files[0]
        if files:
            raise InputError(f"{path}: {len(files)} GGUF files; fix: name one of them")
    return path


def _in_package(name: str) -> Path | None:
    """The weights among an installed distribution's files, if it is one and has some."""
    try:
        files = importlib.metadata.files(name) or []
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return None
    for file in files:
        if file.suffix == ".gguf":
            return Path(str(file.locate()))
    for file in files:
        # Only a directory with weights beside its configuration.
        if file.name == "config.json" and any(
            f.suffix == ".safetensors" and f.parent == file.parent for f in files
        ):
            return Path(str(file.locate())).parent
    return None


def _in_hub_cache(name: str) -> Path | None:
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        return None
    import huggingface_hub

    config = huggingface_hub.try_to_load_from_cache(name, "config.json")
    return Path(config).parent if isinstance(config, str) else None


def _hub_cache() -> str:
    from huggingface_hub.constants import HF_HUB_CACHE

    return str(HF_HUB_CACHE)
