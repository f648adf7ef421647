"""The producer: accepts single records, lists and Arrow columns, and returns receipts.

Single records are collected in an open batch (`accumulator.py`). `put` and `enqueue` append a plain record inline,
because another function call would add a fifth to their cost. Columns are split by partition at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import pyarrow as pa

from tidelog.base.fork_safety import call_in_forked_child
from tidelog.base.internal import internal
from tidelog.base.metric_calls import MetricCalls
from tidelog.base.plain_callbacks import check_callback
from tidelog.base.refuse_pickling import refuse_to_pickle
from tidelog.cluster.routing import Router
from tidelog.errors import ClosedError, UnknownPartitionError
from tidelog.model import Receipt, TopicRoute
from tidelog.produce.accumulator import RecordAccumulator
from tidelog.produce.batches import RECORD_OVERHEAD_BYTES, Chunk, ColumnChunk, Delivery
from tidelog.produce.buffer_memory import BufferMemory
from tidelog.produce.bulk_append import BulkAppender
from tidelog.produce.delivery_callbacks import DeliveryCallbacks
from tidelog.produce.earlier_attempts import EarlierAttempts
from tidelog.produce.open_batch import OnDelivery
from tidelog.produce.partition_queue import QueueOptions
from tidelog.produce.partition_queues import PartitionQueues
from tidelog.produce.partition_slices import PartitionSlicer
from tidelog.produce.producer_id import make_producer_id
from tidelog.produce.producer_instances import ProducerInstance
from tidelog.produce.producer_meter import ProducerMeter
from tidelog.produce.producer_options import ACKS, CODECS, ProducerOptions
from tidelog.produce.receipts import PendingReceipt, PendingReceipts, Receipts
from tidelog.produce.record_preparation import Columns, PreparedRecord, RecordPreparation, checked_int
from tidelog.produce.sender import Sender
from tidelog.produce.thread_handoff import ProducerInternals, buffer_full, not_begun, unknown_partition
from tidelog.produce.topic_binding import TopicBinding
from tidelog.produce.unreported_failures import UnreportedFailures
from tidelog.rows.value_checks import RowError
from tidelog_proto.batch.columns import Headers
from tidelog_proto.batch.row_layout import RowLayout

T = TypeVar("T")

_running_loop: Final = asyncio._get_running_loop  # noqa: SLF001 - returns None, also in a forked child, instead of raising

_new: Final = object.__new__
"""Creates a receipt without the call of `__init__`, which would add a tenth to the cost of a `put`."""


class Producer:
    """Publishes to one topic. Created by `Client.producer`; use it as an async context manager, or `close` it.

    Records of one partition are stored in the order of the calls, also if calls wait for memory. An accepted record is
    never stored twice, even if it is sent again. The producer writes to the topic that has the name when the producer
    begins: if that topic is deleted, the producer accepts nothing more, even if a new topic has the same name.
    """

    def __init__(
        self,
        router: Router,
        topic: str,
        options: ProducerOptions,
        check: Callable[[], None],
        *,
        metric_calls: MetricCalls | None = None,
    ) -> None:
        self.topic = topic
        self._router = router
        self._options = options
        self._check_usable = check
        self._instance = ProducerInstance(router, topic, options.name) if options.name is not None else None
        self.earlier = None if self._instance is None else EarlierAttempts(router, topic, self._instance)
        """Reads the batches that earlier instances have stored for the same piece of `Work`, after `begin`; None if the
        producer has no name."""
        self._queue_options = QueueOptions(
            producer_id=make_producer_id() if self._instance is None else self._instance.producer_id,
            codec=CODECS[options.compression],
            batch_bytes=options.batch_bytes,
            is_named=self._instance is not None,
        )
        self._preparation = RecordPreparation(options)
        self._memory = BufferMemory(options.buffer_bytes)
        self._meter: ProducerMeter | None = None
        if metric_calls is not None:
            self._meter = ProducerMeter(metric_calls, topic, self._buffered_bytes, options.delivery_timeout_s)
        self._queues = PartitionQueues(self._queue_options, self._settled, self._meter)
        self._accumulator = RecordAccumulator(
            self._memory,
            self._queues,
            self._queue_options,
            delivery_timeout_s=options.delivery_timeout_s,
            shared=self._preparation.plain,
            settled=self._settled,
            meter=self._meter,
        )
        self._slicer = PartitionSlicer(self._queue_options, self._preparation, self._queues)
        self._sender: Sender | None = None
        self._callbacks: DeliveryCallbacks | None = None
        self._binding = TopicBinding(router, topic, self._instance, use_schema=self._preparation.use_schema)
        self.internals = ProducerInternals(
            topic, self._preparation, self._accumulator, self._memory, self._route_of_threads, self._ready
        )
        """Used by `tidelog.sync`; not public."""
        self.bulk_appender = BulkAppender(
            self._queue_options,
            self._preparation,
            self._accumulator,
            self._memory,
            known_route=self._known_route,
            add_columns=self._add_columns,
        )
        """Used by the gateway; not public."""
        self._refused_bytes = 0
        """Size of the record that the last `put` refused."""
        self._unturned_bytes = 0
        """Bytes accepted as columns since the producer last yielded to the event loop."""
        self._failures = UnreportedFailures()
        self._closed = False
        self._usable_in: asyncio.AbstractEventLoop | None = None
        """The event loop in which the client was found to be usable; None: the next record checks it."""
        self._route_now = TopicRoute(topic, b"")
        """The topic's route as of `_revision`, a revision of the metadata."""
        self._revision = -1
        call_in_forked_child(self, Producer.recheck)

    async def __aenter__(self) -> Self:
        await self.begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            await self.close()
        else:
            await self.abort()

    @property
    def closed(self) -> bool:
        """Whether nothing more is accepted."""
        return self._closed

    # ---------------------------------------------------------------------------------------------- records

    def put(
        self,
        value: Any,
        *,
        key: Any = None,
        headers: Headers | None = None,
        tag: str | None = None,
        partition: int | None = None,
        timestamp_us: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> PendingReceipt:
        """Accept one record without waiting, or refuse it, and return its receipt.

        Call it in the thread of the event loop. Records are sent when the caller yields to the event loop, and whenever
        a batch is full. `flush` raises a failure whose receipt is not awaited and that has no `on_delivery`.

        Args:
            value, key, headers, tag, partition, timestamp_us: as in `send`.
            on_delivery: called on the event loop with the record's `Receipt` and None, or with None and its error; a
                plain function, not a coroutine function. Many callbacks are called in slices, between which other tasks
                run; the buffer memory of a record is released after its callback.

        Raises:
            BufferFullError: the buffer is full and the record was not accepted; `await producer.ready()` waits.
            NotBegunError: the topic is not known yet; use `async with` or `await producer.begin()` first.
            UnknownPartitionError: the topic has fewer partitions in the cached metadata; `send` refreshes it.
            SerializationError, TypeError, ValueError: as in `send`.
            TidelogError: the producer is closed, or its topic was deleted.
        """
        plain = headers is None and tag is None and partition is None and timestamp_us is None
        if plain and type(value) is bytes and (on_delivery is None or callable(on_delivery)):
            batch = self._accumulator.directly_appendable
            if key is None:
                remaining_bytes = batch.remaining_bytes - len(value) - RECORD_OVERHEAD_BYTES
                if remaining_bytes >= 0:
                    batch.remaining_bytes = remaining_bytes
                    values = batch.values
                    index = len(values)
                    values.append(value)
                    if on_delivery is not None:
                        callbacks = batch.callbacks
                        if len(callbacks) != index:
                            callbacks += [None] * (index - len(callbacks))
                        callbacks.append(on_delivery)
                    receipt = _new(PendingReceipt)
                    receipt.batch = batch
                    receipt.index = index
                    return receipt
            elif type(key) is bytes:
                remaining_bytes = batch.remaining_bytes - len(value) - len(key) - RECORD_OVERHEAD_BYTES
                if remaining_bytes >= 0:
                    batch.remaining_bytes = remaining_bytes
                    values, keys = batch.values, batch.keys
                    index = len(values)
                    values.append(value)
                    if len(keys) != index:
                        keys += [None] * (index - len(keys))
                    keys.append(key)
                    if on_delivery is not None:
                        callbacks = batch.callbacks
                        if len(callbacks) != index:
                            callbacks += [None] * (index - len(callbacks))
                        callbacks.append(on_delivery)
                    receipt = _new(PendingReceipt)
                    receipt.batch = batch
                    receipt.index = index
                    return receipt
        if not self._binding.topic_id:
            self._known_route(None)
            raise not_begun(self.topic)
        record = self._preparation.prepare(value, key, headers, tag, partition, timestamp_us)
        return self._put(record, on_delivery)

    async def send(
        self,
        value: Any,
        *,
        key: Any = None,
        headers: Headers | None = None,
        tag: str | None = None,
        partition: int | None = None,
        timestamp_us: int | None = None,
    ) -> Receipt:
        """Publish one record and wait until it is acknowledged. A `value` of None is a tombstone.

        Args:
            value: the message: bytes, or an argument of the producer's `value_serializer`. In a typed topic a row: a
                dict, a dataclass, a pydantic model, or bytes, which are a JSON object. Key, tag and time are fields of
                the row then, if the schema has fields for them.
            key: bytes, or an argument of the producer's `key_serializer`; it determines the partition.
            headers: (name, value) pairs.
            tag: a short label to filter by.
            partition: the partition, instead of the one of the key.
            timestamp_us: µs since 1970; default: the time of sending.

        Raises:
            TidelogError: the record was not acknowledged; if `definite`, it is certainly not stored.
            SerializationError: key or value cannot be serialized; nothing was accepted.
            TypeError, ValueError: an argument has the wrong type or is out of range.
        """
        return await (
            await self.enqueue(value, key=key, headers=headers, tag=tag, partition=partition, timestamp_us=timestamp_us)
        )

    async def enqueue(
        self,
        value: Any,
        *,
        key: Any = None,
        headers: Headers | None = None,
        tag: str | None = None,
        partition: int | None = None,
        timestamp_us: int | None = None,
    ) -> PendingReceipt:
        """Accept one record, waiting while the buffer is full, and return its receipt.

        Arguments and errors are those of `send`. `flush` raises a failure whose receipt is not awaited.
        """
        if type(value) is bytes and headers is None and tag is None and partition is None and timestamp_us is None:
            batch = self._accumulator.directly_appendable
            if key is None:
                remaining_bytes = batch.remaining_bytes - len(value) - RECORD_OVERHEAD_BYTES
                if remaining_bytes >= 0:
                    batch.remaining_bytes = remaining_bytes
                    values = batch.values
                    index = len(values)
                    values.append(value)
                    receipt = _new(PendingReceipt)
                    receipt.batch = batch
                    receipt.index = index
                    return receipt
            elif type(key) is bytes:
                remaining_bytes = batch.remaining_bytes - len(value) - len(key) - RECORD_OVERHEAD_BYTES
                if remaining_bytes >= 0:
                    batch.remaining_bytes = remaining_bytes
                    values, keys = batch.values, batch.keys
                    index = len(values)
                    values.append(value)
                    if len(keys) != index:
                        keys += [None] * (index - len(keys))
                    keys.append(key)
                    receipt = _new(PendingReceipt)
                    receipt.batch = batch
                    receipt.index = index
                    return receipt
        preparation = self._preparation
        if not self._binding.topic_id or preparation.rows is not None:
            if type(value) is bytes and preparation.plain:
                preparation.prepare(value, key, headers, tag, partition, timestamp_us)  # refused before a look-up
            return await self._enqueue_row(
                lambda: preparation.prepare(value, key, headers, tag, partition, timestamp_us), partition
            )
        record = preparation.prepare(value, key, headers, tag, partition, timestamp_us)
        accepted, pause = self._accept_now(record, partition)
        if accepted is not None:
            return accepted
        return await self._enqueue_in_turn(lambda: record, partition, pause=pause)

    async def _enqueue_row(self, prepare: Callable[[], PreparedRecord], partition: int | None) -> PendingReceipt:
        """Accept a record of a typed topic, or of one that is not known yet."""
        if not self._binding.topic_id:
            return await self._enqueue_in_turn(prepare, partition)
        record = await self._prepared(prepare)
        accepted, pause = self._accept_now(record, partition)
        if accepted is not None:
            return accepted
        return await self._enqueue_in_turn(lambda: record, partition, pause=pause)

    def _accept_now(self, record: PreparedRecord, partition: int | None) -> tuple[PendingReceipt | None, bool]:
        """Accept a record without waiting, if possible; return also whether the caller has to yield first."""
        route = self._known_route(partition)
        # Yield once for each full batch, so that batches are sent while a loop of calls still accepts records.
        pause = self._accumulator.batch is not None and self._accumulator.drain_if_full(record)
        if route is None or pause:
            return None, pause
        if self._preparation.has_partitioner:
            record = self._preparation.with_partition(record, route.partition_count)
        accepted = self._accumulator.accept(record, route.partition_count)
        return (None if accepted is None else PendingReceipt(*accepted)), False

    async def _enqueue_in_turn(
        self, prepare: Callable[[], PreparedRecord], partition: int | None, *, pause: bool = False
    ) -> PendingReceipt:
        """Accept a record after all calls that already wait; it is prepared when the topic is known."""
        self._known_route(partition)
        self._accumulator.close_to_direct()
        await self._memory.acquire_turn()
        try:
            if pause:
                await asyncio.sleep(0)
            route = await self._route(partition)
            record = await self._prepared(prepare)
            record = self._preparation.with_partition(record, route.partition_count)
            await self._memory.reserve(record.size_bytes)
            accepted = self._accumulator.accept(record, route.partition_count, memory_reserved=True)
            assert accepted is not None
            return PendingReceipt(*accepted)
        finally:
            self._memory.release_turn()

    async def delete(self, **fields: Any) -> Receipt:
        """Publish the tombstone of a key of a typed topic, and wait until it is acknowledged.

        Args:
            fields: the key field, and optionally the time field (default: now) and the tag field.

        Raises:
            InvalidRequestError: the topic is not typed.
            SerializationError: the schema has no key field, or a value does not fit its field.
            TidelogError: the tombstone was not acknowledged; if `definite`, it is certainly not stored.
        """
        await self.begin()
        now_us = time.time_ns() // 1000
        return await (await self._enqueue_row(lambda: self._preparation.tombstone(fields, now_us), None))

    async def _prepared(self, prepare: Callable[[], T]) -> T:
        """Return prepared records; if they do not fit the schema, look once for a newer one."""
        try:
            return prepare()
        except RowError:
            if not await self._found_newer_schema():
                raise
            return prepare()

    async def _found_newer_schema(self) -> bool:
        rows = self._preparation.rows
        newest = await self._router.schemas.refresh(self._binding.topic_id)
        if rows is None or newest.number <= rows.schema.number:
            return False
        self._preparation.use_schema(newest)
        return True

    def _put(self, record: PreparedRecord, on_delivery: OnDelivery | None) -> PendingReceipt:
        """Accept or refuse a record that `put` cannot append to the open batch directly."""
        check_callback("on_delivery", on_delivery)
        route = self._known_route(None)
        if route is None:
            raise not_begun(self.topic)
        if record.partition is not None and record.partition not in route.partitions:
            raise unknown_partition(self.topic, route, record.partition)
        record = self._preparation.with_partition(record, route.partition_count)
        accepted = self._accumulator.accept(record, route.partition_count, claiming=True)
        if accepted is None:
            self._refused_bytes = record.size_bytes
            raise buffer_full(self.topic)
        batch, index = accepted
        batch.set_callback(index, on_delivery)
        return PendingReceipt(batch, index)

    async def send_many(
        self,
        values: Sequence[Any],
        *,
        keys: Sequence[Any] | None = None,
        partition: int | None = None,
    ) -> Receipts:
        """Publish many records and wait until all are acknowledged. The fast path for lists of bytes.

        Args:
            values: the messages, as in `send`; None is a tombstone.
            keys: a key for each record, or None for records without a key.
            partition: the partition of all records, instead of the ones of the keys.

        Raises:
            TidelogError: some records were not acknowledged; a note of the error has the number of acknowledged ones.
            SerializationError: a key or value cannot be serialized; nothing was accepted.
            TypeError, ValueError: values or keys are not bytes, or differ in length.
        """
        return await (await self.enqueue_many(values, keys=keys, partition=partition))

    async def enqueue_many(
        self,
        values: Sequence[Any],
        *,
        keys: Sequence[Any] | None = None,
        partition: int | None = None,
    ) -> PendingReceipts:
        """Accept many records like `send_many`, and return their pending receipts as soon as all are accepted."""
        values = values if isinstance(values, str) else list(values)
        keys = keys if keys is None or isinstance(keys, str) else list(keys)
        return await self._enqueue_columns(lambda: self._preparation.columns(values, keys), partition)

    async def send_arrow(self, data: pa.RecordBatch | pa.Table, *, partition: int | None = None) -> Receipts:
        """Publish Arrow columns and wait until all records are acknowledged.

        Large columns are not copied, so their memory must not change before the records are acknowledged.

        Args:
            data: a column `value`, and any of `key`, `headers`, `tag`, `timestamp`, of types that cast to the
                canonical ones. In a typed topic the fields of the schema, of types whose values stay exact, and
                optionally `_headers`, and `_deleted`, which marks tombstones.
            partition: the partition of all rows, instead of the ones of a key column.

        Raises:
            TidelogError: some records were not acknowledged; a note of the error has the number of acknowledged ones.
            TypeError, ValueError: the columns are not those of records.
        """
        return await (await self.enqueue_arrow(data, partition=partition))

    async def enqueue_arrow(self, data: pa.RecordBatch | pa.Table, *, partition: int | None = None) -> PendingReceipts:
        """Accept columns like `send_arrow`, and return their pending receipts as soon as all are accepted."""
        batches = data.to_batches() if isinstance(data, pa.Table) else [data]
        return await self._enqueue_columns(lambda: self._preparation.arrow_columns(batches), partition)

    # -------------------------------------------------------------------------------------------- lifecycle

    @internal
    def recheck(self) -> None:
        """Let the next record check whether the client and the producer accept records."""
        self._usable_in = None

    async def begin(self) -> None:
        """Look up the topic, so that `put` may be called. `async with` calls this method; a second call has no effect.

        A named producer fences its older instances here: after that they store nothing more.

        Raises:
            UnknownTopicError: the topic does not exist.
            ProducerFencedError: other producers with the name kept beginning, or a later piece of `Work` has begun.
            TidelogError: no node answered in time.
        """
        if self._known_route(None) is not None:
            return
        await self._memory.acquire_turn()
        try:
            await self._route(None)
        finally:
            self._memory.release_turn()

    async def ready(self) -> None:
        """Wait for buffer memory for the record that `put` refused last, after all calls that already wait.

        The memory is kept for the next `put` for a short time only: call `put` without awaiting anything in between.

        Raises:
            TidelogError: the producer is closed, or its topic was deleted.
        """
        await self._ready(self._refused_bytes, claim=True)

    async def flush(self) -> None:
        """Wait until all accepted records are settled and their callbacks were called.

        Raises:
            TidelogError: the first failure of a record whose receipt was not awaited.
        """
        self._check_usable()
        self._accumulator.drain()
        for chunk in self._queues.unsettled():
            await chunk.settled()
        if self._callbacks is not None:
            await self._callbacks.all_called()
        self._failures.raise_first()

    async def close(self) -> None:
        """Flush and stop. A second call has no effect.

        Raises:
            TidelogError: as in `flush`; the producer is closed nevertheless.
        """
        if self._closed:
            return
        self._closed = True
        self.recheck()
        try:
            await self.flush()
        finally:
            await self.abort()

    async def abort(self) -> None:
        """Stop without waiting; records without acknowledgement fail with ClosedError."""
        self._closed = True
        self.recheck()
        error = ClosedError("the producer was closed before this record was acknowledged")
        self._memory.close(error)
        if self._sender is not None:
            await self._sender.close()
        self._accumulator.fail(error)
        self._queues.fail_all(error)
        if self._callbacks is not None:
            await self._callbacks.all_called()  # The event loop may end after this call.

    # --------------------------------------------------------------------------------------------- internals

    async def _ready(self, size_bytes: int, *, claim: bool = False) -> None:
        self._known_route(None)
        self._accumulator.close_to_direct()
        await self._memory.wait_ready(size_bytes, claim=claim)

    def _route_of_threads(self) -> TopicRoute:
        """Return the topic's cached route; thread-safe.

        Raises:
            TidelogError: the producer is closed or has not begun, or its topic was deleted.
        """
        if self._closed:
            raise ClosedError(f"the producer of topic {self.topic!r} is closed; create a new one")
        route = self._binding.known()
        if route is None:
            raise not_begun(self.topic)
        return route

    def _known_route(self, partition: int | None) -> TopicRoute | None:
        """Return the topic's route if it, and `partition`, are cached; None if `_route` has to request it.

        Raises:
            TidelogError: the producer is closed, or its topic was deleted.
        """
        revision = self._router.metadata.revision
        if revision == self._revision and self._usable_in is not None and self._usable_in is _running_loop():
            route = self._route_now
            if partition is None or partition in route.partitions:
                return route
        self._check_usable()
        if self._closed:
            raise ClosedError(f"the producer of topic {self.topic!r} is closed; create a new one")
        loop = asyncio.get_running_loop()
        if self._sender is None:
            self._sender = Sender(
                self._router,
                self.topic,
                acks=ACKS[self._options.acks],
                loop=loop,
                request_timeout_s=self._options.request_timeout_s,
                source=self._accumulator,
                instance=self._instance,
                meter=self._meter,
                use_schema=self._preparation.use_schema,
            )
            self._callbacks = DeliveryCallbacks(loop, self._called_back)
            self._accumulator.bind(self._sender, loop)
        known = self._binding.known(partition)
        if known is not None:
            self._route_now, self._revision, self._usable_in = known, revision, loop
        return known

    async def _route(self, partition: int | None) -> TopicRoute:
        route = await self._binding.find(partition)
        if self._closed:
            raise ClosedError(f"the producer of topic {self.topic!r} is closed; create a new one")
        assert self._sender is not None
        self._sender.topic_id = route.topic_id
        return route

    async def _enqueue_columns(self, prepare: Callable[[], Columns], partition: int | None) -> PendingReceipts:
        partition = partition if partition is None or type(partition) is int else checked_int("partition", partition)
        memory, has_turn, parts = self._memory, False, list[tuple[Delivery, int]]()
        orders: list[pa.Array[Any]] = []
        prepared = await self._prepared(prepare) if self._binding.topic_id else None
        try:
            route = self._known_route(partition)
            if route is None or memory.waiting_calls:
                self._accumulator.close_to_direct()
                await memory.acquire_turn()
                has_turn = True
                route = await self._route(partition)
            # Earlier single records are stored first, and release the memory that their batch does not need.
            if self._accumulator.batch is not None:
                self._accumulator.drain()
            batches, keys, layout = await self._prepared(prepare) if prepared is None else prepared
            slices = self._whole(batches, partition) or self._slicer.split(route, batches, partition, orders, keys)
            for number, columns, size_bytes in slices:
                if not memory.try_reserve(size_bytes, has_turn=has_turn):
                    if not has_turn:
                        await memory.acquire_turn()
                        has_turn = True
                    await memory.reserve(size_bytes)
                parts.append(self._add_columns(route, number, columns, size_bytes, layout))
                self._unturned_bytes += size_bytes
        finally:
            if has_turn:
                memory.release_turn()
        if self._unturned_bytes >= self._options.batch_bytes:
            # As in `enqueue`: batches are sent before a loop of calls has filled the buffer.
            self._unturned_bytes = 0
            await asyncio.sleep(0)
        return PendingReceipts(parts, orders or None)

    def _whole(
        self, batches: Sequence[pa.RecordBatch], partition: int | None
    ) -> Iterable[tuple[int | None, pa.RecordBatch, int]]:
        """Return columns for one partition that fit a batch, and their size; nothing if they are empty or too large."""
        options, columns = self._queue_options, batches[0] if len(batches) == 1 else None
        if columns is None or not 0 < columns.num_rows <= options.batch_records:
            return ()
        if partition is None and (columns.num_columns > 1 or self._preparation.has_partitioner):
            return ()
        size_bytes = columns.nbytes
        return ((partition, columns, size_bytes),) if size_bytes <= options.batch_bytes else ()

    def _add_columns(
        self,
        route: TopicRoute,
        partition: int | None,
        columns: pa.RecordBatch,
        size_bytes: int,
        layout: RowLayout | None = None,
    ) -> tuple[Delivery, int]:
        if partition is None:
            queue = self._queues.least_loaded(route.partition_count, size_bytes)
        elif partition in route.partitions:
            queue = self._queues.by_partition.get(partition) or self._queues.queue(partition)
        else:
            self._memory.release(size_bytes)
            raise UnknownPartitionError(
                f"topic {self.topic!r} has partitions 0 to {route.partition_count - 1}, not {partition}"
            )
        deadline = asyncio.get_running_loop().time() + self._options.delivery_timeout_s
        chunk = ColumnChunk(columns, partition=queue.partition, deadline=deadline, size_bytes=size_bytes, layout=layout)
        queue.add(chunk)
        assert self._sender is not None
        self._sender.wake(queue)
        return chunk, chunk.count

    def _settled(self, chunk: Chunk) -> None:
        if chunk.callbacks:
            assert self._callbacks is not None
            chunk.watched |= None not in chunk.callbacks  # A failure is reported to the callback of each record.
            self._callbacks.add(chunk)
        else:
            self._memory.release(chunk.size_bytes)
        if chunk.error is not None and not chunk.watched:
            self._failures.add(chunk)
            self._router.unreported.add(self)

    def _called_back(self, chunk: Chunk) -> None:
        self._memory.release(chunk.size_bytes)
        if self._meter is not None:
            self._meter.report_buffered()

    def _buffered_bytes(self) -> int:
        """Return the bytes that are accepted and not delivered, without memory reserved for later records."""
        return self._memory.used_bytes - self._memory.reservation_bytes - self._accumulator.unused_bytes


refuse_to_pickle(Producer)
