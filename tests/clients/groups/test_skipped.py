"""Positions after skipped records of a member with manual commits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.clients.sharing import expire, new_topic, positions, until

from tidelog import Client, Consumer, Group, TopicPartition, sync
from tidelog.consume.background_commits import BackgroundCommits

pytestmark = pytest.mark.e2e

__all__ = ["expire"]

DECODED: dict[str, Any] = {"value_deserializer": "json"}


async def topics(real: Client, *values: bytes, partitions: int = 1) -> tuple[str, str]:
    """Create a topic with records in its first partition, and its dead-letter topic."""
    topic, dead = await new_topic(real, partitions=partitions), await new_topic(real, partitions=1)
    await real.producer(topic).send_many(values, partition=0)
    return topic, dead


async def letters(real: Client, dead: str) -> int:
    return (await real.list_offsets(dead, "latest"))[0].offset


async def until_committed(real: Client, group: str, expected: int) -> None:
    async with asyncio.timeout(10.0):
        while await positions(real, group) != {TopicPartition(group, 0): expected}:  # noqa: ASYNC110 (a node's state)
            await asyncio.sleep(0.02)


async def no_more(work: Awaitable[Any]) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(work, 0.3)


async def skip_to(consumer: Consumer, topic: str, offset: int) -> None:
    """Read until the first partition is passed up to an offset, without a record that is delivered."""
    reading = asyncio.ensure_future(anext(consumer))
    try:
        await until(lambda: reading.done() or consumer.position().get(TopicPartition(topic, 0)) == offset)
        assert not reading.done()
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def test_dead_letter_at_the_end_is_committed_without_a_call(real: Client) -> None:
    topic, dead = await topics(real, b"1", b"{", b"{")
    for expected in (1, None, None):
        async with real.consumer(topic, group=Group(topic, commit="manual"), dead_letter=dead, **DECODED) as consumer:
            if expected is not None:
                assert (await anext(consumer)).value == expected
                await consumer.commit()
            await skip_to(consumer, topic, 3)
            await until_committed(real, topic, 3)
    assert await letters(real, dead) == 2
    assert (await real.groups.lag(topic))[0].lag == 0


@pytest.mark.parametrize("ways", ["poll", "blocking poll"])
async def test_dead_letter_at_the_end_is_committed_when_polling(shared_node: str, real: Client, ways: str) -> None:
    topic, dead = await topics(real, b"{", b"1", b"{")
    options: dict[str, Any] = {"group": Group(topic, commit="manual"), "dead_letter": dead, **DECODED}

    async def read(poll: Callable[[], Awaitable[list[Any]]], commit: Callable[[], Awaitable[Any]]) -> None:
        while not (records := await poll()):
            pass
        assert [record.value for record in records] == [1]
        await until_committed(real, topic, 1)
        await commit()
        assert await poll() == []
        await until_committed(real, topic, 3)

    if ways == "poll":
        async with real.consumer(topic, **options) as consumer:
            await read(lambda: consumer.poll(timeout_s=0.5), consumer.commit)
    else:
        with sync.Client(shared_node) as client:
            blocking = await asyncio.to_thread(client.consumer, topic, **options)
            await read(lambda: asyncio.to_thread(blocking.poll, 500, 0.5), lambda: asyncio.to_thread(blocking.commit))
            await asyncio.to_thread(blocking.close)


async def test_uncommitted_record_holds_back_the_position_after_it(real: Client) -> None:
    topic, dead = await topics(real, b"1", b"{", b"2", b"{")
    consumer = real.consumer(topic, group=Group(topic, commit="manual"), dead_letter=dead, **DECODED)
    assert (await anext(consumer)).value == 1
    assert (await anext(consumer)).value == 2
    await skip_to(consumer, topic, 4)
    assert await letters(real, dead) == 2
    assert await positions(real, topic) == {}
    where = TopicPartition(topic, 0)
    await consumer.commit({where: 1})
    await no_more(anext(consumer))
    assert await positions(real, topic) == {where: 1}, "the record at offset 2 is not committed"
    await consumer.commit({where: 3})
    await consumer.close()
    assert await positions(real, topic) == {where: 4}, "the skipped record after it is committed at close"


async def test_skipped_records_are_committed_at_close(real: Client) -> None:
    topic, _ = await topics(real, b"1", b"{")
    where, group = TopicPartition(topic, 0), Group(topic, commit="manual")
    consumer = real.consumer(topic, group=group, on_undecodable="skip", **DECODED)
    assert (await anext(consumer)).value == 1
    await skip_to(consumer, topic, 2)
    await consumer.commit({where: 1})
    await consumer.abort()
    assert await positions(real, topic) == {where: 2}


async def test_position_after_a_seek_is_not_committed_without_a_call(real: Client) -> None:
    topic, dead = await topics(real, b"1", b"2", b"{")
    async with real.consumer(topic, group=Group(topic, commit="manual"), dead_letter=dead, **DECODED) as consumer:
        await until(lambda: bool(consumer.assignment()))
        await consumer.seek(0, 2)
        await skip_to(consumer, topic, 3)
        assert await letters(real, dead) == 1
    assert await positions(real, topic) == {}, "two records were not delivered"


async def test_skipped_record_is_committed_before_a_handover(real: Client) -> None:
    topic, dead = await topics(real, b"1", b"{", partitions=2)
    where = TopicPartition(topic, 0)
    group = Group(topic, commit="manual", assignor="range", instance_id="b")
    async with real.consumer(topic, group=group, dead_letter=dead, **DECODED) as first:
        assert (await anext(first)).value == 1
        first.commit_soon({where: 1})
        await skip_to(first, topic, 2)
        group = Group(topic, commit="manual", assignor="range", instance_id="a")
        async with real.consumer(topic, group=group, dead_letter=dead, **DECODED) as second:
            await no_more(anext(second))
            await until(lambda: bool(second.assignment()))
            assert second.assignment() == {where}
            assert (await positions(real, topic))[where] == 2
    assert await letters(real, dead) == 1


async def test_loss_after_only_skipped_records_is_not_refused(
    real: Client, expire: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, dead = await topics(real, b"1", b"{")
    lost: list[Any] = []
    group = Group(topic, session_timeout_s=5.0, commit="manual", on_lost=lost.append)
    async with real.consumer(topic, group=group, dead_letter=dead, **DECODED) as consumer:
        assert (await anext(consumer)).value == 1
        await consumer.commit()
        monkeypatch.setattr(BackgroundCommits, "add", lambda *_: None)
        await skip_to(consumer, topic, 2)
        assert await letters(real, dead) == 1
        expire()
        await until(lambda: bool(lost))
        assert await consumer.commit() == {}
