"""Requests to the coordinator of a consumer group: the owner of the group's partition of `__offsets`.

Any node forwards such a request and marks its answer as forwarded. If a client's cached route is missing or stale, its
request takes one more hop, and the client refreshes the route for its next request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from tidelog.cluster.connection import Connection
from tidelog.cluster.routing import Router
from tidelog.model import TopicPartition
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.key_partitions import partition_for_key
from tidelog_proto.names import OFFSETS_TOPIC

T = TypeVar("T")


def coordinator_partition(group: str, partition_count: int) -> TopicPartition:
    """Return the partition whose owner coordinates a group, of the `partition_count` partitions of `__offsets`."""
    return TopicPartition(OFFSETS_TOPIC, partition_for_key(group.encode(), partition_count))


async def at_coordinator(
    router: Router, group: str, ask: Callable[[Connection], Awaitable[T]], *, repeatable: bool = True
) -> T:
    """Ask the coordinator of a group if its address is known, and other nodes as `Router.at_any` does.

    Raises:
        TidelogError: see `Router.at_any`.
    """
    route = router.metadata.topic(OFFSETS_TOPIC)
    if route is None:
        router.refresh_later(OFFSETS_TOPIC)
        return await router.at_any(ask, repeatable=repeatable)
    coordinator = router.metadata.owner_address(*coordinator_partition(group, route.partition_count))
    return await router.at_any(ask, repeatable=repeatable, first=coordinator)


def note_forwarded(router: Router, reply: pb.CommitReply | pb.CommittedReply) -> None:
    """Refresh the routes to coordinators if another node than the requested one has answered."""
    if reply.forwarded:
        router.refresh_later(OFFSETS_TOPIC)
