"""One writer per run directory: the lock, and what is said where a directory cannot be taken."""

import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from calibjax.errors import InputError, input_error
from calibjax.progress import say

LOCK, PREVIOUS = ".lock", ".previous"


@contextmanager
def locked(path: Path, may_hold_files: bool) -> Iterator[None]:
    """Creates the directory and holds its lock; leaves no trace when the directory is refused."""
    refused = _refusal(path)
    if refused:
        raise refused
    if path.is_dir() and entries_of(path) and not may_hold_files and not (path / LOCK).exists():
        raise _not_empty(path)
    is_new = not path.exists()
    try:
        path.mkdir(parents=True, exist_ok=True)
        handle = _take_lock(path)
    except OSError as error:
        raise _unwritable(path, error) from None
    try:
        try:
            if entries_of(path) and not may_hold_files:
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


def entries_of(path: Path) -> list[str]:
    """What a run has put into the directory."""
    return [e for e in os.listdir(path) if e != LOCK and not e.startswith(PREVIOUS)]
