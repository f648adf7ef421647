"""Batches without records, by which an owner fills the offsets of records that were lost.

They are derived batches as compaction makes them (`tidelog_proto.batch.derived_batch`), so storage, replication and
recovery need no support for gaps. Unlike the batches of a compaction they have the owner's incarnation: no record was
removed from them, so they do not change the producers' state.
"""

from __future__ import annotations

from typing import NamedTuple

from tidelog_broker.core.replication.ports import Position
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.derived_batch import SPAN_MAX, header_alone
from tidelog_proto.batch.header import BatchHeader, Flags, stamp_owner


class Filling(NamedTuple):
    """Batches without records, and the position after each."""

    batches: list[memoryview]
    ends: list[Position]


def filling(active: pb.EpochDescriptor, base: Position, until: int, append_timestamp_us: int) -> Filling:
    """Return stamped batches of the active epoch that cover the offsets from `base` to `until`."""
    batches: list[memoryview] = []
    ends: list[Position] = []
    at = base
    while at.offset < until:
        covered = min(until - at.offset, SPAN_MAX)
        batch = header_alone(covered - 1)
        digest = stamp_owner(
            batch,
            base_offset=at.offset,
            append_timestamp_us=append_timestamp_us,
            epoch=active.epoch,
            owner_incarnation=active.owner_incarnation,
            previous_digest=at.digest,
        )
        at = Position(at.offset + covered, digest)
        batches.append(memoryview(batch))
        ends.append(at)
    return Filling(batches, ends)


def is_filling(header: BatchHeader) -> bool:
    """Return whether a batch fills offsets of lost records; an empty batch of a compaction has no owner incarnation."""
    return bool(header.flags & Flags.DERIVED) and not header.record_count and header.owner_incarnation > 0
