"""The request budget: one limit of bytes for all bodies and messages that are received or handled.

An announced length is reserved before its first byte is read, although the client may never send it. When the budget is
used up, slow connections are closed until half of the budget is free, the largest reservation first. A connection is
slow if it has sent less than `PROGRESS_BYTES` in `STALL_TIMEOUT_S`, or would take longer than `WHOLE_WITHIN_S` at its
rate. While the budget is not exhausted, slow connections are not closed.

The concurrent requests of one authenticated caller may reserve as much as then remains free: half of the budget when
the caller is alone, a third when there are two; a single request has no such limit. So requests of a caller that wait
for its quota cannot exhaust the budget for other callers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from tidelog_gateway.budget.shedding_bounds import PROGRESS_BYTES, STALL_TIMEOUT_S
from tidelog_proto.flow.byte_budget import ByteBudget, SlowSenders, arrives_slowly

Body = bytes | memoryview
"""A whole body. A large body of columns is a memoryview of a buffer of its own, which Arrow reads without a copy."""


class RequestBudget(ByteBudget):
    """Limits the bytes of all request bodies and WebSocket messages that are received or handled at a time."""

    def __init__(self, bytes_max: int) -> None:
        super().__init__(bytes_max)
        self.stopping = False
        self.senders = SlowSenders(self)

    def take(self, size_bytes: int) -> bool:
        """Reserve `size_bytes`, closing slow connections if needed; return False if they still do not fit."""
        assert size_bytes >= 0
        if self.used_bytes + size_bytes > self.bytes_max:
            self.senders.make_room(time.monotonic())
            if self.used_bytes + size_bytes > self.bytes_max:
                return False
        self.used_bytes += size_bytes
        return True

    def close_slow(self, *, everyone: bool) -> None:
        """Close the connections whose body makes no progress, because the gateway stops.

        Requests that are cancelled from now on are answered as cancelled by the stop (`stopping`).

        Args:
            everyone: close all connections that receive a body.
        """
        self.stopping = True
        now = time.monotonic()
        for arrival in [arrival for arrival in self.senders.receiving if everyone or arrival.is_slow(now)]:
            arrival.cut()


class CallerUsage:
    """The bytes that one caller has reserved."""

    __slots__ = ("held_bytes",)

    def __init__(self) -> None:
        self.held_bytes = 0


_NOBODY: Final = CallerUsage()
"""The usage of all requests without a caller, to which no limit applies."""


class BodyReservation:
    """The bytes that one body or message has reserved in the request budget, while it is received and handled.

    Args:
        give_way: called when load shedding has returned the reservation; closes the connection.
        share: the bytes that the caller has reserved for all its bodies; None without authentication.
    """

    __slots__ = (
        "_arrived_bytes",
        "_budget",
        "_is_shared",
        "_mark_at",
        "_mark_bytes",
        "_share",
        "_since",
        "give_way",
        "held_bytes",
    )

    def __init__(self, budget: RequestBudget, give_way: Callable[[], None], share: CallerUsage | None = None) -> None:
        self._share = _NOBODY if share is None else share
        self._is_shared = share is not None
        self.give_way = give_way
        self.held_bytes = 0
        self._budget = budget
        self._arrived_bytes = 0
        self._mark_bytes = 0
        self._mark_at = self._since = 0.0

    def begin(self) -> None:
        """Let load shedding close the connection from now on, because its body is being received."""
        if self not in self._budget.senders.receiving:
            self._budget.senders.receiving[self] = None
            self._arrived_bytes = self._mark_bytes = 0
            self._mark_at = self._since = time.monotonic()

    def hold(self, size_bytes: int) -> bool:
        """Set the reservation to `size_bytes`.

        Return False if the budget or the caller's share does not allow it, which leaves the reservation unchanged, or
        if load shedding has closed this connection.
        """
        before_bytes = self.held_bytes
        if size_bytes > before_bytes:
            more_bytes = size_bytes - before_bytes
            if (self._is_shared and self._has_too_much(more_bytes)) or not self._budget.take(more_bytes):
                return False
            if self.held_bytes != before_bytes:
                self._budget.give_back(more_bytes)
                return False
            self.begin()
        else:
            self._budget.give_back(self.held_bytes - size_bytes)
        self._share.held_bytes += size_bytes - before_bytes
        self.held_bytes = size_bytes
        if not size_bytes:
            self.complete()
        return True

    def hold_whole(self, size_bytes: int) -> bool:
        """Reserve `size_bytes` for a complete body; False if the budget or the caller's share does not allow it."""
        if (self._is_shared and self._has_too_much(size_bytes)) or not self._budget.take(size_bytes):
            return False
        self.held_bytes = size_bytes
        self._share.held_bytes += size_bytes
        return True

    def received(self, arrived_bytes: int) -> None:
        """Note how many bytes have been received."""
        self._arrived_bytes = arrived_bytes
        if arrived_bytes - self._mark_bytes >= PROGRESS_BYTES:
            self._mark_bytes, self._mark_at = arrived_bytes, time.monotonic()

    def complete(self) -> None:
        """Mark the body as complete: it keeps its reservation and is exempt from load shedding."""
        self._budget.senders.receiving.pop(self, None)

    def end(self) -> None:
        """Return the whole reservation; idempotent."""
        self._budget.senders.receiving.pop(self, None)
        if self.held_bytes:
            self._budget.give_back(self.held_bytes)
            self._share.held_bytes -= self.held_bytes
            self.held_bytes = 0

    def _has_too_much(self, more_bytes: int) -> bool:
        others_bytes = self._share.held_bytes - self.held_bytes
        left_bytes = self._budget.bytes_max - self._budget.used_bytes
        return others_bytes > 0 and self._share.held_bytes + more_bytes > left_bytes

    def is_slow(self, now_s: float) -> bool:
        """Return whether the body makes no progress, or arrives too slowly."""
        if now_s - self._mark_at >= STALL_TIMEOUT_S:
            return True
        coming_s = now_s - self._since
        return coming_s >= STALL_TIMEOUT_S and arrives_slowly(self.held_bytes, self._arrived_bytes, coming_s)

    def cut(self) -> None:
        """Return the reservation and close the connection."""
        self.end()
        self.give_way()
