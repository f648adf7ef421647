"""What the indexes of growing segments take in memory, all logs of a node together, and how much that may be."""

from __future__ import annotations

import threading
from typing import Final

from tidelog_proto.limits import MIB

HASHES_BYTES_MAX: Final = 256 * MIB


class HashMemory:
    """See the module. Thread-safe.

    Args:
        bytes_max: past this no index of a growing segment is brought further until others have got their files. One
            step of one index may go past it.
    """

    def __init__(self, bytes_max: int = HASHES_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._held: dict[object, int] = {}
        self._lock = threading.Lock()
        self.size_bytes = 0
        """What all of them take."""

    @property
    def is_full(self) -> bool:
        """Whether nothing is to be added."""
        return self.size_bytes >= self._bytes_max

    def holds(self, holder: object, size_bytes: int) -> None:
        """Note what one of them takes now; 0 where there is none any more."""
        with self._lock:
            self.size_bytes += size_bytes - self._held.pop(holder, 0)
            if size_bytes:
                self._held[holder] = size_bytes
