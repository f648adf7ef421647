"""Group members at a real node: sharing, silence, idleness, rejoining and closing."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import pytest
from tests.clients.sharing import Silence, fill, new_topic, positions, reading, silence, until

from tidelog import Client, Consumer, Group, TopicPartition
from tidelog.errors import InvalidRequestError, MemberFencedError, UnknownTopicError
from tidelog.groups.membership import Membership
from tidelog_proto import broker_pb2 as pb

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("silence")]

__all__ = ["silence"]


def values(partitions: int, count: int) -> list[bytes]:
    return sorted(b"%d:%d" % (partition, number) for partition in range(partitions) for number in range(count))


async def test_rebalance_neither_loses_nor_repeats_records(real: Client) -> None:
    topic = await new_topic(real, partitions=4, records=200)
    async with reading(real.consumer(topic, group=topic), pause_s=0.001) as first:
        await until(lambda: len(first.seen) > 50)
        async with reading(real.consumer(topic, group=topic), pause_s=0.001) as second:
            await until(lambda: len(second.seen) > 50)
            assert len(first.consumer.assignment()) == len(second.consumer.assignment()) == 2
            assert not first.consumer.assignment() & second.consumer.assignment()
        await until(lambda: len(first.consumer.assignment()) == 4)
        await until(lambda: len(first.seen) + len(second.seen) >= 800)
    assert sorted(first.seen + second.seen) == values(4, 200)
    assert set((await positions(real, topic)).values()) == {200}


async def test_silent_member_stops_before_another_begins(shared_node: str, real: Client, silence: Silence) -> None:
    topic = await new_topic(real, partitions=1, records=1000)
    wish = Group(topic, session_timeout_s=3.0, commit="manual")
    where = TopicPartition(topic, 0)
    async with Client(shared_node) as other, reading(other.consumer(topic, group=wish), pause_s=0.005) as first:
        await until(lambda: len(first.seen) > 5)
        consumer = real.consumer(topic, group=wish)
        async with reading(consumer, pause_s=0.005) as second:
            await until(lambda: consumer.generation > 0)
            assert first.consumer.assignment(), "members keep their partitions"
            before, silence.for_good = first.consumer.member_id, True
            silence.of.add(before)
            await until(lambda: bool(second.seen) or not first.consumer.assignment())
            assert not second.seen, "the silent member stops first"
            stopped_at = len(first.seen)
            with pytest.raises(MemberFencedError):
                await first.consumer.commit({where: 5})
            await until(lambda: len(second.seen) > 5)
            assert len(first.seen) == stopped_at
            assert second.seen[0] == b"0:0", "nothing was committed"
            silence.routers.clear()
            await until(lambda: first.consumer.generation > 0)
            assert first.consumer.member_id != before
            with pytest.raises(MemberFencedError):
                await first.consumer.commit({where: 5})
            with pytest.raises(MemberFencedError, match="are delivered again to members of the group"):
                await first.consumer.commit()
            assert await first.consumer.commit() == {}


async def test_heartbeat_after_a_failure_is_not_held_back(
    real: Client, silence: Silence, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[int] = []
    heartbeat = Membership.heartbeat

    def noted(self: Membership, *, wait_ms: int, **more: Any) -> pb.GroupHeartbeat:
        waits.append(wait_ms)
        return heartbeat(self, wait_ms=wait_ms, **more)

    monkeypatch.setattr(Membership, "heartbeat", noted)
    topic = await new_topic(real, partitions=1, records=10)
    consumer = real.consumer(topic, group=Group(topic, session_timeout_s=8.0))
    async with reading(consumer) as reader:
        await until(lambda: len(reader.seen) == 10)
        assert set(waits) == {2000}, "a long poll could outlast the session if the coordinator died"
        silence.of.add(consumer.member_id)
        await until(lambda: len(waits) > 3)
        silence.of.clear()
        since = len(waits)
        await until(lambda: waits[-1] == 2000)
        assert set(waits[since:-1]) <= {0}
        assert 0 in waits, "part of the session passed without an answer"


async def test_blocked_loop_delivers_nothing_after_session_expiry(real: Client) -> None:
    """The application blocks the event loop, so no other task can notice the expiry."""
    topic = await new_topic(real, partitions=1, records=10)
    consumer = real.consumer(topic, group=Group(topic, session_timeout_s=0.5, commit="manual"))
    async with consumer:
        assert (await anext(consumer)).value == b"0:0"
        before = consumer.member_id
        time.sleep(0.7)  # noqa: ASYNC251 - blocks the loop on purpose
        assert (await anext(consumer)).value == b"0:0", "another member may own it: it begins again"
        assert consumer.member_id != before


async def test_suspended_machine_delivers_nothing_after_session_expiry(
    real: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The monotonic clock, which drives the event loop's timers, stopped during suspension."""
    topic = await new_topic(real, partitions=1, records=10)
    async with real.consumer(topic, group=Group(topic, session_timeout_s=5.0, commit="manual")) as consumer:
        assert (await anext(consumer)).value == b"0:0"
        before, clock = consumer.member_id, time.clock_gettime
        monkeypatch.setattr(time, "clock_gettime", lambda which: clock(which) + 60.0)
        assert (await anext(consumer)).value == b"0:0", "another member may have continued: this one begins again"
        assert consumer.member_id != before


async def test_application_that_never_waits_stays_a_member(real: Client) -> None:
    """Iterating over received records needs no waiting; the consumer yields for heartbeats nevertheless."""
    topic = await new_topic(real, partitions=1, records=100)
    async with real.consumer(topic, group=Group(topic)) as consumer:
        await until(lambda: bool(consumer.assignment()))
        before = consumer.member_id
        seen = []
        session_ends = set()
        async for record in consumer:
            seen.append(record.value)
            session_ends.add(consumer.reads_until)
            time.sleep(0.04)  # noqa: ASYNC251 - blocking work
            if len(seen) == 100:
                break
        assert len(session_ends) > 1, "a heartbeat was answered meanwhile"
        assert consumer.member_id == before
    assert seen == [b"0:%d" % number for number in range(100)]


async def test_fenced_member_rejoins_and_logs_it(
    real: Client, silence: Silence, caplog: pytest.LogCaptureFixture
) -> None:
    topic = await new_topic(real, partitions=2, records=50)
    caplog.set_level(logging.WARNING, "tidelog.consumer")
    for commit in ("auto", "processed", "manual"):
        caplog.clear()
        group = f"{topic}-{commit}"
        lost: list[frozenset[TopicPartition]] = []
        wish = Group(group, session_timeout_s=0.5, commit=commit, on_lost=lost.append)
        async with reading(real.consumer(topic, group=wish), pause_s=0.005) as reader:
            await until(lambda: len(reader.seen) > 3)
            before = reader.consumer.member_id
            silence.of.add(before)
            await until(lambda: reader.consumer.member_id not in {"", *silence.of})
            await until(lambda: set(reader.seen) == set(values(2, 50)))
            assert reader.error is None
        assert lost
        told = [record.getMessage() for record in caplog.records if "joining again" in record.getMessage()]
        assert told
        assert all(topic in each and group in each and "0.5 s" in each for each in told)


@pytest.mark.parametrize("why", ["fenced", "idle"])
async def test_close_in_on_lost_leaves_the_group(real: Client, silence: Silence, why: str) -> None:
    topic = await new_topic(real, partitions=2, records=50)
    consumers: list[Consumer] = []
    group = Group(
        topic,
        session_timeout_s=0.5,
        poll_timeout_s=0.5 if why == "idle" else 300.0,
        on_lost=lambda _: consumers[0].close(),
    )
    consumers.append(consumer := real.consumer(topic, group=group))
    assert await consumer.poll(1, timeout_s=10.0)
    if why == "fenced":
        silence.of.add(consumer.member_id)
    await until(lambda: consumer.closed)
    await until(lambda: f"member of {topic}" not in {task.get_name() for task in asyncio.all_tasks()})
    async with reading(real.consumer(topic, group=Group(topic, session_timeout_s=0.5))) as other:
        await until(lambda: set(other.seen) == set(values(2, 50)))
        await asyncio.sleep(0.5)
        assert (await real.groups.describe(topic)).member_count == 1
    assert not consumer.member_id
    assert not consumer.assignment()


async def test_refused_commit_of_processed_records_does_not_end_reading(
    shared_node: str, real: Client, silence: Silence, caplog: pytest.LogCaptureFixture
) -> None:
    """The partition has moved to another member, and this one commits before it notices."""
    topic = await new_topic(real, partitions=1, records=3)
    wish = Group(topic, session_timeout_s=1800.0, commit="processed", instance_id="one", takeover="at_once")
    async with Client(shared_node) as other, other.consumer(topic, group=wish) as first:
        assert [record.value for record in await first.poll(1, timeout_s=60.0)] == [b"0:0"]
        silence.for_good = True
        silence.of.add(first.member_id)
        async with reading(real.consumer(topic, group=wish)) as second:
            await until(lambda: len(second.seen) == 3)
            await first.poll(1, timeout_s=0.1)
            (told,) = [each.getMessage() for each in caplog.records if each.name == "tidelog.consumer"]
            assert f"{topic}/0" in told


async def test_later_process_of_an_instance_fences_the_earlier(
    shared_node: str, real: Client, caplog: pytest.LogCaptureFixture
) -> None:
    topic = await new_topic(real, partitions=1)
    wish = Group(topic, instance_id="one")
    async with Client(shared_node) as other, reading(other.consumer(topic, group=wish)) as first:
        await until(lambda: bool(first.consumer.assignment()))
        async with reading(real.consumer(topic, group=wish)) as second:
            await until(lambda: bool(second.consumer.assignment()))
            holds = second.consumer.member_id
            await until(lambda: sum("refused the join" in each.getMessage() for each in caplog.records) > 1)
            assert second.consumer.member_id == holds
            assert second.consumer.assignment()
            assert not first.consumer.assignment()


async def test_successor_waits_for_partitioned_static_member_to_stop(
    shared_node: str, real: Client, silence: Silence
) -> None:
    """The member is partitioned from its coordinator but still receives and delivers records."""
    topic = await new_topic(real, partitions=1, records=1000)
    wish = Group(topic, session_timeout_s=3.0, commit="manual", instance_id="one")
    async with Client(shared_node) as other, reading(other.consumer(topic, group=wish), pause_s=0.005) as first:
        await until(lambda: len(first.seen) > 5)
        silence.for_good = True
        silence.of.add(first.consumer.member_id)
        async with reading(real.consumer(topic, group=wish), pause_s=0.005) as second:
            await until(lambda: bool(second.seen) or not first.consumer.assignment())
            assert not second.seen, "the partitioned member stops first"
            stopped_at = len(first.seen)
            await until(lambda: len(second.seen) > 5)
            assert len(first.seen) == stopped_at
            silence.routers.clear()


async def test_immediate_takeover_overlaps_with_partitioned_static_member(
    shared_node: str, real: Client, silence: Silence
) -> None:
    topic = await new_topic(real, partitions=1, records=10)
    wish = Group(topic, session_timeout_s=1800.0, commit="manual", instance_id="one", takeover="at_once")
    async with Client(shared_node) as other, reading(other.consumer(topic, group=wish)) as first:
        await until(lambda: len(first.seen) == 10)
        silence.for_good = True
        silence.of.add(first.consumer.member_id)
        async with reading(real.consumer(topic, group=wish)) as second:
            await until(lambda: second.seen == first.seen)
            assert first.consumer.assignment()


async def test_connected_static_member_hands_over_without_duplicates(shared_node: str, real: Client) -> None:
    topic = await new_topic(real, partitions=2, records=200)
    wish = Group(topic, session_timeout_s=1800.0, instance_id="one")
    async with Client(shared_node) as other, reading(other.consumer(topic, group=wish), pause_s=0.002) as first:
        await until(lambda: len(first.seen) > 20)
        async with reading(real.consumer(topic, group=wish)) as second:
            await until(lambda: len(first.seen) + len(second.seen) >= 400)
            assert second.seen
        assert sorted(first.seen + second.seen) == values(2, 200)


async def test_successor_of_a_closed_static_member_does_not_wait(shared_node: str, real: Client) -> None:
    topic = await new_topic(real, partitions=2)
    wish = Group(topic, session_timeout_s=1800.0, instance_id="one")
    async with Client(shared_node) as other, reading(other.consumer(topic, group=wish)) as first:
        await until(lambda: len(first.consumer.assignment()) == 2)
    async with reading(real.consumer(topic, group=wish)) as second:
        await until(lambda: len(second.consumer.assignment()) == 2)


async def test_idle_members_partitions_move_to_another_and_return(real: Client) -> None:
    topic = await new_topic(real, partitions=2, records=20)
    idle = Group(topic, poll_timeout_s=0.5, session_timeout_s=3.0)
    async with reading(real.consumer(topic, group=idle)) as first:
        await until(lambda: len(first.seen) == 40)
        first.gate.clear()
        await fill(real, topic, 2, range(20, 40))
        await until(lambda: len(first.seen) > 40)
        in_hand = first.seen[-1]
        started = time.monotonic()
        async with reading(real.consumer(topic, group=Group(topic, session_timeout_s=3.0))) as second:
            await until(lambda: len(second.consumer.assignment()) == 2)
            assert time.monotonic() - started < 2.5, "earlier than the next regular heartbeat"
            await until(lambda: len(second.seen) == 40)
            assert second.seen.count(in_hand) == 1, "records in hand are read again"
            assert sorted({*first.seen, *second.seen}) == values(2, 40)
            assert not {*first.seen[:40]} & {*second.seen}, "processed records are not"
            first.gate.set()
            await until(lambda: len(first.consumer.assignment()) == 1)


async def test_waiting_poll_is_not_idle(real: Client) -> None:
    topic = await new_topic(real, partitions=1)
    wish = Group(topic, poll_timeout_s=0.2)
    async with real.consumer(topic, group=wish) as consumer:
        polling = asyncio.create_task(consumer.poll(1, timeout_s=60.0))
        await until(lambda: bool(consumer.assignment()))
        before = consumer.member_id
        await asyncio.sleep(1.0)
        assert consumer.member_id == before
        await fill(real, topic, 1, range(1))
        assert [record.value for record in await polling] == [b"0:0"]


async def test_static_member_restart_causes_no_rebalance(real: Client) -> None:
    topic = await new_topic(real, partitions=4)
    told: list[str] = []
    wish = Group(
        topic,
        on_assigned=lambda _: told.append("assigned"),
        on_revoked=lambda _: told.append("revoked"),
        on_lost=lambda _: told.append("lost"),
    )
    async with reading(real.consumer(topic, group=wish)) as other:
        async with reading(real.consumer(topic, group=Group(topic, instance_id="one"))) as first:
            await until(lambda: len(first.consumer.assignment()) == len(other.consumer.assignment()) == 2)
            had = first.consumer.assignment()
        told.clear()
        async with reading(real.consumer(topic, group=Group(topic, instance_id="one"))) as again:
            await until(lambda: again.consumer.assignment() == had)
        assert not told
        assert len(other.consumer.assignment()) == 2


async def test_static_members_partitions_stay_reserved_after_disconnect(shared_node: str, real: Client) -> None:
    topic = await new_topic(real, partitions=2)
    async with Client(shared_node) as dies:
        consumer = dies.consumer(topic, group=Group(topic, instance_id="one", session_timeout_s=6.0))
        await consumer.begin()
        await until(lambda: len(consumer.assignment()) == 2)
    async with reading(real.consumer(topic, group=topic)) as other:
        await until(lambda: other.consumer.generation > 0)
        await asyncio.sleep(4.0)
        assert len(other.consumer.assignment()) <= 1
        await until(lambda: len(other.consumer.assignment()) == 2)


async def test_unknown_topics_and_manual_assignment_are_refused(real: Client) -> None:
    with pytest.raises(UnknownTopicError, match="no-such-topic"):
        await real.consumer("no-such-topic", group="g").begin()
    topic = await new_topic(real, partitions=1)
    async with real.consumer(topic, group=topic) as consumer:
        with pytest.raises(InvalidRequestError, match="assigns partitions"):
            await consumer.assign({TopicPartition(topic, 0): None})
        with pytest.raises(InvalidRequestError, match="assigns partitions"):
            await consumer.unassign([TopicPartition(topic, 0)])
    with pytest.raises(InvalidRequestError, match="does not join a group"):
        real.consumer(topic, group=Group(topic, commit="manual"), partitions=[0])


async def test_close_during_join_leaves_no_member(real: Client) -> None:
    topic = await new_topic(real, partitions=1)
    for wait_s in (0.0, 0.001, 0.003, 0.006):
        consumer = real.consumer(topic, group=topic)
        await consumer.begin()
        await asyncio.sleep(wait_s)
        await asyncio.gather(consumer.close(), consumer.close())
    async with reading(real.consumer(topic, group=topic)) as reader:
        await until(lambda: len(reader.consumer.assignment()) == 1, 7.0)  # less than a session
        assert len((await real.groups.describe(topic)).members) == 1


async def test_close_ends_waiting_iterations(real: Client) -> None:
    topic = await new_topic(real, partitions=1)
    consumer = real.consumer(topic, group=topic)
    waiting = asyncio.create_task(anext(consumer, None))
    await until(lambda: bool(consumer.assignment()))
    await asyncio.gather(consumer.close(), consumer.close())
    assert await waiting is None
    assert await consumer.poll(1, timeout_s=5.0) == []


async def test_closing_the_client_closes_its_members(shared_node: str, real: Client) -> None:
    topic = await new_topic(real, partitions=1, records=10)
    async with Client(shared_node) as client:
        consumer = client.consumer(topic, group=topic)
        assert [record.value for record in await consumer.poll(4, timeout_s=60.0)] == values(1, 4)
    assert (await real.groups.describe(topic)).members == ()
    assert await positions(real, topic) == {TopicPartition(topic, 0): 4}


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 8])
async def test_cancelled_close_leaves_no_tasks(real: Client, steps: int) -> None:
    topic = await new_topic(real, partitions=1, records=10)
    before = asyncio.all_tasks()
    consumer = real.consumer(topic, group=topic)
    await consumer.begin()
    await until(lambda: bool(consumer.assignment()))
    closing = asyncio.create_task(consumer.close())
    for _ in range(steps):  # some of them pass while the leave request is in flight
        await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait({closing})
    await asyncio.sleep(0.1)
    left = {task.get_name() for task in asyncio.all_tasks() - before}
    assert not {name for name in left if name == "consume" or topic in name}
