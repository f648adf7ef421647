"""A micro-batch that is done once more by other tasks, at a real node, without Spark."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from tests.spark.conftest import Node, needs_spark_4_1

from pyspark_tidelog import changed_tasks
from pyspark_tidelog.changed_tasks import refuse_changed_tasks, tasks_to_check
from pyspark_tidelog.errors import ChangedRowsError
from pyspark_tidelog.sink import TaskResult, TidelogStreamWriter
from pyspark_tidelog.write_options import WriteOptions, parse_write_options
from pyspark_tidelog.write_task import TaskStart, WriteResult, write_rows
from tidelog import Client
from tidelog.errors import ProducerFencedError
from tidelog.produce.work import Work
from tidelog.requests import fetch_and_commit


class Query:
    """A stream that writes to a topic of its own."""

    def __init__(self, node: Node) -> None:
        self.topic = f"other-{uuid.uuid4().hex}"
        self.name = uuid.uuid4().hex
        self.options: WriteOptions = parse_write_options({"bootstrap": node.address, "topic": self.topic})

    def work(self, task: int, batch: int = 0) -> Work:
        return Work(self.name, batch, task)

    async def write(self, *tasks: Iterator[pa.RecordBatch], batch: int = 0) -> list[WriteResult]:
        """Do a micro-batch, a task after the other."""
        return [await write_rows(rows, self.options, self.work(number, batch)) for number, rows in enumerate(tasks)]

    async def check(self, wrote: list[WriteResult], batch: int = 0) -> None:
        starts = {number: one.starts for number, one in enumerate(wrote)}
        await refuse_changed_tasks(self.options, starts, len(wrote), lambda number: self.work(number, batch))


@pytest.fixture
async def query(node: Node) -> Query:
    query = Query(node)
    async with Client(node.address) as client:
        await client.create_topic(query.topic, partitions=2, flush="never")
    return query


def rows(*numbers: int) -> Iterator[pa.RecordBatch]:
    if numbers:
        yield pa.record_batch({"value": [b"%d" % number for number in numbers]})


async def test_rows_of_removed_tasks_are_reported(query: Query) -> None:
    await query.write(rows(1, 2), rows(3), rows(), rows(4, 5))
    (wrote,) = await query.write(rows(1, 2, 3, 4, 5))
    assert wrote == WriteResult(5, 2, (TaskStart(query.topic, was_tried=True, tasks=4),)), (
        "of the other tasks it finds nothing"
    )
    with pytest.raises(ChangedRowsError, match=r"from this attempt \(1 tasks\), so at least 3 of its rows"):
        await query.check([wrote])


async def test_rows_are_reported_although_the_first_tasks_had_none(query: Query) -> None:
    await query.write(*(rows() for _ in range(40)), rows(1, 2))
    (wrote,) = await query.write(rows(1, 2))
    assert wrote.starts == (TaskStart(query.topic, tasks=41),), "no earlier attempt has its own number"
    with pytest.raises(ChangedRowsError, match=r"from this attempt \(1 tasks\), so at least 2 of its rows"):
        await query.check([wrote])


@pytest.mark.parametrize("again", [[(1,), (), (2,)], [(), (), (1,), (), (), (), (2,)], [(), (), (), (1, 2)]])
async def test_rows_of_a_task_that_has_none_now_are_reported(query: Query, again: list[tuple[int, ...]]) -> None:
    await query.write(rows(), rows(1, 2), rows())
    wrote = await query.write(*(rows(*task) for task in again))
    with pytest.raises(ChangedRowsError, match="so at least 2 of its rows"):
        await query.check(wrote)


async def test_the_log_is_read_once_for_all_that_are_looked_at(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[int] = []
    fetch = fetch_and_commit.fetch

    async def counting(router: Any, topic: str, partition: int, *args: Any, **options: Any) -> Any:
        fetched.append(partition)
        return await fetch(router, topic, partition, *args, **options)

    tasks: list[tuple[int, ...]] = [(), (), (1,), *[()] * 20]
    await query.write(*(rows(*task) for task in tasks))
    wrote = await query.write(*(rows(*task) for task in tasks))
    await query.check(wrote)  # which begins the tasks that have none
    monkeypatch.setattr(fetch_and_commit, "fetch", counting)
    await query.check(wrote)
    assert sorted(fetched) == [0, 1]


async def test_first_attempt_checks_no_tasks(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changed_tasks, "Client", None)
    for batch in range(3):
        tasks = [rows(), rows(1), rows(2)][batch % 2 :]
        await query.check(await query.write(*tasks, batch=batch), batch)


async def test_tasks_that_begin_at_the_same_time_are_one_first(query: Query) -> None:
    wrote = await asyncio.gather(*(write_rows(rows(1), query.options, query.work(number)) for number in range(8)))
    assert [one.is_first for each in wrote for one in each.starts].count(True) == 1


@needs_spark_4_1
async def test_a_topic_counts_though_its_rows_were_another_tasks(node: Node, query: Query) -> None:
    other = Query(node)
    async with Client(node.address) as client:
        await client.create_topic(other.topic, flush="never")
    options = parse_write_options({"bootstrap": node.address})

    async def write(*tasks: list[tuple[str, int]]) -> list[TaskResult]:
        done = []
        for number, task in enumerate(tasks):
            batch = pa.record_batch(
                {"topic": [topic for topic, _ in task], "value": [b"%d" % each for _, each in task]}
            )
            wrote = await write_rows(iter([batch]), options, Work(f"spark/{query.name}", 0, number))
            done.append(TaskResult(wrote.rows, wrote.stored_before, wrote.starts, query.name, number))
        return done

    await write([(query.topic, 1)], [(other.topic, 2)])
    once_more = await write([(query.topic, 1), (other.topic, 2)])
    with pytest.raises(ChangedRowsError, match=f"{other.topic}.* so at least 1 of its rows"):
        await asyncio.to_thread(TidelogStreamWriter(options).commit, once_more, 0)


async def test_same_tasks_are_accepted_however_often_they_are_checked(query: Query) -> None:
    await query.write(rows(1, 2), rows(), rows(3))
    for _ in range(3):
        wrote = await query.write(rows(2, 1), rows(), rows(3))
        assert [one.stored_before for one in wrote] == [2, 0, 1]
        await query.check(wrote)
        await query.check(wrote)
    await query.check(await query.write(rows(4), rows(5), rows(6), batch=1), batch=1)


async def test_a_try_that_an_older_version_began_is_looked_at(query: Query) -> None:
    """Older versions have no registry: a task with an earlier attempt reports it."""
    for number, row in enumerate((1, 2, 3)):
        await write_rows(rows(row), query.options, Work(f"{query.name}/{number}", 0))
    wrote = await query.write(rows(1, 3), rows(2))
    assert [(one.is_first, one.was_tried) for each in wrote for one in each.starts] == [(True, True), (False, True)]
    assert tasks_to_check({number: one.starts for number, one in enumerate(wrote)}, 3) == {query.topic: [2]}


async def test_a_task_of_the_larger_try_that_still_writes_is_fenced(query: Query) -> None:
    def slow() -> Iterator[pa.RecordBatch]:
        yield from rows(1)
        with pytest.raises(ChangedRowsError):
            asyncio.run(_until_seen())
        yield from rows(2)

    async def _until_seen() -> None:
        for _ in range(100):
            await query.check(await query.write(rows(0)))
            await asyncio.sleep(0.05)

    with pytest.raises(ProducerFencedError):
        await query.write(rows(0), slow())


def test_tasks_to_check() -> None:
    nobody = TaskStart("t", is_first=True)
    for starts, tasks, looked in (
        ({}, 4, {}),
        ({1: [nobody], 2: [TaskStart("t", tasks=2)]}, 4, {}),
        ({1: [TaskStart("t")], 2: [TaskStart("t", tasks=2)]}, 4, {"t": [0, 3]}),
        ({0: [TaskStart("t", tasks=5)]}, 1, {"t": [1, 2, 3, 4]}),
        ({0: [TaskStart("t", was_tried=True)], 1: [nobody]}, 3, {"t": [2]}),
        ({0: [nobody, TaskStart("u", tasks=1)], 1: [TaskStart("u", tasks=1)]}, 3, {"u": [2]}),
    ):
        assert tasks_to_check(starts, tasks) == looked
