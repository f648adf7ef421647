"""A Spark task that writes the rows of one partition of a query to topics, each exactly once over all attempts.

A task's producer is named after the work (query, batch, partition of the query). A repeated attempt fences earlier
ones, reads the rows that they have stored, and writes the missing ones (ADR 0093). The first attempt has no extra cost.

Spark's rows come from a blocking iterator, which is read on a thread so that sending continues; the producer's buffer
bounds unacknowledged rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from pyspark_tidelog.errors import ChangedRowsError
from pyspark_tidelog.outgoing import Rows, rows_by_place
from pyspark_tidelog.stored_rows import StoredRows
from pyspark_tidelog.typed_outgoing import error_with_row, typed_rows_by_place
from pyspark_tidelog.write_options import WriteOptions
from tidelog import Client
from tidelog.errors import ProducerFencedError
from tidelog.produce.producer import Producer
from tidelog.produce.work import Work
from tidelog.rows.arrow_rows import typed_columns
from tidelog.rows.value_checks import RowError
from tidelog_proto.batch.columns import canonical
from tidelog_proto.batch.row_layout import RowLayout, row_layout


@dataclass(frozen=True, slots=True)
class TaskStart:
    """State of a topic when a task started to write to it.

    Attributes:
        was_tried: whether an earlier attempt of this task had started to write there.
        is_first: whether no other task had started to write there. Of all tasks that write a micro-batch to a topic,
            one is the first, unless there was an earlier attempt, or the reply to the first was lost.
        tasks: all tasks that had started have numbers below this one.
    """

    topic: str
    was_tried: bool = False
    is_first: bool = False
    tasks: int = 0


@dataclass(frozen=True, slots=True)
class WriteResult:
    """Result of a task.

    Attributes:
        rows: number of rows of the task.
        stored_before: number of these rows that earlier attempts had stored.
        starts: the topics that the task wrote to, sorted by name, and their state when it started.
    """

    rows: int = 0
    stored_before: int = 0
    starts: tuple[TaskStart, ...] = ()


async def write_rows(batches: Iterator[pa.RecordBatch], options: WriteOptions, work: Work) -> WriteResult:
    """Write all rows; return when they are committed.

    Raises:
        ChangedRowsError: an earlier attempt has stored rows that are not among these, and `failOnChangedRows` is on.
        OptionError: a row has no topic.
        TidelogSourceError: a row does not fit the schema of a typed topic; it is named. Rows before it may be stored.
        TidelogError: writing failed; the message has the topic.
    """
    writers: dict[str, TopicWriter] = {}
    rows_before = 0
    async with Client(options.access.bootstrap, **options.access.client_options) as client:
        try:
            while (batch := await asyncio.to_thread(next, batches, None)) is not None:
                try:
                    for rows in _places(batch, options):
                        if rows.topic not in writers:
                            writers[rows.topic] = await TopicWriter.begin(client, rows, options, work)
                        await writers[rows.topic].take(rows)
                except RowError as error:
                    if options.topic is None:
                        raise
                    layout = row_layout(await client.schema(options.topic))
                    raise error_with_row(error, layout, batch, rows_before) from error
                rows_before += batch.num_rows
            for writer in writers.values():
                await writer.finish()
        finally:
            for writer in writers.values():
                await writer.producer.abort()
    results = [writer.result for _, writer in sorted(writers.items())]
    return WriteResult(
        sum(one.rows for one in results),
        sum(one.stored_before for one in results),
        tuple(start for one in results for start in one.starts),
    )


def _places(batch: pa.RecordBatch, options: WriteOptions) -> Iterator[Rows]:
    if options.is_typed and options.topic is not None:
        return typed_rows_by_place(batch, options.topic)
    return rows_by_place(batch, options.topic)


class TopicWriter:
    """Writes the rows of one topic; created by `begin`.

    Args:
        producer: a producer that has begun.
        start: the state of the topic at that time.
        layout: of the newest schema of a typed topic; None for others.
        fail_on_changed_rows: as in `WriteOptions`.
    """

    def __init__(
        self, producer: Producer, start: TaskStart, layout: RowLayout | None, *, fail_on_changed_rows: bool
    ) -> None:
        self.producer = producer
        self._start = start
        self._layout = layout
        self._fail_on_changed_rows = fail_on_changed_rows
        self._stored_rows: StoredRows | None = None
        self._rows = 0
        self._stored_before = 0

    @classmethod
    async def begin(cls, client: Client, first: Rows, options: WriteOptions, work: Work) -> TopicWriter:
        """Fence earlier attempts of the work, and read the rows that they have stored.

        Args:
            client: connected to the cluster.
            first: the first rows, which show the columns that the query sets.
            options: the options of the sink.
            work: identifies the task's work over all attempts.

        Raises:
            TidelogError: a request failed, or (ProducerFencedError) a later attempt or batch has started.
        """
        producer = client.producer(first.topic, name=work, acks=options.acks, compression=options.compression)
        try:
            await producer.begin()
        except ProducerFencedError as error:
            error.add_note(
                f"A task could not write batch {work.piece}, because another attempt of the task or a later batch has "
                "started. If Spark repeated or duplicated the task, there is nothing to do. In a stream, two drivers "
                "may use one checkpoint, or the checkpoint may have been restored to an earlier state, whose later "
                "batches are already stored: use the newest checkpoint, or a new one."
            )
            raise
        earlier = producer.earlier
        assert earlier is not None, "a named producer that has begun has `earlier`"
        registration = earlier.registration
        start = TaskStart(first.topic, was_tried=earlier.exist)
        if registration is not None:
            start = replace(start, is_first=registration.is_first, tasks=registration.parts)
        layout = row_layout(await client.schema(first.topic)) if options.is_typed else None
        writer = cls(producer, start, layout, fail_on_changed_rows=options.fail_on_changed_rows)
        if earlier.exist:
            # The time field of a typed topic is part of a row's content.
            time = "_timestamp" if options.is_typed else "timestamp"
            stored = StoredRows(with_time=time in first.columns.schema.names)
            async for partition, batch in earlier.batches():
                stored.add(batch.columns(), partition, batch.layout)
            writer._stored_rows = stored
        return writer

    @property
    def result(self) -> WriteResult:
        """The result so far."""
        return WriteResult(self._rows, self._stored_before, (self._start,))

    async def take(self, rows: Rows) -> None:
        """Send the rows that are not stored; wait for buffer space, but not for acknowledgements.

        Raises:
            RowError: a row does not fit the schema of a typed topic.
        """
        layout = self._layout
        columns = canonical(rows.columns) if layout is None else rows.columns
        self._rows += columns.num_rows
        if self._stored_rows is not None:
            content = columns if layout is None else typed_columns(layout, columns)
            are_stored = self._stored_rows.are_stored(content, rows.partition, layout)
            self._stored_before += int(are_stored.sum())
            if are_stored.any():
                columns = columns.filter(pa.array(~are_stored))
        if columns.num_rows:
            await self.producer.enqueue_arrow(columns, partition=rows.partition)

    async def finish(self) -> None:
        """Wait until all rows are committed.

        Raises:
            ChangedRowsError, TidelogError: as `write_rows`.
        """
        await self.producer.flush()
        left = 0 if self._stored_rows is None else self._stored_rows.left
        if left and self._fail_on_changed_rows:
            raise ChangedRowsError(
                f"topic {self.producer.topic!r}: an earlier attempt of this batch has written {left} rows that the "
                "query no longer produces; the topic has the rows of both attempts. The query is not deterministic, "
                "for example because it uses rand() or uuid(), or it ran with another number of tasks (see "
                "spark.sql.adaptive.streaming.stateless.enabled). "
                "Set 'failOnChangedRows' to 'false' to continue with the rows of both attempts."
            )
