"""One node's view of the cluster, requested on a separate connection.

`Client` sends requests to the node that responds first; after a fault, the benchmarks must choose the node: they ask a
node that still runs for the owners, and wait until the cluster has recovered.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Final

from tidelog.cluster.connection import Address, Connection, connect
from tidelog.errors import TidelogError
from tidelog.requests.paging import MergedTopics, pages
from tidelog_cli.base.failures import CommandFailed
from tidelog_proto import broker_pb2 as pb

ANSWER_S: Final = 10.0
POLL_S: Final = 0.1
SETTLE_S: Final = 60.0
"""Time limit in seconds for a cluster to recover; 1 % of it is added per partition."""


class View:
    """Requests the state of the cluster from one node, on its own connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def routes(self, topic: str) -> pb.TopicInfo:
        """Return the owners of the topic's partitions, by METADATA.

        Raises:
            TidelogError: the node does not respond or rejects the request.
        """
        merged = MergedTopics()

        async def ask(cursor: pb.TopicCursor | None) -> pb.MetadataReply:
            request = pb.Envelope(metadata=pb.Metadata(topics=[topic], cursor=cursor))
            return (await self._connection.call(request, timeout_s=ANSWER_S)).envelope.metadata_reply

        async for page in pages(ask):
            merged.add(page.topics)
        return merged.topics()[0]

    async def status(self) -> pb.ClusterStatusReply:
        """Return the state of the cluster including the replicas of each partition, by CLUSTER_STATUS.

        Raises:
            TidelogError: the node does not respond or rejects the request.
        """
        merged, status = MergedTopics(), pb.ClusterStatusReply()

        async def ask(cursor: pb.TopicCursor | None) -> pb.ClusterStatusReply:
            request = pb.Envelope(cluster_status=pb.ClusterStatus(cursor=cursor))
            return (await self._connection.call(request, timeout_s=ANSWER_S)).envelope.cluster_status_reply

        async for page in pages(ask):
            status.cluster_id = page.cluster_id
            status.nodes.extend(page.nodes)
            merged.add(page.topics)
        status.topics.extend(merged.topics())
        return status

    async def rebalance(self) -> int:
        """Request a rebalance and return the number of partitions whose placement differs from the target.

        Raises:
            TidelogError: the node does not respond or rejects the request.
        """
        request = pb.Envelope(cluster_change=pb.ClusterChange(rebalance=True))
        frame = await self._connection.call(request, timeout_s=ANSWER_S)
        return frame.envelope.cluster_change_reply.moves


@contextlib.asynccontextmanager
async def view_of(address: Address) -> AsyncIterator[View]:
    """Connect to a node and yield its view.

    Raises:
        TidelogError: the node is unreachable.
    """
    connection = await connect(address, client_id="tidelog-bench", software="tidelog-bench", timeout_s=ANSWER_S)
    try:
        yield View(connection)
    finally:
        connection.close()


def unsettled(status: pb.ClusterStatusReply, topic: str, copies: int) -> str:
    """Return the first reason found why the cluster is not healthy yet; empty if it is healthy.

    In a healthy cluster every node runs, and each partition of the topic has an owner, `copies` replicas, and no
    replica that is catching up.
    """
    away = [node.node.node_id for node in status.nodes if not node.node.alive or node.state != "running"]
    if away:
        return f"nodes that do not run: {', '.join(away)}"
    infos = [info for info in status.topics if info.name == topic]
    if not infos:
        return f"the node does not know the topic {topic}"
    waiting = [partition for partition in infos[0].partitions if not _whole(partition, copies)]
    if not waiting:
        return ""
    one = waiting[0]
    streaming = sorted(replica.node_id for replica in one.replicas if replica.streaming)
    return (
        f"{len(waiting)} partitions not in sync, for example {one.partition}: state {one.state!r}, owner "
        f"{one.owner!r}, "
        f"replicas {', '.join(one.placement)}, in sync: {', '.join(streaming) or 'no follower'}"
    )


def _whole(partition: pb.PartitionInfo, copies: int) -> bool:
    followers = {replica.node_id for replica in partition.replicas if replica.streaming} - {partition.owner}
    return bool(partition.owner) and len(partition.placement) == copies and len(followers) >= copies - 1


async def settled(view: View, topic: str, *, copies: int, partitions: int) -> None:
    """Wait until the cluster has recovered, see `unsettled`.

    Raises:
        CommandFailed: timeout; the message has the last reason.
        TidelogError: the node rejects the request (other errors are retried).
    """

    async def look() -> str:
        return unsettled(await view.status(), topic, copies)

    await _until_nothing(look, partitions)


async def settled_everywhere(addresses: Iterable[Address], topic: str, *, copies: int, partitions: int) -> None:
    """Wait until every node reports a healthy topic. A node that does not know a new topic yet would reject requests.

    Raises:
        CommandFailed: timeout.
        TidelogError: a node is unreachable.
    """
    for address in addresses:
        async with view_of(address) as view:
            await settled(view, topic, copies=copies, partitions=partitions)


async def balanced(view: View, *, partitions: int) -> None:
    """Request a rebalance repeatedly until no partition is left to move.

    Raises:
        CommandFailed: timeout.
        TidelogError: the node rejects the request (other errors are retried).
    """

    async def look() -> str:
        moves = await view.rebalance()
        return f"{moves} partitions are not balanced" if moves else ""

    await _until_nothing(look, partitions)


async def _until_nothing(look: Callable[[], Awaitable[str]], partitions: int) -> None:
    missing = "no answer"
    limit_s = SETTLE_S + partitions * SETTLE_S / 100
    try:
        async with asyncio.timeout(limit_s):
            while True:
                try:
                    missing = await look()
                except TidelogError as error:
                    if not error.retriable:
                        raise
                    missing = str(error)
                if not missing:
                    return
                await asyncio.sleep(POLL_S * (1 + partitions // 100))
    except TimeoutError:
        raise CommandFailed(f"the cluster is still not ready after {limit_s:.0f} s: {missing}") from None
