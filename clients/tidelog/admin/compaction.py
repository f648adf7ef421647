"""The request COMPACT: compacts partitions at their owners, one partition after another."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tidelog.admin.long_requests import wait_with_probes
from tidelog.cluster.answers import results_of
from tidelog.cluster.routing import Router
from tidelog.errors import TidelogError, error_of
from tidelog.model import Compacted
from tidelog.requests.needed_permission import requiring
from tidelog.requests.partial_results import attach_done
from tidelog_proto import broker_pb2 as pb

PASS_TIMEOUT_S: Final = 3600.0
"""Maximum duration of the compaction of one partition, which reads the whole log at a limited rate.

Faults end the request earlier: a node reports within 30 s that a compaction makes no progress, and `wait_with_probes`
fails if the node is silent.
"""


async def compact(router: Router, topic: str, partitions: Iterable[int] | None) -> dict[int, Compacted]:
    """Compact partitions of a topic; None for all. See `Client.compact_topic`."""
    if partitions is None:
        async with requiring(router, pb.OP_ALTER, topic):
            route = await router.retry_for_topic(topic, lambda: router.topic_now(topic), repeatable=True)
        partitions = sorted(route.partitions)
    done: dict[int, Compacted] = {}
    try:
        for partition in dict.fromkeys(partitions):
            done[partition] = await _one(router, topic, partition)
    except TidelogError as error:
        attach_done(error, done, "compacted")
        raise
    return done


async def _one(router: Router, topic: str, partition: int) -> Compacted:
    async def attempt() -> Compacted:
        async with requiring(router, pb.OP_ALTER, topic):
            connection = await router.connection(topic, partition)
            route = await router.topic(topic)
        entry = pb.CompactEntry(topic_id=route.topic_id, partition=partition)
        answer = router.call(connection, pb.Envelope(compact=pb.Compact(entries=[entry])), wait_s=PASS_TIMEOUT_S)
        frame = await wait_with_probes(router, topic, partition, connection, answer, what="is compacting")
        (result,) = results_of(frame.envelope.compact_reply.results, 1, connection)
        if result.HasField("error"):
            raise error_of(result.error, connection.name)
        return Compacted(result.below, result.size_bytes)

    return await router.retry_for_topic(topic, attempt, repeatable=True, partition=partition)
