"""Scrubbing: rereading a log's segments in parts, to find damage before a reader does."""

from __future__ import annotations

import errno
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from tidelog_broker.storage.io.filesystem import FileSystem
from tidelog_broker.storage.partition.partition_log import PartitionLog
from tidelog_broker.storage.segment.index import SegmentEnd
from tidelog_broker.storage.segment.layout import LayoutError
from tidelog_broker.storage.segment.scan import read_segment_header, scan_segment


class Part(NamedTuple):
    """A full segment: its epoch, file and end."""

    epoch: int
    path: Path
    end_offset: int
    end_digest: int


class ScrubResult(NamedTuple):
    """The result of scrubbing a part of a segment; `damage` is the reason if it is damaged."""

    end: SegmentEnd | None
    size_bytes: int
    is_done: bool
    damage: str = ""


def parts_of(store: PartitionLog) -> list[Part]:
    """Return the segments of a log that take no more appends, oldest first."""
    found: list[Part] = []
    for held in store.epochs:
        segments = held.segments
        for segment, following in pairwise(segments):
            found.append(Part(held.epoch, segment.path, segment.end_offset, following.header.start_digest))
        if segments and held is not store.active and held.damage is None:
            found.append(Part(held.epoch, segments[-1].path, held.end_offset, held.end_digest))
    return found


def is_held(store: PartitionLog, part: Part) -> bool:
    """Return whether a log still has a segment unchanged, despite retention, compaction and the end of its epoch."""
    return part in parts_of(store)


def scrub(fs: FileSystem, part: Part, start: SegmentEnd | None, bytes_max: int) -> ScrubResult:
    """Read and check a part of a segment, from its beginning or from the end of the previous part.

    Args:
        start: the `end` of the previous part.
        bytes_max: about how much is read.

    Raises:
        OSError: it was deleted or cannot be opened now; its contents are unknown.
    """
    try:
        with closing(fs.open_readonly(part.path)) as file:
            header = read_segment_header(file)
            scan = scan_segment(file, header, start, bytes_max=bytes_max)
    except (LayoutError, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.EIO:
            raise
        return ScrubResult(start, 0, is_done=True, damage=f"{part.path} cannot be read: {error}")
    size_bytes = scan.end_position - (start.position if start is not None else 0)
    if scan.stop.kind == "more":
        return ScrubResult(scan.end, size_bytes, is_done=False)
    damage = ""
    if (scan.end_offset, scan.end_digest) != (part.end_offset, part.end_digest):
        reason = scan.stop.reason or f"it ends at offset {scan.end_offset:,}, expected {part.end_offset:,}"
        damage = f"{part.path} is damaged at byte {scan.stop.position:,}: {reason}"
    return ScrubResult(scan.end, size_bytes, is_done=True, damage=damage)
