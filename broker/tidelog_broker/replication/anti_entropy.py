"""Anti-entropy: nodes compare chains of epochs, so that a node that missed a decision learns it.

A decision is told to the nodes of the epoch that ends and of the one that begins, once. The news can get lost, and
worst of all on its way to the node that the decision makes the owner, because then nobody speaks of the new epoch at
all. So every replica that is not the owner tells the owner how long its chain is: soon after an epoch has begun, then
less and less often, and for ever now and then. Whose chain is shorter asks for the rest. A replica outside the
placement asks all nodes that it has a link to: it may be the one that is named.
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
"""How many replicas are looked at in a period: all of many thousand each time would take a tenth of a core."""

EVERY: Final = 256
"""Looks after which every replica speaks again, however old its epoch is."""


class AntiEntropy:
    """Runs as long as the node does.

    Args:
        node_id: this node.
        replication: its replicas.
        cluster: to send, and to know who is linked.
    """

    def __init__(self, node_id: str, replication: Replication, cluster: Cluster) -> None:
        self._node_id = node_id
        self._replication = replication
        self._cluster = cluster
        self._ages: dict[PartitionKey, tuple[int, int]] = {}
        """Of each replica its epoch, and how often it was looked at in that."""
        self._seen: dict[PartitionKey, tuple[int, int]] = {}
        """The same as of this round."""
        self._left: list[ReplicaDriver] = []
        """Who has not been looked at in this round."""

    async def run(self) -> None:
        """Compare, again and again."""
        while True:
            await asyncio.sleep(PERIOD_S)
            self.step()

    def step(self) -> None:
        """Let a period go by."""
        if not self._left:
            self._left = self._replication.all()
            self._ages, self._seen = self._seen, {}
        looked_at, self._left = self._left[:LOOKS_MAX], self._left[LOOKS_MAX:]
        for driver in looked_at:
            replica = driver.replica
            active = replica.state.active
            epoch, age = self._ages.get(driver.key, (-1, 0))
            age = age + 1 if epoch == active.epoch else 1
            self._seen[driver.key] = (active.epoch, age)
            # At 1, 2, 4, 8, … looks, and then at a time of its own in each stretch of EVERY.
            if age & (age - 1) == 0 or age % EVERY == hash(driver.key) % EVERY:
                self._tell(replica)

    def _tell(self, replica: Replica) -> None:
        if replica.state.role in {"opening", "owner", "retiring"}:
            return
        others = [node_id for node_id in self._whom(replica) if node_id != self._node_id]
        self._cluster.send(others, replica.state.chain_status(), ())

    def _whom(self, replica: Replica) -> Iterable[str]:
        active = replica.state.active
        if replica.state.role == "outsider":
            return sorted(self._cluster.linked)
        return active.placement if active.owner in {"", self._node_id} else (active.owner,)
