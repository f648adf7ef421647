"""The mappings of sealed segments from which batches are sent: few at a time, the least recently used go first.

A slice keeps its whole file: mapped, and on the disk after retention has deleted it. So what is mapped is bounded, and
so is what is only held by slices any more (`held_bytes`): past that nobody gets a slice, and reads copy. All files that
slices can hold are therefore at most the two bounds together, however slow those are who are sent them.

Mappings are made and closed here, on workers, and not where the last slice is let go of: unmapping a large file takes
milliseconds, which the event loop does not have.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final

from tidelog_broker.storage.io.filesystem import File
from tidelog_broker.storage.io.mapping import Mapping
from tidelog_proto.limits import MIB

MAPPED_BYTES_MAX: Final = 4096 * MIB
"""The page table of so much takes 8 MiB of memory."""
MAPPED_FILES_MAX: Final = 256
HELD_BYTES_MAX: Final = 1024 * MIB


class Mappings:
    """See the module. Thread-safe.

    Args:
        bytes_max, files_max: how much stays mapped for the next read.
        held_bytes_max: how much of what is not may be held by slices before no more are given.
    """

    def __init__(
        self,
        *,
        bytes_max: int = MAPPED_BYTES_MAX,
        files_max: int = MAPPED_FILES_MAX,
        held_bytes_max: int = HELD_BYTES_MAX,
    ) -> None:
        self._bytes_max = bytes_max
        self._files_max = files_max
        self._held_bytes_max = held_bytes_max
        self._lock = threading.Lock()
        self._mapped: OrderedDict[File, Mapping] = OrderedDict()
        self.mapped_bytes = 0
        self._held: list[Mapping] = []
        self.held_bytes = 0
        """Of files that only slices hold."""

    def __len__(self) -> int:
        return len(self._mapped)

    def take(self, file: File, at: int, length_bytes: int) -> memoryview | None:
        """Return a part of a file that nobody changes any more, in memory and ready to be sent; None: read it instead.

        May wait for the disk. The caller holds the file open and calls `drop` before it is closed.
        """
        found = self._slice(file, at, length_bytes)
        if found is None:
            return None
        mapping, data = found
        try:
            mapping.populate(at, length_bytes)
        except OSError:
            return None  # whoever reads the file instead says what is wrong with it
        return data

    def drop(self, file: File) -> bool:
        """Unmap a file; False when slices of it are held still, which stay good."""
        self.let_go()
        with self._lock:
            mapping = self._mapped.pop(file, None)
            if mapping is None:
                return True
            self.mapped_bytes -= mapping.size_bytes
        return self._unmap(mapping)

    def let_go(self) -> None:
        """Unmap what slices have held and hold no more, which gives back the space of files that were deleted."""
        if not self._held:
            return
        with self._lock:
            self._held = [one for one in self._held if not one.close()]
            self.held_bytes = sum(one.size_bytes for one in self._held)

    def _slice(self, file: File, at: int, length_bytes: int) -> tuple[Mapping, memoryview] | None:
        self.let_go()
        with self._lock:
            if self.held_bytes > self._held_bytes_max or len(self._held) >= self._files_max:  # each has a descriptor
                return None
            mapping = self._mapped.get(file)
            if mapping is None:
                try:
                    mapping = file.map_to_send()
                except (OSError, ValueError):
                    return None
                self._mapped[file] = mapping
                self.mapped_bytes += mapping.size_bytes
            self._mapped.move_to_end(file)
            # Within the lock: what has a slice stays mapped.
            data = mapping.slice(at, length_bytes) if at + length_bytes <= mapping.size_bytes else None
            excess = self._excess()
        for one in excess:
            self._unmap(one)
        return None if data is None else (mapping, data)

    def _excess(self) -> list[Mapping]:
        """Take out what is too much, but never the newest."""
        excess = []
        while len(self._mapped) > 1 and (self.mapped_bytes > self._bytes_max or len(self._mapped) > self._files_max):
            _, mapping = self._mapped.popitem(last=False)
            self.mapped_bytes -= mapping.size_bytes
            excess.append(mapping)
        return excess

    def _unmap(self, mapping: Mapping) -> bool:
        if mapping.close():
            return True
        with self._lock:
            self._held.append(mapping)
            self.held_bytes += mapping.size_bytes
        return False
