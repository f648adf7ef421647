"""Bulk append of records as lists or columns, without waiting, for the gateway."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from tidelog.model import TopicRoute
from tidelog.produce.accumulator import RecordAccumulator
from tidelog.produce.batches import Delivery
from tidelog.produce.buffer_memory import BufferMemory
from tidelog.produce.open_batch import RecordLists
from tidelog.produce.partition_queue import QueueOptions
from tidelog.produce.receipts import PendingReceipts, PendingRows
from tidelog.produce.record_preparation import RecordPreparation

AddColumns = Callable[[TopicRoute, int | None, pa.RecordBatch, int], tuple[Delivery, int]]
"""Queues columns whose memory is reserved; returns their delivery and the number of their records."""


class BulkAppender:
    """Appends many records to one producer: all of them or none, and never waits.

    Args:
        options: options of the partition queues, which limit the size of a batch.
        preparation: the producer's record preparation; records are appended only if it leaves them unchanged.
        accumulator: the producer's accumulator, with its open batch.
        memory: the producer's buffer memory.
        known_route: returns the topic's cached route or None; raises TidelogError if the producer is closed or the
            topic was deleted.
        add_columns: queues columns.
    """

    def __init__(
        self,
        options: QueueOptions,
        preparation: RecordPreparation,
        accumulator: RecordAccumulator,
        memory: BufferMemory,
        *,
        known_route: Callable[[int | None], TopicRoute | None],
        add_columns: AddColumns,
    ) -> None:
        self._options = options
        self._preparation = preparation
        self._accumulator = accumulator
        self._memory = memory
        self._known_route = known_route
        self._add_columns = add_columns

    def put(self, rows: RecordLists) -> PendingRows | None:
        """Accept records as lists.

        Return None if that needs waiting or preparation: the topic or a partition is not cached, the buffer is full,
        other calls wait for memory, the records exceed a batch, or the producer has serializers or a partitioner.

        Raises:
            TidelogError: the producer is closed, or its topic was deleted.
        """
        route = self._known_route(None)
        if route is None or not self._preparation.plain:
            return None
        if rows.partitions and not all(number is None or number in route.partitions for number in rows.partitions):
            return None
        accepted = self._accumulator.accept_lists(rows, route.partition_count)
        if accepted is not None and rows.trace:
            accepted[0].traces += (rows.trace,)
        return None if accepted is None else PendingRows(*accepted, len(rows.values))

    def put_columns(
        self, columns: pa.RecordBatch, partition: int | None, size_bytes: int | None = None
    ) -> PendingReceipts | None:
        """Accept canonical columns as one batch of one partition.

        Args:
            columns: the columns.
            partition: their partition; None for any.
            size_bytes: size of the columns' buffers if the caller knows it, so that it is not computed; None otherwise.

        Return None if the topic or the partition is not cached, memory is short or other calls wait for it, there are
        no rows, the rows exceed a batch, the topic is typed, or their keys or a partitioner determine their partitions.

        Raises:
            TidelogError: the producer is closed, or its topic was deleted.
        """
        options = self._options
        if size_bytes is None:
            size_bytes = columns.nbytes
        if not 0 < columns.num_rows <= options.batch_records or size_bytes > options.batch_bytes:
            return None
        if self._preparation.rows is not None:
            return None
        if partition is None and (self._preparation.has_partitioner or "key" in columns.schema.names):
            return None
        route = self._known_route(partition)
        if route is None or (partition is not None and partition not in route.partitions):
            return None
        if not self._memory.try_reserve(size_bytes):
            return None
        if self._accumulator.batch is not None:
            self._accumulator.drain()  # earlier records are stored first
        return PendingReceipts([self._add_columns(route, partition, columns, size_bytes)], None)
