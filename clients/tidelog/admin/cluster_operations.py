"""What an operator asks of a cluster as a whole: nodes drained and removed, copies moved, a lost quorum given up."""

from __future__ import annotations

from tidelog.cluster.routing import Router
from tidelog.model import Recovery
from tidelog_proto import broker_pb2 as pb


async def ask(router: Router, change: pb.ClusterChange, *, repeatable: bool) -> pb.ClusterChangeReply:
    """Ask any node for a change; return what it says.

    Raises:
        TidelogError: it was refused, or nobody answered.
    """
    envelope = pb.Envelope(cluster_change=change)
    frame = await router.call_any(lambda: envelope, repeatable=repeatable)
    return frame.envelope.cluster_change_reply


async def recover_unsafely(router: Router, topic: str, partition: int, node_id: str) -> Recovery:
    """See `Client.recover_unsafely`. It is asked for once: a second try could give up what the first one kept."""
    asked = pb.UnsafeRecovery(topic=topic, partition=partition, node_id=node_id)
    reply = await ask(router, pb.ClusterChange(unsafe_recovery=asked), repeatable=False)
    return Recovery(epoch=reply.epoch, end_offset=reply.end_offset, unsafe=reply.unsafe)
