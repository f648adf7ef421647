"""Node-wide limits of remembered producers and idempotency keys, over all partitions that the node owns."""

from __future__ import annotations

from collections.abc import Sized
from typing import Final
from weakref import ref

NODE_PRODUCERS_MAX: Final = 100_000
"""Maximum number of producers, counted in each partition: about 300 MB if each has eight batches, which few have."""
NODE_KEYED_MAX: Final = 500_000
"""Maximum number of idempotency keys: 28 MB in full runs, at most 250 MB if no run is full."""


class SharedLimit:
    """A limit shared by all tables of a node; only for the event loop's thread.

    A table is counted from `join` until it is garbage-collected. When the limit is reached, a new entry evicts another
    one of the same table, so that a busy partition does not evict the entries of idle ones.

    Rejected: a fixed share of the limit per partition, which most partitions would not use.
    """

    def __init__(self, entries_max: int) -> None:
        assert entries_max > 0
        self._entries_max = entries_max
        self._room = entries_max
        self._tables: set[ref[Sized]] = set()
        self._has_lost = False

    def join(self, table: Sized) -> None:
        """Count the entries of a table."""
        self._tables.add(ref(table, self._lost))
        self._room -= len(table)

    def take(self) -> bool:
        """Count an entry just added to a table; return whether the limit allows it."""
        self._room -= 1
        if self._room < 0 and self._has_lost:
            self._has_lost = False
            tables = [table for each in list(self._tables) if (table := each()) is not None]
            self._room = self._entries_max - sum(map(len, tables))
        return self._room >= 0

    def give_back(self, entries: int) -> None:
        """Subtract removed entries."""
        self._room += entries

    def _lost(self, table: ref[Sized]) -> None:
        """Forget a garbage-collected table; runs in any thread."""
        self._tables.discard(table)
        self._has_lost = True


class ProducerBudget(SharedLimit):
    """The shared limit of producers, and in `keyed` that of idempotency keys."""

    def __init__(self, producers_max: int = NODE_PRODUCERS_MAX, *, keyed_max: int = NODE_KEYED_MAX) -> None:
        super().__init__(producers_max)
        self.keyed = SharedLimit(keyed_max)
