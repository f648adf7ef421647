"""The producer's record accumulator: collects single records in an open batch and drains it into partition queues.

The open batch is drained when a partition queue could send something at once, or when the batch is full. While every
partition waits for an answer, records keep accumulating, so batch size follows the node's latency (see
`partition_queue.py`). Memory for a full batch is reserved in advance, so that callers may append plain records to the
batch directly. Closing the batch to direct appends releases the unused part; `accept` still adds records to it.

Order is kept: before columns are accepted the open batch is drained, and while a call waits for buffer memory the open
batch is closed to direct appends, so that no later record is accepted first.

Draining turns the open batch into chunks, one for each partition. If all records go to one partition, the lists are
passed on as they are. Otherwise few records are split as lists. Many records are converted to columns: their keys are
hashed as a column, and one stable sort and one `take` group the rows by partition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.base.fork_safety import call_in_forked_child
from tidelog.errors import TidelogError
from tidelog.produce.batches import RECORD_OVERHEAD_BYTES, Chunk, ColumnChunk, ListChunk
from tidelog.produce.buffer_memory import BufferMemory
from tidelog.produce.open_batch import OpenBatch, RecordLists, closed_batch, record_size_bytes
from tidelog.produce.partition_queue import QueueOptions
from tidelog.produce.partition_queues import PartitionQueues
from tidelog.produce.producer_meter import ProducerMeter
from tidelog.produce.record_preparation import PreparedRecord
from tidelog.produce.sender import Sender
from tidelog.produce.splitting import group_by_partition
from tidelog.rows.row_writer import RowWriter
from tidelog_proto.batch.columns import columns_of
from tidelog_proto.batch.key_partitions import partition_for_key, partitions_of_keys

COLUMNS_MIN: Final = 128
"""Number of records from which splitting as columns is cheaper than splitting as lists."""

RECORDS_PER_CHUNK_MIN: Final = 2
"""Average number of records of a partition from which encoding them as columns is cheaper than one by one."""


ANY_PARTITION: Final = -1
"""Placeholder for "any partition": the queue with the fewest unacknowledged bytes is chosen."""


class RecordAccumulator:
    """Collects the single records of one producer in an open batch; belongs to one event loop.

    Args:
        options: options of the partition queues; an open batch is never larger than a batch on the wire.
        delivery_timeout_s: time from acceptance to the deadline of a record, in seconds.
        shared: whether callers may append plain records to `directly_appendable`, without `accept`.
        settled: called with each chunk that failed before it was queued.
        meter: counts these failures; None without metrics.

    Attributes:
        batch: the open batch; None if no record is waiting. An attribute, not a property, because the sender reads it
            for each batch.
        directly_appendable: the open batch while callers may append plain records to it, up to its `remaining_bytes`;
            a batch that refuses every append while they must call `accept`.
    """

    def __init__(
        self,
        memory: BufferMemory,
        queues: PartitionQueues,
        options: QueueOptions,
        *,
        delivery_timeout_s: float,
        shared: bool,
        settled: Callable[[Chunk], None],
        meter: ProducerMeter | None = None,
    ) -> None:
        self._memory = memory
        self._queues = queues
        # Limiting the bytes also limits the number of records, as each takes at least the overhead.
        self._capacity_bytes = min(options.batch_bytes, options.batch_records * RECORD_OVERHEAD_BYTES)
        self._delivery_timeout_s = delivery_timeout_s
        self._shared = shared
        self._settled = settled
        self._meter = meter
        self._closed_batch = closed_batch()
        self.batch: OpenBatch | None = None
        self._partition_count = 1
        self._sender: Sender | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.directly_appendable = self._closed_batch
        self._failure: TidelogError | None = None
        call_in_forked_child(self, RecordAccumulator.close_to_direct_after_fork)

    def close_to_direct_after_fork(self) -> None:
        """Refuse direct appends in a forked child, which must not fill a batch that only its parent sends."""
        self.directly_appendable = self._closed_batch

    @property
    def capacity_bytes(self) -> int:
        """Largest size of an open batch."""
        return self._capacity_bytes

    @property
    def unused_bytes(self) -> int:
        """Buffer memory reserved for records that are still to come."""
        return 0 if self.batch is None else max(0, self.batch.remaining_bytes)

    def bind(self, sender: Sender, loop: asyncio.AbstractEventLoop) -> None:
        """Set the sender and the event loop; records are accepted from now on."""
        self._sender, self._loop = sender, loop

    def accept(
        self, record: PreparedRecord, partition_count: int, *, memory_reserved: bool = False, claiming: bool = False
    ) -> tuple[OpenBatch, int] | None:
        """Append a record; return its batch and index, or None if memory is short or other calls wait for memory.

        Args:
            record: a checked record.
            partition_count: number of partitions of the topic, according to the cached metadata.
            memory_reserved: whether the caller, the first in the queue for memory, has reserved the memory of this
                record.
            claiming: whether the call may use a claim, and so get memory ahead of queued calls; see `BufferMemory`.
        """
        batch, size_bytes = self.batch, record.size_bytes
        if batch is not None:
            if self.drain_if_full(record):
                batch = None
            elif batch.remaining_bytes >= size_bytes:
                batch.remaining_bytes -= size_bytes
                return batch, batch.add(*record)
            else:
                self.close_to_direct()
        if not memory_reserved and not self._memory.try_reserve(size_bytes, claiming=claiming):
            return None
        self._partition_count = max(self._partition_count, partition_count)
        if batch is None:
            # Memory for a full batch is reserved with the second record: many batches have one record only.
            batch = self._begin(timestamped=record.timestamp_us is not None, rows=record.rows)
            batch.reserved_bytes = size_bytes
            return batch, batch.add(*record)
        batch.reserved_bytes += size_bytes
        index = batch.add(*record)
        self._reopen(batch)
        return batch, index

    def accept_lists(self, rows: RecordLists, partition_count: int) -> tuple[OpenBatch, int] | None:
        """Append all records or none; return the batch and the index of the first one.

        Return None if memory is short, other calls wait for memory, or the records are larger than `capacity_bytes`.
        """
        size_bytes, timestamped = rows.size_bytes(), rows.timestamps_us is not None
        if size_bytes > self._capacity_bytes:
            return None
        batch = self.batch
        if batch is not None:
            if self._drain_if_full(size_bytes, timestamped=timestamped):
                batch = None
            elif batch.remaining_bytes >= size_bytes:
                batch.remaining_bytes -= size_bytes
                return batch, batch.extend(rows)
            else:
                self.close_to_direct()
        if not self._memory.try_reserve(size_bytes):
            return None
        self._partition_count = max(self._partition_count, partition_count)
        if batch is None:
            batch = self._begin(timestamped=timestamped)
            batch.reserved_bytes = size_bytes
            return batch, batch.extend(rows)
        batch.reserved_bytes += size_bytes
        index = batch.extend(rows)
        self._reopen(batch)
        return batch, index

    def drain_if_full(self, record: PreparedRecord) -> bool:
        """Drain and send the open batch if the record does not fit into it; return whether it was drained.

        A record with an explicit timestamp does not fit into a batch of records without timestamps, and vice versa, nor
        one of another schema. The batch is sent at once, because a caller that puts records in a loop may never yield
        to the event loop.
        """
        return self._drain_if_full(record.size_bytes, timestamped=record.timestamp_us is not None, rows=record.rows)

    def _drain_if_full(self, size_bytes: int, *, timestamped: bool, rows: RowWriter | None = None) -> bool:
        batch = self.batch
        if batch is None or (
            batch.size_bytes + size_bytes <= self._capacity_bytes
            and (batch.timestamps_us is not None) == timestamped
            and batch.rows is rows
        ):
            return False
        self.drain(full=True)
        assert self._sender is not None
        self._sender.serve_now()
        return True

    def close_to_direct(self) -> None:
        """Refuse direct appends to the open batch, and release the memory that is reserved for them."""
        self.directly_appendable = self._closed_batch
        if self.batch is not None:
            unused_bytes = self.batch.close_to_direct()
            if unused_bytes:
                self._memory.release(unused_bytes)

    def drain_if_sendable(self) -> None:
        """Drain the open batch if a partition queue could send records at once."""
        if self.batch is not None and not self._queues.all_in_flight(self._partition_count):
            self.drain()

    def drain(self, *, full: bool = False) -> None:
        """Move the open batch into partition queues, and wake them.

        Args:
            full: whether the batch had no space left.
        """
        self.close_to_direct()
        batch, self.batch = self.batch, None
        if batch is not None:
            self._place(batch, self._partition_count, full=full)

    def add_batch(self, batch: OpenBatch, partition_count: int) -> None:
        """Queue a batch that was filled by other threads, after the open batch."""
        self.drain()
        assert self._loop is not None
        batch.deadline = self._loop.time() + self._delivery_timeout_s
        self._memory.reserve_over_limit(batch.size_bytes)
        if self._failure is not None:
            self._fail(batch, self._failure)
        else:
            self._place(batch, partition_count, full=False)

    def _place(self, batch: OpenBatch, partition_count: int, *, full: bool) -> None:
        """Queue the records of a batch, whose memory is reserved, and wake the queues."""
        assert self._sender is not None
        if batch.count > 1:
            batch.pad_columns()
        size_bytes = batch.size_bytes
        partition = common_partition(batch, partition_count)
        if partition is None:
            parts = split_by_partition(
                batch, partition_count, lambda: self._queues.least_loaded(partition_count, 0).partition
            )
            chunks = parts.chunks
            # Columns take less memory than Python objects.
            self._memory.release(size_bytes - sum(chunk.size_bytes for chunk in chunks))
        else:
            if partition == ANY_PARTITION:
                partition = self._queues.least_loaded(partition_count, size_bytes).partition
            chunks = [to_chunk(batch, partition, full=full)]
        for chunk in chunks:
            queue = self._queues.by_partition.get(chunk.partition) or self._queues.queue(chunk.partition)
            queue.add(chunk)
            self._sender.wake(queue)

    def fail(self, error: TidelogError) -> None:
        """Fail the open batch, and every batch that is added from now on."""
        self._failure = error
        self.close_to_direct()
        batch, self.batch = self.batch, None
        if batch is not None:
            self._fail(batch, error)

    def _fail(self, batch: OpenBatch, error: TidelogError) -> None:
        batch.pad_columns()
        chunk = to_chunk(batch, ANY_PARTITION, full=False)
        chunk.fail(error)
        self._settled(chunk)
        if self._meter is not None:
            self._meter.failed([chunk], error)
            self._meter.report_buffered()

    def _begin(self, *, timestamped: bool, rows: RowWriter | None = None) -> OpenBatch:
        assert self._sender is not None
        assert self._loop is not None
        deadline = self._loop.time() + self._delivery_timeout_s
        batch = self.batch = OpenBatch(deadline=deadline, timestamped=timestamped, rows=rows)
        self._sender.wake_soon()
        return batch

    def _reopen(self, batch: OpenBatch) -> None:
        """Allow direct appends to the batch again, unless a record would overtake a call that waits for memory."""
        if not self._shared or self._memory.has_waiters or batch.timestamps_us is not None or batch.rows is not None:
            return
        if batch.remaining_bytes < 0:
            more_bytes = min(self._capacity_bytes - batch.size_bytes, self._memory.free_bytes)
            if more_bytes <= 0:
                return
            self._memory.try_reserve(more_bytes)
            batch.reserve(more_bytes)
        self.directly_appendable = batch


class PartitionedChunks(NamedTuple):
    """One chunk for each partition, and the indexes that their records had in the open batch, chunk by chunk."""

    chunks: list[Chunk]
    order: Sequence[int]


def common_partition(batch: OpenBatch, partition_count: int) -> int | None:
    """Return the partition of all records.

    Return `ANY_PARTITION` if no record has a key or a partition, and None if the records have to be split.
    """
    partitions, count = batch.partitions, batch.count
    if partitions:
        first = partitions[0]
        return first if first is not None and partitions.count(first) == count else None
    if not batch.keys:
        return ANY_PARTITION
    if partition_count == 1:
        return 0
    return partition_for_key(batch.keys[0] or b"", partition_count) if count == 1 else None


def to_chunk(batch: OpenBatch, partition: int, *, full: bool) -> ListChunk:
    """Return all records of a batch with padded columns as one chunk, and set its delivery in the batch."""
    chunk = ListChunk(
        batch.values,
        partition=partition,
        deadline=batch.deadline,
        size_bytes=batch.size_bytes,
        keys=batch.keys,
        headers=batch.headers,
        tags=batch.tags,
        timestamps_us=batch.timestamps_us,
        full=full,
        rows=batch.rows,
    )
    chunk.traces = batch.traces
    batch.set_delivery(chunk)
    return chunk


def split_by_partition(batch: OpenBatch, partition_count: int, keyless: Callable[[], int]) -> PartitionedChunks:
    """Split a batch with padded columns into a chunk for each partition, and set the deliveries in the batch.

    Args:
        batch: a batch of which some records have a key or a partition.
        keyless: chooses the partition of records without key and partition.
    """
    if batch.count >= COLUMNS_MIN:
        parts = _split_columns(batch, partition_count, keyless)
    else:
        parts = _split_lists(batch, _targets(batch, partition_count, keyless))
    ends: list[int] = []
    for chunk in parts.chunks:
        chunk.traces = batch.traces
        ends.append((ends[-1] if ends else 0) + chunk.count)
    batch.set_deliveries(parts.chunks, ends, parts.order)
    return parts


def _targets(batch: OpenBatch, partition_count: int, keyless: Callable[[], int]) -> list[int]:
    """Return the partition of each record."""
    count = batch.count
    any_partition = -1
    targets: list[int] = []
    for key, explicit in zip(batch.keys or [None] * count, batch.partitions or [None] * count, strict=True):
        if explicit is not None:
            targets.append(explicit)
        elif key is not None:
            targets.append(partition_for_key(key, partition_count))
        else:
            any_partition = keyless() if any_partition < 0 else any_partition
            targets.append(any_partition)
    return targets


def _split_lists(batch: OpenBatch, targets: Sequence[int]) -> PartitionedChunks:
    """Split a batch by the partition of each record into lists."""
    count = batch.count
    keys = batch.keys or [None] * count
    order = sorted(range(count), key=targets.__getitem__)
    headers, tags = batch.headers or [()] * count, batch.tags or [None] * count
    if batch.rows is None:
        sizes = [record_size_bytes(*record) for record in zip(batch.values, keys, headers, tags, strict=True)]
    else:
        sizes = [batch.size_bytes // count] * count
    chunks: list[Chunk] = []
    for partition, group in groupby(order, targets.__getitem__):
        members = list(group)
        chunks.append(
            ListChunk(
                [batch.values[index] for index in members],
                partition=partition,
                deadline=batch.deadline,
                size_bytes=sum([sizes[index] for index in members]),
                keys=[batch.keys[index] for index in members] if batch.keys else None,
                headers=[batch.headers[index] for index in members] if batch.headers else None,
                tags=[batch.tags[index] for index in members] if batch.tags else None,
                timestamps_us=([batch.timestamps_us[index] for index in members] if batch.timestamps_us else None),
                rows=batch.rows,
            )
        )
    return PartitionedChunks(chunks, order)


def _split_columns(batch: OpenBatch, partition_count: int, keyless: Callable[[], int]) -> PartitionedChunks:
    columns = (columns_of if batch.rows is None else batch.rows.columns)(
        batch.values,
        keys=batch.keys or None,
        headers=batch.headers or None,
        tags=batch.tags or None,
        timestamps_us=batch.timestamps_us or None,
    )
    hashed = partitions_of_keys(columns, partition_count, batch.keys) if batch.keys else None
    explicit: Any = pa.array(batch.partitions, pa.int32()) if batch.partitions else None
    targets: Any = hashed if explicit is None else explicit if hashed is None else pc.coalesce(explicit, hashed)
    if batch.count < RECORDS_PER_CHUNK_MIN * len(targets.unique()):
        if targets.null_count:
            targets = pc.fill_null(targets, keyless())
        return _split_lists(batch, targets.to_pylist())
    grouped = group_by_partition(columns, targets, keyless)
    chunks: list[Chunk] = []
    for partition, rows, size_bytes in grouped.slices:
        assert partition is not None, "some records have a key or a partition, so each row has a partition"
        chunks.append(
            ColumnChunk(
                rows,
                partition=partition,
                deadline=batch.deadline,
                size_bytes=size_bytes,
                layout=None if batch.rows is None else batch.rows.layout,
            )
        )
    return PartitionedChunks(chunks, grouped.order.to_numpy())  # type: ignore[arg-type]  # indexed, and asked for its length
