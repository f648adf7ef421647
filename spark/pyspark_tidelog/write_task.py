"""A task that writes: the rows of one partition of a query, into topics, each row once however often it is tried.

A task's producer is named after the work (query, batch, partition of the query). Who does the work once more fences
whoever tried before, looks at what they have stored of it, and writes what is missing (ADR 0093). That costs something
only when it happens; the first who does a work asks nobody.

Spark's rows come from a blocking iterator. It is asked on a thread, so that sending goes on meanwhile; what is accepted
and not yet acknowledged is bounded by the producer's buffer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from pyspark_tidelog.errors import ChangedRowsError
from pyspark_tidelog.outgoing import Rows, rows_by_place
from pyspark_tidelog.stored_rows import StoredRows
from pyspark_tidelog.write_options import WriteOptions
from tidelog import Client
from tidelog.errors import ProducerFencedError
from tidelog.produce.producer import Producer
from tidelog.produce.work import Work
from tidelog_proto.batch.columns import canonical


@dataclass(frozen=True, slots=True)
class Begun:
    """What a task met when it began to write into a topic.

    Attributes:
        topic: its name.
        was_tried: whether an earlier try of the task had begun to write there.
        is_first: whether no task had, of whatever number. Of all that write a micro-batch into a topic one is the
            first, unless somebody had tried before, or the answer to the first got lost.
        tasks: those that had begun are numbered below this.
    """

    topic: str
    was_tried: bool = False
    is_first: bool = False
    tasks: int = 0


@dataclass(frozen=True, slots=True)
class Wrote:
    """What a task has done.

    Attributes:
        rows: of its part.
        stored_before: of those, by earlier tries.
        begun: the topics into which it wrote, by their names.
    """

    rows: int = 0
    stored_before: int = 0
    begun: tuple[Begun, ...] = ()


async def write_rows(batches: Iterator[pa.RecordBatch], options: WriteOptions, work: Work) -> Wrote:
    """Write all rows, and return when they are committed.

    Raises:
        ChangedRowsError: what an earlier try has stored is not among the rows.
        OptionError: a row names no topic.
        TidelogError: not all could be written; says of which topic.
    """
    writers: dict[str, TopicWriter] = {}
    async with Client(options.access.bootstrap, **options.access.client_options) as client:
        try:
            while (batch := await asyncio.to_thread(next, batches, None)) is not None:
                for rows in rows_by_place(batch, options.topic):
                    if rows.topic not in writers:
                        writers[rows.topic] = await TopicWriter.begin(client, rows, options, work)
                    await writers[rows.topic].take(rows)
            for writer in writers.values():
                await writer.finish()
        finally:
            for writer in writers.values():
                await writer.producer.abort()
    wrote = [writer.wrote for _, writer in sorted(writers.items())]
    return Wrote(
        sum(one.rows for one in wrote),
        sum(one.stored_before for one in wrote),
        tuple(begun for one in wrote for begun in one.begun),
    )


class TopicWriter:
    """Writes the rows of one topic. `begin` makes one.

    Attributes:
        producer: of this try.
    """

    def __init__(self, producer: Producer, begun: Begun, *, fail_on_changed_rows: bool) -> None:
        self.producer = producer
        self._begun = begun
        self._fail_on_changed_rows = fail_on_changed_rows
        self._stored: StoredRows | None = None
        self._rows = 0
        self._stored_before = 0

    @classmethod
    async def begin(cls, client: Client, first: Rows, options: WriteOptions, work: Work) -> TopicWriter:
        """Fence earlier tries of the work, and look at what they have stored.

        Args:
            client: for the topic.
            first: rows, which tell what the query says of each.
            options: how to write.
            work: that is done, perhaps once more.
        """
        producer = client.producer(first.topic, name=work, acks=options.acks, compression=options.compression)
        try:
            await producer.begin()
        except ProducerFencedError as error:
            error.add_note(
                f"Piece {work.piece} of it was to be written, of which another try or a later piece has begun. Of a "
                "stream pieces are micro-batches: either two drivers have one checkpoint, or it was put back to an "
                "earlier state, and what came behind that is stored. Go on with the newest, or begin with a new one."
            )
            raise
        earlier = producer.earlier
        assert earlier is not None, "it has a name"
        registration = earlier.registration
        begun = Begun(first.topic, was_tried=earlier.exist)
        if registration is not None:
            begun = replace(begun, is_first=registration.is_first, tasks=registration.parts)
        writer = cls(producer, begun, fail_on_changed_rows=options.fail_on_changed_rows)
        if earlier.exist:
            stored = StoredRows(with_time="timestamp" in first.columns.schema.names)
            async for partition, batch in earlier.batches():
                stored.add(batch.columns(), partition)
            writer._stored = stored
        return writer

    @property
    def wrote(self) -> Wrote:
        """What was done so far."""
        return Wrote(self._rows, self._stored_before, (self._begun,))

    async def take(self, rows: Rows) -> None:
        """Send rows that are not stored; wait for room, not for acknowledgements."""
        columns = canonical(rows.columns)
        self._rows += columns.num_rows
        if self._stored is not None:
            missing = self._stored.without_stored(columns, rows.partition)
            self._stored_before += columns.num_rows - missing.num_rows
            columns = missing
        if columns.num_rows:
            await self.producer.enqueue_arrow(columns, partition=rows.partition)

    async def finish(self) -> None:
        """Wait until all is committed.

        Raises:
            ChangedRowsError, TidelogError: as `write_rows`.
        """
        await self.producer.flush()
        left = 0 if self._stored is None else self._stored.left
        if left and self._fail_on_changed_rows:
            raise ChangedRowsError(
                f"topic {self.producer.topic!r}: an earlier try of this batch has written {left} rows that the query "
                "no longer makes, so it is not the same each time: rand(), uuid() and functions of your own that "
                "depend on more than their arguments are the usual reasons, or another number of tasks "
                "(see spark.sql.adaptive.streaming.stateless.enabled). The rows of this try were written, too. "
                "Set 'failOnChangedRows' to 'false' to go on with both."
            )
