"""Reading an epoch whose newest records are in the commit log and whose older ones are in segments, on any thread."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Final

from tidelog_broker.storage.commit_log.commit_log import CommitLog
from tidelog_broker.storage.commit_log.log_files import MovedError
from tidelog_broker.storage.commit_log.records import Boundary
from tidelog_broker.storage.commit_log.tail import UNKNOWN_DIGEST, Tail, TailEntries
from tidelog_broker.storage.commit_log.tail_batches import read_entries
from tidelog_broker.storage.engine.reading import EpochReading, Extent, FoundBatches
from tidelog_broker.storage.engine.scanned import SCANNED_BYTES, BatchesExtent
from tidelog_broker.storage.engine.store import Damage, EpochStart
from tidelog_broker.storage.epoch.epoch_log import EpochLog
from tidelog_broker.storage.io.errors import DamagedError, unreadable
from tidelog_broker.storage.segment.layout import segment_path
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import BatchHeader, unpack_header
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import FETCH_BYTES_MAX

_READS_MAX: Final = 100
"""Attempts to read batches that are copied meanwhile; each copy takes longer than a read."""


class SharedContents:
    """The parts of an epoch, which its writer changes and its readers read.

    Attributes:
        start: the identity of the epoch, and where it began.
        log: the commit log.
        tail: the records in the commit log.
        segments: the records before them; None before the first segment.
        damage: why the store is in LIMBO, None if it is not.
        is_plain: everything is in the segments, and the commit log is not used any more.
        is_blocked: the segments are damaged, so the tail cannot be read.
    """

    __slots__ = ("damage", "directory", "is_blocked", "is_plain", "log", "segments", "start", "tail")

    def __init__(
        self, directory: Path, start: EpochStart, log: CommitLog, tail: Tail, segments: EpochLog | None
    ) -> None:
        self.directory = directory
        self.start = start
        self.log = log
        self.tail = tail
        self.segments = segments
        self.damage: Damage | None = None
        self.is_plain = False
        self.is_blocked = False

    @property
    def end(self) -> Boundary:
        """The end of the last readable record."""
        segments = self.segments
        if segments is not None and (self.is_plain or self.is_blocked):
            return Boundary(segments.end_offset, segments.end_digest)
        return self.tail.end

    @property
    def start_boundary(self) -> Boundary:
        """The beginning of the first record."""
        segments = self.segments
        if segments is not None:
            return Boundary(segments.start_offset, segments.start_digest)
        return Boundary(self.start.offset, self.start.digest)

    @property
    def tail_path(self) -> Path:
        """The path of the segment that will have the tail's records, to name the tail in messages."""
        return segment_path(self.directory, self.tail.entries.base.offset)

    def view(self) -> tuple[TailEntries | None, int]:
        """Return the entries of the tail, and the end offset of the last readable record, which they reach.

        The entries are None if nothing is read from the tail.
        """
        while True:
            entries = None if self.is_plain or self.is_blocked else self.tail.entries
            end_offset = self.end.offset
            if entries is None or self.tail.entries is entries:
                return entries, end_offset


class SharedReader(EpochReading):
    """Reads `SharedContents`."""

    def __init__(self, contents: SharedContents) -> None:
        self._contents = contents

    def read(
        self, offset: int, max_bytes: int, *, limit_offset: int, at_least_one: bool = True, to_send: bool = False
    ) -> FoundBatches:
        """Read whole batches; see `EpochReading.read`."""
        contents = self._contents
        for attempt in range(_READS_MAX):
            entries, end_offset = contents.view()
            self._check_range(offset, end_offset)
            found = FoundBatches([], [], offset)
            segments = contents.segments
            if segments is not None and (entries is None or offset < entries.base.offset):
                found = segments.reader.read(
                    offset, max_bytes, limit_offset=limit_offset, at_least_one=at_least_one, to_send=to_send
                )
                if entries is None or found.next_offset < entries.base.offset:
                    return found
            if entries is None:
                return found
            left_bytes = min(max_bytes, FETCH_BYTES_MAX) - sum(map(len, found.batches))
            first, stop = _fitting(
                entries,
                found.next_offset,
                (limit_offset, end_offset),
                left_bytes,
                at_least_one=at_least_one and not found.batches,
            )
            try:
                batches = read_entries(contents.log.files, entries, first, stop)
            except MovedError:
                assert attempt < _READS_MAX - 1, "the records are copied again and again"
                continue
            except DamagedError:
                if contents.end.offset < end_offset:
                    raise self._out_of_range(offset) from None  # Truncated meanwhile.
                raise
            except OSError as error:
                raise unreadable(f"{contents.log.directory} cannot be read", error) from error
            next_offset = found.next_offset
            if stop > first:
                next_offset = entries.offsets[stop] if stop < entries.slots_below(end_offset) else end_offset
            return FoundBatches([*found.batches, *batches], [*found.heads, *batches], next_offset)
        raise AssertionError

    def digest_at(self, offset: int) -> int | None:
        """Return the running digest at a batch boundary; see `EpochReading.digest_at`."""
        contents = self._contents
        (entries, _), end, start = contents.view(), contents.end, contents.start_boundary
        if offset == end.offset:
            return end.digest
        if not start.offset <= offset < end.offset:
            return None
        if entries is None or offset < entries.base.offset:
            assert contents.segments is not None
            return contents.segments.reader.digest_at(offset)
        if offset == entries.base.offset and entries.base.digest != UNKNOWN_DIGEST:
            return entries.base.digest
        slot = entries.slot_of(offset)
        if slot < 1 or entries.offsets[slot] != offset:
            return None
        found = self.read(entries.offsets[slot - 1], 1, limit_offset=end.offset)
        return unpack_header(found.batches[0], typed=True).digest

    def batch_start(self, offset: int) -> int | None:
        """Return the base offset of the batch that holds `offset`; None if no batch does."""
        contents = self._contents
        entries, end_offset = contents.view()
        if not contents.start_boundary.offset <= offset < end_offset:
            return None
        if entries is None or offset < entries.base.offset:
            return contents.segments.reader.batch_start(offset) if contents.segments is not None else None
        slot = entries.slot_of(offset)
        return entries.offsets[slot] if slot >= 0 else None

    def scan_headers(self, from_offset: int) -> Iterator[BatchHeader]:
        """Yield the headers of all batches from the one that holds `from_offset` to the current end."""
        contents = self._contents
        entries, end_offset = contents.view()
        self._check_range(from_offset, end_offset)
        boundary = end_offset if entries is None else entries.base.offset
        if contents.segments is not None and from_offset < boundary:
            for header in contents.segments.reader.scan_headers(from_offset):
                if header.base_offset >= boundary:
                    break
                yield header
        for extent in self._tail_extents(max(from_offset, boundary), end_offset):
            yield from (unpack_header(extent.head(slot), typed=True) for slot in range(extent.first, extent.stop))

    def find_by_time(self, timestamp_us: int, from_offset: int = 0) -> int | None:
        """Return the base offset of the first batch of at least this timestamp; see `EpochReading.find_by_time`."""
        contents = self._contents
        entries, end_offset = contents.view()
        if contents.segments is not None:
            found = contents.segments.reader.find_by_time(timestamp_us, from_offset)
            if found is not None and (entries is None or found < entries.base.offset):
                return found
        if entries is None:
            return None
        for slot in range(max(0, entries.slot_of(from_offset)), entries.slots_below(end_offset)):
            following = entries.offsets[slot + 1] if slot + 1 < len(entries) else end_offset
            if following > from_offset and entries.times_us[slot] >= timestamp_us:
                return entries.offsets[slot]
        return None

    def extents(self, offset: int, limit_offset: int) -> Generator[Extent]:
        """Yield the extents from the batch that holds `offset` on, oldest first."""
        contents = self._contents
        entries, end_offset = contents.view()
        boundary = end_offset if entries is None else entries.base.offset
        if offset < contents.start_boundary.offset:
            return
        if contents.segments is not None and offset < boundary:
            yield from contents.segments.reader.extents(offset, min(limit_offset, boundary))
        yield from self._tail_extents(max(offset, boundary), min(limit_offset, end_offset))

    def extents_reversed(self, limit_offset: int) -> Generator[Extent]:
        """Yield the extents below `limit_offset`, newest first; the tail is read as a whole."""
        contents = self._contents
        entries, end_offset = contents.view()
        boundary = end_offset if entries is None else entries.base.offset
        batches = [
            batch
            for extent in self._tail_extents(boundary, min(limit_offset, end_offset))
            for batch in extent.read(extent.first, extent.stop)
        ]
        if batches:
            yield BatchesExtent(contents.tail_path, batches)
        if contents.segments is not None:
            yield from contents.segments.reader.extents_reversed(min(limit_offset, boundary))

    def sync_ahead(self, slack_bytes: int) -> None:
        """Do nothing: a sync of the log covers many partitions and is soon done for one of them."""

    # --------------------------------------------------------------------------------- internals

    def _tail_extents(self, offset: int, limit_offset: int) -> Generator[BatchesExtent]:
        while offset < limit_offset:
            found = self.read(offset, SCANNED_BYTES, limit_offset=limit_offset)
            if not found.batches:
                return
            yield BatchesExtent(self._contents.tail_path, found.batches)
            offset = found.next_offset

    def _check_range(self, offset: int, end_offset: int) -> None:
        damage = self._contents.damage
        if self._contents.start_boundary.offset <= offset <= end_offset:
            return
        if damage is not None and offset > end_offset:
            raise DamagedError.at(damage.path, damage.position, damage.reason)
        raise self._out_of_range(offset)

    def _out_of_range(self, offset: int) -> ProtocolError:
        contents = self._contents
        start, start_offset, end_offset = contents.start, contents.start_boundary.offset, contents.end.offset
        return ProtocolError(
            pb.OFFSET_OUT_OF_RANGE,
            f"partition {start.partition} of topic id {start.topic_id.hex()}: offset {offset} is out of range; offsets "
            f"{start_offset} to {end_offset} can be read in epoch {start.epoch}",
            log_start_offset=start_offset,
            high_watermark=end_offset,
        )


def _fitting(
    entries: TailEntries, offset: int, limits: tuple[int, int], max_bytes: int, *, at_least_one: bool
) -> tuple[int, int]:
    """Return the slots of the batches from the one that holds `offset` on, within `max_bytes`.

    Args:
        limits: the limit of the read and the end of the store; no batch ends above one of them.
    """
    limit_offset, end_offset = limits
    readable = entries.slots_below(end_offset)
    first = max(0, entries.slot_of(offset))
    stop = readable if limit_offset >= end_offset else min(readable, max(0, entries.slot_of(limit_offset)))
    if offset >= end_offset or first >= stop:
        return 0, 0
    slot, left_bytes = first, max_bytes
    while slot < stop and (entries.lengths[slot] <= left_bytes or (at_least_one and slot == first)):
        left_bytes -= entries.lengths[slot]
        slot += 1
    return first, slot
