"""The other nodes as the rest of this one sees them: who is alive, where they are, where copies should live.

A node that stands alone is its own only neighbour: every plan is this node, and there is nobody to send to.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from tidelog_broker.core.effects import PeerMessage
from tidelog_broker.core.ports import PartitionKey, Plan
from tidelog_proto import broker_pb2 as pb

Address = tuple[str, int]


class Cluster:
    """Answers the replicas' questions about their surroundings, and carries their messages.

    Args:
        node_id, incarnation: this node.
        flush_of: what "durable" shall mean in a partition's next epoch.
        info: how clients reach this node.
    """

    def __init__(
        self,
        node_id: str,
        incarnation: int,
        *,
        flush_of: Callable[[PartitionKey], pb.Flush],
        info: Callable[[], pb.NodeInfo],
    ) -> None:
        self._node_id = node_id
        self._incarnation = incarnation
        self._flush_of = flush_of
        self._info = info
        self._random = random.Random()  # noqa: S311 - it spreads retries and protects nothing

    def alive(self, node_id: str) -> bool:
        """Whether a node seems to be alive."""
        return node_id == self._node_id

    def incarnation(self, node_id: str) -> int:
        """Return the newest known boot incarnation of a node, 0 for an unknown one."""
        return self._incarnation if node_id == self._node_id else 0

    def plan(self, key: PartitionKey, active: pb.EpochDescriptor) -> Plan:
        """Return where the epoch after `active` should live if this node takes over."""
        del active
        return Plan(self._node_id, (self._node_id,), 1, self._flush_of(key))

    def rank(self, key: PartitionKey, active: pb.EpochDescriptor) -> int:
        """Return how many living candidates stand before this node."""
        del key, active
        return 0

    def random_ms(self, below_ms: int) -> int:
        """Return a random number, 0 <= n < below_ms."""
        return self._random.randrange(below_ms)

    def send(self, to: str, message: PeerMessage, batches: Sequence[memoryview] = ()) -> None:
        """Send a one-way message with whole batches; it is dropped silently if the node is away."""

    def address(self, node_id: str) -> Address | None:
        """Return where clients and nodes reach a node; None when that is not known."""
        info = self._info()
        return (info.host, info.port) if node_id == self._node_id else None

    def nodes(self) -> list[pb.NodeInfo]:
        """Return all nodes of the cluster."""
        return [self._info()]
