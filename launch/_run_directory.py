"""The directory of one run: who may write it, what it was made from, how long each stage took."""

import fcntl
import json
import os
import platform
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

from calibjax import storage, textfiles
from calibjax.errors import InputError, input_error
from calibjax.progress import say
from calibjax.training import signals

LOCK, RECORD, REJECTED, PREVIOUS = ".lock", "run.json", "rejected.jsonl", ".previous"
# What this module and the compilation cache put into a directory.
_OWN = {RECORD, REJECTED, ".cache"}
_PACKAGES = ("calibjax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


class RunDirectory:
    """An open run directory: `path`, and `resumed` if an earlier run is being continued."""

    def __init__(self, path: Path, record: dict[str, Any], resumed: bool, strict: bool) -> None:
        self.path = path
        self.resumed = resumed
        self.n_rejected = 0
        self._record = record
        self._strict = strict
        self._cut_files: list[str] = []
        self._rejected_rows: list[Any] = []

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measures a stage (seconds in run.json); a pending signal stops the run at its ends."""
        signals.check()
        start = time.monotonic()
        try:
            yield
        finally:
            seconds = self._record["seconds"]
            seconds[name] = round(seconds.get(name, 0.0) + time.monotonic() - start, 3)
        self._say(f"{name}: {seconds[name]:.1f} s")
        self._save()
        signals.check()

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds per stage of this attempt so far."""
        return dict(self._record["seconds"])

    def reject(self, rejected: Sequence[textfiles.Rejected], *, cut: str | None = None) -> None:
        """Sets bad rows aside in rejected.jsonl; with --strict the first one ends the run.

        cut: the name of an input file that ends early; the run works on, then ends with exit 2.
        """
        if rejected and self._strict:
            row = rejected[0]
            fix = "mend the row, or drop --strict"
            raise InputError(f"{row.file}:{row.line}: {row.reason}; fix: {fix}")
        if cut:
            self._cut_files.append(cut)
        self._rejected_rows += rejected
        self.n_rejected += len(rejected)
        if rejected:
            storage.write_jsonl(self.path / REJECTED, self._rejected_rows)
            say(f"{len(rejected)} rows set aside in {self.path / REJECTED}")

    def check_same(self, name: str, value: Any) -> None:
        """Notes what the run depends on; a resumed run must find the same value."""
        value = storage.plain(value)
        known = self._record["depends_on"]
        if name in known and known[name] != value:
            raise _differs(name, value, known[name], self.path)
        known[name] = value
        self._save()

    def note(self, **facts: Any) -> None:
        """Puts facts into run.json."""
        self._record.update(storage.plain(facts))
        self._save()

    def noted(self, name: str, default: Any) -> Any:
        """A fact that this attempt or an earlier one put into run.json by `note`."""
        return self._record.get(name, default)

    def _say(self, text: str) -> None:
        say(text)

    def _save(self) -> None:
        storage.write_json(self.path / RECORD, self._record)

    def _finish(self, status: str) -> None:
        self._record["attempts"][-1] |= {"status": status, "finished": _now()}
        self._save()


class Follower(RunDirectory):
    """The run directory as the other processes of a run see it: process 0 alone writes."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, {"seconds": {}, "depends_on": {}}, resumed=False, strict=False)

    def reject(self, rejected: Sequence[textfiles.Rejected], *, cut: str | None = None) -> None:
        """Process 0 says what was wrong with the rows."""

    def _say(self, text: str) -> None:
        pass

    def _save(self) -> None:
        pass


@contextmanager
def open_run(
    out: str | None,
    *,
    seed: int,
    command: Sequence[str],
    depends_on: Mapping[str, Any],
    resume: bool = False,
    overwrite: bool = False,
    strict: bool = False,
) -> Iterator[RunDirectory]:
    """Opens `out` for one command; see `launch._main.open_out`."""
    if not out:
        raise input_error("out", "", "a directory", "--out=runs/NAME")
    if resume and overwrite:
        raise input_error("overwrite", "true", "not both --resume and --overwrite", "drop one")
    path = Path(out)
    with _locked(path, may_hold_files=resume or overwrite):
        if overwrite:
            _set_previous_aside(path)
        resumed = resume and bool(_entries(path))
        record = _record(path, seed, command, depends_on, resumed)
        run = RunDirectory(path, record, resumed, strict)
        run._save()
        try:
            yield run
            if run._cut_files:
                raise input_error(
                    "path", run._cut_files[0], "a whole file, found one cut short", "copy it again"
                )
        except BaseException as error:
            run._finish(f"stopped: {type(error).__name__}")
            if isinstance(error, InputError) and not resumed:
                _undo(path)
            raise
        run._finish("done")
        shutil.rmtree(path / PREVIOUS, ignore_errors=True)


def _undo(path: Path) -> None:
    """Leaves no trace of a run that was refused before it had written anything of its own."""
    entries = set(_entries(path))
    if not entries <= _OWN:
        return
    for entry in entries:
        _remove(path / entry)
    previous = path / PREVIOUS
    if previous.exists():
        for entry in os.listdir(previous):
            os.replace(previous / entry, path / entry)
        previous.rmdir()


def _entries(path: Path) -> list[str]:
    """What a run has put into the directory."""
    return [e for e in os.listdir(path) if e != LOCK and not e.startswith(PREVIOUS)]


def _record(
    path: Path, seed: int, command: Sequence[str], depends_on: Mapping[str, Any], resumed: bool
) -> dict[str, Any]:
    """The content of run.json; on resume it must agree with what is there."""
    now = {"seed": seed, **storage.plain(dict(depends_on))}
    attempts, known, earlier = [], {}, {}
    if resumed:
        earlier = _read_record(path)
        attempts, known = earlier["attempts"], earlier["depends_on"]
        for name, value in now.items():
            if name in known and known[name] != value:
                raise _differs(name, value, known[name], path)
    seconds: dict[str, float] = {}
    attempt = {"started": _now(), "host": socket.gethostname(), "pid": os.getpid()}
    attempt["seconds"] = seconds
    return {
        **earlier,
        "command": shlex.join(command),
        "seed": seed,
        "depends_on": known | now,
        "seconds": seconds,
        "attempts": [*attempts, attempt],
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


def _differs(name: str, value: Any, known: Any, path: Path) -> InputError:
    fix = "the same flags, or --overwrite, or another --out"
    return input_error(name, value, f"{known} as in {path / RECORD}", fix)


@contextmanager
def _locked(path: Path, may_hold_files: bool) -> Iterator[None]:
    """Creates the directory and holds its lock; leaves no trace when the directory is refused."""
    refused = _refusal(path)
    if refused:
        raise refused
    if path.is_dir() and _entries(path) and not may_hold_files and not (path / LOCK).exists():
        raise _not_empty(path)
    is_new = not path.exists()
    try:
        path.mkdir(parents=True, exist_ok=True)
        handle = _take_lock(path)
    except OSError as error:
        raise _unwritable(path, error) from None
    try:
        try:
            if _entries(path) and not may_hold_files:
                raise _not_empty(path)
            yield
        finally:
            os.unlink(path / LOCK)
            if is_new and not os.listdir(path):
                path.rmdir()
    finally:
        os.close(handle)


def _take_lock(path: Path) -> int:
    """A file handle that holds the lock; the lock goes with the process, however that ends."""
    while True:
        handle = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(handle)
            os.close(handle)
            fix = "wait for it, or another --out"
            raise InputError(f"out={path}: in use by {holder}; fix: {fix}") from None
        except OSError:
            say(f"out={path}: no locks on this file system; see that nothing else writes there")
        if _is_same_file(handle, path / LOCK):
            break
        # Its last holder removed it between our open and our lock.
        os.close(handle)
    if os.fstat(handle).st_size:
        say(f"out={path}: taking over the lock of {_holder(handle)}, which has ended")
    text = f"pid {os.getpid()} on host {socket.gethostname()} since {time.strftime('%H:%M')}"
    os.ftruncate(handle, 0)
    os.pwrite(handle, text.encode(), 0)
    return handle


def _is_same_file(handle: int, path: Path) -> bool:
    try:
        return os.fstat(handle).st_ino == os.stat(path).st_ino
    except FileNotFoundError:
        return False


def _holder(handle: int) -> str:
    return os.pread(handle, 200, 0).decode("utf-8", "replace").strip() or "another process"


def _refusal(path: Path) -> InputError | None:
    try:
        exists = path.exists()
    except (OSError, ValueError) as error:
        return _unwritable(path, error)
    if exists and not path.is_dir():
        return input_error("out", path, "a directory, found a file", "--out=runs/NAME")
    return None


def _unwritable(path: Path, error: Exception) -> InputError:
    reason = getattr(error, "strerror", None) or error
    return input_error("out", path, f"a writable directory ({reason})", "another --out")


def _not_empty(path: Path) -> InputError:
    fix = "--resume, --overwrite or another --out"
    return input_error("out", path, "an empty or new directory", fix)


def _set_previous_aside(path: Path) -> None:
    """Moves the last finished run to .previous; an unfinished one after it is dropped."""
    entries = _entries(path)
    if RECORD not in entries:
        return
    previous = path / PREVIOUS
    if previous.exists():
        for entry in entries:
            _remove(path / entry)
        return
    aside = path / f"{PREVIOUS}.tmp"
    aside.mkdir(exist_ok=True)
    # The record moves last: a kill on the way leaves a directory that the next try completes.
    for entry in sorted(entries, key=lambda entry: entry == RECORD):
        os.replace(path / entry, aside / entry)
    os.replace(aside, previous)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _now() -> str:
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
