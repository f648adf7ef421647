"""One budget of bytes for everything on its way out: answers, WebSocket messages, records read ahead for them.

Whatever is built for a client is counted before it is built and until the kernel has taken it, wherever it waits
meanwhile. Without room a request waits for a while and is then refused; a subscription just waits. Records read ahead
get at most half, so that they never keep the messages waiting that would make room for more of them.

Whoever waits for room presses. Subscriptions that hold records and have no credit for them let go of those: they can
be read again. Then connections give way that have taken nothing for `GIVE_WAY_S` although they were sent something.
So those who read nothing cost the others a moment, not the whole time that a slow client is given when there is room.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from tidelog_gateway.budget.load_shedding import GIVE_WAY_S, PRESS_S
from tidelog_proto.limits import KIB

SMALL_ANSWER_BYTES: Final = 16 * KIB
SMALL_SHARE: Final = 16
"""Answers up to that may use the sixteenth beyond the limit: who publishes does not wait for who reads."""


class Holder(Protocol):
    """A connection that was sent something, as the budget sees it."""

    held_bytes: int

    def idle_s(self) -> float:
        """Return for how long the client has taken nothing; 0 when nothing waits for it."""
        ...

    def cut(self) -> None:
        """End the connection; what it holds is given back at once."""


class Outgoing:
    """The bytes on their way out of one application.

    Attributes:
        limit_bytes: for all connections together.
        connection_limit_bytes: for one; a single answer may pass when nothing else is on its way there.
        used_bytes: of them; `prefetched_bytes` is the part that was read ahead.
        holders: connections that something waits for.
        idle: subscriptions that hold records without credit; calling one tells it to let go, and returns how much.
        on_cut: called for each connection that had to give way or was too slow.
    """

    def __init__(self, limit_bytes: int, connection_limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.connection_limit_bytes = min(limit_bytes, connection_limit_bytes)
        self.used_bytes = 0
        self.prefetched_bytes = 0
        self.holders: set[Holder] = set()
        self.idle: dict[object, Callable[[], int]] = {}
        self.on_cut: Callable[[], None] = _nothing
        self._waiting: set[asyncio.Future[None]] = set()

    def take(self, size_bytes: int) -> bool:
        """Count `size_bytes` if there is room; what is alone but for records read ahead always has it.

        So an answer larger than the limit is possible, and nothing waits for ever for what waits for it.
        """
        limit_bytes = self.limit_bytes
        if size_bytes <= SMALL_ANSWER_BYTES:
            limit_bytes += limit_bytes // SMALL_SHARE
        if self.used_bytes > self.prefetched_bytes and self.used_bytes + size_bytes > limit_bytes:
            return False
        self.used_bytes += size_bytes
        return True

    def take_prefetch(self, size_bytes: int) -> bool:
        """Count records that are read ahead, if they have room in their half."""
        if self.prefetched_bytes and self.prefetched_bytes + size_bytes > self.limit_bytes // 2:
            return False
        if self.used_bytes and self.used_bytes + size_bytes > self.limit_bytes:
            return False
        self.used_bytes += size_bytes
        self.prefetched_bytes += size_bytes
        return True

    def give_back(self, size_bytes: int) -> None:
        """Stop counting them, and wake who waits."""
        assert 0 <= size_bytes <= self.used_bytes
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
        """Wait until something is given back, at most `PRESS_S`."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            async with asyncio.timeout(PRESS_S):
                await future
        except TimeoutError:
            return
        finally:
            self._waiting.discard(future)

    def press(self, size_bytes: int) -> None:
        """Make room for `size_bytes` from those who can do without, or have only themselves to blame."""
        for let_go in list(self.idle.values()):
            if size_bytes <= 0:
                return
            size_bytes -= let_go()
        stalled = [holder for holder in self.holders if holder.idle_s() >= GIVE_WAY_S]
        stalled.sort(key=_held, reverse=True)
        for holder in stalled:
            if size_bytes <= 0:
                return
            size_bytes -= holder.held_bytes
            holder.cut()


def _held(holder: Holder) -> int:
    return holder.held_bytes


def _nothing() -> None:
    pass
