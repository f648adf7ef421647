"""The unsafe recovery of CLUSTER_CHANGE: a partition whose quorum is gone for good goes on with what is left.

An operator says so, and names the node whose copy counts; see `partition.unsafe_recovery`. Whatever is decided so is
answered as unsafe, and every node that learns it logs DATA_LOSS.
"""

from __future__ import annotations

from typing import Final

from tidelog_broker.broker import Broker
from tidelog_broker.partition.unsafe_recovery import TIMEOUT_S, UnsafeRecovery
from tidelog_broker.wire.connection import Request
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

_ON_THE_WAY_S: Final = 2.0


async def recover(broker: Broker, request: Request) -> None:
    """Handle a CLUSTER_CHANGE of this kind; a node that is not the named one hands it on.

    Raises:
        ProtocolError: INVALID_REQUEST when the node cannot do it or be reached, UNKNOWN_TOPIC, UNKNOWN_PARTITION,
            TIMED_OUT when nothing came of it in time. None of them is worth another try by itself.
    """
    asked = request.envelope.cluster_change.unsafe_recovery
    if asked.node_id == broker.node_id:
        request.reply(pb.Envelope(cluster_change_reply=await _recover(broker, asked)))
        return
    if request.connection.peer_id is not None or asked.node_id not in {info.node_id for info in broker.cluster.nodes()}:
        raise ProtocolError(pb.INVALID_REQUEST, f"there is no node {asked.node_id!r}")
    if asked.node_id not in broker.cluster.linked:
        raise ProtocolError(
            pb.INVALID_REQUEST,
            f"{broker.node_id} cannot reach {asked.node_id}: it has to run; or ask it directly",
        )
    handed_on = pb.Envelope(cluster_change=request.envelope.cluster_change)
    answer = await broker.cluster.request(asked.node_id, handed_on, timeout_s=TIMEOUT_S + _ON_THE_WAY_S)
    request.reply(answer.envelope)


async def _recover(broker: Broker, asked: pb.UnsafeRecovery) -> pb.ClusterChangeReply:
    record = broker.topics.named(asked.topic)
    await broker.partitions.awake([(record.topic_id, asked.partition)])
    partition = broker.partitions.find((record.topic_id, asked.partition))
    if partition is not None:
        return await UnsafeRecovery(partition, broker.cluster.alive).run()
    if asked.partition >= record.config.partitions:
        raise ProtocolError(
            pb.UNKNOWN_PARTITION, f"{asked.topic} has no partition {asked.partition}; it has {record.config.partitions}"
        )
    raise ProtocolError(pb.INVALID_REQUEST, f"{broker.node_id} stores nothing of {asked.topic}/{asked.partition}")
