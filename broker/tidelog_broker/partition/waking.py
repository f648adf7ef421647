"""Which closed partitions are opened although nobody asks for them.

    the owner is gone   gossip says so: the replicas here may have to take over, or to vote on who does
    nodes change        one is drained, joins or gets another role: what this node owns may have to move
    by and by           what was ever used, so slowly that it costs a small part of a core: so old records expire,
                        history that is missing is fetched and damage is found without anybody's asking

A partition that was never used is opened for none of these but the first two. Where one replica of a partition is open,
the others soon are, because it speaks to them: so none that counts on the others has to know who sleeps.
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
"""Before this, gossip has not met everybody: who is not known to live is not missed yet."""
SHARE: Final = 50
"""After an opening, so many times what it took goes by until the next: two hundredths of a core at most."""
PAUSE_S_MIN: Final = 0.05
LOOK_S: Final = 10.0
"""After a start, which leaves enough to do, and where there is nothing to open."""


class Waking:
    """See the module. All methods are for the event loop's thread.

    Args:
        partitions: those of the node.
        neighbours: who is alive.
        nodes: who is registered, and draining.
        node_id: this node.
        first_epoch: the first epoch of a partition, as its topic's record has it.
        loop: the node's.
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
        self._standing: frozenset[tuple[str, bool, frozenset[int]]] | None = None
        """Who could store and own partitions when that was last looked at."""
        self._tried: set[PartitionKey] = set()
        """What was opened by and by, or was to be: one that cannot be opened is left to who needs it."""

    def begin(self) -> None:
        """The node serves: after a while, whoever is not known to live is missed."""
        self._serves = True
        self.nodes_changed()
        self._loop.call_later(GRACE_S, self._begun)

    def _begun(self) -> None:
        self._may_miss = True
        self.liveness_changed()

    def liveness_changed(self) -> None:
        """Who is alive has changed, or what is stored here: open what may lack its owner."""
        if not self._may_miss:
            return
        closed, opening = self._partitions.closed, self._partitions.opening
        for owner in closed.owners():
            if not owner or not self._neighbours.alive(owner):
                for key in closed.owned_by(owner):
                    opening.soon(key, is_wanted=False)

    def nodes_changed(self) -> None:
        """The registry has changed: open what this node owns, if other nodes may have to store that."""
        if not self._serves:
            return
        records = list(self._nodes.records())
        standing = frozenset(
            (record.node_id, record.draining or record.removed, frozenset(record.roles)) for record in records
        )
        before, self._standing = self._standing, standing
        if standing == before:
            return
        leaving = {record.node_id for record in records if record.draining or record.removed}
        for key in self._partitions.closed.owned_by(self._node_id):
            if before is not None or leaving.intersection(self._placement(key)):
                self._partitions.opening.soon(key, is_wanted=False)

    def _placement(self, key: PartitionKey) -> set[str]:
        newest = self._partitions.known_epoch(key) or self._first_epoch(*key)
        return set(newest.placement) if newest is not None else set()

    async def run(self) -> None:
        """Open what was used, by and by, for as long as the node runs."""
        while True:
            await asyncio.sleep(LOOK_S)
            keys = [key for key in self._partitions.closed.used() if key not in self._tried]
            for key in keys:
                self._tried.add(key)
                if key not in self._partitions.closed:
                    continue
                began_s = self._loop.time()
                with contextlib.suppress(ProtocolError):  # it is told where it was tried
                    await self._partitions.opening.opened(key, is_wanted=False)
                await asyncio.sleep(max(PAUSE_S_MIN, SHARE * (self._loop.time() - began_s)))
            self._tried.intersection_update(self._partitions.closed.used())
