"""The age of a partition's records: which ones have expired, and what retention will delete next.

Ages are computed from append timestamps and the node's steady clock. The log is read on a reader thread, and only if
the topic has a retention time or a client asks; afterwards ages follow from the clock alone.
"""

from __future__ import annotations

from typing import Final

from tidelog_broker.core.topics import DELETING
from tidelog_broker.partition.state import PartitionState
from tidelog_broker.partition.tools import PartitionTools
from tidelog_broker.storage.partition.append_times import Ages
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

ROLLS: Final = 4
"""Divisor: a segment is rolled after a quarter of the retention time, so that its oldest record is deleted in time."""

LONG: Final = 2
"""Factor: records older than twice the retention time are not kept for a lagging replica: the epoch is ended."""


class RecordAges:
    """Determines which records of one partition have expired, and what retention deletes next.

    All methods are for the event loop's thread.
    """

    def __init__(self, state: PartitionState, tools: PartitionTools, io_key: int) -> None:
        self._state = state
        self._times = state.log.times
        self._clock, self._readers, self._io_key = tools.clock, tools.readers, io_key
        self._ages = Ages()
        self._oldest_us = 0
        self._opened_end = state.log.end_offset
        self._newest_at_start_us: int | None = None
        """The append time of the record that was the log's last when it was opened; None until it is read, 0 if it
        cannot be read.
        """
        self._examined_shape: tuple[int, ...] = ()
        """The state of the log when it was last examined, see `_shape`."""
        self._refreshed_at = -1
        self.expired_below = 0
        """The offset below which all records have expired; 0 if no record has."""
        self.long_expired_below = 0
        """The offset below which all records are older than `LONG` times the retention time; 0 if no record is."""

    @property
    def _time_us(self) -> int:
        config = self._state.topic.config
        return config.retention_ms * 1000 if config.cleanup in DELETING else 0

    @property
    def must_roll(self) -> bool:
        """Whether the active segment has records that are old enough to roll it."""
        found, time_us = self._ages, self._time_us
        if not time_us or not found.newest_first_us or self._state.topic.config.hold:
            return False
        return found.newest_first_us <= self._before_us(time_us // ROLLS)

    def reset_expired(self) -> None:
        """Forget the expired offsets: the epoch has ended, and the log may be truncated before them.

        New records may get those offsets; the next `find_expired` examines them (ADR 0123).
        """
        self.expired_below = self.long_expired_below = 0
        self._examined_shape = ()

    async def find_expired(self) -> None:
        """Determine the expired offsets, if the topic has a retention time."""
        epoch = self._state.epoch
        had_expired, self.expired_below, self.long_expired_below = self.expired_below > 0, 0, 0
        time_us = self._time_us
        if not time_us:
            return
        if self._newest_at_start_us is None:
            self._newest_at_start_us = await self._stamp_at(self._opened_end - 1)
        before_us, shape = self._before_us(time_us), self._shape()
        if shape == self._examined_shape and not had_expired and not 0 < self._ages.oldest_last_us <= before_us:
            return  # An idle log is not read again until its oldest segment expires.
        self._examined_shape = shape if await self._look(before_us) else ()
        self.expired_below = self._ages.expired_below
        if self.expired_below:
            long_us = self._before_us(LONG * time_us)
            found = await self._ask(long_us)
            self.long_expired_below = found.expired_below if found is not None else 0
        if self._state.epoch != epoch:
            self.reset_expired()

    async def refresh(self) -> None:
        """Determine when the oldest and the newest record were appended, for a description."""
        shape, start_offset = self._shape(), self._state.log_start
        if shape != self._examined_shape:
            self._examined_shape = shape if await self._look(None) else ()
        if start_offset != self._refreshed_at or not self._oldest_us:
            self._oldest_us, self._refreshed_at = await self._stamp_at(start_offset), start_offset

    def describe(self, info: pb.PartitionInfo) -> None:
        """Fill in the ages found last and, if this node is the owner, the next deletion of retention."""
        state, config, found = self._state, self._state.topic.config, self._ages
        info.oldest_append_us, info.newest_append_us = self._oldest_us, found.newest_us
        if state.replica.state.owner is None or config.hold or config.cleanup not in DELETING:
            return
        if found.oldest_end <= state.log_start:
            return
        time_us, bytes_max = self._time_us, config.retention_bytes
        if not time_us and not bytes_max:
            return
        following = pb.NextDeletion(below=found.oldest_end, size_bytes=found.oldest_bytes, bounded=bytes_max > 0)
        if time_us:  # For the active segment this is the earliest time: later appends postpone the deletion.
            following.at_us = found.oldest_last_us + time_us
        if bytes_max:
            following.bytes_more = max(0, bytes_max - state.log.size_bytes)
        info.next_deletion.CopyFrom(following)

    def _shape(self) -> tuple[int, ...]:
        """Return a value that changes when the log grows, rolls or is deleted from."""
        log = self._state.log
        return (log.start_offset, log.end_offset, *(held.segment_count for held in log.epochs))

    def _before_us(self, age_us: int) -> int:
        return self._clock.stamped_before_us(age_us, self._newest_at_start_us or 0)

    async def _look(self, before_us: int | None) -> bool:
        found = await self._ask(before_us)
        if found is not None:
            self._ages = found
        return found is not None

    async def _ask(self, before_us: int | None) -> Ages | None:
        try:
            return await self._readers.call(self._io_key, self._times.look, before_us)
        except ProtocolError:
            return None  # The segment was deleted meanwhile, or is damaged, which the next check or a reader reports.

    async def _stamp_at(self, offset: int) -> int:
        if offset < 0:
            return 0
        try:
            return await self._readers.call(self._io_key, self._times.at, offset)
        except ProtocolError:
            return 0
