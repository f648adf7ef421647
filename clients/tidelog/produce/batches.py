"""Chunks of records with their outcome, and the outgoing batches that carry them. No I/O.

A *chunk* holds records for one partition: columns, or lists of single records (`open_batch.py`) that are converted to
columns when their batch is encoded. A chunk is a *delivery*, the outcome of its records, which their receipts refer to.
There is one delivery per chunk, not per record, so receipts cost nothing until they are read. A chunk releases its
records when their outcome is known. A failure is stored and raised to callers that await it; it is never set on a
future, since asyncio logs an exception that is not retrieved.

An *outgoing batch* carries chunks. It is encoded once, when it is first sent, and its bytes stay the same on every
retry, so that the node recognises duplicates. It gets new sequence numbers (`renumber`) only if the node certainly
neither has stored it nor can store it later; its body does not change then either.
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

from tidelog.cluster.owner_changes import Expectation
from tidelog.errors import TidelogError
from tidelog.model import NOT_KNOWN, NOT_STORED, Receipt
from tidelog.produce.deduplicated_records import DroppedRecords, offsets_of
from tidelog.produce.expiry import copy_of_error
from tidelog.rows.row_writer import RowWriter
from tidelog_proto.batch.columns import Headers, columns_of
from tidelog_proto.batch.header import Codec, unpack_header
from tidelog_proto.batch.record_batch import EncodedBatch, encode_batch
from tidelog_proto.batch.row_layout import RowLayout
from tidelog_proto.batch.single_record import SINGLE_BYTES_MAX
from tidelog_proto.process.buffers import batch_pool

T = TypeVar("T")

_NO_COLUMNS: Final = pa.RecordBatch.from_arrays([], schema=pa.schema([]))

RECORD_OVERHEAD_BYTES: Final = 96
"""Memory that a single record takes besides its bytes: list slots and object headers."""


class Delivery:
    """The outcome of the records of a chunk, not an attempt to deliver them: `done` is False until it is known.

    It is `base_offset` or `error`; `offsets` if some records were dropped.
    """

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
        """Number of records that were dropped as duplicates, as far as the node reported it."""
        self.offsets: npt.NDArray[np.int64] | None = None
        """The offset of each record if the offsets are not consecutive."""
        self.error: TidelogError | None = None
        self.done = False
        self.watched = False
        self.traces: tuple[str, ...] = ()
        """Trace contexts of the requests that the records are published for; see `trace_contexts`."""
        self.callbacks: list[Callable[[Any, Any], object] | None] = []
        """One callback for each record, or empty; `DeliveryCallbacks` calls them with the receipt or error."""
        self._waiters: list[asyncio.Future[None]] = []

    def __await__(self) -> Generator[Any, None, None]:
        """Wait for the outcome. Not a coroutine: one would be created for each record that is sent alone.

        Raises:
            TidelogError: the records were not acknowledged.
        """
        self.watched = True
        if not self.done:
            # One future for each waiter: cancelling one must not cancel the others.
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            yield from waiter
        if self.error is not None:
            raise copy_of_error(self.error)

    def add_waiters(self, waiters: list[asyncio.Future[None]]) -> None:
        """Add futures that are completed when the outcome is known; called only before the outcome is known."""
        self.watched = True
        self._waiters += waiters

    async def settled(self) -> None:
        """Wait for the outcome without raising it; an error still counts as unreported."""
        if not self.done:
            await self.new_waiter()

    def new_waiter(self) -> asyncio.Future[None]:
        """Return a future that is completed with the outcome; called only before the outcome is known."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        return waiter

    def succeed(self, base_offset: int, timestamp_us: int) -> None:
        """Record that the records are stored from `base_offset` on."""
        self.base_offset = base_offset
        self.timestamp_us = timestamp_us
        self._finish()

    def succeed_in_part(self, offsets: npt.NDArray[np.int64], timestamp_us: int, duplicates: int) -> None:
        """Record that some records were dropped: their offset is `NOT_STORED`, or all offsets are `NOT_KNOWN`."""
        stored = offsets[offsets >= 0]
        self.offsets, self.duplicates = offsets, duplicates
        self.succeed(int(stored[0]) if len(stored) else NOT_STORED, timestamp_us)

    def receipt(self, at: int) -> Receipt:
        """Return the receipt of the record at an index of an acknowledged chunk."""
        offset = self.base_offset + at if self.offsets is None else int(self.offsets[at])
        return Receipt(self.partition, offset, self.timestamp_us)

    def stored(self, count: int) -> int:
        """Return how many of the chunk's `count` records have an offset."""
        return count if self.offsets is None else int(np.count_nonzero(self.offsets >= 0))

    def fail(self, error: TidelogError) -> None:
        """Record the error of the records."""
        self.error = error
        self._finish()

    def _finish(self) -> None:
        assert not self.done, "a delivery has one outcome"
        self.done = True
        self._release_records()
        if self._waiters:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def _release_records(self) -> None:
        """Release the records, because callers may keep receipts for a long time."""


class ColumnChunk(Delivery):
    """Records of one partition as canonical columns, or those of a schema, and their outcome.

    Args:
        layout: of the schema of a typed topic; None in others.
    """

    __slots__ = ("columns", "count", "deadline", "layout", "size_bytes")

    def __init__(
        self,
        columns: pa.RecordBatch,
        *,
        partition: int,
        deadline: float,
        size_bytes: int,
        layout: RowLayout | None = None,
    ) -> None:
        super().__init__(partition)
        self.columns = columns
        self.layout = layout
        self.count = columns.num_rows
        self.size_bytes = size_bytes
        self.deadline = deadline

    def _release_records(self) -> None:
        self.columns = _NO_COLUMNS


class ListChunk(Delivery):
    """Records of one partition as lists, and their outcome. Either all of them have a timestamp, or none has.

    Args:
        values: the value of each record.
        keys, headers, tags, timestamps_us: one for each record, or None if no record has one.
        deadline: event loop time at which the records expire, in seconds.
        size_bytes: estimated size in memory.
        full: whether the open batch had no space left, so the queue does not wait for more records.
        rows: the writer of the schema of a typed topic, whose copies `values` has; None in others.
    """

    __slots__ = (
        "count",
        "deadline",
        "full",
        "headers",
        "keys",
        "rows",
        "size_bytes",
        "tags",
        "timestamps_us",
        "values",
    )

    def __init__(
        self,
        values: list[Any],
        *,
        partition: int,
        deadline: float,
        size_bytes: int,
        keys: list[bytes | None] | None = None,
        headers: list[Headers] | None = None,
        tags: list[str | None] | None = None,
        timestamps_us: list[int] | None = None,
        full: bool = False,
        rows: RowWriter | None = None,
    ) -> None:
        super().__init__(partition)
        self.values = values
        self.rows = rows
        self.keys = keys or None
        self.headers = headers or None
        self.tags = tags or None
        self.timestamps_us = timestamps_us or None
        self.count = len(values)
        self.size_bytes = size_bytes
        self.deadline = deadline
        self.full = full

    @property
    def timestamped(self) -> bool:
        """Whether the records have explicit timestamps."""
        return self.timestamps_us is not None

    @property
    def layout(self) -> RowLayout | None:
        """The layout of the schema of a typed topic; None in others."""
        return None if self.rows is None else self.rows.layout

    def single(self) -> tuple[bytes, bytes | None] | None:
        """Return value and key if this is one plain record that `encode_single` accepts, else None."""
        value = self.values[0]
        plain = self.headers is None and self.tags is None and self.timestamps_us is None and self.rows is None
        if self.count != 1 or value is None or not plain or self.size_bytes > SINGLE_BYTES_MAX:
            return None
        return value, None if self.keys is None else self.keys[0]

    def to_columns(self) -> pa.RecordBatch:
        """Return the records as canonical columns, or those of their schema."""
        return (columns_of if self.rows is None else self.rows.columns)(
            self.values,
            keys=self.keys,
            timestamps_us=self.timestamps_us,
            headers=self.headers,
            tags=self.tags,
        )

    def _release_records(self) -> None:
        self.values = []
        self.keys = self.headers = self.tags = self.timestamps_us = None


Chunk = ColumnChunk | ListChunk


class BatchState(Enum):
    """The state of an outgoing batch."""

    WAITING = "to be sent or resent"
    IN_FLIGHT = "sent, not answered yet"
    STORED = "acknowledged; stays in the list until earlier batches are settled"
    DROPPED = "failed; stays in the list until earlier batches are settled"


@dataclass(slots=True, eq=False)
class OutgoingBatch:
    """One batch on the wire and the chunks that it carries.

    Attributes:
        chunks: the chunks of the batch, in the order of their records.
        base_sequence: sequence number of the first record.
        deadline: event loop time at which the batch expires, in seconds.
        maybe_stored: whether some attempt ended with an unknown outcome; reset only with new sequence numbers.
        last_error: the error of the last failed attempt; None if no attempt has failed.
        layout: of the schema of a typed topic; None in others.
        expected: the attempt in flight; None after its answer, and after it was abandoned.
        count: number of records.
        length: size of the encoded batch in bytes.
    """

    chunks: Sequence[Chunk]
    encoded: EncodedBatch
    base_sequence: int
    deadline: float
    state: BatchState = BatchState.WAITING
    maybe_stored: bool = False
    last_error: TidelogError | None = None
    expected: Expectation | None = None
    layout: RowLayout | None = None
    count: int = field(init=False)
    length: int = field(init=False)

    def __post_init__(self) -> None:
        self.count = self.encoded.record_count
        self.length = self.encoded.length

    def encode_again(self, columns: pa.RecordBatch, codec: Codec, layout: RowLayout | None) -> None:
        """Encode the records under another schema; the caller ensures that the old bytes were not stored."""
        header = unpack_header(self.encoded.header, typed=True)
        self.encoded = encode_batch(
            columns,
            now_us=header.base_timestamp_us,
            codec=codec,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            layout=layout,
        )
        self.layout, self.last_error, self.length = layout, None, self.encoded.length

    def renumber(self, *, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        """Change the sequence numbers; the caller ensures that no copy of the old bytes can be stored."""
        header = unpack_header(self.encoded.header, typed=True)._replace(
            producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=base_sequence
        )
        self.encoded = replace(self.encoded, header=header.pack())
        self.base_sequence = base_sequence
        self.maybe_stored = False

    def succeed(self, base_offset: int, timestamp_us: int, drops: DroppedRecords | None = None) -> None:
        """Set the offsets of every chunk; `drops`: the records that the node dropped as duplicates, if any."""
        if drops is not None:
            self._succeed_in_part(base_offset, timestamp_us, drops)
            return
        for chunk in self.chunks:
            chunk.succeed(base_offset, timestamp_us)
            base_offset += chunk.count

    def _succeed_in_part(self, base_offset: int, timestamp_us: int, drops: DroppedRecords) -> None:
        flags = drops.flags(self.count)
        offsets = np.full(self.count, NOT_KNOWN) if flags is None else offsets_of(base_offset, flags)
        at = 0
        for chunk in self.chunks:
            part = slice(at, at + chunk.count)
            # Without flags the dropped records cannot be attributed to one of several chunks.
            dropped = drops.dropped if len(self.chunks) == 1 else 0
            duplicates = dropped if flags is None else int(np.count_nonzero(flags[part]))
            chunk.succeed_in_part(offsets[part], timestamp_us, duplicates)
            at = part.stop


def join_lists(chunks: Sequence[ListChunk]) -> pa.RecordBatch:
    """Return the records of chunks as columns; all chunks have one schema or none, and timestamps or none."""
    if len(chunks) == 1:
        return chunks[0].to_columns()
    no_value: list[None] = [None]
    no_headers: list[Headers] = [()]
    rows = chunks[0].rows
    return (columns_of if rows is None else rows.columns)(
        list(chain.from_iterable(chunk.values for chunk in chunks)),
        keys=_joined([chunk.keys or no_value * chunk.count for chunk in chunks], any(chunk.keys for chunk in chunks)),
        headers=_joined(
            [chunk.headers or no_headers * chunk.count for chunk in chunks], any(chunk.headers for chunk in chunks)
        ),
        tags=_joined([chunk.tags or no_value * chunk.count for chunk in chunks], any(chunk.tags for chunk in chunks)),
        timestamps_us=_joined([chunk.timestamps_us or [] for chunk in chunks], chunks[0].timestamped),
    )


def _joined(parts: Iterable[Sequence[T]], used: bool) -> list[T] | None:
    return list(chain.from_iterable(parts)) if used else None


def columns_of_chunks(chunks: Sequence[Chunk]) -> list[pa.RecordBatch]:
    """Return the records of chunks of one kind as columns; those of lists are joined."""
    loose = [chunk for chunk in chunks if isinstance(chunk, ListChunk)]
    return [join_lists(loose)] if loose else [chunk.columns for chunk in chunks if isinstance(chunk, ColumnChunk)]


def join_columns(parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Concatenate record batches of equal schema."""
    if len(parts) == 1:
        return parts[0]
    return pa.Table.from_batches(parts).combine_chunks(memory_pool=batch_pool()).to_batches()[0]


def is_same_kind(first: Chunk, schema: pa.Schema | None, chunk: Chunk) -> bool:
    """Return whether a chunk can be in one batch with the first one, whose schema is `schema` if it has columns."""
    if chunk.layout is not first.layout:
        return False
    if isinstance(chunk, ListChunk):
        return isinstance(first, ListChunk) and chunk.timestamped == first.timestamped
    return schema is not None and chunk.columns.schema.equals(schema)
