"""Pending requests of one connection, on one event loop.

Requests are numbered in the order in which they are sent, and an answer contains the number. Each request ends exactly
once: with its answer, a timeout, or the error of the connection. All requests share one timer, which is not moved when
answers arrive: if it fires early, it is set to the next timeout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from tidelog_proto.wire.frames import Frame

ErrorT = TypeVar("ErrorT", bound=Exception)


class PendingRequest(NamedTuple):
    """A request without an answer.

    Attributes:
        answered: called once with the answer or an error; it must not raise.
        timeout_s: the timeout, as given to `PendingRequests.add`, in seconds.
        expires_at: the loop time at which the request times out.
        due_at: the loop time at which the answer is due; before that the peer may hold it back (long polling).
    """

    answered: Callable[[Any], None]
    timeout_s: float
    expires_at: float
    due_at: float


class PendingRequests(Generic[ErrorT]):
    """The pending requests of a connection.

    Args:
        late: creates the error of a request that timed out; takes the timeout in seconds.

    Attributes:
        waiting: the requests by number, oldest first; the receiver of an answer removes its request.
        last_id: the number of the newest request.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, late: Callable[[float], ErrorT]) -> None:
        self.waiting: dict[int, PendingRequest] = {}
        self.last_id = 0
        self._loop = loop
        self._late = late
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    @property
    def due_at(self) -> float | None:
        """The loop time at which the first answer is due; None if there are no pending requests."""
        return min((pending.due_at for pending in self.waiting.values()), default=None)

    def add(self, answered: Callable[[Frame | ErrorT], None], *, timeout_s: float, wait_s: float = 0.0) -> None:
        """Add a request that was sent with number `last_id + 1`.

        Args:
            answered: called once with the answer or an error; it must not raise.
            wait_s: how long the peer may hold the answer back; part of `timeout_s`.
        """
        self.last_id += 1
        now = self._loop.time()
        expires_at = now + timeout_s
        self.waiting[self.last_id] = PendingRequest(answered, timeout_s, expires_at, now + wait_s)
        if self._timer is None or expires_at < self._timer_at:
            self._arm(expires_at)

    def end(self, error: ErrorT) -> None:
        """End every request with an error because the connection is closed."""
        waiting, self.waiting = self.waiting, {}
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for pending in waiting.values():
            pending.answered(error)

    def _arm(self, at: float) -> None:
        """Set the timer to `at`."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = self._loop.call_at(at, self._expire), at

    def _expire(self) -> None:
        self._timer = None
        rang_at = max(self._timer_at, self._loop.time())
        for number, pending in list(self.waiting.items()):
            if pending.expires_at <= rang_at and self.waiting.pop(number, None) is not None:
                pending.answered(self._late(pending.timeout_s))
        if self.waiting:
            self._arm(min(pending.expires_at for pending in self.waiting.values()))


def settle(future: asyncio.Future[Frame], answer: Frame | Exception) -> None:
    """Set the result of a future, unless it is done; mark an exception as retrieved, so asyncio does not log it."""
    if future.done():
        return
    if isinstance(answer, Exception):
        future.set_exception(answer)
        future.exception()
    else:
        future.set_result(answer)
