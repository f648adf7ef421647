"""Writing anew what can be read of a segment and may not be on the disk.

When the kernel fails to write pages back it keeps them readable and calls them clean: the next sync succeeds, in this
process or the next one, and writes nothing. A process stops at the first sync that fails, but the one that is started
after it finds these pages, and so does one that was started after a kill, and cannot tell them from others. So what no
sync mark covers is written over itself before it is synced and counts: that makes it dirty, and the sync says what is
true. What was read may be dropped from memory at any time until it is dirty, and then reads as what the disk has, so it
is checked once more behind the write.

Rejected: writing down that a sync failed. The note has to be on the disk that has just failed, and whoever is killed
between the two has not written it. A copy of the segment under a new name: the last one of each log is read and written
as a whole then, at a start for which a disk may have no space.
"""

from __future__ import annotations

import errno
from typing import Final

from tidelog_broker.storage.io.filesystem import File
from tidelog_broker.storage.segment.index import SegmentEnd
from tidelog_broker.storage.segment.layout import SegmentHeader
from tidelog_broker.storage.segment.scan import WINDOW_BYTES, scan_segment

_CHANGED: Final = "it reads otherwise than before"


def write_anew(file: File, header: SegmentHeader, start: SegmentEnd, end: SegmentEnd) -> None:
    """Write what lies between two batch boundaries of a segment over itself; whoever calls it syncs.

    Args:
        file: the segment, open for writing.
        header: the segment's.
        start: up to where the disk is known to have it.
        end: where a walk through it ends; its position may lie behind that.

    Raises:
        OSError: a write failed, or what is there now is not what led to `end`.
    """
    position = start.position
    while position < end.position and (data := file.pread(min(WINDOW_BYTES, end.position - position), position)):
        file.pwritev([data], position)
        position += len(data)
    if start.position < end.position:
        scan = scan_segment(file, header, start)
        if (scan.end_offset, scan.end_digest) != (end.offset, end.digest):
            raise OSError(errno.EIO, _CHANGED, str(file.path))
