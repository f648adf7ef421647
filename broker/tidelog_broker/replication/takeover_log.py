"""The log lines about partitions that a node has come to own: one line for many.

A node that takes over from a dead one comes to own hundreds of partitions within a second, and a line for each would
push everything else out of sight. So the first is waited behind for a moment, and all of that moment are one line.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, NamedTuple

log = logging.getLogger(__name__)

MOMENT_S: Final = 1.0
NAMED_MAX: Final = 5


class _Begun(NamedTuple):
    name: str
    epoch: int
    offset: int
    at_s: float


class TakenOver:
    """Collects, for the event loop's thread; a partition is counted as often as it begins an epoch here."""

    def __init__(self) -> None:
        self._begun: list[_Begun] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self, name: str, epoch: int, offset: int) -> None:
        """A partition begins an epoch that this node owns."""
        loop = asyncio.get_running_loop()
        self._begun.append(_Begun(name, epoch, offset, loop.time()))
        if self._timer is None:
            self._timer = loop.call_later(MOMENT_S, self.tell)

    def tell(self) -> None:
        """Say what has gathered."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        begun, self._begun = self._begun, []
        if len(begun) <= NAMED_MAX:
            for one in begun:
                log.info("%s: epoch %d begins here at offset %d", one.name, one.epoch, one.offset)
            return
        names = ", ".join(one.name for one in begun[:NAMED_MAX])
        took_s = begun[-1].at_s - begun[0].at_s
        log.info("%d partitions begin an epoch here, within %.2f s: %s, ...", len(begun), took_s, names)
