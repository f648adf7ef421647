"""Hot rings: in-memory caches of the newest batches of a partition.

A batch is added once it is written to the local log, before it is committed; readers stop at the high watermark.
Subscribers and long-polling fetches near the end are served from the ring without reading the log. Each ring is bounded
in bytes; readers at an offset before its start read the log until they have caught up. A ring holds views of the
buffers in which the batches were received, or a copy of a batch that is less than half of its buffer.

The rings of a node share a budget. When their sum exceeds it, the rings that were appended to least recently are
emptied first, because their readers are the least likely to be near the end.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict, deque
from typing import NamedTuple


class RingEntry(NamedTuple):
    """One batch of the local log, committed or not: header, body and its offsets."""

    base_offset: int
    end_offset: int
    record_count: int
    data: memoryview


class HotRing:
    """A contiguous sequence of batches up to the newest one in the local log; the oldest are evicted first.

    It may end after the high watermark; `PartitionReader` returns no batch beyond it.
    """

    def __init__(self, *, bytes_max: int, start_offset: int) -> None:
        assert bytes_max >= 0
        self._bytes_max = bytes_max
        self._entries: deque[RingEntry] = deque()
        self._end_offset = start_offset
        self.size_bytes = 0

    @property
    def start_offset(self) -> int:
        """The first offset in the ring; the end of an empty one."""
        return self._entries[0].base_offset if self._entries else self._end_offset

    @property
    def end_offset(self) -> int:
        """The offset of the next batch."""
        return self._end_offset

    def restart(self, offset: int) -> None:
        """Empty the ring and set its end to `offset`, because the next batch does not continue it."""
        self.shrink(0)
        self._end_offset = offset

    def push(self, entry: RingEntry) -> None:
        """Append the next batch, evicting the oldest ones beyond the limit."""
        assert entry.base_offset == self._end_offset, "batches must be contiguous"
        self._entries.append(entry)
        self._end_offset = entry.end_offset
        self.size_bytes += len(entry.data)
        if self.size_bytes > self._bytes_max:
            self.shrink(self._bytes_max)

    def shrink(self, bytes_max: int) -> None:
        """Evict the oldest batches until at most `bytes_max` bytes are held."""
        while self.size_bytes > bytes_max:
            self.size_bytes -= len(self._entries.popleft().data)

    def drop_below(self, offset: int) -> None:
        """Drop the batches that end at or below `offset`."""
        while self._entries and self._entries[0].end_offset <= offset:
            self.size_bytes -= len(self._entries.popleft().data)

    def read(self, offset: int, bytes_max: int, records_max: int | None = None) -> list[RingEntry] | None:
        """Return batches starting with the one that contains `offset`.

        Args:
            bytes_max: maximum total size; the first batch is returned even if it is larger.
            records_max: number of records after which no further batch is added.

        Returns:
            None if `offset` is before the start of the ring; an empty list at its end.
        """
        if offset < self.start_offset:
            return None
        entries: list[RingEntry] = []
        size_bytes = records = 0
        first = bisect_right(self._entries, offset, key=lambda entry: entry.end_offset)
        for index in range(first, len(self._entries)):
            entry = self._entries[index]
            if entries and size_bytes + len(entry.data) > bytes_max:
                break
            entries.append(entry)
            size_bytes += len(entry.data)
            records += entry.record_count
            if records_max is not None and records >= records_max:
                break
        return entries


class RingBudget:
    """Appends to the rings of a node, and limits their total size to `bytes_max`."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._rings: OrderedDict[int, HotRing] = OrderedDict()
        self._newest: HotRing | None = None
        self.size_bytes = 0

    def push(self, ring: HotRing, entry: RingEntry) -> None:
        """Append a batch to `ring`; while the total exceeds the budget, empty the least recently appended ring."""
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
        """Drop batches below an offset, because compaction has changed the log there."""
        before = ring.size_bytes
        ring.drop_below(offset)
        self.size_bytes -= before - ring.size_bytes

    def forget(self, ring: HotRing) -> None:
        """Empty a ring whose partition was closed, or whose next batch does not continue it."""
        if self._rings.pop(id(ring), None) is not None:
            self.size_bytes -= ring.size_bytes
            ring.shrink(0)
            if ring is self._newest:
                self._newest = None


def _is_small_part(data: memoryview) -> bool:
    """Return whether `data` keeps a buffer of more than twice its size in memory."""
    return 2 * len(data) < memoryview(data.obj).nbytes
