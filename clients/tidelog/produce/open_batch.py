"""Loose records on their way into a producer: one list a column, and no lane before there is one to be had.

A *gathering* takes the records of put, enqueue and send, whatever partition they are for. Its bytes are reserved in the
producer's buffer ahead, so that one more plain record is a subtraction and an append. It is *shut* when a lane can take
what is there, or when it is full. Only then the partitions are decided: of keys by hashing them as a column, which
costs a third of hashing them one by one. What was gathered goes to one lane whole, as the lists that it came in, or is
split.

A receipt is its gathering and a number; where that record went is computed when somebody asks.

Rejected: a load for each partition from the start, which is a look-up, a hash and a branch a record, and many small
batches where keys are many.
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
from tidelog_proto.batch.columns import Headers

OnDelivery = Callable[[Receipt | None, TidelogError | None], object]
"""Is called with the receipt of a record, or with the error that it met."""


@dataclass(slots=True)
class RecordLists:
    """Records as lists of equal length, None for those that none of them uses; bytes, checked by who made them."""

    values: Sequence[bytes | None]
    keys: Sequence[bytes | None] | None = None
    headers: Sequence[Headers] | None = None
    tags: Sequence[str | None] | None = None
    partitions: Sequence[int | None] | None = None
    timestamps_us: Sequence[int] | None = None
    trace: str = ""
    """The `traceparent` of what they are published for; see `trace_contexts`."""

    def size_bytes(self) -> int:
        """Return about how many bytes of memory they take, as `loose_size_bytes` counts."""
        size_bytes = RECORD_OVERHEAD_BYTES * len(self.values) + sum(map(len, filter(None, self.values)))
        for column in (self.keys, self.tags):
            size_bytes += sum(map(len, filter(None, column or ())))
        for headers in self.headers or ():
            for name, content in headers:
                size_bytes += RECORD_OVERHEAD_BYTES + len(name) + len(content or b"")
        return size_bytes


SEALED: Final = -1
"""What is left in a gathering that takes nothing without being asked."""


class OpenBatch:
    """Records in the order in which they were given.

    The lists besides `values` end where the last record ended that had such a thing.

    Attributes:
        left_bytes: what is reserved and not used yet; below zero when nothing may join without a look.
        granted_bytes: what is reserved, used or not.
        deadline: loop time at which the records are given up, in s.
        timestamps_us: of records that have timestamps of their own; None where all have none.
        partitions: where records go that had a partition given; None for the others.
        callbacks: what to call about records; None for those without.
        delivery: the one outcome of all records, once they have gone to one lane.
        traces: of what the records are published for, where anybody asks.
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
        "tags",
        "timestamps_us",
        "traces",
        "values",
    )

    def __init__(self, *, deadline: float, timestamped: bool) -> None:
        self.deadline = deadline
        self.remaining_bytes = SEALED
        self.reserved_bytes = 0
        self.values: list[bytes | None] = []
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
        """How many records there are."""
        return len(self.values)

    @property
    def size_bytes(self) -> int:
        """What the records take."""
        return self.reserved_bytes - max(0, self.remaining_bytes)

    def reserve(self, size_bytes: int) -> None:
        """Let records of so many bytes join without a look; it takes nothing else that is left."""
        self.reserved_bytes += size_bytes
        self.remaining_bytes = max(0, self.remaining_bytes) + size_bytes

    def seal(self) -> int:
        """Let nothing join without a look any more; return how many bytes were reserved in vain."""
        remaining_bytes = max(0, self.remaining_bytes)
        self.reserved_bytes -= remaining_bytes
        self.remaining_bytes = SEALED
        return remaining_bytes

    def add(  # noqa: PLR0917 - a record, as it is given
        self,
        value: bytes | None,
        key: bytes | None,
        headers: Headers | None,
        tag: str | None,
        partition: int | None,
        timestamp_us: int | None,
        size_bytes: int = 0,  # noqa: ARG002 - the last part of a record, which is counted already
    ) -> int:
        """Add a record that was checked and whose bytes are counted already; return its number."""
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
            assert self.timestamps_us is not None, "records with timestamps gather by themselves"
            self.timestamps_us.append(timestamp_us)
        return index

    def extend(self, rows: RecordLists) -> int:
        """Add records that were checked and whose bytes are counted already; return the number of the first."""
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
            assert self.timestamps_us is not None, "records with timestamps gather by themselves"
            self.timestamps_us += rows.timestamps_us
        return index

    def pad_columns(self) -> None:
        """Make all lists that are used as long as that of the values."""
        count = len(self.values)
        columns: tuple[list[Any], ...] = (self.keys, self.tags, self.partitions, self.callbacks)
        for column in columns:
            if column:
                column.extend([None] * (count - len(column)))
        if self.headers:
            self.headers += [()] * (count - len(self.headers))

    def set_callback(self, index: int, callback: OnDelivery | None) -> None:
        """Note what to call about the record that was added last."""
        if callback is not None:
            self.callbacks += [None] * (index - len(self.callbacks))
            self.callbacks.append(callback)

    # --------------------------------------------------------------------------------------------- placing

    def set_delivery(self, delivery: Delivery) -> None:
        """All records have the outcome of `delivery`, in their order."""
        self.delivery = delivery
        delivery.callbacks = self.callbacks
        if self._waiters:
            delivery.add_waiters([waiter for _, waiter in self._waiters])
        self._release_lists()

    def set_deliveries(self, deliveries: Sequence[Delivery], ends: Sequence[int], order: Sequence[int]) -> None:
        """The records went to several lanes.

        Args:
            deliveries: the outcome of each part.
            ends: where each part ends in `order`.
            order: the numbers of the records, part by part.
        """
        # What the others are looked up by comes last: another thread may ask at any moment.
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
        """Return the outcome of the load that a record went to, and its number in there; None before that."""
        delivery = self.delivery
        if delivery is not None:
            return delivery, index
        return self._part_of(index) if self._deliveries else None

    def _part_of(self, index: int) -> tuple[Delivery, int]:
        if self._places is None:
            # The places of a permutation's members are its inverse.
            places = np.empty(len(self._order), np.int64)
            places[np.asarray(self._order)] = np.arange(len(self._order))
            self._places = places.tolist()
        place = self._places[index]
        part = bisect_right(self._ends, place)
        return self._deliveries[part], place - (self._ends[part - 1] if part else 0)

    def add_waiter(self, index: int, waiter: asyncio.Future[None]) -> None:
        """Complete `waiter` when the outcome of a record is known; for records that have no lane yet."""
        self._waiters.append((index, waiter))

    def _release_lists(self) -> None:
        """Forget what is in the loads now: receipts may be kept for long."""
        none: list[Any] = []
        self.values = self.keys = self.headers = self.tags = self.partitions = none
        self.timestamps_us = None
        self.callbacks, self._waiters = [], []


def sealed_batch() -> OpenBatch:
    """Return one that nothing ever joins: it stands where none is open."""
    return OpenBatch(deadline=0.0, timestamped=False)


def record_size_bytes(value: bytes | None, key: bytes | None, headers: Headers | None, tag: str | None) -> int:
    """Return about how many bytes of memory a loose record takes."""
    size_bytes = RECORD_OVERHEAD_BYTES + len(value or b"") + len(key or b"") + len(tag or "")
    for name, content in headers or ():
        size_bytes += RECORD_OVERHEAD_BYTES + len(name) + len(content or b"")
    return size_bytes
