"""What a node's connections share: how much of everything all of them together may have."""

from __future__ import annotations

from tidelog_broker.base.config import NodeSettings
from tidelog_broker.wire.arriving import Arriving
from tidelog_broker.wire.budget import Budget
from tidelog_broker.wire.outgoing import Outgoing
from tidelog_proto.process.fair_scheduler import Turns


class ConnectionBounds:
    """Of one node. All methods are for the event loop's thread."""

    def __init__(self, settings: NodeSettings) -> None:
        self.budget = Budget(settings.node_in_flight_bytes)
        """Attachments and large envelopes of the requests being worked on, all connections together."""
        self.arriving = Arriving(self.budget)
        self.peers_budget = Budget(settings.peers_in_flight_bytes)
        """Batches from other nodes that are arriving, or are not written yet, all nodes together."""
        self.outgoing = Outgoing(
            bytes_max=settings.node_outgoing_bytes,
            connection_bytes_max=settings.connection_outgoing_bytes,
            stall_ms=settings.write_stall_ms,
        )
        self.turns = Turns()
        """Of requests that take the event loop long."""
        self.followed = 0
        """Partitions that the subscriptions of all connections follow together."""
        self.open_connections = 0
        self.open_clients = 0
        """Of these, those that have said HELLO."""
