"""A member that joins and leaves repeatedly does not disturb the others and leaves no state behind."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise

import pytest
from tests.clients.sharing import new_topic, until

from tidelog import Client, Group, TopicPartition

pytestmark = pytest.mark.e2e

ROUNDS = 12
PARTITIONS = 4
PAUSE_S_MAX = 2.0
"""Longest pause between records of a kept partition: far below a session, which a wait for a member would take."""


async def test_flapping_member_does_not_stop_another_and_leaves_no_state(real: Client) -> None:
    topic = await new_topic(real, partitions=PARTITIONS)
    given_up: set[TopicPartition] = set()
    arrived: dict[int, list[float]] = {number: [] for number in range(PARTITIONS)}
    group = Group(topic, commit="processed", on_revoked=given_up.update, on_lost=given_up.update)
    async with real.producer(topic) as producer, real.consumer(topic, group=group) as steady:

        async def write() -> None:
            while True:
                await asyncio.gather(*(producer.send(b"v", partition=number) for number in range(PARTITIONS)))
                await asyncio.sleep(0.02)

        async def read() -> None:
            async for record in steady:
                arrived[record.partition].append(time.monotonic())

        tasks = [asyncio.create_task(write()), asyncio.create_task(read())]
        try:
            await until(lambda: all(arrived.values()))
            for number in range(ROUNDS):
                flapping = real.consumer(topic, group=Group(topic, commit="processed"))
                assert await flapping.poll(1, timeout_s=15.0), "it joins and gets partitions"
                await (flapping.close() if number % 2 else flapping.abort())
            await until(lambda: len(steady.assignment()) == PARTITIONS)
            standing, member_id = await real.groups.describe(topic), steady.member_id
            assert not any(task.done() for task in tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        kept = steady.assignment() - given_up
    assert len(kept) >= PARTITIONS // 2, "the flapping member gets the same partitions each time"
    for where in kept:
        times = arrived[where.partition]
        assert max(after - before for before, after in pairwise(times)) < PAUSE_S_MAX
    assert (standing.member_count, standing.position_count) == (1, PARTITIONS)
    assert [member.member_id for member in standing.members] == [member_id]
    assert standing.generation >= 2 * ROUNDS, "each join and leave computed a new target"
