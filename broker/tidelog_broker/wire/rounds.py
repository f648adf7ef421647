"""Who sends much is read from by turns, so that whoever sends little is read from at once.

What the kernel has received for a connection, uvloop takes in one go, up to 32 buffers, before it looks at the next
socket; a buffer is as large as the batch that is coming. So somebody who sends faster than the node works would have
tens of megabytes taken from each of its connections in each turn of the loop, while a publish of one record waits
behind them: p99 of 40 to 250 ms instead of 4, where the bytes of the flood alone take the machine none of that. So a
connection that has sent `TURN_BYTES` since its last turn waits for the next: in each turn of the loop, each caller has
one of its connections read on. Whatever else has come, on connections that wait for nothing, is taken in between.

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


class Rounds:
    """Of one node."""

    def __init__(self) -> None:
        self._waiting: dict[object, deque[TurnTaker]] = {}
        """By caller, the connection whose turn is next first."""

    def wait(self, caller: object, sender: TurnTaker) -> None:
        """Have a connection, that reads nothing meanwhile, take a turn when it is its caller's."""
        senders = self._waiting.get(caller)
        if senders is not None:
            senders.append(sender)
            return
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._next)
        self._waiting[caller] = deque((sender,))

    def _next(self) -> None:
        waiting, self._waiting = self._waiting, {}
        turns = list[TurnTaker]()
        for caller, senders in waiting.items():
            while senders:
                sender = senders.popleft()
                if sender.is_open:
                    turns.append(sender)
                    break
            if senders:
                self._waiting[caller] = senders
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._next)
        for sender in turns:
            _have_turn(sender)


def _have_turn(sender: TurnTaker) -> None:
    try:
        sender.take_turn()
    except Exception:  # whatever one of them does: the others are not to wait for ever
        log.exception("a connection's turn has failed: it is closed")
        sender.cut_off()
