"""Reuse of a segment's file that retention deletes, for the next segment of the log.

The page cache memory of a deleted file is returned to the kernel, and on a virtual machine to the host; touching fresh
pages costs ten times as much as copying into cached ones. Blocks that were allocated and never written cost the file
system a metadata update at the next sync. A file that was written before has neither cost. So a log keeps the file of
the oldest segment that retention deletes, under a name that recovery removes, until it begins the next segment.

The old contents remain after the new ones but cannot be mistaken for them: the file stays within its epoch, where all
of its offsets are lower than any later one, so no old batch continues the new ones; and its sync marks have the nonce
of the old file. A file is reused only when the removal of its old name is durable, and only if the file is not open.

Rejected: a pool for all logs of a node, where a batch of another topic could have the right epoch and offset; and
zeroing the file, which writes everything twice.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Final

from tidelog_broker.storage.directory.names import NEW_SUFFIX
from tidelog_broker.storage.io.filesystem import FileSystem
from tidelog_broker.storage.segment.layout import made_paths
from tidelog_proto.limits import MIB

SPARE_NAME: Final = "next" + NEW_SUFFIX
SPARES_BYTES_MAX: Final = 1024 * MIB
"""Bound on the size of the spare files of all logs of a node together: four segments of the default size."""


class SpareBudget:
    """Bounds the spare files of a node. Thread-safe."""

    def __init__(self, bytes_max: int = SPARES_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self.kept_bytes = 0

    def take(self, size_bytes: int) -> bool:
        """Charge the budget with a file if the file fits; return whether it does."""
        with self._lock:
            fits = self.kept_bytes + size_bytes <= self._bytes_max
            if fits:
                self.kept_bytes += size_bytes
            return fits

    def give_back(self, size_bytes: int) -> None:
        """Release a file's share of the budget."""
        with self._lock:
            self.kept_bytes -= size_bytes
            assert self.kept_bytes >= 0, "more was given back than was taken"

    @property
    def has_ended(self) -> bool:
        """Whether the disk has been full since the node started."""
        return self._bytes_max == 0

    def end(self) -> None:
        """Keep no more spare files: the disk is full."""
        with self._lock:
            self._bytes_max = 0


class Spare:
    """At most one spare file of a log. For the log's appending thread."""

    def __init__(self, fs: FileSystem, budget: SpareBudget, directory: Path) -> None:
        self._fs = fs
        self._budget = budget
        self._path = directory / SPARE_NAME
        self._size_bytes = 0

    def keep(self, segment: Path, size_bytes: int) -> bool:
        """Rename a segment's file to be the spare; return False if a spare exists or the budget does not allow one.

        The caller then calls `discard` if the file is still being read, and syncs the directory before `use`.
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
        """Return the path of the spare file for reuse; None if no such file exists."""
        return self._path if self._let_go() else None

    def discard(self) -> bool:
        """Delete the spare file; return whether one existed.

        Raises:
            OSError: the file still exists; the next open of the log removes it.
        """
        held = self._let_go()
        if held:
            self._fs.unlink(self._path)
        return held

    def _let_go(self) -> bool:
        size_bytes, self._size_bytes = self._size_bytes, 0
        self._budget.give_back(size_bytes)
        return size_bytes > 0
