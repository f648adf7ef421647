"""Who sends much is read from by turns, so that whoever sends little is read from at once.

What the kernel has received for a connection, uvloop takes in one go, up to 32 buffers, before it looks at the next
socket; a buffer is as large as the batch that is coming. So somebody who sends faster than the node works would have
tens of megabytes taken from each of its connections in each turn of the loop, while a publish of one record waits
behind them: p99 of 40 to 250 ms instead of 4, where the bytes of the flood alone take the machine none of that. So each
caller has a `Turn`, over all its connections: when `TURN_BYTES` were taken in it, whatever else comes from the caller
waits in line, and is taken in the next turn of the loop, which is as long. What others have sent is taken in between.

A turn costs some 10 µs, and only those pay it that send that much.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Final, Protocol

log = logging.getLogger(__name__)

TURN_BYTES: Final = 512 * 1024
"""Of one turn; a single frame may be larger, and is taken whole."""
REQUEST_BYTES: Final = 8 * 1024
"""What each request counts as in addition, since small ones cost, too."""
ENVELOPE_WEIGHT: Final = 32
"""So many bytes each byte of an envelope counts as: what is worked on for it is much more than for an attachment's.

Measured: 1 ns for a byte of an attachment; 6 to 20 of a PUBLISH of 250,000 entries, which is parsed and refused; 230 of
a LIST_OFFSETS of 1,000 entries, which takes 5 ms. So one of 16 KiB is a turn, as is half a megabyte of batches.
"""
WORK_BYTES_PER_US: Final = 64
"""So many bytes a microsecond of work counts as (`core.request_costs`): a turn is 8 ms of it, as of 64 requests of the
smallest."""


class TurnTaker(Protocol):
    """A connection, as it is seen from here."""

    @property
    def is_open(self) -> bool:
        """Whether it is still there."""
        ...

    def take_turn(self) -> None:
        """Be read from on."""

    def cut_off(self) -> None:
        """Be closed: its turn has failed, and nothing behind it can be trusted."""


class Turn:
    """Of one caller: what was taken of what it sent since its last turn was over, and who waits for the next."""

    __slots__ = ("taken_bytes", "waiting")

    def __init__(self) -> None:
        self.taken_bytes = 0
        self.waiting: deque[TurnTaker] = deque()
        """In order; somebody waits only while it is over."""

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to be taken in this turn of the loop."""
        return self.taken_bytes >= TURN_BYTES


class Rounds:
    """Of one node. A turn that is over is one here, so that the next one comes, whoever is gone by then."""

    def __init__(self) -> None:
        self._over: dict[Turn, None] = {}

    def took(self, turn: Turn, size_bytes: int) -> None:
        """Count what was taken, weighed."""
        turn.taken_bytes += size_bytes
        if turn.is_over and turn not in self._over:
            if not self._over:
                asyncio.get_running_loop().call_soon(self._next)
            self._over[turn] = None

    def wait(self, turn: Turn, sender: TurnTaker) -> None:
        """Have a connection, that reads nothing meanwhile, go on in a later turn of its caller: this one is over."""
        assert turn.is_over, "only what is over is followed by another"
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
    except Exception:  # whatever one of them does: the others are not to wait for ever
        log.exception("a connection's turn has failed: it is closed")
        sender.cut_off()
