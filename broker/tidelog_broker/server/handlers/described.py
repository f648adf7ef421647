"""What the nodes of a cluster tell of the partitions on a page: this one first, the others in place of what it knows.

Each node knows its own copies (`rebalance.status_merge`). So the others are asked for exactly the partitions of the
page, and who does not answer in time is left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence

from tidelog_broker.broker import Broker
from tidelog_broker.rebalance.status_merge import merge_topic, told_topics
from tidelog_broker.server.pages import DESCRIBED_ENTRIES, Bounds, Item, Page, Piece, fill
from tidelog_broker.wire.connection import Request
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import ENTRIES_PER_REQUEST_MAX


def page_of(broker: Broker, items: Iterable[Item], cursor: pb.TopicCursor | None, *, topics: int = 0) -> Page:
    """Return a page of topics as this node describes them; of at most so many `topics`, if that is not 0."""
    return fill(items, cursor, Bounds(DESCRIBED_ENTRIES, topics), broker.description.part)


async def opened(broker: Broker, page: Page) -> bool:
    """Open what is told of on a page and has to be open to be told of; whether there was such a thing.

    The page is made again then: it tells of partitions what was known before they were open.
    """
    keys = [key for piece in page.pieces for key in broker.description.to_be_opened(piece.record, piece.indices)]
    await broker.partitions.awake(keys)
    return bool(keys)


async def add_ages(broker: Broker, infos: Iterable[pb.TopicInfo]) -> None:
    """Tell also when records were appended, what is deleted next, what is not indexed. It may read a few headers."""
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


async def told_by(
    broker: Broker,
    pieces: Sequence[Piece],
    peers: Collection[str],
    *,
    timeout_s: float,
    ages: bool = False,
    as_is: bool = False,
) -> list[pb.ClusterStatusReply]:
    """Return what other nodes tell of the partitions of a page; each reply names who tells it.

    Args:
        broker: of this node.
        pieces: of the page.
        peers: whom to ask.
        timeout_s: for all of their answers.
        ages: also when records were appended.
        as_is: they open nothing for it.
    """
    names = [
        pb.PartitionName(topic_id=piece.record.topic_id, partition=index)
        for piece in pieces
        for index in range(piece.first, piece.stop)
    ]
    if not names:
        return []
    asked = pb.ClusterStatus(partitions=names, ages=ages, as_is=as_is)
    told = await asyncio.gather(*(ask(broker, peer, asked, timeout_s=timeout_s) for peer in sorted(peers)))
    return [reply for reply in told if reply is not None]


async def ask(broker: Broker, peer: str, asked: pb.ClusterStatus, *, timeout_s: float) -> pb.ClusterStatusReply | None:
    """Return a node's answer, which names it; None if it gives none in time."""
    try:
        frame = await broker.cluster.request(peer, pb.Envelope(cluster_status=asked), timeout_s=timeout_s)
    except ProtocolError:  # away, perhaps since a moment ago
        return None
    reply = frame.envelope.cluster_status_reply
    if not reply.nodes:
        reply.nodes.add().node.node_id = peer
    return reply


def merge(broker: Broker, page: Page, told: Sequence[pb.ClusterStatusReply]) -> None:
    """Put what others tell in place of what this node knows of the partitions on a page."""
    by_topic = told_topics(told)
    for info in page.infos:
        merge_topic(broker.node_id, info, by_topic.get(info.topic_id, {}))


async def open_named(broker: Broker, request: Request) -> None:
    """Open what another node asks about by name, unless it says that it does not decide anything by the answer.

    Raises:
        ProtocolError: INVALID_REQUEST for too many.
    """
    asked = request.envelope.cluster_status.partitions
    if len(asked) > ENTRIES_PER_REQUEST_MAX:
        raise ProtocolError(
            pb.INVALID_REQUEST, f"{len(asked)} partitions; ask for at most {ENTRIES_PER_REQUEST_MAX} at a time"
        )
    if request.envelope.cluster_status.as_is:
        return
    named = ((name.topic_id, name.partition) for name in asked)
    await broker.partitions.awake([key for key in named if broker.partitions.closed.is_used(key)])


def named_partitions(broker: Broker, request: Request) -> pb.ClusterStatusReply:
    """Return what a node tells of the partitions that another one names; see `open_named`."""
    asked = request.envelope.cluster_status.partitions
    indices: dict[bytes, set[int]] = {}
    for name in asked:
        indices.setdefault(name.topic_id, set()).add(name.partition)
    reply = pb.ClusterStatusReply()
    for topic_id, wanted in indices.items():
        record = broker.topics.get(topic_id)
        if record is not None and not record.deleted:
            there = sorted(index for index in wanted if index < record.config.partitions)
            reply.topics.append(broker.description.topic(record, there))
    return reply
