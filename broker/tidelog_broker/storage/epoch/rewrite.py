"""Rewriting the readable part of a segment that may not be on the disk.

When writeback fails, Linux keeps the pages readable and marks them clean: the next sync, in this process or another,
succeeds without writing anything. A process stops at its first failed sync, but a process started after it, or after a
kill, reads these pages and cannot distinguish them from durable ones. So recovery rewrites everything that no sync mark
covers before it syncs and trusts it: that makes the pages dirty, and the sync reports the true result. Until a page is
dirty the kernel may drop it and reread it from the disk, so the part is checked again after the write.

Rejected: recording that a sync failed, because the record would have to be written to the failed disk, and a process
killed in between has not written it. Copying the segment under a new name, because each start would read and write the
last segment of every log, for which the disk may have no space.
"""

from __future__ import annotations

import errno
from typing import Final

from tidelog_broker.storage.io.filesystem import File
from tidelog_broker.storage.segment.index import SegmentEnd
from tidelog_broker.storage.segment.layout import SegmentHeader
from tidelog_broker.storage.segment.scan import WINDOW_BYTES, scan_segment

_CHANGED: Final = "the segment's contents changed between two reads"


def rewrite_range(file: File, header: SegmentHeader, start: SegmentEnd, end: SegmentEnd) -> None:
    """Rewrite a segment in place between two batch boundaries; the caller syncs.

    Args:
        file: the segment, open for writing.
        start: the end of the part known to be on the disk.
        end: the end of the scan; its position may be after the last batch.

    Raises:
        OSError: a write failed, or the segment no longer has the contents that led to `end`.
    """
    position = start.position
    while position < end.position and (data := file.pread(min(WINDOW_BYTES, end.position - position), position)):
        file.pwritev([data], position)
        position += len(data)
    if start.position < end.position:
        scan = scan_segment(file, header, start)
        if (scan.end_offset, scan.end_digest) != (end.offset, end.digest):
            raise OSError(errno.EIO, _CHANGED, str(file.path))
