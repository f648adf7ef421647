"""Fair reading from client connections: callers that send much are read in turns, other callers at once.

A caller is the principal of a connection, or its client address if clients are not authenticated.

uvloop reads everything that the kernel has received for a connection in one go, up to 32 buffers, before the next
socket; a buffer is as large as the batch that is arriving. Without turns, a caller that sends faster than the node
works has tens of megabytes read from each of its connections in each iteration of the event loop, and a publish of one
record waits for all of that. So each caller has a `ReadTurn` for all of its connections: after `TURN_BYTES`, the node
does not read from them until the next iteration of the loop, which starts a new turn of the same size. In between it
reads from other callers. A turn costs about 10 µs, and only callers that send that much have turns.

A request whose parts must be processed in order of arrival, before any later request, does not run in a task but as
the `RemainingWork` of its connection: slice by slice, in its caller's turns.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Final, Protocol

log = logging.getLogger(__name__)

TURN_BYTES: Final = 512 * 1024
"""Size of a turn. A single larger frame is read as a whole."""
REQUEST_BYTES: Final = 8 * 1024
"""Bytes that each request is charged in addition to its size, since small requests have a cost too."""
ENVELOPE_WEIGHT: Final = 32
"""Factor for the bytes of an envelope, which cost much more time than those of an attachment.

A byte of an attachment costs about 1 ns, a byte of an envelope 6 to 230 ns, depending on its kind. With this factor an
envelope of 16 KiB is a full turn, as is an attachment of 512 KiB.
"""
WORK_BYTES_PER_US: Final = 64
"""Bytes that a microsecond of work counts as (`core.request_costs`). A turn is 8 ms of work, or 64 of the smallest
requests."""


class TurnTaker(Protocol):
    """The interface that `ReadTurns` requires of a connection."""

    @property
    def is_open(self) -> bool:
        """Whether the connection is open."""
        ...

    def take_turn(self) -> None:
        """Resume reading in the caller's new turn."""

    def cut_off(self) -> None:
        """Close the connection: `take_turn` has raised an exception, so the position in its stream is unknown."""


class ReadTurn:
    """The current turn of one caller: the bytes read in it, and the connections that wait for the next one."""

    __slots__ = ("taken_bytes", "waiting")

    def __init__(self) -> None:
        self.taken_bytes = 0
        self.waiting: deque[TurnTaker] = deque()
        """Connections in the order in which they began to wait; they only wait while the turn is over."""

    @property
    def is_over(self) -> bool:
        """Whether nothing more may be read in this iteration of the loop."""
        return self.taken_bytes >= TURN_BYTES


class Divided(Protocol):
    """A request that its connection processes in slices, in its caller's read turns."""

    def next_slice(self) -> bool:
        """Handle the next entries, charge their cost to the read turn, and return whether they were the last."""
        ...

    def drop(self) -> None:
        """Discard the remaining work: the connection is closed, and no answer can be sent."""


class RemainingWork:
    """Runs the remaining slices of a connection's last request."""

    __slots__ = ("request",)

    def __init__(self) -> None:
        self.request: Divided | None = None
        """None when all work is done."""

    def begin(self, request: Divided) -> None:
        """Start a request that is finished before any later one is dispatched."""
        assert self.request is None, "a request was dispatched before the previous one was done"
        self.request = request

    def is_done(self, turn: ReadTurn) -> bool:
        """Run slices until the caller's turn is over; return whether all work is done."""
        while self.request is not None:
            if turn.is_over:
                return False
            if self.request.next_slice():
                self.request = None
        return True

    def drop(self) -> None:
        """Discard the remaining work, if any."""
        request, self.request = self.request, None
        if request is not None:
            request.drop()


class ReadTurns:
    """Starts the next turn of each caller whose turn is exhausted.

    It belongs to the node instead of a connection, so that the turn starts even if the connection closes.
    """

    def __init__(self) -> None:
        self._over: dict[ReadTurn, None] = {}

    def took(self, turn: ReadTurn, size_bytes: int) -> None:
        """Charge weighted bytes to a turn; if that exhausts it, schedule the caller's next turn."""
        turn.taken_bytes += size_bytes
        if turn.is_over and turn not in self._over:
            if not self._over:
                asyncio.get_running_loop().call_soon(self._next)
            self._over[turn] = None

    def wait(self, turn: ReadTurn, sender: TurnTaker) -> None:
        """Queue a connection that has paused reading for its caller's next turn."""
        assert turn.is_over, "a connection waits only when its caller's turn is over"
        turn.waiting.append(sender)

    def _next(self) -> None:
        over, self._over = self._over, {}
        for turn in over:
            turn.taken_bytes = 0
            while turn.waiting and not turn.is_over:
                sender = turn.waiting.popleft()
                if sender.is_open:
                    _have_turn(sender)


def _have_turn(sender: TurnTaker) -> None:
    try:
        sender.take_turn()
    except Exception:  # A failing connection must not block the others.
        log.exception("closing a client connection, because processing the received data raised an error")
        sender.cut_off()
