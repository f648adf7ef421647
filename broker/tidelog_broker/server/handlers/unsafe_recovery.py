"""The unsafe recovery of CLUSTER_CHANGE: a partition that has permanently lost its quorum continues with one copy.

An operator requests it and names the node whose copy is used; see `partition.unsafe_recovery`. The result is marked as
unsafe, and every node that learns of it logs DATA_LOSS.
"""

from __future__ import annotations

from typing import Final

from tidelog_broker.broker import Broker
from tidelog_broker.partition.unsafe_recovery import TIMEOUT_S, UnsafeRecovery
from tidelog_broker.wire.connection import Request
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

_ON_THE_WAY_S: Final = 2.0
"""Time that the forwarding of the request and its answer may take, in addition to the recovery itself."""


async def recover(broker: Broker, request: Request) -> None:
    """Handle an unsafe recovery; a node other than the named one forwards it.

    Raises:
        ProtocolError: INVALID_REQUEST if the named node is unreachable or cannot recover the partition, UNKNOWN_TOPIC,
            UNKNOWN_PARTITION, TIMED_OUT if the recovery did not complete within `TIMEOUT_S`.
    """
    message = request.envelope.cluster_change.unsafe_recovery
    if message.node_id == broker.node_id:
        request.reply(pb.Envelope(cluster_change_reply=await _recover(broker, message)))
        return
    if request.connection.peer_id is not None:
        raise ProtocolError(
            pb.INVALID_REQUEST,
            f"a recovery at node {message.node_id!r} was forwarded to node {broker.node_id!r} instead",
        )
    if message.node_id not in {info.node_id for info in broker.cluster.nodes()}:
        raise ProtocolError(
            pb.INVALID_REQUEST, f"node {message.node_id!r} does not exist; list the nodes with: tidelog cluster status"
        )
    if message.node_id not in broker.cluster.linked:
        raise ProtocolError(
            pb.INVALID_REQUEST,
            f"node {broker.node_id!r} cannot reach node {message.node_id!r}; start node {message.node_id!r}, or send "
            "the request to that node directly",
        )
    handed_on = pb.Envelope(cluster_change=request.envelope.cluster_change)
    answer = await broker.cluster.request(message.node_id, handed_on, timeout_s=TIMEOUT_S + _ON_THE_WAY_S)
    request.reply(answer.envelope)


async def _recover(broker: Broker, message: pb.UnsafeRecovery) -> pb.ClusterChangeReply:
    record = broker.topics.named(message.topic)
    await broker.partitions.awake([(record.topic_id, message.partition)])
    partition = broker.partitions.find((record.topic_id, message.partition))
    if partition is not None:
        return await UnsafeRecovery(partition, broker.cluster.alive).run()
    if message.partition >= record.config.partitions:
        raise ProtocolError(
            pb.UNKNOWN_PARTITION,
            f"topic {message.topic!r} has partitions 0 to {record.config.partitions - 1}, got {message.partition}",
        )
    raise ProtocolError(
        pb.INVALID_REQUEST,
        f"node {broker.node_id!r} stores no copy of {message.topic}/{message.partition}; choose a node that does, see: "
        f"tidelog topic describe {message.topic}",
    )
