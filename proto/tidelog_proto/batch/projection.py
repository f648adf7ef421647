"""Projection of batches onto the columns that a reader requested, without decoding them.

The buffers of an Arrow message are grouped by column and compressed separately, if at all. The buffers of the requested
columns are copied after new metadata, and the header gets the flags of these columns and PROJECTED, which means that
the batch may have other columns in the log. If the reader does not need the body, only the header is sent.

The body's CRC is computed again, so the old one is checked first; otherwise damaged data would get a valid CRC.

Batches that would shrink little are sent unchanged: small ones, and those compressed as a whole by gzip or snappy,
unless the body is not needed. The same holds for typed batches, whose buffers depend on their schema.

Rejected: decoding and encoding by Arrow, which decompresses and compresses the requested columns.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any, Final, NamedTuple

import pyarrow as pa
from crc32c import crc32c

from tidelog_proto.batch.arrow_layout import check_layout, places_of
from tidelog_proto.batch.columns import HEADERS_TYPE, OFFSET_DELTA, TIMESTAMP_TYPE, stored_schema_of
from tidelog_proto.batch.compression import encode_body
from tidelog_proto.batch.header import (
    COLUMN_FLAGS,
    OFFSET_MAX,
    BatchHeader,
    Buffer,
    Codec,
    Flags,
    crc_checked_body,
    unpack_header,
)
from tidelog_proto.batch.ipc_message import (
    PREFIX_BYTES,
    NumberPlaces,
    buffer_lengths,
    metadata_bytes,
    number_places,
    padded,
    parse_message,
    uncompressed_bytes,
)
from tidelog_proto.limits import KIB

WHOLE_BYTES_MAX: Final = 2 * KIB
"""Maximum size of a body that is sent unchanged, because projecting it costs more than sending it."""
_COMPRESSED_WHOLE: Final = frozenset({Codec.GZIP, Codec.SNAPPY})
_NUMBER: Final = struct.Struct("<q")
_PAIR: Final = struct.Struct("<2q")


def _one_of_each() -> dict[str, Any]:
    """Return a one-row sample of each column. Created on first use because pyarrow may import pandas for it."""
    return {
        OFFSET_DELTA.name: pa.array([0], OFFSET_DELTA.type),
        "timestamp": pa.array([0], pa.int64()).view(TIMESTAMP_TYPE),
        "key": pa.array([b"k"], pa.binary()),
        "value": pa.array([b"v"], pa.binary()),
        "headers": pa.array([[("k", b"v")]], HEADERS_TYPE),
        "tag": pa.array(["t"], pa.string()),
    }


class Projection(NamedTuple):
    """The columns and records that a reader requested.

    Attributes:
        columns: flags of the requested columns.
        from_us, until_us: batches whose records are all older than `from_us`, or all `until_us` or newer, may be
            omitted; µs since 1970, None for no bound.
        end_offset: batches that begin at or after this offset may be omitted.
    """

    columns: int = COLUMN_FLAGS
    from_us: int | None = None
    until_us: int | None = None
    end_offset: int = OFFSET_MAX

    def skips(self, header: BatchHeader) -> bool:
        """Return whether all of a batch's records are outside the time range."""
        is_older = self.from_us is not None and header.max_timestamp_us < self.from_us
        return is_older or (self.until_us is not None and header.base_timestamp_us >= self.until_us)

    def keeps(self, header: BatchHeader) -> bool:
        """Return whether all columns of a batch are requested, and records of any time."""
        has_times = self.from_us is not None or self.until_us is not None
        return not has_times and not header.flags & COLUMN_FLAGS & ~self.columns


class _Template(NamedTuple):
    head: bytes
    places: NumberPlaces


def needs_body(header: BatchHeader, columns: int) -> bool:
    """Return whether the projection of a batch onto these columns has a body."""
    return bool(header.record_count and header.flags & (columns & COLUMN_FLAGS | Flags.DERIVED))


def project(batch: Buffer, columns: int) -> Buffer:
    """Return the projection of exactly one batch's bytes onto `columns` (flags), or the batch unchanged.

    Raises:
        ProtocolError: as `unpack_header`; CORRUPT_BATCH if the body is damaged, which is not checked for a batch that
            is returned unchanged.
    """
    header = unpack_header(batch, typed=True)
    if not header.record_count or not header.flags & COLUMN_FLAGS & ~columns:
        return batch
    if not needs_body(header, columns):
        return head_alone(header)
    if header.typed or header.body_length <= WHOLE_BYTES_MAX or header.codec in _COMPRESSED_WHOLE:
        return batch
    return _cut(header, crc_checked_body(header, batch), header.flags & columns & COLUMN_FLAGS)


def head_alone(header: BatchHeader) -> bytes:
    """Return a batch without columns: only a header."""
    kind = header.flags & Flags.CONTROL
    bare = header._replace(flags=kind | Flags.PROJECTED, body_length=0, uncompressed_length=0, body_crc=0, digest=0)
    return bare.pack()


def _cut(header: BatchHeader, body: memoryview, kept_flags: int) -> bytes:
    description = parse_message(body)
    lengths = buffer_lengths(body, description)
    check_layout(description, lengths, flags=header.flags, record_count=header.record_count)
    nodes, buffers = places_of(header.flags, kept_flags)
    template = _template(kept_flags | header.flags & Flags.DERIVED, header.codec)
    head, places, parts = bytearray(template.head), template.places, list[Buffer]()
    at = 0
    for number, index in enumerate(buffers):
        begin, stored = description.buffers[index]
        _PAIR.pack_into(head, PREFIX_BYTES + places.buffers_at + number * _PAIR.size, at, stored)
        begin += description.body_at
        parts.append(body[begin : begin + padded(stored)])
        at += padded(stored)
    for number, index in enumerate(nodes):
        _PAIR.pack_into(head, PREFIX_BYTES + places.nodes_at + number * _PAIR.size, *description.nodes[index])
    _NUMBER.pack_into(head, PREFIX_BYTES + places.record_count_at, header.record_count)
    _NUMBER.pack_into(head, PREFIX_BYTES + places.body_length_at, at)
    cut = b"".join((head, *parts))
    # `uncompressed_bytes` only reads the position of the body, which is after the new head.
    whole = description._replace(body_at=len(head))
    projected = header._replace(
        flags=header.flags & ~COLUMN_FLAGS | kept_flags | Flags.PROJECTED,
        body_length=len(cut),
        uncompressed_length=uncompressed_bytes(whole, (lengths[index] for index in buffers)),
        body_crc=crc32c(cut),
        digest=0,
    )
    return projected.pack() + cut


@lru_cache(maxsize=64)
def _template(stored: int, codec: Codec) -> _Template:
    """Return the head of a message with the columns `stored`, encoded for one row, and the positions of its numbers."""
    schema = stored_schema_of(stored)
    one_of_each = _one_of_each()
    row = pa.RecordBatch.from_arrays([one_of_each[name] for name in schema.names], schema=schema)
    message, _ = encode_body(row, codec)
    head = bytes(message[: PREFIX_BYTES + metadata_bytes(message)])
    return _Template(head, number_places(head[PREFIX_BYTES:]))
