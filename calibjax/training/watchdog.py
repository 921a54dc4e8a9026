"""Ends a process that no longer gets on: heartbeats find a dead peer, never a stuck one."""

import faulthandler
import os
import statistics
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

EXIT_CODE = 134
# Compiling, validating and saving may take this long, in seconds.
_LONG = 1800.0
_TIMES_MEDIAN = 20.0


class Watchdog:
    """A thread that writes all stacks to `dump` and exits with 134 when a deadline passes.

    A step may take `seconds`, or 20 times the median of the last steps if that is longer. A
    collective that waits for a stuck peer releases the interpreter, so the thread still runs.
    """

    def __init__(self, seconds: float, dump: Path):
        self.seconds = seconds
        self.dump = dump
        self._recent: deque[float] = deque(maxlen=101)
        self._deadline = time.monotonic() + max(_LONG, seconds)
        self._over = threading.Event()

    def step_done(self, seconds: float) -> None:
        """A step took `seconds`; the next one gets its own time."""
        self._recent.append(seconds)
        self.expect_step()

    def expect_step(self) -> None:
        """From now on a step is awaited."""
        limit = max(self.seconds, _TIMES_MEDIAN * statistics.median(self._recent or (0.0,)))
        self._deadline = time.monotonic() + limit

    def expect_long(self) -> None:
        """From now on something slower than a step is awaited: compilation, validation, a save."""
        self._deadline = time.monotonic() + max(_LONG, self.seconds)

    def _watch(self) -> None:
        while not self._over.wait(min(1.0, self.seconds / 10)):
            if time.monotonic() > self._deadline:
                with open(self.dump, "w") as file:
                    file.write("no step finished in time; what every thread was doing:\n\n")
                    file.flush()
                    faulthandler.dump_traceback(file, all_threads=True)
                os.write(2, f"no step finished in time; stacks are in {self.dump}\n".encode())
                os._exit(EXIT_CODE)


@contextmanager
def watching(seconds: float | None, dump: Path) -> Iterator[Watchdog | None]:
    """A running watchdog; None when `seconds` is None."""
    if seconds is None:
        yield None
        return
    watchdog = Watchdog(seconds, dump)
    thread = threading.Thread(target=watchdog._watch, name="watchdog", daemon=True)
    thread.start()
    try:
        yield watchdog
    finally:
        watchdog._over.set()
