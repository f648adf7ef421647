"""What one node of a cluster says about all of it, asked on a connection of its own.

Not through `Client`, which asks whichever node answers soonest: after a fault it matters whose word it is. The
benchmarks ask a survivor here who owns what, and when everything is as it should be again.
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
"""How long a cluster may take to be whole again, and a hundredth of it for each partition besides."""


class View:
    """One node's word."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def routes(self, topic: str) -> pb.TopicInfo:
        """Return who owns the topic's partitions, by METADATA.

        Raises:
            TidelogError: the node does not answer.
        """
        merged = MergedTopics()

        async def ask(cursor: pb.TopicCursor | None) -> pb.MetadataReply:
            asked = pb.Envelope(metadata=pb.Metadata(topics=[topic], cursor=cursor))
            return (await self._connection.call(asked, timeout_s=ANSWER_S)).envelope.metadata_reply

        async for page in pages(ask):
            merged.add(page.topics)
        return merged.topics()[0]

    async def status(self) -> pb.ClusterStatusReply:
        """Return the cluster's state, the copies of each partition included, by CLUSTER_STATUS.

        Raises:
            TidelogError: the node does not answer.
        """
        merged, found = MergedTopics(), pb.ClusterStatusReply()

        async def ask(cursor: pb.TopicCursor | None) -> pb.ClusterStatusReply:
            asked = pb.Envelope(cluster_status=pb.ClusterStatus(cursor=cursor))
            return (await self._connection.call(asked, timeout_s=ANSWER_S)).envelope.cluster_status_reply

        async for page in pages(ask):
            found.cluster_id = page.cluster_id
            found.nodes.extend(page.nodes)
            merged.add(page.topics)
        found.topics.extend(merged.topics())
        return found

    async def rebalance(self) -> int:
        """Ask for a rebalance and return how many partitions are not where they should be.

        Raises:
            TidelogError: the node does not answer.
        """
        asked = pb.Envelope(cluster_change=pb.ClusterChange(rebalance=True))
        frame = await self._connection.call(asked, timeout_s=ANSWER_S)
        return frame.envelope.cluster_change_reply.moves


@contextlib.asynccontextmanager
async def view_of(address: Address) -> AsyncIterator[View]:
    """Connect to a node and give its view.

    Raises:
        TidelogError: it cannot be reached.
    """
    connection = await connect(address, client_id="tidelog-bench", software="tidelog-bench", timeout_s=ANSWER_S)
    try:
        yield View(connection)
    finally:
        connection.close()


def unsettled(status: pb.ClusterStatusReply, topic: str, copies: int) -> str:
    """Return what is not yet as it should be, in words; nothing when all is.

    It should be so: every node runs, and each partition of the topic has an owner, `copies` copies, and no copy that is
    still catching up.
    """
    away = [node.node.node_id for node in status.nodes if not node.node.alive or node.state != "running"]
    if away:
        return f"{', '.join(away)} away"
    found = [info for info in status.topics if info.name == topic]
    if not found:
        return f"{topic} unknown"
    waiting = [partition for partition in found[0].partitions if not _whole(partition, copies)]
    if not waiting:
        return ""
    one = waiting[0]
    streaming = sorted(replica.node_id for replica in one.replicas if replica.streaming)
    return (
        f"{len(waiting)} partitions are not whole, such as {one.partition}: state {one.state!r}, owner {one.owner!r}, "
        f"stored by {', '.join(one.placement)}, up to date: {', '.join(streaming) or 'no follower'}"
    )


def _whole(partition: pb.PartitionInfo, copies: int) -> bool:
    followers = {replica.node_id for replica in partition.replicas if replica.streaming} - {partition.owner}
    return bool(partition.owner) and len(partition.placement) == copies and len(followers) >= copies - 1


async def settled(view: View, topic: str, *, copies: int, partitions: int) -> None:
    """Wait until the cluster is whole again, see `unsettled`.

    Raises:
        CommandFailed: it took too long; the message says what is missing.
    """

    async def look() -> str:
        return unsettled(await view.status(), topic, copies)

    await _until_nothing(look, partitions)


async def settled_everywhere(addresses: Iterable[Address], topic: str, *, copies: int, partitions: int) -> None:
    """Wait until every node says so. A node that has not heard of a new topic yet would refuse a client.

    Raises:
        CommandFailed: it took too long.
        TidelogError: a node cannot be reached.
    """
    for address in addresses:
        async with view_of(address) as view:
            await settled(view, topic, copies=copies, partitions=partitions)


async def balanced(view: View, *, partitions: int) -> None:
    """Ask for a rebalance until nothing is left to move.

    Raises:
        CommandFailed: it took too long.
    """

    async def look() -> str:
        moves = await view.rebalance()
        return f"{moves} partitions are not where they should be" if moves else ""

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
        raise CommandFailed(f"after {limit_s:.0f} s the cluster is not whole: {missing}") from None
