"""What users hand to a producer, on its way through a batch: loads, their deliveries, batches. Without I/O.

A *load* is some records for one partition with one outcome: columns that came as columns, or loose records that came
one by one (`open_batch.py`) and become columns in one go when their batch is formed. A *delivery* is that outcome: one
object a load, not one a record, so receipts cost nothing until somebody looks at them. Failures are stored and raised
to whoever waits; they are never set on a future that nobody may read, so asyncio has nothing to complain about.

A *batch* carries loads. Its bytes are made once, when it is first sent, and stay the same on every retry: that is how
the node recognises it. Only when it is certain that the node never stored it and never will may it get other numbers
(`renumber`), and even then the body stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import chain
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidelog.errors import TidelogError
from tidelog.model import NOT_KNOWN, NOT_STORED, Receipt
from tidelog.produce.deduplicated_records import DroppedRecords, offsets_of
from tidelog.produce.expiry import copy_of_error
from tidelog_proto.batch.columns import Headers, columns_of
from tidelog_proto.batch.header import unpack_header
from tidelog_proto.batch.record_batch import EncodedBatch
from tidelog_proto.batch.single_record import SINGLE_BYTES_MAX
from tidelog_proto.process.buffers import batch_pool

T = TypeVar("T")

RECORD_OVERHEAD_BYTES: Final = 96
"""What a loose record takes in memory besides its bytes: list slots, object headers."""


class Delivery:
    """The outcome of one load: `base_offset` of its first record, or `error`; `offsets` where some were dropped."""

    __slots__ = (
        "_waiters",
        "base_offset",
        "callbacks",
        "done",
        "duplicates",
        "error",
        "offsets",
        "partition",
        "timestamp_us",
        "traces",
        "watched",
    )

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.base_offset = 0
        self.timestamp_us = 0
        self.duplicates = 0
        """How many of the records were dropped, as far as is known."""
        self.offsets: npt.NDArray[np.int64] | None = None
        """Of each record, where they are not simply one behind the other."""
        self.error: TidelogError | None = None
        self.done = False
        self.watched = False
        self.traces: tuple[str, ...] = ()
        """Of what the records are published for; see `trace_contexts`."""
        self.callbacks: list[Callable[[Any, Any], object] | None] = []
        """What to call with the receipt or error of each record, where anything is; called by who has the load."""
        self._waiters: list[asyncio.Future[None]] = []

    def __await__(self) -> Generator[Any, None, None]:
        """Wait for the outcome. No coroutine, because one would be made for every record that is sent alone.

        Raises:
            TidelogError: the records were not acknowledged.
        """
        self.watched = True
        if not self.done:
            # A future a waiter: cancelling one who waits must not cancel the others.
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            yield from waiter
        if self.error is not None:
            raise copy_of_error(self.error)

    def add_waiters(self, waiters: list[asyncio.Future[None]]) -> None:
        """Complete futures when the outcome, which is not known yet, is; whoever waits looks at it then."""
        self.watched = True
        self._waiters += waiters

    async def settled(self) -> None:
        """Wait for the outcome, whatever it is; to do so is not to have been told of it."""
        if not self.done:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    def succeed(self, base_offset: int, timestamp_us: int) -> None:
        """The records are stored from `base_offset` on."""
        self.base_offset = base_offset
        self.timestamp_us = timestamp_us
        self._finish()

    def succeed_in_part(self, offsets: npt.NDArray[np.int64], timestamp_us: int, duplicates: int) -> None:
        """The records are acknowledged, and some were dropped: `NOT_STORED`, or, each of them, `NOT_KNOWN`."""
        stored = offsets[offsets >= 0]
        self.offsets, self.duplicates = offsets, duplicates
        self.succeed(int(stored[0]) if len(stored) else NOT_STORED, timestamp_us)

    def receipt(self, at: int) -> Receipt:
        """Return the receipt of a record of the load, which was acknowledged."""
        offset = self.base_offset + at if self.offsets is None else int(self.offsets[at])
        return Receipt(self.partition, offset, self.timestamp_us)

    def stored(self, count: int) -> int:
        """Return how many of the load's records, which are so many, have offsets."""
        return count if self.offsets is None else int(np.count_nonzero(self.offsets >= 0))

    def fail(self, error: TidelogError) -> None:
        """The records are not acknowledged."""
        self.error = error
        self._finish()

    def _finish(self) -> None:
        assert not self.done, "a delivery has one outcome"
        self.done = True
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


class ColumnChunk:
    """Records that came as columns."""

    __slots__ = ("_columns", "count", "deadline", "delivery", "size_bytes")

    def __init__(self, columns: pa.RecordBatch, *, partition: int, deadline: float, size_bytes: int) -> None:
        self._columns = columns
        self.count = columns.num_rows
        self.size_bytes = size_bytes
        self.deadline = deadline
        self.delivery = Delivery(partition)

    def columns(self) -> pa.RecordBatch:
        """Return the records as canonical columns."""
        return self._columns


class ListChunk:
    """Records that came one by one. All of them have a timestamp of their own, or none has.

    Args:
        values: one a record.
        keys, headers, tags, timestamps_us: one a record, or nothing where no record has such a thing.
        partition: where they go.
        deadline: loop time at which they are given up, in s.
        size_bytes: about what they take in memory.
        full: no more would have fitted, so that waiting for more is in vain.
    """

    __slots__ = (
        "count",
        "deadline",
        "delivery",
        "full",
        "headers",
        "keys",
        "size_bytes",
        "tags",
        "timestamps_us",
        "values",
    )

    def __init__(
        self,
        values: list[bytes | None],
        *,
        partition: int,
        deadline: float,
        size_bytes: int,
        keys: list[bytes | None] | None = None,
        headers: list[Headers] | None = None,
        tags: list[str | None] | None = None,
        timestamps_us: list[int] | None = None,
        full: bool = False,
    ) -> None:
        self.values = values
        self.keys = keys or None
        self.headers = headers or None
        self.tags = tags or None
        self.timestamps_us = timestamps_us or None
        self.count = len(values)
        self.size_bytes = size_bytes
        self.deadline = deadline
        self.full = full
        self.delivery = Delivery(partition)

    @property
    def timestamped(self) -> bool:
        """Whether the records have timestamps of their own."""
        return self.timestamps_us is not None

    def single(self) -> tuple[bytes, bytes | None] | None:
        """Return value and key if this is one plain record that `encode_single` takes, else None."""
        value = self.values[0]
        plain = self.headers is None and self.tags is None and self.timestamps_us is None
        if self.count != 1 or value is None or not plain or self.size_bytes > SINGLE_BYTES_MAX:
            return None
        return value, None if self.keys is None else self.keys[0]

    def columns(self) -> pa.RecordBatch:
        """Return the records as canonical columns."""
        return columns_of(
            self.values,
            keys=self.keys,
            timestamps_us=self.timestamps_us,
            headers=self.headers,
            tags=self.tags,
        )


Chunk = ColumnChunk | ListChunk


class BatchState(Enum):
    """Where a batch is."""

    WAITING = "to be sent, or sent again"
    IN_FLIGHT = "sent, the answer is due"
    STORED = "acknowledged; it stays in line until those before it are settled"
    DROPPED = "given up; it stays in line until those before it are settled"


@dataclass(slots=True, eq=False)
class OutgoingBatch:
    """One batch and the loads that it carries.

    Attributes:
        loads: in the order of their records.
        encoded: what is sent.
        base_sequence: the number of its first record.
        deadline: loop time at which it is given up.
        maybe_stored: some attempt ended with an unknown outcome. Never taken back while the numbers stay.
        last_error: what the newest attempt met.
    """

    chunks: Sequence[Chunk]
    encoded: EncodedBatch
    base_sequence: int
    deadline: float
    state: BatchState = BatchState.WAITING
    maybe_stored: bool = False
    last_error: TidelogError | None = None
    count: int = field(init=False)

    def __post_init__(self) -> None:
        self.count = self.encoded.record_count

    def renumber(self, *, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        """Give the batch other numbers; the caller is certain that no copy of the old bytes can be stored."""
        header = unpack_header(self.encoded.header)._replace(
            producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=base_sequence
        )
        self.encoded = replace(self.encoded, header=header.pack())
        self.base_sequence = base_sequence
        self.maybe_stored = False

    def succeed(self, base_offset: int, timestamp_us: int, drops: DroppedRecords | None = None) -> None:
        """Give every load its offsets; `drops` where a node has dropped some of the records."""
        if drops is not None:
            self._succeed_in_part(base_offset, timestamp_us, drops)
            return
        for chunk in self.chunks:
            chunk.delivery.succeed(base_offset, timestamp_us)
            base_offset += chunk.count

    def _succeed_in_part(self, base_offset: int, timestamp_us: int, drops: DroppedRecords) -> None:
        flags = drops.flags(self.count)
        offsets = np.full(self.count, NOT_KNOWN) if flags is None else offsets_of(base_offset, flags)
        at = 0
        for chunk in self.chunks:
            part = slice(at, at + chunk.count)
            # Of whom those are that were dropped is not known of several loads when it is not of their records.
            told = drops.dropped if len(self.chunks) == 1 else 0
            duplicates = told if flags is None else int(np.count_nonzero(flags[part]))
            chunk.delivery.succeed_in_part(offsets[part], timestamp_us, duplicates)
            at = part.stop


def join_lists(chunks: Sequence[ListChunk]) -> pa.RecordBatch:
    """Return the records of loads, of which all or none are timestamped, as canonical columns."""
    if len(chunks) == 1:
        return chunks[0].columns()
    nobody: list[None] = [None]
    no_headers: list[Headers] = [()]
    return columns_of(
        list(chain.from_iterable(chunk.values for chunk in chunks)),
        keys=_joined([chunk.keys or nobody * chunk.count for chunk in chunks], any(chunk.keys for chunk in chunks)),
        headers=_joined(
            [chunk.headers or no_headers * chunk.count for chunk in chunks], any(chunk.headers for chunk in chunks)
        ),
        tags=_joined([chunk.tags or nobody * chunk.count for chunk in chunks], any(chunk.tags for chunk in chunks)),
        timestamps_us=_joined([chunk.timestamps_us or [] for chunk in chunks], chunks[0].timestamped),
    )


def _joined(parts: Iterable[Sequence[T]], used: bool) -> list[T] | None:
    return list(chain.from_iterable(parts)) if used else None


def join_columns(parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return parts of equal schema as one."""
    if len(parts) == 1:
        return parts[0]
    return pa.Table.from_batches(parts).combine_chunks(memory_pool=batch_pool()).to_batches()[0]
