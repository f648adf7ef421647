"""Reading a log's segments again, a stretch at a time, to find what has rotted before somebody needs it."""

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
    """A segment that takes nothing more: of which epoch, its file, and how it ends."""

    epoch: int
    path: Path
    end_offset: int
    end_digest: int


class Scrubbed(NamedTuple):
    """How far a segment was read, and how much of it this time; whether it is done, and why it is damaged if it is."""

    end: SegmentEnd | None
    size_bytes: int
    is_done: bool
    damage: str = ""


def parts_of(store: PartitionLog) -> list[Part]:
    """Return the segments of a log that take nothing more, oldest first."""
    found: list[Part] = []
    for held in store.epochs:
        segments = held.segments
        for segment, following in pairwise(segments):
            found.append(Part(held.epoch, segment.path, segment.end_offset, following.header.start_digest))
        if segments and held is not store.active and held.damage is None:
            found.append(Part(held.epoch, segments[-1].path, held.end_offset, held.end_digest))
    return found


def is_held(store: PartitionLog, part: Part) -> bool:
    """Whether a log still has a segment as it was: retention, compaction, or the epoch's end may have been faster."""
    return part in parts_of(store)


def scrub(fs: FileSystem, part: Part, start: SegmentEnd | None, bytes_max: int) -> Scrubbed:
    """Read a stretch of a segment from its beginning, or from where the last one has ended, and check all of it.

    Args:
        fs: where it lies.
        part: the segment.
        start: the `end` of the stretch before it.
        bytes_max: about how much is read.

    Raises:
        OSError: it has been deleted, or cannot be looked at now: that says nothing of what it holds.
    """
    try:
        with closing(fs.open_readonly(part.path)) as file:
            header = read_segment_header(file)
            scan = scan_segment(file, header, start, bytes_max=bytes_max)
    except (LayoutError, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.EIO:
            raise
        return Scrubbed(start, 0, is_done=True, damage=f"{part.path} cannot be read: {error}")
    size_bytes = scan.end_position - (start.position if start is not None else 0)
    if scan.stop.kind == "more":
        return Scrubbed(scan.end, size_bytes, is_done=False)
    damage = ""
    if (scan.end_offset, scan.end_digest) != (part.end_offset, part.end_digest):
        reason = scan.stop.reason or f"it ends at offset {scan.end_offset:,}, it is to end at {part.end_offset:,}"
        damage = f"{part.path} is damaged at byte {scan.stop.position:,}: {reason}"
    return Scrubbed(scan.end, size_bytes, is_done=True, damage=damage)
