"""METADATA and TOPIC create, describe, list, alter, delete; CLUSTER_STATUS.

A change of a topic is a record of `__meta`. It is durable before it is applied, and applied before the reply.
"""

from __future__ import annotations

import uuid

from tidelog_broker.broker import Broker
from tidelog_broker.connection import Request
from tidelog_broker.core.topics import altered, complete_config
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import ENTRIES_PER_REQUEST_MAX
from tidelog_proto.names import INTERNAL_PREFIX, check_topic_name


def metadata(node: Broker, request: Request) -> None:
    """Handle METADATA.

    Raises:
        ProtocolError: INVALID_REQUEST for too many names.
    """
    names = request.envelope.metadata.topics
    if len(names) > ENTRIES_PER_REQUEST_MAX:
        raise ProtocolError(pb.INVALID_REQUEST, f"{len(names)} topics; ask for at most {ENTRIES_PER_REQUEST_MAX}")
    reply = pb.MetadataReply(cluster_id=node.cluster_id, nodes=[node.info()])
    for record in _records(node, list(names), reply):
        topic = reply.topics.add(name=record.name, topic_id=record.topic_id, config=record.config)
        for partition in node.partitions.of_topic(record.topic_id):
            topic.partitions.add(
                partition=partition.index, owner=node.node_id, epoch=partition.epoch, placement=[node.node_id]
            )
    request.reply(pb.Envelope(metadata_reply=reply))


def _records(node: Broker, names: list[str], reply: pb.MetadataReply) -> list[pb.TopicRecord]:
    """Return the topics asked for, all public ones without names; unknown ones are noted in the reply."""
    if not names:
        return [record for record in node.topics.live() if not record.name.startswith(INTERNAL_PREFIX)]
    found: list[pb.TopicRecord] = []
    for name in names:
        try:
            found.append(node.topics.named(name))
        except ProtocolError as error:
            reply.topics.add(name=name, error=error.to_message())
    return found


def describe(node: Broker, record: pb.TopicRecord) -> pb.TopicInfo:
    """Return all there is to say about a topic."""
    return pb.TopicInfo(
        name=record.name,
        topic_id=record.topic_id,
        config=record.config,
        partitions=[partition.info() for partition in node.partitions.of_topic(record.topic_id)],
    )


async def create(node: Broker, request: Request) -> None:
    """Handle TOPIC create.

    Raises:
        ProtocolError: INVALID_TOPIC, TOPIC_EXISTS, INVALID_REQUEST.
    """
    asked = request.envelope.topic_create
    check_topic_name(asked.name)
    config = complete_config(asked.config)
    async with node.changing_topics:
        if node.topics.exists(asked.name):
            raise ProtocolError(pb.TOPIC_EXISTS, f"there is a topic {asked.name!r} already")
        record = pb.TopicRecord(
            name=asked.name,
            topic_id=uuid.uuid4().bytes,
            config=config,
            revision=1,
            first_epoch=pb.EpochDescriptor(
                owner=node.node_id, owner_incarnation=node.incarnation, placement=[node.node_id], ack_quorum=1
            ),
        )
        await node.meta_log.write_topic(record)
    _answer(node, request, [record])


async def alter(node: Broker, request: Request) -> None:
    """Handle TOPIC alter.

    Raises:
        ProtocolError: UNKNOWN_TOPIC, FORBIDDEN, INVALID_REQUEST.
    """
    change = request.envelope.topic_alter
    _refuse_internal(change.name)
    async with node.changing_topics:
        record = altered(node.topics.named(change.name), change)
        await node.meta_log.write_topic(record)
    _answer(node, request, [record])


async def delete(node: Broker, request: Request) -> None:
    """Handle TOPIC delete: final for this id, whatever happens next.

    Raises:
        ProtocolError: UNKNOWN_TOPIC, FORBIDDEN.
    """
    name = request.envelope.topic_delete.name
    _refuse_internal(name)
    async with node.changing_topics:
        record = pb.TopicRecord()
        record.CopyFrom(node.topics.named(name))
        record.revision += 1
        record.deleted = True
        await node.meta_log.write_topic(record)
    request.reply(pb.Envelope(topic_reply=pb.TopicReply()))


def describe_one(node: Broker, request: Request) -> None:
    """Handle TOPIC describe.

    Raises:
        ProtocolError: UNKNOWN_TOPIC.
    """
    _answer(node, request, [node.topics.named(request.envelope.topic_describe.name)])


def list_all(node: Broker, request: Request) -> None:
    """Handle TOPIC list."""
    internal = request.envelope.topic_list.internal
    _answer(
        node,
        request,
        [record for record in node.topics.live() if internal or not record.name.startswith(INTERNAL_PREFIX)],
    )


def cluster_status(node: Broker, request: Request) -> None:
    """Handle CLUSTER_STATUS."""
    reply = pb.ClusterStatusReply(
        cluster_id=node.cluster_id,
        nodes=[node.status()],
        topics=[describe(node, record) for record in node.topics.live()],
    )
    request.reply(pb.Envelope(cluster_status_reply=reply))


def _answer(node: Broker, request: Request, records: list[pb.TopicRecord]) -> None:
    request.reply(pb.Envelope(topic_reply=pb.TopicReply(topics=[describe(node, record) for record in records])))


def _refuse_internal(name: str) -> None:
    if name.startswith(INTERNAL_PREFIX):
        raise ProtocolError(pb.FORBIDDEN, f"{name} is the broker's own")
