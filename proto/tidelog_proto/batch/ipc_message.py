"""Reads the header of one Arrow IPC RecordBatch message by hand, trusting none of it.

pyarrow reads such messages well, but from a stranger it takes too much: compression that nobody announced, bytes
behind the end, columns more than asked for. So a node looks at the message's own description before pyarrow does.

Layout (Arrow columnar format, "Encapsulated message format"; integers little-endian):
`0xFFFFFFFF | i32 metadata length | metadata: flatbuffer Message, zero-padded | body`. The metadata length counts its
padding, and prefix and metadata together are a multiple of 8. Tables used, by field number:

- Message: 0 version (i16), 1 header type (u8), 2 header (table), 3 body length (i64), 4 custom metadata
- RecordBatch: 0 length (i64), 1 nodes, 2 buffers, 3 compression (table), 4 variadic buffer counts
- BodyCompression: 0 codec (i8), 1 method (i8); FieldNode: i64 length, i64 null count; Buffer: i64 offset, i64 length

Rejected: the flatbuffers package (a dependency, generated code, and no bounds checks in Python).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import Buffer
from tidelog_proto.errors import ProtocolError

PREFIX_BYTES: Final = 8
METADATA_BYTES_MAX: Final = 4096
"""All five columns need less than 700 bytes."""
BUFFER_ALIGNMENT_BYTES: Final = 8
LZ4_FRAME: Final = 0
ZSTD: Final = 1

_CONTINUATION: Final = 0xFFFFFFFF
_VERSION_V5: Final = 4
_HEADER_TYPE_RECORD_BATCH: Final = 3
_VECTOR_ITEMS_MAX: Final = 64
_PAIR_BYTES: Final = 16
_STORED_AS_IS: Final = -1

_PREFIX: Final = struct.Struct("<Ii")
_I8: Final = struct.Struct("<b")
_U8: Final = struct.Struct("<B")
_I16: Final = struct.Struct("<h")
_U16: Final = struct.Struct("<H")
_I32: Final = struct.Struct("<i")
_U32: Final = struct.Struct("<I")
_I64: Final = struct.Struct("<q")
_VTABLE_HEADER: Final = struct.Struct("<HH")


class Message(NamedTuple):
    """What a RecordBatch message says about itself. Nothing of it has been compared with a schema yet.

    Attributes:
        record_count: rows.
        nodes: (length, null count) of each field, depth first.
        buffers: (offset in the body, length as stored) of each buffer, in the order of the fields.
        compression: None, `LZ4_FRAME` or `ZSTD`.
        body_at: where the body begins in the message: prefix and metadata in bytes.
        body_length: bytes; the message ends exactly behind them.
    """

    record_count: int
    nodes: tuple[tuple[int, int], ...]
    buffers: tuple[tuple[int, int], ...]
    compression: int | None
    body_at: int
    body_length: int


def metadata_bytes(message: Buffer) -> int:
    """Return the metadata length that a message's prefix gives.

    Raises:
        ProtocolError: CORRUPT_BATCH when it is no prefix or the length is out of range.
    """
    if len(message) < PREFIX_BYTES:
        raise _corrupt(f"an Arrow message of {len(message)} bytes")
    continuation, length = _PREFIX.unpack_from(message)
    if continuation != _CONTINUATION:
        raise _corrupt("the body does not begin as an Arrow message")
    if not 0 < length <= METADATA_BYTES_MAX or length % BUFFER_ALIGNMENT_BYTES or PREFIX_BYTES + length > len(message):
        raise _corrupt(f"Arrow metadata of {length} bytes in a message of {len(message)}")
    return int(length)


def parse_message(message: Buffer) -> Message:
    """Read a message's description, checking every access, that it is a RecordBatch and that nothing follows it.

    Raises:
        ProtocolError: CORRUPT_BATCH.
    """
    return describe(bytes(message[PREFIX_BYTES : PREFIX_BYTES + metadata_bytes(message)]), len(message))


def describe(metadata: bytes, message_bytes: int) -> Message:
    """Read a description from a message's metadata alone; `message_bytes` is the length of the whole message.

    Raises:
        ProtocolError: CORRUPT_BATCH.
    """
    body_at = PREFIX_BYTES + len(metadata)
    try:
        root = _Table(metadata, _reference(metadata, 0))
        if root.scalar(0, _I16) != _VERSION_V5 or root.scalar(1, _U8) != _HEADER_TYPE_RECORD_BATCH:
            raise _corrupt("the Arrow message is not a V5 RecordBatch")
        if root.field(4):
            raise _corrupt("the Arrow message carries metadata of its own")
        body_length = root.scalar(3, _I64)
        if body_length != message_bytes - body_at:
            raise _corrupt(f"an Arrow body of {body_length} bytes, {message_bytes - body_at} are here")
        batch = root.table(2)
        if batch.field(4):
            raise _corrupt("the Arrow message has variadic buffers")
        return Message(batch.scalar(0, _I64), batch.pairs(1), batch.pairs(2), _compression(batch), body_at, body_length)
    except struct.error as error:
        raise _corrupt(f"the Arrow metadata points outside itself: {error}") from error


class NumberPlaces(NamedTuple):
    """Where in a message's metadata the numbers stand that depend on its rows: numbers, or the first of a vector."""

    body_length_at: int
    record_count_at: int
    nodes_at: int
    buffers_at: int


def number_places(metadata: bytes) -> NumberPlaces:
    """Find them in metadata of our own making, of a message with rows."""
    root = _Table(metadata, _reference(metadata, 0))
    batch = root.table(2)
    nodes_at, buffers_at = (_reference(metadata, batch.field(number)) + _U32.size for number in (1, 2))
    places = NumberPlaces(root.field(3), batch.field(0), nodes_at, buffers_at)
    assert all(places), "a message with rows says how many and how long"
    return places


def uncompressed_bytes(description: Message, lengths: Iterable[int]) -> int:
    """Return the length of a message with its buffers decompressed: metadata, then each of `lengths` rounded up."""
    return description.body_at + sum(padded(length) for length in lengths)


def buffer_lengths(message: Buffer, description: Message) -> list[int]:
    """Return each buffer's length in bytes, decompressed where it is compressed.

    A compressed buffer begins with its decompressed length as i64; -1 says that it is stored as it is. Empty
    buffers have no such length.

    Raises:
        ProtocolError: CORRUPT_BATCH when the buffers do not lie one behind the other (each at the next multiple of 8)
            from the start of the body to its end, or when a compressed one has no proper length.
    """
    lengths: list[int] = []
    end = 0
    for offset, stored in description.buffers:
        if offset != end or not 0 <= stored <= description.body_length - offset:
            raise _corrupt(f"an Arrow buffer of {stored} bytes at {offset} where {end} was expected")
        end = padded(offset + stored)
        if description.compression is None or stored == 0:
            lengths.append(stored)
            continue
        if stored < _I64.size:
            raise _corrupt(f"a compressed Arrow buffer of {stored} bytes")
        (length,) = _I64.unpack_from(message, description.body_at + offset)
        if length == _STORED_AS_IS:
            length = stored - _I64.size
        if length < 0:
            raise _corrupt(f"an Arrow buffer claims to decompress to {length} bytes")
        lengths.append(length)
    if end != description.body_length:
        raise _corrupt(f"the Arrow buffers end at {end}, the body at {description.body_length}")
    return lengths


def padded(length: int) -> int:
    """Return a length rounded up to the alignment of buffers."""
    return -(-length // BUFFER_ALIGNMENT_BYTES) * BUFFER_ALIGNMENT_BYTES


class _Table:
    """A flatbuffer table; reads outside of the metadata raise struct.error."""

    __slots__ = ("_at", "_data", "_fields")

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at
        vtable_at = at - _read(_I32, data, at)
        vtable_bytes, _ = _VTABLE_HEADER.unpack_from(data, _checked(vtable_at))
        self._fields = struct.Struct(f"<{max(0, vtable_bytes - 4) // 2}H").unpack_from(data, vtable_at + 4)

    def field(self, number: int) -> int:
        """Return where a field's value is, or 0 for an absent one."""
        offset = self._fields[number] if number < len(self._fields) else 0
        return self._at + int(offset) if offset else 0

    def scalar(self, number: int, layout: struct.Struct) -> int:
        """Return a number; absent ones are 0."""
        at = self.field(number)
        return _read(layout, self._data, at) if at else 0

    def table(self, number: int) -> _Table:
        """Return a table that must be there."""
        at = self.field(number)
        if not at:
            raise _corrupt(f"the Arrow metadata lacks field {number}")
        return _Table(self._data, _reference(self._data, at))

    def pairs(self, number: int) -> tuple[tuple[int, int], ...]:
        """Return a vector of structs of two i64."""
        at = self.field(number)
        if not at:
            return ()
        vector_at = _reference(self._data, at)
        count = _read(_U32, self._data, vector_at)
        if count > _VECTOR_ITEMS_MAX:
            raise _corrupt(f"the Arrow metadata lists {count} items")
        flat = struct.Struct(f"<{2 * count}q").unpack_from(self._data, vector_at + 4)
        return tuple(zip(flat[::2], flat[1::2], strict=True))


def _compression(batch: _Table) -> int | None:
    """Return the codec of the buffers; None for no compression."""
    if not batch.field(3):
        return None
    compression = batch.table(3)
    if compression.scalar(1, _I8) != 0:
        raise _corrupt("the Arrow message is compressed in an unknown way")
    return compression.scalar(0, _I8)


def _reference(data: bytes, at: int) -> int:
    """Follow a flatbuffer offset."""
    return at + _read(_U32, data, at)


def _read(layout: struct.Struct, data: bytes, at: int) -> int:
    return int(layout.unpack_from(data, _checked(at))[0])


def _checked(at: int) -> int:
    """Refuse negative positions, which Python would count from the end."""
    if at < 0:
        raise struct.error(f"position {at}")
    return at


def _corrupt(message: str) -> ProtocolError:
    return ProtocolError(pb.CORRUPT_BATCH, message)
