"""The five codecs of a body, and the uncompressed length of a body.

NONE is the plain Arrow IPC message. LZ4 and ZSTD are Arrow's buffer compression: each buffer is compressed separately,
and any Arrow reader can read the message. GZIP and SNAPPY compress the whole message, as Arrow does not support them.

The uncompressed length in the header is exact and is checked before memory is allocated:

- NONE: the body length.
- GZIP, SNAPPY: the length of the decompressed message.
- LZ4, ZSTD: the message's metadata (with prefix and padding) plus the decompressed length of every buffer, each rounded
  up to a multiple of 8. That is the memory that a reader needs.

GZIP is one RFC 1952 member of level 1; ZSTD has a better ratio at a tenth of the time. SNAPPY is the raw block format,
not the framed one.
"""

from __future__ import annotations

import zlib
from typing import Any, Final

import pyarrow as pa

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import Buffer, Codec
from tidelog_proto.batch.ipc_message import (
    PREFIX_BYTES,
    buffer_lengths,
    metadata_bytes,
    parse_message,
    uncompressed_bytes,
)
from tidelog_proto.errors import ProtocolError
from tidelog_proto.process.buffers import batch_pool

_GZIP_LEVEL: Final = 1
_GZIP_WBITS: Final = 31
_SNAPPY_PREAMBLE_BYTES_MAX: Final = 5
_CONTEXT: Final[dict[Codec, pa.ipc.IpcWriteOptions]] = {
    Codec.LZ4: pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False),
    Codec.ZSTD: pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False),
}
_STRONGEST_ZSTD_LEVEL: Final = 19


def encode_body(columns: pa.RecordBatch, codec: Codec, *, typed: bool = False) -> tuple[memoryview, int]:
    """Return the body of canonical or typed columns and its uncompressed length in bytes."""
    if codec in _CONTEXT:
        body = _message_with_compressed_buffers(columns, _CONTEXT[codec])
        description = parse_message(body, typed=typed)
        return body, uncompressed_bytes(description, buffer_lengths(body, description))
    message = columns.serialize(memory_pool=batch_pool())
    if codec is Codec.NONE:
        return _bytes_of(message), message.size
    if codec is Codec.GZIP:
        return memoryview(zlib.compress(message, _GZIP_LEVEL, _GZIP_WBITS)), message.size
    assert codec is Codec.SNAPPY
    return _bytes_of(pa.Codec("snappy").compress(message)), message.size


def strongest_body(columns: pa.RecordBatch, *, typed: bool = False) -> tuple[memoryview, int]:
    """Return the body compressed by zstd at level 19, and its uncompressed length in bytes.

    This takes about a hundred times as long as `encode_body`.
    """
    options = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", _STRONGEST_ZSTD_LEVEL), use_threads=False)
    body = _message_with_compressed_buffers(columns, options)
    description = parse_message(body, typed=typed)
    return body, uncompressed_bytes(description, buffer_lengths(body, description))


def decompressed_message(body: Buffer, codec: Codec, uncompressed_length: int) -> Buffer:
    """Return the Arrow IPC message in a body.

    For GZIP and SNAPPY this is a new buffer of `uncompressed_length` bytes, for other codecs the unchecked body itself.

    Raises:
        ProtocolError: CORRUPT_BATCH if a GZIP or SNAPPY body does not decompress to exactly that many bytes. At most
            one byte more is produced.
    """
    if codec is Codec.GZIP:
        return _gunzip(body, uncompressed_length)
    if codec is Codec.SNAPPY:
        return _unsnappy(body, uncompressed_length)
    return body


def _message_with_compressed_buffers(columns: pa.RecordBatch, options: pa.ipc.IpcWriteOptions) -> memoryview:
    """Write a stream and return the message in it: pyarrow compresses buffers only in streams."""
    sink = pa.BufferOutputStream(memory_pool=batch_pool())
    with pa.ipc.new_stream(sink, columns.schema, options=options) as writer:
        writer.write_batch(columns)
        end = sink.tell()
    stream = _bytes_of(sink.getvalue())
    # The schema message comes first; its size is that of the names and types, which nothing here bounds.
    return stream[PREFIX_BYTES + metadata_bytes(stream, len(stream)) : end]


def _gunzip(body: Buffer, uncompressed_length: int) -> Buffer:
    decompressor = zlib.decompressobj(_GZIP_WBITS)
    try:
        # One byte more than allowed, because a limit of 0 would mean no limit, and a larger message yields the extra
        # byte.
        message = decompressor.decompress(body, uncompressed_length + 1)
    except zlib.error as error:
        raise _corrupt(f"the gzip body does not decompress: {error}") from error
    if len(message) != uncompressed_length or not decompressor.eof or decompressor.unused_data:
        if decompressor.unused_data:
            found = f"a member and {len(decompressor.unused_data)} bytes after it"
        elif len(message) > uncompressed_length:
            found = "more bytes"
        else:
            found = f"{len(message)} bytes" if decompressor.eof else f"{len(message)} bytes of a truncated member"
        raise _corrupt(
            f"the gzip body must be one gzip member of {uncompressed_length} bytes uncompressed, as the header "
            f"declares, got {found}"
        )
    return message


def _unsnappy(body: Buffer, uncompressed_length: int) -> Buffer:
    claimed = _snappy_length(body)
    if claimed != uncompressed_length:
        raise _corrupt(f"the snappy body declares {claimed} bytes uncompressed, the batch header {uncompressed_length}")
    try:
        message: Any = pa.Codec("snappy").decompress(pa.py_buffer(body), decompressed_size=uncompressed_length)
    except (OSError, pa.ArrowException) as error:
        raise _corrupt(f"the snappy body does not decompress: {error}") from error
    return _bytes_of(message)


def _snappy_length(body: Buffer) -> int:
    """Parse the varint at the start of a snappy block: the length that a decompressor would allocate."""
    length = 0
    for at, byte in enumerate(bytes(body[:_SNAPPY_PREAMBLE_BYTES_MAX])):
        length |= (byte & 0x7F) << (7 * at)
        if byte < 0x80:
            return length
    raise _corrupt("the snappy body does not begin with a varint of its uncompressed length")


def _bytes_of(buffer: pa.Buffer) -> memoryview:
    """Return a buffer as a memoryview of unsigned bytes; those of pyarrow are signed."""
    return memoryview(buffer).cast("B")


def _corrupt(message: str) -> ProtocolError:
    return ProtocolError(pb.CORRUPT_BATCH, message)
