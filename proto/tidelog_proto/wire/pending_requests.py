"""Requests that wait for their answers, of one connection. Used by one event loop.

Requests are numbered as they are sent, and an answer names the number. Each request ends exactly once: with its answer,
with an error when its time is over, or with what became of the connection. One timer serves all: an answer does not
touch it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from tidelog_proto.wire.frames import Frame

ErrorT = TypeVar("ErrorT", bound=Exception)


class PendingRequest(NamedTuple):
    """A request without its answer.

    Attributes:
        answered: called once with what became of it, a frame or an error; it must not raise.
        timeout_s: what was granted for it.
        expires_at: the loop time at which that is over.
        due_at: the loop time from which on silence is no longer what was asked for.
    """

    answered: Callable[[Any], None]
    timeout_s: float
    expires_at: float
    due_at: float


class PendingRequests(Generic[ErrorT]):
    """See the module.

    Args:
        loop: the connection's.
        late: makes the error of a request that has had no answer in its time, which is in seconds.

    Attributes:
        waiting: the requests by number, oldest first; whoever has the answer to one takes it out.
        last_id: the number of the newest request; the next one is sent with the one behind it.
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
        """The loop time from which on an answer is due; None when nothing waits."""
        return min((pending.due_at for pending in self.waiting.values()), default=None)

    def add(self, answered: Callable[[Frame | ErrorT], None], *, timeout_s: float, wait_s: float = 0.0) -> None:
        """Wait for the answer to a request that was sent with the number behind `last_id`.

        Args:
            answered: called once with what became of it; it must not raise.
            timeout_s: after this it ends with an error.
            wait_s: how long the other side was asked to hold the answer back; part of `timeout_s`.
        """
        self.last_id += 1
        now = self._loop.time()
        expires_at = now + timeout_s
        self.waiting[self.last_id] = PendingRequest(answered, timeout_s, expires_at, now + wait_s)
        if self._timer is None or expires_at < self._timer_at:
            self._arm(expires_at)

    def end(self, error: ErrorT) -> None:
        """End every request with an error: the connection is gone."""
        waiting, self.waiting = self.waiting, {}
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for pending in waiting.values():
            pending.answered(error)

    def _arm(self, at: float) -> None:
        """Look for requests past their time at `at`."""
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
    """Give a future its answer, unless whoever waited has gone; an error need not be fetched then."""
    if future.done():
        return
    if isinstance(answer, Exception):
        future.set_exception(answer)
        future.exception()
    else:
        future.set_result(answer)
