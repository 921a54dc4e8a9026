"""Writing that survives a kill: whole files appear at once, growing logs are repaired at open."""

import dataclasses
import hashlib
import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from calibjax.errors import InputError

_SYNC_SECONDS = 2.0
_TAIL_BYTES = 2**16


def write_bytes(path: str | Path, data: bytes) -> None:
    """Replaces `path` by `data`, all or nothing: temporary file, fsync, rename, directory fsync."""
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        _name_file(error, target)
        raise
    sync(target.parent)


def write_text(path: str | Path, text: str) -> None:
    """`write_bytes` of UTF-8; half characters (lone surrogates) become "?"."""
    write_bytes(path, text.encode("utf-8", "replace"))


def write_json(path: str | Path, value: Any) -> None:
    """`write_text` of indented JSON; NaN and infinities become null."""
    write_text(path, json.dumps(plain(value), indent=1, ensure_ascii=False) + "\n")


def write_jsonl(path: str | Path, rows: Any) -> None:
    """`write_text` of one JSON object a line."""
    write_text(path, "".join(f"{to_line(row)}\n" for row in rows))


def to_line(row: Any) -> str:
    """One row as JSON on one line; NaN and infinities become null."""
    return json.dumps(plain(row), ensure_ascii=False, allow_nan=False)


def plain(value: Any) -> Any:
    """`value` as JSON can hold it: arrays as lists, records as objects, NaN as None."""
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {_key(key): plain(item) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return str(value)


def _key(key: Any) -> str:
    return key if isinstance(key, str) else repr(plain(key))


class JsonlLog:
    """A growing JSON-lines file: each row is in the file when `append` returns.

    A torn last line (kill, full disk) is cut off at open; so a reader finds whole rows only.
    fsync every 2 seconds and at the end.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._file = open(self.path, "a+b", buffering=0)
        _cut_torn_tail(self._file)
        self._synced = time.monotonic()

    def append(self, row: Any) -> None:
        """Writes one row. After an OSError (a full disk) no part of it is left in the file."""
        data = (to_line(row) + "\n").encode("utf-8", "replace")
        start = self._file.seek(0, os.SEEK_END)
        try:
            written = 0
            while written < len(data):
                written += self._file.write(data[written:])
        except BaseException as error:
            self._file.truncate(start)
            _name_file(error, self.path)
            raise
        if time.monotonic() - self._synced > _SYNC_SECONDS:
            self.sync()

    def sync(self) -> None:
        os.fsync(self._file.fileno())
        self._synced = time.monotonic()

    def close(self) -> None:
        if not self._file.closed:
            self.sync()
            self._file.close()

    def __enter__(self) -> "JsonlLog":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _name_file(error: BaseException, path: Path) -> None:
    """A failed write does not say to which file; the user wants to know."""
    if isinstance(error, OSError) and error.filename is None:
        error.filename = str(path)


def _cut_torn_tail(file: Any) -> None:
    """Ends the file with a line feed: completes a whole last row, drops a torn one."""
    end = file.seek(0, os.SEEK_END)
    tail = b""
    start = end
    while start > 0 and b"\n" not in tail:
        size = min(_TAIL_BYTES, start)
        start -= size
        file.seek(start)
        tail = file.read(size) + tail
    last = tail.rpartition(b"\n")[2]
    if not last:
        return
    try:
        json.loads(last)
        file.write(b"\n")
    except ValueError:
        file.truncate(end - len(last))
    os.fsync(file.fileno())


def cache_dir() -> Path:
    """Where caches go (created): $CALIBJAX_CACHE, $XDG_CACHE_HOME/calibjax or ~/.cache/calibjax.

    Commands set $CALIBJAX_CACHE to a directory inside OUT when there is no usable home. Raises
    InputError if none of them can be written.
    """
    tried = []
    for candidate in _cache_candidates():
        try:
            candidate.mkdir(parents=True, exist_ok=True)
        except OSError:
            pass
        if os.access(candidate, os.W_OK | os.X_OK):
            return candidate
        tried.append(str(candidate))
    places = ", ".join(tried) or "no HOME"
    raise InputError(
        f"CALIBJAX_CACHE={os.environ.get('CALIBJAX_CACHE', '')}: expected a writable directory"
        f" (tried: {places}); fix: export CALIBJAX_CACHE=DIR"
    )


def _cache_candidates() -> list[Path]:
    named = os.environ.get("CALIBJAX_CACHE")
    if named:
        return [Path(named)]
    shared, home = os.environ.get("XDG_CACHE_HOME"), os.environ.get("HOME")
    candidates = [Path(shared, "calibjax")] if shared else []
    return candidates + ([Path(home, ".cache", "calibjax")] if home else [])


def sha256_file(path: str | Path) -> str:
    """Hexadecimal SHA-256 of a file's bytes."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_json(value: Any) -> str:
    """Hexadecimal SHA-256 of a value's canonical JSON (sorted keys): equal content, equal hash."""
    text = json.dumps(plain(value), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def sync(path: Path) -> None:
    """fsync of a file or of a directory, so that a rename in it survives a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
