"""Handover of partitions: records in hand, prefetched records, callbacks, and topic changes.

With two partitions and the range assignor, member "a" has the first one, so it takes it from "b", which was alone.
"""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import Any

import pytest
from tests.clients.sharing import fill, new_topic, positions, reading, until

from tidelog import Client, Consumer, Group, TopicPartition, sync

pytestmark = pytest.mark.e2e


def wish(topic: str, name: str, **options: Any) -> Group:
    options.setdefault("session_timeout_s", 3.0)
    return Group(topic, instance_id=name, assignor="range", **options)


async def test_record_in_hand_is_finished_and_committed_before_handover(
    real: Client,
) -> None:
    topic = await new_topic(real, partitions=2)
    where = TopicPartition(topic, 0)
    async with reading(real.consumer(topic, group=wish(topic, "b", commit_interval_s=99.0))) as first:
        await until(lambda: len(first.consumer.assignment()) == 2)
        first.gate.clear()
        await fill(real, topic, 1, range(100))
        await until(lambda: len(first.seen) == 1)
        async with reading(real.consumer(topic, group=wish(topic, "a"))) as second:
            await until(lambda: where not in first.consumer.assignment())
            await asyncio.sleep(0.3)
            assert not second.consumer.assignment()
            first.gate.set()
            await until(lambda: len(second.seen) == 99)
            assert first.seen == [b"0:0"], "99 records were prefetched"
            assert second.seen[0] == b"0:1"
            await second.consumer.commit()
    assert (await positions(real, topic))[where] == 100


async def test_polled_list_is_in_hand_as_a_whole(real: Client) -> None:
    topic = await new_topic(real, partitions=2)
    where = TopicPartition(topic, 0)
    async with real.consumer(topic, group=wish(topic, "b")) as first:
        await first.poll(1, timeout_s=0.2)
        await fill(real, topic, 1, range(100))
        assert len(await first.poll(10, timeout_s=60.0)) == 10
        async with reading(real.consumer(topic, group=wish(topic, "a"))) as second:
            await until(lambda: where not in first.assignment())
            await asyncio.sleep(0.2)
            assert await positions(real, topic) == {}
            assert not second.seen
            assert await first.poll(10, timeout_s=0.2) == []
            await until(lambda: len(second.seen) == 90)
            assert second.seen[0] == b"0:10"


async def test_partition_reassigned_during_revocation_is_read_on(real: Client) -> None:
    """No answer repeats the assignment, because the coordinator never saw the member without the partition."""
    topic = await new_topic(real, partitions=2)
    where = TopicPartition(topic, 0)
    async with reading(real.consumer(topic, group=wish(topic, "b", session_timeout_s=5.0))) as first:
        await until(lambda: len(first.consumer.assignment()) == 2)
        first.gate.clear()
        await fill(real, topic, 1, range(100))
        await until(lambda: len(first.seen) == 1)
        second = real.consumer(topic, group=Group(topic, assignor="range", session_timeout_s=5.0))
        other = real.consumer(topic, group=wish(topic, "a", session_timeout_s=0.5))
        async with other:
            await until(lambda: where not in first.consumer.assignment())
        await until(lambda: where not in first.consumer.assignment())
        await asyncio.sleep(1.0)  # the session of "a" has expired by then, and its partition returns
        first.gate.set()
        await until(lambda: len(first.seen) == 100)
        assert first.seen == [b"0:%d" % number for number in range(100)]
        await second.close()


async def test_pause_is_not_handed_over(real: Client) -> None:
    topic = await new_topic(real, partitions=2)
    where = TopicPartition(topic, 0)
    async with reading(real.consumer(topic, group=wish(topic, "b"))) as first:
        await until(lambda: len(first.consumer.assignment()) == 2)
        first.consumer.pause(where)
        await fill(real, topic, 1, range(10))
        await asyncio.sleep(0.2)
        assert not first.seen
        async with reading(real.consumer(topic, group=wish(topic, "a", session_timeout_s=0.5))) as second:
            await until(lambda: len(second.seen) == 10)
            assert first.consumer.paused() == frozenset()
        await fill(real, topic, 1, range(10, 12))
        await until(lambda: first.seen == [b"0:10", b"0:11"])


async def test_callbacks_run_in_order_and_may_seek_pause_and_commit(real: Client) -> None:
    topic = await new_topic(real, partitions=2, records=10)
    told: list[tuple[str, set[int]]] = []
    where = TopicPartition(topic, 0)

    async def assigned(partitions: frozenset[TopicPartition]) -> None:
        for each in partitions:
            await first.seek(each, 5)
        first.pause(TopicPartition(topic, 1))
        await asyncio.sleep(0.1)
        assert first.position() == dict.fromkeys(partitions, 5), "nothing is delivered yet"
        told.append(("assigned", {each.partition for each in partitions}))

    async def revoked(partitions: frozenset[TopicPartition]) -> None:
        told.append(("revoked", {each.partition for each in partitions}))
        held = await first.commit()
        told.append(("committed", {each.partition for each in held.keys() & partitions}))

    by_hand = wish(topic, "b", commit="manual", on_assigned=assigned, on_revoked=revoked)
    first = real.consumer(topic, group=by_hand)
    async with reading(first) as reader:
        await until(lambda: len(reader.seen) == 5)
        assert reader.seen == [b"0:%d" % number for number in range(5, 10)]
        assert first.paused() == {TopicPartition(topic, 1)}
        async with reading(real.consumer(topic, group=wish(topic, "a"))) as second:
            await until(lambda: where in second.consumer.assignment())
            assert told == [("assigned", {0, 1}), ("revoked", {0}), ("committed", {0})]
            assert (await positions(real, topic))[where] == 10
            assert not second.seen


async def test_pause_and_resume_deliver_nothing_before_on_assigned_returns(real: Client) -> None:
    topic = await new_topic(real, partitions=1, records=3)
    where = TopicPartition(topic, 0)
    goes_on = asyncio.Event()

    async def assigned(_: frozenset[TopicPartition]) -> None:
        consumer.pause(where)
        assert consumer.paused() == {where}
        consumer.resume(where)
        await goes_on.wait()

    consumer = real.consumer(topic, group=wish(topic, "a", on_assigned=assigned))
    async with reading(consumer) as reader:
        await until(lambda: where in consumer.assignment())
        await asyncio.sleep(0.3)
        assert not reader.seen
        assert consumer.paused() == frozenset()
        goes_on.set()
        await until(lambda: len(reader.seen) == 3)


@pytest.mark.parametrize("which", ["on_assigned", "on_revoked", "on_lost"])
async def test_exception_of_a_callback_ends_reading(real: Client, which: str) -> None:
    topic = await new_topic(real, partitions=2, records=1)

    def fails(partitions: frozenset[TopicPartition]) -> None:
        raise ZeroDivisionError(which)

    options: dict[str, Any] = {which: fails, "session_timeout_s": 0.6, "poll_timeout_s": 0.5}
    async with reading(real.consumer(topic, group=wish(topic, "b", **options))) as first:
        await until(lambda: len(first.consumer.assignment()) == 2)
        if which == "on_revoked":
            async with reading(real.consumer(topic, group=wish(topic, "a"))):
                await until(lambda: first.error is not None)
        if which == "on_lost":
            first.gate.clear()
            await fill(real, topic, 1, range(1, 2))
            await asyncio.sleep(1.5)
            first.gate.set()
        await until(lambda: first.error is not None)
        assert isinstance(first.error, ZeroDivisionError)
        if which == "on_assigned":
            assert not first.seen, "its partitions were never delivered"


async def test_callback_may_close_its_consumer(real: Client) -> None:
    topic = await new_topic(real, partitions=2)
    consumers: list[Consumer] = []
    consumers.append(real.consumer(topic, group=wish(topic, "b", on_revoked=lambda _: consumers[0].close())))
    async with reading(consumers[0]) as first:
        await until(lambda: len(first.consumer.assignment()) == 2)
        async with reading(real.consumer(topic, group=wish(topic, "a"))) as second:
            await until(lambda: first.consumer.closed)
            await until(lambda: len(second.consumer.assignment()) == 2)


async def test_close_during_handover_commits_records_in_hand(real: Client) -> None:
    topic = await new_topic(real, partitions=2)
    where = TopicPartition(topic, 0)
    async with reading(real.consumer(topic, group=wish(topic, "b", session_timeout_s=0.5))) as first:
        await until(lambda: len(first.consumer.assignment()) == 2)
        first.gate.clear()
        await fill(real, topic, 1, range(10))
        await until(lambda: len(first.seen) == 1)
        async with reading(real.consumer(topic, group=wish(topic, "a"))) as second:
            await until(lambda: where not in first.consumer.assignment())
            await first.consumer.close()
            assert await positions(real, topic) == {where: 1}
            await until(lambda: second.seen == [b"0:%d" % number for number in range(1, 10)])


async def test_matching_topics_may_grow_be_deleted_and_recreated(real: Client) -> None:
    topic = await new_topic(real, partitions=1, records=3)
    lost: list[TopicPartition] = []
    group = Group(topic, on_lost=lost.extend)
    async with reading(real.consumer(pattern=f"{topic}(-more)?", group=group)) as reader:
        await until(lambda: len(reader.seen) == 3)
        await real.alter_topic(topic, partitions=2)
        await fill(real, topic, 2, range(3, 4))
        await until(lambda: len(reader.seen) == 5)
        await reader.consumer.commit()
        await real.create_topic(f"{topic}-more", partitions=1)
        await fill(real, f"{topic}-more", 1, range(100, 101))
        await until(lambda: reader.seen[-1] == b"0:100")
        await real.delete_topic(topic)
        await until(lambda: reader.consumer.assignment() == {TopicPartition(f"{topic}-more", 0)})
        await until(lambda: sorted(lost) == [TopicPartition(topic, 0), TopicPartition(topic, 1)])
        await real.create_topic(topic, partitions=1)
        await fill(real, topic, 1, range(10))
        await until(lambda: reader.seen[6:] == [b"0:%d" % number for number in range(10)])
        assert reader.error is None


async def test_positions_are_not_committed_to_a_recreated_topic(real: Client) -> None:
    topic = await new_topic(real, partitions=2, records=20)
    goes_on = asyncio.Event()

    async def revoked(_: frozenset[TopicPartition]) -> None:
        await goes_on.wait()

    group = Group(topic, commit_interval_s=99.0, on_revoked=revoked)
    async with reading(real.consumer(topic, group=group)) as first:
        await until(lambda: len(first.seen) == 40)
        async with reading(real.consumer(topic, group=topic)):
            await until(lambda: len(first.consumer.assignment()) == 1)
        await real.delete_topic(topic)
        await real.create_topic(topic, partitions=2)
        await fill(real, topic, 2, range(100, 130))
        await asyncio.sleep(0.5)
        begun = len(first.consumer.assignment())
        goes_on.set()
        assert begun < 2, "it was still releasing its partitions"
        await until(lambda: len(first.seen) == 100)
        assert await positions(real, topic) == {}


async def test_matching_dead_letter_topic_is_held_but_not_read(real: Client) -> None:
    topic = await new_topic(real, partitions=2, records=3)
    dead = f"{topic}-dead"
    await real.create_topic(dead, partitions=2)

    def fussy(content: bytes) -> bytes:
        if content.endswith(b":1"):
            raise ValueError("spoilt")
        return content

    def member(name: str) -> Consumer:
        return real.consumer(pattern=f"{topic}.*", group=wish(topic, name), value_deserializer=fussy, dead_letter=dead)

    async with reading(member("b")) as first:
        await until(lambda: len(first.seen) == 4)
        async with reading(member("a")) as second:
            await until(lambda: second.consumer.assignment() == {TopicPartition(topic, 0)})
            await fill(real, topic, 2, range(3, 5))
            await until(lambda: len(first.seen) + len(second.seen) == 8)
            await asyncio.sleep(0.2)
            assert first.consumer.assignment() == {TopicPartition(topic, 1)}
            assert (first.error, second.error) == (None, None)
    ends = await real.list_offsets(dead, "latest")
    assert sum(each.offset for each in ends.values()) == 2, "each record exactly once"


async def test_late_commit_is_not_stored_for_a_recreated_topic(
    real: Client,
) -> None:
    topic = await new_topic(real, partitions=1, records=50)
    async with reading(real.consumer(topic, group=Group(topic))) as reader:
        await until(lambda: len(reader.seen) == 50)
        reader.gate.clear()
        await fill(real, topic, 1, range(50, 51))
        await until(lambda: len(reader.seen) == 51)
        await real.delete_topic(topic)
        await real.create_topic(topic, partitions=1)
        await fill(real, topic, 1, range(3))
        await asyncio.sleep(0.5)
        reader.gate.set()
        await until(lambda: len(reader.seen) >= 54)
        assert reader.seen[51:] == [b"0:0", b"0:1", b"0:2"]
    assert await positions(real, topic) == {TopicPartition(topic, 0): 3}


def _read(consumer: sync.Consumer, seen: list[bytes | None]) -> None:
    seen.extend(record.value for record in consumer)


async def test_callbacks_of_a_blocking_member_may_block(shared_node: str, real: Client) -> None:
    topic = await new_topic(real, partitions=2, records=20)
    committed: list[int] = []

    def revoked(partitions: frozenset[TopicPartition]) -> None:
        assert threading.current_thread() is not threading.main_thread()
        committed.extend(each.next_offset for each in consumer.commit().values())

    by_hand = wish(topic, "b", commit="manual", on_revoked=revoked)
    with sync.Client(shared_node) as client:
        consumer = client.consumer(topic, group=by_hand)
        seen: list[bytes | None] = []
        async with asyncio.timeout(30):
            task = asyncio.create_task(asyncio.to_thread(partial(_read, consumer, seen)))
            await until(lambda: len(seen) == 40)
            async with reading(real.consumer(topic, group=wish(topic, "a"))) as second:
                await until(lambda: len(second.consumer.assignment()) == 1)
                assert 20 in committed
                await asyncio.to_thread(consumer.close)
                await task
                assert not second.seen
