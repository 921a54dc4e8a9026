"""Runs commands as a user does, in processes of their own."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


# Where caches are, which messages name.
_PLACES = ("XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE")


def environment(**extra: str) -> dict[str, str]:
    """Ours, without what would change messages, for a command of this tree on a CPU."""
    kept = {name: value for name, value in os.environ.items() if name not in _PLACES}
    return {**kept, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", **extra}


def command(name: str | Path, *arguments: object) -> list[str]:
    """argv of `python -m launch.NAME`, or of a script."""
    start = [str(name)] if isinstance(name, Path) else ["-m", f"launch.{name}"]
    return [sys.executable, *start, *map(str, arguments)]


def run(name: str | Path, *arguments: object, timeout: float = 600, **options: Any) -> Done:
    """Runs a command to its end; the limit is for one that hangs, not for a busy machine."""
    options.setdefault("env", environment())
    done = subprocess.run(
        command(name, *arguments),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout,
        **options,
    )
    return Done(done.returncode, done.stdout, done.stderr)
