"""Hot rings: the newest committed batches of a partition, kept in memory for readers who are close.

Subscribers and long-polling fetches that keep up are served from here without touching the log. Each ring
is bounded in bytes; who asks for an offset before its start reads the log until it has caught up. It holds
views of the very buffers that the batches arrived in.

Together a node's rings have a bound, too. When the sum passes it, the rings that were fed least recently
give way first: their readers are the least likely to be close.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict, deque
from typing import NamedTuple


class RingEntry(NamedTuple):
    """One committed batch: header and body, and the offsets it covers."""

    base_offset: int
    end_offset: int
    record_count: int
    data: memoryview


class HotRing:
    """A contiguous run of committed batches ending at the high watermark, oldest dropped first."""

    def __init__(self, *, bytes_max: int, start_offset: int) -> None:
        assert bytes_max >= 0
        self._bytes_max = bytes_max
        self._entries: deque[RingEntry] = deque()
        self._end_offset = start_offset
        self.size_bytes = 0

    @property
    def start_offset(self) -> int:
        """The first offset that can be read here."""
        return self._entries[0].base_offset if self._entries else self._end_offset

    @property
    def end_offset(self) -> int:
        """Where the next batch begins."""
        return self._end_offset

    def restart(self, offset: int) -> None:
        """Begin anew, empty, at `offset`: what comes next does not continue what was here."""
        self.shrink(0)
        self._end_offset = offset

    def push(self, entry: RingEntry) -> None:
        """Add the batch that continues the ring, dropping the oldest ones past the bound."""
        assert entry.base_offset == self._end_offset, "the ring has no holes"
        self._entries.append(entry)
        self._end_offset = entry.end_offset
        self.size_bytes += len(entry.data)
        self.shrink(self._bytes_max)

    def shrink(self, bytes_max: int) -> None:
        """Drop the oldest batches until at most `bytes_max` bytes are held."""
        while self.size_bytes > bytes_max:
            self.size_bytes -= len(self._entries.popleft().data)

    def drop_below(self, offset: int) -> None:
        """Drop the batches that end at or below `offset`."""
        while self._entries and self._entries[0].end_offset <= offset:
            self.size_bytes -= len(self._entries.popleft().data)

    def read(self, offset: int, bytes_max: int, records_max: int | None = None) -> list[RingEntry] | None:
        """Return batches from the one that holds `offset` on, at least one, about `bytes_max` bytes of them.

        Returns:
            None when `offset` lies before the ring; an empty list when it is the ring's end.
        """
        if offset < self.start_offset:
            return None
        picked: list[RingEntry] = []
        size_bytes = records = 0
        first = bisect_right(self._entries, offset, key=lambda entry: entry.end_offset)
        for index in range(first, len(self._entries)):
            entry = self._entries[index]
            if picked and size_bytes + len(entry.data) > bytes_max:
                break
            picked.append(entry)
            size_bytes += len(entry.data)
            records += entry.record_count
            if records_max is not None and records >= records_max:
                break
        return picked


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

    def drop_below(self, ring: HotRing, offset: int) -> None:
        """Drop what lies below an offset: the log holds something else by now, as it is compacted."""
        before = ring.size_bytes
        ring.drop_below(offset)
        self.size_bytes -= before - ring.size_bytes

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
