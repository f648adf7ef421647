"""Drains replicas: every batch in the files of a node's log, with its bytes' digest and the records in it.

Reads offline, with the storage's own scanner, which checks each CRC and the running digest on the way. A log that is
damaged in what was synced shows as a copy that ends early.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Collection, Iterator
from contextlib import closing
from pathlib import Path

from tests.faults.check import StoredBatch
from tests.faults.history import Key
from tests.faults.values import CONTROL, number_in

from tidelog_broker.storage.filesystem import RealFileSystem
from tidelog_broker.storage.partition_dirs import epoch_dirs, parse_partition_dir_name
from tidelog_broker.storage.scan import read_segment_header, scan_segment
from tidelog_broker.storage.segment import SEGMENT_SUFFIX
from tidelog_proto.batch import RecordBatch


def drain(data: Path, topics: Collection[str]) -> dict[Key, list[StoredBatch]]:
    """Return what a node's data directory holds of these topics, by partition.

    Raises:
        OSError, LayoutError: a file cannot be read.
    """
    fs = RealFileSystem()
    found: dict[Key, list[StoredBatch]] = {}
    for directory in sorted((data / "partitions").iterdir()):
        name = parse_partition_dir_name(directory.name)
        if name is None or name.topic not in topics:
            continue
        batches = found[Key(name.topic, name.partition)] = []
        for epoch in epoch_dirs(fs, directory).values():
            for path in sorted(epoch.glob(f"*{SEGMENT_SUFFIX}")):
                batches += _segment(fs, path)
    return found


def stored_ends(data: Path, topics: Collection[str]) -> dict[Key, int]:
    """Return how far a node's files reach, by partition, as far as a look at the newest ones tells.

    Raises:
        OSError, LayoutError: a file cannot be read.
    """
    fs = RealFileSystem()
    ends: dict[Key, int] = {}
    for directory in (data / "partitions").iterdir():
        name = parse_partition_dir_name(directory.name)
        epochs = list(epoch_dirs(fs, directory).values()) if name and name.topic in topics else []
        newest = max((path for epoch in epochs[-1:] for path in epoch.glob(f"*{SEGMENT_SUFFIX}")), default=None)
        if name is not None and newest is not None:
            with closing(fs.open_readonly(newest)) as file:
                ends[Key(name.topic, name.partition)] = scan_segment(file, read_segment_header(file)).end_offset
    return ends


def _segment(fs: RealFileSystem, path: Path) -> Iterator[StoredBatch]:
    with closing(fs.open_readonly(path)) as file:
        scan = scan_segment(file, read_segment_header(file))
        for slot in range(len(scan.index)):
            place = scan.index.place(slot)
            raw = file.pread(place.length, place.position)
            batch = RecordBatch.parse(memoryview(raw))
            numbers = [CONTROL] * len(batch) if batch.control else map(number_in, batch.values())
            yield StoredBatch(batch.header.epoch, batch.base_offset, hashlib.sha256(raw).digest(), array("q", numbers))
