"""Validation of small uncompressed typed batches without pyarrow, which needs some 60 µs for a message of any size.

The metadata must have the constant bytes of this build, and each number between them must be one that the numbers
before it allow. Then the null counts are compared with the bitmaps, offsets must ascend within their data, texts must
be UTF-8, and dates, timestamps, decimals and keys must be in their ranges. Values under nulls are not excused. All
batches that are not surely valid are left to `typed_verification.py`, which also reports errors.

The conclusions from the metadata are remembered: producers of small batches send the same few shapes repeatedly.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidelog_proto.batch.header import BatchHeader, Codec, Flags
from tidelog_proto.batch.key_bytes import KEY_NUMBER_BYTES, STAMP_US_MAX, STAMP_US_MIN, number_range
from tidelog_proto.batch.message_template import message_template
from tidelog_proto.batch.row_layout import FREE, RECORDS, VARIABLE, ArrayPlan, RowLayout
from tidelog_proto.limits import KIB, TAG_BYTES_MAX
from tidelog_proto.schema.arrow_types import arrow_type
from tidelog_proto.schema.data_types import Kind
from tidelog_proto.schema.fields import Field, fields_below

QUICK_RECORDS_MAX: Final = 1024
"""Records up to which batches are validated here; pyarrow is as fast for more."""
QUICK_BYTES_MAX: Final = 256 * KIB
"""Size of the body up to which batches are validated here."""

_HANDLED_FLAGS: Final = Flags.TIMESTAMP | Flags.KEY | Flags.VALUE | Flags.HEADERS | Flags.TAG
FEW_NUMBERS: Final = 128
"""Numbers up to which Python compares them faster than numpy."""
_DECIMALS_MAX: Final = 256
"""Decimals of a column that are compared one by one."""
_REMEMBERED_BYTES_MAX: Final = 4 * KIB
"""Size of prefix and metadata up to which the conclusions from them are remembered, which takes at most some 10 MB."""
_NUMBER: Final = struct.Struct("<q")
_WRITER_PADDING_BYTES: Final = 64
_OFFSET_BYTES: Final = 4
_BIAS: Final = 1 << 63
_CONTINUES: Final = 0x80
_CONTINUATION_MASK: Final = 0xC0

Int32s = npt.NDArray[np.int32]

_ANY, _DATE, _STAMP, _TIME, _DECIMAL, _BYTES, _TEXT, _KEY_NUMBER, _TAG, _LIST = range(10)
_UTF8: Final = frozenset({_TEXT, _TAG})
_FORMATS: Final = {_DATE: "i", _STAMP: "q", _TIME: "q"}


class _Check(NamedTuple):
    """The check of the values of an array.

    Attributes:
        kind: the check.
        least, most: bounds of a decimal, date or timestamp, or of the number in a key.
        above: index of the array whose nulls excuse nulls in a required one, -1 without such an array.
        required: whether only nulls above excuse a null.
    """

    kind: int
    least: int = 0
    most: int = 0
    above: int = -1
    required: bool = False


class _Shape(NamedTuple):
    """The metadata of this build for certain columns.

    Attributes:
        head_bytes: size of prefix and metadata.
        constants: begin, end and bytes of the parts without numbers.
        body_length_at, record_count_at, nodes_at, buffers_at: positions of the numbers.
        nodes, buffers: parse the numbers of all arrays and of all buffers.
        arrays: the arrays and their checks.
    """

    head_bytes: int
    constants: tuple[tuple[int, int, bytes], ...]
    body_length_at: int
    record_count_at: int
    nodes_at: int
    buffers_at: int
    nodes: struct.Struct
    buffers: struct.Struct
    arrays: tuple[tuple[ArrayPlan, _Check], ...]


class _Bitmap(NamedTuple):
    """A validity bitmap: position in the body, number of values and of nulls, the bitmap above as an index."""

    at: int
    length: int
    nulls: int
    above: int
    required: bool


_Unpack = Callable[[memoryview, int], tuple[Any, ...]]
"""Reads all numbers of a column at a position; in its place, None if there are so many that numpy reads them."""


class _Numbers(NamedTuple):
    """Values of a fixed size with bounds: how they are read, their check, number and position in the body."""

    unpack: _Unpack | None
    kind: int
    length: int
    at: int
    least: int
    most: int


class _Offsets(NamedTuple):
    """Offsets of texts, bytes or lists.

    Attributes:
        unpack: reads the offsets.
        kind: the check of the values.
        length: number of values.
        at: position of the offsets in the body.
        data_at: position of the data, 0 for lists.
        limit: size of the data, or number of the items.
        least, most: bounds of the number in a key.
    """

    unpack: _Unpack | None
    kind: int
    length: int
    at: int
    data_at: int
    limit: int
    least: int
    most: int


class _Places(NamedTuple):
    """The checks of the data of a message."""

    bitmaps: tuple[_Bitmap, ...]
    numbers: tuple[_Numbers, ...]
    offsets: tuple[_Offsets, ...]


def is_surely_valid(header: BatchHeader, layout: RowLayout, body: memoryview) -> bool:
    """Return whether an uncompressed batch is surely valid; False if pyarrow has to decide.

    Args:
        header: of the batch, whose schema and columns are those of the layout; not compressed.
        layout: of the schema.
        body: the body; its CRC matches.
    """
    flags, count, size_bytes = header.flags, header.record_count, len(body)
    if count > QUICK_RECORDS_MAX or size_bytes > QUICK_BYTES_MAX or header.uncompressed_length != size_bytes:
        return False
    shape = _shape(layout, flags)
    if shape is None:
        return False
    remembering = places_in if shape.head_bytes <= _REMEMBERED_BYTES_MAX else places_in.__wrapped__
    places = remembering(layout, flags, count, bytes(body[: shape.head_bytes]), size_bytes)
    if places is None:
        return False
    first_us, last_us = header.base_timestamp_us, header.max_timestamp_us
    if layout.time is not None:
        if not STAMP_US_MIN <= first_us <= last_us <= STAMP_US_MAX:
            return False
    elif not flags & Flags.TIMESTAMP and first_us != last_us:
        return False
    if places.bitmaps and not _are_bitmaps_valid(places.bitmaps, body):
        return False
    for unpack, kind, values, at, least, most in places.numbers:
        if unpack is None:
            many = np.frombuffer(body, _NUMPY[_FORMATS[kind]], values, at)
            low, high = int(many.min()), int(many.max())
        else:
            numbers = unpack(body, at)
            if kind == _DECIMAL:
                numbers = tuple((high << 64) + low for low, high in zip(numbers[::2], numbers[1::2], strict=True))
            low, high = min(numbers), max(numbers)
        if kind == _TIME and (low != first_us or high != last_us):
            return False
        if low < least or high > most:
            return False
    return _are_offsets_valid(places.offsets, body)


def _are_bitmaps_valid(bitmaps: tuple[_Bitmap, ...], body: memoryview) -> bool:
    """Compare null counts with the bitmaps, and nulls of required fields with the nulls above them."""
    found: list[int] = []
    for at, count, nulls, above, required in bitmaps:
        unset = ~int.from_bytes(body[at : at + (count + 7 >> 3)], "little") & (1 << count) - 1
        excused = found[above] if above >= 0 else 0
        if unset.bit_count() != nulls or (required and unset & ~excused):
            return False
        found.append(unset | excused)
    return True


def _are_offsets_valid(all_offsets: tuple[_Offsets, ...], body: memoryview) -> bool:
    texts: list[memoryview] = []
    starts: list[Sequence[int] | Int32s] = []
    for unpack, kind, count, at, data_at, limit, least, most in all_offsets:
        offsets: tuple[int, ...] | Int32s
        if unpack is not None:
            offsets = unpack(body, at)
            first, last = offsets[0], offsets[-1]
            ascend = first <= last if count == 1 else list(offsets) == sorted(offsets)
        else:
            offsets = np.frombuffer(body, "<i4", count + 1, at)
            first, last = int(offsets[0]), int(offsets[-1])
            ascend = bool((offsets[1:] >= offsets[:-1]).all())
        if not ascend or first < 0 or last > limit:
            return False
        if kind in _UTF8:
            texts.append(body[data_at + first : data_at + last])
            starts.append(offsets)
            if kind == _TAG and last - first > TAG_BYTES_MAX and int(np.diff(offsets).max()) > TAG_BYTES_MAX:
                return False
        elif kind == _KEY_NUMBER:
            if not np.array_equal(offsets, np.arange(first, last + 1, KEY_NUMBER_BYTES)):
                return False
            numbers = np.frombuffer(body, ">u8", count, data_at + first)
            if int(numbers.min()) - _BIAS < least or int(numbers.max()) - _BIAS > most:
                return False
    return not texts or b"".join(texts).isascii() or all(map(_is_utf8, texts, starts))


def _is_utf8(text: memoryview, offsets: Sequence[int] | Int32s) -> bool:
    """Return whether the text of a column is UTF-8, and no value begins within a character."""
    try:
        str(text, "utf-8")
    except UnicodeDecodeError:
        return False
    starts = np.array(offsets) - offsets[0]
    begins = np.frombuffer(text, np.uint8)[starts[starts < len(text)]] if len(text) else np.empty(0, np.uint8)
    return not (begins & _CONTINUATION_MASK == _CONTINUES).any()


_NUMPY: Final = {"i": "<i4", "q": "<i8"}


@lru_cache(maxsize=4096)
def number_reader(kind: str, count: int) -> _Unpack | None:
    """Return what reads `count` numbers of a format; None for numbers that numpy reads."""
    return None if count > FEW_NUMBERS else struct.Struct(f"<{count}{kind}").unpack_from


@lru_cache(maxsize=256)
def _unpack_decimals(count: int) -> _Unpack:
    return struct.Struct("<" + count * "Qq").unpack_from


@lru_cache(maxsize=512)
def places_in(layout: RowLayout, flags: int, count: int, head: bytes, body_bytes: int) -> _Places | None:
    """Check the metadata of a message, and return what remains; None if pyarrow has to decide.

    Args:
        head: the first bytes of the body, as many as prefix and metadata of such a message have.
        body_bytes: size of the body.
    """
    shape = _shape(layout, flags)
    if shape is None or len(head) < shape.head_bytes:
        return None
    for begin, end, constant in shape.constants:
        if head[begin:end] != constant:
            return None
    if _NUMBER.unpack_from(head, shape.body_length_at)[0] != body_bytes - shape.head_bytes:
        return None
    if _NUMBER.unpack_from(head, shape.record_count_at)[0] != count:
        return None
    nodes = shape.nodes.unpack_from(head, shape.nodes_at)
    buffers = shape.buffers.unpack_from(head, shape.buffers_at)
    return _laid_out(shape, nodes, buffers, count, body_bytes)


def _laid_out(
    shape: _Shape, nodes: tuple[int, ...], buffers: tuple[int, ...], count: int, body_bytes: int
) -> _Places | None:
    """Check the arrays one after the other; each buffer begins where the one before it ends, padded to 8 bytes."""
    bitmaps, numbers, offsets = list[_Bitmap](), list[_Numbers](), list[_Offsets]()
    bitmap_of: list[int] = []
    end = at = 0
    for index, (array, check) in enumerate(shape.arrays):
        length, nulls = nodes[2 * index], nodes[2 * index + 1]
        if array.parent == FREE:
            if not 0 <= length < 1 << 31:
                return None
        elif length != (count if array.parent == RECORDS else nodes[2 * array.parent]):
            return None
        begin, size = buffers[at], buffers[at + 1]
        at += 2
        if begin != end:
            return None
        above = bitmap_of[check.above] if check.above >= 0 else -1
        if nulls:
            if not array.nullable or not 0 < nulls <= length or not _fits(length + 7 >> 3, size):
                return None
            bitmap_of.append(len(bitmaps))
            bitmaps.append(_Bitmap(shape.head_bytes + end, length, nulls, above, check.required))
            end += size + 7 & -8
        elif size:
            return None
        else:
            bitmap_of.append(above)
        offsets_at = 0
        if array.offsets:
            offsets_at, size = buffers[at], buffers[at + 1]
            at += 2
            needed = (length + 1) * _OFFSET_BYTES
            if offsets_at != end or not ((size == 0 == length) or needed <= size <= needed + 7 & -8):
                return None
            end += size + 7 & -8
        if not array.data_bits:
            if array.offsets and size:
                # The items follow as the next array.
                unpack = number_reader("i", length + 1)
                offsets.append(
                    _Offsets(unpack, _LIST, length, shape.head_bytes + offsets_at, 0, nodes[2 * index + 2], 0, 0)
                )
            continue
        begin, data_bytes = buffers[at], buffers[at + 1]
        at += 2
        if begin != end or data_bytes < 0:
            return None
        end += data_bytes + 7 & -8
        if array.data_bits == VARIABLE:
            if size:
                place = shape.head_bytes + offsets_at, shape.head_bytes + begin, data_bytes, check.least, check.most
                if check.kind == _KEY_NUMBER and nulls:
                    return None
                offsets.append(_Offsets(number_reader("i", length + 1), check.kind, length, *place))
        elif not _fits(-(-length * array.data_bits // 8), data_bytes):
            return None
        elif check.kind != _ANY and length:
            if check.kind != _DECIMAL:
                unpack = number_reader(_FORMATS[check.kind], length)
            elif length > _DECIMALS_MAX:
                return None
            else:
                unpack = _unpack_decimals(length)
            numbers.append(_Numbers(unpack, check.kind, length, shape.head_bytes + begin, check.least, check.most))
    if end != body_bytes - shape.head_bytes:
        return None
    return _Places(tuple(bitmaps), tuple(numbers), tuple(offsets))


def _fits(needed_bytes: int, actual_bytes: int) -> bool:
    """Return whether a buffer has a size that Arrow's writer gives it."""
    return needed_bytes <= actual_bytes <= -(-needed_bytes // _WRITER_PADDING_BYTES) * _WRITER_PADDING_BYTES


@lru_cache(maxsize=1024)
def _shape(layout: RowLayout, flags: int) -> _Shape | None:
    """Return the metadata of batches with these columns; None if such batches are left to pyarrow."""
    if flags & ~_HANDLED_FLAGS or not flags & Flags.VALUE:
        return None
    if layout.tag is not None and layout.tag.required and not flags & Flags.TAG:
        return None
    head, places = message_template(layout.stored_schema(flags), Codec.NONE, typed=True)
    plan = layout.plan(flags)
    counts = (1, 1, 2 * len(plan.arrays), 2 * plan.buffer_count)
    constants: list[tuple[int, int, bytes]] = []
    at = 0
    for begin, count in sorted(zip(places, counts, strict=True)):
        constants.append((at, begin, head[at:begin]))
        at = begin + _NUMBER.size * count
    constants.append((at, len(head), head[at:]))
    nodes, buffers = (struct.Struct(f"<{count}q") for count in counts[2:])
    arrays = tuple(zip(plan.arrays, _checks(layout, plan.arrays), strict=True))
    return _Shape(len(head), tuple(constants), *places, nodes, buffers, arrays)


def _checks(layout: RowLayout, arrays: tuple[ArrayPlan, ...]) -> list[_Check]:
    """Return the check of each array."""
    fields = {field.id: field for field in fields_below(layout.value_fields)}
    value_at = next(at for at, array in enumerate(arrays) if array.name == "value")
    checks: list[_Check] = []
    for array in arrays:
        if array.field_id:
            field = fields[array.field_id]
            above = array.parent if array.parent >= 0 else -1
            checks.append(_Check(*_value_check(field), above, array.required))
        elif array.name == "timestamp":
            # Without a time field, a timestamp may be outside the years 1 to 9999.
            checks.append(_Check(_TIME, -(1 << 63), (1 << 63) - 1))
        elif array.name == "key":
            checks.append(_key_check(layout))
        elif array.name == "tag":
            checks.append(_Check(_TAG, above=value_at, required=layout.tag is not None and layout.tag.required))
        else:
            checks.append(_Check(_TEXT if array.name == "a header's key" else _BYTES))
    return checks


def _key_check(layout: RowLayout) -> _Check:
    kind = layout.key_type
    if kind is None or pa.types.is_binary(kind):
        return _Check(_BYTES)
    if pa.types.is_string(kind):
        return _Check(_TEXT)
    return _Check(_KEY_NUMBER, *(number_range(kind) or (0, -1)))


def _value_check(field: Field) -> tuple[int, int, int]:
    """Return the check of values of a field and their bounds."""
    kind = field.type.kind
    if kind is Kind.DECIMAL128:
        largest: int = 10**field.type.precision - 1
        return _DECIMAL, -largest, largest
    if kind is Kind.STRING:
        return _TEXT, 0, 0
    if kind is Kind.BINARY:
        return _BYTES, 0, 0
    if kind in {Kind.DATE32, Kind.TIMESTAMP, Kind.TIMESTAMP_UTC}:
        least, most = number_range(arrow_type(field)) or (0, -1)
        return _DATE if kind is Kind.DATE32 else _STAMP, least, most
    return _ANY, 0, 0
