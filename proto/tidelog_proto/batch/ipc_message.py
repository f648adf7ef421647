"""Parser of the metadata of an Arrow IPC RecordBatch message from an untrusted source.

pyarrow accepts too much of an untrusted message: undeclared compression, trailing bytes, more columns than declared. So
a node checks the message's description before pyarrow reads it.

Layout (Arrow columnar format, "Encapsulated message format"; integers little-endian):
`0xFFFFFFFF | i32 metadata length | metadata: flatbuffer Message, zero-padded | body`. The metadata length counts its
padding, and prefix and metadata together are a multiple of 8. Tables used, by field number:

- Message: 0 version (i16), 1 header type (u8), 2 header (table), 3 body length (i64), 4 custom metadata
- RecordBatch: 0 length (i64), 1 nodes, 2 buffers, 3 compression (table), 4 variadic buffer counts
- BodyCompression: 0 codec (i8), 1 method (i8); FieldNode: i64 length, i64 null count; Buffer: i64 offset, i64 length

Rejected: the flatbuffers package: a dependency and generated code, without bounds checks in Python.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from functools import lru_cache
from typing import Final, NamedTuple

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import Buffer
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import KIB

PREFIX_BYTES: Final = 8
METADATA_BYTES_MAX: Final = 4096
"""Maximum length of the metadata; a message with all five columns needs less than 700 bytes."""
TYPED_METADATA_BYTES_MAX: Final = 24 * KIB
"""Maximum length of the metadata of a typed batch: 256 columns of text need 17 KiB."""
BUFFER_ALIGNMENT_BYTES: Final = 8
LZ4_FRAME: Final = 0
ZSTD: Final = 1

_CONTINUATION: Final = 0xFFFFFFFF
_VERSION_V5: Final = 4
_HEADER_TYPE_RECORD_BATCH: Final = 3
_VECTOR_ITEMS_MAX: Final = 64
TYPED_VECTOR_ITEMS_MAX: Final = 1024
"""Maximum number of arrays and of buffers of a typed batch."""
_PAIR_BYTES: Final = 16
_STORED_AS_IS: Final = -1

_PREFIX: Final = struct.Struct("<Ii")
_I8: Final = struct.Struct("<b")
_I16: Final = struct.Struct("<h")
_U16: Final = struct.Struct("<H")
_I32: Final = struct.Struct("<i")
_U32: Final = struct.Struct("<I")
_I64: Final = struct.Struct("<q")
_VTABLE_HEADER_BYTES: Final = 4
_FIELDS: Final = 5
"""Fields of the largest table."""
_OFFSETS: Final = tuple(struct.Struct(f"<{count}H") for count in range(_FIELDS + 1))
_ABSENT: Final = tuple((0,) * (_FIELDS - count) for count in range(_FIELDS + 1))
_PAIRS: Final = tuple(struct.Struct(f"<{2 * count}q") for count in range(_VECTOR_ITEMS_MAX + 1))


class Message(NamedTuple):
    """The description in a RecordBatch message, not yet compared with a schema.

    Attributes:
        record_count: number of rows.
        nodes: (length, null count) of each field, depth first.
        buffers: (offset in the body, stored length) of each buffer, in the order of the fields.
        compression: None, `LZ4_FRAME` or `ZSTD`.
        body_at: position of the body in the message: size of prefix and metadata.
        body_length: in bytes; the body ends at the end of the message.
    """

    record_count: int
    nodes: tuple[tuple[int, int], ...]
    buffers: tuple[tuple[int, int], ...]
    compression: int | None
    body_at: int
    body_length: int


def metadata_bytes(message: Buffer, bytes_max: int = METADATA_BYTES_MAX) -> int:
    """Return the metadata length in a message's prefix, at most `bytes_max`.

    Raises:
        ProtocolError: CORRUPT_BATCH if the prefix is invalid or the length out of range.
    """
    if len(message) < PREFIX_BYTES:
        raise _corrupt(f"the Arrow message has {len(message)} bytes, fewer than its prefix of {PREFIX_BYTES}")
    continuation, length = _PREFIX.unpack_from(message)
    if continuation != _CONTINUATION:
        raise _corrupt(
            f"the body is not an Arrow message: it begins with {continuation:#010x}, expected {_CONTINUATION:#010x}"
        )
    if not 0 < length <= bytes_max or length % BUFFER_ALIGNMENT_BYTES or PREFIX_BYTES + length > len(message):
        raise _corrupt(
            f"the Arrow message of {len(message)} bytes declares {length} bytes of metadata; it must be a multiple of "
            f"{BUFFER_ALIGNMENT_BYTES}, from {BUFFER_ALIGNMENT_BYTES} to {bytes_max}, and fit into the "
            f"message after the prefix of {PREFIX_BYTES}"
        )
    return int(length)


def parse_message(message: Buffer, *, typed: bool = False) -> Message:
    """Parse a message's metadata; check that it is a RecordBatch without trailing bytes, and every reference in it.

    Args:
        message: the whole message.
        typed: whether the limits of typed batches apply.

    Raises:
        ProtocolError: CORRUPT_BATCH.
    """
    length = metadata_bytes(message, TYPED_METADATA_BYTES_MAX if typed else METADATA_BYTES_MAX)
    items_max = TYPED_VECTOR_ITEMS_MAX if typed else _VECTOR_ITEMS_MAX
    return describe(bytes(message[PREFIX_BYTES : PREFIX_BYTES + length]), len(message), items_max)


def describe(metadata: bytes, message_bytes: int, items_max: int = _VECTOR_ITEMS_MAX) -> Message:
    """Parse a message's metadata.

    Args:
        metadata: the metadata, without the prefix.
        message_bytes: length of the whole message.
        items_max: maximum number of arrays and of buffers.

    Raises:
        ProtocolError: CORRUPT_BATCH.
    """
    body_at = PREFIX_BYTES + len(metadata)
    try:
        root_at = _reference(metadata, 0)
        version, header_type, header, length, custom = _fields(metadata, root_at)
        kind = (
            _I16.unpack_from(metadata, root_at + version)[0] if version else None,
            metadata[root_at + header_type] if header_type else None,
        )
        if kind != (_VERSION_V5, _HEADER_TYPE_RECORD_BATCH):
            raise _corrupt(
                f"the Arrow message is not a V5 RecordBatch: its version and header type must be {_VERSION_V5} and "
                f"{_HEADER_TYPE_RECORD_BATCH}, got {kind[0]} and {kind[1]}"
            )
        if custom:
            raise _corrupt("the Arrow message has custom metadata, which a batch must not have")
        body_length = _I64.unpack_from(metadata, root_at + length)[0] if length else 0
        if body_length != message_bytes - body_at:
            raise _corrupt(f"the Arrow message declares a body of {body_length} bytes, got {message_bytes - body_at}")
        batch_at = _record_batch(metadata, root_at, header)
        count, nodes, buffers, compression, variadic = _fields(metadata, batch_at)
        if variadic:
            raise _corrupt("the Arrow message has variadic buffers, which a batch must not have")
        return Message(
            _I64.unpack_from(metadata, batch_at + count)[0] if count else 0,
            _pairs(metadata, batch_at + nodes, items_max) if nodes else (),
            _pairs(metadata, batch_at + buffers, items_max) if buffers else (),
            _compression(metadata, _reference(metadata, batch_at + compression)) if compression else None,
            body_at,
            body_length,
        )
    except (struct.error, IndexError) as error:
        raise _corrupt(f"the Arrow metadata points outside itself: {error}") from error


class NumberPlaces(NamedTuple):
    """Positions in a message's metadata of the numbers that depend on its rows.

    The position of a vector is that of its first element.
    """

    body_length_at: int
    record_count_at: int
    nodes_at: int
    buffers_at: int


def number_places(metadata: bytes) -> NumberPlaces:
    """Find the positions in trusted metadata of a message with rows."""
    root_at = _reference(metadata, 0)
    _, _, header, length, _ = _fields(metadata, root_at)
    batch_at = _record_batch(metadata, root_at, header)
    count, nodes, buffers, _, _ = _fields(metadata, batch_at)
    assert all((length, count, nodes, buffers)), "a message with rows has these fields"
    nodes_at, buffers_at = (_reference(metadata, batch_at + field) + _U32.size for field in (nodes, buffers))
    return NumberPlaces(root_at + length, batch_at + count, nodes_at, buffers_at)


def uncompressed_bytes(description: Message, lengths: Iterable[int]) -> int:
    """Return the size of a message with decompressed buffers: metadata, then each of `lengths` rounded up."""
    return description.body_at + sum(padded(length) for length in lengths)


def buffer_lengths(message: Buffer, description: Message) -> list[int]:
    """Return each buffer's length in bytes, after decompression.

    A compressed buffer begins with its decompressed length as i64; -1 means stored uncompressed. Empty buffers have no
    such length.

    Raises:
        ProtocolError: CORRUPT_BATCH if the buffers are not contiguous (each at the next multiple of 8) over the whole
            body, or a compressed one has an invalid length.
    """
    lengths: list[int] = []
    end = 0
    for offset, stored in description.buffers:
        if offset != end:
            raise _corrupt(f"an Arrow buffer of {stored} bytes begins at {offset}, expected {end}")
        if not 0 <= stored <= description.body_length - offset:
            raise _corrupt(
                f"an Arrow buffer that begins at {offset} has {stored} bytes; the body has {description.body_length}"
            )
        end = padded(offset + stored)
        if description.compression is None or stored == 0:
            lengths.append(stored)
            continue
        if stored < _I64.size:
            raise _corrupt(f"a compressed Arrow buffer has {stored} bytes, fewer than its length prefix of {_I64.size}")
        (length,) = _I64.unpack_from(message, description.body_at + offset)
        if length == _STORED_AS_IS:
            length = stored - _I64.size
        if length < 0:
            raise _corrupt(
                f"an Arrow buffer declares {length} bytes after decompression; expected 0 or more, or {_STORED_AS_IS} "
                "for a buffer that is not compressed"
            )
        lengths.append(length)
    if end != description.body_length:
        raise _corrupt(f"the last Arrow buffer ends at {end}, but the body at {description.body_length}")
    return lengths


def padded(length: int) -> int:
    """Return a length rounded up to the alignment of buffers."""
    return -(-length // BUFFER_ALIGNMENT_BYTES) * BUFFER_ALIGNMENT_BYTES


def _fields(data: bytes, at: int) -> tuple[int, ...]:
    """Return the first `_FIELDS` entries of a table's vtable: offsets from the table, 0 for absent fields.

    Raises:
        struct.error: the table or its vtable is outside the metadata.
    """
    vtable_at = at - _I32.unpack_from(data, at)[0]
    if vtable_at < 0:  # Python would count a negative position from the end of the buffer.
        raise struct.error(f"the vtable begins at {vtable_at}")
    vtable_bytes = _U16.unpack_from(data, vtable_at)[0]
    if vtable_at + max(vtable_bytes, _VTABLE_HEADER_BYTES) > len(data):
        raise struct.error(f"the vtable at {vtable_at} has {vtable_bytes} bytes, but the metadata end at {len(data)}")
    count = min(max(0, vtable_bytes - _VTABLE_HEADER_BYTES) // _U16.size, _FIELDS)
    offsets: tuple[int, ...] = _OFFSETS[count].unpack_from(data, vtable_at + _VTABLE_HEADER_BYTES)
    return offsets + _ABSENT[count]


def _record_batch(data: bytes, message_at: int, header: int) -> int:
    """Return the position of a Message's RecordBatch, given the position of the Message and its vtable entry."""
    if not header:
        raise _corrupt("the Arrow Message has no field 'header' (its RecordBatch)")
    return _reference(data, message_at + header)


def _pairs(data: bytes, at: int, items_max: int) -> tuple[tuple[int, int], ...]:
    """Return a vector of structs of two i64, given the position of its reference."""
    vector_at = _reference(data, at)
    count = _U32.unpack_from(data, vector_at)[0]
    if count > items_max:
        raise _corrupt(f"the Arrow metadata lists {count} items in one vector; the limit is {items_max}")
    layout = _PAIRS[count] if count <= _VECTOR_ITEMS_MAX else _many_pairs(count)
    flat = layout.unpack_from(data, vector_at + _U32.size)
    return tuple(zip(flat[::2], flat[1::2], strict=True))


@lru_cache(maxsize=64)
def _many_pairs(count: int) -> struct.Struct:
    return struct.Struct(f"<{2 * count}q")


def _compression(data: bytes, at: int) -> int:
    """Return the codec of a BodyCompression table."""
    codec, method, *_ = _fields(data, at)
    if method and data[at + method] != 0:
        raise _corrupt(
            f"the Arrow message has compression method {data[at + method]}; only 0 (per buffer) is supported"
        )
    return int(_I8.unpack_from(data, at + codec)[0]) if codec else 0


def _reference(data: bytes, at: int) -> int:
    """Follow a flatbuffer offset."""
    return at + int(_U32.unpack_from(data, at)[0])


def _corrupt(message: str) -> ProtocolError:
    return ProtocolError(pb.CORRUPT_BATCH, message)
