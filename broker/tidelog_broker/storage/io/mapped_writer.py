"""A file whose appends go through a memory mapping of its allocated space.

Space is allocated before it is written, so a full disk raises ENOSPC before anything is copied, and the mapping never
allocates. `datasync` also covers bytes written through a mapping. A mapping covers the allocated space from the
position of the next bytes on; after the file has grown, a new mapping is created. A file is never truncated while it is
mapped.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tidelog_broker.storage.io.filesystem import File
from tidelog_broker.storage.io.mapping import Mapping, WriteMapping
from tidelog_proto.batch.header import Buffer


class MappedWriter:
    """A `File` that wraps another one and appends through a mapping of it. One thread writes, truncates and closes."""

    __slots__ = ("_file", "_mapping", "path")

    def __init__(self, file: File) -> None:
        self.path: Path = file.path
        self._file = file
        self._mapping: WriteMapping | None = None

    def pread(self, length_bytes: int, at: int) -> bytes:
        """Read; see `File.pread`. Bytes written through the mapping are visible at once."""
        return self._file.pread(length_bytes, at)

    def pwritev(self, buffers: Sequence[Buffer], at: int) -> None:
        """Write into allocated space; see `File.pwritev`."""
        mapping = self._mapping
        if mapping is None or at + sum(map(len, buffers)) > mapping.end_bytes:
            self.finish_writing()
            mapping = self._mapping = self._file.map_to_write(at)
        mapping.write(buffers, at)

    def pwritev_durably(self, buffers: Sequence[Buffer], at: int) -> None:
        """Write without the mapping, and sync; see `File.pwritev_durably`."""
        self._file.pwritev_durably(buffers, at)

    def allocate(self, at: int, length_bytes: int) -> None:
        """Allocate space; see `File.allocate`."""
        self._file.allocate(at, length_bytes)

    def truncate(self, size_bytes: int) -> None:
        """Truncate; see `File.truncate`."""
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
