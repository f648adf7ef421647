"""Cluster administration: drain and remove nodes, rebalance, and recover from a lost quorum."""

from __future__ import annotations

from tidelog.cluster.routing import Router
from tidelog.model import Recovery
from tidelog_proto import broker_pb2 as pb


async def ask(router: Router, change: pb.ClusterChange, *, repeatable: bool) -> pb.ClusterChangeReply:
    """Send a change to any node and return its answer.

    Raises:
        TidelogError: the change was refused, or no node answered.
    """
    envelope = pb.Envelope(cluster_change=change)
    frame = await router.call_any(lambda: envelope, repeatable=repeatable)
    return frame.envelope.cluster_change_reply


async def recover_unsafely(router: Router, topic: str, partition: int, node_id: str) -> Recovery:
    """See `Client.recover_unsafely`. Not retried: a second attempt could discard what the first one kept."""
    request = pb.UnsafeRecovery(topic=topic, partition=partition, node_id=node_id)
    reply = await ask(router, pb.ClusterChange(unsafe_recovery=request), repeatable=False)
    return Recovery(epoch=reply.epoch, end_offset=reply.end_offset, unsafe=reply.unsafe)
