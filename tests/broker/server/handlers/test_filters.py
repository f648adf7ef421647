"""FETCH, SUBSCRIBE and LIST_OFFSETS by key and tag, with and without an index, from ring and log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.broker.cluster_stand import TOPIC_ID, started_cluster
from tests.broker.peer import Peer, batches_of
from tests.broker.server.handlers.test_fetch import located, waits
from tests.broker.server.handlers.test_subscribe import nothing_more
from tests.broker.stand import Stand, settled
from tests.broker.storage.keyed import Found, keyed, records_of

from tidelog_broker.node.node import Node
from tidelog_broker.partition import filtered_reader
from tidelog_broker.server.handlers import subscribe as subscribe_module
from tidelog_broker.storage.partition import matching
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import Flags
from tidelog_proto.batch.record_batch import columns_of, encode_batch, iter_batches
from tidelog_proto.wire.frames import Frame

PLENTY = 10**9
KEY_A = pb.RecordFilter(key=b"a")

WAYS = [(index, ring_bytes) for index in (True, False) for ring_bytes in (0, 1 << 20)]


@pytest.fixture(params=WAYS, ids=str)
def way(request: pytest.FixtureRequest) -> tuple[bool, int]:
    """Whether there is an index, and how much is kept in memory."""
    found: tuple[bool, int] = request.param
    return found


@pytest.fixture
async def node(stand: Stand, way: tuple[bool, int]) -> Node:
    return await stand.start(ring_bytes=way[1])


@pytest.fixture
async def topic_id(node: Node, peer: Peer, way: tuple[bool, int]) -> bytes:
    topic = await peer.create(index_key=way[0], index_tag=way[0])
    partition = node.broker.partitions.get(topic.topic_id, 0)
    assert partition.log.indexes.columns == (frozenset({"key", "tag"}) if way[0] else frozenset())
    return topic.topic_id


def ask(topic_id: bytes, wanted: pb.RecordFilter, offset: int = 0, **bounds: int) -> pb.Fetch:
    entry = pb.FetchEntry(topic_id=topic_id, offset=offset, filter=wanted)
    return pb.Fetch(entries=[entry], **bounds)


def result_of(frame: Frame) -> pb.FetchResult:
    (result,) = frame.envelope.fetch_reply.results
    return result


async def fetched(peer: Peer, topic_id: bytes, wanted: pb.RecordFilter, offset: int = 0, **bounds: int) -> list[Found]:
    """Read on to the end of what is committed."""
    found: list[Found] = []
    while True:
        frame = await peer.ask(fetch=ask(topic_id, wanted, offset, **bounds))
        result = result_of(frame)
        assert not result.HasField("error"), result.error
        found += [one for one in records_of(map(bytes, cut(frame))) if one.offset >= offset]
        if result.next_offset == offset:
            return found
        offset = result.next_offset


def cut(frame: Frame) -> list[memoryview]:
    return list(iter_batches(frame.attachment))


async def test_filter_sends_only_matching_records(peer: Peer, topic_id: bytes) -> None:
    await peer.publish(topic_id, *[bytes(keyed([b"a", b"b", None], ["red", None, "red"])) for _ in range(5)])
    await peer.publish(topic_id, bytes(keyed([b"b"] * 3)), bytes(keyed([b"a", b"a"], ["blue", "red"])))
    assert [one.offset for one in await fetched(peer, topic_id, KEY_A)] == [0, 3, 6, 9, 12, 18, 19]
    assert [one.offset for one in await fetched(peer, topic_id, KEY_A, max_bytes=1)] == [0, 3, 6, 9, 12, 18, 19]
    assert [one.offset for one in await fetched(peer, topic_id, KEY_A, 4)] == [6, 9, 12, 18, 19]
    both = pb.RecordFilter(key=b"a", tag="blue")
    assert await fetched(peer, topic_id, both) == [Found(18, b"a", "blue")]
    assert [one.offset for one in await fetched(peer, topic_id, pb.RecordFilter(tag="red"))][:4] == [0, 2, 3, 5]
    assert await fetched(peer, topic_id, pb.RecordFilter(key=b"nobody")) == []
    assert len(await fetched(peer, topic_id, pb.RecordFilter())) == 20


async def test_filtered_fetch_waits_for_a_match(node: Node, peer: Peer, topic_id: bytes) -> None:
    await peer.publish(topic_id, bytes(keyed([b"b"] * 7)))
    number = peer.post(fetch=ask(topic_id, KEY_A, min_bytes=1, wait_ms=60_000))
    await settled(waits(node, topic_id), "the fetch does not wait")
    await peer.publish(topic_id, bytes(keyed([b"b"])))
    assert not peer.answered(number)
    await peer.publish(topic_id, bytes(keyed([b"b", b"a"])))
    frame = await peer.reply(number)
    assert records_of(cut(frame)) == [Found(9, b"a", None)]
    assert result_of(frame).next_offset == 10
    frame = await peer.ask(fetch=ask(topic_id, KEY_A, 10, min_bytes=1, wait_ms=20))
    assert (result_of(frame).length, result_of(frame).next_offset) == (0, 10)


async def test_filtered_fetch_without_a_match_reports_its_progress(
    monkeypatch: pytest.MonkeyPatch, peer: Peer, topic_id: bytes
) -> None:
    monkeypatch.setattr(filtered_reader, "HOT_BYTES", 1)
    monkeypatch.setattr(matching, "_NAMED_MAX", 1)
    for _ in range(6):
        await peer.publish(topic_id, bytes(keyed([b"b"] * 2)))
    await peer.publish(topic_id, bytes(keyed([b"a"])))
    seen: set[int] = set()
    offset = 0
    while not (found := cut(frame := await peer.ask(fetch=ask(topic_id, KEY_A, offset)))):
        assert result_of(frame).next_offset > offset
        seen.add(offset := result_of(frame).next_offset)
    assert records_of(found) == [Found(12, b"a", None)]
    frame = await peer.ask(fetch=ask(topic_id, KEY_A, 0, min_bytes=1, wait_ms=10_000))
    assert records_of(cut(frame)) == [Found(12, b"a", None)]


async def test_oversized_tag_is_refused(peer: Peer, topic_id: bytes) -> None:
    wanted = pb.RecordFilter(tag="t" * 4097)
    assert result_of(await peer.ask(fetch=ask(topic_id, wanted))).error.code == pb.INVALID_REQUEST
    asked = pb.Subscribe(subscription_id=1, entries=[pb.SubscribeEntry(topic_id=topic_id, filter=wanted)])
    (result,) = (await peer.ask(subscribe=asked)).envelope.subscribe_reply.results
    assert result.error.code == pb.INVALID_REQUEST


async def test_tags_of_all_valid_lengths_match(peer: Peer, topic_id: bytes) -> None:
    long = ["ä" * 2048, "ä" * 2047 + "bc", "ä" * 2047 + "bd"]
    await peer.publish(topic_id, bytes(keyed(None, long)))
    for offset, tag in enumerate(long):
        assert await fetched(peer, topic_id, pb.RecordFilter(tag=tag)) == [Found(offset, None, tag)]


def subscription(topic_id: bytes, wanted: pb.RecordFilter, **credit: Any) -> pb.Subscribe:
    entry = pb.SubscribeEntry(topic_id=topic_id, filter=wanted)
    held = {"credit_records": PLENTY, "credit_bytes": PLENTY} | credit
    return pb.Subscribe(subscription_id=1, entries=[entry], **held)


async def matched(peer: Peer, count: int) -> tuple[list[Found], pb.MessageEvent]:
    """Take events until so many records have come; return the last event, too."""
    found: list[Found] = []
    while True:
        frame = await peer.event()
        event = frame.envelope.message_event
        assert event.record_count == sum(len(one) for one in batches_of(frame))
        found += records_of(cut(frame))
        if len(found) >= count:
            return found, event


async def test_filtered_subscription_gets_only_matches(peer: Peer, topic_id: bytes) -> None:
    await peer.publish(topic_id, bytes(keyed([b"a", b"b"])), bytes(keyed([b"b"])))
    await peer.ask(subscribe=subscription(topic_id, KEY_A))
    assert (await matched(peer, 1))[0] == [Found(0, b"a", None)]
    await peer.publish(topic_id, bytes(keyed([b"b"] * 3)))
    await peer.publish(topic_id, bytes(keyed([b"a"])))
    found, event = await matched(peer, 1)
    assert found == [Found(6, b"a", None)]
    assert event.next_offset == 7


async def test_credit_is_spent_by_sent_records_only(peer: Peer, topic_id: bytes) -> None:
    await peer.publish(topic_id, *[bytes(keyed([b"b"] * 50 + [b"a"])) for _ in range(4)])
    await peer.ask(subscribe=subscription(topic_id, KEY_A, credit_records=4, credit_bytes=1))
    assert len((await matched(peer, 1))[0]) == 1
    await nothing_more(peer)
    peer.send_credit(1, records=0, size_bytes=PLENTY)
    assert len((await matched(peer, 3))[0]) == 3
    await peer.publish(topic_id, bytes(keyed([b"a"])))
    await nothing_more(peer)
    peer.send_credit(1, records=1, size_bytes=0)
    assert (await matched(peer, 1))[0] == [Found(204, b"a", None)]


async def test_filtered_subscription_reports_progress(
    monkeypatch: pytest.MonkeyPatch, peer: Peer, topic_id: bytes
) -> None:
    await peer.publish(topic_id, bytes(keyed([b"b"] * 3)))
    await peer.ask(subscribe=subscription(topic_id, KEY_A))
    event = (await peer.event()).envelope.message_event
    assert (event.record_count, event.next_offset) == (0, 3)
    monkeypatch.setattr(subscribe_module, "PROGRESS_S", 0.3)
    for _ in range(3):
        await peer.publish(topic_id, bytes(keyed([b"b"])))
    await nothing_more(peer)
    event = (await peer.event()).envelope.message_event
    assert (event.record_count, event.next_offset, event.high_watermark) == (0, 6, 6)


async def test_newest_record_of_a_key_is_found(peer: Peer, topic_id: bytes) -> None:
    assert not (await located(peer, topic_id, latest_of_key=b"a")).found
    columns = columns_of([b"1", b"2", b"3"], keys=[b"a", b"b", b"a"], timestamps_us=[10, 20, 30])
    await peer.publish(topic_id, encode_batch(columns, now_us=0).to_bytes(), bytes(keyed([b"b"] * 4)))
    result = await located(peer, topic_id, latest_of_key=b"a")
    assert (result.found, result.offset, result.timestamp_us, result.high_watermark) == (True, 2, 30, 7)
    result = await located(peer, topic_id, latest_of_key=b"b")
    assert (result.offset, result.timestamp_us) == (6, 5)
    assert not (await located(peer, topic_id, latest_of_key=b"")).found


async def test_tombstone_is_the_newest_record_of_its_key(peer: Peer, topic_id: bytes) -> None:
    await peer.publish(topic_id, bytes(keyed([b"a"])))
    await peer.publish(topic_id, encode_batch(columns_of([None], keys=[b"a"]), now_us=9).to_bytes())
    result = await located(peer, topic_id, latest_of_key=b"a")
    assert (result.found, result.offset, result.timestamp_us) == (True, 1, 9)


async def newest(peer: Peer, topic_id: bytes, wanted: pb.RecordFilter, **entry: Any) -> tuple[pb.FetchResult, Frame]:
    """Fetch the newest matching record; the request names an offset and a wait, which do not count."""
    asked = pb.FetchEntry(topic_id=topic_id, offset=1 << 40, filter=wanted, newest=True, **entry)
    frame = await peer.ask(fetch=pb.Fetch(entries=[asked], min_bytes=1, wait_ms=30_000))
    return result_of(frame), frame


async def test_fetch_returns_the_newest_record_of_a_key_alone(peer: Peer, topic_id: bytes) -> None:
    result, _ = await newest(peer, topic_id, KEY_A)
    assert (result.searched, result.length, result.next_offset) == (True, 0, 0)
    columns = columns_of([b"1", b"2", b"3"], keys=[b"a", b"b", b"a"], timestamps_us=[10, 20, 30])
    await peer.publish(topic_id, encode_batch(columns, now_us=0).to_bytes(), bytes(keyed([b"b"] * 4, ["t"] * 4)))
    result, frame = await newest(peer, topic_id, KEY_A)
    assert (result.searched, result.next_offset, result.high_watermark) == (True, 3, 7)
    ((record,),) = batches_of(frame)
    assert (record.offset, record.timestamp_us, record.value) == (2, 30, b"3")
    _, frame = await newest(peer, topic_id, pb.RecordFilter(tag="t"))
    ((record,),) = batches_of(frame)
    assert (record.offset, record.key) == (6, b"b")
    result, _ = await newest(peer, topic_id, pb.RecordFilter(key=b"a", tag="t"))
    assert (result.searched, result.length, result.next_offset) == (True, 0, 7)
    _, frame = await newest(peer, topic_id, KEY_A, projection=pb.Projection(columns=Flags.KEY))
    ((record,),) = batches_of(frame)
    assert (record.offset, record.key) == (2, b"a")


async def test_search_for_the_newest_record_needs_a_filter(peer: Peer, topic_id: bytes) -> None:
    result, _ = await newest(peer, topic_id, pb.RecordFilter())
    assert result.error.code == pb.INVALID_REQUEST
    assert "set `filter.key`, `filter.tag` or both" in result.error.message
    assert not result.searched


async def test_search_for_the_newest_record_is_refused_by_a_stopping_node(
    node: Node, peer: Peer, topic_id: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search ends early then, so that it does not know whether a record matches."""
    await peer.publish(topic_id, bytes(keyed([b"a"])))

    async def stopped(_: Any, record_filter: Any, goes_on: Any, *, with_record: bool = False) -> None:
        del record_filter, with_record
        node.broker.lifecycle.stopping = True
        assert not goes_on()

    monkeypatch.setattr(filtered_reader.FilteredReader, "find_newest", stopped)
    result, _ = await newest(peer, topic_id, KEY_A)
    node.broker.lifecycle.stopping = False
    assert (result.error.code, result.searched) == (pb.SHUTTING_DOWN, False)


async def test_unconfirmed_owner_does_not_search_for_the_newest_record(tmp_path: Path) -> None:
    async with started_cluster(tmp_path) as cluster:
        await cluster.start()
        owner = await cluster.owner()
        peer = await cluster.peer(owner)
        await peer.publish(TOPIC_ID, bytes(keyed([b"a"])))
        assert (await newest(peer, TOPIC_ID, KEY_A))[0].next_offset == 1
        cluster.suspect(owner)
        successor = await cluster.peer(await cluster.owner(but=owner))
        await successor.publish(TOPIC_ID, bytes(keyed([b"a"])))
        result, _ = await newest(peer, TOPIC_ID, KEY_A)
        assert (result.HasField("error"), result.searched) == (True, False), "it does not know of the second record"
        assert (await newest(successor, TOPIC_ID, KEY_A))[0].next_offset == 2


async def test_late_index_covers_existing_records(stand: Stand, node: Node, peer: Peer) -> None:
    topic = await peer.create(segment_bytes=1 << 16)
    for number in range(300):
        await peer.publish(topic.topic_id, bytes(keyed([b"key-%d" % (number % 7)] * 20)))
    alter = pb.TopicAlter(name="t", index_key=True)
    await peer.ask(topic_alter=alter)
    partition = node.broker.partitions.get(topic.topic_id, 0)
    if partition.log.indexes.columns:  # the command has not arrived yet
        await settled(lambda: all_files(partition.log.directory), "no index files were created")
    wanted = pb.RecordFilter(key=b"key-3")
    before = await fetched(peer, topic.topic_id, wanted)
    assert len(before) == 43 * 20
    node = await stand.restart()
    peer = await stand.peer()
    assert await fetched(peer, topic.topic_id, wanted) == before


def all_files(directory: Any) -> bool:
    segments = sorted(directory.rglob("*.seg"))
    return len(segments) > 2 and all(path.with_suffix(".key").exists() for path in segments[:-1])
