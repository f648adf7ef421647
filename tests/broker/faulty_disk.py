"""The real file system with controlled faults: it fills up, fails, stalls, or is gone as after kill -9."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from tidelog_broker.storage.io.filesystem import File, RealFileSystem
from tidelog_broker.storage.io.mapping import Mapping, WriteMapping
from tidelog_proto.batch.header import Buffer


class GoneError(OSError):
    """The process that used these files was killed: its later writes have no effect.

    An OSError, because threads of the "killed" process run on and must end as they do on a failing disk.
    """


class FaultyFile:
    """A real file that asks its file system before it changes anything."""

    def __init__(self, disk: FaultyDisk, file: File) -> None:
        self._disk = disk
        self._file = file
        self.path = file.path

    def pread(self, length_bytes: int, at: int) -> bytes:
        return self._file.pread(length_bytes, at)

    def pwritev(self, buffers: Sequence[Buffer], at: int) -> None:
        self._disk.step("write", self.path)
        self._file.pwritev(buffers, at)

    def pwritev_durably(self, buffers: Sequence[Buffer], at: int) -> None:
        self.pwritev(buffers, at)
        self.datasync()

    def allocate(self, at: int, length_bytes: int) -> None:
        self._disk.step("allocate", self.path)
        self._file.allocate(at, length_bytes)

    def truncate(self, size_bytes: int) -> None:
        self._disk.step("truncate", self.path)
        self._file.truncate(size_bytes)

    def datasync(self) -> None:
        self._disk.step("sync", self.path)
        self._file.datasync()

    def size(self) -> int:
        return self._file.size()

    def map(self) -> memoryview:
        return self._file.map()

    def map_to_send(self) -> Mapping:
        return self._file.map_to_send()

    def map_to_write(self, at: int) -> WriteMapping:
        return FaultyWriteMapping(self._disk, self.path, self._file.map_to_write(at))

    def finish_writing(self) -> None:
        self._file.finish_writing()

    def read_ahead(self, at: int, length_bytes: int) -> None:
        self._file.read_ahead(at, length_bytes)

    def close(self) -> None:
        self._file.close()


class FaultyWriteMapping:
    """A real mapping that asks its file system before it is written to."""

    def __init__(self, disk: FaultyDisk, path: Path, mapping: WriteMapping) -> None:
        self._disk = disk
        self._path = path
        self._mapping = mapping
        self.end_bytes = mapping.end_bytes

    def write(self, buffers: Sequence[Buffer], at: int) -> None:
        self._disk.step("write", self._path)
        self._mapping.write(buffers, at)

    def close(self) -> None:
        self._mapping.close()


class FaultyDisk(RealFileSystem):
    """`fail(operation, path)` may return the error to raise; `gate` holds what `held(operation, path)` picks."""

    def __init__(self) -> None:
        self.fail: Callable[[str, Path], BaseException | None] = lambda operation, path: None
        self.held: Callable[[str, Path], bool] = lambda operation, path: False
        self.gate = threading.Event()
        self.reached = threading.Event()
        """Set when something waits at the gate."""
        self.log: list[tuple[str, Path]] = []

    def step(self, operation: str, path: Path) -> None:
        self.log.append((operation, path))
        if self.held(operation, path):
            self.reached.set()
            assert self.gate.wait(10), "the test never opened the gate"
        error = self.fail(operation, path)
        if error is not None:
            raise error

    def heal(self) -> None:
        """Work again, and release held operations."""
        self.fail = lambda operation, path: None
        self.held = lambda operation, path: False
        self.gate.set()

    def hold(self, operation: str, part: str = ".seg") -> None:
        """Hold every such operation on paths with `part` in them until `heal`."""
        self.gate.clear()
        self.reached.clear()
        self.held = lambda what, path: what == operation and part in str(path)

    async def held_up(self) -> None:
        """Wait until something waits at the gate."""
        assert await asyncio.to_thread(self.reached.wait, 20), "nothing came to the gate"

    def fill_up(self) -> None:
        """Give no space."""
        full = OSError(errno.ENOSPC, "no space left on device")
        self.fail = lambda operation, path: full if operation in {"allocate", "create", "make_dir"} else None

    def break_at(self, operation: str) -> None:
        """Fail such an operation on segments with EIO."""
        broken = OSError(errno.EIO, "input/output error")
        self.fail = lambda what, path: broken if what == operation and path.suffix == ".seg" else None

    def kill(self) -> None:
        """Change nothing any more, as if the process had been killed here."""
        self.fail = lambda operation, path: GoneError(f"{operation} {path}")
        self.gate.set()

    def open(self, path: Path, *, create: bool = False) -> File:
        if create:
            self.step("create", path)
        return FaultyFile(self, super().open(path, create=create))

    def rename(self, source: Path, target: Path) -> None:
        self.step("rename", target)
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        self.step("unlink", path)
        super().unlink(path)

    def make_dir(self, path: Path) -> None:
        self.step("make_dir", path)
        super().make_dir(path)

    def remove_dir(self, path: Path) -> None:
        self.step("remove_dir", path)
        super().remove_dir(path)

    def sync_dir(self, path: Path) -> None:
        self.step("sync_dir", path)
        super().sync_dir(path)
