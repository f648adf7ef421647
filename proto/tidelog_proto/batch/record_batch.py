"""Encoding and decoding of record batches: Arrow columns to header and body, and back.

`encode_batch` encodes canonical Arrow columns for sending and storing; `RecordBatch` decodes them for readers. Both
work on columns; `Record`s are only created by iteration. Readers trust the node that sent the bytes and check the CRCs
of header and body; nodes check batches of producers completely (`verification.py`).

Rejected: a custom format with a length before each record, which is three times slower to write and five times slower
to read from Python, and has no readers in other languages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.columns import canonical, columns_of, flags_of, stored_schema_of, with_tight_headers
from tidelog_proto.batch.compression import decompressed_message, encode_body
from tidelog_proto.batch.exact_rows import tight_rows
from tidelog_proto.batch.field_selection import selection_in
from tidelog_proto.batch.header import (
    BatchHeader,
    Buffer,
    Codec,
    Flags,
    batch_length,
    crc_checked_body,
    flags_with_codec,
    has_body,
    unpack_header,
)
from tidelog_proto.batch.plain_columns import PlainColumns, plain_columns
from tidelog_proto.batch.record import Record
from tidelog_proto.batch.row_layout import Layouts, RowLayout
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import BATCH_BYTES_MAX, BATCH_RECORDS_MAX, BATCH_UNCOMPRESSED_BYTES_MAX, HEADER_BYTES, KIB

__all__ = ["EncodedBatch", "RecordBatch", "canonical", "columns_of", "encode_batch", "iter_batches"]

_ARANGE: Final[Any] = cast("Any", pa).arange
"""Annotated here, because the type stubs lack the function."""
_NO_COLUMNS: Final = pa.RecordBatch.from_arrays([], schema=pa.schema([]))
_CERTAINLY_SMALL_BYTES: Final = 64 * KIB
"""Size of the different buffers of columns up to which no batch exceeds its limits, even if columns share them."""
_NO_HEADERS: Final[tuple[tuple[str, bytes | None], ...]] = ()


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """An encoded batch as several buffers, so that they can be sent without joining them.

    Attributes:
        header: `HEADER_BYTES` bytes.
        body: the body or its first part; a view that keeps its memory alive.
        record_count: number of records.
        rest: the other parts of the body.
    """

    header: bytes
    body: memoryview
    record_count: int
    rest: tuple[bytes | memoryview, ...] = ()

    @property
    def length(self) -> int:
        """Size of header and body in bytes."""
        length = HEADER_BYTES + len(self.body)
        for buffer in self.rest:
            length += len(buffer)
        return length

    def to_bytes(self) -> bytes:
        """Return header and body as one copy."""
        return b"".join((self.header, self.body, *self.rest))


def encode_batch(
    columns: pa.RecordBatch,
    *,
    now_us: int,
    codec: Codec = Codec.NONE,
    producer_id: int = 0,
    producer_epoch: int = 0,
    base_sequence: int = 0,
    control: bool = False,
    layout: RowLayout | None = None,
) -> EncodedBatch:
    """Encode canonical columns (see `columns_of`, `canonical`) as one record batch, or those of a schema.

    Args:
        columns: 1 to `BATCH_RECORDS_MAX` rows.
        now_us: the timestamp of all records if there is no timestamp column, µs since 1970.
        producer_id: 0 for a producer that is not idempotent.
        base_sequence: sequence number of the first record.
        control: whether the batch is for the broker; readers skip such batches.
        layout: of the schema of typed columns (see `typed_rows.py`); None for canonical ones.

    Raises:
        TypeError: the columns are not canonical, or not those of the schema.
        ValueError: `columns` has no rows.
        ProtocolError: BATCH_TOO_LARGE; send smaller batches.
    """
    flags = flags_of(columns.schema) if layout is None else layout.flags_of(columns.schema)
    count = columns.num_rows
    if count == 0:
        raise ValueError("a record batch must have at least one record")
    # Checked before a copy is allocated. `nbytes` counts the referenced memory, and takes 9 us for ten columns.
    is_large = columns.get_total_buffer_size() > _CERTAINLY_SMALL_BYTES
    if count > BATCH_RECORDS_MAX or (is_large and columns.nbytes > BATCH_UNCOMPRESSED_BYTES_MAX):
        raise _too_large(f"{count} records have {columns.nbytes} bytes in total")
    base_timestamp_us, max_timestamp_us = (
        timestamp_range(columns.column(0)) if flags & Flags.TIMESTAMP else (now_us, now_us)
    )
    if layout is not None and layout.has_lists:
        columns = tight_rows(columns)
    if flags & Flags.HEADERS:
        columns = with_tight_headers(columns)
    body, uncompressed_length = encode_body(columns, codec, typed=layout is not None)
    if len(body) > BATCH_BYTES_MAX - HEADER_BYTES or uncompressed_length > BATCH_UNCOMPRESSED_BYTES_MAX:
        raise _too_large(f"{count} records have a body of {len(body)} bytes, {uncompressed_length} uncompressed")
    header = BatchHeader(
        flags=flags_with_codec(flags | Flags.CONTROL if control else flags, codec),
        body_length=len(body),
        uncompressed_length=uncompressed_length,
        record_count=count,
        body_crc=crc32c(body),
        producer_id=producer_id,
        base_sequence=base_sequence,
        producer_epoch=producer_epoch,
        last_offset_delta=count - 1,
        base_timestamp_us=base_timestamp_us,
        max_timestamp_us=max_timestamp_us,
        schema_id=0 if layout is None else layout.number,
        schema_digest=0 if layout is None else layout.digest,
    )
    return EncodedBatch(header.pack(), body, count)


def iter_batches(buffer: Buffer) -> Iterator[memoryview]:
    """Yield the batches in a buffer of contiguous whole batches without padding.

    Only magic and length of each are checked; `RecordBatch.parse` or `verify_batch` check the rest.

    Raises:
        ProtocolError: CORRUPT_BATCH if the buffer does not consist of whole batches; BATCH_TOO_LARGE as `batch_length`.
    """
    view = memoryview(buffer)
    at = 0
    while at < len(view):
        length = batch_length(view, at)
        yield view[at : at + length]
        at += length


class RecordBatch:
    """A received batch with checked CRCs, decoded on first use; can be sliced by offset.

    Columns of an uncompressed body are decoded without a copy and keep the buffer alive.
    """

    __slots__ = ("_body", "_columns", "_deltas", "_first", "_start", "header", "layout")

    def __init__(
        self,
        header: BatchHeader,
        body: Buffer,
        *,
        first: int = 0,
        start: int | None = None,
        layout: RowLayout | None = None,
    ) -> None:
        self.header = header
        self.layout = layout
        self._body = body
        self._first = first
        self._start = header.base_offset if start is None else start
        self._columns: pa.RecordBatch | None = None
        self._deltas: Any = None

    @classmethod
    def parse(cls, buffer: Buffer, layouts: Layouts | None = None) -> RecordBatch:
        """Parse exactly one batch's bytes, checking the header and the body's CRC.

        Args:
            buffer: the bytes.
            layouts: those of the topic's schemas, by number; None refuses typed batches.

        Raises:
            ProtocolError: as `unpack_header`; CORRUPT_BATCH for a wrong length or body CRC; UNSUPPORTED_BATCH for a
                batch with records but without a value column, unless it is a projection, and for one of a schema that
                is not in `layouts`; CORRUPT_BATCH as `selection_in`.
        """
        header = unpack_header(buffer, is_sent=True, typed=layouts is not None)
        body = crc_checked_body(header, buffer)
        if header.record_count and not header.flags & (Flags.VALUE | Flags.PROJECTED):
            raise ProtocolError(
                pb.UNSUPPORTED_BATCH,
                f"the batch has flags {header.flags:#x}, which lack the value column {Flags.VALUE:#x}; every batch "
                "with records must have it",
            )
        layout = layout_for(header, layouts)
        if layout is None:
            return cls(header, body)
        layout, message = selection_in(header, layout, body)
        return cls(header, message, layout=layout)

    @property
    def base_offset(self) -> int:
        """Start of the batch or slice: the first record's offset, for a derived batch possibly an offset before it."""
        return self._start

    @property
    def end_offset(self) -> int:
        """Start of the next batch: after the last record, or further on for a derived batch."""
        return self.header.end_offset

    @property
    def derived(self) -> bool:
        """Whether a node removed records: offsets may have gaps, and there may be no records."""
        return bool(self.header.flags & Flags.DERIVED)

    @property
    def control(self) -> bool:
        """Whether the batch is for the broker and skipped by readers."""
        return bool(self.header.flags & Flags.CONTROL)

    def __len__(self) -> int:
        return self.header.record_count - self._first

    def slice_from(self, offset: int) -> RecordBatch:
        """Return the batch without records before `offset`, possibly empty. Shares the memory."""
        start = min(max(self._start, offset), self.end_offset)
        if start == self._start:
            return self
        skipped = self.count_below(start)
        sliced = RecordBatch(self.header, self._body, first=self._first + skipped, start=start, layout=self.layout)
        if self._columns is not None:
            sliced._columns = self._columns.slice(skipped)
            sliced._deltas = self._deltas.slice(skipped) if self._deltas is not None else None
        return sliced

    def part(self, first: int, count: int) -> RecordBatch:
        """Return `count` records from index `first` on, at least one, as a batch that ends after the last of them.

        It is decoded, and shares the memory. A part with the last record ends where the batch ends.

        Raises:
            ProtocolError: as `columns`.
        """
        assert 0 <= first < first + count <= len(self), "the records exist"
        columns, offsets = self.columns(), self.offset_list()
        end_offset = self.end_offset if first + count == len(self) else offsets[first + count - 1] + 1
        header = self.header._replace(
            record_count=self._first + first + count, last_offset_delta=end_offset - self.header.base_offset - 1
        )
        start = self._start if first == 0 else offsets[first]
        part = RecordBatch(header, self._body, first=self._first + first, start=start, layout=self.layout)
        part._columns = columns.slice(first, count)
        part._deltas = None if self._deltas is None else self._deltas.slice(first, count)
        return part

    def keeping(self, keep: npt.NDArray[np.bool_]) -> RecordBatch:
        """Return the batch with some of its records, as a derived batch that covers the same offsets.

        It is for readers in this process: it has columns, but no body that could be sent.

        Args:
            keep: for each record, whether it stays.

        Raises:
            ProtocolError: CORRUPT_BATCH if the body does not decode.
        """
        mask = pa.array(keep)
        deltas: Any = pc.subtract(self.offsets(), pa.scalar(self.header.base_offset, pa.int64()))
        columns = self.columns().filter(mask)
        header = self.header._replace(flags=self.header.flags | Flags.DERIVED, record_count=columns.num_rows)
        kept = RecordBatch(header, b"", start=self._start, layout=self.layout)
        kept._columns, kept._deltas = columns, deltas.filter(mask)
        return kept

    def columns(self) -> pa.RecordBatch:
        """Return the columns that the producer sent (see `columns.py`), decoded once.

        In a typed batch the column `value` is a struct (see `row_layout.py`).

        A derived batch always has timestamps, and otherwise the columns that its records use. A batch that a node sent
        without some columns has the others; the methods below treat omitted columns as absent.

        Raises:
            ProtocolError: CORRUPT_BATCH if the body does not decode.
        """
        if self._columns is None:
            columns = decode_columns(self.header, self._body, self.layout).slice(self._first)
            if self.derived and self.header.record_count:
                self._deltas = columns.column(0)
                columns = columns.select(columns.schema.names[1:])
            self._columns = columns
        return self._columns

    def offsets(self) -> pa.Array[Any]:
        """Return each record's offset as int64, ascending; those of a derived batch may have gaps.

        Raises:
            ProtocolError: CORRUPT_BATCH if the body of a derived batch does not decode.
        """
        if not self.derived:
            return cast("pa.Array[Any]", _ARANGE(self._start, self.end_offset))
        self.columns()
        if self._deltas is None:
            return pa.array([], pa.int64())
        offsets: pa.Array[Any] = pc.add(self._deltas.cast(pa.int64()), pa.scalar(self.header.base_offset, pa.int64()))
        return offsets

    def offset_list(self) -> Sequence[int]:
        """Return each record's offset as Python ints: a range, or a list for a derived batch."""
        if not self.derived:
            return range(self._start, self.end_offset)
        return cast("list[int]", self.offsets().to_pylist())

    def count_below(self, offset: int) -> int:
        """Return the number of records before an offset.

        Raises:
            ProtocolError: as `offsets`.
        """
        if not self.derived:
            return min(max(0, offset - self._start), len(self))
        is_below: Any = pc.less(self.offsets(), pa.scalar(offset, pa.int64()))
        return is_below.true_count  # type: ignore[no-any-return]  # the stubs lack the type of comparisons

    def values(self) -> list[bytes | None]:
        """Return each record's value; None for tombstones.

        Raises:
            TypeError: the batch is typed; `typed_rows.rows_of` returns its rows.
        """
        if self.layout is not None:
            raise TypeError(
                f"the batch has schema {self.layout.number}, so its values are rows and no bytes; read them with "
                "tidelog_proto.batch.typed_rows.rows_of"
            )
        return self._list(Flags.VALUE, "value")

    def keys(self) -> list[bytes | None]:
        """Return each record's key; None for no key."""
        return self._list(Flags.KEY, "key")

    def tags(self) -> list[str | None]:
        """Return each record's tag; None for no tag."""
        return self._list(Flags.TAG, "tag")

    def timestamps_us(self) -> list[int]:
        """Return each record's timestamp, µs since 1970."""
        if not self.header.flags & Flags.TIMESTAMP:
            return [self.header.base_timestamp_us] * len(self)
        stamps: Any = self.columns().column("timestamp").view(pa.int64())
        return cast("list[int]", stamps.to_pylist())

    def headers(self) -> list[tuple[tuple[str, bytes | None], ...]]:
        """Return each record's headers; empty for a record without headers."""
        if not self.header.flags & Flags.HEADERS:
            return [_NO_HEADERS] * len(self)
        lists: Any = self.columns().column("headers")
        pairs = lists.flatten()
        flat = tuple(zip(pairs.field("key").to_pylist(), pairs.field("value").to_pylist(), strict=True))
        result: list[tuple[tuple[str, bytes | None], ...]] = []
        at = 0
        for count in pc.list_value_length(lists).to_pylist():
            result.append(flat[at : at + count])
            at += count
        return result

    def __iter__(self) -> Iterator[Record]:
        columns = (self.offset_list(), self.timestamps_us(), self.keys(), self.values(), self.headers(), self.tags())
        return map(Record._make, zip(*columns, strict=True))

    def _list(self, flag: int, name: str) -> list[Any]:
        if not self.header.flags & flag:
            return [None] * len(self)
        return self.columns().column(name).to_pylist()


def plain_columns_of(batch: RecordBatch) -> PlainColumns | None:
    """Return the columns of a batch read without pyarrow; None for slices and batches that are not plain."""
    return None if batch._first else plain_columns(batch.header, batch._body)  # noqa: SLF001 - of this module


def layout_for(header: BatchHeader, layouts: Layouts | None) -> RowLayout | None:
    """Return the layout of the schema that a header names, None for canonical columns.

    Args:
        header: a parsed header.
        layouts: those of the topic's schemas, by number; None refuses typed batches.

    Raises:
        ProtocolError: UNSUPPORTED_BATCH if the schema is not in `layouts`; CORRUPT_BATCH if its digest differs, or the
            batch lacks a column of a required field.
    """
    if not header.typed:
        return None
    layout = None if layouts is None else layouts.get(header.schema_id)
    if layout is None:
        raise ProtocolError(
            pb.UNSUPPORTED_BATCH,
            f"the batch has schema {header.schema_id}, which is not known here: reload the schemas of the topic",
        )
    layout.check_header(header)
    return layout


def decode_columns(header: BatchHeader, body: Buffer, layout: RowLayout | None = None) -> pa.RecordBatch:
    """Decode a body into the columns that its header names; those of a derived batch begin with offset deltas.

    Args:
        header: of the batch.
        body: the body.
        layout: of the schema that the header names; None for canonical columns.

    Raises:
        ProtocolError: CORRUPT_BATCH if it does not decode.
    """
    if not header.record_count:
        return columns_of([])
    if not has_body(header):
        return _NO_COLUMNS
    return read_columns(header, decompressed_message(body, header.codec, header.uncompressed_length), layout)


def read_columns(header: BatchHeader, message: Buffer, layout: RowLayout | None = None) -> pa.RecordBatch:
    """Read an Arrow message (a decompressed body) into the columns that its header names.

    Raises:
        ProtocolError: CORRUPT_BATCH if pyarrow refuses it or its row count differs from the header's.
    """
    if header.schema_id and layout is None:
        raise ProtocolError(
            pb.UNSUPPORTED_BATCH, f"the batch has schema {header.schema_id}; it can only be read with this schema"
        )
    schema = stored_schema_of(header.flags) if layout is None else layout.stored_schema(header.flags)
    try:
        columns = pa.ipc.read_record_batch(pa.py_buffer(message), schema)
    except (pa.ArrowException, OSError, EOFError) as error:
        raise ProtocolError(pb.CORRUPT_BATCH, f"the body does not decode: {error}") from error
    if columns.num_rows != header.record_count:
        raise ProtocolError(
            pb.CORRUPT_BATCH,
            f"the body has {columns.num_rows} rows, but the header declares {header.record_count} records",
        )
    return columns


def timestamp_range(timestamps: pa.Array[Any]) -> tuple[int, int]:
    """Return the minimum and maximum of a timestamp column with records and without nulls, µs since 1970."""
    # Arrow's function takes three times as long for a few numbers.
    data: Any = timestamps.buffers()[1]
    numbers = np.frombuffer(data, np.int64, len(timestamps), timestamps.offset * 8)
    return int(numbers.min()), int(numbers.max())


def _too_large(what: str) -> ProtocolError:
    return ProtocolError(
        pb.BATCH_TOO_LARGE,
        f"{what}; the limits of a batch are {BATCH_RECORDS_MAX} records, {BATCH_BYTES_MAX} bytes encoded and "
        f"{BATCH_UNCOMPRESSED_BYTES_MAX} bytes uncompressed: send smaller batches",
    )
