"""Which replica a consumer reads: one in the client's own zone, as far as it keeps up with the owner.

Any replica serves readers, up to what it has heard is committed, so reading next door saves the way between zones,
which is slow and is paid for. It costs time: a replica hears of a commit with the next append, or a heartbeat later.

A replica may be cut off from the owner and not know it; then it has nothing to say, as where nothing is published. So
every `LOOK_S` the owner is asked where the log ends, and a replica that has not come so far `BEHIND_S` later, and has
sent nothing meanwhile, though it had credit for more, is left for the owner and not read for `SHUN_S`. The same happens
where it cannot be reached, or ends a subscription. A replica cannot tell whether an offset that it has not heard of was
ever given out; the end that its owner tells says so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Final, Protocol

from tidelog.cluster.connection import Address, Connection
from tidelog.cluster.connection_pool import ConnectionPool
from tidelog.cluster.metadata import Metadata
from tidelog.errors import TidelogError, told
from tidelog.model import Offset, TopicPartition

LOOK_S: Final = 10.0
BEHIND_S: Final = 3.0
SHUN_S: Final = 60.0
CONNECT_S: Final = 1.0

_log: Final = logging.getLogger("tidelog.consumer")


class Nearby:
    """The replicas of one client's zone.

    Args:
        metadata: who holds copies, and where.
        pool: connections to them.
        zone: the client's; "" for none: everything is read from owners.
    """

    def __init__(self, metadata: Metadata, pool: ConnectionPool, zone: str) -> None:
        self.zone = zone
        self._metadata = metadata
        self._pool = pool
        self._shunned_until: dict[Address, float] = {}

    def address(self, topic: str, partition: int) -> Address | None:
        """Return where a partition is to be read instead of at its owner; None where that is near, or nobody is."""
        if not self.zone:
            return None
        owner, copies = self._metadata.copies_in(topic, partition, self.zone)
        if owner is None or owner in copies:
            return None
        now = asyncio.get_running_loop().time()
        return next((each for each in copies if self._shunned_until.get(each, 0.0) <= now), None)

    async def connection(self, address: Address) -> Connection | None:
        """Return the connection to a replica; None, and it is shunned, where it does not answer soon."""
        standing = self._pool.now(address)
        if standing is not None and standing.ready:
            return standing
        try:
            async with asyncio.timeout(CONNECT_S):
                return await self._pool.get(address)
        except (TidelogError, TimeoutError) as error:
            self.shun(address, told(error) if isinstance(error, TidelogError) else "it does not answer")
            return None

    def shun(self, address: Address, why: str) -> None:
        """Do not read at a replica for a while."""
        self._shunned_until[address] = asyncio.get_running_loop().time() + SHUN_S
        host, port = address
        _log.warning("%s:%d is in this zone and is not read for %.0f s: %s", host, port, SHUN_S, why)


class ReplicaReader(Protocol):
    """What a consumer's partitions are served by, as far as is looked at here."""

    @property
    def near_replicas(self) -> Mapping[TopicPartition, Address]:
        """The partitions that are read at a replica instead of at their owner, and where."""
        ...

    @property
    def read_at_owner(self) -> Iterable[TopicPartition]:
        """Those that are read at their owner."""
        ...

    def position_with_credit(self, where: TopicPartition) -> int | None:
        """Return where the arrivals of a partition have ended; None where no more may come: there is no credit."""

    def resubscribe(self, partitions: Iterable[TopicPartition]) -> None:
        """Subscribe partitions again, wherever that is to be now."""

    def beyond_end(self, where: TopicPartition, end: Offset) -> None:
        """A partition is read from beyond its end."""

    async def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Offset]:
        """Return the ends of logs as their owners say; without those that do not say it now."""
        ...


async def monitor_lag(nearby: Nearby, served: ReplicaReader) -> None:
    """Leave replicas that are behind, and come back to those that are not; for ever."""
    while True:
        await asyncio.sleep(LOOK_S)
        stood = {where: served.position_with_credit(where) for where in served.near_replicas}
        ends = await served.ends(stood)
        await asyncio.sleep(BEHIND_S)
        behind: dict[Address, list[TopicPartition]] = {}
        for where, end in ends.items():
            address, standing = served.near_replicas.get(where), served.position_with_credit(where)
            if address is None or standing is None or standing != stood[where]:
                continue
            if standing < end.offset:
                behind.setdefault(address, []).append(where)
            elif standing > end.offset:
                served.beyond_end(where, end)
        for address, partitions in behind.items():
            first = partitions[0]
            nearby.shun(
                address,
                f"{len(partitions)} partitions there are behind their owners for {BEHIND_S:g} s, "
                f"{first.topic}/{first.partition} among them",
            )
        again = [where for where, address in served.near_replicas.items() if address in behind]
        better: dict[Address, list[TopicPartition]] = {}
        for where in served.read_at_owner:
            nearer = nearby.address(*where)
            if nearer is not None:
                better.setdefault(nearer, []).append(where)
        for address, partitions in better.items():
            if await nearby.connection(address) is not None:  # nobody leaves an owner for who cannot be reached
                again += partitions
        served.resubscribe(again)
