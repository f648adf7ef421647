"""Drains replicas: every batch in the files of a node's log, with its bytes' digest and the records in it.

Reads offline, with the storage's own scanner, which checks each CRC and the running digest on the way. A log that is
damaged in what was synced shows as a copy that ends early.
"""

from __future__ import annotations

import contextlib
import hashlib
from array import array
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

from tests.faults.check import StoredBatch
from tests.faults.history import Key
from tests.faults.values import CONTROL, number_in

from tidelog_broker.storage.directory.names import SEGMENT_SUFFIX
from tidelog_broker.storage.io.filesystem import RealFileSystem
from tidelog_broker.storage.partition.partition_dirs import epoch_dirs, parse_partition_dir_name
from tidelog_broker.storage.segment.layout import BEGUN_SUFFIX
from tidelog_broker.storage.segment.scan import read_segment_header, scan_segment
from tidelog_proto.batch.record_batch import RecordBatch


class Span(NamedTuple):
    """Offsets from `start` to `end`; a log has no gaps."""

    start: int
    end: int

    def covers(self, end: int) -> bool:
        """Whether everything below `end` is in it."""
        return self.start == 0 and self.end >= end


NOTHING: Final = Span(0, 0)


def drain(data: Path, topics: Mapping[bytes, str]) -> dict[Key, list[StoredBatch]]:
    """Return the records in a node's data directory for some topics, by partition.

    Args:
        data: the directory.
        topics: id -> topic in the `Key`.

    Raises:
        OSError, LayoutError: a file cannot be read.
    """
    fs = RealFileSystem()
    found: dict[Key, list[StoredBatch]] = {}
    for directory in sorted((data / "partitions").iterdir()):
        name = parse_partition_dir_name(directory.name)
        if name is None or name.topic_id not in topics:
            continue
        batches = found[Key(topics[name.topic_id], name.partition)] = []
        for epoch in epoch_dirs(fs, directory).values():
            for path in _segments(epoch):
                batches += _segment(fs, path)
    return found


def stored_spans(data: Path, topics: Mapping[bytes, str]) -> dict[Key, Span]:
    """Return the log start and end in a node's files, by partition, from the outer files.

    `topics` is as in `drain`. The node may be running: a partition whose files change their names is left out.

    Raises:
        OSError, LayoutError: a file cannot be read.
    """
    fs = RealFileSystem()
    spans: dict[Key, Span] = {}
    for directory in (data / "partitions").iterdir():
        name = parse_partition_dir_name(directory.name)
        if name is not None and name.topic_id in topics:
            with contextlib.suppress(FileNotFoundError):
                span = _span(fs, directory)
                if span is not None:
                    spans[Key(topics[name.topic_id], name.partition)] = span
    return spans


def _segments(epoch: Path) -> list[Path]:
    """Return an epoch's segments, oldest first; after a kill the newest may not have its name yet."""
    return sorted(path for path in epoch.iterdir() if path.suffix in {SEGMENT_SUFFIX, BEGUN_SUFFIX})


def _span(fs: RealFileSystem, directory: Path) -> Span | None:
    paths = [path for epoch in epoch_dirs(fs, directory).values() for path in _segments(epoch)]
    if not paths:
        return None
    with closing(fs.open_readonly(min(paths))) as file:
        start = read_segment_header(file).base_offset
    with closing(fs.open_readonly(max(paths))) as file:
        return Span(start, scan_segment(file, read_segment_header(file)).end_offset)


def _segment(fs: RealFileSystem, path: Path) -> Iterator[StoredBatch]:
    with closing(fs.open_readonly(path)) as file:
        scan = scan_segment(file, read_segment_header(file))
        for slot in range(len(scan.index)):
            place = scan.index.place(slot)
            raw = file.pread(place.length, place.position)
            batch = RecordBatch.parse(memoryview(raw))
            numbers = [CONTROL] * len(batch) if batch.control else map(number_in, batch.values())
            yield StoredBatch(batch.header.epoch, batch.base_offset, hashlib.sha256(raw).digest(), array("q", numbers))
