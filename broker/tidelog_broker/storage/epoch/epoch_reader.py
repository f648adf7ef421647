"""Reading an epoch's log on any thread, while one thread appends, rolls, truncates or deletes.

The tuple of segments is replaced as a whole, never mutated. The writer publishes new batches by advancing the end; a
reader loads the end first and the segments after it, and reads only below that end.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, contextmanager

from tidelog_broker.storage.engine.reading import EpochReading, Extent, FoundBatches
from tidelog_broker.storage.epoch.deferred_syncs import UNSYNCED_SEGMENTS_MAX
from tidelog_broker.storage.epoch.held_segments import HeldSegments, Segment
from tidelog_broker.storage.epoch.segment_extent import extent_of
from tidelog_broker.storage.io.errors import DamagedError, StorageFailedError, unreadable
from tidelog_broker.storage.segment.disk import Disk, OpenSegment
from tidelog_broker.storage.segment.reading import read_batches, read_digest, read_headers
from tidelog_broker.storage.segment.sealed_segment import SealedSegment
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import BatchHeader
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import FETCH_BYTES_MAX


class EpochReader(EpochReading):
    """Reads batches, headers and digests of an `EpochLog`, on any thread."""

    def __init__(self, disk: Disk, held: HeldSegments) -> None:
        self._disk = disk
        self._held = held

    def read(
        self, offset: int, max_bytes: int, *, limit_offset: int, at_least_one: bool = True, to_send: bool = False
    ) -> FoundBatches:
        """Read whole batches, starting with the one that holds `offset`, none of which ends above `limit_offset`.

        At least one batch is returned if one is below the limit, however large, unless `at_least_one` is False; the
        first may begin before `offset`. Batches are copies; with `to_send` they may be slices of a mapping, which only
        system calls may read: the caller then asks only for committed records, which are never truncated.

        Raises:
            ProtocolError: OFFSET_OUT_OF_RANGE below the start or above the end.
            DamagedError: the bytes contradict the index, or the log is in LIMBO and ends before `offset`.
            StorageFailedError, NoDescriptorError: a segment cannot be opened or read.
        """
        end_offset = self._held.end.offset
        left_bytes = min(max_bytes, FETCH_BYTES_MAX)
        batches: list[memoryview] = []
        heads: list[memoryview] = []
        mappings = self._disk.open_segments.mappings if to_send and self._disk.maps_reads else None
        position = offset
        for segment in self._segments_from(offset, end_offset):
            segment_end = min(segment.end_offset, end_offset)
            if position >= segment_end:
                continue
            try:
                with self.lease(segment) as opened:
                    found = read_batches(
                        opened,
                        segment.path,
                        offset=position,
                        limit_offset=limit_offset,
                        end_offset=segment_end,
                        max_bytes=left_bytes,
                        at_least_one=at_least_one and not batches,
                        mappings=mappings if isinstance(segment, SealedSegment) else None,
                    )
            except DamagedError:
                if self._held.end.offset >= end_offset:
                    raise
                # The log was truncated meanwhile; the removed records were never decided.
                raise self._out_of_range(position) from None
            except OSError as error:
                raise unreadable(f"{segment.path} cannot be read", error) from error
            batches += found.batches
            heads += found.heads
            position = found.next_offset
            left_bytes -= sum(map(len, found.batches))
            if position < segment_end or left_bytes <= 0:
                break
        return FoundBatches(batches, heads, position)

    def digest_at(self, offset: int) -> int | None:
        """Return the epoch's running digest before `offset`; None if no batch of this log begins or ends there.

        Costs an index lookup and at most one header read.

        Raises:
            DamagedError: the batch header is corrupt.
            StorageFailedError, NoDescriptorError: a segment cannot be opened or read.
        """
        end, segments = self._held.end, self._held.segments
        if offset == end.offset:
            return end.digest
        if not segments[0].base_offset <= offset < end.offset:
            return None
        segment = segments[bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1]
        if offset == segment.base_offset:
            return segment.header.start_digest
        with self.lease(segment) as opened:
            return read_digest(opened, segment.path, offset)

    def batch_start(self, offset: int) -> int | None:
        """Return the base offset of the batch that holds `offset`; None if no batch does."""
        segments = self._held.segments
        if not segments or not segments[0].base_offset <= offset < self._held.end.offset:
            return None
        segment = segments[bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1]
        with self.lease(segment) as opened:
            slot = opened.index.slot_of(offset)
            return opened.index.offsets[slot] if slot >= 0 else None

    def find_by_time(self, timestamp_us: int, from_offset: int = 0) -> int | None:
        """Return the base offset of the first batch with a record of at least this timestamp; None if no batch has one.

        Only batches that end after `from_offset` count. A segment's index holds the maximum timestamp so far, which may
        be that of an earlier batch, so in the segment that holds `from_offset` the batch headers are read instead.
        """
        end_offset = self._held.end.offset
        for segment in self._held.segments:
            if segment.base_offset < from_offset:
                for header in self._headers_of(segment, from_offset, end_offset):
                    if header.max_timestamp_us >= timestamp_us:
                        return header.base_offset
                continue
            with self.lease(segment) as opened:
                slot = opened.index.slot_of_time(timestamp_us)
                if slot is not None and opened.index.offsets[slot] < end_offset:
                    return opened.index.offsets[slot]
        return None

    def scan_headers(self, from_offset: int) -> Iterator[BatchHeader]:
        """Yield the headers of all batches from the one that holds `from_offset` to the current end."""
        end_offset = self._held.end.offset
        for segment in self._segments_from(from_offset, end_offset):
            with self.lease(segment) as opened:
                yield from read_headers(
                    opened, segment.path, offset=from_offset, end_offset=min(end_offset, segment.end_offset)
                )

    def extents(self, offset: int, limit_offset: int) -> Generator[Extent]:
        """Yield one extent per segment, from the batch that contains `offset` up to `limit_offset`.

        The segment is leased while its extent is in use.
        """
        end_offset, segments = self._held.end.offset, self._held.segments
        position = offset
        if position < segments[0].base_offset:
            return
        at = bisect_right(segments, position, key=lambda segment: segment.base_offset) - 1
        for segment in segments[at:]:
            if position >= limit_offset:
                return
            with self.lease(segment) as opened:
                extent = extent_of(segment, opened, position, limit_offset, min(end_offset, segment.end_offset))
                if extent is not None:
                    yield extent
                    position = extent.end_offset

    def extents_reversed(self, limit_offset: int) -> Generator[Extent]:
        """Yield the extents below `limit_offset`, newest first."""
        end_offset = self._held.end.offset
        for segment in reversed(self._held.segments):
            if segment.base_offset >= limit_offset:
                continue
            with self.lease(segment) as opened:
                extent = extent_of(segment, opened, 0, limit_offset, min(end_offset, segment.end_offset))
                if extent is not None:
                    yield extent

    @contextmanager
    def naming(self, segment: Segment) -> Iterator[bool]:
        """Yield whether a file may be created beside a segment; the segment is not removed until the block ends."""
        with self._held.beside:
            yield self._held.takes_files and segment in self._held.segments

    def _headers_of(self, segment: Segment, from_offset: int, end_offset: int) -> Iterator[BatchHeader]:
        """Yield the headers of a segment's batches that end after `from_offset`."""
        if segment.end_offset <= from_offset:
            return
        with self.lease(segment) as opened:
            yield from read_headers(
                opened, segment.path, offset=from_offset, end_offset=min(end_offset, segment.end_offset)
            )

    def sync_ahead(self, slack_bytes: int) -> None:
        """Sync most of the appended bytes while more are appended; up to `slack_bytes` of a segment may stay unsynced.

        Gives no durability guarantee; it shortens the next `sync`.

        Raises:
            StorageFailedError: a sync failed; every later sync fails, too.
        """
        for segment in self._held.segments[-1 - UNSYNCED_SEGMENTS_MAX :]:
            try:
                with self.lease(segment) as opened:
                    size_bytes = segment.size_bytes
                    if size_bytes > opened.synced_bytes + slack_bytes:
                        opened.datasync(size_bytes)
            except OSError as error:
                raise StorageFailedError(f"{segment.path} could not be synced: {error}; check the disk") from error
            except ProtocolError:
                continue  # The segment was deleted meanwhile, or the log is closed.

    # --------------------------------------------------------------------------------- internals

    def _segments_from(self, offset: int, end_offset: int) -> tuple[Segment, ...]:
        """Return the segments from the one that holds `offset` on; `end_offset` was loaded before.

        Raises:
            ProtocolError: OFFSET_OUT_OF_RANGE.
            DamagedError: the offset is after the readable end in LIMBO.
        """
        segments = self._held.segments
        start_offset = segments[0].base_offset
        if not start_offset <= offset <= end_offset:
            if self._held.damage is not None and offset > end_offset:
                raise DamagedError.at(self._held.damage.path, self._held.damage.position, self._held.damage.reason)
            raise self._out_of_range(offset)
        return segments[max(0, bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1) :]

    def lease(self, segment: Segment) -> AbstractContextManager[OpenSegment]:
        """Lease the open file of a segment until the block ends."""
        return self._disk.open_segments.lease(segment.path, lambda: self._open_segment(segment))

    def _open_segment(self, segment: Segment) -> OpenSegment:
        """Open a segment that a reader has looked up; it may have been rolled or deleted since."""
        now = next((one for one in self._held.segments if one.base_offset == segment.base_offset), None)
        try:
            if isinstance(now, SealedSegment):
                return now.open(self._disk)
            if now is not None and now.can_be_opened:
                return now.open_to_read()
        except FileNotFoundError:
            # The segment was deleted between lookup and opening.
            now = None
        except OSError as error:
            raise unreadable(f"{segment.path} cannot be opened", error) from error
        if now is None:
            raise self._out_of_range(segment.base_offset)
        raise StorageFailedError(f"{segment.path} cannot be read: the log is closed")

    def _out_of_range(self, offset: int) -> ProtocolError:
        first, end_offset = self._held.segments[0].header, self._held.end.offset
        start_offset = first.base_offset
        return ProtocolError(
            pb.OFFSET_OUT_OF_RANGE,
            f"partition {first.partition} of topic id {first.topic_id.hex()}: offset {offset} is out of range; offsets "
            f"{start_offset} to {end_offset} can be read in epoch {first.epoch}",
            log_start_offset=start_offset,
            high_watermark=end_offset,
        )
