"""The narrow seam through which every file operation of the storage goes.

Two small protocols and their real implementation. Tests put a disk under the same code that loses and tears
unsynced writes, fills up and fails. Rejected: patching `os` in tests, which misses what is called differently
tomorrow; and a wider file object, because every method here is one that the simulated disk must get right.
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
"""Linux syncs a single write; elsewhere, and on file systems that cannot, the whole file is synced behind it."""
_UNKNOWN_FLAG: Final = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})


class File(Protocol):
    """An open file. Positions and lengths are bytes; reads and writes never move a cursor."""

    @property
    def path(self) -> Path:
        """The name under which it was opened."""
        ...

    def pread(self, length_bytes: int, at: int) -> bytes:
        """Read; fewer bytes come back only at the end of the file."""
        ...

    def pwritev(self, buffers: Sequence[Buffer], at: int) -> None:
        """Write all buffers, one behind the other, or raise OSError with any part of them written."""
        ...

    def pwritev_durably(self, buffers: Sequence[Buffer], at: int) -> None:
        """As `pwritev`, and return when these bytes are on the disk; an OSError is final for the file.

        What else the file holds may stay where it is: a file that is used again may be full of what nobody needs.
        """
        ...

    def allocate(self, at: int, length_bytes: int) -> None:
        """Take space on the disk, growing the file; new bytes read as zero. OSError (ENOSPC) changes nothing seen."""
        ...

    def truncate(self, size_bytes: int) -> None:
        """Cut the file. Only for files that nobody has mapped."""
        ...

    def datasync(self) -> None:
        """Return when what was written, and the size, are on the disk. An OSError is final for the file."""
        ...

    def size(self) -> int:
        """The file's size, preallocated space included."""
        ...

    def map(self) -> memoryview:
        """Map the whole file for reading; it must not be empty and never be truncated afterwards."""
        ...

    def map_to_send(self) -> Mapping:
        """Map the whole file for system calls that read it; OSError or ValueError where that cannot be done."""
        ...

    def map_to_write(self, at: int) -> WriteMapping:
        """Map the file's space from a position on, for writing. Nobody cuts the file before that is closed."""
        ...

    def finish_writing(self) -> None:
        """Let go of what only writing needs: nothing more is written here, and others may cut the file."""
        ...

    def read_ahead(self, at: int, length_bytes: int) -> None:
        """Begin to read a part that is not in memory, without waiting: a hint."""
        ...

    def close(self) -> None:
        """Close; mappings stay valid."""
        ...


class FileSystem(Protocol):
    """Operations on names. What a directory lists is durable after `sync_dir` on it."""

    def open(self, path: Path, *, create: bool = False) -> File:
        """Open for reading and writing; with `create` the file must not exist yet."""
        ...

    def open_readonly(self, path: Path) -> File:
        """Open for reading only."""
        ...

    def lock(self, path: Path, note: bytes) -> File:
        """Open or create `path`, lock it for this process and write `note` into it.

        Raises:
            BlockingIOError: another process (or another open of this one) holds it.
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
        """Whether `path` is a directory."""
        ...

    def exists(self, path: Path) -> bool:
        """Whether there is anything by that name."""
        ...

    def sync_dir(self, path: Path) -> None:
        """Make the names in a directory durable."""
        ...


class RealFile:
    """A file descriptor behind the `File` protocol."""

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
        """Write; see `File.pwritev`. Short writes are continued, long lists cut at the kernel's IOV_MAX."""
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
        """Take space; see `File.allocate`."""
        os.posix_fallocate(self._fd, at, length_bytes)

    def truncate(self, size_bytes: int) -> None:
        """Cut; see `File.truncate`."""
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
        """Nothing is held; see `File.finish_writing`."""

    def read_ahead(self, at: int, length_bytes: int) -> None:
        """Hint; see `File.read_ahead`."""
        read_ahead(self._fd, at, length_bytes)

    def close(self) -> None:
        """Close; see `File.close`."""
        os.close(self._fd)


class RealFileSystem:
    """The operating system's files behind the `FileSystem` protocol."""

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
        return sorted(os.listdir(path))  # noqa: PTH208 (names are what is wanted, not paths)

    def is_dir(self, path: Path) -> bool:
        """Ask; see `FileSystem.is_dir`."""
        return path.is_dir()

    def exists(self, path: Path) -> bool:
        """Ask; see `FileSystem.exists`."""
        return path.exists()

    def sync_dir(self, path: Path) -> None:
        """Sync a directory; see `FileSystem.sync_dir`. It has a descriptor also where no more files can be open."""
        try:
            _sync_dir(path)
        except OSError as error:
            if not is_out_of_descriptors(error):
                raise
            with _SPARE.given_up():
                _sync_dir(path)


class _SpareDescriptor:
    """A descriptor kept for what must not fail: a name that is not synced would stop its log for good."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    @contextmanager
    def given_up(self) -> Iterator[None]:
        """Leave the descriptor to whoever is inside, one at a time."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1
            try:
                yield
            finally:
                with suppress(OSError):  # another open took it; the next call tries again
                    self._fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


_SPARE: Final = _SpareDescriptor()


def _sync_dir(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
