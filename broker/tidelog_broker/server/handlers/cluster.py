"""CLUSTER_STATUS, CLUSTER_CHANGE and NODE_ANNOUNCE: status of the nodes, and changes of the cluster.

The node that receives the request assembles the status: each node reports itself and its copies, within a time limit;
the entry of a node that does not answer comes from gossip and the registry. For a partition its owner's report is
authoritative.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from functools import partial
from typing import Final

from tidelog_broker.broker import Broker
from tidelog_broker.core.membership.admission import directory_to_bind
from tidelog_broker.core.placement.registry import DIRECTORY_ID_BYTES
from tidelog_broker.core.topics import META_KEY, META_TOPIC_ID
from tidelog_broker.core.unknown_fields import refuse_unknown_fields
from tidelog_broker.metadata.levels import supported_by
from tidelog_broker.rebalance.status_merge import removal_fault
from tidelog_broker.server.forwarding import ask_owner, at_owner
from tidelog_broker.server.handlers import partition_descriptions, unsafe_recovery
from tidelog_broker.server.pages import Page, all_items, cursor_of
from tidelog_broker.storage.io.errors import NodeDirError
from tidelog_broker.wire.connection import Request
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import PAGE_BYTES

STATUS_TIMEOUT_S: Final = 1.5
"""Maximum time of waiting for the answers of all other nodes."""
_NODES_WITH_TOPICS: Final = 256
"""In a cluster with more nodes the first page contains no topics, because the list of nodes may fill it."""


async def cluster_status(broker: Broker, request: Request) -> None:
    """Handle CLUSTER_STATUS: the nodes with the first page of topics, or another page.

    Another node gets the status of this node only, or of the partitions that it names. A client's request opens no
    partitions, neither on this node nor on others: monitoring would otherwise open all partitions of a cluster (ADR
    0075). Partitions that another node names are opened unless it sets `as_is`.

    Raises:
        ProtocolError: INVALID_REQUEST for too many partitions.
    """
    query, cursor = request.envelope.cluster_status, cursor_of(request.envelope.cluster_status)
    is_client = request.connection.peer_id is None
    others = broker.cluster.linked if is_client else frozenset[str]()
    page, replies = Page(), list[pb.ClusterStatusReply]()
    if not is_client and query.partitions:
        await partition_descriptions.open_named(broker, request)
        async with broker.bounds.turns.turn(request.connection, request.payer):
            named = partition_descriptions.named_partitions(broker, request)
            if query.ages:
                await partition_descriptions.add_ages(broker, named.topics)
            request.reply(pb.Envelope(cluster_status_reply=named))
        return
    async with broker.bounds.turns.turn(request.connection, request.payer):
        reply = pb.ClusterStatusReply(cluster_id=broker.cluster_id, level=broker.features.level.number)
        if query.nodes_only:
            pass
        elif cursor is None and len(broker.nodes.live()) > _NODES_WITH_TOPICS:
            reply.next.SetInParent()  # The list of nodes may fill the page.
        else:
            page = partition_descriptions.page_of(
                broker, all_items(broker.topics, cursor, internal=True, session=request.session), cursor
            )
    if cursor is None:
        statuses, replies = await asyncio.gather(
            others_status(broker, others), _partition_reports(broker, page, others)
        )
        reply.nodes.extend(_merged(broker, statuses) if is_client else [broker.status()])
    elif others:
        replies = await _partition_reports(broker, page, others)
    async with broker.bounds.turns.turn(request.connection, request.payer):
        partition_descriptions.merge(broker, page, replies)
        reply.topics.extend(page.infos)
        if page.next is not None:
            reply.next.CopyFrom(page.next)
        request.reply(pb.Envelope(cluster_status_reply=reply))


async def _partition_reports(broker: Broker, page: Page, others: Collection[str]) -> list[pb.ClusterStatusReply]:
    return await partition_descriptions.reports_of(broker, page.parts, others, timeout_s=STATUS_TIMEOUT_S, as_is=True)


async def others_status(broker: Broker, peers: Collection[str]) -> list[pb.NodeStatus]:
    """Return the status of those other nodes that answer within `STATUS_TIMEOUT_S`."""
    query = pb.ClusterStatus(nodes_only=True)
    replies = await asyncio.gather(
        *(partition_descriptions.ask(broker, peer, query, timeout_s=STATUS_TIMEOUT_S) for peer in sorted(peers))
    )
    return [reply.nodes[0] for reply in replies if reply is not None]


def _merged(broker: Broker, reported: Iterable[pb.NodeStatus]) -> list[pb.NodeStatus]:
    """Return the status of all nodes: their own reports, or entries from gossip and the registry."""
    statuses = {status.node.node_id: status for status in (broker.status(), *reported)}
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
    """Handle CLUSTER_CHANGE: begin a rebalance or an unsafe recovery, or record another change in `__meta`.

    Raises:
        ProtocolError: INVALID_REQUEST for an unknown node, or one that does not support a feature level; FORBIDDEN on a
            single node without a cluster.
    """
    message = request.envelope.cluster_change
    if message.WhichOneof("change") == "finalize":
        refuse_unknown_fields(message)
        request.reply(await at_owner(broker, META_KEY, request, partial(_finalize, broker)))
        return
    if broker.cluster.is_alone:
        raise ProtocolError(pb.FORBIDDEN, "this node does not belong to a cluster, so it has no other nodes")

    async def local(envelope: pb.Envelope) -> pb.Envelope:
        change = envelope.cluster_change
        is_removal = change.HasField("remove") and not broker.controller.is_removed(change.remove)
        if is_removal and not change.accept_data_loss:
            broker.controller.refuse_while_it_stores(change.remove)
            await _refuse_while_history_moves(broker, change.remove)
        await broker.controller.change_node(change)
        moves = len(broker.description.stored_by(change.drain)) if change.HasField("drain") else 0
        return pb.Envelope(cluster_change_reply=pb.ClusterChangeReply(moves=moves))

    match message.WhichOneof("change"):
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
    """Refuse to remove a node that may have the only copy of records, after asking all nodes about their copies."""
    cursor: pb.TopicCursor | None = None
    while True:
        page = partition_descriptions.page_of(broker, all_items(broker.topics, cursor, internal=True), cursor)
        if await partition_descriptions.opened(broker, page):
            page = partition_descriptions.page_of(broker, all_items(broker.topics, cursor, internal=True), cursor)
        own = pb.ClusterStatusReply(topics=page.infos)
        own.nodes.add().node.node_id = broker.node_id
        others = await partition_descriptions.reports_of(
            broker, page.parts, broker.cluster.linked, timeout_s=STATUS_TIMEOUT_S
        )
        fault = removal_fault(node_id, {reply.nodes[0].node.node_id: reply for reply in (own, *others)})
        if fault:
            raise ProtocolError(pb.INVALID_REQUEST, fault)
        cursor = page.next
        if cursor is None:
            return


async def _rebalance(broker: Broker, request: Request) -> None:
    """Start a rebalance on this node; the node that a client asks also asks all other nodes."""
    moves = broker.mover.rebalance()
    if request.connection.peer_id is None:
        envelope = pb.Envelope(cluster_change=pb.ClusterChange(rebalance=True))
        for answer in await broker.cluster.ask_others(envelope, timeout_s=STATUS_TIMEOUT_S):
            moves += answer.cluster_change_reply.moves
    request.reply(pb.Envelope(cluster_change_reply=pb.ClusterChangeReply(moves=moves)))


async def node_announce(broker: Broker, request: Request) -> None:
    """Handle NODE_ANNOUNCE of a node that is starting, has changed, or (with `ask` and `draining`) is about to stop.

    The answer contains a page of the nodes that this node knows. With `bind`, this node also binds the
    directory of a starting founder to the founder's id, even if this node is new itself; the binding is durable before
    the answer.

    Raises:
        ProtocolError: FORBIDDEN if the id belongs to another node, or if the sender is not an authenticated node;
            EPOCH_CHANGING if this node is starting and does not know the registered nodes yet.
    """
    announce = request.envelope.node_announce
    if request.connection.peer_id is None:
        raise ProtocolError(pb.FORBIDDEN, "NODE_ANNOUNCE is accepted only from nodes of the cluster")
    if broker.lifecycle.starting and (broker.dir.admitted or not announce.ask):
        raise ProtocolError(
            pb.EPOCH_CHANGING, "this node is starting and has not loaded the registry of nodes yet; retry"
        )
    if announce.ask:
        if announce.node.draining and announce.node.node_id == request.connection.peer_id:
            broker.cluster.note_leaving(announce.node.node_id, announce.node.incarnation)
        reply = known(broker, announce.node.node_id, announce.after)
        if announce.bind and not announce.after:
            if announce.node.node_id != request.connection.peer_id:
                raise ProtocolError(
                    pb.FORBIDDEN,
                    f"node {request.connection.peer_id!r} may register a directory only under its own id, "
                    f"got {announce.node.node_id!r}",
                )
            reply.bound_directory_id = await _bind(broker, announce, reply)
        request.reply(pb.Envelope(node_announce_reply=reply))
        return

    async def local(envelope: pb.Envelope) -> pb.Envelope:
        await broker.controller.announce(envelope.node_announce)
        return pb.Envelope(node_announce_reply=known(broker, envelope.node_announce.node.node_id))

    if announce.node.node_id == request.connection.peer_id:
        request.reply(await ask_owner(broker, META_KEY, request.envelope, local))
    else:  # a request that another node has forwarded
        request.reply(await at_owner(broker, META_KEY, request, local))


async def _bind(broker: Broker, announce: pb.NodeAnnounce, reply: pb.NodeAnnounceReply) -> bytes:
    """Return the directory id that this node has durably recorded for a founder.

    Empty if this node's registration record of the founder contradicts the announcement.
    """
    founder = announce.node
    if len(founder.directory_id) != DIRECTORY_ID_BYTES:
        raise ProtocolError(
            pb.INVALID_REQUEST,
            f"a directory id must have {DIRECTORY_ID_BYTES} bytes, got {len(founder.directory_id)}",
        )
    record = next((record for record in reply.nodes if record.node_id == founder.node_id), None)
    bound = broker.dir.bound(founder.node_id)
    directory_id = directory_to_bind(announce, bound=bound, known=record)
    if directory_id and not bound:
        try:
            return await asyncio.to_thread(broker.dir.bind, founder.node_id, directory_id)
        except NodeDirError as error:
            raise ProtocolError(pb.STORAGE_FAILED, str(error)) from error
    return directory_id


def known(broker: Broker, asker: str, after: str = "") -> pb.NodeAnnounceReply:
    """Return a page of the registered nodes, those with ids greater than `after`, and the record of `__meta`.

    The first page contains the asking node's own record, with the newest incarnation that gossip has seen, which may
    never have been recorded.
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
        if size_bytes >= PAGE_BYTES:  # The number of removed nodes is not limited.
            reply.last = reply.nodes[-1].node_id
            break
        reply.nodes.append(record)
        size_bytes += record.ByteSize()
    meta = broker.topics.get(META_TOPIC_ID)
    if meta is not None:
        reply.meta.CopyFrom(meta)
    return reply
