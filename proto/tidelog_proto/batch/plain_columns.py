"""Decoder of small plain batches without pyarrow.

A batch is *plain* if its body is not compressed and its columns are keys, values, timestamps and tags without nulls.
pyarrow reads such a message in a few microseconds if its code is in the processor's caches, and otherwise, as for
occasional batches, in some 100 µs. Here one `struct` reads all numbers of the message's metadata, and another one the
offsets of each column.

The metadata must equal that of this build except for its numbers. The numbers must satisfy `arrow_layout.py`, and the
offsets must ascend within their data. For all other batches the result is None; `record_batch.py` decodes them with
pyarrow, which also reports errors.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final, NamedTuple

from tidelog_proto.batch.columns import columns_of
from tidelog_proto.batch.compression import encode_body
from tidelog_proto.batch.header import BatchHeader, Buffer, Codec, Flags
from tidelog_proto.batch.ipc_message import PREFIX_BYTES, metadata_bytes, number_places, padded

PLAIN_FLAGS: Final = Flags.TIMESTAMP | Flags.KEY | Flags.VALUE | Flags.TAG
_SLICE_PADDING_BYTES: Final = 64
_OFFSET_BYTES: Final = 4
_TIMESTAMP_BYTES: Final = 8
_VARIABLE: Final = (Flags.KEY, Flags.VALUE, Flags.TAG)
_TIMESTAMPS: Final = -1


_made: Final = tuple.__new__
"""Creates a named tuple; its own constructor is a slower wrapper of this."""


class PlainColumn(NamedTuple):
    """A column of bytes without nulls.

    Attributes:
        offsets: the start of each entry in `data`, and the end of the last one.
        data: all entries, possibly with bytes before and after them.
    """

    offsets: tuple[int, ...]
    data: bytes


class PlainColumns(NamedTuple):
    """The columns of a plain batch; None for an absent column.

    Attributes:
        timestamps_us: one per record, µs since 1970.
    """

    timestamps_us: tuple[int, ...] | None
    key: PlainColumn | None
    value: PlainColumn | None
    tag: PlainColumn | None


class _Shape(NamedTuple):
    """The metadata format of this build for batches with certain columns.

    Attributes:
        layout: parses the head of a message into alternating constant bytes and numbers.
        constants: the constant bytes, by their index in the result of `layout`.
        numbers: the indices of body length, record count, first node and first buffer.
        flags: the columns' flags, in the order of their nodes.
    """

    layout: struct.Struct
    constants: tuple[tuple[int, bytes], ...]
    numbers: tuple[int, int, int, int]
    flags: tuple[int, ...]


def plain_columns(header: BatchHeader, body: Buffer) -> PlainColumns | None:
    """Return the columns of a plain batch; None if the batch is not plain or not valid.

    Args:
        header: of a batch with matching CRCs.
    """
    flags = header.flags
    if flags & ~PLAIN_FLAGS or not flags or header.schema_id:
        return None
    count = header.record_count
    places = _places(flags, count, bytes(body[: _shape(flags).layout.size]), len(body))
    if places is None:
        return None
    timestamps_us: tuple[int, ...] | None = None
    columns: list[PlainColumn | None] = [None, None, None]
    for number, numbers_at, data_at, data_bytes in places:
        if number == _TIMESTAMPS:
            timestamps_us = _numbers("q", count).unpack_from(body, numbers_at)
            continue
        offsets = _numbers("i", count + 1).unpack_from(body, numbers_at)
        if offsets[0] < 0 or offsets[-1] > data_bytes or sorted(offsets) != list(offsets):
            return None
        columns[number] = _made(PlainColumn, (offsets, bytes(body[data_at : data_at + data_bytes])))
    return _made(PlainColumns, (timestamps_us, *columns))


class _Place(NamedTuple):
    """Position of a column in a message.

    Attributes:
        number: `_TIMESTAMPS`, or the index of the column among those of bytes.
        numbers_at: position of the offsets or timestamps.
        data_at, data_bytes: position and size of the entries.
    """

    number: int
    numbers_at: int
    data_at: int = 0
    data_bytes: int = 0


@lru_cache(maxsize=1024)
def _places(flags: int, count: int, head: bytes, body_bytes: int) -> tuple[_Place, ...] | None:
    """Return the positions of a plain batch's columns, which depend only on these arguments; None for other batches.

    Cached, because producers send the same few shapes repeatedly.
    """
    shape = _shape(flags)
    head_bytes = shape.layout.size
    if len(head) < head_bytes:
        return None
    numbers = shape.layout.unpack(head)
    if any(numbers[index] != constant for index, constant in shape.constants):
        return None
    body_length_at, record_count_at, node_at, buffer_at = shape.numbers
    if numbers[body_length_at] != body_bytes - head_bytes or numbers[record_count_at] != count:
        return None
    buffers = _Buffers(numbers, buffer_at, head_bytes)
    places: list[_Place] = []
    for flag in shape.flags:
        if numbers[node_at] != count or numbers[node_at + 1] or buffers.next(0, 0) is None:
            return None  # Not plain: wrong number of entries, nulls, or a validity bitmap.
        node_at += 2
        if flag == Flags.TIMESTAMP:
            needed_bytes = count * _TIMESTAMP_BYTES
            most_bytes = -(-needed_bytes // _SLICE_PADDING_BYTES) * _SLICE_PADDING_BYTES
            stamps = buffers.next(needed_bytes, most_bytes)
            if stamps is None:
                return None
            places.append(_Place(_TIMESTAMPS, stamps[0]))
            continue
        needed_bytes = (count + 1) * _OFFSET_BYTES
        offsets, data = buffers.next(needed_bytes, padded(needed_bytes)), buffers.next(0, body_bytes)
        if offsets is None or data is None:
            return None
        places.append(_Place(_VARIABLE.index(flag), offsets[0], *data))
    return tuple(places) if buffers.end == body_bytes - head_bytes else None


class _Buffers:
    """Iterates over the buffers of a message, which must be contiguous, each at the next multiple of 8.

    Attributes:
        end: end of the last buffer in the Arrow body, padded.
    """

    def __init__(self, numbers: tuple[int, ...], at: int, head_bytes: int) -> None:
        self.end = 0
        self._numbers = numbers
        self._at = at
        self._head_bytes = head_bytes

    def next(self, needed_bytes: int, most_bytes: int) -> tuple[int, int] | None:
        """Return position and size of the next buffer; None if it does not follow the last one or has another size."""
        begin, size_bytes = self._numbers[self._at : self._at + 2]
        self._at += 2
        if begin != self.end or not needed_bytes <= size_bytes <= most_bytes:
            return None
        self.end = padded(begin + size_bytes)
        return self._head_bytes + begin, size_bytes


@lru_cache(maxsize=256)
def _numbers(kind: str, count: int) -> struct.Struct:
    return struct.Struct(f"<{count}{kind}")


@lru_cache(maxsize=32)
def _shape(flags: int) -> _Shape:
    """Return the shape of messages with these columns, taken from a sample message."""
    columns = columns_of(
        [b"v"],
        keys=[b"k"] if flags & Flags.KEY else None,
        timestamps_us=[1] if flags & Flags.TIMESTAMP else None,
        tags=["t"] if flags & Flags.TAG else None,
    )
    if not flags & Flags.VALUE:
        columns = columns.select([name for name in columns.schema.names if name != "value"])
    message, _ = encode_body(columns, Codec.NONE)
    head = bytes(message[: PREFIX_BYTES + metadata_bytes(message)])
    places = number_places(head[PREFIX_BYTES:])
    column_flags = tuple(flag for flag in (Flags.TIMESTAMP, *_VARIABLE) if flags & flag)
    buffers = sum(2 if flag == Flags.TIMESTAMP else 3 for flag in column_flags)
    counts = (1, 1, 2 * len(column_flags), 2 * buffers)
    groups = sorted(
        (PREFIX_BYTES + at, count, number) for number, (at, count) in enumerate(zip(places, counts, strict=True))
    )
    text, constants, numbers = "<", list[tuple[int, bytes]](), [0] * len(groups)
    at = index = 0
    for begin, count, number in groups:
        text += f"{begin - at}s{count}q"
        constants.append((index, head[at:begin]))
        numbers[number] = index + 1
        index += 1 + count
        at = begin + 8 * count
    text += f"{len(head) - at}s"
    constants.append((index, head[at:]))
    return _Shape(struct.Struct(text), tuple(constants), tuple(numbers), column_flags)  # type: ignore[arg-type]
