"""A file that is appended to through a mapping of its space, behind the same protocol as one that is written.

Space is taken before it is written, as in any segment, so a full disk is an ENOSPC before anything is copied, and the
mapping never has to make room. The bytes get to the disk by the same `datasync`, which covers what was written through
a mapping. A mapping is made of what is allocated, from where the next bytes go; when the file has grown there is a new
one. A file is never cut while it is mapped here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tidelog_broker.storage.io.filesystem import File
from tidelog_broker.storage.io.mapping import Mapping, WriteMapping
from tidelog_proto.batch.header import Buffer


class MappedWriter:
    """A `File` around another one, whose `pwritev` copies into a mapping. Writes, cuts and `close` are one thread's."""

    __slots__ = ("_file", "_mapping", "path")

    def __init__(self, file: File) -> None:
        self.path: Path = file.path
        self._file = file
        self._mapping: WriteMapping | None = None

    def pread(self, length_bytes: int, at: int) -> bytes:
        """Read; see `File.pread`. What was written through the mapping is there at once."""
        return self._file.pread(length_bytes, at)

    def pwritev(self, buffers: Sequence[Buffer], at: int) -> None:
        """Write into space that was allocated; see `File.pwritev`."""
        mapping = self._mapping
        if mapping is None or at + sum(map(len, buffers)) > mapping.end_bytes:
            self.finish_writing()
            mapping = self._mapping = self._file.map_to_write(at)
        mapping.write(buffers, at)

    def pwritev_durably(self, buffers: Sequence[Buffer], at: int) -> None:
        """Write past the mapping, and sync; see `File.pwritev_durably`."""
        self._file.pwritev_durably(buffers, at)

    def allocate(self, at: int, length_bytes: int) -> None:
        """Take space; see `File.allocate`."""
        self._file.allocate(at, length_bytes)

    def truncate(self, size_bytes: int) -> None:
        """Cut; see `File.truncate`."""
        self.finish_writing()
        self._file.truncate(size_bytes)

    def datasync(self) -> None:
        """Sync; see `File.datasync`."""
        self._file.datasync()

    def size(self) -> int:
        """Return the size; see `File.size`."""
        return self._file.size()

    def map_to_send(self) -> Mapping:
        """Map; see `File.map_to_send`."""
        return self._file.map_to_send()

    def map_to_write(self, at: int) -> WriteMapping:
        """Map; see `File.map_to_write`."""
        return self._file.map_to_write(at)

    def read_ahead(self, at: int, length_bytes: int) -> None:
        """Hint; see `File.read_ahead`."""
        self._file.read_ahead(at, length_bytes)

    def map(self) -> memoryview:
        """Map; see `File.map`."""
        return self._file.map()

    def close(self) -> None:
        """Close; see `File.close`."""
        self.finish_writing()
        self._file.close()

    def finish_writing(self) -> None:
        """Unmap; see `File.finish_writing`."""
        mapping, self._mapping = self._mapping, None
        if mapping is not None:
            mapping.close()
