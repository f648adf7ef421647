"""The product's side of a benchmark: publishes and reads the same batches as the probe, through the public client.

Only public calls are timed: `send_arrow`, `send`, and `batches` with the `columns` of each batch. A throughput run
keeps a fixed number of sends pending, as many as the probe keeps payloads in flight.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from typing import Final, Literal

import pyarrow as pa

from tidelog import Client
from tidelog_loadtest.measure.runs import Budget, Run

READ_STALL_S: Final = 60.0
"""Interval of the checks whether a read has got a record since the last one."""

FlushName = Literal["always", "never"]


class WrongCountError(Exception):
    """More or fewer records were read than were acknowledged: some are duplicated or lost."""


@contextlib.asynccontextmanager
async def own_topic(
    client: Client, flush: FlushName, *, retention_bytes: int | None = None, segment_bytes: int | None = None
) -> AsyncIterator[str]:
    """Create a topic with one partition, yield its name, and delete it on exit.

    The topic's name is unique: a benchmark against an existing node must not touch existing topics.

    Args:
        client: connected to the node.
        flush: the topic's `flush` setting.
        retention_bytes: approximate maximum size of the topic; None to retain all records.
        segment_bytes: the topic's segment size; None for the node's setting.
    """
    name = f"bench-{secrets.token_hex(6)}"
    await client.create_topic(
        name, partitions=1, flush=flush, retention_bytes=retention_bytes, segment_bytes=segment_bytes
    )
    try:
        yield name
    finally:
        await client.delete_topic(name)


async def produce_run(
    client: Client, topic: str, batches: Sequence[pa.RecordBatch], batch_bytes: int, budget: Budget, *, window: int
) -> Run:
    """Publish the batches in turn until the budget is used up and all are acknowledged; time each send.

    Args:
        client: connected to the node.
        topic: the topic's name; partition 0 is used.
        batches: canonical columns, all of the same encoded length.
        batch_bytes: the encoded length of a batch, for the rate in bytes.
        budget: limit of the run.
        window: number of pending sends.
    """
    run = Run()
    in_turn = itertools.cycle(batches)
    async with client.producer(topic, acks="quorum") as producer:

        async def send_in_turn() -> None:
            while budget.take():
                columns = next(in_turn)
                began_ns = time.perf_counter_ns()
                await producer.send_arrow(columns, partition=0)
                run.add(columns.num_rows, batch_bytes, time.perf_counter_ns() - began_ns)

        budget.begin()
        run.begin()
        async with asyncio.TaskGroup() as group:
            for _ in range(window):
                group.create_task(send_in_turn())
        run.end()
    return run


async def latency_run(client: Client, topic: str, value: bytes, budget: Budget) -> Run:
    """Publish one record at a time, each after the acknowledgement of the previous one."""
    run = Run()
    async with client.producer(topic, acks="quorum") as producer:
        budget.begin()
        run.begin()
        while budget.take():
            began_ns = time.perf_counter_ns()
            await producer.send(value, partition=0)
            run.add(1, len(value), time.perf_counter_ns() - began_ns)
        run.end()
    return run


async def consume_run(client: Client, topic: str, expected_records: int) -> Run:
    """Read the topic from its beginning as columns until `expected_records` are read; time each batch.

    Raises:
        WrongCountError: the last batch exceeds `expected_records`, or no record arrives for `READ_STALL_S` to twice
            that time.
    """
    run = Run()
    async with client.consumer(topic, start="earliest") as consumer, _ended_by_a_stall(run, topic, expected_records):
        stream = aiter(consumer.batches())
        run.begin()
        while run.records < expected_records:
            began_ns = time.perf_counter_ns()
            consumed = await anext(stream)
            columns = consumed.batch.columns()
            run.add(columns.num_rows, consumed.batch.header.length, time.perf_counter_ns() - began_ns)
        run.end()
    if run.records != expected_records:
        raise WrongCountError(
            f"{run.records} records read, {expected_records} acknowledged in topic {topic!r}: some are duplicated"
        )
    return run


@contextlib.asynccontextmanager
async def _ended_by_a_stall(run: Run, topic: str, expected_records: int) -> AsyncIterator[None]:
    """End the block if the run gets no record; checked by a task, so that the timed calls cost nothing more."""

    async def watch() -> None:
        records_before = -1
        while run.records != records_before:
            records_before = run.records
            await asyncio.sleep(READ_STALL_S)
        limit.reschedule(asyncio.get_running_loop().time())

    limit = asyncio.timeout(None)
    try:
        async with limit:
            watching = asyncio.create_task(watch())
            try:
                yield
            finally:
                watching.cancel()
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise WrongCountError(
            f"{run.records} records read, {expected_records} acknowledged in topic {topic!r}: no further record "
            f"arrived for {READ_STALL_S:g} s, so some are lost or cannot be read"
        ) from error
