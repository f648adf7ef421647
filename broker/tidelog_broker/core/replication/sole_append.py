"""Appends to an epoch with one copy in two calls, for writes of the batches of many partitions at once.

`Replica.accept_group` emits an `Append`, which waits in a queue of effects and of writes, and each step may end with
other effects. An owner without followers has nothing to send, and its own write commits. So if nothing else is pending
in its replica, a batch gets its offset by `accept`, and is durable and committed by `complete`. The caller writes the
batch in between, before any other write of the partition. The state after both calls is the one after the steps of the
replica.
"""

from __future__ import annotations

from typing import NamedTuple

from tidelog_broker.core.replication.ports import Position
from tidelog_broker.core.replication.producers import PlacedBatch
from tidelog_broker.core.replication.replica import Replica
from tidelog_broker.core.replication.replica_state import LogTail
from tidelog_proto.batch.header import BatchHeader


class SoleAppend(NamedTuple):
    """A batch with offsets that is being written.

    Attributes:
        header: the header as stored.
    """

    tail: LogTail
    header: BatchHeader
    placed: PlacedBatch


def accept(replica: Replica, header: BatchHeader, data: memoryview, *, now_us: int) -> SoleAppend | None:
    """Give a verified batch of a client its offsets, and stamp its header in place.

    None for anything but a new batch at an owner without followers in whose replica nothing is pending: then nothing
    has changed, and `Replica.accept_group` decides, which returns the offsets of a retry or the error.
    """
    state, owner = replica.state, replica.assigner
    if owner is None or not owner.is_sole or state.effects or state.waiting_writes or state.doubt:
        return None
    fence = state.fence
    if fence is None or owner.next_offset + header.record_count > fence.ceiling:
        return None
    tail = state.tail
    assert owner.next_offset == tail.queued.offset, "the owner's next offset must be the end of the log"
    assigned = owner.assign_one(header, data, now_us=now_us)
    if assigned is None:
        return None
    stamped, placed = assigned
    tail.extend((Position(placed.end_offset, stamped.digest),))
    return SoleAppend(tail, stamped, placed)


def complete(replica: Replica, append: SoleAppend) -> bool:
    """Record that a batch is durable; return whether it still belongs to the open epoch, and is committed then.

    The epoch may have been decided to end during the write; `Replica` has handled the batch with that decision.
    """
    state, tail = replica.state, append.tail
    tail.wrote(Position(append.placed.end_offset, append.header.digest))
    if tail is not state.tail:
        return False
    owner = state.owner
    if owner is not None and state.may_acknowledge:
        committed = owner.acknowledge(state.node_id, append.placed.end_offset)
        state.high_watermark = max(state.high_watermark, committed)
    return True
