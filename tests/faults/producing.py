"""Producers of several temperaments.

Patient ones, one that gives up soon (its records end indefinitely), one that wants every replica; those that name the
partition, one that leaves it to keys, and one that leaves it to the client.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from random import Random
from typing import Final, Literal, NamedTuple

from tests.faults.history import Key
from tests.faults.values import number_of, value_of
from tests.faults.world import World

from tidelog import Client, PendingReceipt, Producer
from tidelog.errors import TidelogError
from tidelog.model import Acks

BURSTS: Final = (1, 1, 1, 5, 20, 60)
BUFFER_BYTES: Final = 128 * 1024
SUCCESSION: Final = 0.2
"""How likely a producer is replaced by a new one when a burst has failed."""
KEYS: Final = 12
"""How many different keys there are; more than partitions, so that growing moves some."""


class Temper(NamedTuple):
    """How a producer publishes, and who decides the partition."""

    acks: Acks
    delivery_timeout_s: float
    partition: Literal["named", "by key", "any"] = "named"


TEMPERS: Final = (
    Temper("quorum", 60),
    Temper("quorum", 60),
    Temper("quorum", 2),
    Temper("all", 20),
    Temper("quorum", 60, "by key"),
    Temper("quorum", 60, "any"),
)


class Pending(NamedTuple):
    """A record with a pending receipt. `place` is the topic or partition that it was sent to."""

    place: Key | str
    number: int
    receipt: PendingReceipt


async def enqueue(
    world: World, producer: Producer, place: Key | str, number: int, *, key: bytes | None = None, there: bool = True
) -> Pending | None:
    """Hand a record to a producer; return None when it does not take it, which is written down.

    Args:
        world: of the run.
        producer: of the topic.
        place: the partition, or the topic that chooses one; a topic that is made again by its label.
        number: of the record.
        key: of the record.
        there: whether the topic exists for certain.
    """
    world.history.send(place, number)
    partition = place.partition if isinstance(place, Key) else None
    try:
        receipt = await producer.enqueue(value_of(number), partition=partition, key=key)
    except TidelogError as error:
        world.failed("producer", place, number, error, there=there)
        return None
    return Pending(place, number, receipt)


async def settle(world: World, pending: Sequence[Pending | None], *, there: bool = True) -> bool:
    """Write down the outcome of records; return whether all were stored. A partition has its topic's label."""
    good = None not in pending
    for place, number, receipt in filter(None, pending):
        try:
            got = await receipt
        except TidelogError as error:
            world.failed("producer", place, number, error, there=there)
            good = False
        else:
            key = place if isinstance(place, Key) else Key(place, got.partition)
            assert got.partition == key.partition
            world.acked(place, number, got.offset, key)
    return good


async def produce(world: World, client: Client, topic: str, temper: Temper, rng: Random) -> None:
    """Publish by one producer after the other; a new one comes now and then when records have failed."""
    while not world.quiet:
        settling: set[asyncio.Task[bool]] = set()
        producer = client.producer(
            topic, acks=temper.acks, delivery_timeout_s=temper.delivery_timeout_s, buffer_bytes=BUFFER_BYTES
        )
        await _publish(world, producer, temper, settling, rng)
        with contextlib.suppress(TidelogError):  # the settling task has recorded the outcome
            await producer.close()
        await asyncio.gather(*settling)


async def _publish(
    world: World, producer: Producer, temper: Temper, settling: set[asyncio.Task[bool]], rng: Random
) -> None:
    """Send bursts, `settling` holding the tasks that wait for their ends."""
    producer_number = world.next_producer(f"producer, {temper.partition}, acks={temper.acks}")
    rate = world.rate / len(world.topics) / len(TEMPERS)
    sequence = 0
    while not world.quiet:
        count = rng.choice(BURSTS)
        place: Key | str = rng.choice(world.partitions_of(producer.topic))
        if temper.partition != "named":
            place = producer.topic
        pending: list[Pending | None] = []
        for _ in range(count):
            number = number_of(producer_number, sequence)
            sequence += 1
            key = b"key %d" % rng.randrange(KEYS) if temper.partition == "by key" else None
            pending.append(await enqueue(world, producer, place, number, key=key))
        settling.add(asyncio.create_task(settle(world, pending)))
        await asyncio.sleep(count / rate * rng.uniform(0.5, 1.5))
        ended = [task for task in settling if task.done()]
        settling.difference_update(ended)
        if not all(task.result() for task in ended) and rng.random() < SUCCESSION:
            return
