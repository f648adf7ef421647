"""Log lines about the partitions that a node has begun to own, merged into one line for many.

A node that takes over from a failed one owns hundreds of further partitions within a second; a line for each would
flood the log. So lines are collected for a moment after the first.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, NamedTuple

log = logging.getLogger(__name__)

MOMENT_S: Final = 1.0
NAMED_MAX: Final = 5


class _BegunEpoch(NamedTuple):
    name: str
    epoch: int
    offset: int
    at_s: float


class TakeoverLog:
    """Collects the epochs that begin on this node, and logs many of them in one line. For the event loop's thread."""

    def __init__(self) -> None:
        self._epochs: list[_BegunEpoch] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self, name: str, epoch: int, offset: int) -> None:
        """Add an epoch of a partition that begins on this node."""
        loop = asyncio.get_running_loop()
        self._epochs.append(_BegunEpoch(name, epoch, offset, loop.time()))
        if self._timer is None:
            self._timer = loop.call_later(MOMENT_S, self.log_collected)

    def log_collected(self) -> None:
        """Log the collected epochs."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        epochs, self._epochs = self._epochs, []
        if len(epochs) <= NAMED_MAX:
            for one in epochs:
                log.info("%s: this node owns epoch %d, which begins at offset %d", one.name, one.epoch, one.offset)
            return
        names = ", ".join(one.name for one in epochs[:NAMED_MAX])
        took_s = epochs[-1].at_s - epochs[0].at_s
        log.info("this node has begun to own %d partitions within %.2f s: %s, ...", len(epochs), took_s, names)
