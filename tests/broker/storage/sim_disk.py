"""A disk in memory that loses power, fills up and fails, behind the storage's file system protocol.

Every file keeps, per 512-byte sector, what is durable and every version written since the last sync. A power cut
leaves any one of these versions of each sector, independently, and either size; names come back up to any point of
the directory's history since it was last synced. That is what the page cache and a journalling file system may do.

A sync that fails leaves what it covered readable and clean, as Linux does: it may be on the disk or not, later syncs
succeed and do not write it. Only a rewrite of these bytes makes them dirty, and the next sync then makes them durable.
Names and sizes are not lost in this way: if a journalling file system cannot write them, it stops as a whole.
"""

from __future__ import annotations

import errno
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

from tidelog_broker.storage.io.filesystem import File
from tidelog_broker.storage.io.mapping import Mapping, WriteMapping
from tidelog_proto.batch.header import Buffer

SECTOR_BYTES = 512


NOTHING = b"\xbd"
"""Content of a mapping beyond the end of a truncated file: the receiver of such bytes gets no valid batch."""


class Part(bytearray):
    """Content of a slice of a mapping; it changes with the file."""


class SimMapping:
    """A file as a reading system call sees it."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.size_bytes = len(node.current)
        self._slices: list[weakref.ref[Part]] = []
        self._open = True

    def slice(self, at: int, length_bytes: int) -> memoryview:
        assert self._open, "a slice of what is not mapped"
        view = self._node.part(at, length_bytes)
        assert isinstance(view.obj, Part)
        self._slices.append(weakref.ref(view.obj))
        return view

    def populate(self, at: int, length_bytes: int) -> None:
        if at + length_bytes > len(self._node.current):
            raise OSError(errno.EFAULT, "the simulated file is shorter")

    def close(self) -> bool:
        self._open = any(held() is not None for held in self._slices)
        return not self._open


class SimWriteMapping:
    """A file that is written through a mapping: writes need allocated space, and no truncation happens meanwhile."""

    def __init__(self, file: SimFile, at: int) -> None:
        self._file = file
        self._at = at
        self.end_bytes = file.size()
        file.disk.mapped_to_write.append(file.node)

    def write(self, buffers: Sequence[Buffer], at: int) -> None:
        assert self._at <= at
        assert at + sum(map(len, buffers)) <= self.end_bytes, "written past the space: SIGBUS"
        self._file.pwritev(buffers, at)

    def close(self) -> None:
        self._file.disk.mapped_to_write.remove(self._file.node)


class PowerCutError(Exception):
    """The machine is off: every further operation raises this, too."""


class Node:
    """A file's content: durable sectors, and what was written over them since."""

    def __init__(self, content: bytes = b"") -> None:
        self.durable = content
        self.current = bytearray(content)
        self.versions: dict[int, list[bytes]] = {}
        self.lost: dict[int, list[bytes]] = {}
        """Sectors of a failed sync that were not rewritten since: the versions that the disk may hold."""
        self.locked = False
        self.parts: list[tuple[int, weakref.ref[Part]]] = []
        """Live slices of mappings."""

    def part(self, at: int, length_bytes: int) -> memoryview:
        part = Part(self.current[at : at + length_bytes])
        self.parts = [(begin, held) for begin, held in self.parts if held() is not None]
        self.parts.append((at, weakref.ref(part)))
        return memoryview(part).toreadonly()

    def _show(self, at: int, data: bytes) -> None:
        """Let slices show what is in the file now."""
        for begin, held in self.parts:
            part = held()
            if part is not None:
                first, end = max(at, begin), min(at + len(data), begin + len(part))
                if first < end:
                    part[first - begin : end - begin] = data[first - at : end - at]

    def write(self, at: int, data: bytes) -> None:
        self._show(at, data)
        if at + len(data) > len(self.current):
            self.current.extend(bytes(at + len(data) - len(self.current)))
        self.current[at : at + len(data)] = data
        for sector in range(at // SECTOR_BYTES, -(-(at + len(data)) // SECTOR_BYTES)):
            start = sector * SECTOR_BYTES
            known = self.versions.setdefault(sector, self.lost.pop(sector, []))
            known.append(bytes(self.current[start : start + SECTOR_BYTES]))

    def sync(self) -> None:
        durable = bytearray(self.current)
        for sector, versions in self.lost.items():
            start = sector * SECTOR_BYTES
            durable[start : start + len(versions[0])] = versions[0]
        self.durable = bytes(durable)
        self.versions.clear()

    def sync_failed(self, at: int = 0, length_bytes: int | None = None) -> None:
        """Leave what a sync was to cover, all or a range, readable and no longer dirty."""
        end = len(self.current) if length_bytes is None else at + length_bytes
        for sector in range(at // SECTOR_BYTES, -(-end // SECTOR_BYTES)):
            if sector in self.versions:
                start = sector * SECTOR_BYTES
                held = self.durable[start : start + SECTOR_BYTES].ljust(
                    len(self.current[start : start + SECTOR_BYTES]), b"\0"
                )
                self.lost[sector] = [held, *self.versions.pop(sector)]

    def lacks(self, size_bytes: int) -> bool:
        """Whether the disk may lack a part of the first `size_bytes` because a sync failed."""
        return any(sector * SECTOR_BYTES < size_bytes for sector in self.lost)

    def truncate(self, size_bytes: int) -> None:
        self._show(size_bytes, NOTHING * (len(self.current) - size_bytes))
        del self.current[size_bytes:]
        for kept in (self.versions, self.lost):
            for sector in [sector for sector in kept if (sector + 1) * SECTOR_BYTES > size_bytes]:
                left_bytes = max(0, size_bytes - sector * SECTOR_BYTES)
                kept[sector] = [version[:left_bytes] for version in kept[sector]]
        self.lost = {sector: versions for sector, versions in self.lost.items() if versions[0]}

    def sync_range(self, at: int, length_bytes: int) -> None:
        """As a write that waits for the disk: these sectors are durable, and a size that covers them; no others."""
        first, end = at // SECTOR_BYTES, -(-(at + length_bytes) // SECTOR_BYTES)
        covered = bytes(self.current[first * SECTOR_BYTES : end * SECTOR_BYTES])
        before = self.durable[: first * SECTOR_BYTES].ljust(first * SECTOR_BYTES, b"\0")
        self.durable = before + covered + self.durable[end * SECTOR_BYTES :]
        for sector in range(first, end):
            self.versions.pop(sector, None)

    def copy(self) -> Node:
        return Node(bytes(self.current))

    def after_power_cut(self, random: Random) -> Node:
        size = random.choice([len(self.durable), len(self.current)])
        content = bytearray(self.durable[:size].ljust(size, b"\0"))
        for sector, versions in (self.versions | self.lost).items():
            start = sector * SECTOR_BYTES
            kept = random.choice([None, *versions])
            if kept is not None and start < size:
                content[start : start + len(kept)] = kept
        return Node(bytes(content[:size]))


class Directory:
    """Names, and every state of them since the last sync."""

    def __init__(self, names: dict[str, Node | Directory] | None = None) -> None:
        self.names: dict[str, Node | Directory] = dict(names or {})
        self.history: list[dict[str, Node | Directory]] = [dict(self.names)]

    def changed(self) -> None:
        self.history.append(dict(self.names))

    def sync(self) -> None:
        self.history = [dict(self.names)]

    def copy(self) -> Directory:
        return Directory({name: node.copy() for name, node in self.names.items()})

    def after_power_cut(self, random: Random) -> Directory:
        names = random.choice(self.history)
        return Directory({name: node.after_power_cut(random) for name, node in names.items()})


class SimFile:
    def __init__(self, disk: SimDisk, path: Path, node: Node, *, writable: bool) -> None:
        self.disk = disk
        self.path = path
        self.node = node
        self._writable = writable
        self._open = True
        disk.open_files += 1

    def _step(self, operation: str) -> None:
        assert self._open, f"{operation} on a closed file"
        self.disk.step(operation, self.path)

    def pread(self, length_bytes: int, at: int) -> bytes:
        assert self._open
        self.disk.check_power()
        return bytes(self.node.current[at : at + length_bytes])

    def pwritev(self, buffers: Sequence[Buffer], at: int) -> None:
        assert self._writable
        data = b"".join(buffers)
        self.disk.torn = lambda: self.node.write(at, data)
        self._step("write")
        self.node.write(at, data)

    def pwritev_durably(self, buffers: Sequence[Buffer], at: int) -> None:
        self.pwritev(buffers, at)
        length_bytes = sum(map(len, buffers))
        try:
            self._step("sync")
        except OSError:
            self._failed(at, length_bytes)
            raise
        self.node.sync_range(at, length_bytes)

    def allocate(self, at: int, length_bytes: int) -> None:
        assert self._writable
        assert length_bytes > 0
        self._step("allocate")
        grown = at + length_bytes - len(self.node.current)
        if self.disk.free_bytes is not None and grown > 0:
            if grown > self.disk.free_bytes:
                raise OSError(errno.ENOSPC, "no space left on the simulated disk")
            self.disk.free_bytes -= grown
        if grown > 0:
            self.node.current.extend(bytes(grown))

    def truncate(self, size_bytes: int) -> None:
        self._step("truncate")
        assert size_bytes <= len(self.node.current)
        assert self.node not in self.disk.mapped_to_write, f"{self.path} is cut while it is mapped for writing"
        self.node.truncate(size_bytes)

    def datasync(self) -> None:
        assert self.node not in self.disk.failed, f"{self.path}: a sync that failed is tried again"
        try:
            self._step("sync")
        except OSError:
            self._failed()
            raise
        self.node.sync()

    def _failed(self, at: int = 0, length_bytes: int | None = None) -> None:
        self.node.sync_failed(at, length_bytes)
        self.disk.failed.append(self.node)
        self.disk.any_lost = True

    def size(self) -> int:
        return len(self.node.current)

    def map(self) -> memoryview:
        return memoryview(bytes(self.node.current))

    def map_to_send(self) -> Mapping:
        return SimMapping(self.node)

    def map_to_write(self, at: int) -> WriteMapping:
        assert self._writable
        return SimWriteMapping(self, at)

    def finish_writing(self) -> None:
        pass

    def read_ahead(self, at: int, length_bytes: int) -> None:
        pass

    def close(self) -> None:
        assert self._open, "closed twice"
        self._open = False
        self.disk.open_files -= 1
        self.node.locked = False


class SimDisk:
    """The file system. `fail(operation, path)` may return an error to raise; `cut_at` cuts the power at a step."""

    def __init__(self, root: Directory | None = None) -> None:
        self.root = root or Directory()
        self.steps = 0
        self.cut_at: int | None = None
        self.free_bytes: int | None = None
        self.fail: Callable[[str, Path], OSError | None] = lambda operation, path: None
        self.torn: Callable[[], None] | None = None
        self.open_files = 0
        self.is_off = False
        self.is_mapped = False
        """Whether the logs of tests read and write through mappings here."""
        self.any_lost = False
        """Whether a sync has failed since power was last cut."""
        self.mapped_to_write: list[Node] = []
        """Files that this process has mapped for writing."""
        self.failed: list[Node] = []
        """Files with a failed sync in this process, which must not sync them again."""

    # interface of the tests -------------------------------------------------------------------

    def power_cut(self, random: Random) -> SimDisk:
        """Return the disk as it is when the power is back."""
        again = SimDisk(self.root.after_power_cut(random))
        again.is_mapped = self.is_mapped
        return again

    def copy(self) -> SimDisk:
        """Return another disk with all that processes see on this one, as a copy of all files has it."""
        again = SimDisk(self.root.copy())
        again.is_mapped = self.is_mapped
        return again

    def restart(self) -> SimDisk:
        """Return the disk as another process sees it after this one was killed: nothing written is lost."""
        again = SimDisk(self.root)
        again.free_bytes = self.free_bytes
        again.any_lost = self.any_lost
        again.is_mapped = self.is_mapped
        return again

    def node(self, path: Path) -> Node:
        node = self._find(path)
        assert isinstance(node, Node)
        return node

    def files(self, path: Path, suffix: str) -> list[Path]:
        return [path / name for name in self.list_dir(path) if name.endswith(suffix)]

    # the protocol ------------------------------------------------------------------------------

    def check_power(self) -> None:
        if self.is_off:
            raise PowerCutError

    def step(self, operation: str, path: Path) -> None:
        self.check_power()
        torn, self.torn = self.torn, None
        if self.cut_at is not None and self.steps >= self.cut_at:
            if torn is not None:
                # As far as the page cache is concerned the write may have happened, in any part.
                torn()
            self.is_off = True
            raise PowerCutError
        self.steps += 1
        error = self.fail(operation, path)
        if error is not None:
            raise error

    def _find(self, path: Path) -> Node | Directory:
        found: Node | Directory = self.root
        for name in path.parts[1:]:
            if not isinstance(found, Directory) or name not in found.names:
                raise FileNotFoundError(errno.ENOENT, "no such file on the simulated disk", str(path))
            found = found.names[name]
        return found

    def directory(self, path: Path) -> Directory:
        found = self._find(path)
        assert isinstance(found, Directory)
        return found

    def open(self, path: Path, *, create: bool = False) -> File:
        if create:
            self.step("create", path)
            parent = self.directory(path.parent)
            if path.name in parent.names:
                raise FileExistsError(errno.EEXIST, "the file exists", str(path))
            parent.names[path.name] = Node()
            parent.changed()
        return SimFile(self, path, self.node(path), writable=True)

    def open_readonly(self, path: Path) -> File:
        self.check_power()
        return SimFile(self, path, self.node(path), writable=False)

    def lock(self, path: Path, note: bytes) -> File:
        if not self.exists(path):
            self.open(path, create=True).close()
        node = self.node(path)
        if node.locked:
            raise BlockingIOError(errno.EWOULDBLOCK, "locked")
        file = SimFile(self, path, node, writable=True)
        node.locked = True
        node.current = bytearray(note)
        return file

    def rename(self, source: Path, target: Path) -> None:
        self.step("rename", target)
        assert source.parent == target.parent, "the storage renames within a directory only"
        parent = self.directory(source.parent)
        parent.names[target.name] = parent.names.pop(source.name)
        parent.changed()

    def unlink(self, path: Path) -> None:
        self.step("unlink", path)
        parent = self.directory(path.parent)
        assert isinstance(self._find(path), Node)
        node = parent.names.pop(path.name)
        if self.free_bytes is not None and isinstance(node, Node):
            self.free_bytes += len(node.current)
        parent.changed()

    def make_dir(self, path: Path) -> None:
        self.step("make_dir", path)
        parent = self.directory(path.parent)
        if path.name in parent.names:
            raise FileExistsError(errno.EEXIST, "the directory exists", str(path))
        parent.names[path.name] = Directory()
        parent.changed()

    def remove_dir(self, path: Path) -> None:
        self.step("remove_dir", path)
        assert not self.directory(path).names, "the directory is not empty"
        parent = self.directory(path.parent)
        del parent.names[path.name]
        parent.changed()

    def list_dir(self, path: Path) -> list[str]:
        self.check_power()
        return sorted(self.directory(path).names)

    def is_dir(self, path: Path) -> bool:
        try:
            return isinstance(self._find(path), Directory)
        except FileNotFoundError:
            return False

    def exists(self, path: Path) -> bool:
        self.check_power()
        try:
            self._find(path)
        except FileNotFoundError:
            return False
        return True

    def sync_dir(self, path: Path) -> None:
        self.step("sync_dir", path)
        self.directory(path).sync()
