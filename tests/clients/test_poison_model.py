"""Undecodable records, anywhere and under every policy: no other record is lost, and each one is reported."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.clients.fake_node import FakeNode, running_fake_node
from tests.clients.threaded_node import threaded_fake_node

from tidelog import Client, ConsumedBatch, Consumer, Record, TopicPartition
from tidelog import sync as blocking
from tidelog.errors import RecordError
from tidelog_proto.batch.record_batch import RecordBatch

Policy = Literal["error", "skip", "dead letter"]
Step = tuple[Literal["poll", "iterate", "batch", "publish", "wait"], int]

POLICIES: dict[Policy, dict[str, Any]] = {"error": {}, "skip": {"on_undecodable": "skip"}, "dead letter": {}}
BATCHES = st.lists(st.lists(st.booleans(), min_size=1, max_size=6), min_size=1, max_size=6)
"""By batch and record, whether it decodes."""
STEPS = st.lists(
    st.tuples(st.sampled_from(("poll", "iterate", "batch", "publish", "wait")), st.integers(1, 9)), max_size=12
)
NUMBERS = count()


@dataclass
class Model:
    """The expected records, and those seen."""

    goods: list[bool]
    at: int = 0
    """Everything before it was delivered or reported."""
    reported: list[int] = field(default_factory=list)
    """Undecodable records that were skipped or reported."""
    published: int = 0

    def reach(self, offset: int) -> None:
        """Advance over undecodable records to an offset; all others must have been delivered."""
        passed = range(self.at, offset)
        assert not any(self.goods[each] for each in passed), f"of {passed} something is lost"
        self.reported += passed
        self.at = offset

    def took(self, record: Record) -> None:
        assert record.offset >= self.at, "delivered twice or out of order"
        self.reach(record.offset)
        assert self.goods[record.offset]
        assert record.value == record.offset
        self.at += 1

    def took_whole(self, batch: ConsumedBatch) -> None:
        self.reach(batch.batch.base_offset)
        assert [each.offset for each in batch] == list(range(self.at, batch.batch.end_offset))
        self.at = batch.batch.end_offset

    def failed(self, error: RecordError) -> int:
        """Return where to continue."""
        assert error.offset is not None
        assert not self.goods[error.offset]
        self.reach(error.offset)
        self.reach(error.offset + 1)
        return self.at

    @property
    def has_good(self) -> bool:
        return any(self.goods[self.at : self.published])

    def check(self, policy: Policy, skipped: int, dead: list[int]) -> None:
        assert self.at == len(self.goods)
        assert skipped == (len(self.reported) if policy == "skip" else 0)
        # Records delivered in a whole batch may have been in flight there.
        assert sorted(set(dead)) == dead
        assert set(dead) >= (set(self.reported) if policy == "dead letter" else set())


def values_of(model: Model, batch: list[bool]) -> list[bytes]:
    first, model.published = model.published, model.published + len(batch)
    return [b"%d" % (first + index) if is_good else b"no number" for index, is_good in enumerate(batch)]


def dead_letters(node: FakeNode, topic: str) -> list[int]:
    records = [record for data in node.partition(topic).batches for record in RecordBatch.parse(data)]
    return [int(dict(record.headers)["tidelog-offset"] or b"") for record in records]


async def run(policy: Policy, batches: list[list[bool]], steps: list[Step]) -> None:
    async with running_fake_node() as node, Client(f"127.0.0.1:{node.port}") as client:
        node.add_topic("dead")
        model, where = Model([each for batch in batches for each in batch]), TopicPartition("t", 0)
        producer, left = client.producer("t"), list(batches)

        async def publish(number: int) -> None:
            for batch in left[:number]:
                await producer.send_many(values_of(model, batch))
            del left[:number]

        async def step(consumer: Consumer, kind: str, number: int) -> None:
            if kind == "publish":
                await publish(number)
            elif kind == "wait":
                await asyncio.sleep(number / 1000)
            elif kind == "poll":
                for record in await consumer.poll(number, timeout_s=0.01):
                    model.took(record)
            elif kind == "batch" and consumer.position()[where] < model.published:
                model.took_whole(await anext(aiter(consumer.batches())))
            elif kind == "iterate":
                for _ in range(number):
                    if model.has_good:
                        model.took(await anext(consumer))

        options = {**POLICIES[policy], **({"dead_letter": "dead"} if policy == "dead letter" else {})}
        async with client.consumer("t", value_deserializer=int, **options) as consumer:
            until = time.monotonic() + 20
            for kind, number in (*steps, ("publish", len(batches)), *(("poll", 9) for _ in range(10_000))):
                try:
                    await step(consumer, kind, number)
                except RecordError as error:
                    await consumer.seek(where, model.failed(error))
                if not left and consumer.position()[where] >= len(model.goods):
                    break
                assert time.monotonic() < until
            model.reach(consumer.position()[where])
            model.check(policy, consumer.skipped, dead_letters(node, "dead"))


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=40)
@given(batches=BATCHES, steps=STEPS)
def test_no_other_record_is_lost(policy: Policy, batches: list[list[bool]], steps: list[Step]) -> None:
    asyncio.run(run(policy, batches, steps))


@pytest.fixture(scope="module")
def node() -> Iterator[FakeNode]:
    with threaded_fake_node() as node:
        yield node


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=40)
@given(batches=BATCHES, steps=STEPS)
def test_no_other_record_is_lost_in_the_blocking_client(
    node: FakeNode, policy: Policy, batches: list[list[bool]], steps: list[Step]
) -> None:
    number = next(NUMBERS)
    topic, dead = f"t{number}", f"dead{number}"
    node.add_topic(topic)
    node.add_topic(dead)
    model, where = Model([each for batch in batches for each in batch]), TopicPartition(topic, 0)
    with blocking.Client(f"127.0.0.1:{node.port}") as client:
        producer, left = client.producer(topic), list(batches)

        def publish(number: int) -> None:
            for batch in left[:number]:
                producer.send_many(values_of(model, batch))
            del left[:number]

        def step(consumer: blocking.Consumer, kind: str, number: int) -> None:
            if kind == "publish":
                publish(number)
            elif kind == "wait":
                time.sleep(number / 1000)
            elif kind == "poll":
                for record in consumer.poll(number, timeout_s=0.01):
                    model.took(record)
            elif kind == "batch" and consumer.position()[where] < model.published:
                model.took_whole(next(consumer.batches()))
            elif kind == "iterate":
                for _ in range(number):
                    if model.has_good:
                        model.took(next(consumer))

        options = {**POLICIES[policy], **({"dead_letter": dead} if policy == "dead letter" else {})}
        with client.consumer(topic, value_deserializer=int, **options) as consumer:
            until = time.monotonic() + 20
            for kind, number in (*steps, ("publish", len(batches)), *(("poll", 9) for _ in range(10_000))):
                try:
                    step(consumer, kind, number)
                except RecordError as error:
                    consumer.seek(where, model.failed(error))
                if not left and consumer.position()[where] >= len(model.goods):
                    break
                assert time.monotonic() < until
            model.reach(consumer.position()[where])
            model.check(policy, consumer.skipped, dead_letters(node, dead))
