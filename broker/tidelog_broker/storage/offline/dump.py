"""Offline dump of the records in data files, with the faults of each segment."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tidelog_broker.storage.io.filesystem import FileSystem
from tidelog_broker.storage.offline.stored_schemas import StoredSchemas
from tidelog_broker.storage.offline.verify import Finding, SegmentReport, verify
from tidelog_broker.storage.segment.scan import read_segment_header, scan_segment
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import unpack_header
from tidelog_proto.batch.record_batch import RecordBatch
from tidelog_proto.errors import ProtocolError
from tidelog_proto.schema.topic_schema import Schema


@dataclass(frozen=True, slots=True)
class DumpedBatch:
    """A batch of records and its origin.

    Attributes:
        path: the segment.
        topic: the topic's name; empty if the name of the partition's directory does not contain it.
        schema: of a typed topic, the newest known one; None: the batch is not typed.
    """

    path: Path
    topic: str
    partition: int
    batch: RecordBatch
    schema: Schema | None = None


def dump(
    fs: FileSystem,
    path: Path,
    *,
    from_offset: int = 0,
    to_offset: int | None = None,
    schemas: Mapping[bytes, list[Schema]] | None = None,
) -> Iterator[DumpedBatch | Finding]:
    """Yield the batches of a log's segments in order, without control batches, each segment followed by its faults.

    Directories outside the log (partial copies, copies set aside) are skipped, unless `path` is such a directory or one
    of its segments.

    Args:
        path: a data directory, `partitions`, a partition, an epoch or one segment, as for `verify`.
        from_offset: skip records below it.
        to_offset: skip batches that begin at or above it.
        schemas: topic id -> schemas, in addition to those in `__meta` of the data directory.

    Raises:
        NodeDirError: the path does not exist or holds no Tidelog data.
        OSError: the disk cannot be read.
        ProtocolError: CORRUPT_BATCH: a body contradicts its checksum or header; UNKNOWN_SCHEMA: the schema of a batch
            is in none of these places.
    """
    stored = StoredSchemas(fs, schemas or {}, lambda directory: _values(fs, directory))
    for report in verify(fs, path):
        is_asked_for = path in {report.path, report.path.parent}
        if report.role == "log" or is_asked_for:
            end = report.end_offset or 0
            if end > from_offset and (to_offset is None or (report.base_offset or 0) < to_offset):
                # A running node may have deleted or replaced the file.
                with contextlib.suppress(FileNotFoundError):
                    stop = end if to_offset is None else min(end, to_offset)
                    yield from _batches(fs, report, from_offset, stop, stored)
            yield from (finding for finding in report.findings if finding.severity != "note")


def _values(fs: FileSystem, directory: Path) -> Iterator[bytes]:
    """Yield the values of the readable records of `__meta`, which are in control batches."""
    for report in verify(fs, directory):
        if report.role != "log":
            continue
        with contextlib.suppress(FileNotFoundError), closing(fs.open_readonly(report.path)) as file:
            index = scan_segment(file, read_segment_header(file)).index
            for slot in range(len(index)):
                position, length_bytes = index.place(slot)
                batch = RecordBatch.parse(file.pread(length_bytes, position))
                yield from (value for value in batch.values() if value is not None)


def _batches(
    fs: FileSystem, report: SegmentReport, from_offset: int, to_offset: int, stored: StoredSchemas
) -> Iterator[DumpedBatch]:
    with closing(fs.open_readonly(report.path)) as file:
        segment = read_segment_header(file)
        index = scan_segment(file, segment).index
        for slot in range(max(0, index.slot_of(from_offset)), len(index)):
            position, length_bytes = index.place(slot)
            raw = file.pread(length_bytes, position)
            number = unpack_header(raw, typed=True).schema_id
            layouts = stored.layouts(segment.topic_id, number, report.path) if number else None
            if layouts is not None and number not in layouts:
                raise ProtocolError(pb.UNKNOWN_SCHEMA, _unknown_schema(report, number))
            batch = RecordBatch.parse(raw, layouts)
            if batch.control:
                continue
            if batch.base_offset >= to_offset:
                return
            batch = batch.slice_from(from_offset)
            if len(batch):
                schema = None if layouts is None else layouts[max(layouts)].schema
                yield DumpedBatch(report.path, report.topic or "", report.partition or 0, batch, schema)


def _unknown_schema(report: SegmentReport, number: int) -> str:
    topic = report.topic or "TOPIC"
    return (
        f"{report.path}: a batch has schema {number}, which is neither in __meta of its data directory nor in a file "
        f"of --schemas; write the file with: tidelog topic schema show {topic} --all --as file"
    )
