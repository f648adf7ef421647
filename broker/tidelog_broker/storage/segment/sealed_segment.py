"""A sealed segment: opening it for reading, and rebuilding its index."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tidelog_broker.storage.io.errors import DamagedError, LayoutError
from tidelog_broker.storage.io.filesystem import File, FileSystem
from tidelog_broker.storage.segment.active_segment import write_index
from tidelog_broker.storage.segment.disk import Disk, OpenSegment
from tidelog_broker.storage.segment.index import INDEX_HEADER_BYTES, Index, SegmentEnd, load_index, parse_index_header
from tidelog_broker.storage.segment.layout import SegmentHeader, index_path
from tidelog_broker.storage.segment.scan import scan_segment


@dataclass(frozen=True, slots=True)
class SealedSegment:
    """Metadata of a sealed segment; its file is opened on demand."""

    path: Path
    header: SegmentHeader
    end_offset: int
    end_digest: int
    size_bytes: int

    @property
    def base_offset(self) -> int:
        """The offset of the segment's first record."""
        return self.header.base_offset

    @property
    def is_growing(self) -> bool:
        """Whether the segment takes appends: always False here."""
        return False

    @property
    def start_digest(self) -> int:
        """The running digest before the segment's first record."""
        return self.header.start_digest

    @property
    def end(self) -> SegmentEnd:
        """The segment's end. Its position is the end of the file, which may be after the last batch."""
        return SegmentEnd(self.end_offset, self.size_bytes, self.end_digest)

    def open(self, disk: Disk) -> OpenSegment:
        """Open the segment with its index, which is rebuilt if it is missing, short or damaged.

        Raises:
            DamagedError: the segment's contents are wrong; this is detected only when the index has to be rebuilt.
        """
        file = disk.fs.open_readonly(self.path)
        try:
            index = self._load_index(disk.fs) or self._rebuild_index(disk.fs, file)
        except BaseException:
            file.close()
            raise
        # The deferred sync of a rolled segment keeps its own file open, so this one needs no sync.
        return OpenSegment(file, index, synced_bytes=self.size_bytes)

    def _load_index(self, fs: FileSystem) -> Index | None:
        loaded = try_load_index(fs, self.path, self.header)
        if loaded is None:
            return None
        index, end = loaded
        return index if (end.offset, end.digest) == (self.end_offset, self.end_digest) else None

    def _rebuild_index(self, fs: FileSystem, file: File) -> Index:
        scan = scan_segment(file, self.header)
        if (scan.end_offset, scan.end_digest) != (self.end_offset, self.end_digest):
            raise DamagedError.at(
                self.path,
                scan.stop.position,
                scan.stop.reason
                or f"the segment ends at offset {scan.end_offset}, but the log continues at {self.end_offset}",
            )
        write_index(fs, self.path, self.header, scan.index, scan.end)
        return scan.index


def try_load_index(fs: FileSystem, segment: Path, header: SegmentHeader) -> tuple[Index, SegmentEnd] | None:
    """Read a segment's index file; None if it is missing, short, damaged or of another segment."""
    path = index_path(segment)
    if not fs.exists(path):
        return None
    file = fs.open_readonly(path)
    try:
        return load_index(file, nonce=header.nonce)
    except LayoutError:
        return None
    finally:
        file.close()


def peek_index_end(fs: FileSystem, segment: Path, header: SegmentHeader) -> SegmentEnd | None:
    """Read the end in a segment's index file; None if the file is missing, damaged or of another segment."""
    path = index_path(segment)
    if not fs.exists(path):
        return None
    file = fs.open_readonly(path)
    try:
        return parse_index_header(file.pread(INDEX_HEADER_BYTES, 0), nonce=header.nonce).end
    except LayoutError:
        return None
    finally:
        file.close()
