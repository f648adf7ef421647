"""Rereading a segment in portions, to find damage before a reader does."""

from __future__ import annotations

import errno
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from tidelog_broker.storage.engine.reading import Scrubbed, ScrubPart
from tidelog_broker.storage.io.errors import LayoutError
from tidelog_broker.storage.io.filesystem import FileSystem
from tidelog_broker.storage.segment.index import SegmentEnd
from tidelog_broker.storage.segment.scan import read_segment_header, scan_segment


@dataclass(frozen=True, slots=True)
class SegmentPart(ScrubPart):
    """A segment that takes no more appends: its epoch, file and expected end."""

    epoch: int
    path: Path
    end_offset: int
    end_digest: int

    def scrub(self, fs: FileSystem, start: object, bytes_max: int) -> Scrubbed:
        """Read and check a portion of the segment; see `ScrubPart.scrub`."""
        begin = cast(SegmentEnd | None, start)
        try:
            with closing(fs.open_readonly(self.path)) as file:
                header = read_segment_header(file)
                scan = scan_segment(file, header, begin, bytes_max=bytes_max)
        except (LayoutError, OSError) as error:
            if isinstance(error, OSError) and error.errno != errno.EIO:
                raise
            return Scrubbed(start, 0, is_done=True, damage=f"{self.path} cannot be read: {error}")
        size_bytes = scan.end_position - (begin.position if begin is not None else 0)
        if scan.stop.kind == "more":
            return Scrubbed(scan.end, size_bytes, is_done=False)
        damage = ""
        if (scan.end_offset, scan.end_digest) != (self.end_offset, self.end_digest):
            reason = scan.stop.reason or f"the segment ends at offset {scan.end_offset:,}, expected {self.end_offset:,}"
            damage = f"{self.path} is damaged at byte {scan.stop.position:,}: {reason}"
        return Scrubbed(scan.end, size_bytes, is_done=True, damage=damage)
