"""Anti-entropy: nodes compare chains of epochs, so that a node that missed a decision learns it.

A decision is sent once to the nodes of the epoch that ends and of the one that begins. The message can get lost, and
worst of all on its way to the new owner, because then no node sends messages of the new epoch. So every replica that is
not the owner sends the owner the length of its chain: soon after an epoch has begun, then at doubling intervals, and at
the longest interval forever. The node with the shorter chain requests the decisions that it lacks. A replica outside
the placement sends its length to all linked nodes, because a decision that it missed may name it as the owner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from tidelog_broker.cluster.cluster_view import Cluster
from tidelog_broker.core.replication.replica import Replica
from tidelog_broker.core.topics import PartitionKey
from tidelog_broker.replication.driver import ReplicaDriver
from tidelog_broker.replication.replicas import Replication

PERIOD_S: Final = 0.1
LOOKS_MAX: Final = 500
"""Maximum number of replicas examined per period; examining thousands each time would take a tenth of a core."""

EVERY: Final = 256
"""The longest interval between a replica's messages, in examinations."""


class AntiEntropy:
    """Periodically compares the chains of this node's replicas with those of other nodes."""

    def __init__(self, node_id: str, replication: Replication, cluster: Cluster) -> None:
        self._node_id = node_id
        self._replication = replication
        self._cluster = cluster
        self._ages: dict[PartitionKey, tuple[int, int]] = {}
        """For each replica its epoch, and how often it was examined in that epoch."""
        self._seen: dict[PartitionKey, tuple[int, int]] = {}
        """The same for each replica that was examined in the current round."""
        self._remaining_replicas: list[ReplicaDriver] = []
        """The replicas still to be examined in this round."""

    async def run(self) -> None:
        """Compare chains periodically."""
        while True:
            await asyncio.sleep(PERIOD_S)
            self.step()

    def step(self) -> None:
        """Examine the replicas of one period."""
        if not self._remaining_replicas:
            self._remaining_replicas = self._replication.all()
            self._ages, self._seen = self._seen, {}
        looked_at, self._remaining_replicas = self._remaining_replicas[:LOOKS_MAX], self._remaining_replicas[LOOKS_MAX:]
        for driver in looked_at:
            replica = driver.replica
            active = replica.state.active
            epoch, age = self._ages.get(driver.key, (-1, 0))
            age = age + 1 if epoch == active.epoch else 1
            self._seen[driver.key] = (active.epoch, age)
            # At examinations 1, 2, 4, 8, …, and then at every EVERYth one, at different times for each replica.
            if age & (age - 1) == 0 or age % EVERY == hash(driver.key) % EVERY:
                self._tell(replica)

    def _tell(self, replica: Replica) -> None:
        if replica.state.role in {"opening", "owner", "retiring"}:
            return
        others = [node_id for node_id in self._receivers(replica) if node_id != self._node_id]
        self._cluster.send(others, replica.state.chain_status(), ())

    def _receivers(self, replica: Replica) -> Iterable[str]:
        active = replica.state.active
        if replica.state.role == "outsider":
            return sorted(self._cluster.linked)
        return active.placement if active.owner in {"", self._node_id} else (active.owner,)
