"""DELETE_RECORDS at a node: effects and refusals."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.broker.founded import Founded
from tests.broker.peer import Peer, batch

from tidelog_broker.core.topics import META_TOPIC_ID, OFFSETS_TOPIC_ID
from tidelog_broker.node.node import Node
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.limits import ENTRIES_PER_REQUEST_MAX

US = 1_000_000
YEAR_10000_US = 253_402_300_800 * US


async def delete(peer: Peer, *entries: pb.DeleteRecordsEntry) -> list[pb.DeleteRecordsResult]:
    frame = await peer.ask(delete_records=pb.DeleteRecords(entries=entries))
    assert frame.envelope.WhichOneof("kind") == "delete_records_reply", frame.envelope
    return list(frame.envelope.delete_records_reply.results)


def entry(topic_id: bytes, partition: int = 0, **before: int) -> pb.DeleteRecordsEntry:
    return pb.DeleteRecordsEntry(topic_id=topic_id, partition=partition, **before)


@pytest.fixture
async def topic_id(peer: Peer) -> bytes:
    """Two partitions; the first has ten records, a second apart."""
    topic = await peer.create(partitions=2)
    stamps = [(100 + second) * US for second in range(10)]
    await peer.publish(topic.topic_id, batch(*[b"x"] * 10, timestamps_us=stamps))
    return topic.topic_id


async def test_deletion_by_offset_inside_a_batch(peer: Peer, topic_id: bytes) -> None:
    told = await delete(
        peer,
        entry(topic_id, offset=4),
        entry(topic_id, 1, offset=0),
        entry(topic_id, offset=2),
        entry(topic_id, 9, offset=0),
    )
    assert [(one.log_start_offset, one.error.code) for one in told] == [
        (4, 0),
        (0, 0),
        (4, 0),
        (0, pb.UNKNOWN_PARTITION),
    ], "each has its own result, in order"
    gone = (await peer.reply(peer.post_fetch(topic_id, 3))).envelope.fetch_reply.results[0].error
    assert (gone.code, gone.log_start_offset, gone.high_watermark) == (pb.OFFSET_OUT_OF_RANGE, 4, 10)
    assert len((await peer.fetch(topic_id, 4))[0].slice_from(4)) == 6


@pytest.mark.parametrize(
    ("timestamp_us", "start"),
    [
        (0, 0),
        (-(2**63), 0),
        (-62_135_596_800 * US, 0),
        (100 * US, 0),
        (104 * US - 1, 4),
        (104 * US, 4),
        (109 * US + 1, 10),
        (YEAR_10000_US, 10),
        (2**63 - 1, 10),
    ],
)
async def test_deletion_by_time_stops_at_the_first_newer_record(
    peer: Peer, topic_id: bytes, timestamp_us: int, start: int
) -> None:
    (told,) = await delete(peer, entry(topic_id, timestamp_us=timestamp_us))
    assert (told.log_start_offset, told.error.code) == (start, 0)
    (again,) = await delete(peer, entry(topic_id, timestamp_us=timestamp_us))
    assert again.log_start_offset == start, "doing it again deletes no more"
    (empty,) = await delete(peer, entry(topic_id, 1, timestamp_us=timestamp_us))
    assert (empty.log_start_offset, empty.error.code) == (0, 0)


@pytest.mark.parametrize("offset", [11, 2**63, 2**64 - 1])
async def test_deletion_beyond_the_end_is_refused_with_the_bounds(peer: Peer, topic_id: bytes, offset: int) -> None:
    await delete(peer, entry(topic_id, offset=2))
    (told,) = await delete(peer, entry(topic_id, offset=offset))
    error = told.error
    assert (error.code, error.log_start_offset, error.high_watermark) == (pb.OFFSET_OUT_OF_RANGE, 2, 10)
    assert (error.definite, error.retriable) == (True, False)
    (all_of_it,) = await delete(peer, entry(topic_id, offset=10))
    assert all_of_it.log_start_offset == 10


async def test_deletion_in_unknown_or_internal_partitions_is_refused(peer: Peer, topic_id: bytes) -> None:
    told = await delete(
        peer,
        entry(b"?" * 16, offset=0),
        entry(b"", offset=0),
        entry(topic_id, 2, offset=0),
        entry(topic_id, 2**32 - 1, timestamp_us=0),
        entry(META_TOPIC_ID, offset=0),
        entry(OFFSETS_TOPIC_ID, timestamp_us=0),
        entry(topic_id),
    )
    assert [one.error.code for one in told] == [
        pb.UNKNOWN_TOPIC,
        pb.UNKNOWN_TOPIC,
        pb.UNKNOWN_PARTITION,
        pb.UNKNOWN_PARTITION,
        pb.FORBIDDEN,
        pb.FORBIDDEN,
        pb.INVALID_REQUEST,
    ]
    assert "partitions 0 to 1, got 2" in told[2].error.message
    assert all(one.error.definite and not one.error.retriable for one in told)


@pytest.mark.parametrize("count", [0, ENTRIES_PER_REQUEST_MAX + 1])
async def test_number_of_partitions_in_a_deletion_is_limited(peer: Peer, topic_id: bytes, count: int) -> None:
    many = pb.DeleteRecords(entries=[entry(topic_id, offset=1)] * count)
    refused = await peer.refused(delete_records=many)
    assert (refused.code, str(count) in refused.message) == (pb.INVALID_REQUEST, True)
    assert (await peer.fetch(topic_id))[0].base_offset == 0, "nothing of it was done"


async def alter(peer: Peer, **config: Any) -> None:
    envelope = (await peer.ask(topic_alter=pb.TopicAlter(name="t", **config))).envelope
    assert envelope.WhichOneof("kind") == "topic_reply", envelope


@pytest.mark.parametrize("before", [{"offset": 3}, {"timestamp_us": 103 * US}])
async def test_deletion_in_a_topic_on_hold_is_refused(peer: Peer, topic_id: bytes, before: dict[str, int]) -> None:
    await alter(peer, hold=True)
    (told,) = await delete(peer, entry(topic_id, **before))
    assert (told.error.code, "on hold" in told.error.message) == (pb.FORBIDDEN, True)
    assert (await peer.fetch(topic_id))[0].base_offset == 0
    await alter(peer, hold=False)
    (told,) = await delete(peer, entry(topic_id, **before))
    assert told.log_start_offset == 3


async def test_deletion_in_a_deleted_and_a_recreated_topic(peer: Peer, topic_id: bytes) -> None:
    await peer.delete("t")
    again = await peer.create()
    await peer.publish(again.topic_id, batch(b"a", b"b"))
    old, new = await delete(peer, entry(topic_id, offset=1), entry(again.topic_id, offset=1))
    assert (old.error.code, new.log_start_offset) == (pb.UNKNOWN_TOPIC, 1)


async def test_deletion_in_an_added_partition(peer: Peer, topic_id: bytes) -> None:
    (early,) = await delete(peer, entry(topic_id, 2, offset=0))
    assert early.error.code == pb.UNKNOWN_PARTITION
    await alter(peer, partitions=3)
    await peer.publish(topic_id, batch(b"a"), partition=2)
    (told,) = await delete(peer, entry(topic_id, 2, offset=1))
    assert (told.log_start_offset, told.error.code) == (1, 0)


async def test_deletion_by_time_spares_concurrent_appends(node: Node, peer: Peer, topic_id: bytes) -> None:
    """Deletion by a time after all records deletes up to the current end, never records published later."""

    async def publish() -> None:
        for number in range(50):
            await peer.publish(topic_id, batch(b"%d" % number, timestamps_us=[(200 + number) * US]))

    publishing = asyncio.create_task(publish())
    starts: list[int] = []
    while not publishing.done():
        (told,) = await delete(peer, entry(topic_id, timestamp_us=190 * US))
        starts.append(told.log_start_offset)
    await publishing
    assert set(starts) == {10}, "records that are not older than the time are gone"
    state = node.broker.partitions.get(topic_id, 0).state
    assert (state.log_start, state.high_watermark) == (10, 60)


async def test_any_node_forwards_a_deletion_to_the_owner(founded: Founded) -> None:
    await founded.found()
    await founded.settled()
    first = await founded.peer("a")
    topic = await first.create(partitions=3, replication_factor=3)
    for index in range(3):
        await founded.publish(first, topic.topic_id, b"a", b"b", partition=index)
    for start, name in enumerate("abc"):
        peer = await founded.peer(name)
        told = await delete(peer, *(entry(topic.topic_id, index, offset=index) for index in range(3)))
        assert [one.log_start_offset for one in told] == [0, 1, 2], f"asked of {name}, number {start}"
        told = await delete(peer, *(entry(topic.topic_id, index, offset=3) for index in range(3)))
        assert [(one.error.code, one.error.high_watermark) for one in told] == [(pb.OFFSET_OUT_OF_RANGE, 2)] * 3
        (unset,) = await delete(peer, entry(topic.topic_id))
        assert unset.error.code == pb.INVALID_REQUEST
