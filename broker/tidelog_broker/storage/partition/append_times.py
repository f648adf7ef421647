"""The times at which the segments of a log were appended, from the append timestamps of their batches.

A segment's index has the record timestamps, which producers choose. Append timestamps are set by the owner and never
decrease, so the last batch header of a segment has the time of its newest record. It is read on demand, one header per
segment, and cached, so that a process reads it once per sealed segment; retention stops at the first segment that is
not expired. Rejected: a field in the index file, which is rebuilt from the segment when missing, and would have to be
kept consistent to save one read.
"""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from tidelog_broker.storage.engine.reading import Part
from tidelog_broker.storage.engine.store import EpochStore
from tidelog_broker.storage.partition.held_epochs import HeldEpochs


class SegmentTimes(NamedTuple):
    """The append times of a segment's first and last batch, in µs since 1970, and the end offset of the last one."""

    first_us: int
    last_us: int
    end_offset: int


class Ages(NamedTuple):
    """The age of a log's segments.

    Attributes:
        expired_below: all records below it are expired; 0 if no segment is expired.
        oldest_end, oldest_bytes, oldest_last_us: end offset, size and last append time of the oldest unexpired
            segment with records; 0 if all records are expired.
        is_rolled: whether that segment takes no more appends.
        newest_first_us: when the active segment's first batch was appended; 0 before that.
        newest_us: when the last batch of the log was appended; 0 if the log is empty.
    """

    expired_below: int = 0
    oldest_end: int = 0
    oldest_bytes: int = 0
    oldest_last_us: int = 0
    is_rolled: bool = False
    newest_first_us: int = 0
    newest_us: int = 0


class AppendTimes:
    """Reads and caches the segments' append times. Used by one thread at a time, also during appends and reads."""

    def __init__(self, held: HeldEpochs) -> None:
        self._held = held
        self._known_times: dict[Path, SegmentTimes] = {}

    def look(self, before_us: int | None) -> Ages:
        """Return the ages of the segments.

        Args:
            before_us: a segment is expired if its last append is at or before this time; None: no segment is expired.

        Raises:
            ProtocolError: a segment was deleted meanwhile, or is damaged.
            StorageError: the disk failed.
        """
        segments = [
            (log, segment)
            for log in self._held.epochs
            for segment in log.segments
            if segment.end_offset > segment.base_offset
        ]
        paths = {segment.path for _, segment in segments}
        self._known_times = {path: times for path, times in self._known_times.items() if path in paths}
        if not segments:
            return Ages()
        newest_log, newest = segments[-1]
        newest_times = self._of(newest_log, newest)
        expired_below, oldest = 0, None
        for log, segment in segments:
            times = self._of(log, segment)
            if before_us is None or times.last_us > before_us or times.end_offset < segment.end_offset:
                oldest = (segment, times)
                break
            expired_below = segment.end_offset
        ages = Ages(expired_below=expired_below, newest_us=newest_times.last_us)
        if newest.is_growing:
            ages = ages._replace(newest_first_us=newest_times.first_us)
        if oldest is not None:
            segment, times = oldest
            ages = ages._replace(
                oldest_end=segment.end_offset,
                oldest_bytes=segment.size_bytes,
                oldest_last_us=times.last_us,
                is_rolled=not segment.is_growing,
            )
        return ages

    def at(self, offset: int) -> int:
        """Return the append time of the batch that holds `offset`, or of the next one; 0 after the last batch.

        Batches emptied by compaction have no append time and are skipped.

        Raises:
            ProtocolError, StorageError: as `look`.
        """
        for log in self._held.epochs:
            if log.end_offset > offset:
                for header in log.reader.scan_headers(max(offset, log.start_offset)):
                    if header.append_timestamp_us:
                        return header.append_timestamp_us
        return 0

    def _of(self, log: EpochStore, segment: Part) -> SegmentTimes:
        known, end_offset = self._known_times.get(segment.path), segment.end_offset
        if known is None or known.end_offset != end_offset:
            last_us = _append_us(log, end_offset - 1) or _latest_us(log, segment.base_offset, end_offset)
            first_us = known.first_us if known is not None else _append_us(log, segment.base_offset)
            known = self._known_times[segment.path] = SegmentTimes(first_us, last_us, end_offset)
        return known


def _latest_us(log: EpochStore, start_offset: int, end_offset: int) -> int:
    """Return the latest append time in a segment whose last batch was emptied by compaction; 0 if no batch has one."""
    headers = takewhile(lambda header: header.base_offset < end_offset, log.reader.scan_headers(start_offset))
    return max((header.append_timestamp_us for header in headers), default=0)


def _append_us(log: EpochStore, offset: int) -> int:
    header = next(log.reader.scan_headers(offset), None)
    return header.append_timestamp_us if header is not None else 0
