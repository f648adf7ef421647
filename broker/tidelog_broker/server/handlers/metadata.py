"""METADATA: partition owners and node addresses, answered at once in pages, or held until something changes.

The answer contains what this node knows. A client that needs a confirmed answer makes the node first read all of
`__meta`. The node does the same before it reports an unknown topic to a client, since the topic may have just been
created.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import islice

from tidelog_broker.broker import Broker
from tidelog_broker.cluster.route_watch import (
    WAIT_MS_MAX,
    TopicView,
    changed_partitions,
    check_known,
    described,
    has_newer_metadata,
)
from tidelog_broker.core.security.session import Session
from tidelog_broker.core.topics import unknown_topic
from tidelog_broker.server.pages import ROUTED_ENTRIES, Bounds, Item, Page, all_items, cursor_of, fill, named_items
from tidelog_broker.wire.connection import Request
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import ENTRIES_PER_REQUEST_MAX
from tidelog_proto.names import OFFSETS_TOPIC


async def metadata(broker: Broker, request: Request) -> None:
    """Handle METADATA. Another node also gets internal topics, because it asks for routes.

    Raises:
        ProtocolError: INVALID_REQUEST for too many names or too many known partitions.
    """
    message = request.envelope.metadata
    if len(message.topics) > ENTRIES_PER_REQUEST_MAX:
        raise ProtocolError(
            pb.INVALID_REQUEST,
            f"a request may name at most {ENTRIES_PER_REQUEST_MAX} topics, got {len(message.topics)}",
        )
    check_known(message.known)
    holds = message.wait_ms > 0 and broker.route_news.may_hold(message.known)
    if holds:
        await _until_changed(broker, request)
        if not request.connection.is_open:
            request.drop()
            return
    is_client = request.connection.peer_id is None
    unconfirmed = is_client and message.confirmed and not await is_current(broker)
    names = list(dict.fromkeys(message.topics))  # duplicates are removed

    def reply(unsure: ProtocolError | None = None) -> None:
        if not request.connection.is_open:
            request.drop()
            return
        answer = (_news(broker, request, names) if holds else None) or _answer(broker, request, names, unsure)
        answer.metadata_reply.unconfirmed = unconfirmed
        request.reply(answer)

    async with broker.bounds.turns.turn(request.connection, request.payer):
        unknown = _first_unknown(broker, names, cursor_of(message))
        if unknown is None or not is_client:
            reply()
            return
    unsure = None if await is_current(broker) else cannot_be_asked(unknown)
    async with broker.bounds.turns.turn(request.connection, request.payer):
        reply(unsure)


def _news(broker: Broker, request: Request, names: list[str]) -> pb.Envelope | None:
    """Return the answer to a held request: only the partitions that differ from the client's metadata.

    Changes that exceed a page are sent after the client's next request.

    Returns:
        None if the client asks for all topics, for one that does not exist or is missing in `known`, or for one that
        it may not see; it then gets the complete answer.
    """
    known = {each.topic_id: each for each in request.envelope.metadata.known}
    session = request.session
    infos: list[pb.TopicInfo] = []
    room = ROUTED_ENTRIES
    if not names:
        return None
    for name in names:
        record = broker.topics.find(name)
        if record is None or record.topic_id not in known or (session is not None and not _may_see(session, name)):
            return None
        view = broker.route_news.view(record, broker.routes.get)
        news = changed_partitions(known[record.topic_id], view)[:room]
        room -= len(news)
        number = broker.schemas.newest_number(record.topic_id)
        infos.append(described(record, ((index, view.routes[index]) for index in news), number))
    reply = pb.MetadataReply(cluster_id=broker.cluster_id, topics=infos, nodes=broker.cluster.nodes())
    return pb.Envelope(metadata_reply=reply)


def _answer(broker: Broker, request: Request, names: list[str], unsure: ProtocolError | None) -> pb.Envelope:
    """Return the requested page.

    An unknown topic gets the error `unsure`, or UNKNOWN_TOPIC if that is None; a topic that the caller may not see gets
    FORBIDDEN.
    """
    cursor = cursor_of(request.envelope.metadata)

    def describe(record: pb.TopicRecord, first: int, stop: int) -> pb.TopicInfo:
        routes = ((index, broker.routes.get((record.topic_id, index))) for index in range(first, stop))
        return described(record, routes, broker.schemas.newest_number(record.topic_id))

    session = request.session

    def unknown(name: str) -> pb.TopicInfo:
        if session is not None and not session.may_see(name):
            return pb.TopicInfo(name=name, error=session.refusal(pb.OP_DESCRIBE, pb.RES_TOPIC, name).to_message())
        return pb.TopicInfo(name=name, error=(unsure or unknown_topic(name)).to_message())

    def seen(item: Item) -> Item:
        return (item[0], None) if session is not None and not _may_see(session, item[0]) else item

    internal = request.connection.peer_id is not None
    items = (
        map(seen, named_items(broker.topics, names, cursor))
        if names
        else all_items(broker.topics, cursor, internal=internal, session=session)
    )
    page: Page = fill(items, cursor, Bounds(ROUTED_ENTRIES), describe, unknown)
    reply = pb.MetadataReply(cluster_id=broker.cluster_id, topics=page.infos, next=page.next)
    if cursor is None:
        reply.nodes.extend(broker.cluster.nodes())
    return pb.Envelope(metadata_reply=reply)


def _may_see(session: Session, name: str) -> bool:
    """Return whether a caller may see a topic's routes. Group members need those of `__offsets`."""
    return name == OFFSETS_TOPIC or session.may_see(name)


def _first_unknown(broker: Broker, names: list[str], cursor: pb.TopicCursor | None) -> str | None:
    """Return the first name on this page that is not the name of a topic; None if all are."""
    page = islice(named_items(broker.topics, names, cursor), ROUTED_ENTRIES + 1)
    return next((name for name, record in page if record is None), None)


async def _until_changed(broker: Broker, request: Request) -> None:
    """Hold a request until this node has newer metadata or stops, the client disconnects, or the wait is over."""
    message = request.envelope.metadata
    wait_s = min(message.wait_ms, WAIT_MS_MAX) / 1000
    with broker.route_news.listening(message.known, wait_s=wait_s) as held:
        request.connection.closed_listeners.add(held.woken.set)
        try:
            while True:
                await held.woken.wait()
                held.woken.clear()
                if held.is_over or broker.lifecycle.stopping or not request.connection.is_open:
                    return
                if await has_news(broker, message.known):
                    return
        finally:
            request.connection.closed_listeners.discard(held.woken.set)


async def has_news(broker: Broker, known: Sequence[pb.KnownEpochs]) -> bool:
    """Return whether this node's metadata of any of these topics is newer than the client's.

    The event loop runs other work after each topic, and while the view of a large topic is made.
    """
    for each in known:
        record = broker.topics.get(each.topic_id)
        if record is not None and not record.deleted:
            await broker.route_news.prepare(record, broker.routes.get)
        if has_newer_metadata(each, _view(broker, each.topic_id)):
            return True
        await asyncio.sleep(0)
    return False


def _view(broker: Broker, topic_id: bytes) -> TopicView | None:
    record = broker.topics.get(topic_id)
    return None if record is None or record.deleted else broker.route_news.view(record, broker.routes.get)


async def is_current(broker: Broker) -> bool:
    """Apply all of `__meta`; return whether that was possible."""
    return broker.cluster.is_alone or await broker.meta_freshness.is_current()


def cannot_be_asked(name: str) -> ProtocolError:
    """Return the error for an unknown name while `__meta` cannot be read."""
    return ProtocolError(
        pb.EPOCH_CHANGING,
        f"cannot reach the owner of __meta to check whether topic {name!r} exists; retry",
    )
