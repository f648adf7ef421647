"""What waits to be sent to clients: one budget of a node, and the clock of those that take nothing.

Batches and answers that a client does not take lie in the node's memory. So what is read for a client is held against
two bounds before it is read and again before it is sent: its own (`connection_bytes_max`) and its share of what is
left of three quarters of the node's budget, a `SHARE`th. So a few slow clients may have much, and many get less each.
The last quarter is for those that come then: each may have a `LEAST`th of the budget, so that one that reads is served
beside hundreds that do not. A batch that is larger than that waits until it fits the budget as a whole. Small answers
that are no batches are always sent; what a client may ask for while it takes nothing is bounded by the connection.

asyncio tells of a full buffer, but not in each of its releases and not below the mark. So the transport is asked for
the size of its buffer after each write (what it has taken of a write in part lies in memory until all of it is taken,
and counts in whole), and while anything waits all connections are looked at every `TICK_S`. One that takes nothing
for `stall_ms` while something waits for it is cut off, whatever it sends meanwhile; where somebody who has nothing
waiting finds no room, those that have taken nothing for `PRESSED_STALL_S` go at once, the largest first, until half
of the budget is free.

Other nodes have bounds of their own and are not counted; their clock is the same.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

SHARE: Final = 8
LEAST: Final = 4096
TICK_S: Final = 0.02
PROMPT_S: Final = 1.0
"""Who has something waiting for longer is sent copies: it would hold files of the log instead of memory."""
PRESSED_STALL_S: Final = 2.0
_ONE_GO_S: Final = 0.002


class Sink(Protocol):
    """A connection, as it is seen from here."""

    def unsent(self) -> int:
        """Return the size of the transport's buffer in bytes; 0 when the connection is gone."""
        ...

    def changed(self) -> None:
        """Look at how much waits: it is more or less than before."""

    def has_room_again(self) -> None:
        """Send on: there is room."""

    def take_too_little(self, stalled_s: float) -> None:
        """Be cut off: nothing was taken for so long."""


@dataclass(slots=True)
class _Piece:
    """What was written in one go: where it begins and ends in all that was ever written, and when."""

    begin_bytes: int
    end_bytes: int
    written_s: float


class Backlog:
    """What waits for one connection."""

    __slots__ = (
        "_outgoing",
        "_pieces",
        "_since_s",
        "_sink",
        "_taken_bytes",
        "held_bytes",
        "is_node",
        "reserved_bytes",
        "unsent_bytes",
        "wanted_bytes",
        "written_bytes",
    )

    def __init__(self, outgoing: Outgoing, sink: Sink) -> None:
        self._outgoing = outgoing
        self._sink = sink
        self.is_node = False
        """Of another node: not counted."""
        self.unsent_bytes = 0
        """As the transport said last."""
        self.held_bytes = 0
        """What of it lies in memory: what was written in one go is let go of as a whole."""
        self._pieces: deque[_Piece] = deque()
        self.reserved_bytes = 0
        """For what is being read."""
        self.wanted_bytes = 0
        """What found no room: nothing else is read before it does."""
        self.written_bytes = 0
        self._taken_bytes = 0
        self._since_s = 0.0
        """Since when nothing was taken, though something waits."""

    # --- before something is sent ----------------------------------------------------------------------

    @property
    def room_bytes(self) -> int:
        """How much may be read for it now; not above zero: nothing."""
        return self._outgoing.share_bytes - self.held_bytes - self.reserved_bytes

    @property
    def is_prompt(self) -> bool:
        """Whether what it was sent has not been waiting for long."""
        return not self._pieces or self._outgoing.now_s() - self._pieces[0].written_s < PROMPT_S

    def fits(self, size_bytes: int) -> bool:
        """Whether so much may be sent: it is within the share, or it is all that waits for it and fits the budget."""
        outgoing = self._outgoing
        if self.is_node or size_bytes <= self.room_bytes:
            return True
        if self.held_bytes or self.reserved_bytes:
            return False
        return not outgoing.total_bytes or outgoing.total_bytes + size_bytes <= outgoing.bytes_max

    def has_room(self) -> bool:
        """Whether anything may be read for it; if not, it is told when that is so again."""
        if self.unsent_bytes < self._outgoing.connection_bytes_max:
            if self.is_node:
                return True
            if self.fits(self.wanted_bytes) if self.wanted_bytes else self.room_bytes > 0:
                self.wanted_bytes = 0
                return True
        self._outgoing.wait(self)
        return False

    def want(self, size_bytes: int) -> None:
        """Note that so much did not fit."""
        self.wanted_bytes = size_bytes
        self._outgoing.wait(self)

    @contextlib.contextmanager
    def reserving(self, size_bytes: int) -> Iterator[None]:
        """Count what is about to be read, until it is sent or let go of."""
        if self.is_node:
            yield
            return
        self.reserved_bytes += size_bytes
        self._outgoing.total_bytes += size_bytes
        try:
            yield
        finally:
            self.reserved_bytes -= size_bytes
            self._outgoing.total_bytes -= size_bytes

    # --- after it ---------------------------------------------------------------------------------------

    def wrote(self, size_bytes: int) -> None:
        """Note that so much was handed to the transport.

        Encrypted it is more: where less was taken than TLS has added, nothing must look as if it had been.
        """
        unsent_bytes = self._sink.unsent()
        self.written_bytes += max(size_bytes, unsent_bytes - self.unsent_bytes)
        if unsent_bytes:
            self._keep(size_bytes)
        if unsent_bytes or self.unsent_bytes:
            self.note(unsent_bytes)

    def _keep(self, size_bytes: int) -> None:
        """Note a piece that was not taken at once; the event loop writes what comes in one turn together."""
        now_s = self._outgoing.now_s()
        last = self._pieces[-1] if self._pieces else None
        if last is not None and now_s - last.written_s < _ONE_GO_S:
            last.end_bytes = self.written_bytes
        else:
            self._pieces.append(_Piece(self.written_bytes - size_bytes, self.written_bytes, now_s))

    def look(self) -> None:
        """See how much waits now."""
        self.note(self._sink.unsent())

    def note(self, unsent_bytes: int) -> None:
        """Take how much waits now."""
        taken_bytes = self.written_bytes - unsent_bytes
        while self._pieces and (self._pieces[0].end_bytes <= taken_bytes or not unsent_bytes):
            self._pieces.popleft()
        held_bytes = self.written_bytes - self._pieces[0].begin_bytes if self._pieces else unsent_bytes
        if not self.is_node:
            self._outgoing.total_bytes += held_bytes - self.held_bytes
        self.held_bytes = held_bytes
        if unsent_bytes == self.unsent_bytes:
            return
        if not self.unsent_bytes:
            self._outgoing.hold(self)
            self._taken_bytes, self._since_s = self.written_bytes - unsent_bytes, self._outgoing.now_s()
        self.unsent_bytes = unsent_bytes
        self._sink.changed()

    def become_node(self) -> None:
        """Another node has proven itself at the other end."""
        if not self.is_node:
            self.is_node = True
            self._outgoing.total_bytes -= self.held_bytes + self.reserved_bytes

    def end(self) -> None:
        """The connection is gone, and what waited for it."""
        self.note(0)
        self._outgoing.let_go(self)

    # --- for the budget ---------------------------------------------------------------------------------

    def stalled_s(self, now_s: float) -> float:
        """Return for how long nothing was taken, though something waits."""
        taken_bytes = self.written_bytes - self.unsent_bytes
        if taken_bytes != self._taken_bytes or not self.unsent_bytes:
            self._taken_bytes, self._since_s = taken_bytes, now_s
        return now_s - self._since_s

    def cut_off(self, stalled_s: float) -> None:
        """End the connection."""
        self._sink.take_too_little(stalled_s)

    def room_again(self) -> None:
        """Let it send on."""
        self._sink.has_room_again()


class Outgoing:
    """The budget of one node.

    Args:
        bytes_max: what may wait for all clients together.
        connection_bytes_max: nothing more is read for a client for which so much waits.
        stall_ms: a client that takes nothing for so long is cut off.
    """

    def __init__(self, *, bytes_max: int, connection_bytes_max: int, stall_ms: int) -> None:
        self.bytes_max = bytes_max
        self.connection_bytes_max = connection_bytes_max
        self.total_bytes = 0
        """What waits for clients, and what is reserved for what is being read for them."""
        self._stall_s = stall_ms / 1000
        self._held: dict[Backlog, None] = {}
        self._waiting: dict[Backlog, None] = {}
        """Those that found no room, the first of them first."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def share_bytes(self) -> int:
        """What one more connection may have."""
        left_bytes = self.bytes_max - self.total_bytes
        share_bytes = (left_bytes - self.bytes_max // 4) // SHARE
        least_bytes = self.bytes_max // LEAST
        return share_bytes if share_bytes > least_bytes else min(least_bytes, left_bytes)

    def now_s(self) -> float:
        """Return the event loop's time."""
        return asyncio.get_running_loop().time()

    def hold(self, backlog: Backlog) -> None:
        """Something waits for a connection: look at it from now on."""
        self._held[backlog] = None
        self._watch()

    def wait(self, backlog: Backlog) -> None:
        """Tell a connection when it has room."""
        self._waiting[backlog] = None
        self._watch()

    def let_go(self, backlog: Backlog) -> None:
        """A connection is gone."""
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
                backlog.cut_off(stalled_s)
        self._relieve(now_s)
        waiting, self._waiting = self._waiting, {}
        for backlog in waiting:
            if backlog.has_room():
                backlog.room_again()
        if self._held or self._waiting:
            self._watch()

    def _relieve(self, now_s: float) -> None:
        """Cut off those that take nothing, if somebody who takes everything finds no room for what is theirs."""
        if not any(not one.unsent_bytes and not one.has_room() for one in list(self._waiting)):
            return
        stalled = [one for one in self._held if not one.is_node and one.stalled_s(now_s) >= PRESSED_STALL_S]
        for one in sorted(stalled, key=lambda each: each.unsent_bytes, reverse=True):
            if self.total_bytes <= self.bytes_max // 2:
                return
            one.cut_off(one.stalled_s(now_s))
            one.look()
