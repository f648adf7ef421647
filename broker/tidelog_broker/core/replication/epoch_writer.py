"""The writer of an epoch: assignment of offsets, and the high watermark.

Batches wait in the pipeline until the owner assigns offsets to a group. Each batch is checked against the producer
table and gets the next offsets and the owner's header fields. The group is then appended locally and sent to the
replicas. Every replica, including the owner, reports the contiguous end of its durable records. The lowest end within
the best ack quorum is the high watermark; a publish that ends at or below it is complete.

    assign(batches) -> Group       offsets assigned, headers stamped
    acknowledge(node, end)         a replica holds everything below `end`
    high_watermark                 end of the committed records

Assigned offsets are never returned: the caller reserves disk space before, and a write that fails afterwards
permanently ends the epoch on this node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tidelog_broker.core.replication.ports import Batch, Position
from tidelog_broker.core.replication.producers import ProducerTable, StoredBatch
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import BatchHeader, stamp_owner
from tidelog_proto.errors import ProtocolError


@dataclass(slots=True)
class Group:
    """Result of one `assign`, with one outcome per batch: stored, stored before, or refused."""

    base_offset: int
    end_offset: int
    base_digest: int
    batches: list[memoryview] = field(default_factory=list)
    headers: list[BatchHeader] = field(default_factory=list)
    ends: list[Position] = field(default_factory=list)
    """The positions after each of `batches`."""
    outcomes: list[StoredBatch | ProtocolError] = field(default_factory=list)
    duplicates: list[bool] = field(default_factory=list)


class Owner:
    """The only writer of an epoch. All offsets are absolute; `next_offset` is the first unassigned one.

    `is_logged`: whether the local log contains the producer state from before the epoch.
    """

    def __init__(
        self,
        descriptor: pb.EpochDescriptor,
        *,
        producers: ProducerTable,
        is_logged: bool = True,
    ) -> None:
        assert 1 <= descriptor.ack_quorum <= len(descriptor.placement)
        assert descriptor.owner in descriptor.placement
        self.epoch = descriptor.epoch
        self.node_id = descriptor.owner
        self.incarnation = descriptor.owner_incarnation
        self.ack_quorum = descriptor.ack_quorum
        self.producers = producers
        self.is_logged = is_logged
        self.next_offset = descriptor.start_offset
        self.digest = 0
        self.high_watermark = descriptor.start_offset
        self._last_append_timestamp_us = producers.last_append_timestamp_us
        self._start_offset = descriptor.start_offset
        self._durable_ends = dict.fromkeys(descriptor.placement, descriptor.start_offset)

    def assign(self, batches: Sequence[Batch], *, now_us: int) -> Group:
        """Assign offsets to `batches` in order and stamp their headers in place; their bytes are writable.

        Retries and refused batches get an outcome without offsets, and do not affect their neighbours. Append
        timestamps never decrease, even if the clock does.
        """
        group = Group(self.next_offset, self.next_offset, self.digest)
        timestamp_us = max(now_us, self._last_append_timestamp_us)
        for header, data in batches:
            try:
                stored = self.producers.check(header)
            except ProtocolError as error:
                group.outcomes.append(error)
                group.duplicates.append(False)
                continue
            group.duplicates.append(stored is not None)
            if stored is not None:
                group.outcomes.append(stored)
                continue
            base_offset = self.next_offset
            digest = self.digest = stamp_owner(
                data,
                base_offset=base_offset,
                append_timestamp_us=timestamp_us,
                epoch=self.epoch,
                owner_incarnation=self.incarnation,
                previous_digest=self.digest,
            )
            stamped = header.stamped(base_offset, timestamp_us, self.epoch, self.incarnation, digest)
            placed = self.producers.apply(stamped)
            self.next_offset = placed.end_offset
            group.batches.append(data)
            group.headers.append(stamped)
            group.ends.append(Position(placed.end_offset, digest))
            group.outcomes.append(placed)
        group.end_offset = self.next_offset
        self._last_append_timestamp_us = timestamp_us
        return group

    def held_by(self, node_id: str) -> int:
        """Return the end of a replica's durable records; the start of the epoch for a node outside the placement."""
        return self._durable_ends.get(node_id, self._start_offset)

    @property
    def held_by_all(self) -> int:
        """The end of the records that are durable on every replica of the epoch."""
        return min(self._durable_ends.values())

    def acknowledge(self, node_id: str, end_offset: int) -> int:
        """Record that `node_id` durably holds everything below `end_offset`; return the high watermark.

        Reports of nodes outside the placement, and lower reports than before, are ignored.
        """
        ends = self._durable_ends
        held = ends.get(node_id)
        if held is not None and end_offset > held:
            assert end_offset <= self.next_offset, "acknowledged an offset that was never assigned"
            ends[node_id] = end_offset
            committed = sorted(ends.values())[-self.ack_quorum]
            assert committed >= self.high_watermark, "the high watermark must not decrease"
            self.high_watermark = committed
        return self.high_watermark
