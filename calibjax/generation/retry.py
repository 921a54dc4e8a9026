"""When to call a server again, when to wait for it, and when to stop."""

import asyncio
import email.utils
import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

_Result = TypeVar("_Result")

_log = logging.getLogger(__name__)


class RetryPolicy(NamedTuple):
    """All times in seconds.

    retries: calls after the first that a row may have. base, cap: full jitter between 0 and
    base x 2^n, at most cap. retry_after_limit: a server that asks for a longer wait has refused the
    row. outage_after: failures in a row, over all rows, that make an outage; then the server is
    probed every probe_every, at most for patience. timeout: of one call, from request to last byte.
    """

    retries: int = 8
    base: float = 0.5
    cap: float = 60.0
    retry_after_limit: float = 600.0
    outage_after: int = 20
    probe_every: float = 30.0
    patience: float = 1800.0
    timeout: float = 600.0


class Retryable(Exception):
    """A call that may succeed if it is made again; `after` is the wait the server asked for."""

    def __init__(self, reason: str, after: float | None = None) -> None:
        super().__init__(reason)
        self.after = after


class Refused(Exception):
    """The server does not take this row; other rows may pass."""


class ServerLost(RuntimeError):
    """The server has not come back within the policy's patience."""


class Line:
    """The line to one server, shared by all rows of a job: it is open, or all wait for it."""

    def __init__(
        self, server: str, policy: RetryPolicy, is_alive: Callable[[], Awaitable[bool]]
    ) -> None:
        self._server = server
        self._policy = policy
        self._is_alive = is_alive
        self._failures = 0
        self._open = asyncio.Event()
        self._open.set()

    async def call(self, once: Callable[[], Awaitable[_Result]]) -> _Result:
        """The result of `once`, called again as the policy says.

        Raises Refused when the retries are used up, ServerLost when the server stays away, and
        whatever else `once` raises, at once.
        """
        policy = self._policy
        for attempt in range(policy.retries + 1):
            await self._open.wait()
            try:
                result = await once()
            except Retryable as error:
                await self._failed(str(error))
                if error.after is not None and error.after > policy.retry_after_limit:
                    reason = f"{error}; the server asks to wait {error.after:.0f} s"
                    raise Refused(reason) from error
                if attempt == policy.retries:
                    raise Refused(f"{error}; gave up after {attempt + 1} calls") from error
                jitter = random.uniform(0.0, min(policy.cap, policy.base * 2**attempt))
                await asyncio.sleep(max(jitter, error.after or 0.0))
            else:
                self._failures = 0
                return result
        raise AssertionError("the last attempt returns or raises")

    async def _failed(self, reason: str) -> None:
        """Counts a failure; the one that makes an outage probes the server for all the others."""
        self._failures += 1
        if self._failures < self._policy.outage_after or not self._open.is_set():
            return
        self._open.clear()
        policy, start = self._policy, time.monotonic()
        _log.warning(
            "server=%s: %d failures in a row (%s); waiting up to %.0f s, probing every %.0f s",
            *(self._server, self._failures, reason, policy.patience, policy.probe_every),
        )
        while True:
            await asyncio.sleep(policy.probe_every)
            if await self._is_alive():
                break
            if time.monotonic() - start >= policy.patience:
                raise ServerLost(
                    f"server={self._server}: no answer for {policy.patience:.0f} s ({reason}); "
                    "fix: start it again, then run the same command with --resume"
                )
        self._failures = 0
        self._open.set()


def seconds_to_wait(header: str | None) -> float | None:
    """A Retry-After header, seconds or an HTTP date, as seconds from now; None if unreadable."""
    if header is None:
        return None
    try:
        return max(0.0, float(header))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(header).timestamp() - time.time())
    except ValueError:
        return None
