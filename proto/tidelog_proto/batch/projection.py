"""Projection of batches onto the columns that a reader requested, without decoding them.

The buffers of an Arrow message are grouped by column and compressed separately, if at all. The buffers of the requested
columns are copied after new metadata, and the header gets the flags of these columns and PROJECTED, which means that
the batch may have other columns in the log. If the reader does not need the body, only the header is sent.

The body's CRC is computed again, so the old one is checked first; otherwise damaged data would get a valid CRC.

Batches that would shrink little are sent unchanged: small ones, and those compressed as a whole by gzip or snappy,
unless the body is not needed. The same holds for typed batches, whose buffers depend on their schema: see
`typed_projection.project_rows`.

Rejected: decoding and encoding by Arrow, which decompresses and compresses the requested columns.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from crc32c import crc32c

from tidelog_proto.batch.arrow_layout import check_layout, places_of
from tidelog_proto.batch.columns import stored_schema_of
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
from tidelog_proto.batch.ipc_message import Message, buffer_lengths, padded, parse_message, uncompressed_bytes
from tidelog_proto.batch.message_template import MessageTemplate, message_template
from tidelog_proto.limits import KIB

WHOLE_BYTES_MAX: Final = 2 * KIB
"""Maximum size of a body that is sent unchanged, because projecting it costs more than sending it."""
_COMPRESSED_WHOLE: Final = frozenset({Codec.GZIP, Codec.SNAPPY})
_NUMBER: Final = struct.Struct("<q")
_PAIR: Final = struct.Struct("<2q")


class Projection(NamedTuple):
    """The columns and records that a reader requested.

    Attributes:
        columns: flags of the requested columns.
        from_us, until_us: batches whose records are all older than `from_us`, or all `until_us` or newer, may be
            omitted; µs since 1970, None for no bound.
        end_offset: batches that begin at or after this offset may be omitted.
        fields: ids of the requested fields of the column `value` of typed batches; None for all.
    """

    columns: int = COLUMN_FLAGS
    from_us: int | None = None
    until_us: int | None = None
    end_offset: int = OFFSET_MAX
    fields: frozenset[int] | None = None

    def skips(self, header: BatchHeader) -> bool:
        """Return whether all of a batch's records are outside the time range."""
        is_older = self.from_us is not None and header.max_timestamp_us < self.from_us
        return is_older or (self.until_us is not None and header.base_timestamp_us >= self.until_us)

    def keeps(self, header: BatchHeader) -> bool:
        """Return whether all columns and fields of a batch are requested, and records of any time."""
        has_times = self.from_us is not None or self.until_us is not None
        return not has_times and self.fields is None and not header.flags & COLUMN_FLAGS & ~self.columns


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
    if header.typed or is_sent_whole(header):
        return batch
    return _cut(header, crc_checked_body(header, batch), header.flags & columns & COLUMN_FLAGS)


def is_sent_whole(header: BatchHeader) -> bool:
    """Return whether a batch is sent with its whole body, if a part of it is needed, because cutting saves little."""
    return header.body_length <= WHOLE_BYTES_MAX or header.codec in _COMPRESSED_WHOLE


def head_alone(header: BatchHeader) -> bytes:
    """Return a batch without columns: only a header."""
    kind = header.flags & Flags.CONTROL
    bare = header._replace(flags=kind | Flags.PROJECTED, body_length=0, uncompressed_length=0, body_crc=0, digest=0)
    return bare.pack()


def _cut(header: BatchHeader, body: memoryview, kept_flags: int) -> bytes:
    description = parse_message(body)
    lengths = buffer_lengths(body, description)
    check_layout(description, lengths, flags=header.flags, record_count=header.record_count)
    template = _template(kept_flags | header.flags & Flags.DERIVED, header.codec)
    cut = Cut(kept_flags, template, *places_of(header.flags, kept_flags))
    return projected_batch(header, body, description, lengths, cut)


class Cut(NamedTuple):
    """How a message is cut.

    Attributes:
        flags: the columns that the result has.
        template: the head of the result.
        nodes, buffers: the indices of those that the result keeps.
        prefix: bytes of the body before the message.
    """

    flags: int
    template: MessageTemplate
    nodes: Sequence[int]
    buffers: Sequence[int]
    prefix: bytes = b""


def projected_batch(
    header: BatchHeader, body: memoryview, description: Message, lengths: Sequence[int], cut: Cut
) -> bytes:
    """Return header and body of a projected batch.

    Args:
        header, body: of the batch in the log; the body's CRC matches.
        description, lengths: of the message in the body, compared with its columns.
        cut: the columns, arrays and buffers of the result.
    """
    head, places, parts = bytearray(cut.template.head), cut.template.places, list[Buffer]()
    at = 0
    for number, index in enumerate(cut.buffers):
        begin, stored = description.buffers[index]
        _PAIR.pack_into(head, places.buffers_at + number * _PAIR.size, at, stored)
        begin += description.body_at
        parts.append(body[begin : begin + padded(stored)])
        at += padded(stored)
    for number, index in enumerate(cut.nodes):
        _PAIR.pack_into(head, places.nodes_at + number * _PAIR.size, *description.nodes[index])
    _NUMBER.pack_into(head, places.record_count_at, header.record_count)
    _NUMBER.pack_into(head, places.body_length_at, at)
    sent = b"".join((cut.prefix, head, *parts))
    # `uncompressed_bytes` only reads the position of the body, which is after the new head.
    whole = description._replace(body_at=len(cut.prefix) + len(head))
    projected = header._replace(
        flags=header.flags & ~COLUMN_FLAGS | cut.flags | Flags.PROJECTED,
        body_length=len(sent),
        uncompressed_length=uncompressed_bytes(whole, (lengths[index] for index in cut.buffers)),
        body_crc=crc32c(sent),
        digest=0,
    )
    return projected.pack() + sent


@lru_cache(maxsize=64)
def _template(stored: int, codec: Codec) -> MessageTemplate:
    return message_template(stored_schema_of(stored), codec)
