"""What users hand to a producer, on its way through a batch: loads, their deliveries, batches. Without I/O.

A *load* is some records for one partition with one outcome: columns that came as columns, or loose records that came
one by one and become columns in one go when their batch is formed. A *delivery* is that outcome: one object a load, not
one a record, so receipts cost nothing until somebody looks at them. Failures are stored and raised to whoever waits;
they are never set on a future that nobody may read, so asyncio has nothing to complain about.

A *batch* carries loads. Its bytes are made once, when it is first sent, and stay the same on every retry: that is how
the node recognises it. Only when it is certain that the node never stored it and never will may it get other numbers
(`renumber`), and even then the body stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final

import pyarrow as pa

from tidelog.errors import TidelogError
from tidelog_proto.batch import EncodedBatch
from tidelog_proto.columns import Headers, columns_of
from tidelog_proto.header import unpack_header
from tidelog_proto.memory import batch_pool
from tidelog_proto.single_record import SINGLE_BYTES_MAX

RECORD_OVERHEAD_BYTES: Final = 96
"""What a loose record takes in memory besides its bytes: list slots, object headers."""


class Delivery:
    """The outcome of one load: `base_offset` of its first record, or `error`."""

    __slots__ = ("_waiters", "base_offset", "done", "error", "partition", "timestamp_us", "watched")

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.base_offset = 0
        self.timestamp_us = 0
        self.error: TidelogError | None = None
        self.done = False
        self.watched = False
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
            raise self.error

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


class ColumnsLoad:
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


class LooseLoad:
    """Records that came one by one. All of them have a timestamp of their own, or none has."""

    __slots__ = (
        "_headers",
        "_keys",
        "_tags",
        "_timestamps_us",
        "_values",
        "count",
        "deadline",
        "delivery",
        "size_bytes",
    )

    def __init__(self, *, partition: int, deadline: float, timestamped: bool) -> None:
        self._values: list[bytes | None] = []
        self._keys: list[bytes | None] | None = None
        self._headers: list[Headers] | None = None
        self._tags: list[str | None] | None = None
        self._timestamps_us: list[int] | None = [] if timestamped else None
        self.count = 0
        self.size_bytes = 0
        self.deadline = deadline
        self.delivery = Delivery(partition)

    @property
    def timestamped(self) -> bool:
        """Whether the records have timestamps of their own."""
        return self._timestamps_us is not None

    def add(
        self,
        value: bytes | None,
        *,
        key: bytes | None,
        headers: Headers | None,
        tag: str | None,
        timestamp_us: int | None,
        size_bytes: int,
    ) -> int:
        """Add a record and return its index in the load."""
        index = self.count
        self._values.append(value)
        if self._keys is not None:
            self._keys.append(key)
        elif key is not None:
            self._keys = [None] * index + [key]
        if self._headers is not None:
            self._headers.append(headers or ())
        elif headers:
            self._headers = [()] * index + [headers]
        if self._tags is not None:
            self._tags.append(tag)
        elif tag is not None:
            self._tags = [None] * index + [tag]
        if self._timestamps_us is not None:
            assert timestamp_us is not None
            self._timestamps_us.append(timestamp_us)
        self.count = index + 1
        self.size_bytes += size_bytes
        return index

    def single(self) -> tuple[bytes, bytes | None] | None:
        """Return value and key if this is one plain record that `encode_single` takes, else None."""
        value = self._values[0]
        plain = self._headers is None and self._tags is None and self._timestamps_us is None
        if self.count != 1 or value is None or not plain or self.size_bytes > SINGLE_BYTES_MAX:
            return None
        return value, None if self._keys is None else self._keys[0]

    def columns(self) -> pa.RecordBatch:
        """Return the records as canonical columns."""
        return columns_of(
            self._values,
            keys=self._keys,
            timestamps_us=self._timestamps_us,
            headers=self._headers,
            tags=self._tags,
        )


Load = ColumnsLoad | LooseLoad


class State(Enum):
    """Where a batch is."""

    WAITING = "to be sent, or sent again"
    FLYING = "sent, the answer is due"
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

    loads: Sequence[Load]
    encoded: EncodedBatch
    base_sequence: int
    deadline: float
    state: State = State.WAITING
    maybe_stored: bool = False
    last_error: TidelogError | None = None
    count: int = field(init=False)

    def __post_init__(self) -> None:
        self.count = self.encoded.record_count

    def renumber(self, *, producer_epoch: int, base_sequence: int) -> None:
        """Give the batch other numbers; the caller is certain that no copy of the old bytes can be stored."""
        header = unpack_header(self.encoded.header)._replace(producer_epoch=producer_epoch, base_sequence=base_sequence)
        self.encoded = replace(self.encoded, header=header.pack())
        self.base_sequence = base_sequence
        self.maybe_stored = False

    def succeed(self, base_offset: int, timestamp_us: int) -> None:
        """Give every load its offsets."""
        for load in self.loads:
            load.delivery.succeed(base_offset, timestamp_us)
            base_offset += load.count


def loose_size_bytes(value: bytes | None, key: bytes | None, headers: Headers | None, tag: str | None) -> int:
    """Return about how many bytes of memory a loose record takes."""
    size_bytes = RECORD_OVERHEAD_BYTES + len(value or b"") + len(key or b"") + len(tag or "")
    for name, content in headers or ():
        size_bytes += RECORD_OVERHEAD_BYTES + len(name) + len(content or b"")
    return size_bytes


def join_columns(parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return parts of equal schema as one."""
    if len(parts) == 1:
        return parts[0]
    return pa.Table.from_batches(parts).combine_chunks(memory_pool=batch_pool()).to_batches()[0]
