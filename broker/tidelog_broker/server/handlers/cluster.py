"""CLUSTER_STATUS, CLUSTER_CHANGE and NODE_ANNOUNCE: what the nodes tell of themselves, and what is asked of them.

The status is put together by whoever is asked: each node tells of itself and of what it stores, within a time; one
that does not answer stands in it by what gossip and the registry say. About a partition its owner's word counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from functools import partial
from typing import Final

from tidelog_broker.broker import Broker
from tidelog_broker.core.membership.admission import binds_to
from tidelog_broker.core.placement.registry import DIRECTORY_ID_BYTES
from tidelog_broker.core.topics import META_KEY, META_TOPIC_ID
from tidelog_broker.core.unknown_fields import refuse_unknown_fields
from tidelog_broker.metadata.levels import supported_by
from tidelog_broker.rebalance.status_merge import removal_fault
from tidelog_broker.server.forwarding import ask_owner, at_owner
from tidelog_broker.server.handlers import described, unsafe_recovery
from tidelog_broker.server.pages import Page, all_items, cursor_of
from tidelog_broker.storage.io.errors import NodeDirError
from tidelog_broker.wire.connection import Request
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import PAGE_BYTES

STATUS_TIMEOUT_S: Final = 1.5
"""For the answers of all other nodes together."""
_NODES_WITH_TOPICS: Final = 256
"""Of more nodes the first page tells without any topics."""


async def cluster_status(broker: Broker, request: Request) -> None:
    """Handle CLUSTER_STATUS: the nodes, and the first page of the topics; or another page of them.

    Another node is told of this one alone, or only of the partitions that it names. Nothing is opened for it, here or
    elsewhere: whoever watches a cluster would open all that it has (ADR 0075).

    Raises:
        ProtocolError: INVALID_REQUEST for too many partitions.
    """
    asked, cursor = request.envelope.cluster_status, cursor_of(request.envelope.cluster_status)
    is_client = request.connection.peer_id is None
    others = broker.cluster.linked if is_client else frozenset[str]()
    page, told = Page(), list[pb.ClusterStatusReply]()
    if not is_client and asked.partitions:
        await described.open_named(broker, request)
        async with broker.bounds.turns.turn(request.connection, request.payer):
            named = described.named_partitions(broker, request)
            if asked.ages:
                await described.add_ages(broker, named.topics)
            request.reply(pb.Envelope(cluster_status_reply=named))
        return
    async with broker.bounds.turns.turn(request.connection, request.payer):
        reply = pb.ClusterStatusReply(cluster_id=broker.cluster_id, level=broker.features.level.number)
        if asked.nodes_only:
            pass
        elif cursor is None and len(broker.nodes.live()) > _NODES_WITH_TOPICS:
            reply.next.SetInParent()  # the nodes alone are much
        else:
            page = described.page_of(
                broker, all_items(broker.topics, cursor, internal=True, session=request.session), cursor
            )
    if cursor is None:
        statuses, told = await asyncio.gather(others_status(broker, others), _told(broker, page, others))
        reply.nodes.extend(_merged(broker, statuses) if is_client else [broker.status()])
    elif others:
        told = await _told(broker, page, others)
    async with broker.bounds.turns.turn(request.connection, request.payer):
        described.merge(broker, page, told)
        reply.topics.extend(page.infos)
        if page.next is not None:
            reply.next.CopyFrom(page.next)
        request.reply(pb.Envelope(cluster_status_reply=reply))


async def _told(broker: Broker, page: Page, others: Collection[str]) -> list[pb.ClusterStatusReply]:
    return await described.told_by(broker, page.pieces, others, timeout_s=STATUS_TIMEOUT_S, as_is=True)


async def others_status(broker: Broker, peers: Collection[str]) -> list[pb.NodeStatus]:
    """Return what other nodes tell of themselves; of those that answer in time."""
    asked = pb.ClusterStatus(nodes_only=True)
    told = await asyncio.gather(
        *(described.ask(broker, peer, asked, timeout_s=STATUS_TIMEOUT_S) for peer in sorted(peers))
    )
    return [reply.nodes[0] for reply in told if reply is not None]


def _merged(broker: Broker, told: Iterable[pb.NodeStatus]) -> list[pb.NodeStatus]:
    """Return the status of all nodes: as they tell themselves, or by what this one knows of them."""
    statuses = {status.node.node_id: status for status in (broker.status(), *told)}
    if broker.cluster.is_alone:
        return list(statuses.values())
    for info in broker.cluster.nodes():
        if info.node_id not in statuses:
            statuses[info.node_id] = pb.NodeStatus(node=info, state="no answer")
    for node_id, status in statuses.items():
        status.membership = broker.cluster.membership(node_id)
        status.node.alive = broker.cluster.alive(node_id)
        record = broker.nodes.get(node_id)
        if record is not None:
            status.draining = record.draining
            status.ClearField("roles")
            status.roles.extend(record.roles)
            status.software = status.software or record.software
            status.level = status.level or supported_by(record.features)
    return [statuses[node_id] for node_id in sorted(statuses)]


async def cluster_change(broker: Broker, request: Request) -> None:
    """Handle CLUSTER_CHANGE: write the wish down; the owners of partitions see to the rest.

    Raises:
        ProtocolError: INVALID_REQUEST for a node that is not there or does not support a feature level, FORBIDDEN on a
            node that stands alone.
    """
    asked = request.envelope.cluster_change
    if asked.WhichOneof("change") == "finalize":
        refuse_unknown_fields(asked)
        request.reply(await at_owner(broker, META_KEY, request, partial(_finalize, broker)))
        return
    if broker.cluster.is_alone:
        raise ProtocolError(pb.FORBIDDEN, "this node stands alone: there is nowhere to move anything")

    async def local(envelope: pb.Envelope) -> pb.Envelope:
        change = envelope.cluster_change
        is_removal = change.HasField("remove") and not broker.controller.is_removed(change.remove)
        if is_removal and not change.accept_data_loss:
            broker.controller.refuse_while_it_stores(change.remove)
            await _refuse_while_history_moves(broker, change.remove)
        await broker.controller.change_node(change)
        moves = len(broker.description.stored_by(change.drain)) if change.HasField("drain") else 0
        return pb.Envelope(cluster_change_reply=pb.ClusterChangeReply(moves=moves))

    match asked.WhichOneof("change"):
        case "rebalance":
            await _rebalance(broker, request)
        case "unsafe_recovery":
            await unsafe_recovery.recover(broker, request)
        case _:
            request.reply(await at_owner(broker, META_KEY, request, local))


async def _finalize(broker: Broker, envelope: pb.Envelope) -> pb.Envelope:
    del envelope
    return pb.Envelope(cluster_change_reply=pb.ClusterChangeReply(level=await broker.controller.finalize()))


async def _refuse_while_history_moves(broker: Broker, node_id: str) -> None:
    """Ask every node whether its copies are whole, and keep the node whose copy may be the only one of something.

    Raises:
        ProtocolError: INVALID_REQUEST, and what is missing where.
    """
    cursor: pb.TopicCursor | None = None
    while True:
        page = described.page_of(broker, all_items(broker.topics, cursor, internal=True), cursor)
        if await described.opened(broker, page):
            page = described.page_of(broker, all_items(broker.topics, cursor, internal=True), cursor)
        own = pb.ClusterStatusReply(topics=page.infos)
        own.nodes.add().node.node_id = broker.node_id
        others = await described.told_by(broker, page.pieces, broker.cluster.linked, timeout_s=STATUS_TIMEOUT_S)
        fault = removal_fault(node_id, {reply.nodes[0].node.node_id: reply for reply in (own, *others)})
        if fault:
            raise ProtocolError(pb.INVALID_REQUEST, fault)
        cursor = page.next
        if cursor is None:
            return


async def _rebalance(broker: Broker, request: Request) -> None:
    """Every node moves what it owns; the asked one tells them."""
    moves = broker.mover.rebalance()
    if request.connection.peer_id is None:
        asked = pb.Envelope(cluster_change=pb.ClusterChange(rebalance=True))
        for answer in await broker.cluster.ask_others(asked, timeout_s=STATUS_TIMEOUT_S):
            moves += answer.cluster_change_reply.moves
    request.reply(pb.Envelope(cluster_change_reply=pb.ClusterChangeReply(moves=moves)))


async def node_announce(broker: Broker, request: Request) -> None:
    """Handle NODE_ANNOUNCE: of a node that starts, or (a question with `draining`) is about to stop.

    It is answered with all nodes that are known here. A founder that starts is bound to its directory, too, also by a
    node that is new itself: what counts is that this is durable before it is said.

    Raises:
        ProtocolError: FORBIDDEN when the id is another node's, or to a caller that has not proven itself a node.
    """
    announce = request.envelope.node_announce
    if request.connection.peer_id is None:
        raise ProtocolError(pb.FORBIDDEN, "a NODE_ANNOUNCE is taken from nodes of the cluster only")
    if broker.life.starting and (broker.dir.admitted or not announce.ask):
        raise ProtocolError(pb.EPOCH_CHANGING, "this node is starting and has not read yet which nodes it knows")
    if announce.ask:
        if announce.node.draining and announce.node.node_id == request.connection.peer_id:
            broker.cluster.note_leaving(announce.node.node_id, announce.node.incarnation)
        reply = known(broker, announce.node.node_id, announce.after)
        if announce.bind and not announce.after:
            if announce.node.node_id != request.connection.peer_id:
                raise ProtocolError(pb.FORBIDDEN, "a node may have only itself bound to its directory")
            reply.bound_directory_id = await _bind(broker, announce, reply)
        request.reply(pb.Envelope(node_announce_reply=reply))
        return

    async def local(envelope: pb.Envelope) -> pb.Envelope:
        await broker.controller.announce(envelope.node_announce)
        return pb.Envelope(node_announce_reply=known(broker, envelope.node_announce.node.node_id))

    if announce.node.node_id == request.connection.peer_id:
        request.reply(await ask_owner(broker, META_KEY, request.envelope, local))
    else:  # another node passes it on
        request.reply(await at_owner(broker, META_KEY, request, local))


async def _bind(broker: Broker, announce: pb.NodeAnnounce, reply: pb.NodeAnnounceReply) -> bytes:
    """Return the directory to which a founder is bound here, durably; empty when the reply says that it is not the one.

    Raises:
        ProtocolError: INVALID_REQUEST without a directory's id, STORAGE_FAILED when it could not be written.
    """
    said = announce.node
    if len(said.directory_id) != DIRECTORY_ID_BYTES:
        raise ProtocolError(pb.INVALID_REQUEST, f"a data directory's id has {DIRECTORY_ID_BYTES} bytes")
    record = next((record for record in reply.nodes if record.node_id == said.node_id), None)
    bound = broker.dir.bound(said.node_id)
    directory_id = binds_to(announce, bound=bound, known=record)
    if directory_id and not bound:
        try:
            return await asyncio.to_thread(broker.dir.bind, said.node_id, directory_id)
        except NodeDirError as error:
            raise ProtocolError(pb.STORAGE_FAILED, str(error)) from error
    return directory_id


def known(broker: Broker, asker: str, after: str = "") -> pb.NodeAnnounceReply:
    """Return a page of the nodes that are registered, those behind the id `after`, and `__meta` itself.

    The asking node's own record stands on the first page, with the newest incarnation that gossip has met, too: it may
    never have been written.
    """
    reply = pb.NodeAnnounceReply(features_in_use=() if after else sorted(broker.features.in_use()))
    own = broker.nodes.get(asker)
    if own is not None and not after:
        reply.nodes.append(own)
        reply.nodes[0].incarnation = max(own.incarnation, broker.cluster.incarnation(asker))
    size_bytes = 0
    for record in sorted(broker.nodes.records(), key=lambda each: each.node_id):
        if record.node_id <= after or record.node_id == asker:
            continue
        if size_bytes >= PAGE_BYTES:  # of nodes that were removed there may be any number
            reply.last = reply.nodes[-1].node_id
            break
        reply.nodes.append(record)
        size_bytes += record.ByteSize()
    meta = broker.topics.get(META_TOPIC_ID)
    if meta is not None:
        reply.meta.CopyFrom(meta)
    return reply
