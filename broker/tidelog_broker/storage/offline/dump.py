"""Offline dump of the records in data files, with the faults of each segment."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tidelog_broker.storage.io.filesystem import FileSystem
from tidelog_broker.storage.offline.verify import Finding, SegmentReport, verify
from tidelog_broker.storage.segment.scan import read_segment_header, scan_segment
from tidelog_proto.batch.record_batch import RecordBatch


@dataclass(frozen=True, slots=True)
class DumpedBatch:
    """A batch of records and its origin.

    Attributes:
        path: the segment.
        topic: the topic's name; empty if the name of the partition's directory does not contain it.
    """

    path: Path
    topic: str
    partition: int
    batch: RecordBatch


def dump(
    fs: FileSystem, path: Path, *, from_offset: int = 0, to_offset: int | None = None
) -> Iterator[DumpedBatch | Finding]:
    """Yield the batches of a log's segments in order, without control batches, each segment followed by its faults.

    Directories outside the log (partial copies, copies set aside) are skipped, unless `path` is such a directory or one
    of its segments.

    Args:
        path: a data directory, `partitions`, a partition, an epoch or one segment, as for `verify`.
        from_offset: skip records below it.
        to_offset: skip batches that begin at or above it.

    Raises:
        NodeDirError: the path does not exist or holds no Tidelog data.
        OSError: the disk cannot be read.
        ProtocolError: CORRUPT_BATCH: a body contradicts its checksum or header.
    """
    for report in verify(fs, path):
        is_asked_for = path in {report.path, report.path.parent}
        if report.role == "log" or is_asked_for:
            end = report.end_offset or 0
            if end > from_offset and (to_offset is None or (report.base_offset or 0) < to_offset):
                # A running node may have deleted or replaced the file.
                with contextlib.suppress(FileNotFoundError):
                    yield from _batches(fs, report, from_offset, end if to_offset is None else min(end, to_offset))
            yield from (finding for finding in report.findings if finding.severity != "note")


def _batches(fs: FileSystem, report: SegmentReport, from_offset: int, to_offset: int) -> Iterator[DumpedBatch]:
    with closing(fs.open_readonly(report.path)) as file:
        index = scan_segment(file, read_segment_header(file)).index
        for slot in range(max(0, index.slot_of(from_offset)), len(index)):
            position, length_bytes = index.place(slot)
            batch = RecordBatch.parse(file.pread(length_bytes, position))
            if batch.control:
                continue
            if batch.base_offset >= to_offset:
                return
            batch = batch.slice_from(from_offset)
            if len(batch):
                yield DumpedBatch(report.path, report.topic or "", report.partition or 0, batch)
