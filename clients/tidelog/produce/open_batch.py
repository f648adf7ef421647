"""The open batch of a producer: single records as lists, one list for each column, before partitions are chosen.

An *open batch* takes the records of `put`, `enqueue` and `send` for all partitions. Its memory is reserved in advance,
so that appending a plain record is a subtraction and an append. It is drained into partition queues when it is full or
when a partition queue can send records. Partitions are chosen only then: keys are hashed as a column, which costs a
third of hashing them one by one. The lists go to one partition queue unchanged, or are split by partition. A batch that
is *closed to direct appends* refuses records without `RecordAccumulator.accept`, which may still add records to it.

A receipt is an open batch and an index; the partition and offset of the record are computed when they are read. So the
object outlives its records: after it is drained, the chunks hold the lists, and it holds the deliveries of the chunks.

Rejected: one open batch for each partition, which costs a look-up, a hash and a branch for each record, and gives many
small batches if there are many keys.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tidelog.errors import TidelogError
from tidelog.model import Receipt
from tidelog.produce.batches import RECORD_OVERHEAD_BYTES, Delivery
from tidelog.rows.row_writer import RowWriter
from tidelog_proto.batch.columns import Headers

OnDelivery = Callable[[Receipt | None, TidelogError | None], object]
"""A callback that is called with the receipt of a record and None, or with None and the error."""


@dataclass(slots=True)
class RecordLists:
    """Records as lists of equal length, None for a column without values; the creator has checked the types."""

    values: Sequence[bytes | None]
    keys: Sequence[bytes | None] | None = None
    headers: Sequence[Headers] | None = None
    tags: Sequence[str | None] | None = None
    partitions: Sequence[int | None] | None = None
    timestamps_us: Sequence[int] | None = None
    trace: str = ""
    """The `traceparent` of the request that publishes the records; see `trace_contexts`."""

    def size_bytes(self) -> int:
        """Estimate the size of the records in memory, as `record_size_bytes` does."""
        size_bytes = RECORD_OVERHEAD_BYTES * len(self.values) + sum(map(len, filter(None, self.values)))
        for column in (self.keys, self.tags):
            size_bytes += sum(map(len, filter(None, column or ())))
        for headers in self.headers or ():
            for name, content in headers:
                size_bytes += RECORD_OVERHEAD_BYTES + len(name) + len(content or b"")
        return size_bytes


CLOSED_TO_DIRECT: Final = -1
"""`remaining_bytes` of a batch that is closed to direct appends: no record fits."""


class OpenBatch:
    """Collects single records in the order in which they are accepted, before their partitions are chosen.

    Later it is what receipts refer to: it finds the delivery of each record, as long as a receipt exists.

    The lists besides `values` are shorter than `values` until `pad_columns`: they end at the last record with an entry.

    Attributes:
        remaining_bytes: reserved, unused memory; negative if the batch is closed to direct appends.
        reserved_bytes: reserved memory, used or not.
        deadline: event loop time at which the records expire, in seconds.
        timestamps_us: explicit timestamps; None if the records have none.
        partitions: explicit partitions; None for records without a partition.
        callbacks: delivery callbacks; None for records without a callback.
        delivery: the outcome of all records if they went to one partition queue.
        rows: the writer of the schema of a typed topic, whose copies `values` has; None in others.
        traces: trace contexts of the requests that publish the records.
    """

    __slots__ = (
        "_deliveries",
        "_ends",
        "_order",
        "_places",
        "_waiters",
        "callbacks",
        "deadline",
        "delivery",
        "headers",
        "keys",
        "partitions",
        "remaining_bytes",
        "reserved_bytes",
        "rows",
        "tags",
        "timestamps_us",
        "traces",
        "values",
    )

    def __init__(self, *, deadline: float, timestamped: bool, rows: RowWriter | None = None) -> None:
        self.deadline = deadline
        self.rows = rows
        self.remaining_bytes = CLOSED_TO_DIRECT
        self.reserved_bytes = 0
        self.values: list[Any] = []
        self.keys: list[bytes | None] = []
        self.headers: list[Headers] = []
        self.tags: list[str | None] = []
        self.timestamps_us: list[int] | None = [] if timestamped else None
        self.partitions: list[int | None] = []
        self.callbacks: list[OnDelivery | None] = []
        self.delivery: Delivery | None = None
        self.traces: tuple[str, ...] = ()
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._deliveries: Sequence[Delivery] = ()
        self._ends: Sequence[int] = ()
        self._order: Sequence[int] = ()
        self._places: Sequence[int] | None = None

    @property
    def count(self) -> int:
        """Number of records."""
        return len(self.values)

    @property
    def size_bytes(self) -> int:
        """Estimated memory of the records."""
        return self.reserved_bytes - max(0, self.remaining_bytes)

    def reserve(self, size_bytes: int) -> None:
        """Add reserved memory, and allow direct appends up to it."""
        self.reserved_bytes += size_bytes
        self.remaining_bytes = max(0, self.remaining_bytes) + size_bytes

    def close_to_direct(self) -> int:
        """Refuse direct appends; return how many reserved bytes are unused."""
        remaining_bytes = max(0, self.remaining_bytes)
        self.reserved_bytes -= remaining_bytes
        self.remaining_bytes = CLOSED_TO_DIRECT
        return remaining_bytes

    def add(  # noqa: PLR0917 - a record, as it is given
        self,
        value: Any,
        key: bytes | None,
        headers: Headers | None,
        tag: str | None,
        partition: int | None,
        timestamp_us: int | None,
        size_bytes: int = 0,  # noqa: ARG002 - a field of a record; its memory is reserved already
        rows: RowWriter | None = None,
    ) -> int:
        """Append a checked record whose memory is reserved; return its index."""
        assert rows is self.rows, "records of different schemas have different batches"
        index = len(self.values)
        self.values.append(value)
        if key is not None:
            self.keys += [None] * (index - len(self.keys))
            self.keys.append(key)
        if headers:
            self.headers += [()] * (index - len(self.headers))
            self.headers.append(headers)
        if tag is not None:
            self.tags += [None] * (index - len(self.tags))
            self.tags.append(tag)
        if partition is not None:
            self.partitions += [None] * (index - len(self.partitions))
            self.partitions.append(partition)
        if timestamp_us is not None:
            assert self.timestamps_us is not None, "records with explicit timestamps have a batch of their own"
            self.timestamps_us.append(timestamp_us)
        return index

    def extend(self, rows: RecordLists) -> int:
        """Append checked records whose memory is reserved; return the index of the first of them."""
        index = len(self.values)
        self.values += rows.values
        if rows.keys:
            self.keys += [None] * (index - len(self.keys))
            self.keys += rows.keys
        if rows.headers:
            self.headers += [()] * (index - len(self.headers))
            self.headers += rows.headers
        if rows.tags:
            self.tags += [None] * (index - len(self.tags))
            self.tags += rows.tags
        if rows.partitions:
            self.partitions += [None] * (index - len(self.partitions))
            self.partitions += rows.partitions
        if rows.timestamps_us:
            assert self.timestamps_us is not None, "records with explicit timestamps have a batch of their own"
            self.timestamps_us += rows.timestamps_us
        return index

    def pad_columns(self) -> None:
        """Extend all non-empty lists to the length of `values`."""
        count = len(self.values)
        columns: tuple[list[Any], ...] = (self.keys, self.tags, self.partitions, self.callbacks)
        for column in columns:
            if column:
                column.extend([None] * (count - len(column)))
        if self.headers:
            self.headers += [()] * (count - len(self.headers))

    def set_callback(self, index: int, callback: OnDelivery | None) -> None:
        """Set the delivery callback of the last record, which has the index `index`."""
        if callback is not None:
            self.callbacks += [None] * (index - len(self.callbacks))
            self.callbacks.append(callback)

    # -------------------------------------------------------------------------------------------- outcome

    def set_delivery(self, delivery: Delivery) -> None:
        """Set `delivery` as the outcome of all records, in their order."""
        self.delivery = delivery
        delivery.callbacks = self.callbacks
        if self._waiters:
            delivery.add_waiters([waiter for _, waiter in self._waiters])
        self._release_lists()

    def set_deliveries(self, deliveries: Sequence[Delivery], ends: Sequence[int], order: Sequence[int]) -> None:
        """Set the outcomes of records that were split by partition.

        Args:
            deliveries: the outcome of each part.
            ends: where each part ends in `order`.
            order: the indexes of the records, part by part.
        """
        # `_deliveries` is set last: another thread that sees it reads the other two.
        self._order, self._ends, self._deliveries = order, ends, deliveries
        for index, waiter in self._waiters:
            delivery, _ = self._part_of(index)
            delivery.add_waiters([waiter])
        if self.callbacks:
            begin = 0
            for delivery, end in zip(deliveries, ends, strict=True):
                delivery.callbacks = [self.callbacks[index] for index in order[begin:end]]
                begin = end
        self._release_lists()

    def find(self, index: int) -> tuple[Delivery, int] | None:
        """Return the delivery of a record and its index in the chunk; None before the batch was drained."""
        delivery = self.delivery
        if delivery is not None:
            return delivery, index
        return self._part_of(index) if self._deliveries else None

    def _part_of(self, index: int) -> tuple[Delivery, int]:
        if self._places is None:
            # Invert the permutation.
            places = np.empty(len(self._order), np.int64)
            places[np.asarray(self._order)] = np.arange(len(self._order))
            self._places = places.tolist()
        place = self._places[index]
        part = bisect_right(self._ends, place)
        return self._deliveries[part], place - (self._ends[part - 1] if part else 0)

    def add_waiter(self, index: int, waiter: asyncio.Future[None]) -> None:
        """Complete `waiter` when the outcome of a record is known; called only before the batch is drained."""
        self._waiters.append((index, waiter))

    def _release_lists(self) -> None:
        """Release the lists, which the chunks hold now, because callers may keep receipts for a long time."""
        none: list[Any] = []
        self.values = self.keys = self.headers = self.tags = self.partitions = none
        self.timestamps_us = None
        self.callbacks, self._waiters = [], []


def closed_batch() -> OpenBatch:
    """Return an empty batch that is closed to direct appends, for use while no batch takes them."""
    return OpenBatch(deadline=0.0, timestamped=False)


def record_size_bytes(value: bytes | None, key: bytes | None, headers: Headers | None, tag: str | None) -> int:
    """Estimate the memory of a single record."""
    size_bytes = RECORD_OVERHEAD_BYTES + len(value or b"") + len(key or b"") + len(tag or "")
    for name, content in headers or ():
        size_bytes += RECORD_OVERHEAD_BYTES + len(name) + len(content or b"")
    return size_bytes
