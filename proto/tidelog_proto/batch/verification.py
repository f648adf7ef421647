"""Everything a node checks about a batch that a stranger sent, before it stores a byte of it.

In this order, cheapest and most telling first: header, length, body CRC; what this build can store at all; the
unwrapping of the body within its announced size; the message's own description against header and flags
(`ipc_message.py`, `arrow_layout.py`); only then pyarrow reads it, and validates every offset and every UTF-8 string;
last the rules that Arrow does not know: tag lengths and the timestamps in the header.

Whatever the bytes are, the outcome is a header or a `ProtocolError`, in bounded memory: the message and its
decompressed buffers, each at most `BATCH_UNCOMPRESSED_BYTES_MAX`. What was measured to pass through pyarrow alone:
compression that nobody announced (16 KB becoming 512 MB), extra columns, bytes behind the end, nulls in columns
without nulls, and 64-bit offsets read as 32-bit ones, with wrong values and no error.

A small batch of one record without nulls, whose columns are a value and perhaps a key, is not handed to pyarrow: once
pyarrow has read its description, two offsets a column are all that is left to check, at a twentieth of the cost.

Producers send no derived batches: `verify_batch` refuses them. Nodes send each other what they store, derived batches
among it: `verify_stored` takes both, and checks them in the same way.

Whether a stranger may send a CONTROL batch is not a matter of its bytes: the caller decides.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.arrow_layout import check_layout
from tidelog_proto.batch.compression import message_of
from tidelog_proto.batch.header import BatchHeader, Buffer, Codec, Flags, unpack_header
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
from tidelog_proto.batch.record_batch import body_of, read_columns, timestamp_range
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import TAG_BYTES_MAX

_COMPRESSION_OF: Final[dict[Codec, int]] = {Codec.LZ4: LZ4_FRAME, Codec.ZSTD: ZSTD}
_REMEMBERED_BYTES_MAX: Final = 1024
_BYTES_ONLY: Final = frozenset({Flags.VALUE, Flags.KEY | Flags.VALUE})
_BY_HAND_BYTES_MAX: Final = 64 * 1024
_OFFSET_PAIR: Final = struct.Struct("<ii")
_CONTINUATION: Final = 0xFFFFFFFF


class _Checked(NamedTuple):
    """What a description that was held against the header says of what is left to check.

    Attributes:
        last_bytes: of the last buffer.
        pairs: (position in the message, bytes of data) of the two offsets of each column of a batch of one record
            that is bytes only and has no nulls; None for all other batches, which pyarrow reads.
    """

    last_bytes: int
    pairs: tuple[tuple[int, int], ...] | None = None


def verify_batch(view: Buffer) -> BatchHeader:
    """Check exactly one batch's bytes in full and return its header.

    Raises:
        ProtocolError: CORRUPT_BATCH when the bytes are no proper batch, BATCH_TOO_LARGE past a limit,
            UNSUPPORTED_BATCH when it is something that this build does not store.
    """
    header = unpack_header(view)
    if header.flags & Flags.DERIVED:
        raise ProtocolError(pb.UNSUPPORTED_BATCH, f"flags {header.flags:#x}: derived batches are made by nodes only")
    return _verified(header, view)


def verify_stored(view: Buffer) -> BatchHeader:
    """Check exactly one batch's bytes in full, as another node stores them, and return its header.

    These may be derived (`derived_batch.py`), and are then held to all that `verify_batch` asks of others and to what
    is asked of derived ones: a header alone when there are no records; else offset deltas that ascend and stay within
    the last one, a timestamp column, and no producer.

    Raises:
        ProtocolError: as `verify_batch`.
    """
    header = unpack_header(view)
    if header.flags & Flags.DERIVED and not header.record_count:
        body_of(header, view)
        return header
    return _verified(header, view)


def _verified(header: BatchHeader, view: Buffer) -> BatchHeader:
    body = body_of(header, view)
    _check_storable(header)
    codec = header.codec
    message = message_of(body, codec, header.uncompressed_length) if codec else body
    checked = _check_description(header, codec, message)
    if checked.pairs is not None:
        _check_offsets(message, checked.pairs)
        if header.base_timestamp_us != header.max_timestamp_us:
            raise _timestamps_differ()
        return header
    columns = read_columns(header, message)
    try:
        columns.validate(full=True)
    except pa.ArrowException as error:
        raise _corrupt(f"the columns are not valid: {error}") from error
    _check_timestamps(header, columns)
    if header.flags & Flags.DERIVED:
        _check_deltas(header, columns.column(0))
    if header.flags & Flags.TAG and checked.last_bytes > TAG_BYTES_MAX:
        _check_tags(columns.column("tag"))
    return header


def _check_storable(header: BatchHeader) -> None:
    if header.flags & Flags.TRANSACTIONAL:
        raise ProtocolError(pb.UNSUPPORTED_BATCH, f"flags {header.flags:#x}: transactional batches are not taken")
    if not header.flags & Flags.VALUE:
        raise ProtocolError(pb.UNSUPPORTED_BATCH, "there is no value column; tombstones are null values")


def _check_description(header: BatchHeader, codec: Codec, message: Buffer) -> _Checked:
    """Hold what the message says of itself against the header; return the bytes of its last buffer.

    The last buffer holds the tags where there are tags, and no tag is longer than all of them.
    """
    length = metadata_bytes(message)
    if codec in _COMPRESSION_OF or length > _REMEMBERED_BYTES_MAX:
        return _Checked(_lengths(header, codec, message, parse_message(message))[-1])
    metadata = bytes(message[PREFIX_BYTES : PREFIX_BYTES + length])
    return _checked_plain(metadata, len(message), header.flags, header.record_count, header.uncompressed_length)


@lru_cache(maxsize=1024)
def _checked_plain(
    metadata: bytes, message_bytes: int, flags: int, record_count: int, uncompressed_length: int
) -> _Checked:
    """Check a description without buffer compression, which depends on nothing but these arguments.

    Producers of small batches send the same few shapes over and over; a remembered one saves half of the check.
    """
    header = BatchHeader(flags, 0, uncompressed_length, record_count, 0)
    description = describe(metadata, message_bytes)
    lengths = _lengths(header, header.codec, b"", description)
    is_bytes_only = record_count == 1 and flags in _BYTES_ONLY and not any(nulls for _, nulls in description.nodes)
    if not is_bytes_only or message_bytes > _BY_HAND_BYTES_MAX:
        return _Checked(lengths[-1])
    # pyarrow knows more of what may be wrong with a description. Zeros are proper offsets.
    prefix = struct.pack("<Ii", _CONTINUATION, len(metadata))
    read_columns(header, b"".join((prefix, metadata, bytes(description.body_length))))
    # The buffers of each column: validity, two offsets, data. `flags` names no codec, so the body is the message.
    offsets, data_bytes = description.buffers[1::3], lengths[2::3]
    pairs = tuple((description.body_at + at, size) for (at, _), size in zip(offsets, data_bytes, strict=True))
    return _Checked(lengths[-1], pairs)


def _check_offsets(message: Buffer, pairs: tuple[tuple[int, int], ...]) -> None:
    """Check the two offsets of each column of a single record, as pyarrow's full validation does."""
    for position, data_bytes in pairs:
        start, end = _OFFSET_PAIR.unpack_from(message, position)
        if not 0 <= start <= end <= data_bytes:
            raise _corrupt(f"the columns are not valid: offsets {start} to {end} in {data_bytes} bytes")


def _lengths(header: BatchHeader, codec: Codec, message: Buffer, description: Message) -> list[int]:
    lengths = _checked_lengths(header, codec, message, description)
    check_layout(description, lengths, flags=header.flags, record_count=header.record_count)
    return lengths


def _checked_lengths(header: BatchHeader, codec: Codec, message: Buffer, description: Message) -> list[int]:
    """Return the buffers' decompressed lengths once compression and sizes are known to be the announced ones."""
    if description.compression != _COMPRESSION_OF.get(codec):
        raise _corrupt(f"the header names {codec.name}, the Arrow message is compressed in another way")
    lengths = buffer_lengths(message, description)
    uncompressed_length = uncompressed_bytes(description, lengths)
    if uncompressed_length != header.uncompressed_length:
        raise _corrupt(
            f"the body has {uncompressed_length} bytes uncompressed, the header says {header.uncompressed_length}"
        )
    return lengths


def _check_timestamps(header: BatchHeader, columns: pa.RecordBatch) -> None:
    told = (header.base_timestamp_us, header.max_timestamp_us)
    if header.flags & Flags.TIMESTAMP:
        if timestamp_range(columns.column("timestamp")) != told:
            raise _corrupt("base and max timestamp are not those of the timestamp column")
    elif told[0] != told[1]:
        raise _timestamps_differ()


def _check_deltas(header: BatchHeader, deltas: Any) -> None:
    count = len(deltas)
    ascend: Any = pc.all(pc.less(deltas.slice(0, count - 1), deltas.slice(1)), min_count=0)
    if not ascend.as_py():
        raise _corrupt("the offset deltas do not ascend")
    last = deltas[count - 1].as_py()
    if last > header.last_offset_delta:
        raise _corrupt(f"an offset delta of {last}, the last of the batch is {header.last_offset_delta}")


def _check_tags(tags: Any) -> None:
    longest = pc.max(pc.binary_length(tags)).as_py()
    if longest is not None and longest > TAG_BYTES_MAX:
        raise ProtocolError(pb.BATCH_TOO_LARGE, f"a tag of {longest} bytes; a tag has at most {TAG_BYTES_MAX}")


def _timestamps_differ() -> ProtocolError:
    return _corrupt("base and max timestamp differ and there is no timestamp column")


def _corrupt(message: str) -> ProtocolError:
    return ProtocolError(pb.CORRUPT_BATCH, message)
