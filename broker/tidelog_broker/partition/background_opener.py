"""Opening of closed partitions without a request.

There are three reasons:

    an owner is down    as gossip reports: the replicas on this node may have to take over, or to vote
    nodes change        a node is drained, joins or gets another role: partitions that this node owns may have to move
    maintenance         every used partition is opened, with a small share of a core: so that old records expire,
                        missing records are fetched, and damage is found

A partition that was never used is opened only for the first two reasons. An open replica sends messages to the other
replicas, and these messages open them, so no replica has to know which others are closed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from tidelog_broker.core.placement.registry import NodeRegistry
from tidelog_broker.core.topics import PartitionKey
from tidelog_broker.partition.partitions import Partitions
from tidelog_broker.replication.driver_ports import Neighbours
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

GRACE_S: Final = 2.0
"""Time after the start until gossip has reached all nodes; before that, an unknown node does not count as down."""
SHARE: Final = 50
"""Pause after opening a partition, as a multiple of how long that took, so that it takes at most 2 % of a core."""
PAUSE_S_MIN: Final = 0.05
LOOK_S: Final = 10.0
"""Pause after the node's start, when the node has more urgent work, and while there is nothing to open."""


class BackgroundOpener:
    """Opens closed partitions of a node. All methods are for the event loop's thread.

    Args:
        first_epoch: returns the first epoch of a partition in its topic's record.
    """

    def __init__(
        self,
        partitions: Partitions,
        *,
        neighbours: Neighbours,
        nodes: NodeRegistry,
        node_id: str,
        first_epoch: Callable[[bytes, int], pb.EpochDescriptor | None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._partitions = partitions
        self._neighbours = neighbours
        self._nodes = nodes
        self._node_id = node_id
        self._first_epoch = first_epoch
        self._loop = loop
        self._serves = self._may_miss = False
        self._capable_nodes: frozenset[tuple[str, bool, frozenset[int]]] | None = None
        """Which nodes could store and own partitions at the last check."""
        self._tried_partitions: set[PartitionKey] = set()
        """Partitions that the background task has tried to open; a failed one is opened again by a request only."""

    def begin(self) -> None:
        """Begin, because the node now serves requests; after `GRACE_S` unknown nodes count as down."""
        self._serves = True
        self.nodes_changed()
        self._loop.call_later(GRACE_S, self._begun)

    def _begun(self) -> None:
        self._may_miss = True
        self.liveness_changed()

    def liveness_changed(self) -> None:
        """Open partitions whose owner may be down: the set of live nodes, or of stored partitions, has changed."""
        if not self._may_miss:
            return
        closed, opening = self._partitions.closed, self._partitions.opening
        for owner in closed.owners():
            if not owner or not self._neighbours.alive(owner):
                for key in closed.owned_by(owner):
                    opening.soon(key, is_wanted=False)

    def nodes_changed(self) -> None:
        """Open partitions that this node owns if other nodes may have to store them: the registry has changed."""
        if not self._serves:
            return
        records = list(self._nodes.records())
        capable = frozenset(
            (record.node_id, record.draining or record.removed, frozenset(record.roles)) for record in records
        )
        before, self._capable_nodes = self._capable_nodes, capable
        if capable == before:
            return
        leaving = {record.node_id for record in records if record.draining or record.removed}
        for key in self._partitions.closed.owned_by(self._node_id):
            if before is not None or leaving.intersection(self._placement(key)):
                self._partitions.opening.soon(key, is_wanted=False)

    def _placement(self, key: PartitionKey) -> set[str]:
        newest = self._partitions.known_epoch(key) or self._first_epoch(*key)
        return set(newest.placement) if newest is not None else set()

    async def run(self) -> None:
        """Open used partitions in the background, as long as the node runs."""
        while True:
            await asyncio.sleep(LOOK_S)
            keys = [key for key in self._partitions.closed.used() if key not in self._tried_partitions]
            for key in keys:
                self._tried_partitions.add(key)
                if key not in self._partitions.closed:
                    continue
                began_s = self._loop.time()
                with contextlib.suppress(ProtocolError):  # The opener has logged it.
                    await self._partitions.opening.opened(key, is_wanted=False)
                await asyncio.sleep(max(PAUSE_S_MIN, SHARE * (self._loop.time() - began_s)))
            self._tried_partitions.intersection_update(self._partitions.closed.used())
