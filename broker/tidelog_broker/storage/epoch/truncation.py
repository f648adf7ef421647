"""Truncation of an epoch's files at a batch boundary; a crash leaves the old tail, a part of it, or none.

The tail is removed from the end in durable steps: later segments newest first, then the index of the truncated segment,
then the tail of its file. A file's size changes atomically, so no crash leaves a gap before the remaining part, which
recovery would treat as damage because later sync marks cover it. Space that the file allocates again reads as zero, so
nothing of the old tail reappears.

Rejected: zeroing the tail in place, because the page cache writes zeroes back in any order and a mark may outlive the
batches that it covers. Copying the kept part into a new file, because it needs space and time.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tidelog_broker.storage.directory.names import SEGMENT_SUFFIX
from tidelog_broker.storage.engine.store import padded
from tidelog_broker.storage.epoch.recovery import remove_made, remove_segment
from tidelog_broker.storage.epoch.rewrite import rewrite_range
from tidelog_broker.storage.io.filesystem import FileSystem
from tidelog_broker.storage.segment.index import Index, SegmentEnd
from tidelog_broker.storage.segment.layout import SEGMENT_HEADER_BYTES, SegmentHeader


@dataclass(frozen=True, slots=True)
class KeptPart:
    """The index and the end of the truncated segment after the truncation."""

    index: Index
    end: SegmentEnd


def kept_part(index: Index, end_offset: int, end_digest: int) -> KeptPart:
    """Return the part of a segment's index that is kept if the log ends at a batch boundary in it."""
    count = index.slots_below(end_offset)
    if count < len(index):
        # A sync mark before the first removed batch may stay: it covers only batches before itself.
        position = index.place(count).position
    elif count:
        last = index.place(count - 1)
        position = last.position + padded(last.length)
    else:
        position = SEGMENT_HEADER_BYTES
    return KeptPart(index.first(count), SegmentEnd(end_offset, position, end_digest))


def cut_files(fs: FileSystem, segment: Path, size_bytes: int) -> None:
    """Remove all segments after `segment`, and the bytes of this one beyond `size_bytes`, durably.

    The kept part is as durable as before this call, see `keep_files`.

    Raises:
        OSError: any part of the tail may remain.
    """
    directory = segment.parent
    names = [name for name in fs.list_dir(directory) if name.endswith(SEGMENT_SUFFIX) and name > segment.name]
    for name in reversed(names):
        remove_segment(fs, directory / name)
        fs.sync_dir(directory)
    if remove_made(fs, segment):
        # The indexes have the nonce of the file that continues under the same name, so they must not reappear.
        fs.sync_dir(directory)
    with closing(fs.open(segment)) as file:
        if file.size() > size_bytes:
            file.truncate(size_bytes)
        file.datasync()


def keep_files(
    fs: FileSystem, segments: Iterable[tuple[Path, SegmentHeader, SegmentEnd]], *, synced_offset: int
) -> None:
    """Make the kept part of a damaged log durable, which recovery does only for undamaged logs.

    The caller has truncated the files before.

    Args:
        segments: all segments with their ends.
        synced_offset: records below it are known to be on the disk.

    Raises:
        OSError: some of the segments may not be durable.
    """
    for path, header, end in segments:
        if end.offset > synced_offset:
            with closing(fs.open(path)) as file:
                start = SegmentEnd(header.base_offset, SEGMENT_HEADER_BYTES, header.start_digest)
                rewrite_range(file, header, start, end)
                file.datasync()
