"""The requests FETCH (to partition owners and replicas) and COMMIT (to group coordinators)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from tidelog.cluster.answers import results_of
from tidelog.cluster.connection import Connection
from tidelog.cluster.coordinators import at_coordinator, note_forwarded
from tidelog.cluster.fallback_replicas import ReadReplica
from tidelog.cluster.metadata import deleted_topic_error
from tidelog.cluster.routing import Router
from tidelog.cluster.topic_schemas import typed_number
from tidelog.errors import (
    EpochChangingError,
    InvalidRequestError,
    TidelogError,
    UnknownTopicError,
    describe_error,
    error_of,
    error_of_read,
)
from tidelog.fetch_options import FETCH_BYTES_DEFAULT, projection_message
from tidelog.model import Committed, Fetched, TopicPartition
from tidelog.requests import list_offsets
from tidelog.requests.conversions import check_position, checked_group, committed_of
from tidelog.requests.field_projection import check_fields, request_fields
from tidelog.requests.needed_permission import requiring
from tidelog.requests.paging import in_requests, in_slices
from tidelog.requests.partial_results import Commits, attach_done
from tidelog.requests.record_filters import record_filter
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import COLUMN_FLAGS
from tidelog_proto.batch.record_batch import RecordBatch, iter_batches
from tidelog_proto.batch.row_layout import Layouts
from tidelog_proto.errors import ProtocolError
from tidelog_proto.filters.expression_messages import BoundFilter
from tidelog_proto.limits import FETCH_BYTES_MAX, FETCH_WAIT_MS_MAX

QUOTA_RETRY_S: Final = 1.0
"""Maximum pause between fetches while a read quota is exceeded; the node also delays each answer."""
_MS: Final = 1000


async def fetch(
    router: Router,
    topic: str,
    partition: int,
    offset: int,
    *,
    max_bytes: int = FETCH_BYTES_DEFAULT,
    min_bytes: int = 0,
    wait_ms: int = 0,
    key: bytes | None = None,
    tag: str | None = None,
    where: BoundFilter | None = None,
    columns: Sequence[str] | None = None,
    fields: Sequence[str | int] | None = None,
    since_us: int | None = None,
    until_us: int | None = None,
    end_offset: int | None = None,
    nearest: bool = False,
    topic_id: bytes = b"",
    control: bool = False,
) -> Fetched:
    """Read whole batches, or the requested parts of them, from `offset` on. See `Client.fetch`.

    Args:
        control: whether to include control batches.
    """
    if offset < 0 or not 0 < max_bytes <= FETCH_BYTES_MAX or not 0 <= wait_ms <= FETCH_WAIT_MS_MAX:
        raise InvalidRequestError(
            f"offset must be >= 0 (got {offset}), max_bytes must be 1 to {FETCH_BYTES_MAX} (got {max_bytes}), and "
            f"wait_ms must be 0 to {FETCH_WAIT_MS_MAX} (got {wait_ms})"
        )
    entry = pb.FetchEntry(partition=partition, offset=offset, topic_id=topic_id)
    if (matching := record_filter(key, tag, where)) is not None:
        entry.filter.CopyFrom(matching.to_message())
    if (projection := projection_message(columns, since_us, until_us, end_offset)) is not None:
        entry.projection.CopyFrom(projection)
    if fields is not None:
        check_fields(fields)
        entry.projection.columns = entry.projection.columns if entry.HasField("projection") else COLUMN_FLAGS
    request = pb.Fetch(entries=[entry], min_bytes=min_bytes, max_bytes=max_bytes, wait_ms=wait_ms)

    async def attempt() -> Fetched:
        if fields is not None and not request.entries[0].projection.HasField("fields"):
            await request_fields(router, topic, fields, request.entries[0].projection)
        near = await router.near_reader(topic, partition) if nearest else None
        if near is not None:
            try:
                fetched = await _fetched_from(router, near, topic, request, end_offset or 0, control=control)
                if offset <= fetched.high_watermark:
                    return fetched  # Otherwise ask the owner, which alone knows whether the offset exists.
            except TidelogError as error:
                # Fall back to the owner: if the error is not specific to this replica, the owner returns it too.
                if error.retriable:
                    router.nearest_replica.exclude(near.connection.address, describe_error(error))
        replica = router.fallback_replicas.owner_now(topic, partition)
        if replica is None:
            async with requiring(router, pb.OP_CONSUME, topic):
                replica = await router.reading_connection(topic, partition)
        return await _fetched_from(router, replica, topic, request, end_offset or 0, control=control)

    while True:
        try:
            return await router.retry_for_topic(topic, attempt, repeatable=True, partition=partition)
        except _QuotaExceeded as held:
            # An exhausted quota is not a failure, so the wait has no time limit: the read continues when the quota
            # allows it.
            await asyncio.sleep(min(held.retry_after_s, QUOTA_RETRY_S))


class _QuotaExceeded(Exception):  # noqa: N818 - a signal to `fetch`, not an error
    """A node has records but returns none, because the principal has used up its read quota."""

    def __init__(self, retry_after_s: float) -> None:
        super().__init__()
        self.retry_after_s = retry_after_s


async def _fetched_from(
    router: Router, replica: ReadReplica, topic: str, request: pb.Fetch, end_offset: int, *, control: bool
) -> Fetched:
    """Send one FETCH to a node and return its answer.

    Args:
        end_offset: the caller knows that records exist up to this offset; 0 if unknown.
        control: whether to include control batches.

    Raises:
        _QuotaExceeded: the node holds back records because of a quota.
        TidelogError: the read failed, or the node does not have known records yet.
    """
    route = router.metadata.topic(topic) or await router.topic_now(topic)
    envelope = pb.Envelope(fetch=request)
    entry = envelope.fetch.entries[0]
    if entry.topic_id and entry.topic_id != route.topic_id:
        raise UnknownTopicError(
            f"topic {topic!r} no longer has the requested id, because it was deleted and created again; start a new "
            "read for the new topic"
        )
    entry.topic_id = route.topic_id
    partition, offset = entry.partition, entry.offset
    where = TopicPartition(topic, partition)
    frame = await router.call_reader((where,), replica, envelope, wait_s=request.wait_ms / _MS)
    (result,) = results_of(frame.envelope.fetch_reply.results, 1, replica.connection)
    if result.HasField("error"):
        raise error_of(result.error, replica.connection.name)
    known_end = router.known_ends.known(route.topic_id, partition, epoch=result.epoch)
    router.known_ends.note(route.topic_id, partition, epoch=result.epoch, end_offset=result.high_watermark)
    # The caller's `end_offset` counts only for another replica, which may lag. If the log of the owner ends before
    # `end_offset`, the records between are lost, and waiting for them is useless.
    known_end = max(known_end, result.high_watermark, 0 if replica.is_owner else end_offset)
    has_advanced = result.next_offset > offset  # also past records that the filter excludes
    if not result.length and not has_advanced and offset < known_end:
        held_ms = max(frame.envelope.throttle_ms, frame.envelope.caller_throttle_ms)
        if held_ms and request.wait_ms:  # A fetch without `wait_ms` has the time limit of other requests.
            raise _QuotaExceeded(held_ms / _MS)
        raise _lag_error(replica.connection, topic, partition, offset)
    layouts = await layouts_for(router, entry.topic_id, frame.attachment)
    batches = parse_batches(frame.attachment, where, offset, control=control, layouts=layouts)
    router.read_epochs.read(route.topic_id, partition, batches)
    return Fetched(
        batches=batches,
        next_offset=result.next_offset,
        log_start_offset=result.log_start_offset,
        high_watermark=result.high_watermark,
        epoch=result.epoch,
    )


def _lag_error(connection: Connection, topic: str, partition: int, offset: int) -> TidelogError:
    """Return the error for a committed record that the node does not have yet."""
    host, port = connection.address
    return EpochChangingError(
        f"node {host}:{port} does not have {topic!r}/{partition} up to offset {offset} yet; try again"
    )


async def layouts_for(router: Router, topic_id: bytes, attachment: memoryview) -> Layouts | None:
    """Return the layouts of the schemas of a topic, with those of all batches; None if no batch is typed.

    Raises:
        TidelogError: a schema could not be read.
    """
    try:
        numbers = {number for view in iter_batches(attachment) if (number := typed_number(view))}
    except ProtocolError:  # reported by `parse_batches`
        return None
    for number in sorted(numbers):
        await router.schemas.layout(topic_id, number)
    return router.schemas.known(topic_id) if numbers else None


def parse_batches(
    attachment: memoryview,
    where: TopicPartition,
    offset: int,
    *,
    control: bool = False,
    layouts: Layouts | None = None,
) -> list[RecordBatch]:
    """Parse an attachment into batches from `offset` on; control batches are included only with `control`.

    Raises:
        CorruptBatchError, UnsupportedBatchError: the bytes are damaged, or of a newer version; the message has the
            topic, partition and offset.
    """
    batches: list[RecordBatch] = []
    at = offset
    try:
        for view in iter_batches(attachment):
            batch = RecordBatch.parse(view, layouts).slice_from(offset)
            at = batch.end_offset
            if len(batch) and (control or not batch.control):
                batches.append(batch)
    except ProtocolError as error:
        raise error_of_read(error, where.topic, where.partition, at) from error
    return batches


async def commit(
    router: Router,
    group: str,
    topic: str,
    positions: Mapping[int, int],
    *,
    reset: bool,
    note: str,
    topic_id: bytes | None = None,
) -> dict[int, Committed]:
    """Commit a group's positions in a topic. See `Client.commit`.

    Args:
        topic_id: id that the topic must have; None: any id.

    Raises:
        UnknownTopicError: the topic does not exist, or has another id.
        TidelogError: a position was not stored; `done` has those that were.
    """
    checked_group(group)
    if not isinstance(positions, Mapping):
        raise InvalidRequestError(f"positions must be a mapping partition -> next offset to read, got {positions!r}")
    for partition, offset in positions.items():
        check_position(TopicPartition(topic, partition), offset)
    if not positions:
        return {}
    done: dict[bytes, dict[int, Committed]] = {}
    """Committed positions by topic id, so that a retry sends only the positions that are not committed yet."""

    async def ask(connection: Connection) -> dict[int, Committed]:
        async with requiring(router, pb.OP_GROUP, group, pb.RES_GROUP):
            route = await router.topic(topic)
        if topic_id is not None and route.topic_id != topic_id:
            raise deleted_topic_error(topic)
        held = done.setdefault(route.topic_id, {})
        refused = await list_offsets.beyond_ends(router, topic, route.topic_id, positions)
        to_commit = [each for each in positions.items() if each[0] not in held and each[0] not in refused]
        for part in in_requests(to_commit):
            envelope = pb.Envelope(commit=pb.Commit(group=group, reset=reset))
            entries = envelope.commit.entries
            async for some in in_slices(part):
                for partition, next_offset in some:
                    # A reset refers to the current log, not to records that this client has read before.
                    epoch = None if reset else router.read_epochs.at(route.topic_id, partition, next_offset)
                    entries.add(
                        topic_id=route.topic_id,
                        partition=partition,
                        next_offset=next_offset,
                        note=note,
                        record_epoch=epoch,
                    )
            reply = (await router.call(connection, envelope)).envelope.commit_reply
            note_forwarded(router, reply)
            results = results_of(reply.results, len(part), connection)
            async for some_results in in_slices(results):
                stored = [one for one in some_results if not one.HasField("error")]
                held |= {each.partition: each for each in committed_of(stored, {route.topic_id: topic})}
            failures = [error_of(one.error, connection.name) for one in results if one.HasField("error")]
            for failure in sorted(failures, key=lambda each: each.retriable):
                raise failure
        for refusal in refused.values():
            raise refusal
        return {partition: held[partition] for partition in positions if partition in held}

    # Repeating a commit is safe, as positions only move forward. A late copy of a reset could undo a newer reset, so a
    # reset is sent to one node at a time.
    try:
        return await router.retry_for_topic(
            topic, lambda: at_coordinator(router, group, ask, repeatable=not reset), repeatable=True
        )
    except TidelogError as error:
        route = router.metadata.topic(topic)
        attach_done(error, done.get(topic_id or (route.topic_id if route is not None else b""), {}), "committed")
        raise


async def commit_topics(
    router: Router,
    group: str,
    positions: Mapping[TopicPartition, int],
    *,
    note: str,
    topic_ids: Mapping[str, bytes],
) -> Commits:
    """Commit a group's positions topic by topic, until a topic fails.

    The result lists all positions of the failed topic as failed, and does not contain those of the remaining topics.

    Args:
        topic_ids: the id that each topic must have; topics that are missing here may have any id.
    """
    by_topic: dict[str, dict[int, int]] = {}
    for where, offset in positions.items():
        by_topic.setdefault(where.topic, {})[where.partition] = offset
    commits = Commits({}, {})
    for topic, of_topic in by_topic.items():
        try:
            stored = await commit(router, group, topic, of_topic, reset=False, note=note, topic_id=topic_ids.get(topic))
        except TidelogError as error:
            commits.failed.update({TopicPartition(topic, partition): error for partition in of_topic})
            break
        commits.held.update({TopicPartition(topic, partition): each for partition, each in stored.items()})
    return commits
