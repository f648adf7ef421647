"""The response budget: one limit of bytes for all answers, WebSocket messages and records read ahead for them.

Output is counted before it is built and until the kernel has taken it, in every buffer between. When the budget is
exhausted, a request waits for a bounded time and is then refused; a subscription waits without a timeout. Records read
ahead get at most half, so that they never block the messages whose sending would free them.

Load shedding frees memory: first, subscriptions drop records that they have read ahead and have no credit for, which
can be read again; then connections are closed whose client has read nothing for `STALL_TIMEOUT_S`. Clients that do not
read therefore delay others only briefly, not for the whole timeout of slow clients.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from tidelog_gateway.budget.shedding_bounds import SHED_INTERVAL_S, STALL_TIMEOUT_S
from tidelog_proto.flow.byte_budget import ByteBudget, Holder
from tidelog_proto.limits import KIB

SMALL_ANSWER_BYTES: Final = 16 * KIB
"""Answers up to this size may exceed the limit, so that publishing does not wait for slow readers."""
SMALL_SHARE: Final = 16
"""Small answers may exceed the limit by the limit divided by this number."""


class Receiver(Holder, Protocol):
    """A connection with unsent output, which load shedding may close."""

    def idle_s(self) -> float:
        """Return for how long the client has read nothing; 0 when nothing waits for it."""
        ...


class ResponseBudget(ByteBudget):
    """Limits the bytes of all output of one application, and sheds load to free some.

    Attributes:
        bytes_max: limit of the counted bytes of all connections together.
        connection_limit_bytes: limit of one connection; an answer may exceed it when it is the only one on its
            connection.
        prefetched_bytes: the counted bytes of records that are read ahead.
        holders: connections that have unsent output.
        idle: subscriptions that hold records without credit, with a function that drops these records and returns their
            bytes.
        on_cut: called for each connection that is closed because it is slow.
    """

    def __init__(self, bytes_max: int, connection_limit_bytes: int) -> None:
        super().__init__(bytes_max)
        self.connection_limit_bytes = min(bytes_max, connection_limit_bytes)
        self.prefetched_bytes = 0
        self.holders: set[Receiver] = set()
        self.idle: dict[object, Callable[[], int]] = {}
        self.on_cut: Callable[[], None] = _nothing
        self._waiting: set[asyncio.Future[None]] = set()

    def take(self, size_bytes: int) -> bool:
        """Count `size_bytes` if they fit, and return whether they do.

        A single answer always fits, besides records read ahead: an answer larger than the limit does not wait forever.
        """
        limit_bytes = self.bytes_max
        if size_bytes <= SMALL_ANSWER_BYTES:
            limit_bytes += limit_bytes // SMALL_SHARE
        if self.used_bytes > self.prefetched_bytes and self.used_bytes + size_bytes > limit_bytes:
            return False
        self.used_bytes += size_bytes
        return True

    def take_prefetch(self, size_bytes: int) -> bool:
        """Count records that are read ahead, if they fit the half of the budget for them; return whether they do."""
        if self.prefetched_bytes and self.prefetched_bytes + size_bytes > self.bytes_max // 2:
            return False
        if self.used_bytes and self.used_bytes + size_bytes > self.bytes_max:
            return False
        self.used_bytes += size_bytes
        self.prefetched_bytes += size_bytes
        return True

    def give_back(self, size_bytes: int) -> None:
        """Stop counting `size_bytes`, and resume the waiting connections."""
        assert 0 <= size_bytes <= self.used_bytes, "released more bytes than were counted"
        self.used_bytes -= size_bytes
        if size_bytes and self._waiting:
            waiting, self._waiting = self._waiting, set()
            for future in waiting:
                if not future.done():
                    future.set_result(None)

    def give_back_prefetch(self, size_bytes: int) -> None:
        """Stop counting records that were read ahead."""
        assert 0 <= size_bytes <= self.prefetched_bytes
        self.prefetched_bytes -= size_bytes
        self.give_back(size_bytes)

    async def changed(self) -> None:
        """Wait until bytes are returned, at most `SHED_INTERVAL_S`."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            async with asyncio.timeout(SHED_INTERVAL_S):
                await future
        except TimeoutError:
            return
        finally:
            self._waiting.discard(future)

    def shed_load(self, size_bytes: int) -> None:
        """Free `size_bytes`: drop records read ahead without credit, then close slow connections."""
        for let_go in list(self.idle.values()):
            if size_bytes <= 0:
                return
            size_bytes -= let_go()
        if size_bytes > 0:
            stalled = [holder for holder in self.holders if holder.idle_s() >= STALL_TIMEOUT_S]
            self.close_largest(stalled, self.used_bytes - size_bytes)


def _nothing() -> None:
    pass
