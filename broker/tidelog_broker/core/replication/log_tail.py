"""End of the active epoch's log on a replica: queued and durable position, and digests of recent batches.

A batch is *queued* once the core has decided to write it, and *durable* once the write has completed. Appends are
checked against the queued end; promises and acknowledgements report the durable end. Writes of a partition are
executed in order, so the durable end advances through the queued positions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from tidelog_broker.core.replication.ports import Batch, LogView, Position
from tidelog_proto.batch.header import digest_after

RECENT_BATCHES: Final = 4096
"""Batch boundaries whose digests are kept in memory; digests of older ones are read from the log."""


class BrokenRunError(Exception):
    """Raised for received batches that are not contiguous or have wrong digests; none of them is accepted."""


class LogTail:
    """Queued and durable end of one epoch."""

    def __init__(self, epoch: int, start_offset: int, end: Position) -> None:
        assert end.offset >= start_offset
        self.epoch = epoch
        self.start_offset = start_offset
        self.queued = end
        self.durable = end
        self.rewinds = 0
        """Number of times that queued batches were discarded for lack of disk space."""
        self._recent: deque[Position] = deque([end], maxlen=RECENT_BATCHES)

    def extend(self, positions: Iterable[Position]) -> None:
        """Queue batches that end at `positions`."""
        for position in positions:
            assert position.offset > self.queued.offset
            self._recent.append(position)
            self.queued = position

    def wrote(self, end: Position) -> None:
        """Advance the durable end to `end`."""
        assert self.durable.offset <= end.offset <= self.queued.offset
        self.durable = end

    def rewind(self) -> None:
        """Discard queued batches that are not durable, because there was no disk space for them."""
        self.queued = self.durable
        self.rewinds += 1
        while self._recent and self._recent[-1].offset > self.durable.offset:
            self._recent.pop()
        if not self._recent:
            self._recent.append(self.durable)

    def digest_at(self, offset: int, log: LogView) -> int | None:
        """Return the digest of the queued log at a batch boundary; None if `offset` is not a boundary."""
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
    """Return the end positions of `batches`, if they continue `base` in this epoch of this owner.

    Raises:
        BrokenRunError: a batch has another epoch or owner, is not contiguous, or has a wrong digest.
    """
    positions: list[Position] = []
    end = base
    for header, data in batches:
        if header.epoch != epoch or header.owner_incarnation != owner_incarnation:
            raise BrokenRunError(
                f"expected a batch of epoch {epoch} of owner {owner_incarnation:#x}, got one of epoch {header.epoch} "
                f"of owner {header.owner_incarnation:#x}"
            )
        if header.base_offset != end.offset:
            raise BrokenRunError(f"expected a batch at offset {end.offset}, got one at {header.base_offset}")
        if digest_after(data, 0, end.digest) != header.digest:
            raise BrokenRunError(
                f"digest mismatch in the batch from {end.offset} to {header.end_offset}: the logs differ before it"
            )
        end = Position(end.offset + header.last_offset_delta + 1, header.digest)
        positions.append(end)
    return positions
