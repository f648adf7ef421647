"""Commits of a member after its session has expired, while it rejoins, and after it was closed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.clients.sharing import Silence, expire, fill, new_topic, positions, silence, until

from tidelog import Client, Group, TopicPartition, sync
from tidelog.cluster.routing import Router
from tidelog.errors import ClosedError, MemberFencedError

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("silence")]

__all__ = ["expire", "silence"]

Expire = Callable[[], None]


def before_commits(monkeypatch: pytest.MonkeyPatch, wait: Callable[[], Awaitable[Any]]) -> None:
    """Await something before each request that commits."""
    call = Router.call

    async def late(self: Router, connection: Any, envelope: Any, **options: Any) -> Any:
        if envelope.HasField("commit"):
            await wait()
        return await call(self, connection, envelope, **options)

    monkeypatch.setattr(Router, "call", late)


async def test_commit_that_succeeds_after_the_loss_leaves_nothing_to_refuse(
    real: Client, expire: Expire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node was away while the record was committed: it stores the position when it returns."""
    topic = await new_topic(real, partitions=1, records=3)
    where, node_is_back = TopicPartition(topic, 0), asyncio.Event()
    committing: list[asyncio.Future[Any]] = []

    async def lost(_: frozenset[TopicPartition]) -> None:
        node_is_back.set()
        await asyncio.wait(committing)

    group = Group(topic, session_timeout_s=5.0, commit="manual", on_lost=lost)
    async with real.consumer(topic, group=group) as consumer:
        assert (await anext(consumer)).offset == 0
        before_commits(monkeypatch, node_is_back.wait)
        committing.append(asyncio.ensure_future(consumer.commit()))
        await asyncio.sleep(0.05)
        expire()
        assert (await anext(consumer)).offset == 1
        assert (await committing[0])[where].next_offset == 1
        assert (await consumer.commit())[where].next_offset == 2


async def test_uncommitted_records_are_refused_once_with_their_partitions(real: Client, expire: Expire) -> None:
    topic = await new_topic(real, partitions=2, records=2)
    group = Group(topic, session_timeout_s=5.0, commit="manual")
    async with real.consumer(topic, group=group) as consumer:
        first = await anext(consumer)
        await consumer.commit()
        second = await anext(consumer)
        other = await anext(consumer)
        assert (first.partition, second.partition) != (second.partition, other.partition)
        await consumer.commit({TopicPartition(topic, second.partition): second.offset + 1})
        expire()
        await anext(consumer)
        with pytest.raises(MemberFencedError, match=f"it lost {topic}/{other.partition}\\. This call"):
            await consumer.commit()
        assert await consumer.commit()


async def test_loss_that_a_commit_has_reported_is_not_reported_again(
    real: Client, expire: Expire, silence: Silence
) -> None:
    topic = await new_topic(real, partitions=1, records=2)
    lost = asyncio.Event()
    group = Group(topic, session_timeout_s=5.0, commit="manual", on_lost=lambda _: lost.set())
    async with real.consumer(topic, group=group) as consumer:
        assert await anext(consumer)
        silence.for_good = True
        silence.of.add(consumer.member_id)
        expire()
        await asyncio.wait_for(lost.wait(), 5.0)
        with pytest.raises(MemberFencedError, match="currently not a member"):
            await consumer.commit({TopicPartition(topic, 0): 1})
        assert await consumer.commit() == {}


async def test_empty_commit_succeeds_while_the_member_rejoins(
    shared_node: str, real: Client, expire: Expire, silence: Silence
) -> None:
    topic = await new_topic(real, partitions=1, records=1)
    where = TopicPartition(topic, 0)
    outcomes: list[Any] = []
    with sync.Client(shared_node) as blocking:
        group = Group(topic, session_timeout_s=5.0, commit="manual")
        idle = await asyncio.to_thread(blocking.consumer, topic, group=group)
        assert await asyncio.to_thread(idle.poll, 1, 10.0)
        assert await asyncio.to_thread(idle.commit)
        silence.for_good = True
        silence.of.add(idle.member_id)
        expire()
        await until(lambda: not idle.assignment() and idle.member_id not in silence.of)
        assert await asyncio.to_thread(idle.poll, 1, 0.1) == []
        assert await asyncio.to_thread(idle.commit) == {}
        assert await asyncio.to_thread(idle.commit, {}) == {}
        idle.commit_soon(on_commit=lambda held, error: outcomes.append((held, error)))
        await until(lambda: bool(outcomes))
        assert outcomes == [({}, None)]
        with pytest.raises(MemberFencedError, match="currently not a member"):
            await asyncio.to_thread(idle.commit, {where: 1})
        silence.routers.clear()
        await fill(real, topic, 1, range(1, 2))
        assert [each.offset for each in await asyncio.to_thread(idle.poll, 1, 10.0)] == [1]
        assert (await asyncio.to_thread(idle.commit))[where].next_offset == 2
        await asyncio.to_thread(idle.close)


@pytest.mark.parametrize("given", [None, {}, {0: 1}], ids=["everything", "nothing", "a position"])
async def test_commit_after_close_says_that_the_consumer_was_closed(real: Client, given: dict[int, int] | None) -> None:
    topic = await new_topic(real, partitions=1, records=2)
    places = None if given is None else {TopicPartition(topic, number): offset for number, offset in given.items()}
    consumer = real.consumer(topic, group=Group(topic, commit="manual"))
    async for _ in consumer:
        await asyncio.create_task(consumer.close())
        with pytest.raises(ClosedError, match="consumer was closed"):
            await consumer.commit(places)
        with pytest.raises(ClosedError, match="consumer was closed"):
            consumer.commit_soon(places)
    assert await positions(real, topic) == {}, "the record was not committed, so another member reads it"


async def test_commit_in_flight_at_close_is_stored_before_the_member_leaves(
    real: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await new_topic(real, partitions=1, records=2)
    where, started = TopicPartition(topic, 0), asyncio.Event()

    async def slow() -> None:
        started.set()
        await asyncio.sleep(0.2)

    before_commits(monkeypatch, slow)
    consumer = real.consumer(topic, group=Group(topic, commit="manual"))
    assert await anext(consumer)
    committing = asyncio.ensure_future(consumer.commit())
    await started.wait()
    await consumer.close()
    assert (await committing)[where].next_offset == 1
    assert await positions(real, topic) == {where: 1}
