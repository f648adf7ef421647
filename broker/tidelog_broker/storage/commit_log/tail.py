"""The tail of a store: its newest records, which are in the commit log, and their index. No I/O.

The entries are replaced as a whole when the tail is cut, copied or emptied; otherwise the writer appends to them and
then advances the end. A reader loads the entries first and the end after them, and reads only below that end.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_left, bisect_right
from typing import Final

from tidelog_broker.storage.commit_log.records import Boundary, record_bytes
from tidelog_broker.storage.engine.store import EpochStart

ENTRY_BYTES: Final = 28


class TailEntries:
    """The batches of a tail, by slot: base offset, position of the batch in the log, length, and largest timestamp.

    Attributes:
        base: where the first batch begins; the digest is None if it is unknown.
    """

    __slots__ = ("base", "lengths", "offsets", "positions", "times_us")

    def __init__(
        self,
        base: Boundary,
        offsets: array[int] | None = None,
        positions: array[int] | None = None,
        lengths: array[int] | None = None,
        times_us: array[int] | None = None,
    ) -> None:
        self.base = base
        self.offsets = array("q") if offsets is None else offsets
        self.positions = array("q") if positions is None else positions
        self.lengths = array("I") if lengths is None else lengths
        self.times_us = array("q") if times_us is None else times_us

    def __len__(self) -> int:
        return len(self.offsets)

    def append(self, offset: int, position: int, length: int, max_timestamp_us: int) -> None:
        """Add a batch; its offset is added last, because lookups go by offsets."""
        self.positions.append(position)
        self.lengths.append(length)
        self.times_us.append(max_timestamp_us)
        self.offsets.append(offset)

    def slot_of(self, offset: int) -> int:
        """Return the slot of the batch that holds `offset`; -1 if it is before the first."""
        return bisect_right(self.offsets, offset) - 1

    def slots_below(self, offset: int) -> int:
        """Return how many batches begin below `offset`."""
        return bisect_left(self.offsets, offset)

    def first(self, count: int) -> TailEntries:
        """Return a copy of the first entries."""
        return TailEntries(
            self.base, self.offsets[:count], self.positions[:count], self.lengths[:count], self.times_us[:count]
        )

    def after(self, count: int, base: Boundary) -> TailEntries:
        """Return a copy of the entries from a slot on, which begin at `base`."""
        return TailEntries(
            base, self.offsets[count:], self.positions[count:], self.lengths[count:], self.times_us[count:]
        )

    @property
    def log_bytes(self) -> int:
        """The space that the batches take in the log."""
        return sum(map(record_bytes, self.lengths))


UNKNOWN_DIGEST: Final = -1
"""The digest of a base that recovery does not know, because the records before it are not in the log any more."""


class Tail:
    """The tail of one store.

    Attributes:
        store: the id of the store.
        start: the identity of the store; its offset and digest are those of the first `STATE` that is known.
        entries: the batches.
        end: where the last batch ends.
        size_bytes: the space that the batches take in the log.
        marked_offset: records below it are known to have been synced. Above `end` if some of them are damaged.
        is_broken: recovery has found a batch that does not continue the tail, and has ignored later ones.
        is_cut: a cut below the tail's base was recorded, so the segments may still have to be cut there.
        is_doubtful: synced bytes of the log are missing that may have had records of the store.
        is_damaged: the tail is in LIMBO, so it is not copied.
        position: of the newest record that describes the whole tail; older ones are not needed.
        written_position: the position of the log after the newest batches that this process has appended to the tail.
        copy: a copy of the tail that has not ended; None outside of recovery.
        lock: held while the tail is changed.
    """

    __slots__ = (
        "copy",
        "end",
        "entries",
        "is_broken",
        "is_cut",
        "is_damaged",
        "is_doubtful",
        "is_forgotten",
        "lock",
        "marked_offset",
        "position",
        "size_bytes",
        "start",
        "store",
        "written_position",
    )

    def __init__(self, store: int, start: EpochStart, position: int = 0) -> None:
        base = Boundary(start.offset, start.digest)
        self.store = store
        self.start = start
        self.entries = TailEntries(base)
        self.end = base
        self.size_bytes = 0
        self.marked_offset = 0
        self.is_broken = False
        self.is_cut = False
        self.is_damaged = False
        self.is_doubtful = False
        self.is_forgotten = False
        self.position = position
        self.written_position = 0
        self.copy: Tail | None = None
        self.lock = threading.RLock()

    @property
    def oldest_position(self) -> int:
        """The position of the oldest record that recovery needs of this store."""
        return self.entries.positions[0] if len(self.entries) else self.position

    @property
    def is_unknown(self) -> bool:
        """Whether recovery has found no record that says where the tail begins."""
        return self.end.digest == UNKNOWN_DIGEST and not len(self.entries)

    def restart(self, base: Boundary, position: int) -> None:
        """Empty the tail, which begins at `base` from now on."""
        self.entries = TailEntries(base)
        self.end = base
        self.size_bytes = 0
        self.is_broken = self.is_cut = self.is_doubtful = False
        self.position = position

    def cut(self, end: Boundary, position: int) -> None:
        """Remove everything above a boundary."""
        entries = self.entries
        self.marked_offset = min(self.marked_offset, end.offset)
        if end.offset < entries.base.offset:
            self.restart(end, position)
            self.is_cut = True
        elif end.offset <= self.end.offset:
            count = entries.slots_below(end.offset)
            self.end = end
            self.entries = entries.first(count)
            self.size_bytes = self.entries.log_bytes
            self.is_broken = self.is_doubtful = False
        else:  # The records up to there are missing here; the segments may have them.
            self.marked_offset = end.offset
            self.is_doubtful = False

    def end_below(self, position: int) -> int:
        """Return the offset at which the batches that lie before a position of the log end."""
        entries = self.entries
        count = bisect_left(entries.positions, position)
        return entries.offsets[count] if count < len(entries) else self.end.offset

    def diverge(self, offset: int) -> None:
        """Keep only the batches below an offset: a record that has cut the tail there is damaged.

        The digest at the end may be unknown then.
        """
        entries = self.entries
        self.marked_offset = max(self.marked_offset, self.end.offset)
        if offset <= entries.base.offset:
            self.entries, self.end = TailEntries(entries.base), entries.base
        else:
            self.entries = entries.first(entries.slots_below(offset))
            self.end = Boundary(offset, UNKNOWN_DIGEST)
        self.size_bytes = self.entries.log_bytes
        self.is_broken = True

    def replace(self, entries: TailEntries, end: Boundary, position: int) -> None:
        """Put other entries, such as a copy, in the place of all entries."""
        self.entries = entries
        self.end = end
        self.size_bytes = entries.log_bytes
        self.is_broken = self.is_doubtful = False
        self.position = position
