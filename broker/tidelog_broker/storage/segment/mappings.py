"""The mappings of sealed segments from which batches are sent: a bounded LRU set.

A slice keeps its whole file mapped, and on the disk even after retention has deleted it. So the mapped bytes are
bounded, and so are the bytes of files held only by slices (`held_bytes`): beyond that bound no slices are given out,
and reads copy. The files that slices can hold are thus bounded by the sum of both, however slow the receivers are.

Mappings are created and closed on worker threads, not where the last slice is released: unmapping a large file takes
milliseconds, which must not block the event loop.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final

from tidelog_broker.storage.io.filesystem import File
from tidelog_broker.storage.io.mapping import Mapping
from tidelog_proto.limits import MIB

MAPPED_BYTES_MAX: Final = 4096 * MIB
"""Bound on the mapped bytes; their page table takes 8 MiB of memory."""
MAPPED_FILES_MAX: Final = 256
HELD_BYTES_MAX: Final = 1024 * MIB
"""Bound on the bytes of files that are held only by slices."""


class Mappings:
    """A bounded LRU set of mappings of sealed segments, from which batches are sent. Thread-safe.

    Args:
        bytes_max, files_max: bounds on the files that stay mapped for the next read.
        held_bytes_max: bound on the bytes held only by slices; beyond it no more slices are given out.
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
        """Bytes of files that only slices hold."""

    def __len__(self) -> int:
        return len(self._mapped)

    def take(self, file: File, at: int, length_bytes: int) -> memoryview | None:
        """Return a part of a sealed file, loaded and ready to be sent; None if it must be read instead.

        May wait for the disk. The caller keeps the file open and calls `drop` before it is closed.
        """
        found = self._slice(file, at, length_bytes)
        if found is None:
            return None
        mapping, data = found
        try:
            mapping.populate(at, length_bytes)
        except OSError:
            return None  # The caller reads the file instead and gets the error there.
        return data

    def drop(self, file: File) -> bool:
        """Unmap a file; return False while slices of it exist, which stay valid."""
        self.let_go()
        with self._lock:
            mapping = self._mapped.pop(file, None)
            if mapping is None:
                return True
            self.mapped_bytes -= mapping.size_bytes
        return self._unmap(mapping)

    def let_go(self) -> None:
        """Unmap files whose last slice was released, which frees the space of deleted files."""
        if not self._held:
            return
        with self._lock:
            self._held = [one for one in self._held if not one.close()]
            self.held_bytes = sum(one.size_bytes for one in self._held)

    def _slice(self, file: File, at: int, length_bytes: int) -> tuple[Mapping, memoryview] | None:
        self.let_go()
        with self._lock:
            # The number of held mappings is bounded, too, because each has a descriptor.
            if self.held_bytes > self._held_bytes_max or len(self._held) >= self._files_max:
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
            # The slice is taken within the lock: a mapping with a slice cannot be unmapped by another thread.
            data = mapping.slice(at, length_bytes) if at + length_bytes <= mapping.size_bytes else None
            excess = self._excess()
        for one in excess:
            self._unmap(one)
        return None if data is None else (mapping, data)

    def _excess(self) -> list[Mapping]:
        """Remove mappings beyond the bounds, but never the newest."""
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
