"""The fixed 128-byte header of a record batch, little-endian, with a CRC.

| at | size | field | written by |
| --- | --- | --- | --- |
| 0 | 4 | magic `TLRB` | producer |
| 4 | 1 | version: 1, or 2 for a typed batch | producer |
| 5 | 1 | body kind | producer |
| 6 | 2 | reserved, zero | |
| 8 | 4 | flags: columns, codec, transactional, control, derived | producer |
| 12 | 4 | body length (bytes) | producer |
| 16 | 4 | uncompressed body length (bytes) | producer |
| 20 | 4 | record count | producer |
| 24 | 4 | body CRC32C | producer |
| 28 | 4 | schema id: 0 for the canonical columns; in a typed batch the number of its schema | producer |
| 32 | 8 | producer id (0: not idempotent) | producer |
| 40 | 8 | base sequence | producer |
| 48 | 4 | producer epoch | producer |
| 52 | 4 | last offset delta (record count - 1, more in a derived batch) | producer |
| 56 | 8 | base timestamp (smallest, µs since 1970) | producer |
| 64 | 8 | max timestamp (µs since 1970) | producer |
| 72 | 8 | base offset | owner |
| 80 | 8 | append timestamp (µs since 1970) | owner |
| 88 | 8 | epoch | owner |
| 96 | 8 | owner incarnation | owner |
| 104 | 4 | sequence span: 0 means the record count; larger if the owner dropped duplicates | owner |
| 108 | 4 | schema digest; 0 in version 1 | producer |
| 112 | 8 | reserved, zero | |
| 120 | 4 | running digest | owner |
| 124 | 4 | header CRC32C, over bytes 0..123 | both |

A batch of version 2 is *typed*: its value column is a struct of the fields of a schema (`row_layout.py`). Code without
the schemas must not take such a value for bytes, so `unpack_header` refuses version 2 unless its caller passes `typed`.
Builds before version 2 refuse it as UNSUPPORTED_BATCH.

The running digest of a batch is the CRC32C of its bytes 0..119, continued from the digest of the previous batch in the
epoch (0 for the first). The digest covers the body through the body CRC, so two replicas with equal digests at an
offset have the same prefix. The field comes right after the bytes that it covers, so one pass over contiguous bytes
computes the digest.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, NamedTuple

from crc32c import crc32c

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import (
    BATCH_BYTES_MAX,
    BATCH_RECORDS_MAX,
    BATCH_UNCOMPRESSED_BYTES_MAX,
    DERIVED_EXTRA_BYTES,
    HEADER_BYTES,
)

MAGIC: Final = int.from_bytes(b"TLRB", "little")
VERSION: Final = 1
TYPED_VERSION: Final = 2
"""Version of a typed batch: one whose header has a schema id and the digest of the schema."""

Buffer = bytes | bytearray | memoryview
"""Type of encoded bytes; a memoryview must be contiguous and of bytes (format "B")."""

_LAYOUT: Final = struct.Struct("<IBBHIIIIIIQQIIqqQqQQI12xII")
_TYPED_LAYOUT: Final = struct.Struct("<IBBHIIIIIIQQIIqqQqQQII8xII")
_LAYOUT_AND_RESERVED: Final = struct.Struct("<IBBHIIIIIIQQIIqqQqQQI12sII")
_MAGIC_AND_LENGTH: Final = struct.Struct("<I4xII")
_OWNER_FIELDS: Final = struct.Struct("<QqQQ")
_U32: Final = struct.Struct("<I")
_OWNER_AT: Final = 72
_FLAGS_AT: Final = 8
_VERSION_AT: Final = 4
_DIGEST_AT: Final = 120
_CRC_AT: Final = 124
_RESERVED_AT: Final = 108
_RESERVED: Final = bytes(12)
_SCHEMA_DIGEST_AT: Final = 108
_TYPED_RESERVED_AT: Final = 112
_TYPED_RESERVED: Final = bytes(8)

assert _LAYOUT.size == _TYPED_LAYOUT.size == HEADER_BYTES
assert _TYPED_RESERVED_AT + len(_TYPED_RESERVED) == _DIGEST_AT
assert _RESERVED_AT + len(_RESERVED) == _DIGEST_AT


OFFSET_MAX: Final = 2**63 - 1
"""Largest offset: readers get offsets in Arrow columns of signed 64-bit integers."""
NO_TIMESTAMP_US: Final = -(2**63)
"""Base and max timestamp of a batch without records: smaller than all others, so it is never the maximum."""


class BodyKind(IntEnum):
    """Format of the body."""

    ARROW = 1
    """One Arrow IPC encapsulated RecordBatch message."""


class Flags:
    """The columns and kind of a batch. Bits 8..11 contain the codec.

    Plain ints, because each `&` on an `IntFlag` creates an object, which is measurable for small batches.
    """

    TIMESTAMP: Final = 1 << 0
    KEY: Final = 1 << 1
    VALUE: Final = 1 << 2
    HEADERS: Final = 1 << 3
    TAG: Final = 1 << 4
    TRANSACTIONAL: Final = 1 << 16
    CONTROL: Final = 1 << 17
    DERIVED: Final = 1 << 18
    PROJECTED: Final = 1 << 19
    """A node omitted columns that the reader did not request (`projection.py`). Only sent, never stored."""


class Codec(IntEnum):
    """Compression of a body: LZ4 and ZSTD by Arrow, buffer by buffer; GZIP and SNAPPY of the whole message."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


COLUMN_FLAGS: Final = Flags.TIMESTAMP | Flags.KEY | Flags.VALUE | Flags.HEADERS | Flags.TAG
_CODEC_SHIFT: Final = 8
_CODEC_MASK: Final = 0xF << _CODEC_SHIFT
_DERIVED_COLUMNS: Final = Flags.TIMESTAMP | Flags.VALUE
_STORED_FLAGS: Final = COLUMN_FLAGS | Flags.TRANSACTIONAL | Flags.CONTROL | Flags.DERIVED | _CODEC_MASK
_SENT_FLAGS: Final = _STORED_FLAGS | Flags.PROJECTED
_COMMON_FLAGS: Final = COLUMN_FLAGS | Flags.TRANSACTIONAL | _CODEC_MASK
_BODY_LENGTH_AT: Final = 5
"""Index in the fields of `_LAYOUT`."""
_COMMON_BEGIN: Final = (MAGIC, VERSION, int(BodyKind.ARROW), 0)
_CODECS: Final = tuple(Codec)
_ARROW: Final = BodyKind.ARROW
_END_OF_CANONICAL: Final = (_ARROW, 0)
"""Body kind and schema digest of a batch without a schema."""


class BatchHeader(NamedTuple):
    """Parsed header of a batch. Offsets and counts are in records, lengths in bytes, timestamps in µs since 1970.

    A named tuple, because a header is created for every received batch, which takes a frozen dataclass six times as
    long.
    """

    flags: int
    body_length: int
    uncompressed_length: int
    record_count: int
    body_crc: int
    schema_id: int = 0
    producer_id: int = 0
    base_sequence: int = 0
    producer_epoch: int = 0
    last_offset_delta: int = 0
    base_timestamp_us: int = 0
    max_timestamp_us: int = 0
    base_offset: int = 0
    append_timestamp_us: int = 0
    epoch: int = 0
    owner_incarnation: int = 0
    sequence_span: int = 0
    digest: int = 0
    body_kind: BodyKind = BodyKind.ARROW
    schema_digest: int = 0
    """Digest of the schema; 0 if the schema id is 0."""

    @property
    def typed(self) -> bool:
        """Whether the value column is a struct of the fields of a schema."""
        return self.schema_id != 0

    @property
    def codec(self) -> Codec:
        """Compression of the body."""
        return _CODECS[(self.flags & _CODEC_MASK) >> _CODEC_SHIFT]

    @property
    def length(self) -> int:
        """Size of header and body in bytes, without padding."""
        return HEADER_BYTES + self.body_length

    @property
    def sequences(self) -> int:
        """Number of producer sequence numbers of the batch, including those of dropped records."""
        return self.sequence_span or self.record_count

    @property
    def end_offset(self) -> int:
        """The offset after the last one that the batch covers."""
        return self.base_offset + self.last_offset_delta + 1

    def stamped(
        self, base_offset: int, append_timestamp_us: int, epoch: int, owner_incarnation: int, digest: int
    ) -> BatchHeader:
        """Return the header with the owner's fields; three times faster than `_replace`."""
        owned = (base_offset, append_timestamp_us, epoch, owner_incarnation, self[_SPAN_INDEX], digest)
        return _made(BatchHeader, (*self[:_OWNER_INDEX], *owned, self.body_kind, self.schema_digest))

    def pack(self) -> bytes:
        """Return the 128 bytes, including the header CRC."""
        raw = bytearray(
            _LAYOUT.pack(
                MAGIC,
                TYPED_VERSION if self.schema_id else VERSION,
                self.body_kind,
                0,
                self.flags,
                self.body_length,
                self.uncompressed_length,
                self.record_count,
                self.body_crc,
                self.schema_id,
                self.producer_id,
                self.base_sequence,
                self.producer_epoch,
                self.last_offset_delta,
                self.base_timestamp_us,
                self.max_timestamp_us,
                self.base_offset,
                self.append_timestamp_us,
                self.epoch,
                self.owner_incarnation,
                self.sequence_span,
                self.digest,
                0,
            )
        )
        if self.schema_id:
            _U32.pack_into(raw, _SCHEMA_DIGEST_AT, self.schema_digest)
        _U32.pack_into(raw, _CRC_AT, crc32c(memoryview(raw)[:_CRC_AT]))
        return bytes(raw)


_made: Final = tuple.__new__
"""Creates a header from all its values; the named tuple's own constructors call it and are slower."""

_OWNER_INDEX: Final = BatchHeader._fields.index("base_offset")
_SPAN_INDEX: Final = BatchHeader._fields.index("sequence_span")


def flags_with_codec(flags: int, codec: Codec) -> int:
    """Return `flags` with the codec set."""
    return (flags & ~_CODEC_MASK) | (codec << _CODEC_SHIFT)


def batch_length(buffer: Buffer, at: int = 0) -> int:
    """Return the size (header and body) of the batch at `at`; checks only magic and length.

    Raises:
        ProtocolError: CORRUPT_BATCH if there is no complete batch, BATCH_TOO_LARGE beyond the limit.
    """
    available = len(buffer) - at
    if available < HEADER_BYTES:
        raise _corrupt(f"a batch header must have {HEADER_BYTES} bytes, got {max(0, available)}")
    magic, flags, body_length = _MAGIC_AND_LENGTH.unpack_from(buffer, at)
    if magic != MAGIC:
        raise _corrupt(f"the magic of a batch must be {MAGIC:#010x}, got {magic:#010x}")
    length = HEADER_BYTES + int(body_length)
    if length > BATCH_BYTES_MAX + extra_bytes(flags):
        raise ProtocolError(
            pb.BATCH_TOO_LARGE,
            f"the header declares a batch of {length} bytes; the limit is {BATCH_BYTES_MAX + extra_bytes(flags)}",
        )
    if length > available:
        raise _corrupt(f"the header declares a batch of {length} bytes, got {available}")
    return length


def extra_bytes(flags: int) -> int:
    """Return by how many bytes a batch with these flags may exceed the limits of batches, whole and uncompressed."""
    return DERIVED_EXTRA_BYTES if flags & Flags.DERIVED else 0


def claims_plain(buffer: Buffer) -> bool:
    """Return whether a batch is cheap to verify: its unverified header declares an uncompressed body, or is incomplete.

    The result is only a hint for the choice of a thread.
    """
    return len(buffer) < HEADER_BYTES or not _U32.unpack_from(buffer, _FLAGS_AT)[0] & _CODEC_MASK


def claims_typed(buffer: Buffer) -> bool:
    """Return whether the unverified header of a batch has the version of typed batches."""
    return len(buffer) >= HEADER_BYTES and buffer[_VERSION_AT] == TYPED_VERSION


def unpack_header(buffer: Buffer, at: int = 0, *, is_sent: bool = False, typed: bool = False) -> BatchHeader:
    """Parse the header at `at`, checking everything that does not need the body.

    Typed batches are refused unless the caller handles them.

    Args:
        buffer: contains the header.
        at: position of the header.
        is_sent: whether a node sent the batch to a reader, so that columns may be missing.
        typed: whether the caller handles typed batches, too.

    Raises:
        ProtocolError: CORRUPT_BATCH (size, magic, CRC, reserved bytes, counts, timestamps), UNSUPPORTED_BATCH (version,
            body kind, flags, codec, schema), BATCH_TOO_LARGE (lengths beyond the limits).
    """
    if len(buffer) - at < HEADER_BYTES:
        raise _corrupt(f"a batch header must have {HEADER_BYTES} bytes, got {max(0, len(buffer) - at)}")
    fields = _LAYOUT.unpack_from(buffer, at)
    magic, version, body_kind, reserved = fields[:4]
    if magic != MAGIC:
        raise _corrupt(f"the magic of a batch must be {MAGIC:#010x}, got {magic:#010x}")
    view = memoryview(buffer)[at : at + HEADER_BYTES]
    if (found_crc := crc32c(view[:_CRC_AT])) != fields[-1]:
        raise _corrupt(
            f"the header declares CRC32C {fields[-1]:#010x} for itself, its bytes have {found_crc:#010x}: the batch "
            "was damaged in transit or on disk"
        )
    if version != VERSION:
        return _typed_header(view, is_sent=is_sent, allowed=typed)
    if body_kind != _ARROW:
        raise _unsupported_kind(body_kind)
    if reserved or view[_RESERVED_AT:_DIGEST_AT] != _RESERVED:
        raise _corrupt(
            f"the reserved bytes of the batch header must be zero, got {reserved:#06x} and "
            f"{view[_RESERVED_AT:_DIGEST_AT].hex()}"
        )
    header = _made(BatchHeader, fields[4:22] + _END_OF_CANONICAL)
    if header.schema_id:
        raise ProtocolError(
            pb.UNSUPPORTED_BATCH,
            f"the schema id of a batch of version {VERSION} must be 0 (canonical columns), got {header.schema_id}",
        )
    _check(header, _SENT_FLAGS if is_sent else _STORED_FLAGS)
    return header


def _typed_header(view: memoryview, *, is_sent: bool, allowed: bool) -> BatchHeader:
    """Parse a header of version 2, of which magic and CRC are checked; refuse other versions; see `unpack_header`."""
    fields = _TYPED_LAYOUT.unpack(view)
    version, body_kind, reserved = fields[1:4]
    schema_id, schema_digest = fields[9], fields[21]
    if version != TYPED_VERSION:
        raise ProtocolError(
            pb.UNSUPPORTED_BATCH,
            f"the batch has version {version}; this build reads only the versions {VERSION} and {TYPED_VERSION}: if a "
            "newer release made the batch, upgrade",
        )
    if body_kind != _ARROW:
        raise _unsupported_kind(body_kind)
    if not allowed:
        raise ProtocolError(
            pb.UNSUPPORTED_BATCH,
            f"the batch is typed (version {TYPED_VERSION}, schema {schema_id}), which is not supported here: read its "
            "topic with a build and a call that support typed topics",
        )
    if reserved or view[_TYPED_RESERVED_AT:_DIGEST_AT] != _TYPED_RESERVED:
        raise _corrupt(
            f"the reserved bytes of the header of a typed batch must be zero, got {reserved:#06x} and "
            f"{view[_TYPED_RESERVED_AT:_DIGEST_AT].hex()}"
        )
    if not schema_id:
        raise _corrupt(f"the schema id of a batch of version {TYPED_VERSION} must be 1 or more, got 0")
    header: BatchHeader = _made(BatchHeader, (*fields[4:21], fields[22], BodyKind.ARROW, schema_digest))
    if header.flags & Flags.CONTROL:
        raise _corrupt(
            f"the control batch has schema {schema_id}; control batches have the canonical columns and schema id 0"
        )
    _check(header, _SENT_FLAGS if is_sent else _STORED_FLAGS)
    if not header.record_count:
        raise _corrupt(f"the batch without records has schema {schema_id}; such a batch has schema id 0")
    return header


def _unsupported_kind(body_kind: int) -> ProtocolError:
    return ProtocolError(
        pb.UNSUPPORTED_BATCH,
        f"the batch has body kind {body_kind}; this build reads only kind {int(_ARROW)} (Arrow): if a newer release "
        "made the batch, upgrade",
    )


def whole_common_batch(buffer: Buffer) -> BatchHeader | None:
    """Return the header of a buffer that is exactly one batch as producers send them; None for all other buffers.

    Fast path in one call: the header and the body's CRC have passed all checks of `unpack_header` and of
    `RecordBatch.parse`. None if a check fails, and for control, derived and projected batches, those without values,
    and those with a sequence span: `RecordBatch.parse` handles or refuses these.
    """
    size_bytes = len(buffer)
    if size_bytes < HEADER_BYTES:
        return None
    fields = _LAYOUT_AND_RESERVED.unpack_from(buffer)
    if (
        fields[:4] != _COMMON_BEGIN
        or HEADER_BYTES + fields[_BODY_LENGTH_AT] != size_bytes
        or size_bytes > BATCH_BYTES_MAX
    ):
        return None
    header: BatchHeader = _made(BatchHeader, fields[4:21] + (fields[22], _ARROW, 0))  # noqa: RUF005 - faster
    flags, count = header.flags, header.record_count
    view = memoryview(buffer)
    if (
        flags & ~_COMMON_FLAGS
        or not flags & Flags.VALUE
        or (flags & _CODEC_MASK) >> _CODEC_SHIFT >= len(_CODECS)
        or header.uncompressed_length > BATCH_UNCOMPRESSED_BYTES_MAX
        or not 0 < count <= BATCH_RECORDS_MAX
        or header.last_offset_delta != count - 1
        or header.schema_id
        or header.base_timestamp_us > header.max_timestamp_us
        or header.sequence_span
        or fields[21] != _RESERVED
        or crc32c(view[:_CRC_AT]) != fields[23]
        or crc32c(view[HEADER_BYTES:]) != header.body_crc
    ):
        return None
    return header


def crc_checked_body(header: BatchHeader, buffer: Buffer) -> memoryview:
    """Return the body after a header that was parsed from the start of `buffer`.

    Raises:
        ProtocolError: CORRUPT_BATCH if the buffer is not exactly one batch, or the body CRC does not match.
    """
    if len(buffer) != header.length:
        raise _corrupt(f"the header declares a batch of {header.length} bytes, got {len(buffer)}")
    body = memoryview(buffer)[HEADER_BYTES:]
    if (found_crc := crc32c(body)) != header.body_crc:
        raise ProtocolError(
            pb.CORRUPT_BATCH,
            f"the header declares CRC32C {header.body_crc:#010x} for the body, its bytes have "
            f"{found_crc:#010x}: the batch was damaged in transit or on disk",
        )
    return body


def _check(header: BatchHeader, known_flags: int) -> None:
    """Refuse invalid flags, lengths and counts."""
    if header.flags & ~known_flags or (header.flags & _CODEC_MASK) >> _CODEC_SHIFT >= len(_CODECS):
        raise ProtocolError(
            pb.UNSUPPORTED_BATCH,
            f"the batch has flags {header.flags:#x}; this build allows here only the bits {known_flags:#x} and the "
            f"codecs 0 to {len(_CODECS) - 1}: if a newer release made the batch, upgrade",
        )
    extra = extra_bytes(header.flags)
    if header.length > BATCH_BYTES_MAX + extra:
        raise ProtocolError(
            pb.BATCH_TOO_LARGE,
            f"the batch has {header.length} bytes; the limit is {BATCH_BYTES_MAX + extra}: send smaller batches",
        )
    if header.uncompressed_length > BATCH_UNCOMPRESSED_BYTES_MAX + extra:
        raise ProtocolError(
            pb.BATCH_TOO_LARGE,
            f"the body of the batch has {header.uncompressed_length} bytes when uncompressed; the limit is "
            f"{BATCH_UNCOMPRESSED_BYTES_MAX + extra}: send smaller batches",
        )
    if header.flags & Flags.DERIVED:
        _check_derived(header)
    elif not 1 <= header.record_count <= BATCH_RECORDS_MAX:
        raise _corrupt(f"the record count of a batch must be 1 to {BATCH_RECORDS_MAX}, got {header.record_count}")
    elif header.last_offset_delta != header.record_count - 1:
        raise _corrupt(
            f"the last offset delta of a batch of {header.record_count} records must be {header.record_count - 1}, got "
            f"{header.last_offset_delta}"
        )
    if header.sequence_span:
        _check_span(header)
    if header.flags & Flags.PROJECTED and not has_body(header) and any(_body_fields(header)):
        raise _corrupt(
            "a batch without columns must not have a body, got body length, uncompressed length and body CRC "
            f"{', '.join(map(str, _body_fields(header)))}"
        )
    if header.base_timestamp_us > header.max_timestamp_us:
        raise _corrupt(
            f"the base timestamp {header.base_timestamp_us} µs is after the max timestamp {header.max_timestamp_us} µs"
        )


def _check_span(header: BatchHeader) -> None:
    """Refuse an invalid sequence span: it is only set if records were dropped."""
    records_stored = 0 if header.flags & Flags.CONTROL else header.record_count
    if header.flags & Flags.DERIVED:
        raise _corrupt(f"the sequence span of a derived batch must be 0, got {header.sequence_span}")
    if not records_stored < header.sequence_span <= BATCH_RECORDS_MAX:
        raise _corrupt(
            f"the sequence span of a batch that stores {records_stored} records must be 0, or {records_stored + 1} to "
            f"{BATCH_RECORDS_MAX}, got {header.sequence_span}"
        )


def _check_derived(header: BatchHeader) -> None:
    """Refuse an invalid header of a derived batch: see `derived_batch.py`."""
    if header.record_count > BATCH_RECORDS_MAX:
        raise _corrupt(
            f"the record count of a derived batch must be at most {BATCH_RECORDS_MAX}, got {header.record_count}"
        )
    if header.last_offset_delta < header.record_count - 1:
        raise _corrupt(
            f"the last offset delta of a derived batch of {header.record_count} records must be at least "
            f"{header.record_count - 1}, got {header.last_offset_delta}"
        )
    if header.end_offset > OFFSET_MAX:
        raise _corrupt(f"the derived batch ends at offset {header.end_offset}; the limit is {OFFSET_MAX}")
    if header.producer_id or header.producer_epoch or header.base_sequence:
        raise _corrupt(
            "producer id, producer epoch and base sequence of a derived batch must be 0, got "
            f"{header.producer_id}, {header.producer_epoch} and {header.base_sequence}"
        )
    if header.record_count:
        if header.flags & _DERIVED_COLUMNS != _DERIVED_COLUMNS and not header.flags & Flags.PROJECTED:
            raise _corrupt(
                "a derived batch with records must have the columns timestamp and value, but its flags are "
                f"{header.flags:#x}"
            )
        if header.codec in {Codec.GZIP, Codec.SNAPPY}:
            raise _corrupt(
                f"a derived batch may only use the codecs none, lz4 and zstd, got {header.codec.name.lower()}"
            )
        return
    if header.flags != Flags.DERIVED or any(_body_fields(header)):
        raise _corrupt(
            f"a batch without records must have flags {int(Flags.DERIVED):#x}, and 0 as body length, uncompressed "
            f"length and body CRC, got flags {header.flags:#x} and {', '.join(map(str, _body_fields(header)))}"
        )
    if (header.base_timestamp_us, header.max_timestamp_us) != (NO_TIMESTAMP_US, NO_TIMESTAMP_US):
        raise _corrupt(
            f"base and max timestamp of a batch without records must be {NO_TIMESTAMP_US}, got "
            f"{header.base_timestamp_us} and {header.max_timestamp_us}"
        )


def has_body(header: BatchHeader) -> bool:
    """Return whether the batch has a body: columns, or the offset deltas of a derived batch with records."""
    return bool(header.flags & (COLUMN_FLAGS | Flags.DERIVED) and header.record_count)


def _body_fields(header: BatchHeader) -> tuple[int, int, int]:
    return header.body_length, header.uncompressed_length, header.body_crc


def stamp_owner(
    buffer: bytearray | memoryview,
    *,
    base_offset: int,
    append_timestamp_us: int,
    epoch: int,
    owner_incarnation: int,
    previous_digest: int,
) -> int:
    """Write the owner's fields into the header at the start of `buffer`; return the new digest.

    These are the only bytes of a producer's batch that an owner changes, unless it drops duplicates.
    """
    _OWNER_FIELDS.pack_into(buffer, _OWNER_AT, base_offset, append_timestamp_us, epoch, owner_incarnation)
    view = memoryview(buffer)
    digest = crc32c(view[:_DIGEST_AT], previous_digest)
    _U32.pack_into(buffer, _DIGEST_AT, digest)
    _U32.pack_into(buffer, _CRC_AT, crc32c(view[:_CRC_AT]))
    return digest


def digest_after(buffer: Buffer, at: int, previous_digest: int) -> int:
    """Return the running digest of the header at `at`, given the digest of the batch before it."""
    return crc32c(memoryview(buffer)[at : at + _DIGEST_AT], previous_digest)


def _corrupt(message: str) -> ProtocolError:
    return ProtocolError(pb.CORRUPT_BATCH, message)
