"""Text files as raw lines: split on line feeds only, bounded in memory, gzip that may be cut."""

import gzip
import io
import os
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from calibjax.errors import InputError, closest, input_error

MAX_LINE_BYTES = 64 * 2**20
_SKIP_BYTES = 2**20
_BOM = b"\xef\xbb\xbf"


class Gunzip(io.RawIOBase):
    """Decompresses as far as the data goes; then `damage` says why it stopped early, if it did."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = gzip.GzipFile(fileobj=stream)
        self.damage: str | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer)  # type: ignore[arg-type]
        if self.damage:
            return 0
        try:
            data = self._stream.read1(len(view))
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            self.damage = "cut short" if isinstance(error, EOFError) else "damaged"
            return 0
        view[: len(data)] = data
        return len(data)


class TextFile:
    """An open text file; iterate over `lines()`, then ask `damage` (a cut or broken .gz).

    `name` is how errors call the path, usually the flag that holds it.
    """

    def __init__(self, path: str | Path, name: str = "path") -> None:
        self.path = existing_file(path, name)
        self._file = self.path.open("rb")
        self._gunzip: Gunzip | None = None
        stream = self._file
        try:
            if self.path.name.endswith(".gz"):
                if self._file.read(2) not in (b"\x1f\x8b", b""):
                    raise input_error(name, path, "a gzip file", "drop .gz from its name")
                self._file.seek(0)
                self._gunzip = Gunzip(self._file)
                stream = io.BufferedReader(self._gunzip)
            self._stream = _after_bom(stream, self.path, name)
        except BaseException:
            self._file.close()
            raise

    @property
    def damage(self) -> str | None:
        return self._gunzip.damage if self._gunzip else None

    def lines(self) -> Iterator[tuple[int, bytes | None]]:
        r"""(1-based number, bytes without the line end); None for a line that is not whole.

        That is one above 64 MiB, or the last one of a cut .gz.
        Only "\n" ends a line (a "\r" before it belongs to the end): U+2028 and the like are text.
        """
        number = 0
        while raw := self._stream.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(raw) > MAX_LINE_BYTES:
                self._skip_to_line_end(raw)
                yield number, None
            elif self.damage and not raw.endswith(b"\n"):
                yield number, None
            else:
                yield number, raw.removesuffix(b"\n").removesuffix(b"\r")

    def peek(self) -> bytes:
        """Some of the bytes that come next."""
        return self._stream.peek(64)[:64]

    def read(self) -> bytes:
        """Everything that is left."""
        return self._stream.read()

    def _skip_to_line_end(self, raw: bytes) -> None:
        while raw and not raw.endswith(b"\n"):
            raw = self._stream.readline(_SKIP_BYTES)

    def __enter__(self) -> "TextFile":
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.close()


def existing_file(path: str | Path, name: str = "path") -> Path:
    """`path` as a readable file, or an InputError that names the closest one beside it."""
    found = Path(path)
    try:
        mode = found.stat().st_mode
    except (OSError, ValueError) as error:
        if isinstance(error, (FileNotFoundError, NotADirectoryError)):
            fault = f"{name}={path}: no such file; fix: {_suggestion(found)}"
            raise InputError(fault) from None
        reason = getattr(error, "strerror", None) or error
        raise input_error(name, path, f"a readable file ({reason})", "check the path") from None
    if stat.S_ISDIR(mode):
        raise input_error(name, path, "a file, found a directory", _listing(found))
    if not stat.S_ISREG(mode):
        # A pipe could be read once only, and waiting for its writer looks like a hang.
        raise input_error(name, path, "a regular file", "save it to one first")
    if not os.access(found, os.R_OK):
        raise input_error(name, path, "a readable file", f"chmod u+r {path}")
    return found


def _suggestion(path: Path) -> str:
    parent = path.parent
    while not parent.is_dir():
        parent = parent.parent
    if parent != path.parent:
        return f"{parent} exists, what follows does not"
    match = closest(path.name, _names(parent))
    return f"did you mean {path.with_name(match)}" if match else _listing(parent)


def _listing(directory: Path) -> str:
    names = _names(directory)
    if not names:
        return f"{directory} holds no file"
    return f"name one of its files ({', '.join(names[:5])}{', ...' if len(names) > 5 else ''})"


def _names(directory: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in directory.iterdir())
    except OSError:
        return []


def _after_bom(reader: io.BufferedReader, path: Path, name: str) -> io.BufferedReader:
    """The reader behind a UTF-8 byte order mark; InputError for other encodings."""
    head = reader.peek(4096)[:4096]
    if head.startswith(_BOM):
        reader.read(len(_BOM))
    if head.startswith(b"\x1f\x8b"):
        raise input_error(name, path, "text, found gzip data", f"mv {path} {path}.gz")
    encoding = _other_encoding(head)
    if encoding:
        target = path.with_name(f"{path.stem}.utf8{path.suffix}")
        fix = f"iconv -f {encoding} -t UTF-8 {path} > {target}"
        raise input_error(name, path, f"UTF-8, found {encoding}", fix)
    return reader


def _other_encoding(head: bytes) -> str | None:
    """UTF-16 or UTF-32 by byte order mark, or UTF-16 by its zero bytes beside ASCII."""
    if head.startswith((b"\xff\xfe\0\0", b"\0\0\xfe\xff")):
        return "UTF-32"
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "UTF-16"
    half = len(head) // 2
    if half < 4:
        return None
    for encoding, zeros, others in (
        ("UTF-16LE", head[1::2], head[0::2]),
        ("UTF-16BE", head[0::2], head[1::2]),
    ):
        if zeros.count(0) > 0.4 * half and others.count(0) < 0.05 * half:
            return encoding
    return None
