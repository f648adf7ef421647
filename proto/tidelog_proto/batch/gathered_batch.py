"""Zero-copy encoding of large value columns: a batch as several buffers that reference the user's memory.

Arrow's serialization copies everything once, and joining the columns of several sends copies it again; together that is
a quarter of a producer's work per batch. A message of plain values consists of a description, offsets and the values.
So the description is filled in from a template (as in `single_record.py`), the offsets of the parts are made
continuous, and the values stay in the user's memory until they are written to the socket. The bytes are those that
`encode_batch` produces for the joined parts.

Rejected: the same for all columns. Keys, headers and tags have validity bitmaps, which would have to be shifted bit by
bit.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c

from tidelog_proto.batch.columns import VALUE_SCHEMA
from tidelog_proto.batch.header import BatchHeader, Flags
from tidelog_proto.batch.ipc_message import PREFIX_BYTES, NumberPlaces, metadata_bytes, number_places, padded
from tidelog_proto.batch.record_batch import EncodedBatch, columns_of, encode_batch
from tidelog_proto.limits import BATCH_BYTES_MAX, BATCH_RECORDS_MAX, KIB

PART_BYTES_MIN: Final = 64 * KIB
"""Average size of a part below which copying the parts into one buffer is faster."""

_OFFSET_BYTES: Final = 4
_HEAD_ROOM_BYTES: Final = 4 * KIB
"""Upper bound of header, description and padding."""
_INT32: Final = pa.int32()
_OFFSET: Final = struct.Struct("<i")
_NUMBER: Final = struct.Struct("<q")
_NODE: Final = struct.Struct("<2q")
_BUFFERS: Final = struct.Struct("<6q")
_PADDING: Final = [bytes(length) for length in range(8)]

View = bytes | memoryview


class _Template(NamedTuple):
    head: bytes
    places: NumberPlaces


def encode_gathered(
    parts: Sequence[pa.RecordBatch],
    *,
    now_us: int,
    producer_id: int = 0,
    producer_epoch: int = 0,
    base_sequence: int = 0,
) -> EncodedBatch | None:
    """Encode consecutive canonical columns as one batch; see `encode_batch` for the other arguments.

    The batch references the columns' memory, which must not change before the batch is acknowledged.

    Returns:
        None if this encoding does not apply: for columns other than values, those of a schema among them, which have
        bitmaps; for nulls, empty or small parts, or too large batches. Use `encode_batch` on the joined parts then,
        which also raises the right error.
    """
    count = sum(part.num_rows for part in parts)
    if not 1 <= count <= BATCH_RECORDS_MAX:
        return None
    offsets: list[View] = []
    data: list[View] = []
    size_bytes = 0
    for part in parts:
        values = part.column(0)
        if not part.schema.equals(VALUE_SCHEMA) or values.null_count or not len(values):
            return None
        own, view = _part_of(values, size_bytes)
        # Without its first offset, which equals the last one of the previous part.
        offsets.append(own[_OFFSET_BYTES:] if offsets else own)
        data.append(view)
        size_bytes += len(view)
        if size_bytes > BATCH_BYTES_MAX:
            return None
    offsets_bytes = (count + 1) * _OFFSET_BYTES
    body_length = padded(offsets_bytes) + padded(size_bytes)
    if size_bytes < len(parts) * PART_BYTES_MIN or body_length > BATCH_BYTES_MAX - _HEAD_ROOM_BYTES:
        return None
    template = _template()
    places = template.places
    head = bytearray(template.head)
    _NUMBER.pack_into(head, PREFIX_BYTES + places.body_length_at, body_length)
    _NUMBER.pack_into(head, PREFIX_BYTES + places.record_count_at, count)
    _NODE.pack_into(head, PREFIX_BYTES + places.nodes_at, count, 0)
    buffers = (0, 0, 0, offsets_bytes, padded(offsets_bytes), size_bytes)
    _BUFFERS.pack_into(head, PREFIX_BYTES + places.buffers_at, *buffers)
    body = b"".join((head, *offsets, _PADDING[-offsets_bytes % 8]))
    data.append(_PADDING[-size_bytes % 8])
    body_crc = crc32c(body)
    for view in data:
        body_crc = crc32c(view, body_crc)
    length = len(head) + body_length
    header = BatchHeader(
        flags=Flags.VALUE,
        body_length=length,
        uncompressed_length=length,
        record_count=count,
        body_crc=body_crc,
        producer_id=producer_id,
        base_sequence=base_sequence,
        producer_epoch=producer_epoch,
        last_offset_delta=count - 1,
        base_timestamp_us=now_us,
        max_timestamp_us=now_us,
    )
    return EncodedBatch(header.pack(), memoryview(body), count, tuple(data))


def _part_of(values: Any, start: int) -> tuple[View, View]:
    """Return a column's offsets, shifted to begin at `start`, and the bytes that they refer to."""
    _, offsets_buffer, data_buffer = values.buffers()
    count, at = len(values), values.offset * _OFFSET_BYTES
    offsets = memoryview(offsets_buffer).cast("B")[at : at + (count + 1) * _OFFSET_BYTES]
    (first,), (last,) = _OFFSET.unpack_from(offsets), _OFFSET.unpack_from(offsets, count * _OFFSET_BYTES)
    if first != start:
        numbers: Any = pa.Array.from_buffers(pa.int32(), count + 1, [None, offsets_buffer], 0, values.offset)
        moved = pc.add(numbers, pa.scalar(start - first, _INT32))
        offsets = memoryview(moved.buffers()[1]).cast("B")
    data = memoryview(data_buffer).cast("B")[first:last] if data_buffer is not None else memoryview(b"")
    return offsets, data


@cache
def _template() -> _Template:
    message = encode_batch(columns_of([b"v"]), now_us=0).body
    head = bytes(message[: PREFIX_BYTES + metadata_bytes(message)])
    return _Template(head, number_places(head[PREFIX_BYTES:]))
