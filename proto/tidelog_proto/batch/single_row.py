"""Validation of a typed batch of one record without pyarrow, for records that are sent alone.

pyarrow needs some 60 µs to read and validate such a batch. Here the metadata must have the constant bytes of this
build, and each number between them must be one that the numbers before it allow. Then the offsets and the UTF-8 of
texts are checked, the bits of nulls, and the ranges of dates. Everything that is not surely valid is left to
`typed_verification.py`, which also reports errors.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from tidelog_proto.batch.compression import encode_body
from tidelog_proto.batch.exact_rows import exact_values
from tidelog_proto.batch.header import BatchHeader, Buffer, Codec, Flags
from tidelog_proto.batch.ipc_message import PREFIX_BYTES, TYPED_METADATA_BYTES_MAX, metadata_bytes, number_places
from tidelog_proto.batch.key_bytes import KEY_NUMBER_BYTES, STAMP_US_MAX, STAMP_US_MIN, number_range
from tidelog_proto.batch.row_layout import VARIABLE, RowLayout
from tidelog_proto.limits import TAG_BYTES_MAX
from tidelog_proto.schema.data_types import NESTED

_HANDLED_FLAGS: Final = Flags.TIMESTAMP | Flags.KEY | Flags.VALUE | Flags.TAG
_NUMBER: Final = struct.Struct("<q")
_DAYS: Final = struct.Struct("<i")
_PAIR: Final = struct.Struct("<ii")
_DECIMAL_HALVES: Final = struct.Struct("<Qq")
_WRITER_PADDING_BYTES: Final = 64
_BIAS: Final = 1 << 63

_FIXED, _DATE, _STAMP, _TIME, _DECIMAL, _BYTES, _TEXT, _VALUE, _KEY_NUMBER, _TAG = range(10)


class _Step(NamedTuple):
    """One array.

    Attributes:
        kind: the check of its values.
        size_bytes: size of the item, for a fixed size.
        required: whether a null is left to pyarrow.
        least, most: bounds of a decimal, date or timestamp, or of the number in a key.
    """

    kind: int
    size_bytes: int = 0
    required: bool = False
    least: int = 0
    most: int = 0


class _Shape(NamedTuple):
    """The metadata of this build for one record.

    Attributes:
        head_bytes: size of prefix and metadata.
        constants: begin, end and bytes of the parts without numbers.
        body_length_at, record_count_at, nodes_at, buffers_at: positions of the numbers.
        nodes, buffers: parse the numbers of all arrays and of all buffers.
        steps: the arrays, in their order.
    """

    head_bytes: int
    constants: tuple[tuple[int, int, bytes], ...]
    body_length_at: int
    record_count_at: int
    nodes_at: int
    buffers_at: int
    nodes: struct.Struct
    buffers: struct.Struct
    steps: tuple[_Step, ...]


def is_valid_row(header: BatchHeader, layout: RowLayout, body: Buffer) -> bool:
    """Return whether an uncompressed batch of one record is surely valid; False if pyarrow has to decide.

    Args:
        header: of the batch, whose schema and columns are those of the layout.
        layout: of the schema.
        body: the body; its CRC matches.
    """
    shape = _shape(layout, header.flags)
    if shape is None or header.uncompressed_length != len(body) or len(body) < shape.head_bytes:
        return False
    head = bytes(body[: shape.head_bytes])
    for begin, end, constant in shape.constants:
        if head[begin:end] != constant:
            return False
    data = bytes(body[shape.head_bytes :])
    if _NUMBER.unpack_from(head, shape.body_length_at)[0] != len(data):
        return False
    if _NUMBER.unpack_from(head, shape.record_count_at)[0] != 1:
        return False
    if not header.flags & Flags.TIMESTAMP and header.base_timestamp_us != header.max_timestamp_us:
        return False
    nodes = shape.nodes.unpack_from(head, shape.nodes_at)
    buffers = shape.buffers.unpack_from(head, shape.buffers_at)
    try:
        return _are_valid(header, shape.steps, nodes, buffers, data)
    except (struct.error, IndexError):  # A buffer lies outside the body.
        return False


def _are_valid(
    header: BatchHeader, steps: tuple[_Step, ...], nodes: tuple[int, ...], buffers: tuple[int, ...], data: bytes
) -> bool:
    """Check the arrays one after the other; each buffer begins where the one before it ends, padded to 8 bytes."""
    end = node = buffer = 0
    for kind, size_bytes, required, least, most in steps:
        nulls = nodes[node + 1]
        if nodes[node] != 1 or buffers[buffer] != end:
            return False
        node += 2
        if nulls:
            # A null: one bit, which must be 0.
            if required or nulls != 1 or not 1 <= buffers[buffer + 1] <= _WRITER_PADDING_BYTES or data[end] & 1:
                return False
            end += buffers[buffer + 1] + 7 & -8
        elif buffers[buffer + 1]:
            return False
        buffer += 2
        if kind == _VALUE:
            if nulls:
                return False
            continue
        begin, length = buffers[buffer], buffers[buffer + 1]
        buffer += 2
        if begin != end:
            return False
        if kind <= _DECIMAL:
            if not size_bytes <= length <= _WRITER_PADDING_BYTES:
                return False
            end += length + 7 & -8
            if kind != _FIXED:
                number = _number(kind, data, begin)
                if not least <= number <= most:
                    return False
                if kind == _TIME and not number == header.base_timestamp_us == header.max_timestamp_us:
                    return False
            continue
        if length != 8:
            return False
        low, high = _PAIR.unpack_from(data, begin)
        begin, length = buffers[buffer], buffers[buffer + 1]
        buffer += 2
        end += 8
        if begin != end or not 0 <= low <= high <= length:
            return False
        end += length + 7 & -8
        if end > len(data):
            return False
        if kind != _BYTES and not nulls and not _is_text(kind, data[begin + low : begin + high], least, most):
            return False
    return end == len(data)


def _number(kind: int, data: bytes, at: int) -> int:
    """Return a date, timestamp or decimal as a number."""
    if kind == _DATE:
        return _DAYS.unpack_from(data, at)[0]  # type: ignore[no-any-return]  # `struct` has no types
    if kind == _DECIMAL:
        low, high = _DECIMAL_HALVES.unpack_from(data, at)
        return (high << 64) + low  # type: ignore[no-any-return]  # as above
    return _NUMBER.unpack_from(data, at)[0]  # type: ignore[no-any-return]  # as above


def _is_text(kind: int, data: bytes, least: int, most: int) -> bool:
    """Return whether a text is UTF-8, a tag short enough, and a key of a number in its range."""
    if kind == _KEY_NUMBER:
        return len(data) == KEY_NUMBER_BYTES and least <= int.from_bytes(data, "big") - _BIAS <= most
    if kind == _TAG and len(data) > TAG_BYTES_MAX:
        return False
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


@lru_cache(maxsize=1024)
def _shape(layout: RowLayout, flags: int) -> _Shape | None:
    """Return the metadata of batches with these columns; None if such batches are left to pyarrow."""
    if flags & ~_HANDLED_FLAGS or any(field.type.kind in NESTED for field in layout.value_fields):
        return None
    if layout.tag is not None and layout.tag.required and not flags & Flags.TAG:
        return None
    schema = layout.stored_schema(flags)
    zeros = [exact_values(pa.nulls(1, field.type), np.zeros(1, np.bool_)) for field in schema]
    message, _ = encode_body(pa.RecordBatch.from_arrays(zeros, schema=schema), Codec.NONE, typed=True)
    head = bytes(message[: PREFIX_BYTES + metadata_bytes(message, TYPED_METADATA_BYTES_MAX)])
    places = [PREFIX_BYTES + at for at in number_places(head[PREFIX_BYTES:])]
    plan = layout.plan(flags)
    counts = (1, 1, 2 * len(plan.arrays), 2 * plan.buffer_count)
    constants: list[tuple[int, int, bytes]] = []
    at = 0
    for begin, count in sorted(zip(places, counts, strict=True)):
        constants.append((at, begin, head[at:begin]))
        at = begin + _NUMBER.size * count
    constants.append((at, len(head), head[at:]))
    nodes, buffers = (struct.Struct(f"<{count}q") for count in counts[2:])
    body_length_at, record_count_at, nodes_at, buffers_at = places
    numbers = (body_length_at, record_count_at, nodes_at, buffers_at)
    return _Shape(len(head), tuple(constants), *numbers, nodes, buffers, _steps(layout, flags))


def _steps(layout: RowLayout, flags: int) -> tuple[_Step, ...]:
    steps: list[_Step] = []
    if flags & Flags.TIMESTAMP:
        # Without a time field, a timestamp may be outside the years 1 to 9999; pyarrow's path accepts it then.
        steps.append(_Step(_TIME, 8, True, STAMP_US_MIN, STAMP_US_MAX))
    if flags & Flags.KEY:
        kind = layout.key_type
        required = layout.key is not None and layout.key.required
        if kind is None or pa.types.is_binary(kind):
            steps.append(_Step(_BYTES, required=required))
        elif pa.types.is_string(kind):
            steps.append(_Step(_TEXT, required=required))
        else:
            steps.append(_Step(_KEY_NUMBER, 0, required, *(number_range(kind) or (0, -1))))
    steps.append(_Step(_VALUE))
    for array in layout.plan(Flags.VALUE).arrays[1:]:
        kind = layout.value_type.field(array.top).type
        if array.data_bits == VARIABLE:
            steps.append(_Step(_TEXT if pa.types.is_string(kind) else _BYTES, required=array.required))
        else:
            size_bytes = -(-array.data_bits // 8)
            steps.append(_Step(_kind_of(kind), size_bytes, array.required, *_bounds(kind)))
    if flags & Flags.TAG:
        steps.append(_Step(_TAG, required=layout.tag is not None and layout.tag.required))
    return tuple(steps)


def _kind_of(kind: pa.DataType) -> int:
    """Return the check of values of a fixed size."""
    if pa.types.is_date32(kind):
        return _DATE
    if pa.types.is_timestamp(kind):
        return _STAMP
    return _DECIMAL if pa.types.is_decimal(kind) else _FIXED


def _bounds(kind: pa.DataType) -> tuple[int, int]:
    """Return the smallest and the largest number of a type; (0, 0) for types of which every bit pattern is valid."""
    if pa.types.is_decimal(kind):
        return 1 - 10**kind.precision, 10**kind.precision - 1
    return number_range(kind) or (0, 0)
