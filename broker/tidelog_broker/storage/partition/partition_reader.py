"""How a partition's log is read: what it holds, batches across epochs, digests, times.

The epochs' logs are a tuple that is replaced as a whole and never changed, so readers on other threads take it once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tidelog_broker.storage.epoch.epoch_log import EpochLog, State
from tidelog_broker.storage.epoch.epoch_reader import ReadResult
from tidelog_broker.storage.io.errors import DamagedError, NotHeldError
from tidelog_broker.storage.partition.partition_dirs import PartitionName
from tidelog_broker.storage.partition.snapshots import ProducerSnapshot, load_snapshots
from tidelog_broker.storage.segment.disk import Disk
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.header import BatchHeader
from tidelog_proto.limits import FETCH_BYTES_MAX


class LostEpoch(NamedTuple):
    """An epoch that keeps the partition in LIMBO as a whole: unreadable, or set aside when it was the newest."""

    epoch: int
    message: str
    is_aside: bool


class PartitionReader:
    """The readers' part of `PartitionLog`."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        name: PartitionName,
        epochs: Sequence[EpochLog],
        *,
        segment_bytes: int,
        lost: LostEpoch | None = None,
    ) -> None:
        self.directory = directory
        self.name = name
        self.segment_bytes = segment_bytes
        """For epochs and segments that begin from now on."""
        self._disk = disk
        self._lost = lost
        self._gone_below = 0
        # Replaced as a whole, never changed: readers on other threads take it once.
        self._epochs = tuple(epochs)

    # ------------------------------------------------------------------------------------ what it is

    @property
    def epochs(self) -> tuple[EpochLog, ...]:
        """The epochs' logs, oldest first; the last one is the active one."""
        return self._epochs

    @property
    def active(self) -> EpochLog | None:
        """The newest epoch's log, None before the first one."""
        return self._epochs[-1] if self._epochs else None

    @property
    def state(self) -> State:
        """The newest epoch's state, "sealed" before the first one; LIMBO when any epoch is in it."""
        if self.limbo is not None:
            return "limbo"
        return self._epochs[-1].state if self._epochs else "sealed"

    @property
    def limbo(self) -> str | None:
        """Why the partition is in LIMBO, for a person; None when it is not."""
        if self._lost is not None:
            return self._lost.message
        for log in self._epochs:
            if (damage := log.damage) is not None:
                return f"{damage.path} is damaged at byte {damage.position}: {damage.reason}"
        return None

    @property
    def unreadable_epoch(self) -> int | None:
        """The epoch that could not be opened at all, behind which older ones stayed closed; None without one."""
        return self._lost.epoch if self._lost is not None and not self._lost.is_aside else None

    @property
    def start_offset(self) -> int:
        """The first offset that can be read here, 0 before the first epoch: the log has no holes behind it."""
        return self._epochs[0].start_offset if self._epochs else 0

    @property
    def end_offset(self) -> int:
        """The offset behind the last record; 0 before the first epoch."""
        return self._epochs[-1].end_offset if self._epochs else 0

    @property
    def end_digest(self) -> int:
        """The running digest at the end of the newest epoch."""
        return self._epochs[-1].end_digest if self._epochs else 0

    @property
    def synced_offset(self) -> int:
        """How far the newest epoch is synced."""
        return self._epochs[-1].synced_offset if self._epochs else 0

    def epoch_end(self, epoch: int, start_offset: int) -> tuple[int, int]:
        """Return end offset and end digest of an epoch; of one that never got its first file, its start and 0."""
        for log in self._epochs:
            if log.epoch == epoch:
                return log.end_offset, log.end_digest
        return start_offset, 0

    def digest_at(self, epoch: int, offset: int) -> int | None:
        """See `EpochLog.digest_at`; None also for an epoch that is not in the log."""
        log = self._log_of(epoch)
        return log.digest_at(offset) if log is not None else None

    @property
    def size_bytes(self) -> int:
        """What all segments of the log hold, without what is being filled or set aside."""
        return sum(log.size_bytes for log in self._epochs)

    # ------------------------------------------------------------------------------------ reading

    def read(self, offset: int, max_bytes: int, *, limit_offset: int) -> ReadResult:
        """Read whole batches across epochs; otherwise as `EpochLog.read`.

        Raises:
            NotHeldError: `offset` lies in front of what this node has of the log, and was not deleted by it.
        """
        epochs = self._epochs
        if epochs and self._gone_below <= offset < epochs[0].start_offset:
            raise NotHeldError(f"offset {offset} is not in this copy, which begins at {epochs[0].start_offset}")
        if not self.start_offset <= offset <= self.end_offset and self.limbo is None:
            raise self._out_of_range(offset)
        left_bytes = min(max_bytes, FETCH_BYTES_MAX)
        batches: list[memoryview] = []
        position = offset
        for number, log in enumerate(epochs):
            if log.end_offset <= position and log is not epochs[-1] and log.damage is None:
                continue
            if position >= limit_offset:
                break
            found = log.read(position, left_bytes, limit_offset=limit_offset, at_least_one=not batches)
            batches += found.batches
            position = found.next_offset
            left_bytes -= sum(map(len, found.batches))
            following = epochs[number + 1] if number + 1 < len(epochs) else None
            if left_bytes <= 0 or following is None or position < following.start_offset:
                break
        if not batches and position < limit_offset and self.limbo is not None:
            raise DamagedError(f"offset {position} cannot be read: {self.limbo}")
        return ReadResult(batches, position)

    def find_by_time(self, timestamp_us: int) -> int | None:
        """Return the base offset of the first batch with a record of at least this timestamp; None without one."""
        for log in self._epochs:
            found = log.find_by_time(timestamp_us)
            if found is not None:
                return found
        return None

    def scan_headers(self, from_offset: int) -> Iterator[BatchHeader]:
        """Yield the headers of all batches from the one that holds `from_offset` to the end of now."""
        for log in self._epochs:
            if log.end_offset > from_offset:
                yield from log.scan_headers(max(from_offset, log.start_offset))

    def load_producer_snapshots(self) -> Iterator[ProducerSnapshot]:
        """Yield the valid snapshots, the newest first; they may name offsets that are not in the log."""
        return load_snapshots(self._disk.fs, self.directory) if self._epochs else iter(())

    # ------------------------------------------------------------------------------------ inside

    def _log_of(self, epoch: int) -> EpochLog | None:
        return next((log for log in self._epochs if log.epoch == epoch), None)

    def _out_of_range(self, offset: int) -> ProtocolError:
        return ProtocolError(
            pb.OFFSET_OUT_OF_RANGE,
            f"offset {offset}; {self.start_offset} to {self.end_offset} can be read",
            log_start_offset=self.start_offset,
            high_watermark=self.end_offset,
        )
