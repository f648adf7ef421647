from __future__ import annotations

import contextlib
import struct

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.proto.batches import EVERYTHING, arrow_body

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import Codec
from tidelog_proto.batch.ipc_message import (
    LZ4_FRAME,
    METADATA_BYTES_MAX,
    ZSTD,
    Message,
    buffer_lengths,
    metadata_bytes,
    padded,
    parse_message,
    uncompressed_bytes,
)
from tidelog_proto.errors import ProtocolError

VALUES = pa.array([b"a", None, b"ccc" * 10], pa.binary())
GOOD = bytes(memoryview(arrow_body(value=VALUES)))


def refuse(message: bytes, match: str) -> None:
    with pytest.raises(ProtocolError, match=match) as refused:
        parse_message(message)
    assert refused.value.code == pb.CORRUPT_BATCH


def patched(layout: str, old: tuple[int, ...], new: tuple[int, ...]) -> bytes:
    """Replace numbers in the metadata of GOOD, at the one place where they are."""
    before, after = struct.pack(layout, *old), struct.pack(layout, *new)
    assert GOOD.count(before) == 1
    return GOOD.replace(before, after)


def test_a_message_as_pyarrow_writes_it() -> None:
    message = parse_message(GOOD)
    body_at = 8 + metadata_bytes(GOOD)
    assert message == Message(3, ((3, 1),), ((0, 1), (8, 16), (24, 31)), None, body_at, len(GOOD) - body_at)
    assert buffer_lengths(GOOD, message) == [1, 16, 31]
    assert uncompressed_bytes(message, [1, 16, 31]) == body_at + 8 + 16 + 32 == len(GOOD)


def test_all_columns() -> None:
    raw = bytes(memoryview(EVERYTHING.columns().serialize()))
    message = parse_message(raw)
    assert message.record_count == 3
    assert [count for _, count in message.nodes] == [0, 1, 1, 0, 0, 0, 1, 1]
    assert len(message.buffers) == 20
    assert uncompressed_bytes(message, buffer_lengths(raw, message)) == len(raw)


@pytest.mark.parametrize(("codec", "number"), [(Codec.LZ4, LZ4_FRAME), (Codec.ZSTD, ZSTD)])
def test_compressed_buffers_tell_their_length(codec: Codec, number: int) -> None:
    raw = bytes(memoryview(arrow_body(codec, value=VALUES)))
    message = parse_message(raw)
    assert message.compression == number
    assert buffer_lengths(raw, message) == [1, 16, 31]


def test_a_compressed_message_may_hold_buffers_as_they_are() -> None:
    raw = bytearray(memoryview(arrow_body(Codec.LZ4, value=pa.array([b"abcdefgh"], pa.binary()))))
    message = parse_message(bytes(raw))
    offset, stored = message.buffers[-1]
    at = message.body_at + offset
    raw[at : at + 8] = struct.pack("<q", -1)
    assert buffer_lengths(bytes(raw), message)[-1] == stored - 8


@pytest.mark.parametrize("length", [0, 4, 7, 8, 100])
def test_cut_short(length: int) -> None:
    refuse(GOOD[:length], "Arrow")


def test_prefixes() -> None:
    refuse(b"\0" + GOOD[1:], "not an Arrow message")
    for length in (0, -8, 12, METADATA_BYTES_MAX + 8, 2**31 - 1, -(2**31)):
        refuse(GOOD[:4] + struct.pack("<i", length) + GOOD[8:], "bytes of metadata")


def test_schema_message_is_refused() -> None:
    schema = bytes(memoryview(pa.schema([("value", pa.binary())]).serialize()))
    refuse(schema, "not a V5 RecordBatch")


def test_the_older_metadata_version() -> None:
    sink = pa.BufferOutputStream()
    columns = pa.record_batch({"value": VALUES})
    options = pa.ipc.IpcWriteOptions(metadata_version=pa.ipc.MetadataVersion.V4)
    with pa.ipc.new_stream(sink, columns.schema, options=options) as writer:
        writer.write_batch(columns)
        end = sink.tell()
    stream = bytes(memoryview(sink.getvalue()))
    refuse(stream[8 + metadata_bytes(stream) : end], "not a V5 RecordBatch")


def test_metadata_of_its_own() -> None:
    sink = pa.BufferOutputStream()
    columns = pa.record_batch({"value": VALUES})
    with pa.ipc.new_stream(sink, columns.schema) as writer:
        writer.write_batch(columns, custom_metadata={b"smuggled": b"data"})
        end = sink.tell()
    stream = bytes(memoryview(sink.getvalue()))
    refuse(stream[8 + metadata_bytes(stream) : end], "custom metadata")


def test_variadic_buffers() -> None:
    view = pa.array([b"longer than twelve bytes"], pa.binary_view())
    refuse(bytes(memoryview(arrow_body(value=view))), "variadic")


def test_body_lengths() -> None:
    body_bytes = parse_message(GOOD).body_length
    for length in (body_bytes + 8, body_bytes - 8, -1, 2**62):
        refuse(patched("<q", (body_bytes,), (length,)), "declares a body of")


@pytest.mark.parametrize(
    "new",
    [
        *[(8, 16, 24, 32), (16, 16, 24, 31), (0, 16, 24, 31), (8, 17, 24, 31), (8, 16, 24, -1), (8, 16, 24, 2**62)],
        *[(-8, 16, 24, 31), (8, -16, 24, 31), (8, 24, 24, 31), (8, 16, 32, 31), (8, 16, 24, 16), (8, 16, 24, 40)],
    ],
)
def test_buffers_that_overlap_leave_gaps_or_point_outside(new: tuple[int, int, int, int]) -> None:
    raw = patched("<4q", (8, 16, 24, 31), new)
    message = parse_message(raw)
    if new == (8, 16, 24, 32):  # the padding counted in: the same place
        assert buffer_lengths(raw, message) == [1, 16, 32]
        return
    with pytest.raises(ProtocolError) as refused:
        buffer_lengths(raw, message)
    assert refused.value.code == pb.CORRUPT_BATCH


def test_a_compressed_buffer_too_short_for_its_length() -> None:
    raw = GOOD[:-32] + bytes(32)
    message = parse_message(raw)._replace(compression=ZSTD, buffers=((0, 1), (8, 16), (24, 31)))
    with pytest.raises(ProtocolError, match="compressed Arrow buffer has 1 bytes"):
        buffer_lengths(raw, message)


@pytest.mark.parametrize("claim", [-2, -8, -(2**63)])
def test_a_compressed_buffer_of_negative_length(claim: int) -> None:
    raw = GOOD[:-32] + struct.pack("<q", claim) + bytes(24)
    message = parse_message(raw)._replace(compression=ZSTD, buffers=((0, 0), (0, 0), (0, 31)), body_length=32)
    message = message._replace(body_at=len(raw) - 32)
    with pytest.raises(ProtocolError, match="after decompression"):
        buffer_lengths(raw, message)


def test_vectors_of_absurd_lengths() -> None:
    message = bytearray(GOOD)
    at = GOOD.index(struct.pack("<qq", 3, 1)) - 4
    assert struct.unpack_from("<I", GOOD, at) == (1,)
    for count in (65, 2**31, 2**32 - 1):
        struct.pack_into("<I", message, at, count)
        refuse(bytes(message), "lists")
    struct.pack_into("<I", message, at, 64)
    refuse(bytes(message), "points outside")


@given(st.lists(st.tuples(st.integers(8, len(GOOD) - 1), st.integers(0, 255)), min_size=1, max_size=6))
@settings(max_examples=300)
def test_any_metadata_is_read_or_refused(edits: list[tuple[int, int]]) -> None:
    raw = bytearray(GOOD)
    for at, byte in edits:
        raw[at] = byte
    # A refusal is one of the two right outcomes here; anything else fails the test.
    with contextlib.suppress(ProtocolError):
        message = parse_message(raw)
        lengths = buffer_lengths(raw, message)
        assert sum(padded(length) for length in lengths) == message.body_length


def test_padding() -> None:
    assert [padded(length) for length in (0, 1, 7, 8, 9)] == [0, 8, 8, 8, 16]
