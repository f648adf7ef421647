"""Limits that all connections of a node share."""

from __future__ import annotations

from typing import Final

from tidelog_broker.base.config import NodeSettings
from tidelog_broker.wire.budget import Budget
from tidelog_broker.wire.send_budget import SendBudget
from tidelog_proto.flow.byte_budget import SlowSenders
from tidelog_proto.flow.fair_scheduler import Turns
from tidelog_proto.flow.fair_slots import FairSlots, SlotBounds

PARTITIONS_AT_ONCE: Final = 64
"""Maximum number of partitions that are processed at a time for one caller, in requests that name partitions."""
_SLOTS: Final = 1 << 30
"""Total number of slots, so high that only the slots of each caller are a limit: a caller that waits for another node
must not keep other callers waiting."""


class ConnectionBounds:
    """Shared limits of one node's connections. All methods are for the event loop's thread."""

    def __init__(self, settings: NodeSettings) -> None:
        self.budget = Budget(settings.node_in_flight_bytes)
        """Attachments and large envelopes of requests in progress, all connections together."""
        self.slow_senders = SlowSenders(self.budget)
        self.peers_budget = Budget(settings.peers_in_flight_bytes)
        """Batches from other nodes that are arriving or not yet written, all nodes together."""
        self.send_budget = SendBudget(
            bytes_max=settings.node_outgoing_bytes,
            connection_bytes_max=settings.connection_outgoing_bytes,
            stall_ms=settings.write_stall_ms,
        )
        self.turns = Turns()
        """The scheduler of requests that occupy the event loop for long."""
        self.partition_slots = FairSlots(SlotBounds(_SLOTS, key_slots=PARTITIONS_AT_ONCE))
        """Slots for processing single partitions of requests, limited for each caller; see `PARTITIONS_AT_ONCE`."""
        self.followed = 0
        """Number of partitions that the subscriptions of all connections follow."""
        self.open_connections = 0
        self.open_clients = 0
        """Open connections of clients that have completed HELLO."""
