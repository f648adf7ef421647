"""Names of the work of writing tasks, which identify repeated attempts."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from pyspark import TaskContext
from tests.spark.conftest import needs_spark_4_1

from pyspark_tidelog import sink
from pyspark_tidelog.errors import OptionError, TidelogSourceError
from pyspark_tidelog.sink import TidelogStreamWriter, TidelogWriter, refuse_overwriting
from pyspark_tidelog.write_options import WriteOptions, parse_write_options
from pyspark_tidelog.write_task import TaskStart, WriteResult
from tidelog.produce.producer_instances import ProducerInstance
from tidelog.produce.work import Work

OPTIONS = parse_write_options({"bootstrap": "a:1", "topic": "t"})


class Task:
    """Spark's context of a task."""

    def __init__(self, partition: int, **properties: str) -> None:
        self._partition = partition
        self._properties = properties

    def partitionId(self) -> int:  # noqa: N802 - Spark's name
        return self._partition

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802 - Spark's name
        return self._properties.get(name)


@pytest.fixture
def works(monkeypatch: pytest.MonkeyPatch) -> list[Work]:
    done: list[Work] = []

    async def write_rows(rows: Iterator[Any], options: WriteOptions, work: Work) -> WriteResult:
        assert options == OPTIONS
        done.append(work)
        return WriteResult(len(list(rows)), 1, (TaskStart("t"),))

    monkeypatch.setattr(sink, "write_rows", write_rows)
    return done


def run_in(monkeypatch: pytest.MonkeyPatch, task: Task) -> None:
    monkeypatch.setattr(TaskContext, "get", lambda: task)


@needs_spark_4_1
def test_a_micro_batch_is_the_same_work_whoever_does_it(monkeypatch: pytest.MonkeyPatch, works: list[Work]) -> None:
    for partition, batch in ((3, "7"), (3, "7"), (3, "8"), (4, "8")):
        run_in(monkeypatch, Task(partition, **{"sql.streaming.queryId": "q", "streaming.sql.batchId": batch}))
        writer: TidelogStreamWriter = pickle.loads(pickle.dumps(TidelogStreamWriter(OPTIONS)))
        assert writer.write(iter("ab")) == sink.TaskResult(2, 1, (TaskStart("t"),), "q", partition)
    assert works == [Work("spark/q", 7, 3), Work("spark/q", 7, 3), Work("spark/q", 8, 3), Work("spark/q", 8, 4)]


@needs_spark_4_1
def test_the_driver_looks_for_tasks_that_are_not_these(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[tuple[Mapping[int, Sequence[TaskStart]], int, Work]] = []

    async def refuse(
        options: WriteOptions, starts: Mapping[int, Sequence[TaskStart]], tasks: int, work_of: Callable[[int], Work]
    ) -> None:
        assert options.topic == "t"
        looked.append((starts, tasks, work_of(tasks)))

    monkeypatch.setattr(sink, "refuse_changed_tasks", refuse)
    starts = TaskStart("s"), TaskStart("t", was_tried=True)
    wrote = [
        sink.TaskResult(2, 0, starts[:1], "q", 2),
        sink.TaskResult(3, 3, starts[1:], "q", 1),
        sink.TaskResult(0, 0, (), "q"),
    ]
    TidelogStreamWriter(OPTIONS).commit(wrote, 7)
    assert looked == [({2: starts[:1], 1: starts[1:], 0: ()}, 3, Work("spark/q", 7, 3))]
    for without in (replace(OPTIONS, fail_on_changed_rows=False), OPTIONS):
        TidelogStreamWriter(without).commit(wrote if without is not OPTIONS else [], 7)
    assert len(looked) == 1, "neither where both are to stay, nor without tasks"


def test_name_of_a_micro_batch_is_stable() -> None:
    """Frozen: a query that was stopped under an older version looks for what that has stored by these numbers."""
    query = "e0498d29-6dcc-42f6-995f-10d9bc34350d"
    for piece, first_epoch in ((0, 1024), (7, 1836032)):
        instance = ProducerInstance(None, "t", Work(f"spark/{query}", piece, 1))  # type: ignore[arg-type] # not used
        assert (instance.producer_id, instance.first_epoch) == (2744713625567481925, first_epoch)


def test_a_job_is_one_work_of_its_own(monkeypatch: pytest.MonkeyPatch, works: list[Work]) -> None:
    run_in(monkeypatch, Task(3))
    writer = TidelogWriter(OPTIONS)
    for each in (writer, pickle.loads(pickle.dumps(writer)), TidelogWriter(OPTIONS)):
        each.write(iter(""))
    first, again, other = works
    assert first == again
    assert first != other
    assert {work.piece for work in works} == {0}


@needs_spark_4_1
def test_without_a_name_nothing_is_written(monkeypatch: pytest.MonkeyPatch, works: list[Work]) -> None:
    run_in(monkeypatch, Task(0))
    with pytest.raises(TidelogSourceError, match="rows could be duplicated"):
        TidelogStreamWriter(OPTIONS).write(iter(""))
    assert works == []
    with pytest.raises(OptionError, match="append"):
        refuse_overwriting(overwrite=True)
