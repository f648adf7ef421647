"""How many producers, and requests with a key, a node knows over all partitions that it owns."""

from __future__ import annotations

from collections.abc import Sized
from typing import Final
from weakref import ref

NODE_PRODUCERS_MAX: Final = 100_000
"""Some 300 MB where each has eight batches, which a client of the cluster's hardly has in each partition."""
NODE_KEYED_MAX: Final = 500_000
"""28 MB in full runs; 250 MB where no partition has a full one."""


class SharedRoom:
    """What all tables of a node share; for the event loop's thread.

    A table counts from `join` on, for as long as it lives. Who is new while there is no room takes the place of another
    one in the same table: so a partition pays for its own producers, and a quiet one keeps what it knows.

    Rejected: a part of the node's limit for each partition, which most have no use for.
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
        """Count one that is new in its table already; return whether there was room for it."""
        self._room -= 1
        if self._room < 0 and self._has_lost:
            self._has_lost = False
            tables = [table for each in list(self._tables) if (table := each()) is not None]
            self._room = self._entries_max - sum(map(len, tables))
        return self._room >= 0

    def give_back(self, entries: int) -> None:
        """Count so many less."""
        self._room += entries

    def _lost(self, table: ref[Sized]) -> None:
        """A table is gone; any thread may be the one that notices."""
        self._tables.discard(table)
        self._has_lost = True


class ProducerBudget(SharedRoom):
    """The room of producers, and beside it that of requests with a key."""

    def __init__(self, producers_max: int = NODE_PRODUCERS_MAX, *, keyed_max: int = NODE_KEYED_MAX) -> None:
        super().__init__(producers_max)
        self.keyed = SharedRoom(keyed_max)
