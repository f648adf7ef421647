"""Requests with an idempotency key, at real nodes."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter

import pytest

from tidelog import Client
from tidelog.errors import ProducerIdSharedError, UnknownPartitionError, UnknownTopicError
from tidelog.model import Receipt
from tidelog.produce.idempotent_requests import Outcome, RequestKey, request_key
from tidelog.produce.open_batch import RecordLists


@pytest.fixture
async def topic(real: Client) -> str:
    name = f"keyed-{uuid.uuid4().hex[:8]}"
    await real.create_topic(name, partitions=3)
    return name


def key_of(key: str, content: str = "") -> RequestKey:
    return request_key([key.encode()], [content.encode()])


def rows_of(count: int, *, keyed: bool = True) -> RecordLists:
    values = [b"v%d" % number for number in range(count)]
    return RecordLists(values, keys=[b"k%d" % number for number in range(count)] if keyed else None)


async def stored(client: Client, topic: str) -> Counter[bytes | None]:
    found: Counter[bytes | None] = Counter()
    for partition in range(len((await client.topic(topic)).partitions)):
        offset = 0
        while True:
            fetched = await client.fetch(topic, partition, offset)
            if fetched.next_offset <= offset:
                break
            for batch in fetched.batches:
                found.update(batch.values())
            offset = fetched.next_offset
    return found


def places(outcomes: list[Outcome]) -> list[tuple[int, int]]:
    return [(outcome.partition, outcome.offset) for outcome in outcomes if isinstance(outcome, Receipt)]


@pytest.mark.parametrize("count", [1, 2, 50])
@pytest.mark.parametrize("keyed", [True, False])
async def test_retry_returns_the_same_offsets_and_stores_nothing(
    real: Client, topic: str, count: int, keyed: bool
) -> None:
    rows = rows_of(count, keyed=keyed)
    first = await real.keyed_requests.publish(topic, rows, key_of("a"))
    assert await real.keyed_requests.publish(topic, rows, key_of("a")) == first
    assert keyed or len({partition for partition, _ in places(first)}) == 1
    assert await stored(real, topic) == Counter(rows.values)


async def test_requests_with_one_key_at_the_same_time_get_one_answer(real: Client, topic: str) -> None:
    rows = rows_of(30)
    answers = await asyncio.gather(*[real.keyed_requests.publish(topic, rows, key_of("a")) for _ in range(8)])
    assert len({tuple(places(answer)) for answer in answers}) == 1
    assert await stored(real, topic) == Counter(rows.values)


@pytest.mark.parametrize("count", [1, 30])
async def test_another_request_under_the_key_is_refused(real: Client, topic: str, count: int) -> None:
    for key in ("a", "b", "c", "d"):
        await real.keyed_requests.publish(topic, rows_of(count), key_of(key, "one"))
        with pytest.raises(ProducerIdSharedError, match="another request"):
            await real.keyed_requests.publish(topic, rows_of(count + 1), key_of(key, "other"))
    assert (await stored(real, topic)).total() == 4 * count


@pytest.mark.parametrize("keyed", [True, False])
async def test_retry_after_growth_uses_the_partitions_of_the_first_attempt(
    real: Client, topic: str, shared_node: str, keyed: bool
) -> None:
    requests = [rows_of(count, keyed=keyed) for count in (1, 2, 5, 40)]
    firsts = [
        await real.keyed_requests.publish(topic, rows, key_of(f"{number}")) for number, rows in enumerate(requests)
    ]
    await real.alter_topic(topic, partitions=7)
    async with Client(shared_node) as other:
        for client in (other, real):
            for number, rows in enumerate(requests):
                assert await client.keyed_requests.publish(topic, rows, key_of(f"{number}")) == firsts[number]
        await other.keyed_requests.publish(topic, requests[3], key_of("later"))
    expected = sum((Counter(rows.values) for rows in [*requests, requests[3]]), Counter())
    assert await stored(real, topic) == expected


async def test_explicit_partitions_are_kept(real: Client, topic: str) -> None:
    rows = RecordLists([b"a", b"b", b"c"], partitions=[2, None, 1])
    first = await real.keyed_requests.publish(topic, rows, key_of("a"))
    assert [partition for partition, _ in places(first)][::2] == [2, 1]
    assert await real.keyed_requests.publish(topic, rows, key_of("a")) == first
    with pytest.raises(UnknownPartitionError):
        await real.keyed_requests.publish(topic, RecordLists([b"x"], partitions=[9]), key_of("b"))
    with pytest.raises(UnknownTopicError):
        await real.keyed_requests.publish("no-such-topic", rows, key_of("a"))


async def test_many_keys_evict_no_producer(real: Client, topic: str) -> None:
    async with real.producer(topic) as producer:
        await producer.send(b"before", partition=0)
        for number in range(300):
            await real.keyed_requests.publish(topic, RecordLists([b"x"], partitions=[0]), key_of(f"{number}"))
        await producer.send(b"after", partition=0)
    assert (await stored(real, topic))[b"after"] == 1


def test_numbers_of_a_key_never_change() -> None:
    """Batches of a key are recognised by these numbers in every release."""
    key = request_key([b"ada", b"orders", b"k-1"], [b"{}"])
    assert key == RequestKey(producer_id=10879709371684466455, digest=2251004843405602314)
    assert (key.producer_id >> 63, key.digest >> 62) == (1, 0)
    assert request_key([b"a", b"bc"], []) != request_key([b"ab", b"c"], []), "the boundaries of parts are significant"
