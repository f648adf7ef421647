"""`df.write.format("tidelog")` and `df.writeStream`: Spark's writer interface over `write_task.py`.

A writer is created on the driver for each job, and pickled for its tasks. A task's work is named after the query and
the micro-batch, which a restarted query finds in its checkpoint; in a batch job after a random number, which all
attempts of its tasks share.

A task is identified by its number, so a repeated micro-batch must have the same tasks. Since 4.2 Spark chooses their
number after each shuffle of a stateless query by the available cores, unless
`spark.sql.adaptive.streaming.stateless.enabled` is off. Tasks do not know the number of tasks; the driver knows it when
they are done, and refuses a batch that had other tasks before (`changed_tasks.py`).
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from pyspark_tidelog.changed_tasks import refuse_changed_tasks
from pyspark_tidelog.errors import OptionError, TidelogSourceError
from pyspark_tidelog.write_options import WriteOptions
from pyspark_tidelog.write_task import TaskStart, write_rows
from tidelog.produce.work import Work

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
else:
    try:
        from pyspark.sql.datasource import DataSourceStreamArrowWriter
    except ImportError:  # Spark 4.0

        class DataSourceStreamArrowWriter:
            """Not available in this version of Spark."""

            def __init__(self) -> None:
                raise OptionError("writing streams needs Spark 4.1 or newer: upgrade pyspark.")


_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"
"""Local properties in which Spark passes the query and the micro-batch to its tasks."""


@dataclass(frozen=True)
class TaskResult(WriterCommitMessage):
    """Result of a task, for the driver.

    Attributes:
        rows: number of rows of the task.
        stored_before: number of these rows that earlier attempts had stored.
        starts: the topics that the task wrote to, and their state when it started; empty in a batch job.
        query: the stream's query id; empty in a batch job.
        task: the task's number; 0 in a batch job.
    """

    rows: int
    stored_before: int
    starts: tuple[TaskStart, ...] = ()
    query: str = ""
    task: int = 0


def refuse_overwriting(*, overwrite: bool) -> None:
    """Refuse to overwrite a topic.

    Raises:
        OptionError: `overwrite` is set.
    """
    if overwrite:
        raise OptionError(
            "rows can only be appended to a topic: use mode('append') for a DataFrame, or outputMode('append') for a "
            "stream. Write the results of other output modes with foreachBatch."
        )


class TidelogWriter(DataSourceArrowWriter):
    """Writes a DataFrame in a batch job, each row exactly once over all attempts of its task. See the module."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._job = uuid.uuid4().hex

    def write(self, iterator: Iterator[Any]) -> TaskResult:
        """Write the rows (Arrow batches) of one partition, in a task."""
        result = asyncio.run(write_rows(iterator, self._options, Work(f"spark/{self._job}/{_task().partitionId()}", 0)))
        return TaskResult(result.rows, result.stored_before)


class TidelogStreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a stream, each row exactly once. See the module."""

    def __init__(self, options: WriteOptions) -> None:
        super().__init__()
        self._options = options

    def write(self, iterator: Iterator[Any]) -> TaskResult:
        """Write the rows (Arrow batches) of one partition of a micro-batch, in a task."""
        task = _task()
        query, batch = task.getLocalProperty(_QUERY_ID), task.getLocalProperty(_BATCH_ID)
        if not query or not batch:
            raise TidelogSourceError(
                "Spark does not report the ids of the query and the micro-batch, without which rows could be "
                "duplicated: use a supported version of Spark, 4.1 or newer."
            )
        number = task.partitionId()
        result = asyncio.run(write_rows(iterator, self._options, _work(query, number, int(batch))))
        return TaskResult(result.rows, result.stored_before, result.starts, query, number)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Check that no earlier attempt had other tasks, unless `failOnChangedRows` is off.

        The rows were already committed when the tasks returned.

        Raises:
            ChangedRowsError: an earlier attempt had other tasks.
            TidelogError: a request to the cluster failed.
        """
        results = [message for message in messages if isinstance(message, TaskResult)]
        if self._options.fail_on_changed_rows and results:
            query = results[0].query
            by_task = {one.task: one.starts for one in results}
            asyncio.run(
                refuse_changed_tasks(
                    self._options, by_task, len(messages), lambda number: _work(query, number, batchId)
                )
            )

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Do nothing: written rows remain stored, and are found when the batch is repeated."""


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None, "called in a task"
    return task


def _work(query: str, task: int, batch: int) -> Work:
    return Work(f"spark/{query}", batch, task)
