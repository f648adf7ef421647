"""Helpers for tests of links between nodes: identities, a message receiver, and a link observer."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from tidelog_broker.base.metrics import NodeMetrics
from tidelog_broker.base.node_tls import NodeTls
from tidelog_broker.core.cluster_secrets import ClusterSecrets
from tidelog_broker.core.peer_auth import Identity
from tidelog_broker.core.replication.ports import Batch
from tidelog_broker.node.node import Node
from tidelog_broker.wire.links import Link, Links
from tidelog_broker.wire.one_way import LinkMessage
from tidelog_broker.wire.peers import Peers
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.limits import MIB

IDENTITY = Identity(cluster_id=b"c" * 16, node_id="a", incarnation=100, secrets=ClusterSecrets(b"secret"))
TOPIC = b"t" * 16


def identity(node_id: str, **changes: Any) -> Identity:
    return dataclasses.replace(IDENTITY, node_id=node_id, **changes)


def ack(end: int, partition: int = 0) -> pb.ReplicationAck:
    return pb.ReplicationAck(topic_id=TOPIC, partition=partition, end_offset=end)


def append(number: int, partition: int = 0) -> pb.AppendBatch:
    return pb.AppendBatch(topic_id=TOPIC, partition=partition, epoch=number)


class Ear:
    """Receives a node's one-way messages."""

    def __init__(self) -> None:
        self.got: list[tuple[str, Any, Sequence[Batch]]] = []
        self._changed = asyncio.Event()

    def __call__(self, peer_id: str, message: LinkMessage, batches: Sequence[Batch]) -> None:
        self.got.append((peer_id, message, batches))
        self._changed.set()

    async def heard(self, count: int) -> list[tuple[str, Any, Sequence[Batch]]]:
        """Wait until this many messages have come."""
        async with asyncio.timeout(20):
            while len(self.got) < count:
                self._changed.clear()
                await self._changed.wait()
        return self.got


class Eye:
    """Sees links come and go."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self.incarnations: list[int] = []
        self._changed = asyncio.Event()

    def established(self, node_id: str, incarnation: int) -> None:
        self.incarnations.append(incarnation)
        self._note(f"established {node_id}")

    def lost(self, node_id: str) -> None:
        self._note(f"lost {node_id}")

    def refused(self, node_id: str) -> None:
        self._note(f"refused {node_id}")

    def removed(self, why: str) -> None:
        self._note(f"removed: {why}")

    def _note(self, what: str) -> None:
        self.seen[what] += 1
        self._changed.set()

    async def saw(self, what: str, times: int = 1) -> None:
        async with asyncio.timeout(20):
            while self.seen[what] < times:
                self._changed.clear()
                await self._changed.wait()


def join(node: Node, received: Callable[[str, LinkMessage, Sequence[Batch]], None], own: Identity) -> Peers:
    """Let a running node belong to a cluster, as `own`."""
    node.broker.tasks.spawn(node.broker.incarnations.begin(may_withdraw=True), "recording this incarnation")
    node.broker.peers = Peers(
        own,
        received=received,
        budget=node.broker.bounds.peers_budget,
        verifiers=node.broker.threads.verifiers,
        metrics=node.broker.metrics,
    )
    return node.broker.peers


def make_links(
    own: Identity = IDENTITY,
    *,
    events: Eye | None = None,
    queue_bytes: int = 64 * MIB,
    metrics: NodeMetrics | None = None,
) -> Links:
    return Links(
        own,
        events=events or Eye(),
        queue_bytes=queue_bytes,
        metrics=metrics or NodeMetrics(),
        tls=NodeTls(None),
        incarnations=None,
    )


async def linked(
    port: int,
    own: Identity = IDENTITY,
    *,
    to: str = "b",
    queue_bytes: int = 64 * MIB,
    metrics: NodeMetrics | None = None,
) -> Link:
    """Return one greeted link to a node."""
    link = Link(to, queue_bytes=queue_bytes, metrics=metrics or NodeMetrics())
    await asyncio.get_running_loop().create_connection(lambda: link, "127.0.0.1", port)
    try:
        await link.greet(own, called=to, timeout_s=20)
    except BaseException:
        link.close("the test's greeting failed")
        await link.lost
        raise
    return link
