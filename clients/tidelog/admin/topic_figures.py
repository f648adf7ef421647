"""Sums over the partitions of each topic, without an object per partition."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tidelog.cluster.routing import Router
from tidelog.model import TopicFigures
from tidelog.requests import paging
from tidelog_proto import broker_pb2 as pb

_SERVED: Final = frozenset({"active", "sealed", "idle", ""})
"""States of partitions that accept records, immediately or after the owner has opened them."""
_IDLE: Final = "idle"


async def figures_of_topics(router: Router, *, internal: bool = False) -> dict[str, TopicFigures]:
    """Return the figures of all topics by name, from CLUSTER_STATUS; `internal`: include internal topics."""
    sums = FigureSums()

    async def ask(cursor: pb.TopicCursor | None) -> pb.ClusterStatusReply:
        request = pb.Envelope(cluster_status=pb.ClusterStatus(cursor=cursor))
        return (await router.call_any(lambda: request, repeatable=True)).envelope.cluster_status_reply

    async for page in paging.pages(ask):
        sums.note_nodes(page.nodes)
        sums.add(info for info in page.topics if internal or not info.name.startswith("__"))
    return sums.figures()


class FigureSums:
    """Adds up the figures of topics over the pages of a CLUSTER_STATUS answer."""

    def __init__(self) -> None:
        self._figures: dict[str, TopicFigures] = {}
        self._nodes: dict[str, bool] = {}

    def note_nodes(self, nodes: Iterable[pb.NodeStatus]) -> None:
        """Note which nodes are alive; only the first page has the nodes."""
        self._nodes |= {status.node.node_id: status.node.alive for status in nodes}

    def add(self, infos: Iterable[pb.TopicInfo]) -> None:
        """Add a page. If a topic has another id, it was recreated, and its earlier sums are dropped."""
        for info in infos:
            known = self._figures.get(info.name)
            if known is None or known.topic_id != info.topic_id:
                known = TopicFigures(info.topic_id)
            self._figures[info.name] = self._with_partitions(known, info)

    def figures(self) -> dict[str, TopicFigures]:
        """Return the sums by topic name."""
        return self._figures

    def _with_partitions(self, known: TopicFigures, info: pb.TopicInfo) -> TopicFigures:
        count, records, end, size = known.partitions, known.records, known.end_offsets, known.size_bytes
        idle, unavailable, under_replicated = known.idle, known.unavailable, known.under_replicated
        copies = min(info.config.replication_factor, len(self._nodes))
        for one in info.partitions:
            count += 1
            under_replicated += self._lacks_copies(one, copies)
            if one.state == _IDLE:
                idle += 1
                continue
            records += max(0, one.high_watermark - one.log_start_offset)
            end += one.high_watermark
            size += one.size_bytes
            unavailable += one.state not in _SERVED
        return TopicFigures(known.topic_id, count, records, end, size, idle, unavailable, under_replicated)

    def _lacks_copies(self, partition: pb.PartitionInfo, copies: int) -> bool:
        """Return whether a replica is incomplete, its node is not alive, or there are fewer replicas than `copies`.

        The state of the node is checked, too, because the owner reports the replica of a dead node as complete until
        there are records that the replica lacks.
        """
        placement = partition.placement
        is_short = bool(placement) and sum(self._nodes.get(each, True) for each in placement) < max(
            copies, len(placement)
        )
        return is_short or any(map(_is_behind, partition.replicas))


def _is_behind(replica: pb.ReplicaInfo) -> bool:
    """Return whether a replica is incomplete: its node is down, it is catching up, or it has a fault."""
    return not replica.streaming or replica.missing_epochs > 0 or bool(replica.copy_fault)
