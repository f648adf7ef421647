"""The memory that all hot rings of a node share.

Each ring has its own bound; together they have one too. When the sum passes it, the rings that were fed
least recently give way first: their readers are the least likely to be close.
"""

from __future__ import annotations

from collections import OrderedDict

from tidelog_broker.core.ring import HotRing, RingEntry


class RingBudget:
    """Feeds rings and keeps their sum below `bytes_max`."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._rings: OrderedDict[int, HotRing] = OrderedDict()
        self._newest: HotRing | None = None
        self.size_bytes = 0

    def push(self, ring: HotRing, entry: RingEntry) -> None:
        """Add a batch to `ring`, making room where the sum demands it."""
        before = ring.size_bytes
        if _is_small_part(entry.data):
            entry = entry._replace(data=memoryview(bytes(entry.data)))
        ring.push(entry)
        self.size_bytes += ring.size_bytes - before
        if ring is not self._newest:
            self._rings[id(ring)] = self._newest = ring
            self._rings.move_to_end(id(ring))
        while self.size_bytes > self._bytes_max:
            key, oldest = next(iter(self._rings.items()))
            self.size_bytes -= oldest.size_bytes
            oldest.shrink(0)
            del self._rings[key]
            if oldest is self._newest:
                self._newest = None

    def forget(self, ring: HotRing) -> None:
        """Drop what a ring holds: its partition is gone, or what comes next does not continue it."""
        if self._rings.pop(id(ring), None) is not None:
            self.size_bytes -= ring.size_bytes
            ring.shrink(0)
            if ring is self._newest:
                self._newest = None


def _is_small_part(data: memoryview) -> bool:
    """Whether `data` would keep a frame in memory that is more than twice as long."""
    return 2 * len(data) < memoryview(data.obj).nbytes
