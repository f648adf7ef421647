"""The COMMITTED request: a group's committed positions, from its coordinator."""

from __future__ import annotations

from collections.abc import Iterable

from tidelog.cluster.connection import Connection
from tidelog.cluster.coordinators import at_coordinator, note_forwarded
from tidelog.cluster.routing import Router
from tidelog.model import Committed
from tidelog.requests.conversions import checked_group, committed_of
from tidelog_proto import broker_pb2 as pb


async def committed(router: Router, group: str, topic: str | None) -> list[Committed]:
    """Return a group's committed positions. See `Client.committed`."""
    checked_group(group)

    async def ask(connection: Connection) -> list[Committed]:
        request = pb.Committed(group=group)
        if topic is not None:
            # The request names the topic, not its partitions: the cached metadata may lack new ones.
            request.topic_id = (await router.topic(topic)).topic_id
        results: list[pb.CommittedResult] = []
        while True:
            reply = (await router.call(connection, pb.Envelope(committed=request))).envelope.committed_reply
            note_forwarded(router, reply)
            results += reply.results
            if not reply.HasField("last") or reply.last == request.after:
                break
            request.after.CopyFrom(reply.last)
        for each in results:
            if each.HasField("record_epoch"):
                router.read_epochs.note_committed(
                    each.topic_id, each.partition, offset=each.next_offset, epoch=each.record_epoch
                )
        if topic is not None:
            return committed_of(results, {request.topic_id: topic})
        return committed_of(results, await _names(router, connection, results))

    if topic is None:
        return await router.retrying(
            lambda: at_coordinator(router, group, ask), repeatable=True, about=f"group {group!r}"
        )
    return await router.retry_for_topic(topic, lambda: at_coordinator(router, group, ask), repeatable=True)


async def _names(router: Router, connection: Connection, results: Iterable[pb.CommittedResult]) -> dict[bytes, str]:
    """Return the names of topics by id, from the results or from the cached metadata.

    A node of an older release does not return names; the metadata of all topics is then requested from it.
    """
    names = {result.topic_id: result.topic or router.metadata.name_of(result.topic_id) for result in results}
    if None in names.values():
        question = pb.Metadata()
        while True:
            reply = (await router.call(connection, pb.Envelope(metadata=question))).envelope.metadata_reply
            router.take_metadata(reply, connection.address)
            if not reply.HasField("next") or reply.next == question.cursor:
                break
            question.cursor.CopyFrom(reply.next)
        names = {topic_id: name or router.metadata.name_of(topic_id) for topic_id, name in names.items()}
    return {topic_id: name for topic_id, name in names.items() if name is not None}
