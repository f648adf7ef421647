"""METADATA and TOPIC create, describe, list, alter, delete.

What a node knows it tells: it answers METADATA, list and describe by itself. Who decides something by the answer has it
ask the owner of `__meta` first whether that is all there is. Changes are the `controller`'s, on the node that owns
`__meta`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Final

from tidelog_broker.broker import Broker
from tidelog_broker.connection import Request
from tidelog_broker.core.topics import META_KEY
from tidelog_broker.forwarding import at_owner
from tidelog_broker.route_news import WAIT_MS_MAX, TopicView, check_known, is_news, view_of
from tidelog_broker.told import merge_topic
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import ENTRIES_PER_REQUEST_MAX
from tidelog_proto.names import INTERNAL_PREFIX

HEAR_TIMEOUT_S: Final = 1.0
HEAR_AGAIN_S: Final = 0.01


async def metadata(node: Broker, request: Request) -> None:
    """Handle METADATA. Another node gets the broker's own topics too: it asks for routes.

    Raises:
        ProtocolError: INVALID_REQUEST for too many names, or too much that is known.
    """
    asked = request.envelope.metadata
    if len(asked.topics) > ENTRIES_PER_REQUEST_MAX:
        raise ProtocolError(
            pb.INVALID_REQUEST, f"{len(asked.topics)} topics; ask for at most {ENTRIES_PER_REQUEST_MAX}"
        )
    names = list(dict.fromkeys(asked.topics))  # what is named twice is told once
    check_known(asked.known)
    holds = asked.wait_ms > 0 and node.route_news.may_hold(asked.known)
    if holds:
        await _until_news(node, request)
        if not request.connection.is_open:
            request.drop()
            return
    answer = pb.Envelope()
    reply = answer.metadata_reply
    unsure: ProtocolError | None = None
    if request.connection.peer_id is None:
        if asked.confirmed:
            reply.unconfirmed = not await _is_current(node)
        unsure = await _hear_of(node, names)
    reply.cluster_id = node.cluster_id
    reply.nodes.extend(node.cluster.nodes())
    view = node.route_news.view if holds else view_of
    for record in _records(node, names, reply, unsure, internal=request.connection.peer_id is not None):
        reply.topics.append(view(record, node.routes.get).info)
    request.reply(answer)


async def _until_news(node: Broker, request: Request) -> None:
    """Hold an answer back until there is something in it that who asks does not know, or the time is over."""
    asked = request.envelope.metadata
    wait_s = min(asked.wait_ms, WAIT_MS_MAX) / 1000
    with node.route_news.listening(asked.known, wait_s=wait_s) as held:
        request.connection.closed_listeners.add(held.woken.set)
        try:
            while True:
                await held.woken.wait()
                held.woken.clear()
                if held.is_over or node.stopping or not request.connection.is_open:
                    return
                if any(is_news(known, _view(node, known.topic_id)) for known in asked.known):
                    return
        finally:
            request.connection.closed_listeners.discard(held.woken.set)


def _view(node: Broker, topic_id: bytes) -> TopicView | None:
    record = node.topics.get(topic_id)
    return None if record is None or record.deleted else node.route_news.view(record, node.routes.get)


async def _hear_of(node: Broker, names: Sequence[str]) -> ProtocolError | None:
    """Hear of topics that this node does not know: they may just have been made.

    Returns:
        What to say of those that are unknown still: None when they are, an error when nobody who knows can be asked.
    """
    unknown = next((name for name in names if not node.topics.exists(name)), None)
    return None if unknown is None or await _is_current(node) else _cannot_be_asked(unknown)


async def _is_current(node: Broker) -> bool:
    """Apply all that is in `__meta` by now; return whether that could be done."""
    return node.cluster.is_alone or await node.hearing.is_current()


def _cannot_be_asked(name: str) -> ProtocolError:
    return ProtocolError(
        pb.EPOCH_CHANGING, f"whether there is a topic {name!r} cannot be asked at the moment; send again"
    )


async def _wait_until(condition: Callable[[], bool]) -> None:
    """Wait a little for what is committed elsewhere to be applied here; whoever asked this node asks it again next."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(HEAR_TIMEOUT_S):
            while not condition():  # noqa: ASYNC110 - `__meta` is followed elsewhere, and this is rare
                await asyncio.sleep(HEAR_AGAIN_S)


def _records(
    node: Broker, names: list[str], reply: pb.MetadataReply, unsure: ProtocolError | None, *, internal: bool
) -> list[pb.TopicRecord]:
    """Return the topics asked for, all public ones without names; unknown ones are noted in the reply."""
    if not names:
        return [record for record in node.topics.live() if internal or not record.name.startswith(INTERNAL_PREFIX)]
    found: list[pb.TopicRecord] = []
    for name in names:
        try:
            found.append(node.topics.named(name))
        except ProtocolError as error:
            reply.topics.add(name=name, error=(unsure or error).to_message())
    return found


async def create(node: Broker, request: Request) -> None:
    """Handle TOPIC create.

    Raises:
        ProtocolError: INVALID_TOPIC, TOPIC_EXISTS, INVALID_REQUEST.
    """

    async def local(envelope: pb.Envelope) -> pb.Envelope:
        return _reply(node, [await node.controller.create_topic(envelope.topic_create)])

    reply = await at_owner(node, META_KEY, request, local)
    made = [topic.topic_id for topic in reply.topic_reply.topics]
    await _wait_until(lambda: all(node.topics.get(topic_id) is not None for topic_id in made))
    request.reply(reply)


async def alter(node: Broker, request: Request) -> None:
    """Handle TOPIC alter.

    Raises:
        ProtocolError: UNKNOWN_TOPIC, FORBIDDEN, INVALID_REQUEST.
    """
    _refuse_internal(request.envelope.topic_alter.name)

    async def local(envelope: pb.Envelope) -> pb.Envelope:
        return _reply(node, [await node.controller.alter_topic(envelope.topic_alter)])

    reply = await at_owner(node, META_KEY, request, local)
    wanted = {topic.topic_id: topic.config for topic in reply.topic_reply.topics}
    await _wait_until(lambda: all(node.topics.config_of(topic_id) == wanted[topic_id] for topic_id in wanted))
    request.reply(reply)


async def delete(node: Broker, request: Request) -> None:
    """Handle TOPIC delete: final for this id, whatever happens next.

    Raises:
        ProtocolError: UNKNOWN_TOPIC, FORBIDDEN.
    """
    _refuse_internal(request.envelope.topic_delete.name)

    async def local(envelope: pb.Envelope) -> pb.Envelope:
        await node.controller.delete_topic(envelope.topic_delete.name, envelope.topic_delete.topic_id)
        return pb.Envelope(topic_reply=pb.TopicReply())

    name, standing = request.envelope.topic_delete.name, request.envelope.topic_delete.topic_id
    if not standing and node.topics.exists(name):
        standing = node.topics.named(name).topic_id
    reply = await at_owner(node, META_KEY, request, local)
    await _wait_until(lambda: not standing or node.topics.config_of(standing) is None)
    request.reply(reply)


async def describe_one(node: Broker, request: Request) -> None:
    """Handle TOPIC describe. Offsets and sizes are the owners'; another node is told what this one stores.

    Raises:
        ProtocolError: UNKNOWN_TOPIC, EPOCH_CHANGING when nobody can be asked whether there is one, or, if that is asked
            for, whether it is still the one that is known here.
    """
    asked = request.envelope.topic_describe
    name = asked.name
    is_client = request.connection.peer_id is None
    if is_client and not await _is_current(node) and (asked.confirmed or not node.topics.exists(name)):
        raise _cannot_be_asked(name)
    info = node.describe(node.topics.named(name))
    if is_client:
        await _ask_holders(node, info)
    request.reply(pb.Envelope(topic_reply=pb.TopicReply(topics=[info])))


async def _ask_holders(node: Broker, info: pb.TopicInfo) -> None:
    """Put what the owners of a topic's partitions say in place of what this node knows.

    The other holders are asked, too: what is wrong with a copy only its own node can say.
    """
    stored_by = {holder for partition in info.partitions for holder in (partition.owner, *partition.placement)}
    holders = sorted(stored_by & node.cluster.linked)
    told = await asyncio.gather(*(_described_by(node, holder, info.name) for holder in holders))
    answers = {holder: topic for holder, topic in zip(holders, told, strict=True) if topic is not None}
    merge_topic(node.node_id, info, {holder: one for holder, one in answers.items() if one.topic_id == info.topic_id})


async def _described_by(node: Broker, holder: str, name: str) -> pb.TopicInfo | None:
    asked = pb.Envelope(topic_describe=pb.TopicDescribe(name=name))
    try:
        return (await node.cluster.request(holder, asked, timeout_s=HEAR_TIMEOUT_S)).envelope.topic_reply.topics[0]
    except ProtocolError:  # away, perhaps since a moment ago
        return None


async def list_all(node: Broker, request: Request) -> None:
    """Handle TOPIC list: what there is by now, or is known here if nobody can be asked."""
    await _is_current(node)
    internal = request.envelope.topic_list.internal
    records = [record for record in node.topics.live() if internal or not record.name.startswith(INTERNAL_PREFIX)]
    request.reply(_reply(node, records))


def _reply(node: Broker, records: list[pb.TopicRecord]) -> pb.Envelope:
    return pb.Envelope(topic_reply=pb.TopicReply(topics=[node.describe(record) for record in records]))


def _refuse_internal(name: str) -> None:
    if name.startswith(INTERNAL_PREFIX):
        raise ProtocolError(pb.FORBIDDEN, f"{name} is the broker's own")
