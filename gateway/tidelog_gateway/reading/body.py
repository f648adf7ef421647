"""The body of an answer, written from what was fetched a piece at a time: bounded, counted, and only for who is there.

What is decoded and what is written is counted in the budget for outgoing data before it is made, but for one piece,
whose size is known only afterwards. Pieces take turns with those of other callers. The work ends when its client has
gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from tidelog.model import Fetched
from tidelog_gateway.budget.response_reservation import ResponseReservation
from tidelog_gateway.pace import Pace
from tidelog_gateway.problems import Problem
from tidelog_gateway.reading.forms import Form
from tidelog_gateway.reading.text_columns import PIECE_BYTES
from tidelog_gateway.reading.values import WHAT, ValueEncoding, first_fault
from tidelog_gateway.records_out import payload_sizes
from tidelog_proto.batch.header import Codec
from tidelog_proto.batch.record_batch import RecordBatch
from tidelog_proto.batch.record_schema import columns_at
from tidelog_proto.limits import MIB

DECODED_APART_BYTES: Final = 1 * MIB
"""Larger compressed batches are decoded in a thread, which Arrow does without the interpreter's lock."""


class Fault(NamedTuple):
    """The record at which an answer ends, because its value does not fit the encoding that was asked for."""

    partition: int
    offset: int
    encoding: ValueEncoding

    def problem(self, extra: Mapping[str, Any] | None = None) -> Problem:
        """Return the error for an answer that would begin with this record."""
        detail = (
            f"partition {self.partition}, offset {self.offset}: the value is {WHAT[self.encoding]}, as "
            f"value_encoding={self.encoding} demands; read it with value_encoding=base64, or continue at offset "
            f"{self.offset + 1}"
        )
        members = {"partition": self.partition, "offset": self.offset, **(extra or {})}
        return Problem(422, f"value_not_{self.encoding}", detail, extra=members)


class RecordsBody:
    """The body of one answer.

    Args:
        form: of the body.
        encoding: of values; None: as each needs it.
        answer: counts what is held.
        pace: waits for the turn of the next piece of work.
        records_max: how many records there may be.
        bytes_max: how many bytes of payload; the first record may have more.
        written_max: about how many bytes are written; the first record may take more.

    Attributes:
        records: that were taken.
        fault: why no more can be taken after those.
        pace: waits for the turn of the next piece of work.
    """

    def __init__(
        self,
        form: Form,
        encoding: ValueEncoding | None,
        answer: ResponseReservation,
        pace: Pace,
        *,
        records_max: int,
        bytes_max: int,
        written_max: int,
    ) -> None:
        self.records = 0
        self.fault: Fault | None = None
        self.records_left = records_max
        self.bytes_left = bytes_max
        self._form = form
        self._encoding: ValueEncoding | None = encoding
        self._answer = answer
        self.pace = pace
        self._written_max = written_max
        self._parts = [form.begin()]
        self._written_bytes = len(self._parts[0])

    @property
    def is_full(self) -> bool:
        """Whether nothing more is taken."""
        is_used_up = self.records_left <= 0 or self.bytes_left <= 0 or self._written_bytes >= self._written_max
        return self.fault is not None or (self.records > 0 and is_used_up)

    async def reserve(self, more_bytes: int) -> None:
        """Have room for `more_bytes` beside what was written.

        Raises:
            Problem: 503, there was none for too long.
        """
        await self._answer.reserve(self._written_bytes + more_bytes)

    async def take(self, partition: int, fetched: Fetched) -> int:
        """Write records until the limits are reached, and return the offset of the next one.

        Raises:
            Problem: 499, 503.
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
        """Return the whole body; `members` say where to go on.

        Raises:
            Problem: 503.
        """
        await self.reserve(self._written_bytes)  # parts and whole exist at once
        return b"".join([*self._parts, self._form.end(members)])

    async def _take_batch(self, partition: int, batch: RecordBatch, held_bytes: int) -> int:
        if batch.header.codec != Codec.NONE and batch.header.uncompressed_length > DECODED_APART_BYTES:
            await asyncio.to_thread(batch.columns)
        columns = columns_at(batch, partition)
        if not columns.num_rows:
            return batch.end_offset
        ends = np.cumsum(payload_sizes(columns).to_numpy(zero_copy_only=False))
        fitting = int(np.searchsorted(ends, self.bytes_left, side="right"))
        count = min(columns.num_rows, self.records_left, max(fitting, 0 if self.records else 1))
        for first, end in self._pieces(ends, count):
            await self.pace()
            written = await self._write(columns.slice(first, end - first))
            self.records += written
            self.records_left -= written
            self.bytes_left -= int(ends[first + written - 1]) - int(ends[first - 1] if first else 0) if written else 0
            if written < end - first:
                offset: int = columns.column("offset")[first + written].as_py()
                assert self._encoding is not None
                self.fault = Fault(partition, offset, self._encoding)
                return offset
            await self.reserve(held_bytes)
            if self._written_bytes >= self._written_max:
                count = end
                break
        if count < columns.num_rows:
            self.bytes_left = 0  # what comes next does not fit
            return int(columns.column("offset")[count].as_py())
        return batch.end_offset

    def _pieces(self, ends: Any, count: int) -> Iterator[tuple[int, int]]:
        """Cut the first `count` rows into pieces as the form wants them; a larger row is alone."""
        first = 0
        while first < count:
            before = int(ends[first - 1]) if first else 0
            end = int(np.searchsorted(ends[:count], before + self._form.piece_bytes, side="right"))
            end = min(count, max(end, first + 1), first + self._form.piece_records)
            yield first, end
            first = end

    async def _write(self, columns: pa.RecordBatch) -> int:
        """Write rows up to the first fault, and return how many there were."""
        fault = await first_fault(columns.column("value"), self._encoding, self.pace)
        if fault is not None:
            columns = columns.slice(0, fault)
        if columns.num_rows:
            is_large = columns.num_rows == 1 and columns.nbytes > PIECE_BYTES
            # Arrow makes the text of one large record in a thread, without the interpreter's lock.
            part = await asyncio.to_thread(self._form.rows, columns) if is_large else self._form.rows(columns)
            self._parts.append(part)
            self._written_bytes += len(part)
        return columns.num_rows
