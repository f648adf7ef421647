"""A subscription's credit and positions, without the network: what may be sent next.

Credit is counted in records and in bytes. Whole batches are sent, so it may fall below zero by one batch;
nothing more is sent until the client has lifted both above zero again. Partitions take turns.
"""

from __future__ import annotations

from tidelog_broker.core.topics import PartitionKey
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

CREDIT_MAX = 2**53
"""More credit than this cannot be held: it stays exact in every language's numbers."""


class Subscription:
    """What one subscriber may get: credit, and the next offset of each partition."""

    def __init__(self, subscription_id: int, *, credit_records: int, credit_bytes: int) -> None:
        self.subscription_id = subscription_id
        self.credit_records = min(credit_records, CREDIT_MAX)
        self.credit_bytes = min(credit_bytes, CREDIT_MAX)
        self.positions: dict[PartitionKey, int] = {}
        self._turn: list[PartitionKey] = []

    @property
    def may_send(self) -> bool:
        """Whether there is credit of both kinds."""
        return self.credit_records > 0 and self.credit_bytes > 0

    def add(self, key: PartitionKey, offset: int) -> None:
        """Follow a partition from `offset` on.

        Raises:
            ProtocolError: INVALID_REQUEST when the subscription has this partition already.
        """
        if key in self.positions:
            raise ProtocolError(pb.INVALID_REQUEST, f"partition {key[1]} is named twice in one subscription")
        self.positions[key] = offset
        self._turn.append(key)

    def remove(self, key: PartitionKey) -> None:
        """Stop following a partition."""
        if self.positions.pop(key, None) is not None:
            self._turn.remove(key)

    def grant(self, *, records: int, size_bytes: int) -> None:
        """Add credit from the client."""
        self.credit_records = min(self.credit_records + records, CREDIT_MAX)
        self.credit_bytes = min(self.credit_bytes + size_bytes, CREDIT_MAX)

    def spend(self, key: PartitionKey, *, records: int, size_bytes: int, next_offset: int) -> None:
        """Note what was sent of a partition."""
        assert next_offset > self.positions[key], "a subscription never goes back"
        self.credit_records -= records
        self.credit_bytes -= size_bytes
        self.positions[key] = next_offset

    def turns(self) -> list[PartitionKey]:
        """Return the partitions in the order of their turns; the first goes to the end for the next call."""
        order = list(self._turn)
        if self._turn:
            self._turn.append(self._turn.pop(0))
        return order
