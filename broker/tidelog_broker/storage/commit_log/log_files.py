"""The files of the commit log: opened once, read by leases, deleted when nothing alive is in them."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tidelog_broker.storage.commit_log.records import FILE_HEADER_BYTES, FileHeader, file_path, pack_file_header
from tidelog_broker.storage.io.filesystem import File, FileSystem


class LogFile:
    """A file of the log. The lock of its `LogFiles` guards `leases` and `is_gone`.

    Attributes:
        base: the position of its first byte.
        end: the position after its last record.
        allocated: the position after its allocated space.
    """

    __slots__ = ("allocated", "base", "end", "file", "is_gone", "leases", "path")

    def __init__(self, path: Path, file: File, base: int, end: int, allocated: int) -> None:
        self.path = path
        self.file = file
        self.base = base
        self.end = end
        self.allocated = allocated
        self.leases = 0
        self.is_gone = False


class MovedError(Exception):
    """The file that holds a position was deleted, because its records were copied elsewhere."""


class LogFiles:
    """The files of the log, oldest first. `lease` may be called by any thread, the rest under the log's lock."""

    def __init__(self, fs: FileSystem, directory: Path) -> None:
        self._fs = fs
        self._directory = directory
        self._lock = threading.Lock()
        self._files: tuple[LogFile, ...] = ()
        self._bases: tuple[int, ...] = ()

    @property
    def all(self) -> tuple[LogFile, ...]:
        """The files, oldest first."""
        return self._files

    @property
    def size_bytes(self) -> int:
        """The size of all records, with the files' headers."""
        return sum(file.end - file.base for file in self._files)

    def add(self, file: LogFile) -> None:
        """Add a file after all others."""
        self._set((*self._files, file))

    def create(self, header: FileHeader, allocated_bytes: int) -> LogFile:
        """Create the next file, durably, and add it.

        Raises:
            OSError: the file was not created.
        """
        path = file_path(self._directory, header.base)
        if self._fs.exists(path):
            self._fs.unlink(path)
        file = self._fs.open(path, create=True)
        try:
            file.allocate(0, allocated_bytes)
            file.pwritev([pack_file_header(header)], 0)
            file.datasync()
            self._fs.sync_dir(self._directory)
        except OSError:
            file.close()
            with suppress(OSError):  # Recovery removes a file without records, too.
                self._fs.unlink(path)
            raise
        start = header.base + FILE_HEADER_BYTES
        created = LogFile(path, file, header.base, start, header.base + allocated_bytes)
        self.add(created)
        return created

    def remove_oldest(self) -> LogFile:
        """Remove the oldest file from the list and return it, for `delete`."""
        oldest = self._files[0]
        self._set(self._files[1:])
        return oldest

    def delete(self, removed: LogFile) -> None:
        """Delete a removed file, durably. It is closed when the last lease ends.

        Raises:
            OSError: the file may or may not exist.
        """
        with self._lock:
            removed.is_gone = True
            is_unused = not removed.leases
        if is_unused:
            removed.file.close()
        self._fs.unlink(removed.path)
        self._fs.sync_dir(self._directory)

    @contextmanager
    def lease(self, position: int) -> Iterator[LogFile]:
        """Keep the file that holds a position open until the block ends.

        Raises:
            MovedError: the file was deleted.
        """
        with self._lock:
            number = bisect_right(self._bases, position) - 1
            held = self._files[number] if number >= 0 else None
            if held is None or position >= max(held.end, held.allocated):
                raise MovedError
            held.leases += 1
        try:
            yield held
        finally:
            with self._lock:
                held.leases -= 1
                must_close = held.is_gone and not held.leases
            if must_close:
                held.file.close()

    def _set(self, files: tuple[LogFile, ...]) -> None:
        with self._lock:
            self._files = files
            self._bases = tuple(file.base for file in files)
