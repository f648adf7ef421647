"""Flow control of a subscription: credit and positions, without I/O.

Credit is counted in records and in bytes. Whole batches are sent, so the credit may fall below zero by one batch;
nothing more is sent until the client has raised both above zero again. Partitions are served round-robin.
"""

from __future__ import annotations

from tidelog_broker.core.topics import PartitionKey
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

CREDIT_MAX = 2**53
"""Maximum credit: the largest integer that is exact in every client language."""


class Subscription:
    """Credit of one subscriber, and the next offset of each of its partitions."""

    def __init__(self, subscription_id: int, *, credit_records: int, credit_bytes: int) -> None:
        self.subscription_id = subscription_id
        self.credit_records = min(credit_records, CREDIT_MAX)
        self.credit_bytes = min(credit_bytes, CREDIT_MAX)
        self.positions: dict[PartitionKey, int] = {}
        self._turn: list[PartitionKey] = []

    @property
    def may_send(self) -> bool:
        """Whether both kinds of credit are available."""
        return self.credit_records > 0 and self.credit_bytes > 0

    def add(self, key: PartitionKey, offset: int) -> None:
        """Subscribe to a partition from `offset`.

        Raises:
            ProtocolError: INVALID_REQUEST if the subscription already has this partition.
        """
        if key in self.positions:
            raise ProtocolError(pb.INVALID_REQUEST, f"duplicate partition {key[1]} in one subscription; name it once")
        self.positions[key] = offset
        self._turn.append(key)

    def remove(self, key: PartitionKey) -> None:
        """Unsubscribe from a partition."""
        if self.positions.pop(key, None) is not None:
            self._turn.remove(key)

    def grant(self, *, records: int, size_bytes: int) -> None:
        """Add credit granted by the client."""
        self.credit_records = min(self.credit_records + records, CREDIT_MAX)
        self.credit_bytes = min(self.credit_bytes + size_bytes, CREDIT_MAX)

    def spend(self, key: PartitionKey, *, records: int, size_bytes: int, next_offset: int) -> None:
        """Deduct credit for records that were sent, and advance the position."""
        assert next_offset > self.positions[key], "the position of a subscription must increase"
        self.credit_records -= records
        self.credit_bytes -= size_bytes
        self.positions[key] = next_offset

    def turns(self) -> list[PartitionKey]:
        """Return the partitions in round-robin order; the first moves to the end for the next call."""
        order = list(self._turn)
        if self._turn:
            self._turn.append(self._turn.pop(0))
        return order
