"""What a node tells of a partition that it stores: its epoch, its offsets, its own copy, and the others as an owner."""

from __future__ import annotations

from tidelog_broker.partition.state import PartitionState
from tidelog_proto import broker_pb2 as pb


def describe_partition(state: PartitionState) -> pb.PartitionInfo:
    """Return what TOPIC describe and CLUSTER_STATUS tell."""
    active, missing = state.replica.state.active, state.replica.backfill.missing()
    info = pb.PartitionInfo(
        partition=state.index,
        owner=active.owner,
        epoch=active.epoch,
        placement=active.placement,
        log_start_offset=state.log_start,
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

    The high watermark of an only copy that was not used since the start is not known yet: its next epoch begins at the
    end of its log.
    """
    if state.is_alone and state.writer is None and state.cut_offset is None:
        return max(state.high_watermark, state.log.end_offset)
    return state.high_watermark


def _copy_fault(state: PartitionState) -> str:
    """Return why this node's copy cannot be counted on; empty when it can.

    A lone copy that may be short is all there is: nobody has what it may lack.
    """
    if state.refusal is not None:
        return "failed"
    if state.replica.state.halted is not None:
        return "limbo"
    return "" if state.is_alone else state.replica.state.doubt


def _replicas(state: PartitionState) -> list[pb.ReplicaInfo]:
    """Return a partition's copies as its owner sees them; none where this node is not the owner."""
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
