"""The active epoch's log as a replica sees it: what is queued for the disk, what is durable, digests between.

A batch is *queued* from the moment the core has decided to write it and *durable* once that write is done.
Everything the core decides is about the queued end, everything it promises or acknowledges about the durable
one. Writes of a partition are done in order, so the durable end walks through the queued positions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from tidelog_broker.core.replication.ports import Batch, LogView, Position
from tidelog_proto.batch.header import digest_after

RECENT_BATCHES: Final = 4096
"""Batch boundaries whose digests are kept in memory; older ones are read from the log."""


class BrokenRunError(Exception):
    """Received batches do not continue each other: the sender is wrong, nothing of them is taken."""


class Tail:
    """Queued and durable end of one epoch."""

    def __init__(self, epoch: int, start_offset: int, end: Position) -> None:
        assert end.offset >= start_offset
        self.epoch = epoch
        self.start_offset = start_offset
        self.queued = end
        self.durable = end
        self.rewinds = 0
        """How often something queued was given up for want of space."""
        self._recent: deque[Position] = deque([end], maxlen=RECENT_BATCHES)

    def extend(self, positions: Iterable[Position]) -> None:
        """Queue batches that end at `positions`."""
        for position in positions:
            assert position.offset > self.queued.offset
            self._recent.append(position)
            self.queued = position

    def wrote(self, end: Position) -> None:
        """What was queued up to `end` is durable."""
        assert self.durable.offset <= end.offset <= self.queued.offset
        self.durable = end

    def rewind(self) -> None:
        """Forget what is queued and not durable: there was no space for it."""
        self.queued = self.durable
        self.rewinds += 1
        while self._recent and self._recent[-1].offset > self.durable.offset:
            self._recent.pop()
        if not self._recent:
            self._recent.append(self.durable)

    def digest_at(self, offset: int, log: LogView) -> int | None:
        """Return the digest at a batch boundary of what is queued; None when there is no boundary."""
        if offset == self.start_offset:
            return 0
        if offset > self.queued.offset:
            return None
        if offset < self._recent[0].offset:
            return log.digest_at(self.epoch, offset)
        for position in reversed(self._recent):
            if position.offset <= offset:
                return position.digest if position.offset == offset else None
        return None


def check_run(batches: Sequence[Batch], *, epoch: int, owner_incarnation: int, base: Position) -> list[Position]:
    """Return where each of `batches` ends, if they continue `base` in this epoch of this owner.

    Raises:
        BrokenRunError: another epoch or owner, a hole, or a digest that does not follow.
    """
    positions: list[Position] = []
    end = base
    for header, data in batches:
        if header.epoch != epoch or header.owner_incarnation != owner_incarnation:
            raise BrokenRunError(f"a batch of epoch {header.epoch} of {header.owner_incarnation:#x} in epoch {epoch}")
        if header.base_offset != end.offset:
            raise BrokenRunError(f"a batch begins at {header.base_offset}, not at {end.offset}")
        if digest_after(data, 0, end.digest) != header.digest:
            raise BrokenRunError(f"the digest at {header.end_offset} does not follow from the one at {end.offset}")
        end = Position(header.end_offset, header.digest)
        positions.append(end)
    return positions
