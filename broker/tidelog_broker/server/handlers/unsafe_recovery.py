"""The unsafe recovery of CLUSTER_CHANGE: a partition whose quorum is gone for good goes on with what is left.

An operator says so, nobody else: no node can tell replicas that are gone from replicas that cannot be reached. The
named replica gives the others a moment to answer. With a quorum nothing is lost and nothing is unsafe; without one it
ends the epoch at the longest log among those that did, or where one of them had accepted that it ends, and opens the
next one alone. Whatever is decided so is answered as unsafe, and every node that learns it logs DATA_LOSS. A partition
that works is left alone: it has an owner, a quorum lives, and all that is written is committed.
(Where replicas live and yet take no part, as in limbo, a record that waits for them shows it.)
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from tidelog_broker.broker import Broker
from tidelog_broker.core.replication.paxos import seal_quorum
from tidelog_broker.partition.partition import Partition
from tidelog_broker.wire.connection import Request
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

log = logging.getLogger(__name__)

TIMEOUT_S: Final = 10.0
"""For the decision, a little more than the core tries (`Timing.unsafe_ms`)."""

COMMIT_S: Final = 1.0
"""So long what is on its way may take to be committed where a quorum lives."""

_COMMIT_POLL_S: Final = 0.02
_ON_THE_WAY_S: Final = 2.0


async def recover(node: Broker, request: Request) -> None:
    """Handle a CLUSTER_CHANGE of this kind; a node that is not the named one hands it on.

    Raises:
        ProtocolError: INVALID_REQUEST when the node cannot do it or be reached, UNKNOWN_TOPIC, UNKNOWN_PARTITION,
            TIMED_OUT when nothing came of it in time. None of them is worth another try by itself.
    """
    asked = request.envelope.cluster_change.unsafe_recovery
    if asked.node_id == node.node_id:
        request.reply(pb.Envelope(cluster_change_reply=await _recover(node, asked)))
        return
    if request.connection.peer_id is not None or asked.node_id not in {info.node_id for info in node.cluster.nodes()}:
        raise ProtocolError(pb.INVALID_REQUEST, f"there is no node {asked.node_id!r}")
    if asked.node_id not in node.cluster.linked:
        raise ProtocolError(
            pb.INVALID_REQUEST, f"{node.node_id} cannot reach {asked.node_id}: it has to be running; or ask it directly"
        )
    handed_on = pb.Envelope(cluster_change=request.envelope.cluster_change)
    answer = await node.cluster.request(asked.node_id, handed_on, timeout_s=TIMEOUT_S + _ON_THE_WAY_S)
    request.reply(answer.envelope)


async def _recover(node: Broker, asked: pb.UnsafeRecovery) -> pb.ClusterChangeReply:
    record = node.topics.named(asked.topic)
    partition = node.partitions.find((record.topic_id, asked.partition))
    if partition is None:
        if asked.partition >= record.config.partitions:
            raise ProtocolError(
                pb.UNKNOWN_PARTITION,
                f"{asked.topic} has no partition {asked.partition}; it has {record.config.partitions}",
            )
        raise ProtocolError(pb.INVALID_REQUEST, f"{node.node_id} stores nothing of {asked.topic}/{asked.partition}")
    _check(node, partition)
    if await _works(node, partition):
        active = partition.replica.active
        raise ProtocolError(
            pb.INVALID_REQUEST,
            f"{partition.name} has its quorum: {active.owner} owns it, and enough of {', '.join(active.placement)} "
            "live; nothing was done",
        )
    try:
        async with asyncio.timeout(TIMEOUT_S):
            unsafe = False
            while True:
                epoch = partition.state.epoch
                decision = await _end_epoch(node, partition)
                unsafe |= decision.unsafe
                # What had been proposed before may have been kept, and its successor may be lost as well.
                if not _is_lost(node, partition):
                    return pb.ClusterChangeReply(epoch=epoch, end_offset=decision.end_offset, unsafe=unsafe)
    except TimeoutError:
        raise ProtocolError(
            pb.TIMED_OUT, f"{partition.name}: epoch {partition.state.epoch} could not be ended; see this node's log"
        ) from None


async def _end_epoch(node: Broker, partition: Partition) -> pb.EpochDecision:
    _check(node, partition)
    replica, epoch = partition.replica, partition.state.epoch
    log.warning("%s: an operator wants epoch %d ended without a quorum", partition.name, epoch)
    replica.candidate.recover_unsafely(int(node.loop.time() * 1000))
    partition.driver.tick()
    while partition.state.epoch == epoch and replica.halted is None and partition.state.refusal is None:
        await partition.changes.change()
    if partition.state.epoch == epoch:
        raise partition.state.refusal or _halted(partition)
    return replica.decision(epoch)


async def _works(node: Broker, partition: Partition) -> bool:
    """Whether a partition has its owner and its quorum, and commits what it has."""
    replica = partition.replica

    def is_served() -> bool:
        has_owner = partition.state.writer is not None or (
            replica.active.owner not in {"", node.node_id} and not replica.misses_owner(int(node.loop.time() * 1000))
        )
        return has_owner and not replica.promised and not _is_lost(node, partition)

    end_offset = partition.log.end_offset
    until_s = node.loop.time() + COMMIT_S
    while is_served() and partition.state.high_watermark < end_offset and node.loop.time() < until_s:  # noqa: ASYNC110 - bounded
        await asyncio.sleep(_COMMIT_POLL_S)
    return is_served() and partition.state.high_watermark >= end_offset


def _is_lost(node: Broker, partition: Partition) -> bool:
    """Whether too few replicas of the open epoch live to write to it or to end it."""
    active = partition.replica.active
    living = sum(node.cluster.alive(one) for one in active.placement)
    return living < max(active.ack_quorum, seal_quorum(len(active.placement), active.ack_quorum))


def _check(node: Broker, partition: Partition) -> None:
    """See that this node's copy can be the one that counts.

    Raises:
        ProtocolError: INVALID_REQUEST, and why.
    """
    replica = partition.replica
    if replica.halted is not None:
        raise _halted(partition)
    if not replica.is_member:
        holders = ", ".join(replica.active.placement)
        raise ProtocolError(
            pb.INVALID_REQUEST,
            f"{node.node_id} holds no copy of {partition.name}'s open epoch {replica.active.epoch}; {holders} do",
        )
    if replica.doubt == "damaged":
        raise ProtocolError(
            pb.INVALID_REQUEST, f"{partition.name}: the copy on {node.node_id} is damaged; name another node"
        )
    if replica.history.incomplete:
        epochs = ", ".join(map(str, sorted(replica.history.incomplete)))
        raise ProtocolError(
            pb.INVALID_REQUEST, f"{partition.name}: the copy on {node.node_id} lacks epochs {epochs}; name another node"
        )


def _halted(partition: Partition) -> ProtocolError:
    return ProtocolError(
        pb.INVALID_REQUEST, f"{partition.name}: this copy takes no part any more: {partition.replica.halted}"
    )
