"""The description of a stored partition: its epoch, offsets and copy, and at the owner the other copies."""

from __future__ import annotations

from tidelog_broker.partition.state import PartitionState
from tidelog_proto import broker_pb2 as pb


def describe_partition(state: PartitionState) -> pb.PartitionInfo:
    """Return the partition's part of a TOPIC describe or CLUSTER_STATUS reply."""
    active, missing = state.replica.state.active, state.replica.backfill.missing()
    info = pb.PartitionInfo(
        partition=state.index,
        owner=active.owner,
        epoch=active.epoch,
        placement=active.placement,
        log_start_offset=state.earliest,
        high_watermark=_end_offset(state),
        size_bytes=state.log.size_bytes,
        state=state.summary,
        copy_fault=_copy_fault(state),
        replicas=_replicas(state),
    )
    if missing is not None:
        info.missing_epochs, info.missing_records = missing.epochs, missing.records
    return info


def _end_offset(state: PartitionState) -> int:
    """Return the end of the readable offsets.

    The high watermark of a single copy is unknown until its first use after a start: its next epoch begins at the end
    of its log.
    """
    if state.is_alone and state.assigner is None and state.cut_offset is None:
        return max(state.high_watermark, state.log.end_offset)
    return state.high_watermark


def _copy_fault(state: PartitionState) -> str:
    """Return why this node's copy does not count for a quorum; empty if it does.

    A single copy that may be short still counts: no other node has the records that it may lack.
    """
    if state.refusal is not None:
        return "failed"
    if state.replica.state.halted is not None:
        return "limbo"
    return "" if state.is_alone else state.replica.state.doubt


def _replicas(state: PartitionState) -> list[pb.ReplicaInfo]:
    """Return a partition's copies as its owner knows them; empty if this node is not the owner."""
    owner = state.replica.state.owner
    if owner is None:
        return []
    own = pb.ReplicaInfo(node_id=owner.node_id, held_offset=owner.held_by(owner.node_id), streaming=True)
    others = [
        pb.ReplicaInfo(
            node_id=follower.node_id,
            held_offset=follower.held_offset,
            streaming=follower.streaming,
            latency_us=int(follower.latency_ms * 1000),
        )
        for follower in state.replica.followers
    ]
    for replica in (own, *others):
        replica.lag = owner.next_offset - replica.held_offset
    return [own, *others]
