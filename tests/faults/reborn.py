"""A topic that is deleted and made again under its name, time and again, while those who use it live on.

Each time it is another topic, told by its *label* (`history.label_of`). A writer is bound to a topic once a record of
it was stored while the name meant that topic and no other; from then on its producer's number marks
which topic its records are meant for, and it stays with its producer however often the topic is made again: the
producer has to get an error, or success for its own topic. A reader learns from its records which topic it reads.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from random import Random
from typing import Final

from tests.faults.history import Key, label_of
from tests.faults.producing import Pending, enqueue, settle
from tests.faults.reading import PAUSE_S, numbers_of
from tests.faults.values import number_of, producer_of
from tests.faults.world import World

from tidelog import Client, Producer
from tidelog.errors import TidelogError, TopicExistsError, UnknownTopicError

NAME: Final = "reborn"
PARTITIONS: Final = 2
WRITING_S: Final = (0.02, 0.2)
"""How long a busy writer waits between records."""
IDLING_S: Final = (3.0, 25.0)
"""How long an idle one waits between bursts, so that topics come and go meanwhile."""
BURST: Final = 12


class Participation:
    """The topic that a name means. It is valid until a client has begun to delete it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.label = ""
        """The newest topic's; empty before there is one."""
        self.topic_id = b""
        self.changing = True
        self.times = 0
        """How often it was made."""

    def made(self, topic_id: bytes) -> None:
        """The name means this topic from now on."""
        self.label, self.topic_id = label_of(NAME, topic_id), topic_id
        self.times += 1
        self.changing = False

    def doomed(self) -> None:
        """It may be deleted from now on."""
        self.changing = True
        self.world.history.gone.add(self.label)

    @property
    def keys(self) -> list[Key]:
        """Its partitions."""
        return [Key(self.label, partition) for partition in range(PARTITIONS)]

    name = NAME

    def since(self, times: int) -> bool:
        """Whether the name has meant one topic since the given number of creations."""
        return not self.changing and self.times == times

    def sign(self) -> str:
        """Return the sign of life that a stored record of the topic is."""
        return f"records of {NAME}"


async def make_again(standing: Participation, client: Client, copies: int, pause_s: float) -> None:
    """Delete the topic, if there is one, and make it, once; that can be tried again when it fails.

    Raises:
        TidelogError: it is not certain that it was done.
    """
    history = standing.world.history
    if standing.label:
        sure = standing.label not in history.gone
        standing.doomed()
        try:
            await client.delete_topic(NAME)
        except UnknownTopicError as error:
            history.complain("operator", type(error).__name__, f"{standing.label} exists: {error}", there=sure)
        await asyncio.sleep(pause_s)
    try:
        made = await client.create_topic(NAME, partitions=PARTITIONS, replication_factor=copies)
    except TopicExistsError:
        made = await client.topic(NAME)
        if made.topic_id == standing.topic_id:
            raise
    standing.made(made.topic_id)


async def write(standing: Participation, client: Client, rng: Random, *, idle: bool) -> None:
    """Write by one producer after the other; each stays as long as it is taken."""
    world = standing.world
    while not world.quiet:
        producer = client.producer(NAME, delivery_timeout_s=30)
        label = await _bind(standing, producer)
        if label:
            await _write_bound(standing, producer, label, rng, idle=idle)
        with contextlib.suppress(TidelogError):  # how each record ended is written down
            await producer.close()
        await asyncio.sleep(PAUSE_S)


async def _bind(standing: Participation, producer: Producer) -> str:
    """Send a record that binds the producer to a topic; return the topic, empty when it is uncertain."""
    world, times, sure = standing.world, standing.times, not standing.changing
    number = number_of(world.next_producer("first record of a writer"), 0)
    pending = await enqueue(world, producer, NAME, number, there=False)
    if pending is None:
        return ""
    try:
        got = await pending.receipt
    except TidelogError as error:
        world.failed("producer", NAME, number, error, there=sure and standing.since(times))
        return ""
    if not (sure and standing.since(times)):
        return ""
    world.acked(NAME, number, got.offset, Key(standing.label, got.partition))
    return standing.label


async def _write_bound(standing: Participation, producer: Producer, label: str, rng: Random, *, idle: bool) -> None:
    world, producer_number, sequence = (
        standing.world,
        standing.world.next_producer(f"{'idle' if idle else 'busy'} writer"),
        0,
    )
    world.history.meant_for[producer_number] = label
    while not world.quiet:
        await world.idle(rng.uniform(*(IDLING_S if idle else WRITING_S)))
        pending: list[Pending | None] = []
        for _ in range(BURST if idle else 1):
            place = Key(label, rng.randrange(PARTITIONS))
            number = number_of(producer_number, sequence)
            sequence += 1
            pending.append(await enqueue(world, producer, place, number, there=label not in world.history.gone))
        if not await settle(world, pending, there=label not in world.history.gone):
            return
        if standing.label == label:
            world.signs[standing.sign()] += 1


class Session:
    """One reader's session with the topic: all its records are of one topic, which the records identify.

    Records before the first one that identifies the topic are kept until then.
    """

    def __init__(self, world: World, reader: str) -> None:
        self.label = ""
        self._world = world
        self._reader = reader
        self._kept: list[tuple[int, int, Sequence[int]]] = []

    def take(self, partition: int, offset: int, numbers: Sequence[int]) -> None:
        """Write down records of a partition, the first of them at `offset`."""
        history = self._world.history
        for number in numbers:
            label = history.meant_for.get(producer_of(number), "") if number >= 0 else ""
            self.label = self.label or label
            if label not in {"", self.label}:
                message = f"{self._reader} reads {self.label} and got a record of {label} at {partition}/{offset}"
                history.crossed.append(message)
                return
        self._kept.append((partition, offset, numbers))
        if self.label:
            for number_of_partition, first, kept in self._kept:
                history.read(self._reader, Key(self.label, number_of_partition), first, kept)
            self._kept.clear()


class Follower:
    """Reads the topic from the beginning in sessions, each as long as a consumer lives.

    Attributes:
        reader: name of the continuing session.
    """

    def __init__(self, standing: Participation, client: Client) -> None:
        self.reader = ""
        self._standing = standing
        self._client = client

    async def run(self) -> None:
        """Read for ever."""
        standing, count = self._standing, 0
        while True:
            count += 1
            self.reader = f"{NAME} reader#{count}"
            session = Session(standing.world, self.reader)
            times, sure = standing.times, not standing.changing
            try:
                async with self._client.consumer(NAME) as consumer:
                    while (got := await consumer.next_batch()) is not None:
                        session.take(got.partition, got.batch.base_offset, numbers_of(got.batch))
            except TidelogError as error:
                standing.world.complain("follower", error, there=sure and standing.since(times))
                await asyncio.sleep(PAUSE_S)
