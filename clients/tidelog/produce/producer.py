"""The producer: accepts records in every form that users have them, and gives receipts.

Records that come one by one gather (`accumulator.py`); `put` and `enqueue` have the way of a plain record into the open
gathering written out, since a call more is a fifth of what they cost. Columns are split by partition at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final, Self

import pyarrow as pa

from tidelog.base.metric_calls import Teller
from tidelog.base.plain_callbacks import check_callback
from tidelog.cluster.metadata import deleted_topic_error
from tidelog.cluster.routing import Router
from tidelog.errors import ClosedError, NotBegunError, UnknownPartitionError
from tidelog.model import Receipt, TopicRoute
from tidelog.produce.accumulator import Gatherer
from tidelog.produce.batches import RECORD_OVERHEAD_BYTES, ColumnsLoad, Delivery, Load
from tidelog.produce.buffer_memory import Room
from tidelog.produce.bulk_append import RowIntake
from tidelog.produce.column_pieces import ColumnPieces
from tidelog.produce.delivery_callbacks import DeliveryCallbacks
from tidelog.produce.earlier_attempts import EarlierTries
from tidelog.produce.expiry import again
from tidelog.produce.open_batch import OnDelivery
from tidelog.produce.partition_queue import LaneOptions
from tidelog.produce.partition_queues import Lanes
from tidelog.produce.producer_id import make_producer_id
from tidelog.produce.producer_instances import Instance
from tidelog.produce.producer_meter import ProducerMeter
from tidelog.produce.producer_options import ACKS, CODECS, ProducerOptions
from tidelog.produce.receipts import PendingReceipt, PendingReceipts, Receipts
from tidelog.produce.record_preparation import Preparation, Taken, whole
from tidelog.produce.sender import Sender
from tidelog.produce.thread_handoff import Inside, buffer_full, unknown_partition
from tidelog_proto.batch.columns import Headers, canonical, columns_of

FAILED_MAX: Final = 1024
"""So many failures are kept until somebody asks for them or `flush` raises the first."""

_new: Final = object.__new__
"""Makes a receipt without calling its class, which would run `__init__` in a frame of its own: a tenth of a `put`."""


class Producer:
    """Publishes to one topic. Made by `Client.producer`; use it as an async context manager, or `close` it.

    Records of one partition are stored in the order in which they were given, also by calls that wait for each other;
    an accepted record is never stored twice, however often it has to be sent. It writes to the topic that has the name
    when the first record is given: when that one is deleted, nothing more is accepted, whatever is made under its name.
    """

    def __init__(
        self,
        router: Router,
        topic: str,
        options: ProducerOptions,
        check: Callable[[], None],
        *,
        teller: Teller | None = None,
    ) -> None:
        self.topic = topic
        self._router = router
        self._options = options
        self._check_usable = check
        self._instance = Instance(router, topic, options.name) if options.name is not None else None
        self.earlier = None if self._instance is None else EarlierTries(router, topic, self._instance)
        """What earlier instances have stored of the same piece of `Work`; of a named producer that has begun."""
        self._lane_options = LaneOptions(
            producer_id=make_producer_id() if self._instance is None else self._instance.producer_id,
            codec=CODECS[options.compression],
            batch_bytes=options.batch_bytes,
            is_named=self._instance is not None,
        )
        self._preparation = Preparation(options)
        self._room = Room(options.buffer_bytes)
        self._meter: ProducerMeter | None = None
        if teller is not None:
            self._meter = ProducerMeter(teller, topic, self._buffered_bytes, options.delivery_timeout_s)
        self._lanes = Lanes(self._lane_options, self._settled, self._meter)
        self._gatherer = Gatherer(
            self._room,
            self._lanes,
            self._lane_options,
            delivery_timeout_s=options.delivery_timeout_s,
            shared=self._preparation.plain,
            settled=self._settled,
            meter=self._meter,
        )
        self._pieces = ColumnPieces(self._lane_options, self._preparation, self._lanes)
        self._sender: Sender | None = None
        self._callbacks: DeliveryCallbacks | None = None
        self._topic_id = b""
        self.inside = Inside(topic, self._preparation, self._gatherer, self._room, self._route_of_threads, self._ready)
        """For `tidelog.sync`, not for users."""
        self.rows = RowIntake(self._preparation, self._gatherer, self._known_route)
        """For the gateway, not for users."""
        self._refused_bytes = 0
        """Size of the record for which the last `put` had no room."""
        self._unturned_bytes = 0
        """Bytes accepted as columns since the producer last yielded to the event loop."""
        self._failed: list[Delivery] = []
        """Failed deliveries that no caller has awaited yet."""
        self._closed = False

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
        """Accept one record at once, or refuse it, and return its receipt: the call for plain loops.

        It is for the event loop's own thread. Records leave while that is let run, and whenever a batch is full.
        A failure that no receipt is awaited for, and that no `on_delivery` was told of, is raised by `flush`.

        Args:
            value: as of `send`, and so are those up to `timestamp_us`.
            key: see there.
            headers: see there.
            tag: see there.
            partition: see there.
            timestamp_us: see there.
            on_delivery: is called on the event loop with the record's `Receipt` and None, or with None and its error; a
                plain function, no coroutine function.
                While many are called others of the loop have their turn, and the room of the records is not free yet.

        Raises:
            BufferFullError: there is no room just now; it was not accepted. `await producer.ready()` waits for room.
            NotBegunError: the topic is not known yet: `async with` the producer, or `await producer.begin()`.
            UnknownPartitionError: as far as is known now the topic has fewer partitions; `send` asks the cluster.
            SerializationError, TypeError, ValueError: as `send`.
        """
        plain = headers is None and tag is None and partition is None and timestamp_us is None
        if plain and type(value) is bytes and (on_delivery is None or callable(on_delivery)):
            gathering = self._gatherer.open
            if key is None:
                left_bytes = gathering.left_bytes - len(value) - RECORD_OVERHEAD_BYTES
                if left_bytes >= 0:
                    gathering.left_bytes = left_bytes
                    values = gathering.values
                    index = len(values)
                    values.append(value)
                    if on_delivery is not None:
                        callbacks = gathering.callbacks
                        if len(callbacks) != index:
                            callbacks += [None] * (index - len(callbacks))
                        callbacks.append(on_delivery)
                    receipt = _new(PendingReceipt)
                    receipt.gathering = gathering
                    receipt.index = index
                    return receipt
            elif type(key) is bytes:
                left_bytes = gathering.left_bytes - len(value) - len(key) - RECORD_OVERHEAD_BYTES
                if left_bytes >= 0:
                    gathering.left_bytes = left_bytes
                    values, keys = gathering.values, gathering.keys
                    index = len(values)
                    values.append(value)
                    if len(keys) != index:
                        keys += [None] * (index - len(keys))
                    keys.append(key)
                    if on_delivery is not None:
                        callbacks = gathering.callbacks
                        if len(callbacks) != index:
                            callbacks += [None] * (index - len(callbacks))
                        callbacks.append(on_delivery)
                    receipt = _new(PendingReceipt)
                    receipt.gathering = gathering
                    receipt.index = index
                    return receipt
        record = self._preparation.take(value, key, headers, tag, partition, timestamp_us)
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
            value: the message: bytes, or what the producer's `value_serializer` takes.
            key: decides the partition unless `partition` does: bytes, or what the producer's `key_serializer` takes.
            headers: (name, value) pairs.
            tag: a short label to filter by.
            partition: where to put it; it wins over the key.
            timestamp_us: µs since 1970; without one the time of sending counts.

        Raises:
            TidelogError: it was not acknowledged; `definite` says whether it is certain that it is not stored.
            SerializationError: key or value does not serialise; nothing was accepted.
            TypeError, ValueError: an argument is of another type, or out of range.
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
        """Accept one record (waiting while the buffer is full) and return its receipt to be awaited.

        Arguments and errors are those of `send`. A failure that no receipt is awaited for is raised by `flush`.
        """
        if type(value) is bytes and headers is None and tag is None and partition is None and timestamp_us is None:
            gathering = self._gatherer.open
            if key is None:
                left_bytes = gathering.left_bytes - len(value) - RECORD_OVERHEAD_BYTES
                if left_bytes >= 0:
                    gathering.left_bytes = left_bytes
                    values = gathering.values
                    index = len(values)
                    values.append(value)
                    receipt = _new(PendingReceipt)
                    receipt.gathering = gathering
                    receipt.index = index
                    return receipt
            elif type(key) is bytes:
                left_bytes = gathering.left_bytes - len(value) - len(key) - RECORD_OVERHEAD_BYTES
                if left_bytes >= 0:
                    gathering.left_bytes = left_bytes
                    values, keys = gathering.values, gathering.keys
                    index = len(values)
                    values.append(value)
                    if len(keys) != index:
                        keys += [None] * (index - len(keys))
                    keys.append(key)
                    receipt = _new(PendingReceipt)
                    receipt.gathering = gathering
                    receipt.index = index
                    return receipt
        record = self._preparation.take(value, key, headers, tag, partition, timestamp_us)
        route = self._known_route(partition)
        # Once a batch others have their turn, or what this one fills would not begin to leave before all is accepted.
        pause = self._gatherer.make_way(record)
        if route is not None and not pause:
            if self._preparation.chooses:
                record = self._preparation.chosen(record, route.partition_count)
            accepted = self._gatherer.accept(record, route.partition_count)
            if accepted is not None:
                return PendingReceipt(*accepted)
        self._gatherer.freeze()
        await self._room.enter()
        try:
            if pause:
                await asyncio.sleep(0)
            route = await self._route(partition)
            record = self._preparation.chosen(record, route.partition_count)
            await self._room.wait(record.size_bytes)
            accepted = self._gatherer.accept(record, route.partition_count, room_taken=True)
            assert accepted is not None
            return PendingReceipt(*accepted)
        finally:
            self._room.leave()

    def _put(self, record: Taken, on_delivery: OnDelivery | None) -> PendingReceipt:
        """Accept a record that cannot join the open gathering without a look."""
        check_callback("on_delivery", on_delivery)
        route = self._known_route(None)
        if route is None:
            raise self._not_begun()
        if record.partition is not None and record.partition not in route.partitions:
            raise unknown_partition(self.topic, route, record.partition)
        record = self._preparation.chosen(record, route.partition_count)
        accepted = self._gatherer.accept(record, route.partition_count, claiming=True)
        if accepted is None:
            self._refused_bytes = record.size_bytes
            raise buffer_full(self.topic)
        gathering, index = accepted
        gathering.call_back(index, on_delivery)
        return PendingReceipt(gathering, index)

    async def send_many(
        self,
        values: Sequence[Any],
        *,
        keys: Sequence[Any] | None = None,
        partition: int | None = None,
    ) -> Receipts:
        """Publish many records and wait until all are acknowledged. The fast path for lists of bytes.

        Args:
            values: the messages; None is a tombstone. As of `send`, they may be what a serializer takes.
            keys: one a record, None for no key.
            partition: where to put all of them; it wins over keys.

        Raises:
            TidelogError: some were not acknowledged; a note on it says how many were.
            SerializationError: a key or value does not serialise; nothing was accepted.
            TypeError, ValueError: not bytes (text is known by the first that is not None), or keys and values differ in
                length.
        """
        return await (await self.enqueue_many(values, keys=keys, partition=partition))

    async def enqueue_many(
        self,
        values: Sequence[Any],
        *,
        keys: Sequence[Any] | None = None,
        partition: int | None = None,
    ) -> PendingReceipts:
        """As `send_many`, returning as soon as all records are accepted."""
        values, keys = self._preparation.values(values), self._preparation.keys(keys)
        return await self._enqueue_columns([columns_of(values, keys=keys)], partition, keys)

    async def send_arrow(self, data: pa.RecordBatch | pa.Table, *, partition: int | None = None) -> Receipts:
        """Publish Arrow columns as they are and wait until all are acknowledged.

        Large columns are not copied: memory that was lent to Arrow must not change before that.

        Args:
            data: a column `value`, and any of `key`, `headers`, `tag`, `timestamp`, of types that cast to the
                canonical ones.
            partition: where to put all rows; it wins over a key column.

        Raises:
            TidelogError: some were not acknowledged; a note on it says how many were.
            TypeError, ValueError: the columns are not those of records.
        """
        return await (await self.enqueue_arrow(data, partition=partition))

    async def enqueue_arrow(self, data: pa.RecordBatch | pa.Table, *, partition: int | None = None) -> PendingReceipts:
        """As `send_arrow`, returning as soon as all records are accepted."""
        batches = data.to_batches() if isinstance(data, pa.Table) else [data]
        return await self._enqueue_columns([canonical(batch) for batch in batches], partition)

    # -------------------------------------------------------------------------------------------- lifecycle

    async def begin(self) -> None:
        """Find the topic, so that `put` may be called. `async with` does it; doing it twice does nothing.

        A named producer fences its older instances here: when this returns, they store nothing more.

        Raises:
            UnknownTopicError: there is no such topic.
            ProducerFencedError: others with the name begin again and again.
            TidelogError: no node could tell in time.
        """
        if self._known_route(None) is not None:
            return
        await self._room.enter()
        try:
            await self._route(None)
        finally:
            self._room.leave()

    async def ready(self) -> None:
        """Wait until there is room for what `put` refused last, behind all others who wait for room.

        The next `put` has that room, whoever waits by then, if it comes at once: keep nothing else between the two.

        Raises:
            TidelogError: nothing is accepted any more.
        """
        await self._ready(self._refused_bytes, claim=True)

    async def flush(self) -> None:
        """Wait for every record accepted so far, and until callbacks that were due meanwhile have been called.

        Raises:
            TidelogError: the first failure of a record whose receipt nobody awaited.
        """
        self._check_usable()
        self._gatherer.hand_over()
        for load in self._lanes.unsettled():
            await load.delivery.settled()
        if self._callbacks is not None:
            await self._callbacks.all_called()
        failed, self._failed = self._failed, []
        for delivery in failed:
            if delivery.error is not None and not delivery.watched:
                raise again(delivery.error)

    async def close(self) -> None:
        """Flush and stop. Doing it twice does nothing.

        Raises:
            TidelogError: as `flush`; the producer is closed nevertheless.
        """
        if self._closed:
            return
        self._closed = True
        try:
            await self.flush()
        finally:
            await self.abort()

    async def abort(self) -> None:
        """Stop now; what is not acknowledged fails with ClosedError."""
        self._closed = True
        error = ClosedError("the producer was closed before this record was acknowledged")
        self._room.close(error)
        if self._sender is not None:
            await self._sender.close()
        self._gatherer.fail(error)
        self._lanes.fail_all(error)
        if self._callbacks is not None:
            await self._callbacks.all_called()  # the loop may end with this

    # --------------------------------------------------------------------------------------------- internals

    async def _ready(self, size_bytes: int, *, claim: bool = False) -> None:
        self._known_route(None)
        self._gatherer.freeze()
        await self._room.ready(size_bytes, claim=claim)

    def _not_begun(self) -> NotBegunError:
        return NotBegunError(
            f"it is not known yet where records of {self.topic!r} go: use the producer in a `with` block, or call its "
            "`begin()` first"
        )

    def _route_of_threads(self) -> TopicRoute:
        """Return the topic's route where a record may be put; for any thread.

        Raises:
            TidelogError: nothing may be put.
        """
        if self._closed:
            raise ClosedError("the producer is closed")
        route = self._router.metadata.topic(self.topic)
        if route is None or not self._topic_id:
            raise self._not_begun()
        return self._bound(route)

    def _known_route(self, partition: int | None) -> TopicRoute | None:
        """Return the topic's route where that, and `partition`, is known already; None when `_route` has to ask.

        Raises:
            TidelogError: nothing is accepted here any more.
        """
        self._check_usable()
        if self._closed:
            raise ClosedError("the producer is closed")
        if self._sender is None:
            loop = asyncio.get_running_loop()
            self._sender = Sender(
                self._router,
                self.topic,
                acks=ACKS[self._options.acks],
                loop=loop,
                request_timeout_s=self._options.request_timeout_s,
                source=self._gatherer,
                instance=self._instance,
                meter=self._meter,
            )
            self._callbacks = DeliveryCallbacks(loop, self._called_back)
            self._gatherer.bind(self._sender, loop)
        route = self._router.metadata.topic(self.topic)
        if route is None or (partition is not None and partition not in route.partitions):
            return None
        if self._instance is not None and not self._instance.epoch:
            return None
        return self._bound(route)

    def _bound(self, route: TopicRoute) -> TopicRoute:
        """Return the route if it is of the topic that this producer writes to.

        Raises:
            UnknownTopicError: the name stands for another topic now.
        """
        if route.topic_id != self._topic_id:
            if self._topic_id or (self._instance is not None and route.topic_id != self._instance.topic_id):
                raise deleted_topic_error(self.topic)
            assert self._sender is not None
            self._topic_id = self._sender.topic_id = route.topic_id
        return route

    async def _route(self, partition: int | None) -> TopicRoute:
        wanted = () if partition is None else (partition,)

        async def ask() -> TopicRoute:
            return await self._router.topic_with(self.topic, wanted)

        if self._instance is not None and not self._instance.epoch:
            await self._instance.begin()
        route = await self._router.about_topic(self.topic, ask, repeatable=True)
        if self._closed:
            raise ClosedError("the producer is closed")
        return self._bound(route)

    async def _enqueue_columns(
        self, batches: Sequence[pa.RecordBatch], partition: int | None, keys: Sequence[bytes | None] | None = None
    ) -> PendingReceipts:
        partition = partition if partition is None or type(partition) is int else whole("partition", partition)
        room, in_turn, parts = self._room, False, list[tuple[Any, int]]()
        orders: list[pa.Array[Any]] = []
        try:
            route = self._known_route(partition)
            if route is None or room.is_awaited:
                self._gatherer.freeze()
                await room.enter()
                in_turn = True
                route = await self._route(partition)
            # What came one by one before is stored before, and does not keep room that it may never need.
            if self._gatherer.gathering is not None:
                self._gatherer.hand_over()
            for number, columns, size_bytes in self._pieces.of(route, batches, partition, orders, keys):
                if not room.take(size_bytes, in_turn=in_turn):
                    if not in_turn:
                        await room.enter()
                        in_turn = True
                    await room.wait(size_bytes)
                parts.append(self._add_columns(route, number, columns, size_bytes))
                self._unturned_bytes += size_bytes
        finally:
            if in_turn:
                room.leave()
        if self._unturned_bytes >= self._options.batch_bytes:
            # As in `enqueue`: what a loop of calls fills would not begin to leave before the buffer is full.
            self._unturned_bytes = 0
            await asyncio.sleep(0)
        return PendingReceipts(parts, orders or None)

    def _add_columns(
        self, route: TopicRoute, partition: int | None, columns: pa.RecordBatch, size_bytes: int
    ) -> tuple[Any, int]:
        if partition is None:
            lane = self._lanes.least_loaded(route.partition_count, size_bytes)
        elif partition in route.partitions:
            lane = self._lanes.by_partition.get(partition) or self._lanes.lane(partition)
        else:
            self._room.give_back(size_bytes)
            raise UnknownPartitionError(
                f"topic {self.topic!r} has partitions 0 to {route.partition_count - 1}, not {partition}"
            )
        deadline = asyncio.get_running_loop().time() + self._options.delivery_timeout_s
        load = ColumnsLoad(columns, partition=lane.partition, deadline=deadline, size_bytes=size_bytes)
        lane.add(load)
        assert self._sender is not None
        self._sender.wake(lane)
        return load.delivery, load.count

    def _settled(self, load: Load) -> None:
        delivery = load.delivery
        if delivery.callbacks:
            assert self._callbacks is not None
            delivery.watched |= None not in delivery.callbacks  # somebody is told of each record
            self._callbacks.add(load)
        else:
            self._free(load)
        if delivery.error is not None and not delivery.watched:
            self._failed.append(delivery)
            self._router.unreported.add(self)
            if len(self._failed) > FAILED_MAX:
                self._failed = [each for each in self._failed if not each.watched][:FAILED_MAX]

    def _called_back(self, load: Load) -> None:
        self._free(load)
        if self._meter is not None:
            self._meter.weigh()

    def _free(self, load: Load) -> None:
        self._room.give_back(load.size_bytes)

    def _buffered_bytes(self) -> int:
        """Return what is accepted and not delivered: what is only reserved for records to come is none of it."""
        return self._room.taken_bytes - self._room.kept_bytes - self._gatherer.reserved_bytes
