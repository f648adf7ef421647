"""Reservations of new groups by principals with a group quota, which count before the groups are durable.

A principal that creates a group reserves it at the group's coordinator before counting all its groups. So of two
requests that create groups at two coordinators at the same time, at least one sees the other's reservation, and the
quota is not exceeded.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakValueDictionary

from tidelog_broker.core.groups.records import GroupRecords


class GroupReservations:
    """Counts the reservations at one node, by creator."""

    def __init__(self) -> None:
        self._claims: dict[str, Counter[tuple[int, str]]] = {}
        """Creator -> partition of `__offsets` and name -> number of requests that are about to create that group."""
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @contextmanager
    def claim(self, creator: str, index: int, name: str) -> Iterator[None]:
        """Count a new group of partition `index` for its creator while the context is open."""
        claims = self._claims.setdefault(creator, Counter())
        claims[index, name] += 1
        try:
            yield
        finally:
            claims[index, name] -= 1
            if not claims[index, name]:
                del claims[index, name]
            if not claims and self._claims.get(creator) is claims:
                del self._claims[creator]

    def made_by(self, creator: str, index: int, records: GroupRecords) -> int:
        """Return how many groups of partition `index` a principal has created or reserved.

        Args:
            records: the durable records of its groups.
        """
        claimed = (name for of, name in self._claims.get(creator, ()) if of == index)
        return records.made_by(creator) + sum(records.get(name) is None for name in claimed)

    def turn(self, creator: str) -> asyncio.Lock:
        """Return the lock for counting a principal's groups, one count at a time at each node.

        Without it, concurrent requests close to the quota would see each other's reservations, and all would be
        refused.
        """
        lock = self._turns.get(creator)
        if lock is None:
            lock = self._turns[creator] = asyncio.Lock()
        return lock
