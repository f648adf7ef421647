"""Partition descriptions of all nodes for a page of topics, merged into this node's descriptions.

Each node knows its own copies (`rebalance.status_merge`). So the other nodes are asked for exactly the partitions of
the page; nodes that do not answer in time are omitted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence

from tidelog_broker.broker import Broker
from tidelog_broker.rebalance.status_merge import merge_topic, reports_by_topic
from tidelog_broker.server.pages import DESCRIBED_ENTRIES, Bounds, Item, Page, TopicPart, fill
from tidelog_broker.wire.connection import Request
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import ENTRIES_PER_REQUEST_MAX


def page_of(broker: Broker, items: Iterable[Item], cursor: pb.TopicCursor | None, *, topics: int = 0) -> Page:
    """Return a page of topics with this node's descriptions; at most `topics` topics unless that is 0."""
    return fill(items, cursor, Bounds(DESCRIBED_ENTRIES, topics), broker.description.part)


async def opened(broker: Broker, page: Page) -> bool:
    """Open the partitions of a page that must be open to be described; return whether there were any.

    If so, the caller makes the page again, because the page was made before the partitions were open.
    """
    keys = [key for part in page.parts for key in broker.description.to_be_opened(part.record, part.indices)]
    await broker.partitions.awake(keys)
    return bool(keys)


async def add_ages(broker: Broker, infos: Iterable[pb.TopicInfo]) -> None:
    """Add record ages, the next deletion, unindexed bytes and engines to descriptions. May read batch headers."""
    described = [
        (partition, info)
        for topic in infos
        for info in topic.partitions
        if (partition := broker.partitions.find((topic.topic_id, info.partition))) is not None
    ]
    await asyncio.gather(*(partition.retention.ages.refresh() for partition, _ in described))
    for partition, info in described:
        partition.retention.ages.describe(info)
        info.unindexed_bytes = partition.log.indexes.missing_bytes
        for epoch in partition.log.epochs:
            if info.stored and info.stored[-1].engine == epoch.engine:
                info.stored[-1].last = epoch.epoch
            else:
                info.stored.add(first=epoch.epoch, last=epoch.epoch, engine=epoch.engine)


async def reports_of(
    broker: Broker,
    parts: Sequence[TopicPart],
    peers: Collection[str],
    *,
    timeout_s: float,
    ages: bool = False,
    as_is: bool = False,
) -> list[pb.ClusterStatusReply]:
    """Return the descriptions of a page's partitions by other nodes; each reply names its node.

    Nodes that do not answer in time are omitted.

    Args:
        parts: the topics and partitions of the page.
        peers: the ids of the nodes that are asked.
        timeout_s: maximum time of waiting for all answers.
        ages: whether record ages are included.
        as_is: whether the nodes answer without opening partitions.
    """
    names = [
        pb.PartitionName(topic_id=part.record.topic_id, partition=index)
        for part in parts
        for index in range(part.first, part.stop)
    ]
    if not names:
        return []
    query = pb.ClusterStatus(partitions=names, ages=ages, as_is=as_is)
    replies = await asyncio.gather(*(ask(broker, peer, query, timeout_s=timeout_s) for peer in sorted(peers)))
    return [reply for reply in replies if reply is not None]


async def ask(broker: Broker, peer: str, query: pb.ClusterStatus, *, timeout_s: float) -> pb.ClusterStatusReply | None:
    """Return a node's answer, with the node's id; None if the request fails."""
    try:
        frame = await broker.cluster.request(peer, pb.Envelope(cluster_status=query), timeout_s=timeout_s)
    except ProtocolError:  # The node is slow or unreachable, or refuses the request.
        return None
    reply = frame.envelope.cluster_status_reply
    if not reply.nodes:
        reply.nodes.add().node.node_id = peer
    return reply


def merge(broker: Broker, page: Page, replies: Sequence[pb.ClusterStatusReply]) -> None:
    """Merge the descriptions of other nodes into a page."""
    by_topic = reports_by_topic(replies)
    for info in page.infos:
        merge_topic(broker.node_id, info, by_topic.get(info.topic_id, {}))


async def open_named(broker: Broker, request: Request) -> None:
    """Open the partitions that another node names, unless it sets `as_is`; partitions without data stay closed.

    Raises:
        ProtocolError: INVALID_REQUEST for too many partitions.
    """
    names = request.envelope.cluster_status.partitions
    if len(names) > ENTRIES_PER_REQUEST_MAX:
        raise ProtocolError(
            pb.INVALID_REQUEST, f"a request may name at most {ENTRIES_PER_REQUEST_MAX} partitions, got {len(names)}"
        )
    if request.envelope.cluster_status.as_is:
        return
    named = ((name.topic_id, name.partition) for name in names)
    await broker.partitions.awake([key for key in named if broker.partitions.closed.is_used(key)])


def named_partitions(broker: Broker, request: Request) -> pb.ClusterStatusReply:
    """Return this node's description of the partitions that another node names; see `open_named`."""
    names = request.envelope.cluster_status.partitions
    indices: dict[bytes, set[int]] = {}
    for name in names:
        indices.setdefault(name.topic_id, set()).add(name.partition)
    reply = pb.ClusterStatusReply()
    for topic_id, requested in indices.items():
        record = broker.topics.get(topic_id)
        if record is not None and not record.deleted:
            existing = sorted(index for index in requested if index < record.config.partitions)
            reply.topics.append(broker.description.topic(record, existing))
    return reply
