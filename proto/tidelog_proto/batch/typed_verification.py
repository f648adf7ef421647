"""Complete validation of a batch of a typed topic, before a node stores it.

The checks are those of `verification.py`, with the arrays and buffers of the schema that the header names, and then the
rules of values that Arrow does not have: only tombstones have nulls in required fields, dates and times are in the
years 1 to 9999, keys have the form of their type. Arrow's full validation includes every offset of text and lists,
UTF-8, and the precision of decimals, at all levels.

A topic is typed or not: a typed topic has batches without a schema only for the broker itself (control batches) and,
among derived ones, without records.

`verify_typed` refuses derived batches, which producers never send; `verify_typed_stored` accepts what nodes store.

A small batch that is not compressed is not read by pyarrow if it is surely valid without (`quick_rows.py`).
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.compression import decompressed_message
from tidelog_proto.batch.header import BatchHeader, Buffer, Codec, Flags, crc_checked_body, unpack_header
from tidelog_proto.batch.ipc_message import parse_message
from tidelog_proto.batch.key_bytes import STAMP_US_MAX, STAMP_US_MIN, is_ascii, key_values
from tidelog_proto.batch.live_values import fault_of
from tidelog_proto.batch.quick_rows import is_surely_valid
from tidelog_proto.batch.record_batch import layout_for, read_columns
from tidelog_proto.batch.row_layout import Layouts, RowLayout, check_arrays
from tidelog_proto.batch.verification import (
    check_deltas,
    check_storable,
    check_tags,
    check_timestamps,
    checked_lengths,
    validate_columns,
    verify_batch,
    verify_stored,
)
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import TAG_BYTES_MAX

FIELD_BY_FIELD_RECORDS: Final = 1024
"""Records from which on a call for each field costs less than the UTF-8 of each text."""


def verify_typed(view: Buffer, layouts: Layouts) -> BatchHeader:
    """Validate exactly one batch's bytes, which a producer of a typed topic has sent; return its header.

    Args:
        view: the bytes.
        layouts: those of the schemas that producers may use, by number.

    Raises:
        ProtocolError: as `verify_batch`; UNSUPPORTED_BATCH if the schema is not in `layouts`, or the batch has none.
    """
    header = unpack_header(view, typed=True)
    if header.flags & Flags.DERIVED:
        raise ProtocolError(
            pb.UNSUPPORTED_BATCH, f"the batch is derived (flags {header.flags:#x}); only nodes may send such a batch"
        )
    if header.typed:
        return _verified(header, view, layouts)
    _check_untyped(header)
    return verify_batch(view)


def verify_typed_stored(view: Buffer, layouts: Layouts) -> BatchHeader:
    """Validate exactly one batch's bytes as another node stores them for a typed topic; return its header.

    Args:
        view: the bytes.
        layouts: those of the topic's schemas, by number.

    Raises:
        ProtocolError: as `verify_typed`; a derived batch must satisfy the rules of `verify_stored`.
    """
    header = unpack_header(view, typed=True)
    if header.typed:
        return _verified(header, view, layouts)
    _check_untyped(header)
    return verify_stored(view)


def _check_untyped(header: BatchHeader) -> None:
    if not header.flags & Flags.CONTROL and header.record_count:
        raise ProtocolError(
            pb.UNSUPPORTED_BATCH, "the topic is typed, but the batch has no schema; send rows of the topic's schema"
        )


def _verified(header: BatchHeader, view: Buffer, layouts: Layouts) -> BatchHeader:
    body = crc_checked_body(header, view)
    check_storable(header)
    layout = layout_for(header, layouts)
    assert layout is not None, "the header has a schema"
    codec = header.codec
    if codec is Codec.NONE and is_surely_valid(header, layout, body):
        return header
    message = decompressed_message(body, codec, header.uncompressed_length) if codec else body
    description = parse_message(message, typed=True)
    lengths = checked_lengths(header, codec, message, description)
    suspects = check_arrays(layout.plan(header.flags), description, lengths, header.record_count)
    columns = read_columns(header, message, layout)
    if header.record_count < FIELD_BY_FIELD_RECORDS:
        validate_columns(columns)
    else:
        _validate_fields(columns)
    check_timestamps(header, columns)
    if header.flags & Flags.DERIVED:
        check_deltas(header, columns.column(0))
    value: Any = columns.column("value")
    if (layout.dated_any or suspects) and (fault := fault_of(layout, value, suspects)):
        raise _corrupt(fault)
    first_us, last_us = header.base_timestamp_us, header.max_timestamp_us
    if layout.time is not None and not STAMP_US_MIN <= first_us <= last_us <= STAMP_US_MAX:
        raise _corrupt(
            f"field {layout.time.name!r}: {first_us} to {last_us} µs since 1970 are outside the years 1 to 9999"
        )
    if layout.key_type is not None and header.flags & Flags.KEY:
        key_values(columns.column("key"), layout.key_type)
    if header.flags & Flags.TAG and lengths[-1] > TAG_BYTES_MAX:
        check_tags(columns.column("tag"))
    _check_required_tag(header, layout, columns)
    return header


def _validate_fields(columns: pa.RecordBatch) -> None:
    """Let Arrow validate columns in full, as `validate_columns`; the UTF-8 of ASCII text is not looked for again.

    Raises:
        ProtocolError: CORRUPT_BATCH.
    """
    value: Any = columns.column("value")
    others = [columns.column(name) for name in columns.schema.names if name != "value"]
    # The null count of the struct itself, and then what is in it.
    bare = pa.Array.from_buffers(pa.struct([]), len(value), value.buffers()[:1], value.null_count)
    fields = [value.field(at) for at in range(value.type.num_fields)]
    arrays: list[Any] = [bare, *others, *fields]
    try:
        for array in arrays:
            is_text = pa.types.is_string(array.type) and is_ascii(array)
            (array.view(pa.binary()) if is_text else array).validate(full=True)
    except pa.ArrowException as error:
        raise _corrupt(f"the columns are not valid: {error}") from error


def _check_required_tag(header: BatchHeader, layout: RowLayout, columns: pa.RecordBatch) -> None:
    """Refuse rows without the required tag; tombstones need none."""
    if layout.tag is None or not layout.tag.required:
        return
    value: Any = columns.column("value")
    if header.flags & Flags.TAG:
        tags: Any = columns.column("tag")
        missing = tags.filter(value.is_valid()).null_count if tags.null_count else 0
    else:
        missing = len(value) - value.null_count
    if missing:
        raise _corrupt(f"field {layout.tag.name!r}: {missing} of {len(value)} rows have no value; it is required")


def _corrupt(message: str) -> ProtocolError:
    return ProtocolError(pb.CORRUPT_BATCH, message)
