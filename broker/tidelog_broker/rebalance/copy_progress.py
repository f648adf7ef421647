"""Progress of the new copies that this node's moves have requested.

A move takes one round, but its new copies may need hours to fetch the history. Until then that history is on fewer
nodes than wanted, and each fetching node shares one rate among all of its copies. So a mover keeps only a bounded
number of moves with incomplete copies, and polls their nodes. It does not wait for a node that is down, for a copy that
is no longer needed, or for a copy without progress (its source has failed, its disk is full, or its node does not
answer).

Rejected: reporting missing history with each acknowledgement. It is needed rarely, and the owner of the epoch that a
move has begun is often another node than the mover.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from tidelog_broker.cluster.cluster_view import Cluster
from tidelog_broker.core.topics import PartitionKey
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

log = logging.getLogger(__name__)

MOVES_MAX: Final = 8
"""Limit of concurrent moves with incomplete copies; requested and advised moves are counted separately."""
STALLED_MS: Final = 60_000
"""Time after which a copy without progress is no longer waited for."""
ANSWER_S: Final = 1.0

CopyReport = Mapping[PartitionKey, pb.PartitionInfo]
"""A node's report on its own copies."""

_NOT_OPEN: Final = frozenset({"away", "no owner"})
"""States of a partition that the reporting node has not opened yet."""


async def ask(cluster: Cluster, node_id: str, keys: Collection[PartitionKey]) -> CopyReport:
    """Return a node's report on its copies of some partitions; empty if the request fails."""
    names = [pb.PartitionName(topic_id=topic_id, partition=index) for topic_id, index in keys]
    request = pb.Envelope(cluster_status=pb.ClusterStatus(partitions=names))
    try:
        reply = (await cluster.request(node_id, request, timeout_s=ANSWER_S)).envelope.cluster_status_reply
    except ProtocolError:
        return {}
    return {(topic.topic_id, info.partition): info for topic in reply.topics for info in topic.partitions}


@dataclass(slots=True)
class _Copy:
    """An incomplete copy: the fewest missing records so far, and since when."""

    since_ms: int
    records: int | None = None


@dataclass(slots=True)
class _Move:
    """A begun move: the epoch that it creates, and its new copies by node."""

    epoch: int
    advised: bool
    copies: dict[str, _Copy]


class NewCopies:
    """Tracks the new copies of moves.

    Args:
        ask: requests a node's report on its copies of some partitions.
        alive: returns whether a node is alive.
        now_ms: a monotonic clock.
    """

    def __init__(
        self,
        *,
        ask: Callable[[str, Collection[PartitionKey]], Awaitable[CopyReport]],
        alive: Callable[[str], bool],
        now_ms: Callable[[], int],
    ) -> None:
        self._ask = ask
        self._alive = alive
        self._now_ms = now_ms
        self._moves: dict[PartitionKey, _Move] = {}

    def has_room(self, key: PartitionKey, *, advised: bool) -> bool:
        """Return whether a move with new copies may begin, or replaces a tracked one; see `MOVES_MAX`."""
        return key in self._moves or sum(move.advised == advised for move in self._moves.values()) < MOVES_MAX

    def begun(self, key: PartitionKey, epoch: int, nodes: Collection[str], *, advised: bool) -> None:
        """Record a begun move to an epoch in which `nodes` hold new copies."""
        now_ms = self._now_ms()
        self._moves[key] = _Move(epoch, advised, {node: _Copy(now_ms) for node in nodes})

    async def look(self) -> None:
        """Poll the copies, and drop those that are complete or no longer waited for."""
        by_node: dict[str, list[PartitionKey]] = {}
        for key, move in self._moves.items():
            for node in move.copies:
                by_node.setdefault(node, []).append(key)
        living = [node for node in by_node if self._alive(node)]
        answers = await asyncio.gather(*(self._ask(node, by_node[node]) for node in living))
        reports = dict(zip(living, answers, strict=True))
        for key, move in list(self._moves.items()):
            for node, copy in list(move.copies.items()):
                if node not in reports or not self._is_awaited(key, move.epoch, node, copy, reports[node].get(key)):
                    del move.copies[node]
            if not move.copies:
                del self._moves[key]

    def _is_awaited(self, key: PartitionKey, epoch: int, node: str, copy: _Copy, info: pb.PartitionInfo | None) -> bool:
        """Update a copy from its node's report; return whether to keep waiting for it."""
        now_ms = self._now_ms()
        if info is not None and info.epoch >= epoch:
            if node not in info.placement:
                return False
            if info.state not in _NOT_OPEN:
                if not info.missing_epochs and not info.copy_fault:
                    return False
                if copy.records is None or info.missing_records < copy.records:
                    copy.since_ms, copy.records = now_ms, info.missing_records
        if now_ms - copy.since_ms < STALLED_MS:
            return True
        log.warning(
            "the new copy of partition %d of topic id %s on node %r has made no progress for %d s; this node moves "
            "other partitions meanwhile; look for the cause in the log of node %r",
            key[1],
            key[0].hex(),
            node,
            STALLED_MS // 1000,
            node,
        )
        return False
