"""DELETE_RECORDS: deletes the records before an offset or a time, by partition."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from tidelog.cluster.answers import results_of
from tidelog.cluster.connection import Connection
from tidelog.cluster.routing import Router
from tidelog.errors import InvalidRequestError, TidelogError, error_of
from tidelog.requests.conversions import microseconds
from tidelog.requests.needed_permission import requiring
from tidelog.requests.paging import in_requests
from tidelog.requests.partial_results import attach_done
from tidelog_proto import broker_pb2 as pb

_OFFSET_MAX: Final = 2**63


async def delete_records(
    router: Router, topic: str, before: int | datetime, partitions: Iterable[int] | None
) -> dict[int, int]:
    """Delete records and return the log start of each partition. See `Client.delete_records`.

    The request is idempotent, so it is retried when the outcome is unknown.

    Raises:
        InvalidRequestError: `before` is neither an offset nor a datetime with a zone; or it is an offset, `partitions`
            is None and the topic has several.
        UnknownPartitionError: the topic has no such partition; nothing was requested.
        TidelogError: a node's error; `done` holds the log starts of partitions whose records were deleted.
    """
    requested = None if partitions is None else list(dict.fromkeys(partitions))
    if isinstance(before, bool) or not isinstance(before, int | datetime):
        raise InvalidRequestError(f"before must be an offset or a datetime, got {before!r}")
    if isinstance(before, int) and not 0 <= before < _OFFSET_MAX:
        raise InvalidRequestError(f"before must be >= 0 and < 2**63, got {before}")
    before_us = microseconds(before) if isinstance(before, datetime) else 0
    starts: dict[int, int] = {}
    of_topic = b""

    def entry(topic_id: bytes, partition: int) -> pb.DeleteRecordsEntry:
        if isinstance(before, int):
            return pb.DeleteRecordsEntry(topic_id=topic_id, partition=partition, offset=before)
        return pb.DeleteRecordsEntry(topic_id=topic_id, partition=partition, timestamp_us=before_us)

    async def attempt() -> dict[int, int]:
        nonlocal of_topic
        async with requiring(router, pb.OP_DELETE, topic):
            route = await router.topic_now(topic)
            route = await router.topic_with(topic, requested or ())
        if route.topic_id != of_topic:
            of_topic = route.topic_id
            starts.clear()  # Results of earlier attempts belong to a deleted topic of the same name.
        numbers = sorted(route.partitions) if requested is None else requested
        if isinstance(before, int) and requested is None and len(numbers) > 1:
            raise InvalidRequestError(
                f"topic {topic!r} has {len(numbers)} partitions, and offset {before} cannot apply to all: pass "
                "partitions=[NUMBER] (--partition NUMBER in the command), or a time instead of the offset"
            )
        failures: list[TidelogError] = []
        for group in in_requests([number for number in numbers if number not in starts]):
            envelope = pb.Envelope(
                delete_records=pb.DeleteRecords(entries=[entry(route.topic_id, number) for number in group])
            )

            async def ask(connection: Connection, envelope: pb.Envelope = envelope) -> list[pb.DeleteRecordsResult]:
                frame = await router.call(connection, envelope)
                count = len(envelope.delete_records.entries)
                return results_of(frame.envelope.delete_records_reply.results, count, connection)

            for number, result in zip(group, await router.at_any(ask, repeatable=False), strict=True):
                if result.HasField("error"):
                    failures.append(error_of(result.error))
                else:
                    starts[number] = result.log_start_offset
        for failure in sorted(failures, key=lambda each: each.retriable):
            raise failure
        return {number: starts[number] for number in numbers}

    try:
        return await router.retry_for_topic(topic, attempt, repeatable=True)
    except TidelogError as error:
        attach_done(error, starts, "deleted")
        raise
