"""Loops that applications write around the client, timed until all records are acknowledged.

All loops take the same records and end without pending records. A loop that waits for each record takes only the first
`ONE_BY_ONE_MAX` of them and measures the time of each; the others measure only the total time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from tidelog import Client, Producer, Receipt, TidelogError
from tidelog.errors import BufferFullError
from tidelog_loadtest.measure.product import WrongCountError

TOGETHER: Final = 1_000
"""Number of sends per `asyncio.gather`."""
ONE_BY_ONE_MAX: Final = 2_000
"""Maximum number of records of a loop that waits for each record: it would take too long for all records."""


@dataclass(frozen=True, slots=True)
class Records:
    """Records to publish and read: values of equal size, and a key for each value."""

    values: list[bytes]
    keys: list[bytes]

    @classmethod
    def of(cls, count: int, size_bytes: int) -> Records:
        """Return records with about 20 records per key; values are distinct if the record's number fits into them."""
        pad = b"x" * size_bytes
        values = [(b"%d " % number + pad)[:size_bytes] for number in range(count)]
        return cls(values, [b"user-%d" % (number * 7919 % max(1, count // 20)) for number in range(count)])

    def first(self, count: int) -> Records:
        """Return the first `count` records."""
        return Records(self.values[:count], self.keys[:count])


@dataclass(frozen=True, slots=True)
class Timed:
    """Times of one run of a loop.

    Attributes:
        records: number of records of the run.
        elapsed_s: wall-clock time.
        cpu_s: processor time of this process.
        p50_s: median time of a record; None if records are not timed one by one.
    """

    records: int
    elapsed_s: float
    cpu_s: float
    p50_s: float | None = None

    @property
    def per_s(self) -> float:
        """Records per second."""
        return self.records / max(1e-9, self.elapsed_s)

    @property
    def cpu_ns(self) -> float:
        """Processor time of this process per record, in ns."""
        return self.cpu_s * 1e9 / max(1, self.records)


Loop = Callable[[Producer, Records], Awaitable[None]]


async def _put(producer: Producer, records: Records) -> None:
    put = producer.put
    for value in records.values:
        try:
            put(value)
        except BufferFullError:
            await producer.ready()
            put(value)


async def _put_keyed(producer: Producer, records: Records) -> None:
    put = producer.put
    for value, key in zip(records.values, records.keys, strict=True):
        try:
            put(value, key=key)
        except BufferFullError:
            await producer.ready()
            put(value, key=key)


def _noted(receipt: Receipt | None, error: TidelogError | None) -> None:
    """Ignore a delivery: the loop measures the cost of a callback, not of its work."""


async def _put_with_callback(producer: Producer, records: Records) -> None:
    put = producer.put
    for value in records.values:
        try:
            put(value, on_delivery=_noted)
        except BufferFullError:
            await producer.ready()
            put(value, on_delivery=_noted)


async def _enqueue(producer: Producer, records: Records) -> None:
    for value in records.values:
        await producer.enqueue(value)


async def _gather(producer: Producer, records: Records) -> None:
    for at in range(0, len(records.values), TOGETHER):
        await asyncio.gather(*(producer.send(value) for value in records.values[at : at + TOGETHER]))


def _many(count: int, *, keyed: bool) -> Loop:
    async def loop(producer: Producer, records: Records) -> None:
        for at in range(0, len(records.values), count):
            keys = records.keys[at : at + count] if keyed else None
            # The next list is accepted while the previous one is pending, as if two tasks called send_many.
            await producer.enqueue_many(records.values[at : at + count], keys=keys)

    return loop


async def _arrow(producer: Producer, records: Records) -> None:
    for at in range(0, len(records.values), 10_000):
        # In several arrays, because allocating the pages of a single one takes longer than publishing the records.
        values: Any = pa.array(records.values[at : at + 10_000], pa.binary())
        await producer.enqueue_arrow(pa.record_batch({"value": values}))


PUBLISHING: Final[dict[str, Loop]] = {
    "put": _put,
    "put, keys": _put_keyed,
    "put, callback": _put_with_callback,
    "enqueue": _enqueue,
    "gather of 1,000 sends": _gather,
    "send_many of 1,000": _many(1_000, keyed=False),
    "send_many of 10,000": _many(10_000, keyed=False),
    "send_many of 1,000, keys": _many(1_000, keyed=True),
    "send_many of 10,000, keys": _many(10_000, keyed=True),
    "send_arrow of 10,000": _arrow,
}
ONE_BY_ONE: Final = "send, one by one"
READING: Final = ("async for record", "batches to lists", "columns", "to_arrow")


async def publish(client: Client, topic: str, loop: Loop, records: Records) -> Timed:
    """Run a publish loop with a producer of its own until all records are acknowledged."""
    async with client.producer(topic) as producer:
        clock = Clock()
        await loop(producer, records)
        await producer.flush()
        return clock.stop(len(records.values))


async def one_by_one(client: Client, topic: str, records: Records) -> Timed:
    """Publish the first `ONE_BY_ONE_MAX` records, each after the acknowledgement of the previous one."""
    some = records.first(ONE_BY_ONE_MAX)
    async with client.producer(topic) as producer:
        times: list[float] = []
        clock = Clock()
        for value in some.values:
            began_s = time.perf_counter()
            await producer.send(value)
            times.append(time.perf_counter() - began_s)
        return clock.stop(len(times), times)


async def read(client: Client, topic: str, how: str, expected: int) -> Timed:
    """Read a topic from its beginning with one of the methods in `READING`.

    Raises:
        WrongCountError: the number of records read differs from the number stored.
    """
    count = 0
    async with client.consumer(topic) as consumer:
        clock = Clock()
        if how == "async for record":
            async for record in consumer:
                count += record.value is not None
                if count == expected:
                    break
        else:
            async for batch in consumer.batches():
                if how == "columns":
                    count += batch.batch.columns().num_rows
                elif how == "to_arrow":
                    count += batch.to_arrow().num_rows
                else:
                    count += len(batch.batch.values())
                if count >= expected:
                    break
        timed = clock.stop(count)
    if count != expected:
        raise WrongCountError(
            f"{count} records read, {expected} acknowledged in topic {topic!r}: some are lost or duplicated"
        )
    return timed


class Clock:
    """A stopwatch that starts when it is created."""

    def __init__(self) -> None:
        self._cpu_s = time.process_time()
        self._began_s = time.perf_counter()

    def stop(self, records: int, times: list[float] | None = None) -> Timed:
        """Return the elapsed times; `times` are the times of single records, in s."""
        elapsed_s, cpu_s = time.perf_counter() - self._began_s, time.process_time() - self._cpu_s
        ordered: list[Any] = sorted(times or [])
        return Timed(records, elapsed_s, cpu_s, ordered[len(ordered) // 2] if ordered else None)
