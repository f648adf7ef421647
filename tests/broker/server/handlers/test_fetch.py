from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest
from tests.broker.peer import NOW_US, Peer, batch, batches_of
from tests.broker.stand import Stand, settled

from tidelog_broker.node.node import Node
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import Codec
from tidelog_proto.limits import KIB, SEGMENT_BYTES_MIN


async def located(peer: Peer, topic_id: bytes, partition: int = 0, **at: object) -> pb.ListOffsetsResult:
    entry = pb.ListOffsetsEntry(topic_id=topic_id, partition=partition, **at)  # type: ignore[arg-type]  # one of three
    frame = await peer.ask(list_offsets=pb.ListOffsets(entries=[entry]))
    return frame.envelope.list_offsets_reply.results[0]


def waits(node: Node, topic_id: bytes, count: int = 1, partition: int = 0) -> Callable[[], bool]:
    return lambda: len(node.broker.partitions.get(topic_id, partition).changes.listeners) == count


async def test_append_wakes_a_long_poll(node: Node, peer: Peer) -> None:
    topic = await peer.create()
    number = peer.post_fetch(topic.topic_id, min_bytes=1, wait_ms=60_000)
    await settled(waits(node, topic.topic_id), "the fetch does not wait")
    await peer.publish(topic.topic_id, batch(b"news"))
    assert batches_of(await peer.reply(number))[0].values() == [b"news"]
    assert not node.broker.partitions.get(topic.topic_id, 0).changes.listeners


async def test_expired_long_poll_is_answered_empty(peer: Peer) -> None:
    topic = await peer.create()
    frame = await peer.reply(peer.post_fetch(topic.topic_id, min_bytes=1, wait_ms=20))
    (result,) = frame.envelope.fetch_reply.results
    assert (result.length, result.next_offset, result.high_watermark) == (0, 0, 0)


async def test_fetch_without_a_wait_is_answered_at_once(peer: Peer) -> None:
    topic = await peer.create()
    assert await peer.fetch(topic.topic_id) == []
    assert await peer.fetch(topic.topic_id, min_bytes=1) == []


async def test_fetch_waits_for_min_bytes(node: Node, peer: Peer) -> None:
    topic = await peer.create()
    number = peer.post_fetch(topic.topic_id, min_bytes=1000, wait_ms=60_000)
    await settled(waits(node, topic.topic_id), "the fetch does not wait")
    await peer.publish(topic.topic_id, batch(b"little"))
    assert not peer.answered(number)
    await peer.publish(topic.topic_id, batch(b"x" * 1000))
    found = batches_of(await peer.reply(number))
    assert [one.values() for one in found] == [[b"little"], [b"x" * 1000]]


async def test_min_bytes_is_capped_at_max_bytes(peer: Peer) -> None:
    topic = await peer.create()
    await peer.publish(topic.topic_id, batch(b"x" * 500), batch(b"x" * 500))
    assert len(await peer.fetch(topic.topic_id, min_bytes=10_000_000, max_bytes=100, wait_ms=60_000)) == 1


async def test_append_to_one_of_many_partitions_wakes_the_fetch(node: Node, peer: Peer) -> None:
    topic = await peer.create(partitions=5)
    entries = [pb.FetchEntry(topic_id=topic.topic_id, partition=index) for index in range(5)]
    number = peer.post(fetch=pb.Fetch(entries=entries, min_bytes=1, wait_ms=60_000))
    await settled(waits(node, topic.topic_id, partition=4), "the fetch does not wait")
    await peer.publish(topic.topic_id, batch(b"in three"), partition=3)
    frame = await peer.reply(number)
    lengths = [result.length for result in frame.envelope.fetch_reply.results]
    assert [index for index, length in enumerate(lengths) if length] == [3]
    assert sum(lengths) == len(frame.attachment)
    assert all(not partition.changes.listeners for partition in node.broker.partitions.of_topic(topic.topic_id))


async def test_fetch_entries_fail_individually(peer: Peer) -> None:
    topic = await peer.create(partitions=2)
    await peer.publish(topic.topic_id, batch(b"a", b"b"))
    entries = [
        pb.FetchEntry(topic_id=topic.topic_id, offset=3),
        pb.FetchEntry(topic_id=topic.topic_id),
        pb.FetchEntry(topic_id=topic.topic_id, partition=2),
        pb.FetchEntry(topic_id=b"?" * 16),
    ]
    frame = await peer.ask(fetch=pb.Fetch(entries=entries, min_bytes=10**6, wait_ms=60_000))
    beyond, good, no_partition, no_topic = frame.envelope.fetch_reply.results
    assert beyond.error.code == pb.OFFSET_OUT_OF_RANGE
    assert (beyond.error.log_start_offset, beyond.error.high_watermark) == (0, 2)
    assert not good.HasField("error")
    assert (good.length, good.next_offset) == (len(frame.attachment), 2)
    assert no_partition.error.code == pb.UNKNOWN_PARTITION
    assert no_topic.error.code == pb.UNKNOWN_TOPIC


@pytest.mark.parametrize("count", [0, 4097])
async def test_number_of_partitions_in_a_fetch_is_limited(peer: Peer, count: int) -> None:
    entries = [pb.FetchEntry()] * count
    assert (await peer.refused(fetch=pb.Fetch(entries=entries))).code == pb.INVALID_REQUEST


@pytest.mark.parametrize("ring_bytes", [0, 2 * KIB, 16 * 1024 * KIB])
async def test_ring_and_log_return_equal_batches(stand: Stand, ring_bytes: int) -> None:
    await stand.start(ring_bytes=ring_bytes)
    peer = await stand.peer()
    topic = await peer.create(segment_bytes=64 * KIB)
    values: list[bytes | None] = []
    for number in range(40):
        group = [f"{number}-{index}".encode() * 50 for index in range(3)]
        await peer.publish(topic.topic_id, batch(*group))
        values += group
    for offset in range(0, 120, 7):
        (first, *_) = await peer.fetch(topic.topic_id, offset, max_bytes=1)
        assert first.base_offset <= offset < first.end_offset
        assert first.slice_from(offset).values() == values[offset : first.end_offset]
    assert await peer.read_all(topic.topic_id) == values
    assert await peer.fetch(topic.topic_id, 120) == []


@pytest.mark.parametrize("ring_bytes", [0, 16 * 1024 * KIB])
async def test_max_bytes_limits_the_answer_beyond_the_first_batch(stand: Stand, ring_bytes: int) -> None:
    await stand.start(ring_bytes=ring_bytes)
    peer = await stand.peer()
    topic = await peer.create(partitions=2)
    for partition in (0, 1):
        await peer.publish(topic.topic_id, *[batch(b"x" * 1000)] * 10, partition=partition)
    size_bytes = len(batch(b"x" * 1000))
    assert len(await peer.fetch(topic.topic_id, max_bytes=1)) == 1
    assert 2 <= len(await peer.fetch(topic.topic_id, max_bytes=3 * size_bytes)) <= 3, "the log counts padding, too"
    entries = [
        pb.FetchEntry(topic_id=topic.topic_id, partition=0, max_bytes=2 * size_bytes),
        pb.FetchEntry(topic_id=topic.topic_id, partition=1),
    ]
    frame = await peer.ask(fetch=pb.Fetch(entries=entries, max_bytes=5 * size_bytes))
    first, second = (result.length // size_bytes for result in frame.envelope.fetch_reply.results)
    assert 1 <= first <= 2
    assert 2 <= second <= 5 - first


async def test_topic_deletion_ends_a_long_poll(node: Node, stand: Stand, peer: Peer) -> None:
    topic = await peer.create()
    waiting = await stand.peer()
    number = waiting.post_fetch(topic.topic_id, min_bytes=1, wait_ms=60_000)
    await settled(waits(node, topic.topic_id), "the fetch does not wait")
    await peer.delete("t")
    frame = await waiting.reply(number)
    assert frame.envelope.fetch_reply.results[0].error.code == pb.UNKNOWN_TOPIC


async def test_offset_by_time_equals_a_linear_scan(peer: Peer) -> None:
    """Timestamps go up, down and repeat, within batches and between them; a batch may be compressed."""
    rng = random.Random(20)
    topic = await peer.create(segment_bytes=64 * KIB)
    stamps: list[int] = []
    for number in range(30):
        group = [NOW_US + number * 10 + rng.randint(-60, 60) for _ in range(rng.randint(1, 4))]
        codec = rng.choice(list(Codec))
        await peer.publish(topic.topic_id, batch(*[b"v" * 900] * len(group), timestamps_us=group, codec=codec))
        stamps += group
    for asked in [min(stamps) - 1, *sorted(set(stamps))[::3], max(stamps), max(stamps) + 1]:
        expected = next(((offset, stamp) for offset, stamp in enumerate(stamps) if stamp >= asked), None)
        result = await located(peer, topic.topic_id, timestamp_us=asked)
        assert result.found == (expected is not None)
        assert (result.offset, result.timestamp_us) == (expected or (len(stamps), 0))


async def test_earliest_and_latest_follow_retention_and_appends(stand: Stand) -> None:
    node = await stand.start(retention_interval_ms=20)
    peer = await stand.peer()
    topic = await peer.create(segment_bytes=64 * KIB, retention_bytes=128 * KIB)
    for _ in range(10):
        await peer.publish(topic.topic_id, batch(b"x" * 40_000))
    partition = node.broker.partitions.get(topic.topic_id, 0)
    await settled(lambda: partition.log.size_bytes <= 128 * KIB, "not enough was deleted")
    assert partition.state.log_start > 0
    earliest = await located(peer, topic.topic_id, earliest=True)
    latest = await located(peer, topic.topic_id, latest=True)
    epoch = (await peer.reply(peer.post_fetch(topic.topic_id))).envelope.fetch_reply.results[0].epoch
    assert earliest.HasField("epoch")
    assert (earliest.epoch, latest.epoch) == (epoch, epoch)
    assert earliest.offset == earliest.log_start_offset == partition.state.log_start
    assert (latest.offset, latest.high_watermark) == (10, 10)
    frame = await peer.reply(peer.post_fetch(topic.topic_id, 0))
    error = frame.envelope.fetch_reply.results[0].error
    assert (error.code, error.log_start_offset) == (pb.OFFSET_OUT_OF_RANGE, earliest.offset)


async def test_list_offsets_of_unknown_partitions_is_refused(peer: Peer) -> None:
    topic = await peer.create()
    assert (await located(peer, topic.topic_id, partition=1, latest=True)).error.code == pb.UNKNOWN_PARTITION
    assert (await located(peer, b"?" * 16, latest=True)).error.code == pb.UNKNOWN_TOPIC
    assert (await located(peer, topic.topic_id)).error.code == pb.INVALID_REQUEST
    nothing = await located(peer, topic.topic_id, timestamp_us=0)
    assert (nothing.found, nothing.offset) == (False, 0)


@pytest.mark.parametrize("reading", ["mapped", "file"])
async def test_truncated_segment_fails_only_its_topic(stand: Stand, reading: str) -> None:
    await stand.start(ring_bytes=0, segment_read=reading, segment_write="mapped")
    peer = await stand.peer()
    cut, whole = [await peer.create(name, segment_bytes=SEGMENT_BYTES_MIN) for name in ("cut", "whole")]
    values = [bytes([number]) * 100_000 for number in range(3)]
    for topic in (cut, whole):
        for value in values:
            await peer.publish(topic.topic_id, batch(value))
        assert await peer.read_all(topic.topic_id) == values
    segment = min(stand.path.glob("partitions/cut.*/epoch-*/*.seg"))
    os.truncate(segment, 50_000)
    frame = await peer.reply(peer.post_fetch(cut.topic_id))
    (result,) = frame.envelope.fetch_reply.results
    assert result.error.code == pb.LIMBO, result
    assert await peer.read_all(whole.topic_id) == values
    assert [one.values() for one in await peer.fetch(cut.topic_id, 1, max_bytes=1)] == [[values[1]]]
