"""TOPIC create, describe, list, alter and delete.

For the first page of a list, and for describe, the node first applies all of `__meta`. If the owner of `__meta` is
unreachable, the node answers with what it knows, or refuses to describe a topic that is unknown or must be confirmed.
Changes are made by the `controller` of the node that owns `__meta`.
"""

from __future__ import annotations

from functools import partial

from tidelog_broker.broker import Broker
from tidelog_broker.core.security.session import Session
from tidelog_broker.core.topics import META_KEY
from tidelog_broker.metadata.meta_freshness import REFRESH_TIMEOUT_S
from tidelog_broker.server.feature_check import changed_topic, check_features, new_topic
from tidelog_broker.server.forwarding import at_owner
from tidelog_broker.server.handlers import partition_descriptions
from tidelog_broker.server.handlers.metadata import cannot_be_asked, is_current
from tidelog_broker.server.pages import ROUTED_ENTRIES, Bounds, Page, all_items, cursor_of, fill
from tidelog_broker.server.propagation import wait_until_applied
from tidelog_broker.wire.connection import Request
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.names import AUDIT_TOPIC, INTERNAL_PREFIX, check_topic_name


async def create(broker: Broker, request: Request) -> None:
    """Handle TOPIC create.

    Raises:
        ProtocolError: INVALID_TOPIC, TOPIC_EXISTS, INVALID_REQUEST, QUOTA_EXCEEDED.
    """
    if request.connection.peer_id is None:
        check_topic_name(request.envelope.topic_create.name)
    await check_features(broker, new_topic(request.envelope.topic_create))

    async def local(envelope: pb.Envelope) -> pb.Envelope:
        if envelope.topic_create.name == AUDIT_TOPIC and request.is_of_node:
            await broker.controller.create_audit_topic(envelope.topic_create.config)
            return pb.Envelope(topic_reply=pb.TopicReply())
        return _reply(broker, await broker.controller.create_topic(envelope.topic_create, envelope.caller))

    reply = await at_owner(broker, META_KEY, request, local)
    created = [topic.topic_id for topic in reply.topic_reply.topics]
    await wait_until_applied(lambda: all(broker.topics.get(topic_id) is not None for topic_id in created))
    request.reply(reply)


async def alter(broker: Broker, request: Request) -> None:
    """Handle TOPIC alter.

    Raises:
        ProtocolError: UNKNOWN_TOPIC, FORBIDDEN, INVALID_REQUEST, QUOTA_EXCEEDED.
    """
    _refuse_internal(request.envelope.topic_alter.name)
    await check_features(broker, changed_topic(broker, request.envelope.topic_alter))

    async def local(envelope: pb.Envelope) -> pb.Envelope:
        return _reply(broker, await broker.controller.alter_topic(envelope.topic_alter, envelope.caller))

    reply = await at_owner(broker, META_KEY, request, local)
    configs = {topic.topic_id: topic.config for topic in reply.topic_reply.topics}
    await wait_until_applied(
        lambda: all(broker.topics.config_of(topic_id) == configs[topic_id] for topic_id in configs)
    )
    request.reply(reply)


async def delete(broker: Broker, request: Request) -> None:
    """Handle TOPIC delete, which is final for a topic id.

    Raises:
        ProtocolError: UNKNOWN_TOPIC, FORBIDDEN.
    """
    _refuse_internal(request.envelope.topic_delete.name)

    async def local(envelope: pb.Envelope) -> pb.Envelope:
        await broker.controller.delete_topic(envelope.topic_delete.name, envelope.topic_delete.topic_id)
        return pb.Envelope(topic_reply=pb.TopicReply())

    name, topic_id = request.envelope.topic_delete.name, request.envelope.topic_delete.topic_id
    if not topic_id and broker.topics.exists(name):
        topic_id = broker.topics.named(name).topic_id
    reply = await at_owner(broker, META_KEY, request, local)
    await wait_until_applied(lambda: not topic_id or broker.topics.config_of(topic_id) is None)
    request.reply(reply)


async def describe_one(broker: Broker, request: Request) -> None:
    """Handle TOPIC describe. Offsets and sizes come from the owners; another node gets this node's own copies.

    Raises:
        ProtocolError: UNKNOWN_TOPIC; EPOCH_CHANGING if `__meta` cannot be read to find an unknown topic or, if
            requested, to confirm a known one.
    """
    message = request.envelope.topic_describe
    name = message.name
    is_client = request.connection.peer_id is None
    if is_client and not await is_current(broker) and (message.confirmed or not broker.topics.exists(name)):
        raise cannot_be_asked(name)
    cursor = cursor_of(message)
    async with broker.bounds.turns.turn(request.connection, request.payer):
        page = partition_descriptions.page_of(broker, [(name, broker.topics.named(name))], cursor)
    if await partition_descriptions.opened(broker, page):
        async with broker.bounds.turns.turn(request.connection, request.payer):
            page = partition_descriptions.page_of(broker, [(name, broker.topics.named(name))], cursor)
    async with broker.bounds.turns.turn(request.connection, request.payer):
        await partition_descriptions.add_ages(broker, page.infos)
    if is_client:
        stored_by = {
            holder
            for info in page.infos
            for partition in info.partitions
            for holder in (partition.owner, *partition.placement)
        }
        linked = stored_by & broker.cluster.linked
        replies = await partition_descriptions.reports_of(
            broker, page.parts, linked, timeout_s=REFRESH_TIMEOUT_S, ages=True
        )
        partition_descriptions.merge(broker, page, replies)
    request.reply(pb.Envelope(topic_reply=pb.TopicReply(topics=page.infos, next=page.next)))


async def list_some(broker: Broker, request: Request) -> None:
    """Handle TOPIC list: a page of the topics, read from the current `__meta` if that is reachable.

    No partition is opened for the list (ADR 0075); TOPIC describe opens one topic's partitions for their offsets.
    """
    message = request.envelope.topic_list
    cursor = cursor_of(message)
    begins = cursor is None or not cursor.topic_id  # Only the cursor of a following page has a topic id.
    if begins and request.connection.peer_id is None:
        await is_current(broker)
    async with broker.bounds.turns.turn(request.connection, request.payer):
        page = _page(broker, message, cursor, request.session)
        request.reply(pb.Envelope(topic_reply=pb.TopicReply(topics=page.infos, next=page.next)))


def _page(broker: Broker, message: pb.TopicList, cursor: pb.TopicCursor | None, session: Session | None) -> Page:
    items = all_items(broker.topics, cursor, internal=message.internal, session=session)
    if message.brief:
        return fill(items, cursor, Bounds(ROUTED_ENTRIES, message.limit), partial(_briefly, broker), brief=True)
    return partition_descriptions.page_of(broker, items, cursor, topics=message.limit)


def _briefly(broker: Broker, record: pb.TopicRecord, first: int, stop: int) -> pb.TopicInfo:
    del first, stop
    number = broker.schemas.newest_number(record.topic_id)
    return pb.TopicInfo(name=record.name, topic_id=record.topic_id, config=record.config, schema_number=number)


def _reply(broker: Broker, record: pb.TopicRecord) -> pb.Envelope:
    """Return the answer to a change: the topic, or its first page."""
    page = partition_descriptions.page_of(broker, [(record.name, record)], None)
    return pb.Envelope(topic_reply=pb.TopicReply(topics=page.infos, next=page.next))


def _refuse_internal(name: str) -> None:
    if name.startswith(INTERNAL_PREFIX):
        raise ProtocolError(pb.FORBIDDEN, f"{name} is an internal topic, which cannot be altered or deleted")
