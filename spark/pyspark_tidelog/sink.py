"""`df.write.format("tidelog")` and `df.writeStream`: what Spark asks of a writer, handed to `write_task.py`.

A writer is made on the driver for each job, and travels to its tasks pickled. What a task does is named after the query
and the micro-batch, which a restarted query finds in its checkpoint; after a random number in a job that is no stream,
which all tries of its tasks share.

A task is told by its number, so a micro-batch that is done once more must have the same tasks. Spark since 4.2 chooses
their number anew behind each shuffle of a query without state, by the cores that there are, unless
`spark.sql.adaptive.streaming.stateless.enabled` is off. No task is told how many there are; the driver is, when they
are done, and refuses a batch that had others before (`other_tasks.py`).
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from pyspark_tidelog.errors import OptionError, TidelogSourceError
from pyspark_tidelog.other_tasks import refuse_other_tasks
from pyspark_tidelog.write_options import WriteOptions
from pyspark_tidelog.write_task import Begun, write_rows
from tidelog.produce.work import Work

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
else:
    try:
        from pyspark.sql.datasource import DataSourceStreamArrowWriter
    except ImportError:  # Spark 4.0

        class DataSourceStreamArrowWriter:
            """Spark does not know it yet."""

            def __init__(self) -> None:
                raise OptionError("writing streams needs Spark 4.1 or newer.")


_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"
"""Where Spark tells its tasks which query and micro-batch they belong to."""


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What a task has written, for the driver.

    Attributes:
        rows: so many.
        stored_before: of those, by earlier tries.
        begun: the topics into which it wrote, and what it met there.
        query: the stream's; empty in a job that is none.
        task: its number.
    """

    rows: int
    stored_before: int
    begun: tuple[Begun, ...] = ()
    query: str = ""
    task: int = 0


def refuse_overwriting(*, overwrite: bool) -> None:
    """Refuse what a log cannot do.

    Raises:
        OptionError: with `overwrite`.
    """
    if overwrite:
        raise OptionError("a topic is a log, to which rows are appended: write with mode('append').")


class TidelogWriter(DataSourceArrowWriter):
    """Writes a frame, once. See the module."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._job = uuid.uuid4().hex

    def write(self, iterator: Iterator[Any]) -> Written:
        """Write the rows of one partition, Arrow batches, in a task."""
        wrote = asyncio.run(write_rows(iterator, self._options, Work(f"spark/{self._job}/{_task().partitionId()}", 0)))
        return Written(wrote.rows, wrote.stored_before)


class TidelogStreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a stream, each row once. See the module."""

    def __init__(self, options: WriteOptions) -> None:
        super().__init__()
        self._options = options

    def write(self, iterator: Iterator[Any]) -> Written:
        """Write the rows of one partition of a micro-batch, Arrow batches, in a task."""
        task = _task()
        query, batch = task.getLocalProperty(_QUERY_ID), task.getLocalProperty(_BATCH_ID)
        if not query or not batch:
            raise TidelogSourceError(
                "Spark does not tell which query and micro-batch this is, so rows could be doubled."
            )
        number = task.partitionId()
        wrote = asyncio.run(write_rows(iterator, self._options, _work(query, number, int(batch))))
        return Written(wrote.rows, wrote.stored_before, wrote.begun, query, number)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """All is committed when a task returns; see that no earlier try had other tasks than these.

        Raises:
            ChangedRowsError: one had.
            TidelogError: the cluster could not be asked.
        """
        wrote = [message for message in messages if isinstance(message, Written)]
        if self._options.fail_on_changed_rows and wrote:
            query = wrote[0].query
            begun = {one.task: one.begun for one in wrote}
            asyncio.run(
                refuse_other_tasks(self._options, begun, len(messages), lambda number: _work(query, number, batchId))
            )

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """What was written of a batch stays, and is found when it is done once more."""


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None, "writing is done in a task"
    return task


def _work(query: str, task: int, batch: int) -> Work:
    return Work(f"spark/{query}", batch, task)
