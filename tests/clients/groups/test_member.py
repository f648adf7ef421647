"""Members of a group at a real node: sharing, being silent, being idle, coming back, and ending."""

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


async def test_two_members_share_and_nothing_is_read_twice_when_one_comes_and_goes(real: Client) -> None:
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


async def test_a_silent_member_stops_by_its_own_clock_before_the_other_begins(
    shared_node: str, real: Client, silence: Silence
) -> None:
    topic = await new_topic(real, partitions=1, records=1000)
    wish = Group(topic, session_timeout_s=3.0, commit="manual")
    where = TopicPartition(topic, 0)
    async with Client(shared_node) as other, reading(other.consumer(topic, group=wish), pause_s=0.005) as first:
        await until(lambda: len(first.seen) > 5)
        consumer = real.consumer(topic, group=wish)
        async with reading(consumer, pause_s=0.005) as second:
            await until(lambda: consumer.generation > 0)
            assert first.consumer.assignment(), "what a member has stays with it"
            before, silence.for_good = first.consumer.member_id, True
            silence.of.add(before)
            await until(lambda: bool(second.seen) or not first.consumer.assignment())
            assert not second.seen, "the silent one stops first"
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
            with pytest.raises(MemberFencedError, match="read again"):
                await first.consumer.commit()
            assert await first.consumer.commit() == {}


async def test_a_member_that_was_not_answered_asks_for_an_answer_at_once(
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
        assert set(waits) == {2000}, "the session would run out while it waits, if the coordinator died meanwhile"
        silence.of.add(consumer.member_id)
        await until(lambda: len(waits) > 3)
        silence.of.clear()
        since = len(waits)
        await until(lambda: waits[-1] == 2000)
        assert set(waits[since:-1]) <= {0}
        assert 0 in waits, "the session ran on while nobody answered"


async def test_a_member_whose_loop_is_blocked_hands_out_nothing_when_its_session_is_over(real: Client) -> None:
    """The user's own code keeps the loop from running: nobody could tell the consumer by then."""
    topic = await new_topic(real, partitions=1, records=10)
    consumer = real.consumer(topic, group=Group(topic, session_timeout_s=0.5, commit="manual"))
    async with consumer:
        assert (await anext(consumer)).value == b"0:0"
        before = consumer.member_id
        time.sleep(0.7)  # noqa: ASYNC251 - that is the point
        assert (await anext(consumer)).value == b"0:0", "by then another member may have it: it begins again"
        assert consumer.member_id != before


async def test_a_member_whose_machine_slept_hands_out_nothing_when_its_session_is_over(
    real: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The monotonic clock, which the event loop's timers go by, stood still meanwhile."""
    topic = await new_topic(real, partitions=1, records=10)
    async with real.consumer(topic, group=Group(topic, session_timeout_s=5.0, commit="manual")) as consumer:
        assert (await anext(consumer)).value == b"0:0"
        before, clock = consumer.member_id, time.clock_gettime
        monkeypatch.setattr(time, "clock_gettime", lambda which: clock(which) + 60.0)
        assert (await anext(consumer)).value == b"0:0", "another member may have read on: this one begins again"
        assert consumer.member_id != before


async def test_a_user_who_never_waits_stays_a_member(real: Client) -> None:
    """Iterating over what has arrived needs no waiting; the member gets its turns all the same."""
    topic = await new_topic(real, partitions=1, records=100)
    async with real.consumer(topic, group=Group(topic, session_timeout_s=2.0)) as consumer:
        await until(lambda: bool(consumer.assignment()))
        before = consumer.member_id
        seen = []
        async for record in consumer:
            seen.append(record.value)
            time.sleep(0.04)  # noqa: ASYNC251 - work that does not wait
            if len(seen) == 100:
                break
        await asyncio.sleep(0.1)
        assert consumer.member_id == before
    assert seen == [b"0:%d" % number for number in range(100)]


async def test_a_fenced_member_goes_on_by_itself_and_the_log_says_so(
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
        told = [record.getMessage() for record in caplog.records if "joins anew" in record.getMessage()]
        assert told
        assert all(topic in each and group in each and "0.5 s" in each for each in told)


@pytest.mark.parametrize("why", ["fenced", "idle"])
async def test_who_closes_as_he_is_told_of_a_loss_is_a_member_no_more(real: Client, silence: Silence, why: str) -> None:
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


async def test_a_commit_that_is_refused_as_the_user_asks_for_more_does_not_end_reading(
    shared_node: str, real: Client, silence: Silence, caplog: pytest.LogCaptureFixture
) -> None:
    """The partition is another's; the member has not heard of it, and commits what it is done with."""
    topic = await new_topic(real, partitions=1, records=3)
    wish = Group(topic, session_timeout_s=1800.0, commit="processed", instance_id="one", takeover="at_once")
    async with Client(shared_node) as other, other.consumer(topic, group=wish) as first:
        assert [record.value for record in await first.poll(1)] == [b"0:0"]
        silence.for_good = True
        silence.of.add(first.member_id)
        async with reading(real.consumer(topic, group=wish)) as second:
            await until(lambda: len(second.seen) == 3)
            await first.poll(1, timeout_s=0.1)
            (told,) = [each.getMessage() for each in caplog.records if each.name == "tidelog.consumer"]
            assert f"{topic}/0" in told


async def test_of_two_processes_with_one_instance_the_later_one_holds(
    shared_node: str, real: Client, caplog: pytest.LogCaptureFixture
) -> None:
    topic = await new_topic(real, partitions=1)
    wish = Group(topic, instance_id="one")
    async with Client(shared_node) as other, reading(other.consumer(topic, group=wish)) as first:
        await until(lambda: bool(first.consumer.assignment()))
        async with reading(real.consumer(topic, group=wish)) as second:
            await until(lambda: bool(second.consumer.assignment()))
            holds = second.consumer.member_id
            await until(lambda: sum("may not join" in each.getMessage() for each in caplog.records) > 1)
            assert second.consumer.member_id == holds
            assert second.consumer.assignment()
            assert not first.consumer.assignment()


async def test_a_successor_waits_until_a_static_member_that_is_cut_off_has_stopped(
    shared_node: str, real: Client, silence: Silence
) -> None:
    """The member that is cut off from its coordinator is still sent records, and hands them out."""
    topic = await new_topic(real, partitions=1, records=1000)
    wish = Group(topic, session_timeout_s=3.0, commit="manual", instance_id="one")
    async with Client(shared_node) as other, reading(other.consumer(topic, group=wish), pause_s=0.005) as first:
        await until(lambda: len(first.seen) > 5)
        silence.for_good = True
        silence.of.add(first.consumer.member_id)
        async with reading(real.consumer(topic, group=wish), pause_s=0.005) as second:
            await until(lambda: bool(second.seen) or not first.consumer.assignment())
            assert not second.seen, "the one that is cut off stops first"
            stopped_at = len(first.seen)
            await until(lambda: len(second.seen) > 5)
            assert len(first.seen) == stopped_at
            silence.routers.clear()


async def test_a_successor_that_takes_over_at_once_reads_beside_a_static_member_that_is_cut_off(
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


async def test_a_static_member_that_is_heard_gives_its_successor_everything_without_repetition(
    shared_node: str, real: Client
) -> None:
    topic = await new_topic(real, partitions=2, records=200)
    wish = Group(topic, session_timeout_s=1800.0, instance_id="one")
    async with Client(shared_node) as other, reading(other.consumer(topic, group=wish), pause_s=0.002) as first:
        await until(lambda: len(first.seen) > 20)
        async with reading(real.consumer(topic, group=wish)) as second:
            await until(lambda: len(first.seen) + len(second.seen) >= 400)
            assert second.seen
        assert sorted(first.seen + second.seen) == values(2, 200)


async def test_a_successor_of_a_static_member_that_was_closed_does_not_wait(shared_node: str, real: Client) -> None:
    topic = await new_topic(real, partitions=2)
    wish = Group(topic, session_timeout_s=1800.0, instance_id="one")
    async with Client(shared_node) as other, reading(other.consumer(topic, group=wish)) as first:
        await until(lambda: len(first.consumer.assignment()) == 2)
    async with reading(real.consumer(topic, group=wish)) as second:
        await until(lambda: len(second.consumer.assignment()) == 2)


async def test_partitions_of_a_user_who_asks_for_nothing_go_to_another_and_come_back(real: Client) -> None:
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
            assert time.monotonic() - started < 2.5, "not only with the next question of a third of the session"
            await until(lambda: len(second.seen) == 40)
            assert second.seen.count(in_hand) == 1, "what was in hand is read again"
            assert sorted({*first.seen, *second.seen}) == values(2, 40)
            assert not {*first.seen[:40]} & {*second.seen}, "what was done is not"
            first.gate.set()
            await until(lambda: len(first.consumer.assignment()) == 1)


async def test_a_poll_that_waits_for_ever_is_not_idle(real: Client) -> None:
    topic = await new_topic(real, partitions=1)
    wish = Group(topic, poll_timeout_s=0.2, session_timeout_s=0.6)
    async with real.consumer(topic, group=wish) as consumer:
        polling = asyncio.create_task(consumer.poll(1, timeout_s=60.0))
        await until(lambda: bool(consumer.assignment()))
        before = consumer.member_id
        await asyncio.sleep(1.0)
        assert consumer.member_id == before
        await fill(real, topic, 1, range(1))
        assert [record.value for record in await polling] == [b"0:0"]


async def test_a_static_member_restarts_and_nobody_else_is_disturbed(real: Client) -> None:
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


async def test_partitions_of_a_static_member_wait_for_a_session_though_its_connection_has_ended(
    shared_node: str, real: Client
) -> None:
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


async def test_unknown_topics_are_refused_and_a_group_decides_what_is_read(real: Client) -> None:
    with pytest.raises(UnknownTopicError, match="no-such-topic"):
        await real.consumer("no-such-topic", group="g").begin()
    topic = await new_topic(real, partitions=1)
    async with real.consumer(topic, group=topic) as consumer:
        with pytest.raises(InvalidRequestError, match="decides"):
            await consumer.assign({TopicPartition(topic, 0): None})
        with pytest.raises(InvalidRequestError, match="decides"):
            await consumer.unassign([TopicPartition(topic, 0)])
    with pytest.raises(InvalidRequestError, match="member"):
        real.consumer(topic, group=Group(topic, commit="manual"), partitions=[0])


async def test_closing_during_the_join_leaves_no_member(real: Client) -> None:
    topic = await new_topic(real, partitions=1)
    for wait_s in (0.0, 0.001, 0.003, 0.006):
        consumer = real.consumer(topic, group=topic)
        await consumer.begin()
        await asyncio.sleep(wait_s)
        await asyncio.gather(consumer.close(), consumer.close())
    async with reading(real.consumer(topic, group=topic)) as reader:
        await until(lambda: len(reader.consumer.assignment()) == 1, 7.0)  # less than a session
        assert len((await real.groups.describe(topic)).members) == 1


async def test_whoever_waits_comes_to_the_end_when_another_task_closes(real: Client) -> None:
    topic = await new_topic(real, partitions=1)
    consumer = real.consumer(topic, group=topic)
    waiting = asyncio.create_task(anext(consumer, None))
    await until(lambda: bool(consumer.assignment()))
    await asyncio.gather(consumer.close(), consumer.close())
    assert await waiting is None
    assert await consumer.poll(1, timeout_s=5.0) == []


async def test_a_client_that_is_closed_closes_its_members(shared_node: str, real: Client) -> None:
    topic = await new_topic(real, partitions=1, records=10)
    async with Client(shared_node) as client:
        consumer = client.consumer(topic, group=topic)
        assert [record.value for record in await consumer.poll(4)] == values(1, 4)
    assert (await real.groups.describe(topic)).members == ()
    assert await positions(real, topic) == {TopicPartition(topic, 0): 4}


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 8])
async def test_closing_that_is_cancelled_leaves_nothing_running(real: Client, steps: int) -> None:
    topic = await new_topic(real, partitions=1, records=10)
    before = asyncio.all_tasks()
    consumer = real.consumer(topic, group=topic)
    await consumer.begin()
    await until(lambda: bool(consumer.assignment()))
    closing = asyncio.create_task(consumer.close())
    for _ in range(steps):  # the leave is under way after some of them
        await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait({closing})
    await asyncio.sleep(0.1)
    left = {task.get_name() for task in asyncio.all_tasks() - before}
    assert not {name for name in left if name == "consume" or topic in name}
