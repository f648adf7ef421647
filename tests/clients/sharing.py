"""Helpers for tests of group members: background readers, and members whose heartbeats are dropped."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from tidelog import Client, Consumer, Record, TopicPartition
from tidelog.cluster.routing import Router
from tidelog.errors import ConnectionLostError

_names = itertools.count()


async def until(holds: Callable[[], bool], timeout_s: float = 15.0) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(timeout_s):
        while not holds():  # noqa: ASYNC110 (it may depend on a thread)
            await asyncio.sleep(0.01)


async def new_topic(client: Client, *, partitions: int = 2, records: int = 0) -> str:
    """Create a topic whose partitions get `records` records "partition:number"."""
    name = f"shared-{next(_names)}"
    await client.create_topic(name, partitions=partitions)
    await fill(client, name, partitions, range(records))
    return name


async def fill(client: Client, topic: str, partitions: int, numbers: range) -> None:
    """Publish records "partition:number" to every partition, in one batch each."""
    if not numbers:
        return
    async with client.producer(topic) as producer:
        for partition in range(partitions):
            values = [b"%d:%d" % (partition, number) for number in numbers]
            await producer.send_many(values, partition=partition)


async def positions(client: Client, group: str) -> dict[TopicPartition, int]:
    """Return a group's positions."""
    held = await client.committed(group)
    return {TopicPartition(each.topic, each.partition): each.next_offset for each in held}


@dataclass
class Reader:
    """Reads a consumer in the background.

    Attributes:
        consumer: the consumer.
        seen: the delivered values, in order.
        gate: while clear, the reader keeps its record in hand and does not ask for another.
        error: with which reading ended.
    """

    consumer: Consumer
    seen: list[bytes] = field(default_factory=list[bytes])
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    error: BaseException | None = None
    pause_s: float = 0.0

    async def read(self) -> None:
        """Read until the consumer is closed."""
        try:
            async for record in self.consumer:
                self._saw(record)
                if self.pause_s or not self.gate.is_set():
                    await asyncio.sleep(self.pause_s)
                    await self.gate.wait()
        except Exception as error:  # noqa: BLE001 - tests check it
            self.error = error

    def _saw(self, record: Record) -> None:
        assert record.value is not None
        self.seen.append(record.value)


@asynccontextmanager
async def reading(consumer: Consumer, *, pause_s: float = 0.0) -> AsyncIterator[Reader]:
    """Read in the background, and close the consumer at the end."""
    reader = Reader(consumer, pause_s=pause_s)
    reader.gate.set()
    task = asyncio.create_task(reader.read())
    try:
        yield reader
    finally:
        reader.gate.set()
        async with asyncio.timeout(10):
            await consumer.close()
            await task


@dataclass
class Silence:
    """Members whose heartbeats are dropped.

    Attributes:
        of: their ids.
        for_good: whether later memberships of the same client are silent as well.
    """

    of: set[str] = field(default_factory=set[str])
    for_good: bool = False
    routers: set[Router] = field(default_factory=set[Router])

    def holds(self, router: Router, member_id: str) -> bool:
        """Whether the heartbeats of a member are dropped."""
        if member_id in self.of and self.for_good:
            self.routers.add(router)
        return member_id in self.of or router in self.routers


@pytest.fixture
def expire(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function that makes the sessions of all members expire, as on a machine that was suspended."""
    clock, late_s = time.clock_gettime, 0.0
    monkeypatch.setattr(time, "clock_gettime", lambda which: clock(which) + late_s)

    def expire() -> None:
        nonlocal late_s
        late_s += 60.0

    return expire


@pytest.fixture
def silence(monkeypatch: pytest.MonkeyPatch) -> Silence:
    """Drop the heartbeats of members."""
    dropped = Silence()
    call_owner = Router.call_owner

    async def call(self: Router, partition: TopicPartition, connection: Any, envelope: Any, **options: Any) -> Any:
        asks = envelope.group_heartbeat.member_id
        if not dropped.holds(self, asks):
            try:
                return await call_owner(self, partition, connection, envelope, **options)
            finally:
                if dropped.holds(self, asks):
                    raise ConnectionLostError("dropped by a test")
        await asyncio.sleep(0.05)
        raise ConnectionLostError("dropped by a test")

    monkeypatch.setattr(Router, "call_owner", call)
    return dropped
