"""The output of one connection: its share of the response budget, and the detection of slow clients.

The fill level of the transport's buffer is polled after each write until it is empty, because not every event loop
calls `resume_writing`; where it is called, the level is updated earlier. Bytes of one write count until all of them
have been sent, also on a closing connection, because uvloop keeps the whole buffer until then. A client that reads
nothing for too long is disconnected.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, Protocol

from tidelog_gateway.budget.response_budget import ResponseBudget
from tidelog_gateway.budget.shedding_bounds import PROGRESS_BYTES
from tidelog_gateway.problems import Problem
from tidelog_proto.limits import KIB

UNSENT_BYTES: Final = 64 * KIB
"""The next message is built when at most this many bytes wait in the transport."""

LOOK_MIN_S: Final = 0.005
LOOK_MAX_S: Final = 0.5
"""First and longest poll interval; the interval doubles, because most clients read everything at once."""


def no_room() -> Problem:
    """Return the 503 for an answer that does not fit into the response budget."""
    detail = (
        "the gateway's response budget, or this connection's share of it, has no room for the answer; read earlier "
        "answers, or send the request again later"
    )
    return Problem(503, "overloaded", detail, retryable=True)


class PushSource(Protocol):
    """An object that writes to `ConnectionOutput.direct`, such as `feed.fan_out.FanOut`.

    Attributes:
        pushed_at: the event loop's time of the object's last write.
    """

    @property
    def pushed_at(self) -> float: ...  # noqa: D102 - see the class


class ConnectionOutput:
    """Counts the output of one connection in the response budget, and closes the connection of a slow client.

    Args:
        slow_timeout_s: how long the client may read nothing.

    Attributes:
        held_bytes: bytes counted for this connection, in any buffer; `prefetched_bytes` of them were read ahead.
        direct: the transport while whole messages may be written to it without the server, else None.
        pushed_bytes: bytes written to `direct`, as far as the sources have reported them (`FanOut` settles with each
            connection only from time to time).
        sources: objects that write to `direct` and have not settled yet; usually one.
        settled_at: the loop's time of the last settled write to `direct`.
        on_slow: called once per stall, when the client has read nothing for `slow_timeout_s`; by default `cut`. Another
            function may first tell the client; after twice that time the connection is closed.
    """

    __slots__ = (
        *(
            "__weakref__",
            "direct",
            "held_bytes",
            "on_slow",
            "prefetched_bytes",
            "pushed_bytes",
            "settled_at",
            "sources",
        ),
        *("_look_s", "_lost", "_mark_at", "_mark_bytes", "_outgoing", "_writes_bytes", "_room", "_sent_bytes"),
        *("_slow_timeout_s", "_timer", "_reported", "_transport"),
    )

    def __init__(self, outgoing: ResponseBudget, slow_timeout_s: float) -> None:
        self.held_bytes = 0
        self.prefetched_bytes = 0
        self.direct: asyncio.Transport | None = None
        self.settled_at = 0.0
        self.pushed_bytes = 0
        self.sources: list[PushSource] = []
        self.on_slow: Callable[[], object] = self.cut
        self._outgoing = outgoing
        self._slow_timeout_s = slow_timeout_s
        self._transport: asyncio.Transport | None = None
        self._lost = False
        self._writes_bytes: deque[int] = deque()
        self._sent_bytes = 0
        self._mark_bytes = 0
        self._mark_at: float | None = None
        self._reported = False
        self._look_s = LOOK_MIN_S
        self._timer: asyncio.TimerHandle | None = None
        self._room = asyncio.Event()
        self._room.set()

    def connected(self, transport: asyncio.Transport) -> None:
        """Take the connection's transport."""
        self._transport = transport

    def lost(self) -> None:
        """Forget the transport of a closed connection, and return its bytes to the budget."""
        self._transport = self.direct = None
        self._lost = True
        self.look()

    def direct_writes(self, *, allowed: bool) -> None:
        """Allow or forbid writes of whole messages to the transport without the server."""
        self.direct = self._transport if allowed else None

    @property
    def pushed_at(self) -> float:
        """The loop's time of the last write to `direct`; 0 before the first write."""
        return max([self.settled_at, *(source.pushed_at for source in self.sources)])

    @property
    def unsent_bytes(self) -> int:
        """Bytes that wait in the transport."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    # ------------------------------------------------------------------------------------------- the budget

    def take(self, size_bytes: int, own_bytes: int = 0) -> bool:
        """Count `size_bytes` for this connection, if its share and the whole budget have enough free bytes.

        Args:
            own_bytes: bytes that are already counted for the same answer. An answer may exceed the share if it is the
                only one of its connection.

        Returns:
            Whether the bytes were counted.
        """
        if self._is_full(size_bytes, own_bytes) or not self._outgoing.take(size_bytes):
            return False
        self.held_bytes += size_bytes
        return True

    def take_prefetch(self, size_bytes: int) -> bool:
        """Count records that are read ahead if connection and budget have room for them; return whether they have."""
        if self._is_full_ahead(size_bytes) or not self._outgoing.take_prefetch(size_bytes):
            return False
        self.held_bytes += size_bytes
        self.prefetched_bytes += size_bytes
        return True

    async def reserve(self, size_bytes: int, wait_s: float, own_bytes: int = 0) -> None:
        """Count `size_bytes`; wait for free bytes, and shed load to free some. The arguments are those of `take`.

        Raises:
            Problem: 503, not enough bytes became free within `wait_s`.
        """
        if self.take(size_bytes, own_bytes):
            return
        take, is_full = partial(self.take, own_bytes=own_bytes), partial(self._is_full, own_bytes=own_bytes)
        try:
            async with asyncio.timeout(wait_s):
                await self._wait_for(take, is_full, size_bytes)
        except TimeoutError as error:
            raise no_room() from error

    def take_or_shed(self, size_bytes: int, own_bytes: int = 0) -> bool:
        """Count `size_bytes` if enough bytes are free, or load shedding frees them at once; see `take`.

        Returns:
            Whether the bytes were counted.
        """
        if self.take(size_bytes, own_bytes):
            return True
        self._outgoing.shed_load(size_bytes)
        return self.take(size_bytes, own_bytes)

    def take_anyway(self, size_bytes: int) -> None:
        """Count `size_bytes`, even beyond the limits."""
        self.held_bytes += size_bytes
        self._outgoing.used_bytes += size_bytes

    async def wait_for_room(self, size_bytes: int) -> None:
        """Count `size_bytes`; wait for free bytes without a timeout."""
        await self._wait_for(self.take, self._is_full, size_bytes)

    async def wait_for_prefetch(self, size_bytes: int) -> None:
        """Count records that will be read ahead; wait for free bytes without a timeout."""
        await self._wait_for(self.take_prefetch, self._is_full_ahead, size_bytes)

    def give_back(self, size_bytes: int) -> None:
        """Stop counting `size_bytes`."""
        assert 0 <= size_bytes <= self.held_bytes
        self.held_bytes -= size_bytes
        self._outgoing.give_back(size_bytes)

    def give_back_prefetch(self, size_bytes: int) -> None:
        """Stop counting records that were read ahead."""
        assert 0 <= size_bytes <= self.held_bytes
        self.held_bytes -= size_bytes
        self.prefetched_bytes -= size_bytes
        self._outgoing.give_back_prefetch(size_bytes)

    @contextlib.contextmanager
    def idle(self, holder: object, let_go: Callable[[], int]) -> Iterator[None]:
        """Allow load shedding to drop records read ahead during the block; see `ResponseBudget.idle`.

        Args:
            holder: the subscription that has read ahead.
            let_go: drops the records of `holder`, and returns their number of bytes.
        """
        self._outgoing.idle[holder] = let_go
        try:
            yield
        finally:
            del self._outgoing.idle[holder]

    def _is_full(self, size_bytes: int, own_bytes: int = 0) -> bool:
        """Return whether `size_bytes` more exceed the connection's share; a single answer always fits."""
        alone = self.held_bytes - own_bytes == self.prefetched_bytes
        return not alone and self.held_bytes + size_bytes > self._outgoing.connection_limit_bytes

    def _is_full_ahead(self, size_bytes: int) -> bool:
        """Return whether `size_bytes` more exceed half of the share; the first records read ahead always fit."""
        limit_bytes = self._outgoing.connection_limit_bytes // 2
        return bool(self.prefetched_bytes) and self.prefetched_bytes + size_bytes > limit_bytes

    async def _wait_for(self, take: Callable[[int], bool], is_full: Callable[[int], bool], size_bytes: int) -> None:
        while not take(size_bytes):
            if not is_full(size_bytes):
                self._outgoing.shed_load(size_bytes)
                if take(size_bytes):
                    return
            await self._outgoing.changed()

    # ---------------------------------------------------------------------------------------- the transport

    def sent(self, size_bytes: int) -> None:
        """Note that counted `size_bytes` were written to the transport; they count until all are sent."""
        self._writes_bytes.append(size_bytes)
        self._sent_bytes += size_bytes
        self.look()

    def push(self, data: bytes) -> bool:
        """Write a message that is shared with other connections, if the connection's buffer and budget allow it now.

        A message that the kernel takes at once, as it usually does, is not counted. Any other message is counted for
        each connection, although all connections share one copy of it.

        Returns:
            Whether the message was written.
        """
        transport = self._transport
        if transport is None or transport.is_closing():
            return False
        unsent_bytes = transport.get_write_buffer_size()
        if unsent_bytes and (unsent_bytes > UNSENT_BYTES or not self.take(len(data))):
            return False
        transport.write(data)
        if unsent_bytes:
            self.sent(len(data))
        elif transport.get_write_buffer_size():
            self.overflowed(len(data))
        return True

    def overflowed(self, size_bytes: int) -> None:
        """Count a message that was written to an empty transport and that the kernel has taken only in part."""
        self.take_anyway(size_bytes)
        self.sent(size_bytes)

    async def room(self) -> None:
        """Wait until at most `UNSENT_BYTES` wait in the transport."""
        while self.unsent_bytes > UNSENT_BYTES:
            self._room.clear()
            self.look()
            await self._room.wait()

    def idle_s(self) -> float:
        """Return the seconds since the unsent bytes last fell by `PROGRESS_BYTES`; 0 if no bytes are unsent."""
        self._measure()
        return 0.0 if self._mark_at is None else asyncio.get_running_loop().time() - self._mark_at

    def cut(self) -> None:
        """Abort the connection without waiting for the client."""
        if self._transport is not None:
            self._outgoing.on_cut()
            self._transport.abort()
            self.lost()

    def look(self) -> None:
        """Measure how many bytes have been sent, and poll again while bytes wait."""
        unsent_bytes = self._measure()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not unsent_bytes:
            self._outgoing.holders.discard(self)
            self._look_s = LOOK_MIN_S
            return
        self._outgoing.holders.add(self)
        self._timer = asyncio.get_running_loop().call_later(self._look_s, self._look_again)

    def _look_again(self) -> None:
        self._timer = None
        self._look_s = min(LOOK_MAX_S, 2 * self._look_s)
        idle_s = self.idle_s()
        if idle_s >= 2 * self._slow_timeout_s:
            self.cut()
        elif idle_s >= self._slow_timeout_s and not self._reported:
            self._reported = True
            self.on_slow()
        self.look()

    def _measure(self) -> int:
        """Return the number of waiting bytes; stop counting sent bytes, and note the client's progress."""
        unsent_bytes = self.unsent_bytes
        while self._writes_bytes and self._sent_bytes - self._writes_bytes[0] >= unsent_bytes:
            size_bytes = self._writes_bytes.popleft()
            self._sent_bytes -= size_bytes
            self.give_back(size_bytes)
        if unsent_bytes <= UNSENT_BYTES:
            self._room.set()
        if not unsent_bytes:
            self._mark_at, self._reported = None, False
        elif self._mark_at is None or unsent_bytes <= self._mark_bytes - PROGRESS_BYTES:
            self._mark_at, self._mark_bytes, self._reported = asyncio.get_running_loop().time(), unsent_bytes, False
        else:
            self._mark_bytes = max(self._mark_bytes, unsent_bytes)
        return unsent_bytes
