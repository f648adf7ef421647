"""Two loads of a soak: keys with a latest value, and events with a retention time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from random import Random
from typing import Final

from tests.soak.memory import Acked, Ages, LatestOfKeys

from tidelog import Client
from tidelog.errors import TidelogError

STATE: Final = "state"
EVENTS: Final = "events"
STATE_PARTITIONS: Final = 2
EVENTS_PARTITIONS: Final = 3
KEYS: Final = 400
VALUE_DIGITS: Final = 200
DELETED: Final = 0.1
"""How often a key is deleted instead of written."""
KEYS_AT_ONCE: Final = 60
EVENTS_AT_ONCE: Final = 200
EVENT_BYTES: Final = 250
PAUSE_S: Final = 0.02
DELIVERY_S: Final = 60.0

GoesOn = Callable[[], bool]


def key_of(number: int) -> bytes:
    """Return a key by its number."""
    return b"key-%d" % number


async def write_state(client: Client, known: LatestOfKeys, rng: Random, goes_on: GoesOn) -> None:
    """Write and delete keys, each at most once at a time, until it is over."""
    producer = client.producer(STATE, delivery_timeout_s=DELIVERY_S)
    while goes_on():
        keys = [key_of(number) for number in rng.sample(range(KEYS), KEYS_AT_ONCE)]
        numbers = [None if rng.random() < DELETED else known.next_number(key) for key in keys]
        values = [None if number is None else b"%0*d" % (VALUE_DIGITS, number) for number in numbers]
        try:
            await producer.send_many(values, keys=keys)
        except TidelogError as error:
            known.ended(keys, numbers, is_acked=False if error.definite else None)
            producer = client.producer(STATE, delivery_timeout_s=DELIVERY_S)
        else:
            known.ended(keys, numbers, is_acked=True)
        await asyncio.sleep(PAUSE_S)


async def write_events(client: Client, known: Ages, rng: Random, goes_on: GoesOn) -> None:
    """Write events to each partition in turn until it is over."""
    producer, partition = client.producer(EVENTS, delivery_timeout_s=DELIVERY_S), 0
    while goes_on():
        partition = (partition + 1) % EVENTS_PARTITIONS
        values = [rng.randbytes(EVENT_BYTES) for _ in range(EVENTS_AT_ONCE)]
        sent_s = time.monotonic()
        try:
            receipts = await producer.send_many(values, partition=partition)
        except TidelogError:
            producer = client.producer(EVENTS, delivery_timeout_s=DELIVERY_S)
        else:
            told_s = time.monotonic()
            for index, base_offset, count in receipts.ranges:
                known.stored(Acked(index, base_offset, base_offset + count, sent_s, told_s))
        await asyncio.sleep(PAUSE_S)
