"""Selection of the replica that a consumer reads: one in the client's zone, as long as it keeps up with the owner.

Any replica can serve reads up to the commit point it knows. Reading in the client's own zone saves traffic between
zones, which is slow and billed, but adds latency: a replica learns of a commit with the next append or heartbeat.

A replica that is partitioned from the owner looks like one of an idle partition. So every `CHECK_INTERVAL_S` the client
asks the owner for the end of the log. If the replica has not sent records up to that end `LAG_GRACE_S` later and has
sent nothing in the meantime although it had credit, the client reads from the owner instead and does not use the
replica for `EXCLUDE_S`. The same applies to a replica that cannot be reached or that ends a subscription. A replica
cannot detect a position past the end of the log; the client detects it by the end that the owner reports.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Final, Protocol

from tidelog.cluster.connection import Address, Connection
from tidelog.cluster.connection_pool import ConnectionPool
from tidelog.cluster.metadata import Metadata
from tidelog.errors import TidelogError, describe_error
from tidelog.model import Offset, TopicPartition

CHECK_INTERVAL_S: Final = 10.0
LAG_GRACE_S: Final = 3.0
EXCLUDE_S: Final = 60.0
CONNECT_S: Final = 1.0

_log: Final = logging.getLogger("tidelog.consumer")


class NearestReplica:
    """Selects the replica in one client's zone from which a partition is read, and excludes replicas that fail or lag.

    Args:
        zone: the client's zone; "" to read everything from owners.
    """

    def __init__(self, metadata: Metadata, pool: ConnectionPool, zone: str) -> None:
        self.zone = zone
        self._metadata = metadata
        self._pool = pool
        self._excluded_until: dict[Address, float] = {}

    def address(self, topic: str, partition: int) -> Address | None:
        """Return the address of the replica to read instead of the owner; None to read from the owner."""
        if not self.zone:
            return None
        owner, copies = self._metadata.replicas_in_zone(topic, partition, self.zone)
        if owner is None or owner in copies:
            return None
        now = asyncio.get_running_loop().time()
        return next((each for each in copies if self._excluded_until.get(each, 0.0) <= now), None)

    async def connection(self, address: Address) -> Connection | None:
        """Return the connection to a replica; if it cannot be connected in time, exclude it and return None."""
        connection = self._pool.now(address)
        if connection is not None and connection.ready:
            return connection
        try:
            async with asyncio.timeout(CONNECT_S):
                return await self._pool.get(address)
        except (TidelogError, TimeoutError) as error:
            self.exclude(
                address,
                describe_error(error) if isinstance(error, TidelogError) else f"no connection within {CONNECT_S:g} s",
            )
            return None

    def exclude(self, address: Address, why: str) -> None:
        """Do not read from a replica for `EXCLUDE_S`."""
        self._excluded_until[address] = asyncio.get_running_loop().time() + EXCLUDE_S
        host, port = address
        _log.warning("not reading from replica %s:%d in this zone for %.0f s: %s", host, port, EXCLUDE_S, why)


class ReplicaReader(Protocol):
    """The interface that `monitor_lag` requires of a consumer's subscriptions."""

    @property
    def near_replicas(self) -> Mapping[TopicPartition, Address]:
        """The partitions that are read from a replica instead of the owner, with its address."""
        ...

    @property
    def read_at_owner(self) -> Iterable[TopicPartition]:
        """The partitions that are read from their owner."""
        ...

    def position_with_credit(self, where: TopicPartition) -> int | None:
        """Return the next offset to receive; None if the partition is not subscribed or its node has no credit left."""

    def resubscribe(self, partitions: Iterable[TopicPartition]) -> None:
        """Subscribe partitions again at the currently selected replica."""

    def beyond_end(self, where: TopicPartition, end: Offset) -> None:
        """Handle a position past the end of the log."""

    async def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Offset]:
        """Return the ends of logs as reported by their owners; partitions whose owner does not answer are missing."""
        ...


async def monitor_lag(nearest_replica: NearestReplica, reader: ReplicaReader) -> None:
    """Switch away from lagging replicas, and back to replicas that have caught up, until cancelled."""
    while True:
        await asyncio.sleep(CHECK_INTERVAL_S)
        positions = {where: reader.position_with_credit(where) for where in reader.near_replicas}
        ends = await reader.ends(positions)
        await asyncio.sleep(LAG_GRACE_S)
        lagging: dict[Address, list[TopicPartition]] = {}
        for where, end in ends.items():
            address, position = reader.near_replicas.get(where), reader.position_with_credit(where)
            if address is None or position is None or position != positions[where]:
                continue
            if position < end.offset:
                lagging.setdefault(address, []).append(where)
            elif position > end.offset:
                reader.beyond_end(where, end)
        for address, partitions in lagging.items():
            first = partitions[0]
            nearest_replica.exclude(
                address,
                f"it lagged behind the owners of {len(partitions)} partitions for {LAG_GRACE_S:g} s, among them "
                f"{first.topic}/{first.partition}",
            )
        moved = [where for where, address in reader.near_replicas.items() if address in lagging]
        candidates: dict[Address, list[TopicPartition]] = {}
        for where in reader.read_at_owner:
            replica = nearest_replica.address(*where)
            if replica is not None:
                candidates.setdefault(replica, []).append(where)
        for address, partitions in candidates.items():
            # Switch away from an owner only if the replica is reachable.
            if await nearest_replica.connection(address) is not None:
                moved += partitions
        reader.resubscribe(moved)
