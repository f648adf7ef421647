"""The file of the segment that retention takes away, used again for the next one.

Memory that a deleted file leaves behind goes to whoever asks next, and on a virtual machine back to its host; the first
touch of a page from there costs ten times the copy into it. Blocks that were allocated and never written must be
converted when they are synced. A file that was written before has neither cost, so a log under retention keeps the file
of its oldest segment, under a name that recovery removes, until it begins its next one.

What the file held stays behind the new content, and nothing of it can be taken for content: it stays in the epoch that
it came from, where every offset in it is lower than any that is still to come, so no batch of it continues the new
ones; and its sync marks carry the nonce of the old file. It is used again only after its old name is gone durably, and
only if nobody has it open.

Rejected: a pool for all logs of a node, where a batch of another topic may well carry the right epoch and offset; and
zeroing the file, which writes everything twice.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Final

from tidelog_broker.storage.io.filesystem import FileSystem
from tidelog_broker.storage.segment.layout import NEW_SUFFIX, made_paths
from tidelog_proto.limits import MIB

SPARE_NAME: Final = "next" + NEW_SUFFIX
SPARES_BYTES_MAX: Final = 1024 * MIB
"""What all logs of a node together keep: four segments of the default size."""


class SpareBudget:
    """Bounds the spares of a node. Thread-safe."""

    def __init__(self, bytes_max: int = SPARES_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self.kept_bytes = 0

    def take(self, size_bytes: int) -> bool:
        """Count a file in if there is room for it."""
        with self._lock:
            fits = self.kept_bytes + size_bytes <= self._bytes_max
            if fits:
                self.kept_bytes += size_bytes
            return fits

    def give_back(self, size_bytes: int) -> None:
        """Count a file out."""
        with self._lock:
            self.kept_bytes -= size_bytes
            assert self.kept_bytes >= 0, "more was given back than was taken"

    @property
    def has_ended(self) -> bool:
        """Whether the disk was full since the node started."""
        return self._bytes_max == 0

    def end(self) -> None:
        """Keep nothing from here on: the disk was full."""
        with self._lock:
            self._bytes_max = 0


class Spare:
    """At most one file of a log. For the log's appending thread."""

    def __init__(self, fs: FileSystem, budget: SpareBudget, directory: Path) -> None:
        self._fs = fs
        self._budget = budget
        self._path = directory / SPARE_NAME
        self._size_bytes = 0

    def keep(self, segment: Path, size_bytes: int) -> bool:
        """Rename a segment's file to be the spare; False when there is one or no room, and nothing was done.

        Whoever calls it then calls `discard` if somebody still reads the file, and has the names durable before `use`.
        """
        if self._size_bytes or not self._budget.take(size_bytes):
            return False
        self._size_bytes = size_bytes
        for path in made_paths(segment):
            if self._fs.exists(path):
                self._fs.unlink(path)
        self._fs.rename(segment, self._path)
        return True

    def use(self) -> Path | None:
        """Hand out the file; None without one."""
        return self._path if self._let_go() else None

    def discard(self) -> bool:
        """Delete the file; False without one.

        Raises:
            OSError: it is still there; the next open of the log removes it.
        """
        held = self._let_go()
        if held:
            self._fs.unlink(self._path)
        return held

    def _let_go(self) -> bool:
        size_bytes, self._size_bytes = self._size_bytes, 0
        self._budget.give_back(size_bytes)
        return size_bytes > 0
