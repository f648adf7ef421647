"""Validation of batches from other nodes: derived batches must satisfy all rules of others, and their own."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.proto.batches import (
    EVERYTHING,
    NOW_US,
    ONE,
    Given,
    arrow_body,
    batch_of,
    given_records,
    header_crc_fixed,
    restamped,
)
from tests.proto.derived_batches import derived, nothing_left
from tests.proto.deriving import derive_batches

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.columns import OFFSET_DELTA, TIMESTAMP_TYPE, columns_of
from tidelog_proto.batch.header import Codec, Flags, unpack_header
from tidelog_proto.batch.record_batch import RecordBatch, encode_batch
from tidelog_proto.batch.verification import verify_batch, verify_stored
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import BATCH_UNCOMPRESSED_BYTES_MAX, DERIVED_EXTRA_BYTES, HEADER_BYTES, TAG_BYTES_MAX

FLAGS = int(Flags.DERIVED | Flags.TIMESTAMP | Flags.VALUE)
DELTAS = pa.array([0, 4], OFFSET_DELTA.type)
STAMPS = pa.array([NOW_US, NOW_US], TIMESTAMP_TYPE)
VALUES = pa.array([b"a", b"bb"], pa.binary())
CODECS = [Codec.NONE, Codec.LZ4, Codec.ZSTD]
OFFSETS = {1: [3], 3: [0, 2, 9]}


def refusal(batch: bytes) -> ProtocolError:
    with pytest.raises(ProtocolError) as refused:
        verify_stored(batch)
    return refused.value


def outcome(batch: bytes | bytearray) -> None:
    """Let a batch be refused in order, or be taken and then decode with offsets that ascend: nothing else."""
    try:
        header = verify_stored(batch)
    except ProtocolError:
        return
    offsets = [record.offset for record in RecordBatch.parse(batch)]
    assert len(offsets) == header.record_count
    assert offsets == sorted(set(offsets))
    assert all(header.base_offset <= offset < header.end_offset for offset in offsets)


def made(records: Given, codec: Codec) -> bytes:
    """Return a derived batch in any of the codecs that they may have."""
    count = len(records.values)
    plain = derived(records, OFFSETS[count], base=0, end=20)
    if codec is Codec.NONE:
        return plain
    columns = RecordBatch.parse(plain).columns()
    arrays: dict[str, Any] = {"offset_delta": pa.array(OFFSETS[count], OFFSET_DELTA.type)}
    arrays |= dict(zip(columns.schema.names, columns.columns, strict=True))
    body = bytes(memoryview(arrow_body(codec, **arrays)))
    header = unpack_header(plain)
    # All of these are small: a message without compression is as long as its decompressed buffers say.
    lengths = unpack_header(plain).uncompressed_length - metadata(plain[HEADER_BYTES:]) + metadata(body)
    flags = header.flags & ~0xF00
    stamps = {"base_timestamp_us": header.base_timestamp_us, "max_timestamp_us": header.max_timestamp_us}
    return batch_of(body, flags, count, codec=codec, uncompressed_length=lengths, last_offset_delta=19, **stamps)


def metadata(body: bytes) -> int:
    return 8 + int(struct.unpack_from("<i", body, 4)[0])


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("records", [ONE, EVERYTHING], ids=["one", "everything"])
def test_derived_batches_are_only_accepted_from_nodes(records: Given, codec: Codec) -> None:
    good = made(records, codec)
    assert verify_stored(good) == unpack_header(good)
    with pytest.raises(ProtocolError) as refused:
        verify_batch(good)
    assert refused.value.code == pb.UNSUPPORTED_BATCH


def test_batches_of_producers_are_checked_as_ever() -> None:
    good = encode_batch(columns_of([b"a", b"b"]), now_us=NOW_US).to_bytes()
    assert verify_stored(good) == verify_batch(good)
    assert refusal(batch_of(b"x", int(Flags.VALUE), 1)).code == pb.CORRUPT_BATCH
    transactional = batch_of(arrow_body(value=VALUES), int(Flags.VALUE | Flags.TRANSACTIONAL), 2)
    assert refusal(transactional).code == pb.UNSUPPORTED_BATCH


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("records", [ONE, EVERYTHING], ids=["one", "everything"])
def test_every_damaged_byte(records: Given, codec: Codec) -> None:
    good = made(records, codec)
    for at in range(len(good)):
        bad = bytearray(good)
        bad[at] ^= 1 << (at % 8)
        assert refusal(bytes(bad)).code in {pb.CORRUPT_BATCH, pb.UNSUPPORTED_BATCH}
        for mask in (0x01, 0x80, 0xFF):
            bad = bytearray(good)
            bad[at] ^= mask
            outcome(restamped(bad) if at >= HEADER_BYTES else header_crc_fixed(bad))
    for end in range(HEADER_BYTES, len(good)):
        assert refusal(restamped(good[:end])).code == pb.CORRUPT_BATCH


def test_every_damaged_byte_of_a_batch_without_records() -> None:
    good = nothing_left(base=7, end=90)
    assert verify_stored(good).end_offset == 90
    for at in range(HEADER_BYTES):
        for bit in range(8):
            bad = bytearray(good)
            bad[at] ^= 1 << bit
            assert refusal(bytes(bad)).code in {pb.CORRUPT_BATCH, pb.UNSUPPORTED_BATCH}
            outcome(header_crc_fixed(bad))
    assert refusal(good + b"\0").code == pb.CORRUPT_BATCH


@given(records=given_records(), data=st.data())
@settings(max_examples=150)
def test_splices_with_matching_crcs(records: Given, data: st.DataObject) -> None:
    encoded = encode_batch(records.columns(), now_us=NOW_US).to_bytes()
    keep = np.array(data.draw(st.lists(st.booleans(), min_size=len(records.values), max_size=len(records.values))))
    (good,) = derive_batches([encoded], [keep.astype(np.bool_)], epoch=1)
    assert verify_stored(good).record_count == keep.sum()
    raw = bytearray(good)
    if len(raw) == HEADER_BYTES:
        return
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(HEADER_BYTES, len(raw) - 1))
        layout = data.draw(st.sampled_from(["<b", "<h", "<i", "<q"]))
        size = struct.calcsize(layout)
        number = data.draw(st.integers(-(2 ** (8 * size - 1)), 2 ** (8 * size - 1) - 1) | st.sampled_from([-1, 0, 1]))
        raw[at : at + size] = struct.pack(layout, number)
    outcome(restamped(raw))


@given(body=st.binary(max_size=300), flags=st.integers(0, 31), count=st.integers(0, 1000))
@settings(max_examples=100)
def test_any_body_at_all(body: bytes, flags: int, count: int) -> None:
    outcome(batch_of(body, flags | Flags.DERIVED, count, last_offset_delta=max(count, 1)))


def stored(count: int = 2, *, flags: int = FLAGS, last: int = 4, **arrays: Any) -> bytes:
    return batch_of(arrow_body(**arrays), flags, count, last_offset_delta=last)


def test_the_honest_batch_of_the_cases_below_is_taken() -> None:
    assert verify_stored(stored(offset_delta=DELTAS, timestamp=STAMPS, value=VALUES)).record_count == 2


@pytest.mark.parametrize(
    ("deltas", "message"),
    [
        ([0, 5], "exceeds the last offset delta"),
        ([0, 0], "ascending order"),
        ([3, 2], "ascending order"),
        ([4, 0], "ascending order"),
        ([0, None], "1 nulls"),
        ([0, 2**32 - 1], "exceeds the last offset delta"),
    ],
)
def test_invalid_deltas_are_refused(deltas: list[int | None], message: str) -> None:
    array = pa.array(deltas, OFFSET_DELTA.type)
    assert message in refusal(stored(offset_delta=array, timestamp=STAMPS, value=VALUES)).message


@pytest.mark.parametrize(
    "wrong",
    [pa.array([0, 4], pa.uint64()), pa.array([0, 4], pa.uint16()), pa.array([b"0", b"4"]), pa.nulls(2)],
    ids=lambda array: str(array.type),
)
def test_other_types_as_deltas(wrong: Any) -> None:
    assert refusal(stored(offset_delta=wrong, timestamp=STAMPS, value=VALUES)).code == pb.CORRUPT_BATCH


def test_columns_that_are_not_the_headers() -> None:
    assert "arrays in" in refusal(stored(timestamp=STAMPS, value=VALUES)).message
    assert "arrays in" in refusal(stored(offset_delta=DELTAS, value=VALUES, flags=FLAGS)).message
    assert refusal(stored(timestamp=STAMPS, offset_delta=DELTAS, value=VALUES)).code == pb.CORRUPT_BATCH
    body = arrow_body(offset_delta=DELTAS, timestamp=STAMPS, value=VALUES)
    assert "arrays in" in refusal(batch_of(body, FLAGS & ~Flags.DERIVED, 2)).message


def test_timestamps_and_tags_are_checked_as_in_any_batch() -> None:
    late = pa.array([NOW_US, NOW_US + 1], TIMESTAMP_TYPE)
    assert "timestamp" in refusal(stored(offset_delta=DELTAS, timestamp=late, value=VALUES)).message
    tags = pa.array([None, "x" * (TAG_BYTES_MAX + 1)])
    batch = stored(offset_delta=DELTAS, timestamp=STAMPS, value=VALUES, tag=tags, flags=FLAGS | Flags.TAG)
    assert refusal(batch).code == pb.BATCH_TOO_LARGE


def test_a_bomb_takes_no_memory() -> None:
    zeros = pa.array([bytes(80 << 20)], pa.binary())
    deltas, stamps = DELTAS.slice(0, 1), STAMPS.slice(0, 1)
    body = arrow_body(Codec.ZSTD, offset_delta=deltas, timestamp=stamps, value=zeros)
    before = pa.total_allocated_bytes()
    most = BATCH_UNCOMPRESSED_BYTES_MAX + DERIVED_EXTRA_BYTES
    for claimed, code in ((len(body), pb.CORRUPT_BATCH), (most, pb.CORRUPT_BATCH), (most + 1, pb.BATCH_TOO_LARGE)):
        assert refusal(batch_of(body, FLAGS, 1, codec=Codec.ZSTD, uncompressed_length=claimed)).code == code
    assert pa.total_allocated_bytes() <= before
