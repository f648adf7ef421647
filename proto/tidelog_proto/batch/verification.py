"""Complete validation of a batch from an untrusted producer, before a node stores it.

The checks run in this order, the fastest first: header, length, body CRC; features that this build supports;
decompression within the declared size; the message's description against header and flags (`ipc_message.py`,
`arrow_layout.py`); reading by pyarrow, which validates every offset and UTF-8 string; finally the rules that Arrow does
not have: tag lengths and the timestamps in the header.

For any input the result is a header or a `ProtocolError`, in bounded memory: the message and its decompressed buffers,
each at most `BATCH_UNCOMPRESSED_BYTES_MAX`. pyarrow alone accepts undeclared compression (16 KB becoming 512 MB), extra
columns, trailing bytes, nulls in columns without nulls, and 64-bit offsets where 32-bit ones are expected, which it
reads as wrong values.

A small batch of one record without nulls, with a value and possibly a key, is not read by pyarrow: once pyarrow has
accepted its description, only two offsets per column remain to be checked, at a twentieth of the cost.

`verify_batch` refuses derived batches, which producers never send. Nodes replicate stored batches, which may be
derived: `verify_stored` accepts both, with the same checks.

Whether the sender may send a CONTROL batch is the caller's decision.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.arrow_layout import check_layout
from tidelog_proto.batch.compression import decompressed_message
from tidelog_proto.batch.header import (
    COLUMN_FLAGS,
    BatchHeader,
    Buffer,
    Codec,
    Flags,
    crc_checked_body,
    unpack_header,
    whole_common_batch,
)
from tidelog_proto.batch.ipc_message import (
    LZ4_FRAME,
    PREFIX_BYTES,
    ZSTD,
    Message,
    buffer_lengths,
    describe,
    metadata_bytes,
    parse_message,
    uncompressed_bytes,
)
from tidelog_proto.batch.record_batch import read_columns, timestamp_range
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import HEADER_BYTES, TAG_BYTES_MAX

_COMPRESSION_OF: Final[dict[Codec, int]] = {Codec.LZ4: LZ4_FRAME, Codec.ZSTD: ZSTD}
_NAMES: Final = {None: "no compression", LZ4_FRAME: "compression lz4", ZSTD: "compression zstd"}
_REMEMBERED_BYTES_MAX: Final = 1024
_BYTES_ONLY: Final = frozenset({Flags.VALUE, Flags.KEY | Flags.VALUE})
_BY_HAND_BYTES_MAX: Final = 64 * 1024
_OFFSET_PAIR: Final = struct.Struct("<ii")
_METADATA_BYTES: Final = struct.Struct("<i")
_METADATA_BYTES_AT: Final = 4
"""Position of the metadata length in the prefix of a message."""


class _Checked(NamedTuple):
    """The checks that remain after a description was compared with the header.

    Attributes:
        last_bytes: size of the last buffer.
        pairs: (position in the message, bytes of data) of the two offsets of each column, for a batch of one record
            with columns of bytes and without nulls; None for all other batches, which pyarrow reads.
    """

    last_bytes: int
    pairs: tuple[tuple[int, int], ...] | None = None


def verify_batch(view: Buffer) -> BatchHeader:
    """Validate exactly one batch's bytes and return its header.

    Raises:
        ProtocolError: CORRUPT_BATCH if the batch is invalid, BATCH_TOO_LARGE beyond a limit, UNSUPPORTED_BATCH if it
            uses a feature that this build does not support.
    """
    common = whole_common_batch(view)
    if common is not None and not common.flags & ~COLUMN_FLAGS:
        return _check_columns(common, Codec.NONE, memoryview(view)[HEADER_BYTES:])
    header = unpack_header(view)
    if header.flags & Flags.DERIVED:
        raise ProtocolError(
            pb.UNSUPPORTED_BATCH, f"the batch is derived (flags {header.flags:#x}); only nodes may send such a batch"
        )
    return _verified(header, view)


def verify_stored(view: Buffer) -> BatchHeader:
    """Validate exactly one batch's bytes as another node stores them; return its header.

    A derived batch (`derived_batch.py`) must also satisfy the rules of derived batches: only a header if there are no
    records; otherwise ascending offset deltas up to at most the last offset delta of the header, a timestamp column,
    and no producer.

    Raises:
        ProtocolError: as `verify_batch`.
    """
    header = unpack_header(view)
    if header.flags & Flags.DERIVED and not header.record_count:
        crc_checked_body(header, view)
        return header
    return _verified(header, view)


def _verified(header: BatchHeader, view: Buffer) -> BatchHeader:
    body = crc_checked_body(header, view)
    check_storable(header)
    codec = header.codec
    message = decompressed_message(body, codec, header.uncompressed_length) if codec else body
    return _check_columns(header, codec, message)


def _check_columns(header: BatchHeader, codec: Codec, message: Buffer) -> BatchHeader:
    """Check the message of a batch whose header and body CRC are valid; return the header."""
    checked = _check_description(header, codec, message)
    if checked.pairs is not None:
        _check_offsets(message, checked.pairs)
        if header.base_timestamp_us != header.max_timestamp_us:
            raise _timestamps_differ(header)
        return header
    columns = read_columns(header, message)
    validate_columns(columns)
    check_timestamps(header, columns)
    if header.flags & Flags.DERIVED:
        check_deltas(header, columns.column(0))
    if header.flags & Flags.TAG and checked.last_bytes > TAG_BYTES_MAX:
        check_tags(columns.column("tag"))
    return header


def validate_columns(columns: pa.RecordBatch) -> None:
    """Let Arrow validate every offset, text, null count and decimal.

    Raises:
        ProtocolError: CORRUPT_BATCH.
    """
    try:
        columns.validate(full=True)
    except pa.ArrowException as error:
        raise _corrupt(f"the columns are not valid: {error}") from error


def check_storable(header: BatchHeader) -> None:
    """Refuse features that this build does not store."""
    if header.flags & Flags.TRANSACTIONAL:
        raise ProtocolError(
            pb.UNSUPPORTED_BATCH, f"the batch is transactional (flags {header.flags:#x}), which is not supported"
        )
    if not header.flags & Flags.VALUE:
        raise ProtocolError(pb.UNSUPPORTED_BATCH, "the batch has no value column; send tombstones as null values")


def _check_description(header: BatchHeader, codec: Codec, message: Buffer) -> _Checked:
    """Compare the message's description with the header.

    The last buffer contains the tags if there are any, so its size bounds the length of each tag.
    """
    declared_bytes = _METADATA_BYTES.unpack_from(message, _METADATA_BYTES_AT)[0] if len(message) >= PREFIX_BYTES else 0
    if codec in _COMPRESSION_OF or not 0 < declared_bytes <= _REMEMBERED_BYTES_MAX:
        return _Checked(_lengths(header, codec, message, parse_message(message))[-1])
    head = bytes(message[: PREFIX_BYTES + declared_bytes])
    return checked_plain(head, len(message), header.flags, header.record_count, header.uncompressed_length)


@lru_cache(maxsize=1024)
def checked_plain(head: bytes, message_bytes: int, flags: int, record_count: int, uncompressed_length: int) -> _Checked:
    """Check a prefix and description without buffer compression; the result depends only on these arguments.

    Cached, because producers of small batches repeatedly send the same few shapes; that saves half of the check.
    """
    header = BatchHeader(flags, 0, uncompressed_length, record_count, 0)
    metadata = head[PREFIX_BYTES : PREFIX_BYTES + metadata_bytes(head)]
    description = describe(metadata, message_bytes)
    lengths = _lengths(header, header.codec, b"", description)
    is_bytes_only = record_count == 1 and flags in _BYTES_ONLY and not any(nulls for _, nulls in description.nodes)
    if not is_bytes_only or message_bytes > _BY_HAND_BYTES_MAX:
        return _Checked(lengths[-1])
    # pyarrow checks more of the description. Zeros are valid offsets.
    read_columns(header, b"".join((head, bytes(description.body_length))))
    # The buffers of each column are validity, offsets and data. `flags` has no codec, so the body is the message.
    offsets, data_bytes = description.buffers[1::3], lengths[2::3]
    pairs = tuple((description.body_at + at, size) for (at, _), size in zip(offsets, data_bytes, strict=True))
    return _Checked(lengths[-1], pairs)


def _check_offsets(message: Buffer, pairs: tuple[tuple[int, int], ...]) -> None:
    """Check the two offsets of each column of a single record, as pyarrow's full validation would."""
    for position, data_bytes in pairs:
        start, end = _OFFSET_PAIR.unpack_from(message, position)
        if not 0 <= start <= end <= data_bytes:
            raise _corrupt(f"the columns are not valid: a value has offsets {start} to {end} in {data_bytes} bytes")


def _lengths(header: BatchHeader, codec: Codec, message: Buffer, description: Message) -> list[int]:
    lengths = checked_lengths(header, codec, message, description)
    check_layout(description, lengths, flags=header.flags, record_count=header.record_count)
    return lengths


def checked_lengths(header: BatchHeader, codec: Codec, message: Buffer, description: Message) -> list[int]:
    """Return the buffers' decompressed lengths after checking compression and sizes against the header."""
    if description.compression != _COMPRESSION_OF.get(codec):
        wanted, found = (_NAMES.get(each, each) for each in (_COMPRESSION_OF.get(codec), description.compression))
        raise _corrupt(
            f"the header declares codec {codec.name.lower()}, so the Arrow message must have {wanted}, got {found}"
        )
    lengths = buffer_lengths(message, description)
    uncompressed_length = uncompressed_bytes(description, lengths)
    if uncompressed_length != header.uncompressed_length:
        raise _corrupt(
            f"the body has {uncompressed_length} bytes uncompressed, the header declares {header.uncompressed_length}"
        )
    return lengths


def check_timestamps(header: BatchHeader, columns: pa.RecordBatch) -> None:
    """Compare the timestamps in the header with the column, or require equal ones without a column."""
    declared = (header.base_timestamp_us, header.max_timestamp_us)
    if header.flags & Flags.TIMESTAMP:
        if (found := timestamp_range(columns.column("timestamp"))) != declared:
            raise _corrupt(
                f"the header declares timestamps {declared[0]} to {declared[1]} µs, the timestamp column has "
                f"{found[0]} to {found[1]}"
            )
    elif declared[0] != declared[1]:
        raise _timestamps_differ(header)


def check_deltas(header: BatchHeader, deltas: Any) -> None:
    """Require offset deltas that ascend up to at most the last offset delta of the header."""
    count = len(deltas)
    ascend: Any = pc.all(pc.less(deltas.slice(0, count - 1), deltas.slice(1)), min_count=0)
    if not ascend.as_py():
        raise _corrupt(f"the {count} offset deltas of a derived batch must be in ascending order")
    last = deltas[count - 1].as_py()
    if last > header.last_offset_delta:
        raise _corrupt(
            f"the last record has offset delta {last}, which exceeds the last offset delta of the header, "
            f"{header.last_offset_delta}"
        )


def check_tags(tags: Any) -> None:
    """Refuse a tag that is too long."""
    longest = pc.max(pc.binary_length(tags)).as_py()
    if longest is not None and longest > TAG_BYTES_MAX:
        raise ProtocolError(
            pb.BATCH_TOO_LARGE,
            f"a tag has {longest} bytes of UTF-8; the limit is {TAG_BYTES_MAX}: put longer text into a header",
        )


def _timestamps_differ(header: BatchHeader) -> ProtocolError:
    return _corrupt(
        f"the header declares timestamps {header.base_timestamp_us} to {header.max_timestamp_us} µs, but the batch has "
        "no timestamp column; they must be equal"
    )


def _corrupt(message: str) -> ProtocolError:
    return ProtocolError(pb.CORRUPT_BATCH, message)
