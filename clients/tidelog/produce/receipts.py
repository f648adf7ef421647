"""Receipts: the partitions and offsets of acknowledged records, computed when they are read.

A hundred thousand records that were sent as eight batches have eight ranges. The range of the i-th input record is
computed from the lengths of the ranges for inputs without keys, and from a permutation, which is inverted on first use,
for keyed inputs.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Self, overload

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.base.internal import internal
from tidelog.cluster import trace_contexts
from tidelog.errors import TidelogError
from tidelog.model import Receipt
from tidelog.produce.batches import Delivery
from tidelog.produce.expiry import copy_of_error
from tidelog.produce.open_batch import OpenBatch


@dataclass(frozen=True, slots=True)
class ReceiptRange:
    """Consecutive records of one partition: offsets `base_offset` to `base_offset + count - 1`. Unpacks like a tuple.

    Records that were dropped as duplicates are not included. If all were dropped, or if it is unknown which, then
    `base_offset` is -1 and `count` 0.
    """

    partition: int
    base_offset: int
    count: int

    def __iter__(self) -> Iterator[int]:
        return iter((self.partition, self.base_offset, self.count))


class PendingReceipt:
    """An accepted record that is not acknowledged yet. Awaiting it returns its `Receipt`; it can be awaited repeatedly.

    Its attributes are for `tidelog.sync`, not for users.
    """

    __slots__ = ("batch", "index")

    def __init__(self, batch: OpenBatch, index: int) -> None:
        self.batch = batch
        self.index = index

    def done(self) -> bool:
        """Return whether the outcome is known, so that awaiting returns at once."""
        place = self.batch.find(self.index)
        return place is not None and place[0].done

    def __await__(self) -> Generator[Any, None, Receipt]:
        batch, index = self.batch, self.index
        place = batch.find(index)
        if place is None:
            # One future for each waiter: cancelling one must not cancel the others.
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            batch.add_waiter(index, waiter)
            yield from waiter
            place = batch.find(index)
            assert place is not None, "a settled record has a delivery"
        delivery, at = place
        yield from delivery.__await__()
        return delivery.receipt(at)


class Receipts(Sequence[Receipt]):
    """The receipts of many records: `ranges` in the order of sending, `[i]` for the i-th input record."""

    def __init__(self, parts: Sequence[tuple[Delivery, int]], orders: Sequence[pa.Array[Any]] | None = None) -> None:
        self._parts = parts
        self._orders = orders
        self._ends = [parts[0][1]] if len(parts) == 1 else list(accumulate([count for _, count in parts]))
        self._places: list[int] | None = None

    @property
    def ranges(self) -> list[ReceiptRange]:
        """The ranges of the stored records, in the order of sending."""
        return [
            ReceiptRange(delivery.partition, delivery.base_offset, delivery.stored(count))
            for delivery, count in self._parts
        ]

    @property
    def duplicates(self) -> int:
        """Number of records that were dropped because their partitions had the content already."""
        return sum(delivery.duplicates for delivery, _ in self._parts)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, index: int) -> Receipt: ...

    @overload
    def __getitem__(self, index: slice) -> list[Receipt]: ...

    def __getitem__(self, index: int | slice) -> Receipt | list[Receipt]:
        if isinstance(index, slice):
            return [self._at(at) for at in range(*index.indices(len(self)))]
        at = index + len(self) if index < 0 else index
        if not 0 <= at < len(self):
            raise IndexError(f"record index {index} is out of range for {len(self)} records")
        return self._at(at)

    def __iter__(self) -> Iterator[Receipt]:
        return (self._at(at) for at in range(len(self)))

    def _at(self, index: int) -> Receipt:
        place = index if self._orders is None else self._place(index)
        chunk = bisect_right(self._ends, place)
        start = self._ends[chunk - 1] if chunk else 0
        return self._parts[chunk][0].receipt(place - start)

    def _place(self, index: int) -> int:
        """Return the position of the input record at `index` in the order of sending."""
        if self._places is None:
            places: list[int] = []
            for order in self._orders or ():
                base = len(places)
                # Sorting a permutation's positions by its values inverts it.
                inverse: Any = pc.array_sort_indices(order)
                places.extend(base + place for place in inverse.to_pylist())
            self._places = places
        return self._places[index]


@dataclass(frozen=True, slots=True)
class ChunkOutcome:
    """The outcome of consecutive records of one partition: their offsets, or an error.

    Attributes:
        stored: number of records that were stored, from `base_offset` on; the others are duplicates or have the error.
    """

    partition: int
    count: int
    base_offset: int = -1
    stored: int = 0
    duplicates: int = 0
    error: TidelogError | None = None


class PendingReceipts:
    """Many accepted records that are not acknowledged yet.

    Awaiting it returns their `Receipts`, or raises the first error after all records are acknowledged or have failed.
    """

    __slots__ = ("_orders", "_parts")

    def __init__(self, parts: list[tuple[Delivery, int]], orders: list[pa.Array[Any]] | None) -> None:
        self._parts = parts
        self._orders = orders

    def done(self) -> bool:
        """Return whether the outcome is known, so that awaiting returns at once."""
        return all(delivery.done for delivery, _ in self._parts)

    def __await__(self) -> Generator[Any, None, Receipts]:
        first: TidelogError | None = None
        stored = 0
        for delivery, count in self._parts:
            try:
                yield from delivery.__await__()
                stored += count
            except TidelogError as error:
                first = first or error
        if first is not None:
            total = sum(count for _, count in self._parts)
            first.add_note(f"{stored} of the call's {total} records were acknowledged")
            raise first
        return Receipts(self._parts, self._orders)

    @internal
    async def settled(self) -> list[ChunkOutcome]:
        """Wait until each chunk is stored or has failed, and return the outcomes in the order of sending.

        Failures then count as reported to the caller.
        """
        outcomes: list[ChunkOutcome] = []
        for delivery, count in self._parts:
            delivery.watched = True
            if not delivery.done:
                await delivery.new_waiter()  # `settled` would be one more coroutine for each request of the gateway
            if delivery.error is not None:
                outcomes.append(ChunkOutcome(delivery.partition, count, error=copy_of_error(delivery.error)))
                continue
            stored = delivery.stored(count)
            base, dropped = delivery.base_offset, delivery.duplicates
            outcomes.append(ChunkOutcome(delivery.partition, count, base, stored, dropped))
        return outcomes


def deliveries_of(receipts: PendingReceipts) -> list[Delivery]:
    """Return the deliveries of many pending records."""
    return [delivery for delivery, _ in receipts._parts]  # noqa: SLF001 - a member would be part of the public API


class PendingRows:
    """Records that were accepted as lists and are not acknowledged yet."""

    __slots__ = ("_batch", "_count", "_first")

    def __init__(self, batch: OpenBatch, first: int, count: int) -> None:
        self._batch = batch
        self._first = first
        self._count = count

    async def settled(self) -> Self:
        """Wait until each record is stored or has failed; failures then count as reported to the caller."""
        batch, first = self._batch, self._first
        if batch.find(first) is None:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            batch.add_waiter(first, waiter)
            await waiter
        for delivery in self._deliveries():
            delivery.watched = True
            await delivery.settled()
        return self

    def stored_at(self) -> ReceiptRange | None:
        """Return the range of settled records that are all stored consecutively in one partition, else None."""
        delivery = self._batch.delivery
        if delivery is None or not delivery.done or delivery.error is not None or delivery.offsets is not None:
            return None
        return ReceiptRange(delivery.partition, delivery.base_offset + self._first, self._count)

    def outcomes(self) -> list[Receipt | TidelogError]:
        """Return the receipt or the error of each settled record."""
        places = [self._batch.find(self._first + at) for at in range(self._count)]
        return [
            delivery.receipt(at) if delivery.error is None else copy_of_error(delivery.error)
            for delivery, at in (place for place in places if place is not None)
        ]

    def _deliveries(self) -> Sequence[Delivery]:
        delivery = self._batch.delivery
        if delivery is not None:
            return (delivery,)
        places = (self._batch.find(self._first + at) for at in range(self._count))
        return list({id(place[0]): place[0] for place in places if place is not None}.values())


def attach_trace(receipt: PendingReceipt | PendingReceipts) -> None:
    """Add the current trace context to the records of a receipt that are not sent yet."""
    context = trace_contexts.current()
    if not context:
        return
    if isinstance(receipt, PendingReceipt):
        if receipt.batch.traces[-1:] != (context,):
            receipt.batch.traces += (context,)
        return
    for delivery in deliveries_of(receipt):
        delivery.traces += (context,)
