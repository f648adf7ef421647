"""Copies that moves of this node have asked for and that are not whole yet, as far as their nodes tell.

A move is over in a round, its new copies may need hours for the history. Until they have it, that history lies on
fewer nodes than wanted, and the nodes that fetch share one pace among all that they fetch. So a mover begins only so
many moves ahead of that, and asks those nodes in between how far they are. Nobody is waited for in vain: not a node
that is away, nor one that no longer has to hold the copy, nor a copy that does not grow any more (its source is gone,
its disk is full, its node does not answer).

Rejected: that a replica tells its owner with each acknowledgement what it lacks. It is asked for seldom, and the owner
of the epoch that a move has begun is often another node than the one that has begun it.
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
"""Moves whose new copies are not whole, of those that are asked for and again of those that are advised."""
STALLED_MS: Final = 60_000
"""A copy that has not grown for so long is not waited for."""
ANSWER_S: Final = 1.0

Told = Mapping[PartitionKey, pb.PartitionInfo]
"""What a node tells of its own copies."""

_NOT_OPEN: Final = frozenset({"away", "no owner"})
"""States by which a node tells that it has not taken up a partition yet."""


async def ask(cluster: Cluster, node_id: str, keys: Collection[PartitionKey]) -> Told:
    """Ask a node for its copies of some partitions; nothing if it does not answer in time."""
    wanted = [pb.PartitionName(topic_id=topic_id, partition=index) for topic_id, index in keys]
    asked = pb.Envelope(cluster_status=pb.ClusterStatus(partitions=wanted))
    try:
        reply = (await cluster.request(node_id, asked, timeout_s=ANSWER_S)).envelope.cluster_status_reply
    except ProtocolError:
        return {}
    return {(topic.topic_id, info.partition): info for topic in reply.topics for info in topic.partitions}


@dataclass(slots=True)
class _Copy:
    """A copy that is being made: what it lacked at best, in records, and since when."""

    since_ms: int
    records: int | None = None


@dataclass(slots=True)
class _Move:
    """A move that has been begun: the epoch that it makes, and its new copies by node."""

    epoch: int
    advised: bool
    copies: dict[str, _Copy]


class NewCopies:
    """See the module.

    Args:
        ask: what a node tells of its own copies of some partitions.
        alive: whether a node is there.
        now_ms: a clock that never goes back.
    """

    def __init__(
        self,
        *,
        ask: Callable[[str, Collection[PartitionKey]], Awaitable[Told]],
        alive: Callable[[str], bool],
        now_ms: Callable[[], int],
    ) -> None:
        self._ask = ask
        self._alive = alive
        self._now_ms = now_ms
        self._moves: dict[PartitionKey, _Move] = {}

    def has_room(self, key: PartitionKey, *, advised: bool) -> bool:
        """Whether a move that makes copies may begin, or be tried again; what is advised waits for nothing else."""
        return key in self._moves or sum(move.advised == advised for move in self._moves.values()) < MOVES_MAX

    def begun(self, key: PartitionKey, epoch: int, nodes: Collection[str], *, advised: bool) -> None:
        """A move is on its way to an epoch in which `nodes` hold new copies."""
        now_ms = self._now_ms()
        self._moves[key] = _Move(epoch, advised, {node: _Copy(now_ms) for node in nodes})

    async def look(self) -> None:
        """Ask how far the copies are, and forget those that are whole or not to be waited for."""
        by_node: dict[str, list[PartitionKey]] = {}
        for key, move in self._moves.items():
            for node in move.copies:
                by_node.setdefault(node, []).append(key)
        living = [node for node in by_node if self._alive(node)]
        answers = await asyncio.gather(*(self._ask(node, by_node[node]) for node in living))
        told = dict(zip(living, answers, strict=True))
        for key, move in list(self._moves.items()):
            for node, copy in list(move.copies.items()):
                if node not in told or not self._is_awaited(key, move.epoch, node, copy, told[node].get(key)):
                    del move.copies[node]
            if not move.copies:
                del self._moves[key]

    def _is_awaited(self, key: PartitionKey, epoch: int, node: str, copy: _Copy, info: pb.PartitionInfo | None) -> bool:
        """Take what a node tells of a copy; return whether it is still to be waited for."""
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
            "partition %d of %s is not getting whole on %s; others move all the same", key[1], key[0].hex(), node
        )
        return False
