"""Progress of a loop on stderr: a bar on a terminal, plain lines at most every 30 s elsewhere."""

import sys
import time
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from typing import Any, Protocol

_LINE_SECONDS = 30.0


class Advance(Protocol):
    """Counts `count` more as done; `note`: a few words on the latest state, such as the speed."""

    def __call__(self, count: int, note: str = "", /) -> None: ...


def track(work: Iterable[Any] | int, label: str, unit: str = "rows") -> Iterator[Any]:
    """Yields the items of `work` (an int n: 0..n-1) and shows how far the loop is."""
    items = range(work) if isinstance(work, int) else work
    total = len(items) if isinstance(items, Sized) else None
    with bar(total, label, unit) as advance:
        for item in items:
            yield item
            advance(1)


@contextmanager
def bar(total: int | None, label: str, unit: str = "rows") -> Iterator[Advance]:
    """Yields `advance(n, note)`, for loops that finish several rows at once."""
    show = _rich_bar if sys.stderr is not None and sys.stderr.isatty() else _plain_lines
    with show(total, label, unit) as advance:
        yield advance


@contextmanager
def _rich_bar(total: int | None, label: str, unit: str) -> Iterator[Advance]:
    from rich import progress
    from rich.console import Console

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TextColumn(unit),
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
        progress.TextColumn("{task.fields[note]}"),
    )
    with progress.Progress(*columns, console=Console(stderr=True)) as shown:
        task = shown.add_task(label, total=total, note="")

        def advance(count: int, note: str = "") -> None:
            shown.update(task, advance=count, note=note)

        yield advance


@contextmanager
def _plain_lines(total: int | None, label: str, unit: str) -> Iterator[Advance]:
    start = last = time.monotonic()
    done = 0

    def advance(count: int, note: str = "") -> None:
        nonlocal done, last
        done += count
        if time.monotonic() - last >= _LINE_SECONDS:
            last = time.monotonic()
            line = _line(label, done, total, unit, last - start)
            say(f"{line}; {note}" if note else line)

    yield advance
    say(_line(label, done, total, unit, time.monotonic() - start))


def say(text: str) -> None:
    """One line on stderr; a closed stderr is no reason to stop."""
    try:
        print(text, file=sys.stderr, flush=True)
    except (OSError, ValueError):
        pass


def _line(label: str, done: int, total: int | None, unit: str, seconds: float) -> str:
    of = f"/{total}" if total is not None else ""
    line = f"{label}: {done}{of} {unit}, {seconds:.0f} s"
    if total and 0 < done < total:
        line += f", about {seconds / done * (total - done):.0f} s left"
    return line
