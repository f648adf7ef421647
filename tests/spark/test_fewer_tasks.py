"""A micro-batch that is done once more by fewer tasks, at a real node, without Spark."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator

import pyarrow as pa
import pytest
from tests.spark.conftest import Node, needs_spark_4_1

from pyspark_tidelog.errors import ChangedRowsError
from pyspark_tidelog.fewer_tasks import refuse_fewer_tasks
from pyspark_tidelog.sink import TidelogStreamWriter, Written
from pyspark_tidelog.write_options import WriteOptions, parse_write_options
from pyspark_tidelog.write_task import Wrote, write_rows
from tidelog import Client
from tidelog.errors import ProducerFencedError
from tidelog.named_producer import Work


class Query:
    """A stream that writes to a topic of its own."""

    def __init__(self, node: Node) -> None:
        self.topic = f"fewer-{uuid.uuid4().hex}"
        self.name = uuid.uuid4().hex
        self.options: WriteOptions = parse_write_options({"bootstrap": node.address, "topic": self.topic})

    async def write(self, *tasks: Iterator[pa.RecordBatch], batch: int = 0) -> list[Wrote]:
        works = [Work(f"{self.name}/{number}", batch) for number in range(len(tasks))]
        return [await write_rows(rows, self.options, work) for work, rows in zip(works, tasks, strict=True)]

    async def check(self, tasks: int, batch: int = 0) -> None:
        await refuse_fewer_tasks(self.options, [self.topic], tasks, lambda number: Work(f"{self.name}/{number}", batch))


@pytest.fixture
async def query(node: Node) -> Query:
    query = Query(node)
    async with Client(node.address) as client:
        await client.create_topic(query.topic, partitions=2, flush="never")
    return query


def rows(*numbers: int) -> Iterator[pa.RecordBatch]:
    yield pa.record_batch({"value": [b"%d" % number for number in numbers]})


async def test_rows_of_tasks_that_are_no_more_are_told(query: Query) -> None:
    await query.write(rows(1, 2), rows(3), rows(), rows(4, 5))
    (wrote,) = await query.write(rows(1, 2, 3, 4, 5))
    assert wrote == Wrote(5, 2, (query.topic,), True), "of the other tasks it finds nothing"
    with pytest.raises(ChangedRowsError, match=r"more tasks than this one \(1\), and has written 3 rows"):
        await query.check(1)


async def test_rows_of_a_task_far_behind_the_last_are_told(query: Query) -> None:
    await query.write(rows(1), rows(2), *(rows() for _ in range(14)), rows(3))
    await query.write(rows(1, 2, 3))
    with pytest.raises(ChangedRowsError, match="has written 2 rows"):
        await query.check(1)


@needs_spark_4_1
async def test_a_topic_counts_though_its_rows_were_another_tasks(node: Node, query: Query) -> None:
    other = Query(node)
    async with Client(node.address) as client:
        await client.create_topic(other.topic, flush="never")
    options = parse_write_options({"bootstrap": node.address})

    async def write(*tasks: list[tuple[str, int]]) -> list[Written]:
        done = []
        for number, task in enumerate(tasks):
            batch = pa.record_batch(
                {"topic": [topic for topic, _ in task], "value": [b"%d" % each for _, each in task]}
            )
            wrote = await write_rows(iter([batch]), options, Work(f"spark/{query.name}/{number}", 0))
            done.append(Written(wrote.rows, wrote.stored_before, wrote.topics, wrote.was_tried_before, query.name))
        return done

    await write([(query.topic, 1)], [(other.topic, 2)])
    once_more = await write([(query.topic, 1), (other.topic, 2)])
    with pytest.raises(ChangedRowsError, match=f"{other.topic}.* has written 1 rows"):
        await asyncio.to_thread(TidelogStreamWriter(options).commit, once_more, 0)


async def test_as_many_tasks_as_before_are_no_fault_however_often_it_is_looked(query: Query) -> None:
    await query.write(rows(1, 2), rows(3))
    await query.check(2)
    await query.check(2)
    first, second = await query.write(rows(2, 1), rows(3))
    assert (first.stored_before, second.stored_before) == (2, 1)
    await query.check(2)
    await query.write(rows(4), rows(5), rows(6), batch=1)
    await query.check(3, batch=1)


async def test_a_task_of_the_larger_try_that_still_writes_is_fenced(query: Query) -> None:
    def slow() -> Iterator[pa.RecordBatch]:
        yield from rows(1)
        with pytest.raises(ChangedRowsError):
            asyncio.run(_until_seen())
        yield from rows(2)

    async def _until_seen() -> None:
        for _ in range(100):
            await query.check(1)
            await asyncio.sleep(0.05)

    with pytest.raises(ProducerFencedError):
        await query.write(rows(0), slow())
