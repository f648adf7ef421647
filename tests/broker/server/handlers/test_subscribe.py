from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest
from tests.broker.peer import Peer, batch, batches_of
from tests.broker.stand import Stand, settled

from tidelog_broker.node.node import Node
from tidelog_broker.partition.access import Access
from tidelog_broker.partition.reader import PartitionReader
from tidelog_broker.server.handlers import subscribe as subscribe_module
from tidelog_broker.storage.engine.reading import FoundBatches
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.limits import KIB

PLENTY = 10**9


def subscription(
    topic_id: bytes, *, number: int = 1, offset: int = 0, partitions: int = 1, records: int = PLENTY, size: int = PLENTY
) -> pb.Subscribe:
    entries = [pb.SubscribeEntry(topic_id=topic_id, partition=index, offset=offset) for index in range(partitions)]
    return pb.Subscribe(subscription_id=number, entries=entries, credit_records=records, credit_bytes=size)


async def subscribe(peer: Peer, topic_id: bytes, **how: Any) -> list[pb.SubscribeResult]:
    frame = await peer.ask(subscribe=subscription(topic_id, **how))
    return list(frame.envelope.subscribe_reply.results)


async def received(peer: Peer, count: int, offset: int = 0) -> list[bytes | None]:
    """Take events until `count` records have come, in order, without a gap or a repeat."""
    values: list[bytes | None] = []
    while len(values) < count:
        frame = await peer.event()
        event = frame.envelope.message_event
        assert frame.envelope.WhichOneof("kind") == "message_event", frame.envelope
        batches = batches_of(frame)
        assert event.record_count == sum(map(len, batches))
        for one in batches:
            assert one.base_offset == offset + len(values)
            values += one.values()
        assert event.next_offset == offset + len(values) <= event.high_watermark
    return values


async def nothing_more(peer: Peer) -> None:
    """A round trip later there is still no event."""
    await peer.ask(topic_list=pb.TopicList())
    assert peer.events.empty()


async def test_existing_records_are_pushed_before_appends(stand: Stand, peer: Peer) -> None:
    topic = await peer.create()
    await peer.publish(topic.topic_id, batch(b"a", b"b"))
    reader = await stand.peer()
    (result,) = await subscribe(reader, topic.topic_id)
    assert (result.high_watermark, result.log_start_offset) == (2, 0)
    await peer.publish(topic.topic_id, batch(b"c"))
    assert await received(reader, 3) == [b"a", b"b", b"c"]


async def test_subscription_starts_with_the_batch_that_contains_its_offset(peer: Peer) -> None:
    topic = await peer.create()
    await peer.publish(topic.topic_id, batch(b"a"), batch(b"b", b"c", b"d"))
    await subscribe(peer, topic.topic_id, offset=2)
    frame = await peer.event()
    assert batches_of(frame)[0].base_offset == 1
    assert frame.envelope.message_event.next_offset == 4


@pytest.mark.parametrize("credit", [{"records": 0}, {"size": 0}])
async def test_both_kinds_of_credit_are_required(peer: Peer, credit: dict[str, int]) -> None:
    topic = await peer.create()
    await peer.publish(topic.topic_id, batch(b"a"))
    await subscribe(peer, topic.topic_id, **credit)
    await nothing_more(peer)
    peer.send_credit(1, records=0, size_bytes=0)
    await nothing_more(peer)
    peer.send_credit(1, records=1, size_bytes=1)
    assert await received(peer, 1) == [b"a"]


async def test_credit_is_spent_by_whole_batches(stand: Stand) -> None:
    node = await stand.start()
    peer = await stand.peer()
    topic = await peer.create()
    for number in range(6):
        await peer.publish(topic.topic_id, batch(*[b"%d" % number] * 10))
    await subscribe(peer, topic.topic_id, records=15)
    assert len(await received(peer, 20)) == 20
    await nothing_more(peer)
    peer.send_credit(1, records=5, size_bytes=0)  # pays the overdraft first
    await nothing_more(peer)
    peer.send_credit(1, records=1, size_bytes=0)
    assert len(await received(peer, 10, offset=20)) == 10
    await nothing_more(peer)
    assert node.server.budget.used_bytes == 0


async def test_credit_for_an_ended_subscription_is_ignored(peer: Peer) -> None:
    peer.send_credit(99, records=1, size_bytes=1)
    assert (await peer.create()).name == "t"


@pytest.mark.parametrize("ring_bytes", [0, 300, 4 * KIB, 1024 * KIB])
async def test_log_to_ring_transition_neither_skips_nor_repeats(stand: Stand, ring_bytes: int) -> None:
    """Appends go on, faster and slower than the subscriber's credit; nothing is skipped, nothing repeated."""
    node = await stand.start(ring_bytes=ring_bytes)
    peer, reader = await stand.peer(), await stand.peer()
    topic = await peer.create(segment_bytes=64 * KIB, flush=pb.NEVER)
    rng = random.Random(ring_bytes)
    sent: list[bytes | None] = []

    async def append(rounds: int) -> None:
        for _ in range(rounds):
            values = [b"%d" % (len(sent) + index) for index in range(rng.randint(1, 5))]
            sent.extend(values)
            await peer.publish(topic.topic_id, batch(*values))

    await append(30)
    await subscribe(reader, topic.topic_id, records=3)
    appending = asyncio.create_task(append(150))
    got: list[bytes | None] = []
    while not appending.done() or len(got) < len(sent):
        reader.send_credit(1, records=rng.choice([1, 2, 40]), size_bytes=0)
        if reader.events.empty() and appending.done() and len(got) == len(sent):
            break
        try:
            async with asyncio.timeout(0.05):
                frame = await reader.events.get()
        except TimeoutError:
            continue
        for one in batches_of(frame):
            assert one.base_offset == len(got)
            got += one.values()
    await appending
    assert got == sent
    assert node.broker.partitions.get(topic.topic_id, 0).state.high_watermark == len(sent)


async def test_partitions_of_a_subscription_take_turns(peer: Peer) -> None:
    topic = await peer.create(partitions=3)
    for partition in range(3):
        await peer.publish(topic.topic_id, *[batch(b"x")] * 3, partition=partition)
    await subscribe(peer, topic.topic_id, partitions=3, records=1)
    seen = []
    for _ in range(3):
        seen.append((await peer.event()).envelope.message_event.partition)
        peer.send_credit(1, records=1, size_bytes=0)
    assert sorted(seen) == [0, 1, 2]


async def test_lagging_partitions_are_read_one_at_a_time(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    """With credit for one batch, one batch is read, whatever the number of partitions that lie behind."""
    await stand.start(ring_bytes=0)
    peer = await stand.peer()
    topic = await peer.create(partitions=20)
    for partition in range(20):
        await peer.publish(topic.topic_id, batch(b"x"), partition=partition)
    now = most = reads = 0
    read_to_send = PartitionReader.read_to_send

    async def counted(self: PartitionReader, offset: int, bytes_max: int, *, is_prompt: bool) -> FoundBatches:
        nonlocal now, most, reads
        now, reads = now + 1, reads + 1
        most = max(most, now)
        try:
            return await read_to_send(self, offset, bytes_max, is_prompt=is_prompt)
        finally:
            now -= 1

    monkeypatch.setattr(PartitionReader, "read_to_send", counted)
    await subscribe(peer, topic.topic_id, partitions=20, records=1)
    await peer.event()
    await nothing_more(peer)
    assert (most, reads) == (1, 1)
    peer.send_credit(1, records=19, size_bytes=0)
    for _ in range(19):
        await peer.event()
    assert most == 1


async def test_append_looks_at_its_own_partition_only(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of an append does not depend on the number of partitions that a subscription follows."""
    await stand.start()
    peer = await stand.peer()
    count = 3 * subscribe_module.VISITS_MAX + 1
    topic = await peer.create(partitions=count)
    looks: list[int] = []
    """The iterations of the event loop in which a partition was looked at."""
    iteration = 0
    loop = asyncio.get_running_loop()

    def count_iterations() -> None:
        nonlocal iteration
        iteration += 1
        loop.call_soon(count_iterations)

    count_iterations()
    read_hot = PartitionReader.read_hot

    def counted(self: PartitionReader, offset: int, bytes_max: int, records_max: int) -> Any:
        looks.append(iteration)
        return read_hot(self, offset, bytes_max, records_max)

    monkeypatch.setattr(PartitionReader, "read_hot", counted)
    await subscribe(peer, topic.topic_id, partitions=count)
    await settled(lambda: len(looks) == count, "all partitions were looked at")
    assert max(Counter(looks).values()) <= subscribe_module.VISITS_MAX
    await peer.publish(topic.topic_id, batch(b"x"), partition=count - 1)
    assert (await peer.event()).envelope.message_event.partition == count - 1
    await nothing_more(peer)
    assert len(looks) <= count + 4, "few looks find the event, and then nothing more"


async def test_append_during_a_read_does_not_cause_another_read(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    node = await stand.start()
    peer = await stand.peer()
    topic_id = (await peer.create()).topic_id
    await peer.publish(topic_id, batch(b"0"))
    partition = node.broker.partitions.get(topic_id, 0)
    partition.ring.restart(1)
    gate, reads = asyncio.Event(), []
    read_to_send = PartitionReader.read_to_send

    async def held(self: PartitionReader, offset: int, bytes_max: int, *, is_prompt: bool) -> FoundBatches:
        reads.append(offset)
        await gate.wait()
        return await read_to_send(self, offset, bytes_max, is_prompt=is_prompt)

    monkeypatch.setattr(PartitionReader, "read_to_send", held)
    await subscribe(peer, topic_id)
    await settled(lambda: reads == [0], "the first record is read")
    await peer.publish(topic_id, batch(b"1"))
    gate.set()
    assert await received(peer, 2) == [b"0", b"1"]
    gate.clear()
    await peer.publish(topic_id, batch(b"2"))
    gate.set()
    assert await received(peer, 1, 2) == [b"2"]
    await nothing_more(peer)
    assert reads == [0], "later records are in memory"


async def test_several_subscriptions_on_one_connection(peer: Peer) -> None:
    topic = await peer.create()
    await subscribe(peer, topic.topic_id, number=1)
    await subscribe(peer, topic.topic_id, number=2)
    await peer.publish(topic.topic_id, batch(b"a"))
    events = [(await peer.event()).envelope.message_event.subscription_id for _ in range(2)]
    assert sorted(events) == [1, 2]


async def test_unsubscribe_ends_events_and_frees_the_id(node: Node, peer: Peer) -> None:
    topic = await peer.create()
    await subscribe(peer, topic.topic_id)
    await peer.ask(unsubscribe=pb.Unsubscribe(subscription_id=1))
    assert not node.broker.partitions.get(topic.topic_id, 0).changes.listeners
    await peer.publish(topic.topic_id, batch(b"a"))
    await nothing_more(peer)
    assert (await peer.refused(unsubscribe=pb.Unsubscribe(subscription_id=1))).code == pb.UNKNOWN_SUBSCRIPTION
    await subscribe(peer, topic.topic_id)
    assert await received(peer, 1) == [b"a"]


async def test_unsubscribing_before_the_reply_leaves_no_listener(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    node = await stand.start()
    peer = await stand.peer()
    topic = await peer.create(partitions=2)
    go_on = asyncio.Event()
    ensure = Access.ensure_readable

    async def slow(self: Access) -> None:
        if self._state.index == 1:
            await go_on.wait()
        await ensure(self)

    monkeypatch.setattr(Access, "ensure_readable", slow)
    number = peer.post(subscribe=subscription(topic.topic_id, partitions=2))
    partition = node.broker.partitions.get(topic.topic_id, 0)
    await settled(lambda: bool(partition.changes.listeners), "the first partition is not followed")
    await peer.publish(topic.topic_id, batch(b"early"))
    assert peer.events.empty(), "nothing is pushed before the reply"
    await peer.ask(unsubscribe=pb.Unsubscribe(subscription_id=1))
    go_on.set()
    await peer.reply(number)
    assert not any(one.changes.listeners for one in node.broker.partitions.of_topic(topic.topic_id))
    await peer.publish(topic.topic_id, batch(b"late"))
    await nothing_more(peer)


async def test_invalid_subscriptions_are_refused(stand: Stand) -> None:
    node = await stand.start(subscriptions_max=2)
    peer = await stand.peer()
    topic = await peer.create()
    entries = [
        pb.SubscribeEntry(topic_id=topic.topic_id),
        pb.SubscribeEntry(topic_id=topic.topic_id),
        pb.SubscribeEntry(topic_id=topic.topic_id, partition=9),
        pb.SubscribeEntry(topic_id=b"?" * 16),
    ]
    frame = await peer.ask(subscribe=pb.Subscribe(subscription_id=1, entries=entries))
    codes = [result.error.code for result in frame.envelope.subscribe_reply.results]
    assert codes == [0, pb.INVALID_REQUEST, pb.UNKNOWN_PARTITION, pb.UNKNOWN_TOPIC]
    assert (await peer.refused(subscribe=subscription(topic.topic_id))).code == pb.INVALID_REQUEST
    assert (await peer.refused(subscribe=pb.Subscribe(subscription_id=7))).code == pb.INVALID_REQUEST
    (beyond,) = await subscribe(peer, topic.topic_id, number=2, offset=1)
    assert (beyond.error.code, beyond.error.high_watermark) == (pb.OFFSET_OUT_OF_RANGE, 0)
    await subscribe(peer, topic.topic_id, number=2)
    error = await peer.refused(subscribe=subscription(topic.topic_id, number=3))
    assert (error.code, "2" in error.message) == (pb.INVALID_REQUEST, True)
    assert len(node.broker.partitions.get(topic.topic_id, 0).changes.listeners) == 2


@pytest.mark.parametrize("ring_bytes", [0, 1024 * KIB])
async def test_topic_deletion_ends_the_subscription(stand: Stand, ring_bytes: int) -> None:
    await stand.start(ring_bytes=ring_bytes)
    peer, reader = await stand.peer(), await stand.peer()
    topic = await peer.create()
    await peer.publish(topic.topic_id, batch(b"a"))
    await subscribe(reader, topic.topic_id)
    assert await received(reader, 1) == [b"a"]
    await peer.delete("t")
    await subscribe(reader, topic.topic_id, number=2)
    ended = (await reader.event()).envelope.subscription_ended
    assert (ended.subscription_id, ended.topic_id, ended.error.code) == (1, topic.topic_id, pb.UNKNOWN_TOPIC)
    await nothing_more(reader)


async def test_topic_deletion_is_reported_once(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files are closed during reads: readers get the error of a deleted topic."""
    node = await stand.start(ring_bytes=0)
    peer, reader = await stand.peer(), await stand.peer()
    topic = await peer.create()
    await peer.publish(topic.topic_id, batch(b"a"))
    partition = node.broker.partitions.get(topic.topic_id, 0)
    call = node.broker.threads.readers.call
    waiting = 0

    async def late(*args: Any, **kwargs: Any) -> Any:
        nonlocal waiting
        waiting += 1
        await settled(lambda: not partition.log.directory.exists(), "the data was not removed")
        return await call(*args, **kwargs)

    monkeypatch.setattr(node.broker.threads.readers, "call", late)
    await subscribe(reader, topic.topic_id)
    fetch = peer.post_fetch(topic.topic_id)
    await settled(lambda: waiting == 2, "the readers do not read")
    await peer.delete("t")
    assert (await reader.event()).envelope.subscription_ended.error.code == pb.UNKNOWN_TOPIC
    assert (await peer.reply(fetch)).envelope.fetch_reply.results[0].error.code == pb.UNKNOWN_TOPIC
    await nothing_more(reader)


async def test_disconnected_subscriber_is_forgotten(node: Node, stand: Stand, peer: Peer) -> None:
    topic = await peer.create(partitions=3)
    reader = await stand.peer()
    await subscribe(reader, topic.topic_id, number=1, partitions=3)
    await subscribe(reader, topic.topic_id, number=2, partitions=3)
    assert [len(partition.changes.listeners) for partition in node.broker.partitions.of_topic(topic.topic_id)] == [
        2,
        2,
        2,
    ]
    await reader.close()
    partitions = node.broker.partitions.of_topic(topic.topic_id)
    await settled(lambda: not any(partition.changes.listeners for partition in partitions), "listeners stay")
    assert not (await peer.publish(topic.topic_id, batch(b"a")))[0].HasField("error")


async def test_records_are_counted_from_headers_alone(peer: Peer) -> None:
    first, second = batch(b"a", b"b"), batch(b"c")
    assert subscribe_module.count_records([memoryview(first + second), memoryview(second)]) == 4


async def test_followed_partitions_are_limited_per_connection_and_in_total(stand: Stand) -> None:
    node = await stand.start(followed_max=8)
    peer = await stand.peer()
    topic = await peer.create(partitions=3)
    results = await subscribe(peer, topic.topic_id, partitions=3)
    assert [(one.error.code, one.error.retriable) for one in results] == [(0, False)] * 2 + [(pb.OVERLOADED, True)]
    others = [await stand.peer() for _ in range(4)]
    told = [await subscribe(other, topic.topic_id, partitions=2) for other in others]
    assert [one.error.code for results in told for one in results] == [0] * 6 + [pb.OVERLOADED] * 2
    assert node.broker.bounds.followed == 8
    await others[0].close()
    await settled(lambda: node.broker.bounds.followed == 6, "a closed subscription is still counted")
    assert not (await subscribe(others[3], topic.topic_id, number=2))[0].HasField("error")
    await peer.ask(unsubscribe=pb.Unsubscribe(subscription_id=1))
    assert node.broker.bounds.followed == 5
    await peer.delete("t")
    await settled(lambda: node.broker.bounds.followed == 0, "a deleted topic is still followed")


async def test_batch_without_room_is_sent_later(stand: Stand) -> None:
    for ring_bytes in (0, 64 * 1024 * KIB):
        node = await stand.start(ring_bytes=ring_bytes, node_outgoing_bytes=1024 * KIB)
        peer = await stand.peer()
        topic = await peer.create(f"t{ring_bytes}")
        large = b"x" * (800 * KIB)
        await peer.publish(topic.topic_id, batch(large), batch(large))
        (connection,) = node.server.connections
        with connection.backlog.reserving(900 * KIB):
            assert not (await subscribe(peer, topic.topic_id))[0].HasField("error")
            await asyncio.sleep(0.1)
            assert peer.events.empty()
        assert await received(peer, 2) == [large, large]
        await stand.stop()
