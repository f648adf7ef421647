"""Clients that exist during the whole run and are rarely used, so that their knowledge is outdated at each use.

Each learns what there is at the beginning; most of them have one node only to begin with, which may lag, be cut off or
be stopped when they ask it something. Then they are idle for up to a minute, while partitions move, nodes are replaced,
topics grow or are made again, and then they do one of everything.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from random import Random
from typing import Final

from tests.faults.history import Key, label_of
from tests.faults.producing import KEYS, Pending, enqueue, settle
from tests.faults.reading import numbers_of, told_positions
from tests.faults.reborn import NAME, Participation
from tests.faults.values import number_of
from tests.faults.world import World

from tidelog import Client, Producer
from tidelog.errors import TidelogError

IDLE_S: Final = (5.0, 60.0)
RECORDS: Final = 20
BACK: Final = 50
"""How far before the end a consumer begins."""
READ_S: Final = 20.0
"""How long one may read; when that is not enough it comes back another time."""


class StaleClient:
    """One of them.

    Args:
        world: of the run.
        standing: of the topic that is made again.
        name: name of the client.
        bootstrap: its bootstrap nodes.
        rng: decides.
    """

    def __init__(self, world: World, standing: Participation, name: str, bootstrap: Sequence[str], rng: Random) -> None:
        self.client = Client(list(bootstrap), client_id=name, request_timeout_s=15)
        self._world = world
        self._standing = standing
        self._name = name
        self._rng = rng
        self._producers: dict[str, Producer] = {}
        self._times = 0

    async def run(self) -> None:
        """Learn, and act whenever it has been idle for long; once more when all is to be quiet."""
        for topic in self._world.topics:
            await self._guarded(self._ask_ends, topic)
            await self._guarded(self._publish, topic)
        await self._guarded(self._describe_reborn, NAME)
        while not self._world.quiet:
            await self._world.idle(self._rng.uniform(*IDLE_S))
            await self._act()
        for producer in self._producers.values():
            with contextlib.suppress(TidelogError):
                await producer.close()

    async def _act(self) -> None:
        self._times += 1
        topic = self._rng.choice(self._world.topics)
        doing = [
            self._publish,
            self._ask_positions,
            self._ask_ends,
            self._describe,
            self._fetch,
            self._consume,
            self._describe_reborn,
        ]
        self._rng.shuffle(doing)
        for each in doing:
            await self._guarded(each, topic)

    async def _guarded(self, doing: Callable[[str], Awaitable[None]], topic: str) -> None:
        try:
            await doing(topic)
        except TidelogError as error:
            self._world.complain("stale client", error)

    async def _publish(self, topic: str) -> None:
        """Publish by the producer that it has had from the beginning, by key and to partitions by name."""
        world, pending = self._world, list[Pending | None]()
        if world.quiet:
            return
        if topic not in self._producers:
            self._producers[topic] = self.client.producer(topic, delivery_timeout_s=30)
        producer = self._producers[topic]
        named = self._rng.choice(world.partitions_of(topic))
        by_name, by_key = world.next_producer(self._name), world.next_producer(self._name)
        for sequence in range(RECORDS):
            if sequence % 2:
                pending.append(await enqueue(world, producer, named, number_of(by_name, sequence)))
            else:
                key = b"key %d" % self._rng.randrange(KEYS)
                pending.append(await enqueue(world, producer, topic, number_of(by_key, sequence), key=key))
        await settle(world, pending)

    async def _ask_positions(self, topic: str) -> None:
        await told_positions(self._world, self.client, topic)

    async def _ask_ends(self, topic: str) -> None:
        floors = self._floors(topic)
        calm = self._world.calm
        ends = await self.client.list_offsets(topic, "latest")
        for key, floor in floors.items():
            if key.partition in ends:
                self._world.history.told_end(key, floor, ends[key.partition].offset)
            elif calm and self._world.calm:
                self._world.history.told_end(key, floor, -1)

    async def _describe(self, topic: str) -> None:
        """Describe a topic, which may not have fewer partitions than are known; skipped if no node answers."""
        calm, floor = self._world.calm, len(self._world.partitions_of(topic))
        described = await self.client.topic(topic)
        if calm and self._world.calm:
            self._world.history.told_partitions(topic, floor, len(described.partitions))

    async def _describe_reborn(self, _: str) -> None:
        world, standing = self._world, self._standing
        calm, times, stood = world.calm, standing.times, not standing.changing
        try:
            described = await self.client.topic(NAME)
        except TidelogError as error:
            world.complain("stale client", error, there=stood and standing.since(times))
            return
        if calm and world.calm and stood and standing.since(times) and described.topic_id != standing.topic_id:
            answered = label_of(NAME, described.topic_id)
            world.history.denials.append(f"{self._name}: {NAME} was reported as {answered}, and is {standing.label}")

    async def _fetch(self, topic: str) -> None:
        """Fetch the newest record before the end that this client got; it must exist."""
        for partition, told in (await self.client.list_offsets(topic, "latest")).items():
            if told.offset:
                got = await self.client.fetch(topic, partition, told.offset - 1)
                self._world.history.told_record(Key(topic, partition), told.offset - 1, got.next_offset)

    async def _consume(self, topic: str) -> None:
        """Read the newest record of every partition."""
        history, reader = self._world.history, f"{self._name}#{self._times}"
        floors = self._floors(topic)
        start = {key.partition: max(0, end - BACK) for key, end in floors.items()}
        for key in floors:
            history.begin(reader, key, start[key.partition])
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(READ_S), self.client.consumer(topic, start=start) as consumer:
                while any(self._at(reader, key, start) < end for key, end in floors.items()):
                    if (got := await consumer.next_batch()) is not None:
                        key = Key(topic, got.partition)
                        history.read(reader, key, got.batch.base_offset, numbers_of(got.batch))

    def _at(self, reader: str, key: Key, start: Mapping[int, int]) -> int:
        return max(start[key.partition], self._world.history.read_to(reader, key))

    def _floors(self, topic: str) -> dict[Key, int]:
        """Return the ends of a topic's partitions as far as they are known by now."""
        return {key: self._world.history.sent[key].end for key in self._world.partitions_of(topic)}
