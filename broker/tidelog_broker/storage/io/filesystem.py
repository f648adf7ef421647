"""The interface through which the storage does every file operation.

Two small protocols and their real implementation. Tests replace it with a simulated disk that loses and tears unsynced
writes, fills up and fails. Rejected: patching `os` in tests, which misses calls that are added later; and a wider file
object, because the simulated disk must implement every method correctly.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Protocol

from tidelog_broker.storage.io.mapping import Mapping, RealMapping, RealWriteMapping, WriteMapping, read_ahead
from tidelog_proto.batch.header import Buffer
from tidelog_proto.process.file_descriptors import is_out_of_descriptors

_IOV_MAX: Final = 1024
_DSYNC: Final = getattr(os, "RWF_DSYNC", 0)
"""Flag with which Linux syncs a single write; 0 if it is unsupported: the whole file is then synced after the write."""
_UNKNOWN_FLAG: Final = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})


class File(Protocol):
    """An open file. Positions and lengths are in bytes; reads and writes do not move a cursor."""

    @property
    def path(self) -> Path:
        """The path with which the file was opened."""
        ...

    def pread(self, length_bytes: int, at: int) -> bytes:
        """Read; returns fewer bytes only at the end of the file."""
        ...

    def pwritev(self, buffers: Sequence[Buffer], at: int) -> None:
        """Write all buffers consecutively; on OSError any part of them may have been written."""
        ...

    def pwritev_durably(self, buffers: Sequence[Buffer], at: int) -> None:
        """Write as `pwritev` and return when these bytes are on the disk.

        Only these bytes have to be on the disk then: a reused file may have many unsynced pages of its old contents,
        which need not be written. After an OSError the file must not be written or synced again.
        """
        ...

    def allocate(self, at: int, length_bytes: int) -> None:
        """Allocate space, growing the file; new bytes read as zero. OSError (ENOSPC) changes no contents."""
        ...

    def truncate(self, size_bytes: int) -> None:
        """Truncate the file, which must not be mapped."""
        ...

    def datasync(self) -> None:
        """Return when the written bytes and the size are on the disk.

        After an OSError the file must not be written or synced again: the next sync could succeed without them.
        """
        ...

    def size(self) -> int:
        """The file's size, including preallocated space."""
        ...

    def map(self) -> memoryview:
        """Map the whole file for reading; it must not be empty and must not be truncated afterwards."""
        ...

    def map_to_send(self) -> Mapping:
        """Map the whole file for system calls that read it; raises OSError or ValueError where that is impossible."""
        ...

    def map_to_write(self, at: int) -> WriteMapping:
        """Map the file's space from a position on for writing. Close the mapping before the file is truncated."""
        ...

    def finish_writing(self) -> None:
        """Release the resources for writing: this object writes no further bytes, and others may truncate the file."""
        ...

    def read_ahead(self, at: int, length_bytes: int) -> None:
        """Hint the kernel to read a part into memory, without waiting."""
        ...

    def close(self) -> None:
        """Close; mappings stay valid."""
        ...


class FileSystem(Protocol):
    """Operations on directory entries. They are durable after `sync_dir` on the directory."""

    def open(self, path: Path, *, create: bool = False) -> File:
        """Open for reading and writing; with `create` the file must not exist yet."""
        ...

    def open_readonly(self, path: Path) -> File:
        """Open for reading only."""
        ...

    def lock(self, path: Path, note: bytes) -> File:
        """Open or create `path`, lock it for this process and write `note` into it.

        Raises:
            BlockingIOError: another process has locked `path`, or this process has by an earlier call.
        """
        ...

    def rename(self, source: Path, target: Path) -> None:
        """Rename, replacing a file `target` atomically."""
        ...

    def unlink(self, path: Path) -> None:
        """Remove a file's name."""
        ...

    def make_dir(self, path: Path) -> None:
        """Create a directory whose parent exists."""
        ...

    def remove_dir(self, path: Path) -> None:
        """Remove an empty directory."""
        ...

    def list_dir(self, path: Path) -> list[str]:
        """Return the names in a directory, sorted."""
        ...

    def is_dir(self, path: Path) -> bool:
        """Return whether `path` is a directory."""
        ...

    def exists(self, path: Path) -> bool:
        """Return whether the path exists."""
        ...

    def sync_dir(self, path: Path) -> None:
        """Make a directory's entries durable."""
        ...


class RealFile:
    """A `File` with a file descriptor."""

    __slots__ = ("_fd", "path")

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd = fd

    def pread(self, length_bytes: int, at: int) -> bytes:
        """Read; see `File.pread`."""
        data = os.pread(self._fd, length_bytes, at)
        if len(data) == length_bytes or not data:
            return data
        parts = [data]
        missing = length_bytes - len(data)
        while missing and (data := os.pread(self._fd, missing, at + length_bytes - missing)):
            parts.append(data)
            missing -= len(data)
        return b"".join(parts)

    def pwritev(self, buffers: Sequence[Buffer], at: int) -> None:
        """Write; see `File.pwritev`. Continues short writes, splits long lists at the kernel's IOV_MAX."""
        if len(buffers) > _IOV_MAX:
            for first in range(0, len(buffers), _IOV_MAX):
                group = buffers[first : first + _IOV_MAX]
                self.pwritev(group, at)
                at += sum(map(len, group))
            return
        written = os.pwritev(self._fd, buffers, at)
        if written < sum(map(len, buffers)):
            at += written
            rest = memoryview(b"".join(buffers))[written:]
            while rest:
                written = os.pwrite(self._fd, rest, at)
                at += written
                rest = rest[written:]

    def pwritev_durably(self, buffers: Sequence[Buffer], at: int) -> None:
        """Write and sync; see `File.pwritev_durably`."""
        written = 0
        if _DSYNC:
            try:
                written = os.pwritev(self._fd, buffers, at, _DSYNC)
            except OSError as error:
                if error.errno not in _UNKNOWN_FLAG:
                    raise
        if written < sum(map(len, buffers)):
            self.pwritev(buffers, at)
            self.datasync()

    def allocate(self, at: int, length_bytes: int) -> None:
        """Allocate space; see `File.allocate`."""
        os.posix_fallocate(self._fd, at, length_bytes)

    def truncate(self, size_bytes: int) -> None:
        """Truncate; see `File.truncate`."""
        os.ftruncate(self._fd, size_bytes)

    def datasync(self) -> None:
        """Sync; see `File.datasync`."""
        os.fdatasync(self._fd)

    def size(self) -> int:
        """Return the size; see `File.size`."""
        return os.fstat(self._fd).st_size

    def map(self) -> memoryview:
        """Map; see `File.map`."""
        return memoryview(mmap.mmap(self._fd, 0, prot=mmap.PROT_READ))

    def map_to_send(self) -> Mapping:
        """Map; see `File.map_to_send`."""
        return RealMapping(self._fd)

    def map_to_write(self, at: int) -> WriteMapping:
        """Map; see `File.map_to_write`."""
        return RealWriteMapping(self._fd, at, self.size())

    def finish_writing(self) -> None:
        """Do nothing: no resources are held; see `File.finish_writing`."""

    def read_ahead(self, at: int, length_bytes: int) -> None:
        """Hint; see `File.read_ahead`."""
        read_ahead(self._fd, at, length_bytes)

    def close(self) -> None:
        """Close; see `File.close`."""
        os.close(self._fd)


class RealFileSystem:
    """The operating system's files as a `FileSystem`."""

    def open(self, path: Path, *, create: bool = False) -> File:
        """Open; see `FileSystem.open`."""
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if create else 0)
        return RealFile(path, os.open(path, flags, 0o640))

    def open_readonly(self, path: Path) -> File:
        """Open; see `FileSystem.open_readonly`."""
        return RealFile(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def lock(self, path: Path, note: bytes) -> File:
        """Lock; see `FileSystem.lock`."""
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_CREAT, 0o640)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(fd, 0)
            os.pwrite(fd, note, 0)
        except BaseException:
            os.close(fd)
            raise
        return RealFile(path, fd)

    def rename(self, source: Path, target: Path) -> None:
        """Rename; see `FileSystem.rename`."""
        source.rename(target)

    def unlink(self, path: Path) -> None:
        """Remove a name; see `FileSystem.unlink`."""
        path.unlink()

    def make_dir(self, path: Path) -> None:
        """Create a directory; see `FileSystem.make_dir`."""
        path.mkdir(mode=0o750)

    def remove_dir(self, path: Path) -> None:
        """Remove a directory; see `FileSystem.remove_dir`."""
        path.rmdir()

    def list_dir(self, path: Path) -> list[str]:
        """List; see `FileSystem.list_dir`."""
        return sorted(os.listdir(path))  # noqa: PTH208 (names are needed, not paths)

    def is_dir(self, path: Path) -> bool:
        """See `FileSystem.is_dir`."""
        return path.is_dir()

    def exists(self, path: Path) -> bool:
        """See `FileSystem.exists`."""
        return path.exists()

    def sync_dir(self, path: Path) -> None:
        """Sync a directory; see `FileSystem.sync_dir`. Works without a free descriptor, by means of a reserved one."""
        try:
            _sync_dir(path)
        except OSError as error:
            if not is_out_of_descriptors(error):
                raise
            with _SPARE.given_up():
                _sync_dir(path)


class _SpareDescriptor:
    """A descriptor reserved for directory syncs, which stop their log permanently if no descriptor is free."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    @contextmanager
    def given_up(self) -> Iterator[None]:
        """Release the descriptor for the duration of the block, one thread at a time."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1
            try:
                yield
            finally:
                with suppress(OSError):  # Another thread may have taken the descriptor; the next call tries again.
                    self._fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


_SPARE: Final = _SpareDescriptor()


def _sync_dir(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
