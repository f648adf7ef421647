"""Groups that are about to be made by principals with a quota of groups: they count before they are durable.

Who makes a group claims it here, at its coordinator, before he asks how many there are anywhere. So of two who make
groups at two coordinators at once at least one sees the other's claim, and a quota is never overrun by that.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakValueDictionary

from tidelog_broker.core.groups.records import GroupRecords


class GroupClaims:
    """The claims at one node, by who makes the groups."""

    def __init__(self) -> None:
        self._claims: dict[str, Counter[tuple[int, str]]] = {}
        """Creator -> partition of `__offsets` and name -> how many requests are about to make that group."""
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @contextmanager
    def claim(self, creator: str, index: int, name: str) -> Iterator[None]:
        """Count a group of partition `index` as made, until it is, or is not to be made after all."""
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
        """Return how many groups of partition `index` a principal has made, or claims.

        Args:
            creator: the principal.
            index: the partition.
            records: what is durable of its groups.
        """
        claimed = (name for of, name in self._claims.get(creator, ()) if of == index)
        return records.made_by(creator) + sum(records.get(name) is None for name in claimed)

    def turn(self, creator: str) -> asyncio.Lock:
        """Return the lock under which the groups of a principal are counted: one count at a time at each node.

        Else of many who come at once at the bound each would see the claims of all others, and none would pass.
        """
        lock = self._turns.get(creator)
        if lock is None:
            lock = self._turns[creator] = asyncio.Lock()
        return lock
