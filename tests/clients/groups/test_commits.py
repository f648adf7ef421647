"""Commits of members: every commit mode with a crash, and refused commits."""

from __future__ import annotations

import asyncio
from typing import Any, get_args

import pytest
from tests.clients.sharing import Silence, fill, new_topic, positions, reading, silence, until

from tidelog import Client, Consumer, Group, TopicPartition
from tidelog.errors import InvalidRequestError, MemberFencedError, TidelogError, UnknownTopicError
from tidelog.groups import commits
from tidelog.groups.options import CommitWhen
from tidelog.requests.list_offsets import beyond_ends

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("silence")]

__all__ = ["silence"]

WAYS: tuple[CommitWhen, ...] = get_args(CommitWhen)


async def crash_in_a_loop(consumer: Consumer) -> None:
    """Raise while the fifth record is being processed."""
    async with consumer:
        async for record in consumer:
            if record.offset == 4:
                raise ZeroDivisionError


@pytest.mark.parametrize("commit", WAYS)
async def test_record_in_hand_is_read_again_after_a_crash(real: Client, commit: CommitWhen) -> None:
    topic = await new_topic(real, partitions=1, records=10)
    wish = Group(topic, commit=commit)
    with pytest.raises(ZeroDivisionError):
        await crash_in_a_loop(real.consumer(topic, group=wish))
    expected = {} if commit == "manual" else {TopicPartition(topic, 0): 4}
    assert await positions(real, topic) == expected
    async with real.consumer(topic, group=wish) as consumer:
        assert (await anext(consumer)).offset == (0 if commit == "manual" else 4)


@pytest.mark.parametrize("commit", WAYS)
async def test_list_and_batch_are_in_hand_as_a_whole(real: Client, commit: CommitWhen) -> None:
    topic = await new_topic(real, partitions=1, records=10)
    await fill(real, topic, 1, range(10, 20))
    where, wish = TopicPartition(topic, 0), Group(topic, commit=commit)
    consumer = real.consumer(topic, group=wish)
    assert len(await consumer.poll(3, timeout_s=60.0)) == 3
    assert len(await consumer.poll(3, timeout_s=60.0)) == 3
    if commit == "processed":
        assert await positions(real, topic) == {where: 3}, "committed when the second list was requested"
    await consumer.abort()
    assert await positions(real, topic) == ({} if commit == "manual" else {where: 3})
    consumer = real.consumer(topic, group=wish)
    begins: list[int] = []
    async for batch in consumer.batches():
        begins.append(batch.batch.base_offset)
        if len(begins) == 2:
            await consumer.abort()
    assert begins[1] == 10
    assert await positions(real, topic) == ({} if commit == "manual" else {where: 10})


@pytest.mark.parametrize("commit", WAYS)
async def test_close_commits_delivered_records(real: Client, commit: CommitWhen) -> None:
    topic = await new_topic(real, partitions=1, records=10)
    async with real.consumer(topic, group=Group(topic, commit=commit)) as consumer:
        assert len(await consumer.poll(3, timeout_s=60.0)) == 3
    assert await positions(real, topic) == ({} if commit == "manual" else {TopicPartition(topic, 0): 3})


async def test_processed_positions_are_committed_periodically(real: Client) -> None:
    topic = await new_topic(real, partitions=1, records=10)
    async with real.consumer(topic, group=Group(topic, commit_interval_s=0.1)) as consumer:
        assert len(await consumer.poll(3, timeout_s=60.0)) == 3
        await asyncio.sleep(0.3)
        assert await positions(real, topic) == {}, "three records are in hand"
        assert len(await consumer.poll(3, timeout_s=60.0)) == 3
        await asyncio.sleep(0.5)
        assert await positions(real, topic) == {TopicPartition(topic, 0): 3}


async def test_manual_commits_store_positions(real: Client) -> None:
    topic = await new_topic(real, partitions=2, records=10)
    where = TopicPartition(topic, 0)
    async with real.consumer(topic, group=Group(topic, commit="manual")) as consumer:
        await until(lambda: len(consumer.assignment()) == 2)
        assert await consumer.commit() == {}
        held = await consumer.commit({where: 4}, note="by hand")
        assert (held[where].next_offset, held[where].note) == (4, "by hand")
        with pytest.raises(TidelogError):
            await consumer.commit({where: 11})
        assert (await consumer.commit({where: 2}))[where].next_offset == 4, "positions only move forward"
        for offset in (-1, 2**63, 2**64):
            with pytest.raises(InvalidRequestError):
                await consumer.commit({where: offset})
        with pytest.raises(TidelogError):
            await consumer.commit({TopicPartition("never-read", 0): 1})
    assert await positions(real, topic) == {where: 4}


async def test_manual_commit_in_on_revoked_also_runs_on_close(real: Client) -> None:
    topic = await new_topic(real, partitions=1, records=10)

    async def revoked(_: frozenset[TopicPartition]) -> None:
        await consumer.commit()

    consumer = real.consumer(topic, group=Group(topic, commit="manual", on_revoked=revoked))
    assert len(await consumer.poll(4, timeout_s=60.0)) == 4
    await consumer.close()
    assert await positions(real, topic) == {TopicPartition(topic, 0): 4}


async def test_partition_of_another_member_is_refused_and_the_rest_stored(real: Client) -> None:
    topic = await new_topic(real, partitions=2)
    wish = Group(topic, commit="manual")
    async with reading(real.consumer(topic, group=wish)) as first, reading(real.consumer(topic, group=wish)) as second:
        await until(lambda: len(first.consumer.assignment()) == len(second.consumer.assignment()) == 1)
        await fill(real, topic, 2, range(3))
        (mine,), (other,) = first.consumer.assignment(), second.consumer.assignment()
        message = f"partition {other.partition} of topic '{topic}' is not held by this member of group"
        with pytest.raises(MemberFencedError, match=message):
            await first.consumer.commit({other: 1, mine: 2})
        assert await positions(real, topic) == {mine: 2}


async def test_positions_belong_to_the_topic_id_at_commit_time(real: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = await new_topic(real, partitions=1, records=10)
    where, entered, goes_on = TopicPartition(topic, 0), asyncio.Event(), asyncio.Event()

    async def slow_ends(*asked: Any) -> Any:
        entered.set()
        await goes_on.wait()
        return await beyond_ends(*asked)

    monkeypatch.setattr(commits, "beyond_ends", slow_ends)
    told = list[TidelogError | None]()
    async with reading(real.consumer(topic, group=Group(topic, commit="manual"))) as reader:
        await until(lambda: len(reader.seen) == 10)
        reader.consumer.commit_soon({where: 4}, on_commit=lambda _, error: told.append(error))
        await entered.wait()
        committing = asyncio.create_task(reader.consumer.commit({where: 5}))
        await asyncio.sleep(0)
        await real.delete_topic(topic)
        await real.create_topic(topic)
        await fill(real, topic, 1, range(100, 120))
        await until(lambda: len(reader.seen) == 30)
        goes_on.set()
        with pytest.raises(UnknownTopicError):
            await committing
        assert [type(error) for error in told] == [UnknownTopicError]
        assert await positions(real, topic) == {}


async def test_unread_topic_is_refused_and_the_rest_stored(real: Client) -> None:
    topic, unread = await new_topic(real, partitions=1, records=3), await new_topic(real, partitions=1, records=3)
    mine = TopicPartition(topic, 0)
    async with reading(real.consumer(topic, group=Group(topic, commit="manual"))) as reader:
        await until(lambda: len(reader.seen) == 3)
        for strange in (TopicPartition(unread, 0), TopicPartition("nowhere", 0)):
            with pytest.raises(MemberFencedError, match=f"does not read topic '{strange.topic}'"):
                await reader.consumer.commit({strange: 1, mine: 2})
    assert await positions(real, topic) == {mine: 2}


async def test_commit_with_an_old_generation_is_refused(shared_node: str, real: Client, silence: Silence) -> None:
    """A member that lost a partition and got it back without noticing has an old generation."""
    topic = await new_topic(real, partitions=1, records=5)
    wish = Group(topic, commit="manual", session_timeout_s=0.8)
    where = TopicPartition(topic, 0)
    async with Client(shared_node) as other, reading(other.consumer(topic, group=wish)) as first:
        await until(lambda: len(first.seen) == 5)
        generation = first.consumer.generation
        silence.for_good = True
        silence.of.add(first.consumer.member_id)
        async with reading(real.consumer(topic, group=wish)) as second:
            await until(lambda: len(second.seen) == 5)
            with pytest.raises(MemberFencedError):
                await first.consumer.commit({where: 5})
        silence.routers.clear()
        await until(lambda: first.consumer.generation > generation)
        assert await positions(real, topic) == {}
        await until(lambda: len(first.seen) == 10)
        assert (await first.consumer.commit({where: 5}))[where].next_offset == 5


async def test_commit_after_topic_deletion_is_refused(real: Client) -> None:
    topic = await new_topic(real, partitions=1, records=5)
    where = TopicPartition(topic, 0)
    async with reading(real.consumer(topic, group=Group(topic, commit="manual"))) as reader:
        await until(lambda: len(reader.seen) == 5)
        await reader.consumer.commit()
        await real.delete_topic(topic)
        with pytest.raises((UnknownTopicError, MemberFencedError)):
            await reader.consumer.commit({where: 5})
        await until(lambda: not reader.consumer.assignment())
        assert await reader.consumer.commit() == {}
    assert await real.committed(topic) == []


async def test_non_member_cannot_commit_for_a_group_with_members(real: Client) -> None:
    topic = await new_topic(real, partitions=1, records=5)
    consumer = real.consumer(topic, group=topic)
    with pytest.raises(MemberFencedError, match="not a member"):
        await consumer.commit({TopicPartition(topic, 0): 1})
    async with reading(consumer):
        await until(lambda: bool(consumer.assignment()))
        with pytest.raises(TidelogError, match="only its members may commit"):
            await real.commit(topic, topic, {0: 1})
    await real.commit(topic, topic, {0: 5})
