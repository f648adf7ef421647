"""Deduplication by content at real nodes: dropped records, the answers, and the state after a crash or takeover."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest
from tests.broker.founded import Founded
from tests.broker.peer import Peer, batch
from tests.broker.stand import Stand, settled

from tidelog_broker.core.deduplication_window import DeduplicationWindow
from tidelog_broker.node.node import Node
from tidelog_broker.partition import content_history
from tidelog_broker.partition.deduplication import INLINE_RECORDS
from tidelog_broker.partition.partition import Partition
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.columns import Headers
from tidelog_proto.batch.header import Codec
from tidelog_proto.batch.record_batch import RecordBatch, columns_of, encode_batch


def of(node: Node, topic: pb.TopicInfo) -> Partition:
    return node.broker.partitions.get(topic.topic_id, 0)


async def values_of(peer: Peer, topic: pb.TopicInfo) -> list[bytes | None]:
    """Return what a consumer would see, and that the batches of the log follow each other."""
    values: list[bytes | None] = []
    at = 0
    while found := await peer.fetch(topic.topic_id, at):
        for one in found:
            assert one.base_offset == at
            at = one.end_offset
            values += [] if one.control else one.values()
    return values


async def one(peer: Peer, topic: pb.TopicInfo, data: bytes) -> pb.PublishResult:
    (result,) = await peer.publish(topic.topic_id, data)
    assert not result.HasField("error"), result
    return result


async def test_duplicates_in_the_window_are_dropped_and_reported(peer: Peer) -> None:
    topic = await peer.create(deduplicate_records=100)
    first = await one(peer, topic, batch(b"a", b"b", b"a"))
    assert (first.base_offset, first.duplicates, first.dropped) == (0, 1, b"\x04")
    again = await one(peer, topic, batch(b"c", b"a", b"d", b"b"))
    assert (again.base_offset, again.duplicates, again.dropped) == (2, 2, b"\x0a")
    none = await one(peer, topic, batch(b"c", b"d"))
    assert (none.duplicates, none.dropped) == (2, b"")
    fresh = await one(peer, topic, batch(b"e"))
    assert (fresh.base_offset, fresh.duplicates) == (5, 0)  # a control batch precedes it
    assert await values_of(peer, topic) == [b"a", b"b", b"c", b"d", b"e"]


async def test_topic_without_deduplication_keeps_everything(node: Node, peer: Peer) -> None:
    topic = await peer.create()
    for _ in range(2):
        assert (await one(peer, topic, batch(b"a", b"a"))).duplicates == 0
    assert await values_of(peer, topic) == [b"a"] * 4
    assert of(node, topic).deduplication.window_records is None


async def test_content_excludes_the_timestamp(peer: Peer) -> None:
    topic = await peer.create(deduplicate_records=100)

    def record(
        value: bytes | None, key: bytes | None = None, tag: str | None = None, headers: Headers = (), at_us: int = 1
    ) -> bytes:
        columns = columns_of([value], keys=[key], tags=[tag], headers=[headers], timestamps_us=[at_us])
        return encode_batch(columns, now_us=1).to_bytes()

    different = [
        record(None),
        record(b""),
        record(b"a"),
        record(b"a", b""),
        record(b"a", b"a"),
        record(b"", b"aa"),
        record(b"a", tag=""),
        record(b"a", tag="a"),
        record(b"a", headers=(("a", None),)),
        record(b"a", headers=(("a", b""),)),
        record(b"a", headers=(("", b"a"),)),
        record(b"a", headers=(("a", b""), ("b", b""))),
        record(b"a", headers=(("b", b""), ("a", b""))),
        record(bytes(256)),
        record(bytes(257)),
        record(bytes(300)),
    ]
    for data in different:
        assert (await one(peer, topic, data)).duplicates == 0
    for data in different:
        assert (await one(peer, topic, data)).duplicates == 1
    assert (await one(peer, topic, record(b"a", b"a", at_us=2))).duplicates == 1
    assert (await one(peer, topic, batch(b"a"))).duplicates == 1  # without columns for missing values


async def test_sequences_of_dropped_records_are_used_and_retries_get_the_same_answer(stand: Stand) -> None:
    node = await stand.start()
    peer = await stand.peer()
    topic = await peer.create(deduplicate_records=100)
    await one(peer, topic, batch(b"a", b"b", producer_id=1))
    thinned = batch(b"a", b"c", b"b", producer_id=2)
    dropped = batch(b"a", b"b", producer_id=2, sequence=3)
    told = [await one(peer, topic, data) for data in (thinned, dropped)]
    assert [result.duplicates for result in told] == [2, 2]
    assert [result.dropped for result in told] == [b"\x05", b""]

    async def check(peer: Peer) -> None:
        for data, before in zip((thinned, dropped), told, strict=True):
            again = await one(peer, topic, data)
            assert again.duplicate
            assert (again.base_offset, again.duplicates, again.dropped) == (
                before.base_offset,
                before.duplicates,
                before.dropped,
            )

    await check(peer)
    assert of(node, topic).state.high_watermark == 4
    await stand.crash()
    node = await stand.start()
    peer = await stand.peer()
    await check(peer)
    (gap,) = await peer.publish(topic.topic_id, batch(b"z", producer_id=2, sequence=6))
    assert gap.error.code == pb.SEQUENCE_GAP
    assert (await one(peer, topic, batch(b"d", b"a", producer_id=2, sequence=5))).duplicates == 1
    assert await values_of(peer, topic) == [b"a", b"b", b"c", b"d"]


async def test_different_batch_with_a_used_sequence_is_refused(stand: Stand) -> None:
    await stand.start()
    peer = await stand.peer()
    topic = await peer.create(deduplicate_records=100)
    await one(peer, topic, batch(b"a"))
    thinned, dropped = batch(b"a", b"b", producer_id=2), batch(b"a", producer_id=2, sequence=2)
    for data in (thinned, dropped):
        await one(peer, topic, data)
    for data in (batch(b"c", b"d", producer_id=2), batch(b"e", producer_id=2, sequence=2)):
        (refused,) = await peer.publish(topic.topic_id, data)
        assert refused.error.code == pb.PRODUCER_ID_SHARED
    for data in (thinned, dropped):
        assert (await one(peer, topic, data)).duplicate
    assert await values_of(peer, topic) == [b"a", b"b"]


async def test_refused_batch_does_not_change_the_window(peer: Peer) -> None:
    topic = await peer.create(deduplicate_records=100)
    (refused,) = await peer.publish(topic.topic_id, batch(b"a", producer_id=1, sequence=7))
    assert refused.error.code == pb.UNKNOWN_PRODUCER
    stored = await one(peer, topic, batch(b"a", producer_id=1))
    assert (stored.duplicates, stored.base_offset) == (0, 0)


async def test_client_cannot_set_a_span(peer: Peer) -> None:
    topic = await peer.create(deduplicate_records=100)
    header = RecordBatch.parse(batch(b"a")).header._replace(sequence_span=2)
    (refused,) = await peer.publish(topic.topic_id, header.pack() + batch(b"a")[128:])
    assert refused.error.code == pb.UNSUPPORTED_BATCH


async def test_window_is_rebuilt_after_a_restart(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content_history, "RANGE_RECORDS", 7)
    monkeypatch.setattr(content_history, "READ_BYTES", 600)
    drawn = random.Random(1)
    node = await stand.start()
    peer = await stand.peer()
    topic = await peer.create(deduplicate_records=20)
    log: list[bytes] = []
    for number in range(60):
        if number % 20 == 19:
            await stand.crash()
            node = await stand.start()
            peer = await stand.peer()
        contents = [b"%d" % drawn.randrange(60) for _ in range(drawn.randrange(1, 6))]
        before, added = log[-20:], list[bytes]()
        for content in contents:
            if content not in before and content not in added:
                added.append(content)
        result = await one(peer, topic, batch(*contents))
        assert result.duplicates == len(contents) - len(added)
        log += added
    assert await values_of(peer, topic) == log
    assert of(node, topic).deduplication.window_records == 20


async def test_changed_settings_rebuild_the_window(node: Node, peer: Peer) -> None:
    topic = await peer.create("t")
    await one(peer, topic, batch(b"a", b"b", b"c"))

    async def alter(**settings: int) -> None:
        reply = await peer.ask(topic_alter=pb.TopicAlter(name="t", **settings))  # type: ignore[arg-type]  # of ints
        assert reply.envelope.WhichOneof("kind") == "topic_reply", reply.envelope

    await alter(deduplicate_records=2)
    assert [(await one(peer, topic, batch(value))).duplicates for value in (b"b", b"c")] == [1, 1]
    await alter(deduplicate_records=3)
    assert (await one(peer, topic, batch(b"a"))).duplicates == 1
    await alter(deduplicate_records=0, deduplicate_s=3600)
    assert (await one(peer, topic, batch(b"a"))).duplicates == 1
    assert node.broker.contents.used_bytes > 0
    await alter(deduplicate_s=0)
    assert (await one(peer, topic, batch(b"a"))).duplicates == 0
    assert node.broker.contents.used_bytes == 0
    refused = await peer.refused(topic_alter=pb.TopicAlter(name="t", deduplicate_s=1, cleanup=pb.COMPACT))
    assert refused.code == pb.INVALID_REQUEST


@pytest.mark.parametrize("work", ["step", "fill"])
async def test_window_being_read_for_older_settings_is_discarded(
    node: Node, peer: Peer, monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    topic = await peer.create("t")
    await one(peer, topic, batch(b"a", b"b", b"c"))
    may_end, is_at_work = threading.Event(), threading.Event()
    usual = getattr(content_history.ContentHistory, work)

    def held(self: content_history.ContentHistory, *args: DeduplicationWindow) -> None:
        is_at_work.set()
        assert may_end.wait(60)
        usual(self, *args)

    async def alter(records: int) -> None:
        reply = await peer.ask(topic_alter=pb.TopicAlter(name="t", deduplicate_records=records))
        assert reply.envelope.WhichOneof("kind") == "topic_reply", reply.envelope

    await alter(1)
    monkeypatch.setattr(content_history.ContentHistory, work, held)
    number = peer.post_publish(topic.topic_id, batch(b"a"), timeout_ms=20_000)
    await settled(is_at_work.is_set, "the window is not read")
    await alter(3)
    may_end.set()
    (result,) = await peer.published(number)
    assert result.duplicates == 1, "judged by a window of one record, though the topic asks for three"
    assert of(node, topic).deduplication.window_records == 3


async def test_batch_screened_by_the_window_of_older_settings_is_screened_again(
    node: Node, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await peer.create("t", deduplicate_records=1)
    await one(peer, topic, batch(b"a", b"b", b"c"))
    may_end, is_at_work = threading.Event(), threading.Event()
    usual = DeduplicationWindow.find

    def held(self: DeduplicationWindow, *args: Any, **named: Any) -> Any:
        found = usual(self, *args, **named)
        if not is_at_work.is_set():
            is_at_work.set()
            assert may_end.wait(60)
        return found

    monkeypatch.setattr(DeduplicationWindow, "find", held)
    long = [b"%d" % number for number in range(INLINE_RECORDS + 1)]
    number = peer.post_publish(topic.topic_id, batch(b"a", *long), timeout_ms=20_000)
    await settled(is_at_work.is_set, "the batch is not screened by another thread")
    reply = await peer.ask(topic_alter=pb.TopicAlter(name="t", deduplicate_records=10_000))
    assert reply.envelope.WhichOneof("kind") == "topic_reply", reply.envelope
    may_end.set()
    (result,) = await peer.published(number)
    assert result.duplicates == 1, "the window of one record did not have it"


async def test_window_that_is_filled_when_its_topic_is_deleted_gives_its_memory_back(
    node: Node, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await peer.create("t")
    await one(peer, topic, batch(b"a", b"b", b"c"))
    may_end, is_at_work = threading.Event(), threading.Event()
    usual = content_history.ContentHistory.fill

    def held(self: content_history.ContentHistory, window: DeduplicationWindow) -> None:
        is_at_work.set()
        assert may_end.wait(60)
        usual(self, window)

    reply = await peer.ask(topic_alter=pb.TopicAlter(name="t", deduplicate_records=10))
    assert reply.envelope.WhichOneof("kind") == "topic_reply", reply.envelope
    monkeypatch.setattr(content_history.ContentHistory, "fill", held)
    number = peer.post_publish(topic.topic_id, batch(b"a"), timeout_ms=20_000)
    await settled(is_at_work.is_set, "the window is not filled")
    assert node.broker.contents.used_bytes > 0
    deleted = peer.post(topic_delete=pb.TopicDelete(name="t"))
    await settled(lambda: node.broker.partitions.find((topic.topic_id, 0)) is None, "the topic stays")
    may_end.set()
    await peer.reply(deleted)
    await peer.published(number)
    await settled(lambda: node.broker.contents.used_bytes == 0, "the memory of the window is not given back")


async def test_window_is_bounded_by_time(node: Node, peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = await peer.create(deduplicate_s=10)
    await one(peer, topic, batch(b"a"))
    assert (await one(peer, topic, batch(b"a"))).duplicates == 1
    now_us = node.broker.clock.now_us
    monkeypatch.setattr(node.broker.clock, "now_us", lambda: now_us() + 9_000_000)
    assert (await one(peer, topic, batch(b"a"))).duplicates == 1
    monkeypatch.setattr(node.broker.clock, "now_us", lambda: now_us() + 12_000_000)
    assert (await one(peer, topic, batch(b"a"))).duplicates == 0


@pytest.mark.parametrize("codec", list(Codec))
async def test_long_batches_of_any_codec_are_screened(node: Node, peer: Peer, codec: Codec) -> None:
    topic = await peer.create(f"t-{codec.name.lower()}", deduplicate_records=50_000, flush=pb.NEVER)
    drawn = random.Random(2)
    values = [drawn.randbytes(drawn.choice([5, 60, 300])) for _ in range(9_000)]
    assert (await one(peer, topic, batch(*values[:6_000], codec=codec))).duplicates == 0
    numbers = [peer.post_publish(topic.topic_id, batch(*part, codec=codec)) for part in (values[3_000:], values[-10:])]
    results = [(await peer.published(number))[0] for number in numbers]
    assert [result.duplicates for result in results] == [3_000, 10]
    assert await values_of(peer, topic) == values
    assert of(node, topic).deduplication.window_records == 9_000


async def test_batches_of_too_many_records_are_refused(peer: Peer) -> None:
    topic = await peer.create(deduplicate_records=10)
    columns = columns_of([b""] * 65_537)
    (refused,) = await peer.publish(topic.topic_id, encode_batch(columns, now_us=1).to_bytes())
    assert refused.error.code == pb.BATCH_TOO_LARGE
    most = encode_batch(columns_of([b""] * 65_536), now_us=1).to_bytes()
    assert (await one(peer, topic, most)).duplicates == 65_535


async def test_publishes_are_refused_without_memory_for_the_window(stand: Stand) -> None:
    node = await stand.start(deduplication_bytes=1024 * 1024)
    peer = await stand.peer()
    topics = [await peer.create(f"t{number}", deduplicate_records=20_000) for number in range(8)]
    refused = 0
    for number, topic in enumerate(topics):
        (result,) = await peer.publish(topic.topic_id, batch(b"%d" % number))
        if result.HasField("error"):
            assert result.error.code == pb.OVERLOADED
            refused += 1
    assert refused == 3
    await peer.delete("t0")
    (result,) = await peer.publish(topics[-1].topic_id, batch(b"7"))
    assert not result.HasField("error")
    assert node.broker.contents.used_bytes <= 1024 * 1024


async def test_changed_settings_during_screening_are_applied(node: Node, peer: Peer) -> None:
    topic = await peer.create("t", deduplicate_records=50_000, flush=pb.NEVER)
    drawn = random.Random(3)
    short = [[drawn.randbytes(20) for _ in range(5)] for _ in range(4)]
    long = [[drawn.randbytes(20) for _ in range(5_000)] for _ in range(3)]
    numbers: list[int] = []
    settings = ({"deduplicate_records": 30_000}, {"deduplicate_s": 600}, {"deduplicate_records": 40_000})
    for change in settings:
        parts = (*long, *short, *long)
        numbers += [peer.post_publish(topic.topic_id, batch(*values), timeout_ms=20_000) for values in parts]
        peer.post(topic_alter=pb.TopicAlter(name="t", **change))  # type: ignore[arg-type]  # of ints
    for number in numbers:
        (result,) = await peer.published(number)
        assert not result.HasField("error"), result
    stored = await values_of(peer, topic)
    assert len(stored) == len(set(stored)) == 15_020
    for values in long:
        peer.post_publish(topic.topic_id, batch(*values), timeout_ms=20_000)
    await peer.delete("t")
    assert node.broker.contents.used_bytes == 0


async def test_damaged_records_of_the_window_are_reported(stand: Stand) -> None:
    await stand.start()
    peer = await stand.peer()
    topic = await peer.create("t", deduplicate_records=100)
    await one(peer, topic, batch(b"rotten" * 100))
    await stand.stop()
    (segment,) = stand.path.glob("partitions/t.*/epoch-*/*.seg")
    data = bytearray(segment.read_bytes())
    at = data.index(b"rotten")
    data[at] ^= 1
    segment.write_bytes(data)
    await stand.start()
    peer = await stand.peer()
    (refused,) = await peer.publish(topic.topic_id, batch(b"a"))
    assert refused.error.retriable, refused
    assert refused.error.definite


async def test_deleted_records_may_be_published_again(peer: Peer) -> None:
    topic = await peer.create(deduplicate_records=100)
    await one(peer, topic, batch(b"a", b"b"))
    entry = pb.DeleteRecordsEntry(topic_id=topic.topic_id, partition=0, offset=1)
    await peer.ask(delete_records=pb.DeleteRecords(entries=[entry]))
    assert (await one(peer, topic, batch(b"a", b"b"))).duplicates == 1


async def test_duplicate_waits_for_the_commit_of_its_original(founded: Founded) -> None:
    await founded.found()
    await founded.settled()
    peer = await founded.peer("a")
    topic = await peer.create(replication_factor=3, deduplicate_records=100)
    await founded.publish(peer, topic.topic_id, b"first")
    copies = await founded.copies((topic.topic_id, 0), end_offset=1)
    owner = copies[0].state.owner_id
    others = [name for name in founded.nodes if name != owner]
    peer = await founded.peer(owner)
    for name in others:  # the owner is alone, so its records are not committed
        await founded.crash(name)
    numbers = [peer.post_publish(topic.topic_id, batch(b"lost"), timeout_ms=20_000) for _ in range(2)]
    partition = founded.nodes[owner].broker.partitions.get(topic.topic_id, 0)
    await founded.until(lambda: partition.log.end_offset == 3 or all(map(peer.answered, numbers)), "nothing happened")
    for number in filter(peer.answered, numbers):  # the owner has already detected that the others are dead
        assert (await peer.published(number))[0].HasField("error")
    await founded.crash(owner)
    for name in others:
        await founded.start(name)
    await founded.until(lambda: founded.owner((topic.topic_id, 0), others[0]) in others, "no other node has taken over")
    peer = await founded.peer(others[0])
    result = await founded.publish(peer, topic.topic_id, b"lost")
    assert result.duplicates == 0
    assert (await founded.publish(peer, topic.topic_id, b"first")).duplicates == 1
