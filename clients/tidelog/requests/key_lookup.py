"""Lookup of the newest record of a key: its offset, then the record."""

from __future__ import annotations

from typing import Final

from tidelog.cluster.routing import Router
from tidelog.errors import EpochChangingError, OffsetOutOfRangeError
from tidelog.model import Record
from tidelog.requests import fetch_and_commit, list_offsets
from tidelog.requests.conversions import NewestOf
from tidelog.requests.needed_permission import requiring
from tidelog.requests.record_filters import check_key
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.key_partitions import partition_for_key

_TRIES_MAX: Final = 8
"""Maximum number of attempts; one fails if a newer record replaces the found one between its two requests."""


async def newest_of_key(router: Router, topic: str, key: bytes, partition: int | None) -> Record | None:
    """Return the newest committed record of a key, or None. See `Client.get`."""
    check_key(key)
    if partition is None:
        async with requiring(router, pb.OP_CONSUME, topic):
            route = await router.retry_for_topic(topic, lambda: router.topic(topic), repeatable=True)
        partition = partition_for_key(key, len(route.partitions))
    for _ in range(_TRIES_MAX):
        async with requiring(router, pb.OP_CONSUME, topic):
            place = (await list_offsets.list_offsets(router, topic, NewestOf(key), [partition]))[partition]
        if not place.found:
            return None
        try:
            fetched = await fetch_and_commit.fetch(
                router,
                topic,
                partition,
                place.offset,
                max_bytes=1,
                min_bytes=1,
                wait_ms=0,
                key=key,
            )
        except OffsetOutOfRangeError:
            continue
        for batch in fetched.batches:
            for record in batch:
                if record.offset == place.offset:
                    return Record(topic, partition, *record)
    raise EpochChangingError(
        f"the newest record with key {key!r:.80} in {topic}/{partition} was replaced during each of {_TRIES_MAX} "
        "reads; try again"
    )
