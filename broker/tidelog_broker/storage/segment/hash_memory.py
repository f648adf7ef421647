"""Accounting of the memory for in-memory indexes of growing segments, of all logs of a node together."""

from __future__ import annotations

import threading
from typing import Final

from tidelog_proto.limits import MIB

HASHES_BYTES_MAX: Final = 256 * MIB
"""Default bound on the memory for in-memory indexes of growing segments, of all logs of a node together."""


class HashMemory:
    """Sums the memory of the in-memory indexes, and reports when the bound is reached. Thread-safe.

    Args:
        bytes_max: above this sum no in-memory index grows until others have been written to files. One step of one
            index may exceed it.
    """

    def __init__(self, bytes_max: int = HASHES_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._held: dict[object, int] = {}
        self._lock = threading.Lock()
        self.size_bytes = 0
        """The memory of all indexes."""

    @property
    def is_full(self) -> bool:
        """Whether indexes must not grow."""
        return self.size_bytes >= self._bytes_max

    def holds(self, holder: object, size_bytes: int) -> None:
        """Record the memory of one log's indexes, replacing the previous amount; 0 removes it."""
        with self._lock:
            self.size_bytes += size_bytes - self._held.pop(holder, 0)
            if size_bytes:
                self._held[holder] = size_bytes
