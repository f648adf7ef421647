"""A writing task at a real node, without Spark: tries that end in the middle, and two at the same time."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pytest
from tests.spark.conftest import Node

import tidelog
from pyspark_tidelog.errors import ChangedRowsError, TidelogSourceError
from pyspark_tidelog.write_options import WriteOptions, parse_write_options
from pyspark_tidelog.write_task import TaskStart, WriteResult, write_rows
from tidelog import Client
from tidelog.errors import ProducerFencedError, UnknownTopicError
from tidelog.produce.work import Work


class Task:
    """One work on a topic of its own."""

    def __init__(self, node: Node, **options: str) -> None:
        self.node = node
        self.topic = f"task-{uuid.uuid4().hex}"
        given = {"bootstrap": node.address, "topic": self.topic}
        self.options: WriteOptions = parse_write_options({**given, **options})

    async def write(self, batches: Iterator[pa.RecordBatch], piece: int = 0) -> WriteResult:
        return await write_rows(batches, self.options, Work("job", piece))

    async def stored(self) -> Counter[bytes | None]:
        async with Client(self.node.address) as client:
            found: Counter[bytes | None] = Counter()
            for partition, at in (await client.list_offsets(self.topic, "latest")).items():
                offset = 0
                while offset < at.high_watermark:
                    fetched = await client.fetch(self.topic, partition, offset)
                    offset = fetched.next_offset
                    found.update(value for batch in fetched.batches for value in batch.columns()["value"].to_pylist())
            return found


@pytest.fixture
async def task(node: Node) -> Task:
    task = Task(node)
    async with Client(node.address) as client:
        await client.create_topic(task.topic, partitions=3, flush="never")
    return task


def rows(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch({"value": [b"%d" % n for n in numbers], "key": [b"k%d" % n for n in numbers]})


def dies_behind(*batches: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    yield from batches
    raise RuntimeError("it dies")


def once(*numbers: int) -> Counter[bytes | None]:
    return Counter(b"%d" % n for n in numbers)


async def test_repeated_work_is_stored_once_in_any_order(task: Task) -> None:
    for attempt in (dies_behind(rows(*range(50))), dies_behind(rows(*range(40, 99)), rows(*range(40)))):
        with pytest.raises(RuntimeError, match="it dies"):
            await task.write(attempt)
    wrote = await task.write(iter([rows(*range(99, 49, -1)), rows(*range(50))]))
    assert await task.stored() == once(*range(100))
    assert wrote.rows == 100
    assert await task.write(iter([rows(*range(100))])) == WriteResult(
        100, 100, (TaskStart(task.topic, was_tried=True),)
    ), "all rows are stored"
    assert await task.write(iter([rows(*range(100))]), piece=1) == WriteResult(100, 0, (TaskStart(task.topic),)), (
        "another piece has its own rows"
    )
    assert set((await task.stored()).values()) == {2}


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [1, 0, 2, 3], [3, 2, 1, 0]])
async def test_rows_of_which_some_name_a_partition_are_stored_once(task: Task, order: list[int]) -> None:
    placed = [(0, None), (1, 0), (2, 0), (3, None)]
    some = rows(*[placed[at][0] for at in order])
    batch = some.append_column("partition", pa.array([placed[at][1] for at in order], pa.int32()))
    for before in (0, 4, 4):
        assert await task.write(iter([batch])) == WriteResult(4, before, (TaskStart(task.topic, was_tried=before > 0),))
    assert await task.stored() == once(0, 1, 2, 3)


async def test_of_two_at_the_same_time_the_later_one_writes(task: Task) -> None:
    async def late() -> WriteResult:
        return await task.write(iter([rows(1, 2, 3)]))

    def overtaken() -> Iterator[pa.RecordBatch]:
        yield rows(1, 2)
        finished.append(asyncio.run(late()))
        yield rows(3)

    finished: list[WriteResult] = []
    with pytest.raises(ProducerFencedError):
        await task.write(overtaken())
    assert finished[0].rows == 3
    assert await task.stored() == once(1, 2, 3)
    await task.write(iter([rows(4)]), piece=1)
    with pytest.raises(ProducerFencedError, match="producer 'job' of topic") as fenced:
        await task.write(iter([rows(1, 2, 3)]), piece=0)
    (note,) = fenced.value.__notes__
    assert "could not write batch 0" in note
    assert "restored to an earlier state" in note
    assert await task.stored() == once(1, 2, 3, 4)


async def test_missing_rows_are_reported(task: Task) -> None:
    with pytest.raises(RuntimeError, match="it dies"):
        await task.write(dies_behind(rows(1, 2), rows(3)))
    stored = await task.stored()
    with pytest.raises(ChangedRowsError, match=f"has written {stored.total()} rows that the query no longer produces"):
        await task.write(iter([rows(7)]))
    task.options = parse_write_options(
        {"bootstrap": task.node.address, "topic": task.topic, "failOnChangedRows": "false"}
    )
    assert (await task.write(iter([rows(7)]))).stored_before == 1


async def test_no_topic_and_no_rows(node: Node, task: Task) -> None:
    missing = Task(node)
    with pytest.raises(UnknownTopicError):
        await missing.write(iter([rows(1)]))
    assert await missing.write(iter([])) == WriteResult()
    assert await task.write(iter([rows()])) == WriteResult()


async def test_repeated_rows_of_a_typed_topic_are_stored_once_whatever_its_schema(node: Node) -> None:
    topic = f"typed-task-{uuid.uuid4().hex}"
    given = parse_write_options({"bootstrap": node.address, "topic": topic})
    options = replace(given, is_typed=True)

    def batch(*numbers: int) -> pa.RecordBatch:
        columns = {
            "k": [f"k{n}" for n in numbers],
            "n": list(numbers),
            "f": [float("nan") if n % 2 else -0.0 for n in numbers],
        }
        return pa.record_batch({**columns, "_partition": pa.array([n % 3 or None for n in numbers], pa.int32())})

    async def write(batches: Iterator[pa.RecordBatch]) -> WriteResult:
        return await write_rows(batches, options, Work("typed job", 0))

    async with Client(node.address) as client:
        await client.create_topic(topic, schema=["k string required", "n int32", "f float64"], key="k", partitions=3)
        with pytest.raises(RuntimeError, match="it dies"):
            await write(dies_behind(batch(*range(50))))
        await client.evolve_schema(topic, widen={"n": "int64"}, add=["gate string"])
        with pytest.raises(RuntimeError, match="it dies"):
            await write(dies_behind(batch(*range(60, 30, -1))))
        assert (await write(iter([batch(*range(99, 49, -1)), batch(*range(50))]))).rows == 100
        again = await write(iter([batch(*range(100))]))
        assert (again.rows, again.stored_before) == (100, 100)
        with pytest.raises(ChangedRowsError, match="has written 99 rows that the query no longer produces"):
            await write(iter([batch(7)]))
        with pytest.raises(TidelogSourceError, match=r"row 3 of the task's rows .*'n': Integer value"):
            await write_rows(
                iter(
                    [
                        batch(1, 2).drop_columns(["f"]),
                        batch(3).drop_columns(["f"]),
                        pa.record_batch({"k": ["x"], "n": pa.array([2**63], pa.uint64())}),
                    ]
                ),
                options,
                Work("other typed job", 0),
            )
    rows = await asyncio.to_thread(lambda: tidelog.read_arrow(topic, bootstrap=node.address).read_all())
    numbers = Counter(rows.column("n").to_pylist())
    assert numbers.total() - Counter({1: 1, 2: 1, 3: 1}).total() <= 100
    assert {n for n, count in numbers.items() if count > 1} <= {1, 2, 3}
    assert set(numbers) == set(range(100))
