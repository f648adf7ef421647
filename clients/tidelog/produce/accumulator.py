"""Accepts loose records into the open gathering of a producer, and hands it over to lanes when its time has come.

That is when a lane could send something at once, or when it is full. While each partition waits for an answer, records
go on gathering, so batches grow as much as the node makes them wait (see `partition_queue.py`). Room in the buffer is
reserved for a whole batch when a gathering is opened, and what is not used of it is given back when it is shut.

Nothing overtakes: what is accepted otherwise (columns, or for who stands in line for room) first has the gathering
handed over, or shut so that nobody joins it past the line.

Handing over makes loads of a gathering: each record goes to a lane, all to one where that can be, else by one sort.
Few records are placed one by one, as lists. Many become columns first: their keys are hashed as a column, and one
stable sort of the partition numbers and one `take` bring those of a partition together, in the order in which they were
given.
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
from tidelog.produce.open_batch import OpenBatch, RecordLists, record_size_bytes, sealed_batch
from tidelog.produce.partition_queue import QueueOptions
from tidelog.produce.partition_queues import PartitionQueues
from tidelog.produce.producer_meter import ProducerMeter
from tidelog.produce.record_preparation import PreparedRecord
from tidelog.produce.sender import Sender
from tidelog.produce.splitting import by_target
from tidelog_proto.batch.columns import columns_of
from tidelog_proto.batch.partitioner import partition_column, partition_for_key, partition_list

COLUMNS_MIN: Final = 128
"""From so many records on, columns are cheaper than going from record to record."""


ANY_PARTITION: Final = -1
"""Instead of a partition: the one with the fewest bytes under way."""


class RecordAccumulator:
    """The open gathering of one producer; belongs to one event loop.

    Args:
        room: the producer's buffer.
        lanes: where records go.
        options: of the lanes: a gathering is never larger than a batch.
        delivery_timeout_s: when records are given up.
        shared: whether plain records may join without a look.
        settled: is told of records that failed before they had a lane.
        meter: the same; None: nobody counts.

    Attributes:
        gathering: what has gathered; None if there is nothing. An attribute, since it is looked at for every batch.
        open: what plain records may join without a look, as far as its `left_bytes` go.
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
        # So many of the smallest records are as many as a batch may have.
        self._capacity_bytes = min(options.batch_bytes, options.batch_records * RECORD_OVERHEAD_BYTES)
        self._delivery_timeout_s = delivery_timeout_s
        self._shared = shared
        self._settled = settled
        self._meter = meter
        self._sealed = sealed_batch()
        self.batch: OpenBatch | None = None
        self._partition_count = 1
        self._sender: Sender | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.open = self._sealed
        self._failure: TidelogError | None = None
        call_in_forked_child(self, RecordAccumulator.seal_after_fork)

    def seal_after_fork(self) -> None:
        """Let nothing join without a look."""
        self.open = self._sealed

    @property
    def capacity_bytes(self) -> int:
        """How large a gathering grows."""
        return self._capacity_bytes

    @property
    def unused_bytes(self) -> int:
        """How much of the buffer is taken for records that have not come yet."""
        return 0 if self.batch is None else max(0, self.batch.remaining_bytes)

    def bind(self, sender: Sender, loop: asyncio.AbstractEventLoop) -> None:
        """Begin; before that nothing is accepted."""
        self._sender, self._loop = sender, loop

    def accept(
        self, record: PreparedRecord, partition_count: int, *, memory_reserved: bool = False, claiming: bool = False
    ) -> tuple[OpenBatch, int] | None:
        """Let a record join; return where it is, or None if there is no room or others stand in line for it.

        Args:
            record: checked.
            partition_count: of the topic, as far as is known now.
            memory_reserved: the caller has the turn and has reserved memory for this record.
            claiming: it may be who waited for room before, and is let past the line now.
        """
        batch, size_bytes = self.batch, record.size_bytes
        if batch is not None:
            if self.drain_if_full(record):
                batch = None
            elif batch.remaining_bytes >= size_bytes:
                batch.remaining_bytes -= size_bytes
                return batch, batch.add(*record)
            else:
                self.seal()
        if not memory_reserved and not self._memory.try_reserve(size_bytes, claiming=claiming):
            return None
        self._partition_count = max(self._partition_count, partition_count)
        if batch is None:
            # Whether more will join, nobody knows: the first one opens it, and the second reserves room for all.
            batch = self._begin(timestamped=record.timestamp_us is not None)
            batch.reserved_bytes = size_bytes
            return batch, batch.add(*record)
        batch.reserved_bytes += size_bytes
        index = batch.add(*record)
        self._reopen(batch)
        return batch, index

    def accept_lists(self, rows: RecordLists, partition_count: int) -> tuple[OpenBatch, int] | None:
        """Let records join, all of them or none; return where the first is.

        None if there is no room, other callers wait for room, or the records exceed a gathering.
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
                self.seal()
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
        """Hand over what a record does not fit, and say whether that was so.

        What is full leaves at once: the caller may be a loop that lets nobody else run.
        """
        return self._drain_if_full(record.size_bytes, timestamped=record.timestamp_us is not None)

    def _drain_if_full(self, size_bytes: int, *, timestamped: bool) -> bool:
        batch = self.batch
        if batch is None or (
            batch.size_bytes + size_bytes <= self._capacity_bytes and (batch.timestamps_us is not None) == timestamped
        ):
            return False
        self.drain(full=True)
        assert self._sender is not None
        self._sender.serve_now()
        return True

    def seal(self) -> None:
        """Let nothing join without a look, and give back what is reserved for it."""
        self.open = self._sealed
        if self.batch is not None:
            unused_bytes = self.batch.seal()
            if unused_bytes:
                self._memory.release(unused_bytes)

    def drain_if_sendable(self) -> None:
        """Hand over what has gathered if a lane could send it at once."""
        if self.batch is not None and not self._queues.all_in_flight(self._partition_count):
            self.drain()

    def drain(self, *, full: bool = False) -> None:
        """Give what has gathered to lanes, and wake them.

        Args:
            full: no more would have fitted.
        """
        self.seal()
        batch, self.batch = self.batch, None
        if batch is not None:
            self._place(batch, self._partition_count, full=full)

    def add_batch(self, batch: OpenBatch, partition_count: int) -> None:
        """Take over what gathered elsewhere, behind what gathered here."""
        self.drain()
        assert self._loop is not None
        batch.deadline = self._loop.time() + self._delivery_timeout_s
        self._memory.reserve_over_limit(batch.size_bytes)
        if self._failure is not None:
            self._fail(batch, self._failure)
        else:
            self._place(batch, partition_count, full=False)

    def _place(self, batch: OpenBatch, partition_count: int, *, full: bool) -> None:
        """Give records to lanes whose room in the buffer is taken, and wake them."""
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
            # As columns they take less than as objects.
            self._memory.release(size_bytes - sum(chunk.size_bytes for chunk in chunks))
        else:
            if partition == ANY_PARTITION:
                partition = self._queues.least_loaded(partition_count, size_bytes).partition
            chunks = [to_chunk(batch, partition, full=full)]
        for chunk in chunks:
            queue = self._queues.queue(chunk.delivery.partition)
            queue.add(chunk)
            self._sender.wake(queue)

    def fail(self, error: TidelogError) -> None:
        """Give up what has gathered, and what is to be adopted from now on."""
        self._failure = error
        self.seal()
        batch, self.batch = self.batch, None
        if batch is not None:
            self._fail(batch, error)

    def _fail(self, batch: OpenBatch, error: TidelogError) -> None:
        batch.pad_columns()
        chunk = to_chunk(batch, ANY_PARTITION, full=False)
        chunk.delivery.fail(error)
        self._settled(chunk)
        if self._meter is not None:
            self._meter.failed([chunk], error)
            self._meter.report_buffered()

    def _begin(self, *, timestamped: bool) -> OpenBatch:
        assert self._sender is not None
        assert self._loop is not None
        deadline = self._loop.time() + self._delivery_timeout_s
        batch = self.batch = OpenBatch(deadline=deadline, timestamped=timestamped)
        self._sender.wake_soon()
        return batch

    def _reopen(self, batch: OpenBatch) -> None:
        """Let plain records join without a look, unless somebody would be overtaken."""
        if not self._shared or self._memory.has_waiters or batch.timestamps_us is not None:
            return
        if batch.remaining_bytes < 0:
            more_bytes = min(self._capacity_bytes - batch.size_bytes, self._memory.free_bytes)
            if more_bytes <= 0:
                return
            self._memory.try_reserve(more_bytes)
            batch.reserve(more_bytes)
        self.open = batch


class PartitionedChunks(NamedTuple):
    """Loads, one a partition, and the numbers of the records in the order of the loads."""

    chunks: list[Chunk]
    order: Sequence[int]


def common_partition(batch: OpenBatch, partition_count: int) -> int | None:
    """Return the partition that all records go to, `ANYWHERE`, or None where they have to be split."""
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
    """Return all records of a gathering that is filled up as one load; the gathering knows where they are."""
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
    )
    chunk.delivery.traces = batch.traces
    batch.set_delivery(chunk.delivery)
    return chunk


def split_by_partition(batch: OpenBatch, partition_count: int, keyless: Callable[[], int]) -> PartitionedChunks:
    """Return the records of a gathering that is filled up, a load for each partition; the gathering knows which.

    Args:
        batch: with keys, or with partitions for some records.
        partition_count: of the topic.
        keyless: chooses the partition of the records that have neither.
    """
    parts = (_split_columns if batch.count >= COLUMNS_MIN else _split_lists)(batch, partition_count, keyless)
    ends: list[int] = []
    for chunk in parts.chunks:
        chunk.delivery.traces = batch.traces
        ends.append((ends[-1] if ends else 0) + chunk.count)
    batch.set_deliveries([chunk.delivery for chunk in parts.chunks], ends, parts.order)
    return parts


def _split_lists(batch: OpenBatch, partition_count: int, keyless: Callable[[], int]) -> PartitionedChunks:
    count = batch.count
    keys = batch.keys or [None] * count
    any_partition = -1
    targets: list[int] = []
    for key, given in zip(keys, batch.partitions or [None] * count, strict=True):
        if given is not None:
            targets.append(given)
        elif key is not None:
            targets.append(partition_for_key(key, partition_count))
        else:
            any_partition = keyless() if any_partition < 0 else any_partition
            targets.append(any_partition)
    order = sorted(range(count), key=targets.__getitem__)
    headers, tags = batch.headers or [()] * count, batch.tags or [None] * count
    sizes = [record_size_bytes(*record) for record in zip(batch.values, keys, headers, tags, strict=True)]
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
            )
        )
    return PartitionedChunks(chunks, order)


def _split_columns(batch: OpenBatch, partition_count: int, keyless: Callable[[], int]) -> PartitionedChunks:
    columns = columns_of(
        batch.values,
        keys=batch.keys or None,
        headers=batch.headers or None,
        tags=batch.tags or None,
        timestamps_us=batch.timestamps_us or None,
    )
    hashed = None
    if batch.keys:
        hashed = partition_list(batch.keys, partition_count)
        if hashed is None:
            hashed = partition_column(columns.column("key"), partition_count)
    given: Any = pa.array(batch.partitions, pa.int32()) if batch.partitions else None
    targets: Any = hashed if given is None else given if hashed is None else pc.coalesce(given, hashed)
    routed = by_target(columns, targets, keyless)
    chunks: list[Chunk] = []
    for partition, rows, size_bytes in routed.pieces:
        assert partition is not None, "some have a key or a partition, so that all are sorted"
        chunks.append(ColumnChunk(rows, partition=partition, deadline=batch.deadline, size_bytes=size_bytes))
    return PartitionedChunks(chunks, routed.order.to_numpy())  # type: ignore[arg-type]  # indexed, and asked for its length
