"""Batches of earlier attempts at a piece of work, read from a real node."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from tidelog import Client
from tidelog.errors import InvalidRequestError, ProducerFencedError
from tidelog.produce import earlier_attempts, work
from tidelog.produce.producer import Producer
from tidelog.produce.work import INSTANCES_PER_PIECE, Work
from tidelog.requests import fetch_and_commit


@pytest.fixture
async def topic(real: Client) -> str:
    name = f"work-{uuid.uuid4().hex[:8]}"
    await real.create_topic(name, partitions=2)
    return name


async def begun(client: Client, topic: str, piece: int) -> Producer:
    producer = client.producer(topic, name=Work("job", piece))
    await producer.begin()
    return producer


async def stored_before(producer: Producer) -> list[Any]:
    assert producer.earlier is not None
    return sorted(
        [value async for _, batch in producer.earlier.batches() for value in batch.columns()["value"].to_pylist()]
    )


async def test_only_batches_of_earlier_attempts_are_found(
    real: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(earlier_attempts, "RANGE_OFFSETS_MIN", 3)
    others = real.producer(topic)
    before = await begun(real, topic, 6)
    assert before.earlier is not None
    assert not before.earlier.exist
    await before.send_many([b"piece 6"] * 5, partition=0)
    first = await begun(real, topic, 7)
    assert await stored_before(first) == []
    for number in range(4):
        await others.send_many([b"other"] * 7, partition=number % 2)
        await first.send_many([b"%d" % number] * 3, partition=number % 2)
    with pytest.raises(ProducerFencedError):
        await before.send(b"late")
    second = await begun(real, topic, 7)
    assert second.earlier is not None
    assert second.earlier.exist
    expected = sorted(b"%d" % number for number in range(4) for _ in range(3))
    assert await stored_before(second) == expected
    await second.send(b"of the second", partition=1)
    with pytest.raises(ProducerFencedError):
        await first.send(b"late", partition=0)
    assert await stored_before(await begun(real, topic, 7)) == [*expected, b"of the second"]
    next_piece = await begun(real, topic, 8)
    assert await stored_before(next_piece) == []
    with pytest.raises(ProducerFencedError):
        await begun(real, topic, 7)


async def test_batch_across_two_ranges_is_yielded_once(
    real: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await begun(real, topic, 0)
    await first.send_many([b"%02d" % number for number in range(10)], partition=0)
    for stretch in range(1, 12):
        monkeypatch.setattr(earlier_attempts, "RANGE_OFFSETS_MIN", stretch)
        assert await stored_before(await begun(real, topic, 0)) == [b"%02d" % number for number in range(10)]


async def test_invalid_work_is_refused(real: Client, topic: str) -> None:
    for name in (Work("job", -1), Work("", 1), Work("x" * 300, 1)):
        with pytest.raises(InvalidRequestError):
            real.producer(topic, name=name)


async def test_attempts_at_a_piece_are_bounded(real: Client, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "INSTANCES_PER_PIECE", 2)
    assert INSTANCES_PER_PIECE > 2
    for _ in range(2):
        await begun(real, topic, 3)
    with pytest.raises(InvalidRequestError, match="has begun as often as its name allows"):
        await begun(real, topic, 3)
    await begun(real, topic, 4)


async def test_log_is_read_once_for_several_producers(
    real: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[int] = []
    fetch = fetch_and_commit.fetch

    async def counting(router: Any, name: str, partition: int, *args: Any, **options: Any) -> Any:
        fetched.append(partition)
        return await fetch(router, name, partition, *args, **options)

    async def parts(piece: int) -> list[Producer]:
        producers = [real.producer(topic, name=Work("job", piece, part)) for part in range(12)]
        for producer in producers:
            await producer.begin()
        return producers

    for piece in range(2):
        first = await parts(piece)
        for number in (3, 7):
            await first[number].send_many([b"%d of %d" % (number, piece)] * 2, partition=number % 2)
    await real.alter_topic(topic, partitions=3)
    again = [*await parts(1), real.producer(topic, name=Work("job", 1, 12))]
    await again[-1].begin()  # a part without earlier attempts
    monkeypatch.setattr(fetch_and_commit, "fetch", counting)
    last, *others = [producer.earlier for producer in reversed(again) if producer.earlier is not None]
    found: list[Any] = [
        value async for _, batch in last.batches(others) for value in batch.columns()["value"].to_pylist()
    ]
    assert sorted(found) == [b"3 of 1"] * 2 + [b"7 of 1"] * 2
    assert sorted(fetched) == [0, 1, 2]
