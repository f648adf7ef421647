"""The budget of bytes that are waiting to be sent to clients, and detection of clients that do not read.

Unread batches and answers occupy the node's memory. So data for a client is checked against two limits, before it is
read from the log and again before it is sent: the connection's own (`connection_bytes_max`), and a fraction (1/`SHARE`)
of what remains of three quarters of the node's budget. So a few slow clients may have many unsent bytes each, but each
of many slow clients only few. The last quarter is a reserve for later clients: each may have 1/`LEAST` of the budget,
so that a client that reads is served in spite of hundreds that do not. A larger batch waits until it fits the budget as
a whole. Small answers without batches are always sent; the requests of a client that does not read are limited by its
connection.

asyncio reports a full buffer, but not in each of its releases and not below the high-water mark. So the size of the
transport's buffer is read after each write (a partly sent write stays in memory as a whole, and counts as a whole), and
while anything waits all connections are checked every `TICK_S`. A client that reads nothing for `stall_ms` while
something waits for it is closed, whatever it sends meanwhile. If data for a client without unsent bytes does not fit
the budget, clients that have read nothing for `OVER_BUDGET_STALL_S` are closed at once, those with the most unsent
bytes first, until half of the budget is free.

Other nodes have their own limits and are not counted; the stall limit applies to them too.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from tidelog_proto.flow.byte_budget import ByteBudget

SHARE: Final = 8
LEAST: Final = 4096
TICK_S: Final = 0.02
PROMPT_S: Final = 1.0
"""Age of the oldest unsent write above which a client is sent copies of log data: unsent data without a copy keeps the
mapped log files open."""
OVER_BUDGET_STALL_S: Final = 2.0
_ONE_GO_S: Final = 0.002


class Sink(Protocol):
    """The interface that a `SendBacklog` requires of a connection."""

    def unsent(self) -> int:
        """Return the size of the transport's buffer in bytes; 0 when the connection is lost."""
        ...

    def changed(self) -> None:
        """Handle a change of the number of unsent bytes."""

    def has_room_again(self) -> None:
        """Resume sending: the unsent bytes are below the limits again."""

    def close_stalled(self, stalled_s: float) -> None:
        """Close the connection, whose client has read nothing for this long."""


@dataclass(slots=True)
class _Write:
    """One write: its range in all bytes ever written to the connection, and its time."""

    begin_bytes: int
    end_bytes: int
    written_s: float


class SendBacklog:
    """Tracks the unsent bytes of one connection, and decides whether more may be read or sent for it."""

    __slots__ = (
        "_outgoing",
        "_since_s",
        "_sink",
        "_taken_bytes",
        "_writes",
        "held_bytes",
        "is_node",
        "reserved_bytes",
        "unsent_bytes",
        "wanted_bytes",
        "written_bytes",
    )

    def __init__(self, outgoing: SendBudget, sink: Sink) -> None:
        self._outgoing = outgoing
        self._sink = sink
        self.is_node = False
        """Whether the connection is another node's, whose unsent bytes are not counted in the budget."""
        self.unsent_bytes = 0
        """Size of the transport's buffer when last read."""
        self.held_bytes = 0
        """Memory that the unsent bytes occupy: a write is released as a whole."""
        self._writes: deque[_Write] = deque()
        self.reserved_bytes = 0
        """Bytes reserved for data that is being read."""
        self.wanted_bytes = 0
        """Size of data that did not fit the limits; no other data is read for the connection before it fits."""
        self.written_bytes = 0
        self._taken_bytes = 0
        self._since_s = 0.0
        """Loop time since which nothing was sent although bytes are unsent."""

    # --- before sending --------------------------------------------------------------------------------

    @property
    def room_bytes(self) -> int:
        """Number of bytes that may be read now to be sent on this connection; none if it is not positive."""
        return self._outgoing.share_bytes - self.held_bytes - self.reserved_bytes

    @property
    def is_prompt(self) -> bool:
        """Whether the connection's oldest unsent write is younger than `PROMPT_S`, or nothing is unsent."""
        return not self._writes or self._outgoing.now_s() - self._writes[0].written_s < PROMPT_S

    def fits(self, size_bytes: int) -> bool:
        """Return whether data of this size may be sent; always True for a node.

        Data for a client may be sent if it fits the connection's share; or if nothing else is unsent or reserved on the
        connection, and it fits the budget or is alone in it.
        """
        outgoing = self._outgoing
        if self.is_node or size_bytes <= self.room_bytes:
            return True
        if self.held_bytes or self.reserved_bytes:
            return False
        return not outgoing.used_bytes or outgoing.used_bytes + size_bytes <= outgoing.bytes_max

    def has_room(self) -> bool:
        """Return whether bytes may be read for the connection; if not, it is resumed once they may."""
        if self.unsent_bytes < self._outgoing.connection_bytes_max:
            if self.is_node:
                return True
            if self.fits(self.wanted_bytes) if self.wanted_bytes else self.room_bytes > 0:
                self.wanted_bytes = 0
                return True
        self._outgoing.wait(self)
        return False

    def want(self, size_bytes: int) -> None:
        """Record the size of data that did not fit."""
        self.wanted_bytes = size_bytes
        self._outgoing.wait(self)

    @contextlib.contextmanager
    def reserving(self, size_bytes: int) -> Iterator[None]:
        """Count data that is about to be read, until it is sent or discarded."""
        if self.is_node:
            yield
            return
        self.reserved_bytes += size_bytes
        self._outgoing.used_bytes += size_bytes
        try:
            yield
        finally:
            self.reserved_bytes -= size_bytes
            self._outgoing.used_bytes -= size_bytes

    # --- after sending ----------------------------------------------------------------------------------

    def wrote(self, size_bytes: int) -> None:
        """Record that bytes were handed to the transport.

        TLS adds bytes: an increase of the buffer beyond `size_bytes` must not count as bytes that were sent.
        """
        unsent_bytes = self._sink.unsent()
        self.written_bytes += max(size_bytes, unsent_bytes - self.unsent_bytes)
        if unsent_bytes:
            self._keep(size_bytes)
        if unsent_bytes or self.unsent_bytes:
            self.note(unsent_bytes)

    def _keep(self, size_bytes: int) -> None:
        """Record a write that is not sent completely; merge it with the last one if that is less than 2 ms old."""
        now_s = self._outgoing.now_s()
        last = self._writes[-1] if self._writes else None
        if last is not None and now_s - last.written_s < _ONE_GO_S:
            last.end_bytes = self.written_bytes
        else:
            self._writes.append(_Write(self.written_bytes - size_bytes, self.written_bytes, now_s))

    def look(self) -> None:
        """Read the size of the transport's buffer."""
        self.note(self._sink.unsent())

    def note(self, unsent_bytes: int) -> None:
        """Record the size of the transport's buffer."""
        taken_bytes = self.written_bytes - unsent_bytes
        while self._writes and (self._writes[0].end_bytes <= taken_bytes or not unsent_bytes):
            self._writes.popleft()
        held_bytes = self.written_bytes - self._writes[0].begin_bytes if self._writes else unsent_bytes
        if not self.is_node:
            self._outgoing.used_bytes += held_bytes - self.held_bytes
        self.held_bytes = held_bytes
        if unsent_bytes == self.unsent_bytes:
            return
        if not self.unsent_bytes:
            self._outgoing.hold(self)
            self._taken_bytes, self._since_s = self.written_bytes - unsent_bytes, self._outgoing.now_s()
        self.unsent_bytes = unsent_bytes
        self._sink.changed()

    def become_node(self) -> None:
        """Stop counting: another node has authenticated on this connection."""
        if not self.is_node:
            self.is_node = True
            self._outgoing.used_bytes -= self.held_bytes + self.reserved_bytes

    def end(self) -> None:
        """Release everything: the connection is lost."""
        self.note(0)
        self._outgoing.let_go(self)

    # --- called by the budget ---------------------------------------------------------------------------

    def stalled_s(self, now_s: float) -> float:
        """Return for how many seconds nothing was sent although bytes are unsent."""
        taken_bytes = self.written_bytes - self.unsent_bytes
        if taken_bytes != self._taken_bytes or not self.unsent_bytes:
            self._taken_bytes, self._since_s = taken_bytes, now_s
        return now_s - self._since_s

    def cut(self) -> None:
        """Close the connection, which has stalled."""
        self._sink.close_stalled(self.stalled_s(self._outgoing.now_s()))
        self.look()

    def room_again(self) -> None:
        """Resume sending on the connection."""
        self._sink.has_room_again()


class SendBudget(ByteBudget):
    """The budget of one node: unsent bytes of all clients, plus reservations for data that is being read.

    Args:
        bytes_max: limit of the unsent bytes of all clients together.
        connection_bytes_max: nothing more is read for a connection with this many unsent bytes.
        stall_ms: a connection whose peer reads nothing for this long, while bytes are unsent, is closed.
    """

    def __init__(self, *, bytes_max: int, connection_bytes_max: int, stall_ms: int) -> None:
        super().__init__(bytes_max)
        self.connection_bytes_max = connection_bytes_max
        self._stall_s = stall_ms / 1000
        self._held: dict[SendBacklog, None] = {}
        self._waiting: dict[SendBacklog, None] = {}
        """Connections whose data did not fit, in order of arrival."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def share_bytes(self) -> int:
        """Number of unsent and reserved bytes that each client's connection may have now."""
        left_bytes = self.bytes_max - self.used_bytes
        share_bytes = (left_bytes - self.bytes_max // 4) // SHARE
        least_bytes = self.bytes_max // LEAST
        return share_bytes if share_bytes > least_bytes else min(least_bytes, left_bytes)

    def now_s(self) -> float:
        """Return the event loop's time."""
        return asyncio.get_running_loop().time()

    def hold(self, backlog: SendBacklog) -> None:
        """Watch a connection that has unsent bytes."""
        self._held[backlog] = None
        self._watch()

    def wait(self, backlog: SendBacklog) -> None:
        """Queue a connection whose data does not fit, and resume it when it has room."""
        self._waiting[backlog] = None
        self._watch()

    def let_go(self, backlog: SendBacklog) -> None:
        """Forget a closed connection."""
        self._held.pop(backlog, None)
        self._waiting.pop(backlog, None)

    def _watch(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now_s = self.now_s()
        for backlog in list(self._held):
            backlog.look()
            stalled_s = backlog.stalled_s(now_s)
            if not backlog.unsent_bytes:
                self._held.pop(backlog, None)
            elif stalled_s >= self._stall_s:
                backlog.cut()
        self._close_stalled(now_s)
        waiting, self._waiting = self._waiting, {}
        for backlog in waiting:
            if backlog.has_room():
                backlog.room_again()
        if self._held or self._waiting:
            self._watch()

    def _close_stalled(self, now_s: float) -> None:
        """Close stalled connections if data for a client without unsent bytes does not fit the budget."""
        if not any(not one.unsent_bytes and not one.has_room() for one in list(self._waiting)):
            return
        stalled = [one for one in self._held if not one.is_node and one.stalled_s(now_s) >= OVER_BUDGET_STALL_S]
        self.close_largest(stalled)
