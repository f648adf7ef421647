"""A file system whose operations can fail as on a full or broken disk, for tests of storage engines."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from tidelog_broker.storage.io.filesystem import File, RealFile, RealFileSystem
from tidelog_proto.batch.header import Buffer


class FailingFileSystem(RealFileSystem):
    """Opens files whose operations fail on demand.

    Attributes:
        full: whether operations that take space fail with ENOSPC.
        broken: the operation of files that fails with EIO; empty if no operation fails.
    """

    def __init__(self) -> None:
        self.full = False
        self.broken = ""

    def open(self, path: Path, *, create: bool = False) -> File:
        """Open a file; creating one takes space."""
        if create:
            self.check("create", path, takes_space=True)
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if create else 0)
        return _FailingFile(path, os.open(path, flags, 0o640), self)

    def make_dir(self, path: Path) -> None:
        """Create a directory, which takes space."""
        self.check("make_dir", path, takes_space=True)
        super().make_dir(path)

    def check(self, operation: str, path: Path, *, takes_space: bool = False) -> None:
        """Fail if `full` or `broken` requires that.

        Raises:
            OSError: the operation must fail.
        """
        if self.full and takes_space:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        if self.broken == operation:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))


class _FailingFile(RealFile):
    """A file of `FailingFileSystem`."""

    __slots__ = ("_fs",)

    def __init__(self, path: Path, fd: int, fs: FailingFileSystem) -> None:
        super().__init__(path, fd)
        self._fs = fs

    def pwritev(self, buffers: Sequence[Buffer], at: int) -> None:
        """Write into allocated space, which takes no further space."""
        self._fs.check("pwritev", self.path)
        super().pwritev(buffers, at)

    def pwritev_durably(self, buffers: Sequence[Buffer], at: int) -> None:
        """Write and sync."""
        self._fs.check("pwritev", self.path)
        self._fs.check("datasync", self.path)
        super().pwritev_durably(buffers, at)

    def allocate(self, at: int, length_bytes: int) -> None:
        """Allocate space."""
        self._fs.check("allocate", self.path, takes_space=True)
        super().allocate(at, length_bytes)

    def datasync(self) -> None:
        """Sync."""
        self._fs.check("datasync", self.path)
        super().datasync()
