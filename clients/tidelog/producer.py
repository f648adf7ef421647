"""The producer: accepts records in every form that users have them, and gives receipts.

It decides the partition (given, by key, or the one with the fewest bytes under way, kept for a whole batch), bounds the
memory of what is not acknowledged, and leaves the rest to its lanes and the sender. There is no linger time to choose:
see `lane.py`.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

import pyarrow as pa

from tidelog.batches import ColumnsLoad, Delivery, Load, LooseLoad, loose_size_bytes
from tidelog.errors import ClosedError, InvalidRequestError, UnknownPartitionError
from tidelog.lane import BATCH_BYTES_TARGET, Lane, LaneOptions
from tidelog.metadata import gone_error
from tidelog.meters import ProducerMeter, Teller
from tidelog.model import Acks, Compression, Receipt, TopicRoute
from tidelog.receipts import PendingReceipt, PendingReceipts, Receipts
from tidelog.room import Room
from tidelog.routing import Router
from tidelog.sender import Sender
from tidelog.splitting import by_key, split_rows
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.columns import TIMESTAMP_US_MAX, Headers, canonical, columns_of
from tidelog_proto.header import Codec
from tidelog_proto.limits import TAG_BYTES_MAX
from tidelog_proto.partitioner import partition_for_key

BUFFER_BYTES_DEFAULT: Final = 64 * 1024 * 1024
DELIVERY_TIMEOUT_S_DEFAULT: Final = 120.0
KEYED_CHUNK_BYTES: Final = 32 * 1024 * 1024
"""Keyed inputs are sorted by partition in chunks of this size, so that the copy stays bounded."""
FAILED_MAX: Final = 1024
"""So many failures are kept until somebody asks for them or `flush` raises the first."""

_ACKS: Final[dict[str, pb.Acks]] = {"quorum": pb.QUORUM, "1": pb.ONE, "all": pb.ALL}
_CODECS: Final = {
    None: Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """What `Client.producer` was asked for. See there."""

    acks: Acks = "quorum"
    compression: Compression | None = None
    buffer_bytes: int = BUFFER_BYTES_DEFAULT
    batch_bytes: int = BATCH_BYTES_TARGET
    delivery_timeout_s: float = DELIVERY_TIMEOUT_S_DEFAULT

    def __post_init__(self) -> None:
        if self.acks not in _ACKS:
            raise InvalidRequestError(f"acks is one of {', '.join(map(repr, _ACKS))}, not {self.acks!r}")
        if self.compression not in _CODECS:
            raise InvalidRequestError(
                f"compression is one of {', '.join(map(repr, _CODECS))}, not {self.compression!r}"
            )
        if self.buffer_bytes <= 0 or self.batch_bytes <= 0 or self.delivery_timeout_s <= 0:
            raise InvalidRequestError("buffer_bytes, batch_bytes and delivery_timeout_s are above zero")


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
        self._lane_options = LaneOptions(
            producer_id=secrets.randbits(63) | 1,
            codec=_CODECS[options.compression],
            batch_bytes=options.batch_bytes,
        )
        self._sender: Sender | None = None
        self._lanes: dict[int, Lane] = {}
        self._sticky: Lane | None = None
        self._topic_id = b""
        self._room = Room(options.buffer_bytes)
        self._meter = None if teller is None else ProducerMeter(teller, topic, self._room, options.delivery_timeout_s)
        self._failed: list[Delivery] = []
        """What failed before anybody asked for it."""
        self._closed = False

    async def __aenter__(self) -> Self:
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

    async def send(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        tag: str | None = None,
        partition: int | None = None,
        timestamp_us: int | None = None,
    ) -> Receipt:
        """Publish one record and wait until it is acknowledged. A `value` of None is a tombstone.

        Args:
            value: the message.
            key: decides the partition unless `partition` does.
            headers: (name, value) pairs.
            tag: a short label to filter by.
            partition: where to put it; it wins over the key.
            timestamp_us: µs since 1970; without one the time of sending counts.

        Raises:
            TidelogError: it was not acknowledged; `definite` says whether it is certain that it is not stored.
            TypeError, ValueError: an argument is of another type, or out of range.
        """
        return await (
            await self.enqueue(value, key=key, headers=headers, tag=tag, partition=partition, timestamp_us=timestamp_us)
        )

    async def enqueue(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        tag: str | None = None,
        partition: int | None = None,
        timestamp_us: int | None = None,
    ) -> PendingReceipt:
        """Accept one record (waiting while the buffer is full) and return its receipt to be awaited.

        Arguments and errors are those of `send`. A failure that no receipt is awaited for is raised by `flush`.
        """
        _check_record(value, key, headers, tag, timestamp_us)
        size_bytes = loose_size_bytes(value, key, headers, tag)
        route = self._known_route(partition)
        if route is None or not self._room.take(size_bytes):
            await self._room.enter()
            try:
                route = await self._route(partition)
                await self._room.wait(size_bytes)
                return self._add_loose(route, value, key, headers, tag, partition, timestamp_us, size_bytes)
            finally:
                self._room.leave()
        return self._add_loose(route, value, key, headers, tag, partition, timestamp_us, size_bytes)

    def _add_loose(  # noqa: PLR0917 - a record, as it is given
        self,
        route: TopicRoute,
        value: bytes | None,
        key: bytes | None,
        headers: Headers | None,
        tag: str | None,
        partition: int | None,
        timestamp_us: int | None,
        size_bytes: int,
    ) -> PendingReceipt:
        lane = self._lane_for(route, key, partition, size_bytes)
        load = lane.open_loose(size_bytes, timestamped=timestamp_us is not None)
        if load is None:
            load = LooseLoad(partition=lane.partition, deadline=self._deadline(), timestamped=timestamp_us is not None)
            lane.add(load)
        index = load.add(value, key=key, headers=headers, tag=tag, timestamp_us=timestamp_us, size_bytes=size_bytes)
        lane.grew(size_bytes)
        assert self._sender is not None
        self._sender.wake(lane)
        return PendingReceipt(load.delivery, index)

    async def send_many(
        self,
        values: Sequence[bytes | None],
        *,
        keys: Sequence[bytes | None] | None = None,
        partition: int | None = None,
    ) -> Receipts:
        """Publish many records and wait until all are acknowledged. The fast path for lists of bytes.

        Args:
            values: the messages; None is a tombstone.
            keys: one a record, None for no key.
            partition: where to put all of them; it wins over keys.

        Raises:
            TidelogError: some were not acknowledged; a note on it says how many were.
            TypeError, ValueError: not bytes, or keys and values differ in length.
        """
        return await (await self.enqueue_many(values, keys=keys, partition=partition))

    async def enqueue_many(
        self,
        values: Sequence[bytes | None],
        *,
        keys: Sequence[bytes | None] | None = None,
        partition: int | None = None,
    ) -> PendingReceipts:
        """As `send_many`, returning as soon as all records are accepted."""
        return await self._enqueue_columns([columns_of(values, keys=keys)], partition)

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

    async def flush(self) -> None:
        """Wait for every record accepted so far.

        Raises:
            TidelogError: the first failure of a record whose receipt nobody awaited.
        """
        self._check_usable()
        for load in [load for lane in self._lanes.values() for load in lane.unsettled()]:
            await load.delivery.settled()
        failed, self._failed = self._failed, []
        for delivery in failed:
            if delivery.error is not None and not delivery.watched:
                raise delivery.error

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
        for lane in self._lanes.values():
            lane.fail_all(error)

    # --------------------------------------------------------------------------------------------- internals

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
            acks = _ACKS[self._options.acks]
            self._sender = Sender(self._router, self.topic, acks=acks, loop=loop, meter=self._meter)
        route = self._router.metadata.topic(self.topic)
        if route is None or (partition is not None and partition not in route.partitions):
            return None
        return self._bound(route)

    def _bound(self, route: TopicRoute) -> TopicRoute:
        """Return the route if it is of the topic that this producer writes to.

        Raises:
            UnknownTopicError: the name stands for another topic now.
        """
        if route.topic_id != self._topic_id:
            if self._topic_id:
                raise gone_error(self.topic)
            assert self._sender is not None
            self._topic_id = self._sender.topic_id = route.topic_id
        return route

    async def _route(self, partition: int | None) -> TopicRoute:
        wanted = () if partition is None else (partition,)

        async def ask() -> TopicRoute:
            return await self._router.topic_with(self.topic, wanted)

        route = await self._router.about_topic(self.topic, ask, repeatable=True)
        if self._closed:
            raise ClosedError("the producer is closed")
        return self._bound(route)

    async def _enqueue_columns(self, batches: Sequence[pa.RecordBatch], partition: int | None) -> PendingReceipts:
        room, in_turn = self._room, False
        parts: list[tuple[Any, int]] = []
        orders: list[pa.Array[Any]] = []
        try:
            route = self._known_route(partition)
            if route is None or room.is_awaited:
                await room.enter()
                in_turn = True
                route = await self._route(partition)
            for number, columns, size_bytes in self._pieces(route, batches, partition, orders):
                if not room.take(size_bytes, in_turn=in_turn):
                    if not in_turn:
                        await room.enter()
                        in_turn = True
                    await room.wait(size_bytes)
                parts.append(self._add_columns(route, number, columns, size_bytes))
        finally:
            if in_turn:
                room.leave()
        return PendingReceipts(parts, orders or None)

    def _pieces(
        self,
        route: TopicRoute,
        batches: Sequence[pa.RecordBatch],
        partition: int | None,
        orders: list[pa.Array[Any]],
    ) -> Iterator[tuple[int | None, pa.RecordBatch, int]]:
        """Yield the rows for one partition each (None: any) and their size in bytes; note how they were sorted."""
        for columns in batches:
            if partition is not None or "key" not in columns.schema.names:
                yield from self._split(partition, columns)
                continue
            for chunk in split_rows(columns, bytes_max=KEYED_CHUNK_BYTES, records_max=columns.num_rows):
                routed = by_key(chunk, route.partition_count, lambda: self._least_loaded(route, 0).partition)
                orders.append(routed.order)
                for piece in routed.pieces:
                    yield from self._split(piece.partition, piece.columns)

    def _split(
        self, partition: int | None, columns: pa.RecordBatch
    ) -> Iterator[tuple[int | None, pa.RecordBatch, int]]:
        options = self._lane_options
        size_bytes = columns.nbytes  # looked at as few times as may be: Arrow walks the columns for it
        if 0 < columns.num_rows <= options.batch_records and size_bytes <= options.batch_bytes:
            yield partition, columns, size_bytes
            return
        for rows in split_rows(columns, bytes_max=options.batch_bytes, records_max=options.batch_records):
            yield partition, rows, rows.nbytes  # exact for slices

    def _add_columns(
        self, route: TopicRoute, partition: int | None, columns: pa.RecordBatch, size_bytes: int
    ) -> tuple[Any, int]:
        lane = self._lane_for(route, None, partition, size_bytes)
        load = ColumnsLoad(columns, partition=lane.partition, deadline=self._deadline(), size_bytes=size_bytes)
        lane.add(load)
        assert self._sender is not None
        self._sender.wake(lane)
        return load.delivery, load.count

    def _lane_for(self, route: TopicRoute, key: bytes | None, partition: int | None, size_bytes: int) -> Lane:
        """Return the lane of a record or piece; without a lane the `size_bytes` reserved for it are given back."""
        if partition is None and key is None:
            return self._least_loaded(route, size_bytes)
        number = partition if partition is not None else partition_for_key(key or b"", route.partition_count)
        if number not in route.partitions:
            self._room.give_back(size_bytes)
            raise UnknownPartitionError(
                f"topic {self.topic!r} has partitions 0 to {route.partition_count - 1}, not {number}"
            )
        return self._lane(number)

    def _least_loaded(self, route: TopicRoute, size_bytes: int) -> Lane:
        """Return the lane with the fewest bytes under way; the last one as long as its batch still gathers."""
        if self._sticky is not None and self._sticky.gathers(size_bytes):
            return self._sticky
        count = route.partition_count
        # Among equals the next in turn, so that a slow trickle reaches every partition.
        turn = self._sticky.partition + 1 if self._sticky is not None else secrets.randbelow(count)
        number, fewest_bytes = 0, -1
        for step in range(count):
            each = (turn + step) % count
            lane = self._lanes.get(each)
            unsettled_bytes = lane.unsettled_bytes if lane is not None else 0
            if fewest_bytes < 0 or unsettled_bytes < fewest_bytes:
                number, fewest_bytes = each, unsettled_bytes
            if not unsettled_bytes:
                break
        self._sticky = self._lane(number)
        return self._sticky

    def _lane(self, partition: int) -> Lane:
        lane = self._lanes.get(partition)
        if lane is None:
            lane = Lane(partition, self._lane_options, on_settled=self._settled, meter=self._meter)
            self._lanes[partition] = lane
        return lane

    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + self._options.delivery_timeout_s

    def _settled(self, load: Load) -> None:
        self._room.give_back(load.size_bytes)
        delivery = load.delivery
        if delivery.error is not None and not delivery.watched:
            self._failed.append(delivery)
            if len(self._failed) > FAILED_MAX:
                self._failed = [each for each in self._failed if not each.watched][:FAILED_MAX]


def _check_header(header: object) -> None:
    """Refuse what is no (text, bytes or None) pair.

    Raises:
        TypeError: it is something else.
    """
    match header:
        case (str() as name, bytes() | None):
            name.encode()
        case _:
            raise TypeError(f"a header is (text, bytes or None), not {header!r}")


def _check_record(value: object, key: object, headers: Headers | None, tag: object, timestamp_us: object) -> None:
    """Refuse a record that no batch could carry, before it can spoil its neighbours' batch.

    Raises:
        TypeError, ValueError: see `Producer.send`.
    """
    if not (value is None or isinstance(value, bytes)):
        raise TypeError(f"a value is bytes or None, not {type(value).__name__}")
    if not (key is None or isinstance(key, bytes)):
        raise TypeError(f"a key is bytes or None, not {type(key).__name__}")
    if tag is not None:
        if not isinstance(tag, str):
            raise TypeError(f"a tag is text or None, not {type(tag).__name__}")
        if len(tag.encode()) > TAG_BYTES_MAX:
            raise ValueError(f"a tag has at most {TAG_BYTES_MAX} bytes")
    if timestamp_us is not None:
        if not isinstance(timestamp_us, int):
            raise TypeError(f"timestamp_us is µs since 1970, not {timestamp_us!r}")
        if not 0 <= timestamp_us <= TIMESTAMP_US_MAX:
            raise ValueError(f"timestamp_us is µs since 1970, up to the year 9999, not {timestamp_us}")
    for header in headers or ():
        _check_header(header)
