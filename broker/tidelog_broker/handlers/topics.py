"""METADATA and TOPIC create, describe, list, alter, delete.

What a node knows it tells: it answers METADATA, list and describe by itself. Changes are the `controller`'s, on the
node that owns `__meta`.
"""

from __future__ import annotations

from tidelog_broker.broker import Broker
from tidelog_broker.connection import Request
from tidelog_broker.core.topics import META_KEY
from tidelog_broker.forwarding import at_owner
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import ENTRIES_PER_REQUEST_MAX
from tidelog_proto.names import INTERNAL_PREFIX


def metadata(node: Broker, request: Request) -> None:
    """Handle METADATA. Another node gets the broker's own topics too: it asks for routes.

    Raises:
        ProtocolError: INVALID_REQUEST for too many names.
    """
    names = request.envelope.metadata.topics
    if len(names) > ENTRIES_PER_REQUEST_MAX:
        raise ProtocolError(pb.INVALID_REQUEST, f"{len(names)} topics; ask for at most {ENTRIES_PER_REQUEST_MAX}")
    reply = pb.MetadataReply(cluster_id=node.cluster_id, nodes=node.cluster.nodes())
    for record in _records(node, list(names), reply, internal=request.connection.peer_id is not None):
        topic = reply.topics.add(name=record.name, topic_id=record.topic_id, config=record.config)
        for index in range(record.config.partitions):
            route = node.routes.get((record.topic_id, index))
            if route is not None:
                topic.partitions.add(partition=index, owner=route.owner, epoch=route.epoch, placement=route.placement)
    request.reply(pb.Envelope(metadata_reply=reply))


def _records(node: Broker, names: list[str], reply: pb.MetadataReply, *, internal: bool) -> list[pb.TopicRecord]:
    """Return the topics asked for, all public ones without names; unknown ones are noted in the reply."""
    if not names:
        return [record for record in node.topics.live() if internal or not record.name.startswith(INTERNAL_PREFIX)]
    found: list[pb.TopicRecord] = []
    for name in names:
        try:
            found.append(node.topics.named(name))
        except ProtocolError as error:
            reply.topics.add(name=name, error=error.to_message())
    return found


async def create(node: Broker, request: Request) -> None:
    """Handle TOPIC create.

    Raises:
        ProtocolError: INVALID_TOPIC, TOPIC_EXISTS, INVALID_REQUEST.
    """

    async def local(envelope: pb.Envelope) -> pb.Envelope:
        return _reply(node, [await node.controller.create_topic(envelope.topic_create)])

    await at_owner(node, META_KEY, request, local)


async def alter(node: Broker, request: Request) -> None:
    """Handle TOPIC alter.

    Raises:
        ProtocolError: UNKNOWN_TOPIC, FORBIDDEN, INVALID_REQUEST.
    """
    _refuse_internal(request.envelope.topic_alter.name)

    async def local(envelope: pb.Envelope) -> pb.Envelope:
        return _reply(node, [await node.controller.alter_topic(envelope.topic_alter)])

    await at_owner(node, META_KEY, request, local)


async def delete(node: Broker, request: Request) -> None:
    """Handle TOPIC delete: final for this id, whatever happens next.

    Raises:
        ProtocolError: UNKNOWN_TOPIC, FORBIDDEN.
    """
    _refuse_internal(request.envelope.topic_delete.name)

    async def local(envelope: pb.Envelope) -> pb.Envelope:
        await node.controller.delete_topic(envelope.topic_delete.name)
        return pb.Envelope(topic_reply=pb.TopicReply())

    await at_owner(node, META_KEY, request, local)


def describe_one(node: Broker, request: Request) -> None:
    """Handle TOPIC describe.

    Raises:
        ProtocolError: UNKNOWN_TOPIC.
    """
    request.reply(_reply(node, [node.topics.named(request.envelope.topic_describe.name)]))


def list_all(node: Broker, request: Request) -> None:
    """Handle TOPIC list."""
    internal = request.envelope.topic_list.internal
    records = [record for record in node.topics.live() if internal or not record.name.startswith(INTERNAL_PREFIX)]
    request.reply(_reply(node, records))


def _reply(node: Broker, records: list[pb.TopicRecord]) -> pb.Envelope:
    return pb.Envelope(topic_reply=pb.TopicReply(topics=[node.describe(record) for record in records]))


def _refuse_internal(name: str) -> None:
    if name.startswith(INTERNAL_PREFIX):
        raise ProtocolError(pb.FORBIDDEN, f"{name} is the broker's own")
