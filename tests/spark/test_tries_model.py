"""Micro-batches whose tries die anywhere, with the same tasks or with others: stored once, or told, at a real node."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa
import pytest
from tests.spark.conftest import Node

from pyspark_tidelog.changed_tasks import refuse_changed_tasks
from pyspark_tidelog.errors import ChangedRowsError
from pyspark_tidelog.write_options import WriteOptions, parse_write_options
from pyspark_tidelog.write_task import TaskStart, write_rows
from tidelog import Client
from tidelog.produce.work import Work
from tidelog.tables.read_arrow import read_arrow

TASKS_MAX = 8
TRIES_MAX = 3
"""That die."""


class Row(NamedTuple):
    """One of a query's."""

    topic: str
    value: bytes


class DiedError(Exception):
    """The task did."""


Tasks = list[list[Row]]


def tasks_of(rows: list[Row], chance: random.Random) -> Tasks:
    """Return the rows as some shuffle hands them out, some tasks without any."""
    tasks: Tasks = [[] for _ in range(chance.randint(1, TASKS_MAX))]
    used = chance.sample(tasks, chance.randint(1, len(tasks)))
    for row in rows:
        chance.choice(used).append(row)
    return tasks


def handed_out(rows: list[Row], chance: random.Random, dies_behind: int | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the rows in some order and in small batches, and die when there were so many."""
    left = chance.sample(rows, len(rows))[:dies_behind]
    while left:
        some = [left.pop() for _ in range(min(len(left), chance.randint(1, 3)))]
        yield pa.record_batch({"topic": [row.topic for row in some], "value": [row.value for row in some]})
    if dies_behind is not None:
        time.sleep(chance.choice((0.0, 0.02)))  # accepted rows are stored, or are not
        raise DiedError


class MicroBatch:
    """The first one of a query of its own."""

    def __init__(self, node: Node, chance: random.Random) -> None:
        self.address = node.address
        self.topics = [f"tries-{uuid.uuid4().hex}" for _ in range(chance.randint(1, 2))]
        self._name = uuid.uuid4().hex
        self._options: WriteOptions = parse_write_options({"bootstrap": node.address})
        self._chance = chance

    async def die_in(self, tasks: Tasks) -> None:
        """Do some tasks, some of them in part."""
        numbers = list(range(len(tasks)))
        if self._chance.random() < 0.3:
            self._chance.shuffle(numbers)
        for number in numbers:
            rows = tasks[number]
            dies_behind = self._chance.choice((None, self._chance.randint(0, len(rows))))
            if self._chance.random() < 0.7:
                with contextlib.suppress(DiedError, ChangedRowsError):
                    await self._write(number, handed_out(rows, self._chance, dies_behind))

    async def do(self, tasks: Tasks) -> None:
        """Do all of it, as Spark does.

        Raises:
            ChangedRowsError: an earlier try was another one.
        """
        chances = [random.Random(self._chance.random()) for _ in tasks]
        batches = (handed_out(*each) for each in zip(tasks, chances, strict=True))
        starts = await asyncio.gather(*(self._write(number, rows) for number, rows in enumerate(batches)))
        await refuse_changed_tasks(self._options, dict(enumerate(starts)), len(tasks), self._work)

    def stored(self) -> Counter[Row]:
        found: Counter[Row] = Counter()
        for topic in self.topics:
            table = read_arrow(topic, bootstrap=self.address, columns=["value"]).read_all()
            found.update(Row(topic, value or b"") for value in table["value"].to_pylist())
        return found

    async def _write(self, number: int, rows: Iterator[pa.RecordBatch]) -> tuple[TaskStart, ...]:
        return (await write_rows(rows, self._options, self._work(number))).starts

    def _work(self, number: int) -> Work:
        return Work(self._name, 0, number)


@pytest.mark.parametrize("seed", range(30))
async def test_rows_are_stored_once_or_reported(node: Node, seed: int) -> None:
    chance = random.Random(seed)
    batch = MicroBatch(node, chance)
    async with Client(node.address) as client:
        for topic in batch.topics:
            await client.create_topic(topic, partitions=chance.choice((1, 3)), flush="never")
    numbers = (chance.choice((number, number % 3)) for number in range(chance.randint(1, 30)))  # some are equal
    rows = [Row(chance.choice(batch.topics), b"%d" % number) for number in numbers]
    tries = [tasks_of(rows, chance)] * chance.randint(1, 1 + TRIES_MAX)
    if are_others := chance.random() < 0.5:
        tries = [chance.choice((tasks, tasks_of(rows, chance))) for tasks in tries]
    *dying, last = tries
    for tasks in dying:
        await batch.die_in(tasks)
    try:
        await batch.do(last)
    except ChangedRowsError:
        assert are_others, "the same tasks as before are accepted"
    else:
        assert await asyncio.to_thread(batch.stored) == Counter(rows)
