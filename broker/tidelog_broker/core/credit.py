"""Flow control of a subscription: credit and positions, without I/O.

Credit is counted in records and in bytes. Whole batches are sent, so the credit may fall below zero by one batch;
nothing more is sent until the client has raised both above zero again. Partitions are served round-robin; those that
have nothing to send are skipped until something changes, so that an append costs the same however many partitions a
subscription follows.
"""

from __future__ import annotations

from collections import OrderedDict

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
        self._ready: OrderedDict[PartitionKey, None] = OrderedDict()
        """Partitions that may have records to send, the next one to serve first."""

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
            raise ProtocolError(
                pb.INVALID_REQUEST,
                f"the subscription lists partition {key[1]} of the topic with id {key[0].hex()} twice; list each "
                "partition once",
            )
        self.positions[key] = offset
        self._ready[key] = None

    def remove(self, key: PartitionKey) -> None:
        """Unsubscribe from a partition."""
        self.positions.pop(key, None)
        self._ready.pop(key, None)

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

    @property
    def next_ready(self) -> PartitionKey | None:
        """The next partition to serve; None if no partition has anything to send."""
        return next(iter(self._ready), None)

    def wake(self, key: PartitionKey) -> None:
        """Serve a partition again, after those that are waiting to be served."""
        if key in self.positions:
            self._ready.setdefault(key)

    def rest(self, key: PartitionKey) -> None:
        """Skip a partition until `wake`: it has nothing to send."""
        self._ready.pop(key, None)

    def served(self, key: PartitionKey) -> None:
        """Move a partition behind all others that are ready, after records of it were sent; it may have more."""
        if key in self._ready:
            self._ready.move_to_end(key)
