"""Cutting the files of an epoch at a batch boundary so that a crash leaves the old tail, a part of it, or none.

The tail is taken off the end in steps that are each durable: later segments go newest first, then the index of the
segment that is cut, then that segment's file is made shorter. A file's size changes in one step, so no crash leaves
a hole in front of what is left, which recovery would have to take for rot, since sync marks behind it say that it was
on the disk once. Space that the file takes again reads as zero: nothing of the old tail comes back.

Rejected: zeroing the tail where it lies. The page cache writes zeroes back in any order, so a mark may outlive the
batches that it covers; and copying what is kept into a new file, which
takes space and time just when neither may be there.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tidelog_broker.storage.epoch.recovery import remove_made, remove_segment
from tidelog_broker.storage.epoch.rewrite import write_anew
from tidelog_broker.storage.io.filesystem import FileSystem
from tidelog_broker.storage.segment.index import Index, SegmentEnd
from tidelog_broker.storage.segment.layout import (
    SEGMENT_HEADER_BYTES,
    SEGMENT_SUFFIX,
    SegmentHeader,
    padded,
)


@dataclass(frozen=True, slots=True)
class Kept:
    """What is left of the segment that is cut."""

    index: Index
    end: SegmentEnd


def kept_part(index: Index, end_offset: int, end_digest: int) -> Kept:
    """Return what an index says is left of its segment when the log ends at a batch boundary in it."""
    count = index.slots_below(end_offset)
    if count < len(index):
        # A sync mark in front of the first batch that goes may stay: it says nothing of what lies behind it.
        position = index.place(count).position
    elif count:
        last = index.place(count - 1)
        position = last.position + padded(last.length)
    else:
        position = SEGMENT_HEADER_BYTES
    return Kept(index.first(count), SegmentEnd(end_offset, position, end_digest))


def cut_files(fs: FileSystem, segment: Path, size_bytes: int) -> None:
    """Remove all segments behind `segment`, and of this one what lies behind `size_bytes`; durable at return.

    What is kept is as durable as it was, see `keep_files`.

    Raises:
        OSError: any part of the tail may still be there.
    """
    directory = segment.parent
    names = [name for name in fs.list_dir(directory) if name.endswith(SEGMENT_SUFFIX) and name > segment.name]
    for name in reversed(names):
        remove_segment(fs, directory / name)
        fs.sync_dir(directory)
    if remove_made(fs, segment):
        # They have the nonce of the file that goes on under the same name: they must not come back either.
        fs.sync_dir(directory)
    with closing(fs.open(segment)) as file:
        if file.size() > size_bytes:
            file.truncate(size_bytes)
        file.datasync()


def keep_files(
    fs: FileSystem, segments: Iterable[tuple[Path, SegmentHeader, SegmentEnd]], *, synced_offset: int
) -> None:
    """Make durable what is kept of a log that was opened damaged: what was good of it was left as it lay. Cut it first.

    Args:
        fs: the files.
        segments: with what they end, all of them.
        synced_offset: below this the disk is known to have them.

    Raises:
        OSError: any of them may not be durable.
    """
    for path, header, end in segments:
        if end.offset > synced_offset:
            with closing(fs.open(path)) as file:
                start = SegmentEnd(header.base_offset, SEGMENT_HEADER_BYTES, header.start_digest)
                write_anew(file, header, start, end)
                file.datasync()
