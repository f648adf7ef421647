"""Lookup of the newest record of a key, in one request; for nodes of 0.2.0 and before its offset, then the record."""

from __future__ import annotations

from typing import Any, Final

from tidelog.cluster.answers import results_of
from tidelog.cluster.fallback_replicas import ReadReplica
from tidelog.cluster.routing import Router
from tidelog.errors import EpochChangingError, OffsetOutOfRangeError, error_of
from tidelog.model import ConsumedBatch, Record, TopicPartition
from tidelog.requests import fetch_and_commit, list_offsets
from tidelog.requests.conversions import NewestOf
from tidelog.requests.needed_permission import requiring
from tidelog.requests.record_filters import check_key
from tidelog.rows.row_writer import row_writer
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.json_view import json_values
from tidelog_proto.batch.key_partitions import partition_for_key
from tidelog_proto.batch.record_batch import RecordBatch, plain_columns_of
from tidelog_proto.hello_features import NEWEST_RECORD

_TRIES_MAX: Final = 8
"""Maximum number of attempts with two requests; one fails if a newer record replaces the found one between them."""


class _NeedsTwoRequestsError(Exception):
    """The owner does not support the search for a newest record in a fetch."""


async def newest_of_key(
    router: Router, topic: str, key: Any, partition: int | None, *, as_json: bool = False
) -> Record | None:
    """Return the newest committed record of a key, or None. See `Client.get`.

    Args:
        as_json: whether the row of a typed topic is returned as JSON.
    """
    if not isinstance(key, bytes):
        typed = await router.topic(topic)
        if typed.schema_number:
            key = row_writer(await router.schemas.refresh(typed.topic_id)).key_of(key)
    check_key(key)
    if partition is None:
        route = router.metadata.topic(topic)
        if route is None:
            async with requiring(router, pb.OP_CONSUME, topic):
                route = await router.retry_for_topic(topic, lambda: router.topic(topic), repeatable=True)
        partition = partition_for_key(key, len(route.partitions))
    where = TopicPartition(topic, partition)
    try:
        return await router.retry_for_topic(
            topic, lambda: _newest_record(router, where, key, as_json), repeatable=True, partition=partition
        )
    except _NeedsTwoRequestsError:
        return await _in_two_requests(router, where, key, as_json)


async def _newest_record(router: Router, where: TopicPartition, key: bytes, as_json: bool) -> Record | None:
    """Fetch the newest record of a key from the owner of its partition; one attempt.

    Raises:
        _NeedsTwoRequestsError: the owner does not support this.
        TidelogError: the search failed.
    """
    replica = router.fallback_replicas.owner_now(*where)
    if replica is None:
        async with requiring(router, pb.OP_CONSUME, where.topic):
            replica = await router.reading_connection(*where)
    if NEWEST_RECORD not in replica.connection.greeting.features:
        raise _NeedsTwoRequestsError
    return await _ask(router, replica, where, key, as_json)


async def _ask(router: Router, replica: ReadReplica, where: TopicPartition, key: bytes, as_json: bool) -> Record | None:
    topic, partition = where
    route = router.metadata.topic(topic) or await router.topic_now(topic)
    entry = pb.FetchEntry(topic_id=route.topic_id, partition=partition, filter=pb.RecordFilter(key=key), newest=True)
    frame = await router.call_reader((where,), replica, pb.Envelope(fetch=pb.Fetch(entries=[entry])))
    (result,) = results_of(frame.envelope.fetch_reply.results, 1, replica.connection)
    if result.HasField("error"):
        raise error_of(result.error, replica.connection.name)
    router.known_ends.note(route.topic_id, partition, epoch=result.epoch, end_offset=result.high_watermark)
    if not result.searched:
        raise EpochChangingError(
            f"{replica.connection.name} has not searched {topic!r}/{partition}, because the read quota is used up; try "
            "again"
        )
    layouts = await fetch_and_commit.layouts_for(router, route.topic_id, frame.attachment)
    batches = fetch_and_commit.parse_batches(frame.attachment, where, 0, layouts=layouts)
    router.read_epochs.read(route.topic_id, partition, batches)
    if not batches:
        return None
    if batches[-1].layout is not None:
        newest = router.schemas.newest(route.topic_id)
        return _rows(ConsumedBatch(*where, batches[-1], newest), as_json)[-1]
    return _last_record(where, batches[-1])


def _rows(batch: ConsumedBatch, as_json: bool) -> list[Record]:
    """Return the records of a batch; the rows of a typed one as dictionaries or JSON."""
    reader = batch.reader()
    if reader is None or not as_json:
        return list(batch)
    values = json_values(reader, batch.batch)
    return [record._replace(value=value) for record, value in zip(batch, values, strict=True)]


def _last_record(where: TopicPartition, batch: RecordBatch) -> Record:
    """Return the last record of a batch; without pyarrow if the batch is plain, see `plain_columns.py`."""
    columns = plain_columns_of(batch)
    if columns is None:
        *_, record = batch
        return Record(where.topic, where.partition, *record)
    key, value, tag = (None if one is None else one.data[one.offsets[-2] : one.offsets[-1]] for one in columns[1:])
    stamps, header = columns.timestamps_us, batch.header
    return Record(
        topic=where.topic,
        partition=where.partition,
        offset=batch.end_offset - 1,
        timestamp_us=header.base_timestamp_us if stamps is None else stamps[-1],
        key=key,
        value=value,
        headers=(),
        tag=None if tag is None else tag.decode(),
    )


async def _in_two_requests(router: Router, where: TopicPartition, key: bytes, as_json: bool) -> Record | None:
    """Look up the offset of a key's newest record, then fetch it."""
    topic, partition = where
    for _ in range(_TRIES_MAX):
        async with requiring(router, pb.OP_CONSUME, topic):
            place = (await list_offsets.list_offsets(router, topic, NewestOf(key), [partition]))[partition]
        if not place.found:
            return None
        try:
            fetched = await fetch_and_commit.fetch(
                router, topic, partition, place.offset, max_bytes=1, min_bytes=1, wait_ms=0, key=key
            )
        except OffsetOutOfRangeError:
            continue
        for batch in fetched.batches:
            for record in _rows(ConsumedBatch(topic, partition, batch), as_json):
                if record.offset == place.offset:
                    return record
    raise EpochChangingError(
        f"the newest record with key {key!r:.80} in {topic}/{partition} was replaced during each of {_TRIES_MAX} "
        "reads; try again"
    )
