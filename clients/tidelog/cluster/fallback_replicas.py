"""Reads from another replica, up to the commit point that this replica knows, while the owner cannot be reached.

A partition that has lost its quorum elects no new owner, but every replica can still serve committed records. Reading
from other replicas immediately would redirect readers at every failover, which usually lasts less than a second.
Therefore the client records when the owner started to fail, and after `FALLBACK_AFTER_S` reads from another replica,
preferably a responsive one. It then reconnects to the owner in the background and reads from the owner again once the
owner answers. Only reads use other replicas: a replica may know an older commit point than the owner, never a newer
one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from tidelog.cluster.connection import Address, Connection
from tidelog.cluster.connection_pool import ConnectionPool
from tidelog.cluster.metadata import Metadata
from tidelog.errors import NodeUnreachableError, NotOwnerError, TidelogError

FALLBACK_AFTER_S: Final = 1.0
"""Time without an answer after which another replica is read instead of the owner.

It is also the time limit for connecting to that replica.
"""


class ReadReplica(NamedTuple):
    """The replica that serves a partition's reads.

    Attributes:
        is_owner: False for a replica that is read because the owner is unreachable or in another zone.
        instead_of: address of the unreachable owner that it replaces; None if it is the owner, or the owner is unknown.
        is_near: whether the replica is read because it is in the client's zone, see `nearest_replica.py`; `instead_of`
            is None then, because the partitions that it serves have different owners.
    """

    connection: Connection
    is_owner: bool = True
    instead_of: Address | None = None
    is_near: bool = False


class FallbackReplicas:
    """Selects the replica from which one client reads a partition: the owner, or another one if the owner has failed.

    Args:
        probe: sends the owner of a partition a request that needs no quorum, so that a responsive owner answers
            immediately and is not taken for a silent one.
    """

    def __init__(self, metadata: Metadata, pool: ConnectionPool, probe: Callable[[str, int, Connection], None]) -> None:
        self._metadata = metadata
        self._pool = pool
        self._probe = probe
        self._failing_since: dict[Address | tuple[str, int], float] = {}
        """Loop time of the first failure, by the owner's address, or by topic and partition where no owner is known."""

    async def find(self, topic: str, partition: int, ask_owner: Callable[[], Awaitable[Connection]]) -> ReadReplica:
        """Return the connection to the owner or, once the owner has failed for long enough, to another replica.

        Args:
            ask_owner: connects to the owner; one attempt.

        Raises:
            TidelogError: as `ask_owner`, and no other replica can be read yet.
        """
        open_owner = self.owner_now(topic, partition)
        if open_owner is not None:
            return open_owner
        owner = self._metadata.owner_address(topic, partition)
        began = asyncio.get_running_loop().time()
        error: TidelogError
        if self.owner_has_failed(topic, partition) and self.has_others(topic, partition):
            error = NodeUnreachableError(f"the owner of {topic!r}/{partition} does not answer")
            if owner is not None:
                self._pool.connect_later(owner)
        else:
            try:
                async with asyncio.timeout(FALLBACK_AFTER_S if self.has_others(topic, partition) else None):
                    connection = await ask_owner()
                if connection.silent_s < FALLBACK_AFTER_S or not self.has_others(topic, partition):
                    self._failing_since.pop(self._key(topic, partition), None)
                    return ReadReplica(connection)
                error = NodeUnreachableError(
                    f"the owner of {topic!r}/{partition} sends nothing over its open connection; trying other replicas"
                )
                if self._key(topic, partition) not in self._failing_since:
                    self._probe(topic, partition, connection)
            except TimeoutError:
                error = NodeUnreachableError(f"the owner of {topic!r}/{partition} does not answer")
            except (NodeUnreachableError, NotOwnerError) as failure:
                error = failure
            self._failing_since.setdefault(self._key(topic, partition), began)
        if self.owner_has_failed(topic, partition):
            for address in self._others(topic, partition):
                fallback = await self._connected(address)
                if fallback is not None:
                    return ReadReplica(fallback, is_owner=False, instead_of=owner)
        raise error

    def owner_now(self, topic: str, partition: int) -> ReadReplica | None:
        """Return the owner as the replica to read; None if it is unknown, not connected or not responsive."""
        owner = self._metadata.owner_address(topic, partition)
        connection = None if owner is None else self._responsive_connection(owner)
        if owner is None or connection is None:
            return None
        self._failing_since.pop(owner, None)
        self._failing_since.pop((topic, partition), None)
        return ReadReplica(connection)

    def has_others(self, topic: str, partition: int) -> bool:
        """Return whether the partition has other replicas than the owner."""
        route = self._metadata.route(topic, partition)
        if route is None or len(route.placement) < 2:
            return False
        return len(self._metadata.replica_addresses(topic, partition)) > 1

    def owner_has_failed(self, topic: str, partition: int) -> bool:
        """Return whether the owner has failed for `FALLBACK_AFTER_S`, so that other replicas are read."""
        since = self._failing_since.get(self._key(topic, partition))
        return since is not None and asyncio.get_running_loop().time() - since >= FALLBACK_AFTER_S

    def is_responsive(self, address: Address) -> bool:
        """Return whether a node is connected and responsive."""
        return self._responsive_connection(address) is not None

    def _responsive_connection(self, address: Address) -> Connection | None:
        """Return the open connection to a node; None if it is not connected, full or silent."""
        connection = self._pool.now(address)
        if connection is None or not connection.ready:
            return None
        # `quiet_s` is at least `silent_s` and needs no scan of the pending requests.
        is_silent = connection.quiet_s >= FALLBACK_AFTER_S and connection.silent_s >= FALLBACK_AFTER_S
        return None if is_silent else connection

    def owner_has_returned(self, topic: str, partition: int) -> bool:
        """Return whether the owner can be read again; otherwise start to reconnect to it."""
        owner = self._metadata.owner_address(topic, partition)
        if owner is None:
            return False
        if self.is_responsive(owner):
            return True
        self._pool.connect_later(owner)
        return False

    def _key(self, topic: str, partition: int) -> Address | tuple[str, int]:
        return self._metadata.owner_address(topic, partition) or (topic, partition)

    def _others(self, topic: str, partition: int) -> list[Address]:
        owner = self._metadata.owner_address(topic, partition)
        others = [each for each in self._metadata.replica_addresses(topic, partition) if each != owner]
        return sorted(others, key=lambda each: not self.is_responsive(each))

    async def _connected(self, address: Address) -> Connection | None:
        if self.is_responsive(address):
            return self._pool.now(address)
        if self._pool.now(address) is not None or self._pool.doubtful(address):
            self._pool.connect_later(address)
            return None
        try:
            async with asyncio.timeout(FALLBACK_AFTER_S):
                return await self._pool.get(address)
        except (TidelogError, TimeoutError):
            return None
