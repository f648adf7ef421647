"""Learning of the routes of partitions that only other nodes store.

Every second a node asks each other node for METADATA. Asking for all pages each second would take more than a core in a
cluster of 100,000 partitions, so a node asks for a few pages and continues with the next ones a second later. For some
seconds after a change of the nodes, when owners are likely to change, it asks for all pages.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from tidelog_broker.broker import Broker
from tidelog_broker.core.topics import META_TOPIC_ID
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

ASK_ROUTES_S: Final = 1.0
PAGES_AT_ONCE: Final = 4
"""Maximum number of pages of another node that are asked for in one round, of 512 topics and partitions each."""
CHANGED_S: Final = 10.0
"""Time after a change of the nodes in which each round asks for all pages."""
_TIMEOUT_S: Final = 5.0


class RouteLearning:
    """Asks the other nodes for routes, until `run` is cancelled."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._version: object = None
        self._changed_s = 0.0
        """When the nodes have changed, on the loop's clock."""
        self._cursors: dict[str, pb.TopicCursor | None] = {}
        """Where the next round begins, by node; None for the first page."""

    async def run(self) -> None:
        """Ask in rounds, if any partition is stored on other nodes only."""
        while True:
            if self._has_partitions_elsewhere():
                await self.round()
            await asyncio.sleep(ASK_ROUTES_S)

    async def round(self) -> None:
        """Ask each linked node once."""
        cluster, now_s = self._broker.cluster, self._broker.loop.time()
        if cluster.version != self._version:
            self._version, self._changed_s = cluster.version, now_s
        wants_all = now_s < self._changed_s + CHANGED_S
        await asyncio.gather(*(self._learn(peer, wants_all=wants_all) for peer in sorted(cluster.linked)))

    async def _learn(self, peer: str, *, wants_all: bool) -> None:
        """Learn routes from a node, page by page."""
        cursor = None if wants_all else self._cursors.get(peer)
        pages = 0
        with contextlib.suppress(
            ProtocolError
        ):  # The node is unreachable or slow; it is asked again in the next round.
            while wants_all or pages < PAGES_AT_ONCE:
                request = pb.Metadata(cursor=cursor)
                frame = await self._broker.cluster.request(peer, pb.Envelope(metadata=request), timeout_s=_TIMEOUT_S)
                reply = frame.envelope.metadata_reply
                self._broker.routes.learn(reply.topics)
                pages += 1
                is_last = not reply.HasField("next") or reply.next == cursor
                cursor = None if is_last else reply.next
                if is_last:
                    break
            self._cursors[peer] = cursor

    def _has_partitions_elsewhere(self) -> bool:
        """Return whether a partition of any topic, or `__meta`, is not stored here."""
        partitions = self._broker.partitions
        return partitions.count < self._broker.topics.partitions or not partitions.of_topic(META_TOPIC_ID)
