"""Response body with records, encoded slice by slice from fetched batches.

Decoded and encoded bytes are counted in the response budget before they are produced, except those of one slice, whose
size is known only afterwards. Slices take turns with the work of other callers. Encoding stops when the client has
disconnected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from tidelog.model import Fetched
from tidelog_gateway.budget.response_reservation import ResponseReservation
from tidelog_gateway.callers.turns import Pace
from tidelog_gateway.problems import Problem
from tidelog_gateway.reading.formats import RecordFormat, RowsFormat
from tidelog_gateway.reading.row_selection import RowSelection, later_schema
from tidelog_gateway.reading.text_columns import SLICE_BYTES
from tidelog_gateway.reading.values import FAULT_TEXTS, ValueEncoding, first_fault
from tidelog_gateway.records.json_encoding import payload_sizes
from tidelog_gateway.records.row_batches import parts_of, record_columns, rendered
from tidelog_proto.batch.header import Codec
from tidelog_proto.batch.record_batch import RecordBatch
from tidelog_proto.batch.record_schema import columns_at
from tidelog_proto.batch.row_reader import RowReader
from tidelog_proto.limits import MIB

DECODED_APART_BYTES: Final = 1 * MIB
"""Size from which compressed batches are decoded in a thread, because Arrow releases the GIL while it decodes."""


class Fault(NamedTuple):
    """The record at which a response ends, because its value does not fit the requested encoding."""

    partition: int
    offset: int
    encoding: ValueEncoding

    def problem(self, extra: Mapping[str, Any] | None = None) -> Problem:
        """Return the error for a response whose first record is this one."""
        detail = (
            f"partition {self.partition}, offset {self.offset}: the value is {FAULT_TEXTS[self.encoding]}, but "
            f"value_encoding={self.encoding} was requested; read it with value_encoding=base64, or continue at offset "
            f"{self.offset + 1}"
        )
        members = {"partition": self.partition, "offset": self.offset, **(extra or {})}
        return Problem(422, f"value_not_{self.encoding}", detail, extra=members)


class RecordsBody:
    """Encodes fetched records as the body of one response, within its limits.

    Args:
        encoding: encoding of all values; None: chosen for each value.
        answer: counts held bytes in the budget.
        pace: waits for the turn of the next slice.
        records_max: maximum number of records.
        bytes_max: limit of the payload; the first record may exceed it.
        rows: of a typed topic, whose values are JSON objects; None: the topic is not typed.
        written_max: approximate limit of the encoded bytes; the first record may exceed it.

    Attributes:
        records: number of encoded records.
        records_left, bytes_left: records and bytes of payload that the limits still allow.
        fault: the record that ended the body; None if no value was refused.
        pace: waits for the turn of the next slice.
    """

    def __init__(
        self,
        record_format: RecordFormat,
        encoding: ValueEncoding | None,
        answer: ResponseReservation,
        pace: Pace,
        *,
        records_max: int,
        bytes_max: int,
        written_max: int,
        rows: RowSelection | None = None,
    ) -> None:
        self.records = 0
        self.fault: Fault | None = None
        self.records_left = records_max
        self.bytes_left = bytes_max
        self._format = record_format
        self._encoding: ValueEncoding | None = encoding
        self._answer = answer
        self._rows = rows
        self.pace = pace
        self._written_max = written_max
        self._parts = [record_format.begin()]
        self._written_bytes = len(self._parts[0])

    @property
    def is_full(self) -> bool:
        """Whether the body accepts no more records."""
        is_used_up = self.records_left <= 0 or self.bytes_left <= 0 or self._written_bytes >= self._written_max
        return self.fault is not None or (self.records > 0 and is_used_up)

    async def reserve(self, more_bytes: int) -> None:
        """Reserve `more_bytes` in addition to the encoded bytes.

        Raises:
            Problem: 503, the budget was exhausted for too long.
        """
        await self._answer.reserve(self._written_bytes + more_bytes)

    async def take(self, partition: int, fetched: Fetched) -> int:
        """Encode records until a limit is reached, and return the offset of the next record.

        Raises:
            Problem: 499, the client has disconnected; 503, the budget was exhausted for too long, or the gateway stops.
            ProtocolError: a batch does not decode.
        """
        native_bytes = sum(batch.header.length for batch in fetched.batches)
        for batch in fetched.batches:
            if self.is_full:
                return batch.base_offset
            is_packed = batch.header.codec != Codec.NONE
            decoded_bytes = batch.header.uncompressed_length if is_packed else 0
            await self.reserve(native_bytes + decoded_bytes)
            next_offset = await self._take_batch(partition, batch, native_bytes + decoded_bytes)
            if next_offset < batch.end_offset:
                return next_offset
        return fetched.next_offset

    async def finish(self, members: Mapping[str, Any]) -> bytes:
        """Return the whole body; `members` has the position of the next read.

        Raises:
            Problem: 503, the budget was exhausted for too long.
        """
        # Twice the size, because the parts and the joined body exist at the same time.
        await self.reserve(self._written_bytes)
        return b"".join([*self._parts, self._format.end(members)])

    async def _take_batch(self, partition: int, batch: RecordBatch, held_bytes: int) -> int:
        if batch.header.codec != Codec.NONE and batch.header.uncompressed_length > DECODED_APART_BYTES:
            await asyncio.to_thread(batch.columns)
        if batch.layout is not None:
            return await self._take_rows(partition, batch, held_bytes)
        return await self._take_columns(columns_at(batch, partition), batch.end_offset, held_bytes)

    async def _take_rows(self, partition: int, batch: RecordBatch, held_bytes: int) -> int:
        """Encode the rows of a typed batch in parts; see `take`.

        Raises:
            Problem: 503, the first batch has a later schema than the response.
        """
        assert self._rows is not None, "the topic is known to be typed"
        reader = self._rows.reader(batch)
        if reader is None:
            if not self.records:
                raise later_schema()
            self.bytes_left = 0
            return batch.base_offset
        if isinstance(self._format, RowsFormat):
            parts = parts_of(batch, records_max=self.records_left, bytes_max=self._format.slice_bytes)
        else:
            parts = parts_of(batch)
        for part in parts:
            if self.is_full:
                return part.base_offset
            if isinstance(self._format, RowsFormat):
                next_offset = await self._take_table(self._format, part, reader, partition, held_bytes)
            else:
                await self.pace()
                columns = record_columns(part, await rendered(part, reader), partition)
                next_offset = await self._take_columns(columns, part.end_offset, held_bytes)
            if next_offset < part.end_offset:
                return next_offset
        return batch.end_offset

    async def _take_table(
        self, rows_format: RowsFormat, part: RecordBatch, reader: RowReader, partition: int, held_bytes: int
    ) -> int:
        """Encode the rows of a part as Arrow columns, without tombstones."""
        await self.pace()
        count = min(len(part), self.records_left)
        if count < len(part):
            part = part.part(0, count)
        table = reader.record_table(part, partition)
        if table.num_rows:
            written = rows_format.rows(table)
            self._parts.append(written)
            self._written_bytes += len(written)
        self.records += count
        self.records_left -= count
        self.bytes_left -= table.nbytes
        await self.reserve(held_bytes)
        return part.end_offset

    async def _take_columns(self, columns: pa.RecordBatch, end_offset: int, held_bytes: int) -> int:
        """Encode records with the columns of `RECORDS_SCHEMA`; return the next offset, `end_offset` after the last."""
        if not columns.num_rows:
            return end_offset
        ends = np.cumsum(payload_sizes(columns).to_numpy(zero_copy_only=False))
        fitting = int(np.searchsorted(ends, self.bytes_left, side="right"))
        count = min(columns.num_rows, self.records_left, max(fitting, 0 if self.records else 1))
        for first, end in self._slices(ends, count):
            await self.pace()
            written = await self._write(columns.slice(first, end - first))
            self.records += written
            self.records_left -= written
            self.bytes_left -= int(ends[first + written - 1]) - int(ends[first - 1] if first else 0) if written else 0
            if written < end - first:
                offset: int = columns.column("offset")[first + written].as_py()
                assert self._encoding is not None
                self.fault = Fault(columns.column("partition")[0].as_py(), offset, self._encoding)
                return offset
            await self.reserve(held_bytes)
            if self._written_bytes >= self._written_max:
                count = end
                break
        if count < columns.num_rows:
            self.bytes_left = 0  # the limits allow no further record
            return int(columns.column("offset")[count].as_py())
        return end_offset

    def _slices(self, ends: Any, count: int) -> Iterator[tuple[int, int]]:
        """Yield the bounds of slices of the first `count` rows; a row larger than a slice is a slice of its own."""
        first = 0
        while first < count:
            before = int(ends[first - 1]) if first else 0
            end = int(np.searchsorted(ends[:count], before + self._format.slice_bytes, side="right"))
            end = min(count, max(end, first + 1), first + self._format.slice_records)
            yield first, end
            first = end

    async def _write(self, columns: pa.RecordBatch) -> int:
        """Encode rows up to the first fault, and return their number."""
        encoding = self._encoding if self._rows is None else None  # JSON objects fit every encoding
        fault = await first_fault(columns.column("value"), encoding, self.pace)
        if fault is not None:
            columns = columns.slice(0, fault)
        if columns.num_rows:
            is_large = columns.num_rows == 1 and columns.nbytes > SLICE_BYTES
            # Arrow releases the GIL, so one large record is encoded in a thread.
            part = await asyncio.to_thread(self._format.rows, columns) if is_large else self._format.rows(columns)
            self._parts.append(part)
            self._written_bytes += len(part)
        return columns.num_rows
