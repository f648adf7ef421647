"""Who serves readers while a partition's owner cannot be reached: another replica, up to what it knows is committed.

A partition that has lost its quorum gets no new owner, and what is committed is still to be had from whoever holds a
copy. Asking others at once would send readers astray at every takeover, which is over in a second. So the owner's
failing is noted, and when it has lasted for `STAND_IN_S` the other replicas are asked, those first that speak. From
then on the owner is called in the background; who reads goes back to it once it answers, or to the next one at once.

Only for reading: a replica tells what it has heard was committed, which is never too much and perhaps too little.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from tidelog.cluster.connection import Address, Connection
from tidelog.cluster.connection_pool import ConnectionPool
from tidelog.cluster.metadata import Metadata
from tidelog.errors import NodeUnreachableError, NotOwnerError, TidelogError

STAND_IN_S: Final = 1.0
"""How long an owner may fail to answer before another replica is read, and how long such a one may take to connect."""


class Reached(NamedTuple):
    """Who serves a partition to readers.

    Attributes:
        connection: to that node.
        is_owner: False: another replica, in place of an owner that cannot be reached, or is further away.
        instead_of: where that owner would be; None when nobody knows.
        is_near: it is read because it is near, see `nearest_replica.py`; `instead_of` is None then, as owners differ.
    """

    connection: Connection
    is_owner: bool = True
    instead_of: Address | None = None
    is_near: bool = False


class StandIns:
    """Of one client.

    Args:
        metadata: who holds copies.
        pool: connections to them.
        probe: asks the owner of a partition something that it answers at once. One that is silent may only be waiting:
            for a quorum that a publish needs.
    """

    def __init__(self, metadata: Metadata, pool: ConnectionPool, probe: Callable[[str, int, Connection], None]) -> None:
        self._metadata = metadata
        self._pool = pool
        self._probe = probe
        self._failing_since: dict[Address | tuple[str, int], float] = {}
        """By the owner's address; by topic and partition where nobody knows the owner."""

    async def find(self, topic: str, partition: int, ask_owner: Callable[[], Awaitable[Connection]]) -> Reached:
        """Return the connection to the owner, or after a while to another replica.

        Args:
            topic: its name.
            partition: 0-based.
            ask_owner: connects to the owner; one try.

        Raises:
            TidelogError: as `ask_owner`; nobody else serves readers yet, or at all.
        """
        loop = asyncio.get_running_loop()
        owner = self._metadata.owner_address(topic, partition)
        standing = None if owner is None else self._well(owner)
        if owner is not None and standing is not None:
            self._failing_since.pop(owner, None)
            self._failing_since.pop((topic, partition), None)
            return Reached(standing)
        began = loop.time()
        error: TidelogError
        if self.is_away(topic, partition) and self.exist(topic, partition):
            error = NodeUnreachableError(f"the owner of {topic!r}/{partition} does not answer")
            if owner is not None:
                self._pool.try_later(owner)
        else:
            try:
                async with asyncio.timeout(STAND_IN_S if self.exist(topic, partition) else None):
                    connection = await ask_owner()
                if connection.silent_s < STAND_IN_S or not self.exist(topic, partition):
                    self._failing_since.pop(self._key(topic, partition), None)
                    return Reached(connection)
                error = NodeUnreachableError(f"the owner of {topic!r}/{partition} is silent")
                if self._key(topic, partition) not in self._failing_since:
                    self._probe(topic, partition, connection)
            except TimeoutError:
                error = NodeUnreachableError(f"the owner of {topic!r}/{partition} does not answer")
            except (NodeUnreachableError, NotOwnerError) as failure:
                error = failure
            self._failing_since.setdefault(self._key(topic, partition), began)
        if self.is_away(topic, partition):
            for address in self._others(topic, partition):
                stand_in = await self._connected(address)
                if stand_in is not None:
                    return Reached(stand_in, is_owner=False, instead_of=owner)
        raise error

    def exist(self, topic: str, partition: int) -> bool:
        """Whether there are other replicas than the owner."""
        return len(self._metadata.replica_addresses(topic, partition)) > 1

    def is_away(self, topic: str, partition: int) -> bool:
        """Whether the owner has failed for so long that others are read."""
        since = self._failing_since.get(self._key(topic, partition))
        return since is not None and asyncio.get_running_loop().time() - since >= STAND_IN_S

    def is_well(self, address: Address) -> bool:
        """Whether a node is connected and speaks."""
        return self._well(address) is not None

    def _well(self, address: Address) -> Connection | None:
        """Return a connection to a reachable node; None if no node is reachable."""
        connection = self._pool.now(address)
        if connection is None or not connection.ready:
            return None
        # It has been silent for no longer than quiet, which takes no look at each request that waits.
        is_silent = connection.quiet_s >= STAND_IN_S and connection.silent_s >= STAND_IN_S
        return None if is_silent else connection

    def owner_is_back(self, topic: str, partition: int) -> bool:
        """Whether the owner can be read again; it is called if it cannot."""
        owner = self._metadata.owner_address(topic, partition)
        if owner is None:
            return False
        if self.is_well(owner):
            return True
        self._pool.try_later(owner)
        return False

    def _key(self, topic: str, partition: int) -> Address | tuple[str, int]:
        return self._metadata.owner_address(topic, partition) or (topic, partition)

    def _others(self, topic: str, partition: int) -> list[Address]:
        owner = self._metadata.owner_address(topic, partition)
        others = [each for each in self._metadata.replica_addresses(topic, partition) if each != owner]
        return sorted(others, key=lambda each: not self.is_well(each))

    async def _connected(self, address: Address) -> Connection | None:
        if self.is_well(address):
            return self._pool.now(address)
        if self._pool.now(address) is not None or self._pool.doubtful(address):
            self._pool.try_later(address)
            return None
        try:
            async with asyncio.timeout(STAND_IN_S):
                return await self._pool.get(address)
        except (TidelogError, TimeoutError):
            return None
