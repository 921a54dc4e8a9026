"""run.json: the command, what it depends on, versions and machine, and every attempt."""

import json
import os
import platform
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

from calibjax import storage
from calibjax.errors import InputError, input_error
from launch._run_lock import PREVIOUS, entries_of

RECORD = "run.json"
_HASH = re.compile(r"(sha256:)?[0-9a-f]{64}")  # of a quantised decoder a word may follow
_PACKAGES = ("calibjax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


def new_record(
    path: Path, seed: int, command: Sequence[str], depends_on: Mapping[str, Any], resumed: bool
) -> dict[str, Any]:
    """The content of run.json; on resume it must agree with what is there."""
    given = {"seed": seed, **storage.plain(dict(depends_on))}
    attempts, known, earlier = [], {}, {}
    if resumed:
        earlier = _read_record(path)
        attempts, known = earlier["attempts"], earlier["depends_on"]
        for name, value in given.items():
            if name in known and known[name] != value:
                raise differs(name, value, known[name], path)
    foreign = foreign_entries(path) if resumed else entries_of(path)
    earlier.pop("files", None)  # it is unfinished again, and owns what comes
    seconds: dict[str, float] = {}
    attempt = {"started": now(), "host": socket.gethostname(), "pid": os.getpid()}
    attempt["seconds"] = seconds
    return {
        **earlier,
        "command": shlex.join(command),
        "seed": seed,
        "depends_on": known | given,
        "seconds": seconds,
        "attempts": [*attempts, attempt],
        "foreign": sorted(foreign),
        "versions": {"python": platform.python_version(), **_versions()},
        "git_revision": _git_revision(),
        "host": {"system": platform.platform(), "cpus": os.cpu_count()},
    }


def _read_record(path: Path) -> dict[str, Any]:
    try:
        record = json.loads((path / RECORD).read_bytes())
        if isinstance(record["attempts"], list) and isinstance(record["depends_on"], dict):
            return record
    except (OSError, ValueError, TypeError, KeyError):
        pass
    expected = "the run.json of an earlier run in it"
    raise input_error("out", path, expected, "--overwrite or another --out")


def foreign_entries(path: Path) -> list[str]:
    """What lies beside the run in its directory: there before it began, or put there after it was
    done. An unfinished run owns all that has come since."""
    record = _read_record(path)
    known = record.get("foreign", [])
    own = record.get("files")
    return [e for e in entries_of(path) if e in known or (own is not None and e not in own)]


def check_own(path: Path) -> None:
    """InputError for files that no run of ours has left: --overwrite replaces runs only."""
    entries = sorted(entries_of(path))
    if not entries or (path / PREVIOUS).exists():
        return
    try:
        _read_record(path)
    except InputError:
        shown = ", ".join(entries[:3]) + (", ..." if len(entries) > 3 else "")
        expected = f"an empty directory or an earlier run, found no {RECORD} of one but {shown}"
        raise input_error("out", path, expected, "another --out") from None


def differs(name: str, value: Any, known: Any, path: Path) -> InputError:
    """Says what a resumed run finds changed: of a mapping, its first entry that has."""
    if isinstance(value, dict) and isinstance(known, dict):
        key = next(key for key in [*known, *value] if known.get(key) != value.get(key))
        return differs(f"{name}[{key}]", value.get(key), known.get(key), path)
    fix = "the same flags, or --overwrite, or another --out"
    expected = f"{_brief(known)} as in {path / RECORD}"
    if _is_hash(value) and _is_hash(known):
        name = name.removesuffix("_sha256")
        expected, fix = f"the content {expected}", fix.replace("flags", "file")
    return input_error(name, _brief(value), expected, fix)


def _is_hash(value: Any) -> bool:
    return isinstance(value, str) and bool(_HASH.match(value))


def _brief(value: Any) -> str:
    """A value in a message; of a hash, as much as tells two of them apart."""
    if value is None:
        return "none"
    if _is_hash(value):
        return f"sha256:{value.removeprefix('sha256:')[:12]}"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}..."


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            pass
    return found


def _git_revision() -> str | None:
    """Commit of the source tree, with "+changes" if it differs from it; None outside git."""
    root = Path(__file__).resolve().parent.parent
    try:
        done = [
            subprocess.run(
                ["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=5
            )
            for arguments in (["rev-parse", "HEAD"], ["status", "--porcelain", "-uno"])
        ]
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done[0].returncode:
        return None
    return done[0].stdout.strip() + ("+changes" if done[1].stdout.strip() else "")


def command_line() -> list[str]:
    """The command as it was given, `python -m launch.NAME ...`."""
    script = Path(sys.argv[0])
    name = f"{script.parent.name}.{script.stem}" if script.suffix == ".py" else str(script)
    return ["python", "-m", name, *sys.argv[1:]]
