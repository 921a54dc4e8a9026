"""SIGTERM, SIGINT and SIGUSR1 end a command between two steps, after it has saved.

A handler only notes the signal; host loops call `check()`, which raises `Preempted` where nothing
is half-done. A second signal ends the process at once.
"""

import os
import signal
import time
from collections.abc import Callable
from types import FrameType

HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class Preempted(BaseException):
    """The process was asked to stop. Not an Exception: a loop's own handlers must let it pass."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signum).name}")
        self.signum = signum

    @property
    def exit_code(self) -> int:
        """130 for Ctrl-C, 143 for SIGTERM and for SIGUSR1 (a scheduler's early warning)."""
        return 130 if self.signum == signal.SIGINT else 143


class _Pending:
    signum: int | None = None
    since: float | None = None
    watches_forks = False
    agree: Callable[[int], bool] | None = None
    checks = 0


_pending = _Pending()


def install() -> None:
    """Notes the three signals from now on (main thread only). Child processes get the defaults."""
    _pending.signum = _pending.since = None
    for signum in HANDLED:
        signal.signal(signum, _note)
    if not _pending.watches_forks:
        os.register_at_fork(after_in_child=_uninstall_in_child)
        _pending.watches_forks = True


def uninstall() -> None:
    """Back to the default handlers."""
    _pending.signum = _pending.since = None
    for signum in HANDLED:
        signal.signal(signum, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _uninstall_in_child() -> None:
    if signal.getsignal(signal.SIGTERM) is _note:
        uninstall()


def agree_through(reached: Callable[[int], bool] | None) -> None:
    """With several processes: `reached(n)` says whether all are to stop at their n-th check.

    A signal to one process must not stop it alone, for the others would wait for it in the next
    collective. What decides sees SIGTERM by itself; the other signals are passed on to it.
    """
    _pending.agree = reached


def check() -> None:
    """Raises Preempted if a signal has arrived. Call it in every host loop.

    With several processes all must make the same calls in the same order.
    """
    if _pending.agree is not None:
        _pending.checks += 1
        if _pending.agree(_pending.checks):
            raise Preempted(_pending.signum or signal.SIGTERM)
    elif _pending.signum is not None:
        raise Preempted(_pending.signum)


def pending_seconds() -> float | None:
    """Seconds since the signal arrived, or None."""
    return None if _pending.since is None else time.monotonic() - _pending.since


def _note(signum: int, frame: FrameType | None) -> None:
    if _pending.signum is not None:
        os._exit(Preempted(_pending.signum).exit_code)
    _pending.signum, _pending.since = signum, time.monotonic()
    if _pending.agree is not None and signum != signal.SIGTERM:
        os.kill(os.getpid(), signal.SIGTERM)
