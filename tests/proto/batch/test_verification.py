from __future__ import annotations

import contextlib
import struct
import tracemalloc
import zlib
from typing import Any, Final

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.proto.batches import (
    CODECS,
    EVERYTHING,
    NOW_US,
    ONE,
    VALUE,
    Given,
    arrow_body,
    batch_of,
    given_records,
    header_crc_fixed,
    restamped,
)

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.columns import HEADERS_TYPE, TIMESTAMP_TYPE, columns_of, schema_of
from tidelog_proto.batch.header import Codec, Flags, unpack_header
from tidelog_proto.batch.record_batch import RecordBatch, encode_batch
from tidelog_proto.batch.verification import verify_batch
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import (
    BATCH_BYTES_MAX,
    BATCH_RECORDS_MAX,
    BATCH_UNCOMPRESSED_BYTES_MAX,
    HEADER_BYTES,
    MIB,
    TAG_BYTES_MAX,
)

VALUES = pa.array([b"a", b"bb"], pa.binary())
KEYED: Final = int(Flags.KEY | Flags.VALUE)


def refusal(batch: bytes) -> ProtocolError:
    with pytest.raises(ProtocolError) as refused:
        verify_batch(batch)
    return refused.value


def outcome(batch: bytes | bytearray) -> None:
    """Let a batch be refused in order, or be taken and then decode: nothing else may happen."""
    try:
        verify_batch(batch)
    except ProtocolError:
        return
    records = list(RecordBatch.parse(batch))
    assert len(records) == unpack_header(batch).record_count


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("records", [ONE, EVERYTHING], ids=["one", "everything"])
def test_every_damaged_byte_is_refused_by_a_crc(records: Given, codec: Codec) -> None:
    good = encode_batch(records.columns(), now_us=NOW_US, codec=codec).to_bytes()
    for at in range(len(good)):
        bad = bytearray(good)
        bad[at] ^= 1 << (at % 8)
        assert refusal(bytes(bad)).code in {pb.CORRUPT_BATCH, pb.UNSUPPORTED_BATCH}
    for end in range(0, len(good), 3):
        assert refusal(good[:end]).code == pb.CORRUPT_BATCH
    assert refusal(good + b"\0").code == pb.CORRUPT_BATCH


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("records", [ONE, EVERYTHING], ids=["one", "everything"])
def test_every_damaged_body_byte_with_matching_crcs(records: Given, codec: Codec) -> None:
    good = encode_batch(records.columns(), now_us=NOW_US, codec=codec).to_bytes()
    for at in range(HEADER_BYTES, len(good)):
        for mask in (0x01, 0x80, 0xFF):
            bad = bytearray(good)
            bad[at] ^= mask
            outcome(restamped(bad))


@pytest.mark.parametrize("codec", CODECS)
def test_every_damaged_header_byte_with_a_matching_crc(codec: Codec) -> None:
    good = encode_batch(EVERYTHING.columns(), now_us=NOW_US, codec=codec).to_bytes()
    for at in range(124):
        for bit in range(8):
            bad = bytearray(good)
            bad[at] ^= 1 << bit
            outcome(header_crc_fixed(bad))


@pytest.mark.parametrize("codec", CODECS)
def test_every_cut_with_matching_crcs(codec: Codec) -> None:
    good = encode_batch(EVERYTHING.columns(), now_us=NOW_US, codec=codec).to_bytes()
    for end in range(HEADER_BYTES, len(good)):
        assert refusal(restamped(good[:end])).code == pb.CORRUPT_BATCH


@given(records=given_records(), codec=st.sampled_from(CODECS), data=st.data())
@settings(max_examples=150)
def test_splices_with_matching_crcs(records: Given, codec: Codec, data: st.DataObject) -> None:
    raw = bytearray(encode_batch(records.columns(), now_us=NOW_US, codec=codec).to_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(HEADER_BYTES, len(raw) - 1))
        layout = data.draw(st.sampled_from(["<b", "<h", "<i", "<q"]))
        size = struct.calcsize(layout)
        number = data.draw(st.integers(-(2 ** (8 * size - 1)), 2 ** (8 * size - 1) - 1) | st.sampled_from([-1, 0, 1]))
        raw[at : at + size] = struct.pack(layout, number)
    outcome(restamped(raw))


@given(
    body=st.binary(max_size=300), flags=st.integers(0, 31), count=st.integers(1, 1000), codec=st.sampled_from(CODECS)
)
@settings(max_examples=100)
def test_any_body_at_all(body: bytes, flags: int, count: int, codec: Codec) -> None:
    assert refusal(batch_of(body, flags, count, codec=codec)).code in {pb.CORRUPT_BATCH, pb.UNSUPPORTED_BATCH}


@given(st.binary(max_size=400))
@settings(max_examples=100)
def test_any_bytes_at_all(raw: bytes) -> None:
    assert refusal(raw).code == pb.CORRUPT_BATCH


# ------------------------------------------------------------------- what pyarrow alone would let pass


def test_the_honest_batches_of_the_cases_below_are_taken() -> None:
    assert verify_batch(batch_of(arrow_body(value=VALUES), VALUE, 2)).record_count == 2
    for codec in (Codec.LZ4, Codec.ZSTD):
        body = arrow_body(codec, value=VALUES)
        good = encode_batch(columns_of([b"a", b"bb"]), now_us=NOW_US, codec=codec)
        length = unpack_header(good.header).uncompressed_length
        assert verify_batch(batch_of(body, VALUE, 2, codec=codec, uncompressed_length=length)).codec is codec


@pytest.mark.parametrize("inside", [Codec.LZ4, Codec.ZSTD])
@pytest.mark.parametrize("outside", CODECS)
def test_compression_that_the_flags_do_not_name(inside: Codec, outside: Codec) -> None:
    if inside is outside:
        outside = Codec.LZ4 if inside is Codec.ZSTD else Codec.ZSTD
    body = bytes(memoryview(arrow_body(inside, value=VALUES)))
    wrapped = {
        Codec.GZIP: lambda: zlib.compress(body, 1, 31),
        Codec.SNAPPY: lambda: bytes(memoryview(pa.Codec("snappy").compress(body))),
    }.get(outside, lambda: body)()
    error = refusal(batch_of(wrapped, VALUE, 2, codec=outside, uncompressed_length=len(body)))
    assert "so the Arrow message must have" in error.message


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_no_compression_where_the_flags_name_one(codec: Codec) -> None:
    body = arrow_body(value=VALUES)
    assert "got no compression" in refusal(batch_of(body, VALUE, 2, codec=codec)).message


def test_extra_columns() -> None:
    body = arrow_body(value=VALUES, more=pa.array([1, 2]))
    assert "arrays in" in refusal(batch_of(body, VALUE, 2)).message
    body = arrow_body(key=VALUES, value=VALUES)
    assert "arrays in" in refusal(batch_of(body, VALUE, 2)).message


def test_missing_columns() -> None:
    body = arrow_body(value=VALUES)
    assert "arrays in" in refusal(batch_of(body, int(Flags.KEY | Flags.VALUE), 2)).message
    assert refusal(batch_of(body, int(Flags.KEY), 2)).code == pb.UNSUPPORTED_BATCH


def test_trailing_bytes_behind_the_message() -> None:
    body = bytes(memoryview(arrow_body(value=VALUES)))
    for tail in (b"\0", bytes(8), body):
        assert "declares a body of" in refusal(batch_of(body + tail, VALUE, 2)).message


def test_trailing_bytes_inside_of_the_message() -> None:
    body = bytes(memoryview(arrow_body(value=VALUES)))
    body_bytes = len(body) - 8 - int.from_bytes(body[4:8], "little")
    at = body.index(struct.pack("<q", body_bytes))
    longer = body[:at] + struct.pack("<q", body_bytes + 8) + body[at + 8 :] + bytes(8)
    assert "the last Arrow buffer ends at" in refusal(batch_of(longer, VALUE, 2)).message


@pytest.mark.parametrize("count", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("large", [pa.large_binary(), pa.large_string()])
def test_64_bit_offsets(count: int, large: pa.DataType) -> None:
    body = arrow_body(value=pa.array(["ab"] * count, large))
    assert "bytes of offsets" in refusal(batch_of(body, VALUE, count)).message


@pytest.mark.parametrize(
    "wrong",
    [
        pa.array([1, 2], pa.int64()),
        pa.array([True, False]),
        pa.array(["a", "b"]).dictionary_encode(),
        pa.array([b"a", b"b"], pa.binary(1)),
        pa.array([b"a", b"b"], pa.binary_view()),
        pa.array([[b"a"], [b"b"]]),
        pa.nulls(2),
    ],
    ids=lambda array: str(array.type),
)
def test_other_types_as_value(wrong: pa.Array[Any]) -> None:
    assert refusal(batch_of(arrow_body(value=wrong), VALUE, 2)).code == pb.CORRUPT_BATCH


def test_nulls_where_none_may_be() -> None:
    flags = int(Flags.TIMESTAMP | Flags.VALUE)
    body = arrow_body(timestamp=pa.array([NOW_US, None], TIMESTAMP_TYPE), value=VALUES)
    assert "timestamp: 1 nulls" in refusal(batch_of(body, flags, 2)).message
    flags = int(Flags.VALUE | Flags.HEADERS)
    for headers, message in (
        ([[], None], "headers: 1 nulls"),
        ([[], [None]], "a header: 1 nulls"),
        ([[], [{"key": None, "value": b""}]], "a header's key: 1 nulls"),
    ):
        body = arrow_body(value=VALUES, headers=pa.array(headers, HEADERS_TYPE))
        assert message in refusal(batch_of(body, flags, 2)).message


def test_wrong_counts() -> None:
    body = arrow_body(value=VALUES)
    for count in (1, 3, BATCH_RECORDS_MAX):
        assert "rows, but the header declares" in refusal(batch_of(body, VALUE, count)).message


def test_null_counts_that_the_bitmap_does_not_bear_out() -> None:
    body = bytes(memoryview(arrow_body(value=pa.array([b"a", None, b"c", None], pa.binary()))))
    assert body.count(struct.pack("<qq", 4, 2)) == 1
    for count in (1, 3, 4):
        wrong = body.replace(struct.pack("<qq", 4, 2), struct.pack("<qq", 4, count))
        assert "null_count" in refusal(batch_of(wrong, VALUE, 4)).message


def test_invalid_utf8_is_refused() -> None:
    bad = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(struct.pack("<3i", 0, 1, 2)), pa.py_buffer(b"\xff\xfe")]
    )
    body = arrow_body(value=VALUES, tag=bad)
    assert "UTF8" in refusal(batch_of(body, int(Flags.VALUE | Flags.TAG), 2)).message


@pytest.mark.parametrize("offsets", [(0, 5, 3), (0, 1, 2**31 - 1), (-1, 1, 2), (0, 2, 1)])
def test_offsets_that_point_astray(offsets: tuple[int, int, int]) -> None:
    body = bytearray(memoryview(arrow_body(value=VALUES)))
    at = body.index(struct.pack("<3i", 0, 1, 3))
    body[at : at + 12] = struct.pack("<3i", *offsets)
    assert refusal(batch_of(bytes(body), VALUE, 2)).code == pb.CORRUPT_BATCH


def test_timestamps_of_the_header() -> None:
    good = encode_batch(columns_of([b"a", b"b"], timestamps_us=[5, 9]), now_us=1).to_bytes()
    for base, most in ((4, 9), (5, 10), (6, 9), (5, 8)):
        error = refusal(restamped(good, base_timestamp_us=base, max_timestamp_us=most))
        assert "timestamp" in error.message
    plain = encode_batch(columns_of([b"a", b"b"]), now_us=1).to_bytes()
    assert "has no timestamp column" in refusal(restamped(plain, max_timestamp_us=2)).message


def test_tags_up_to_their_limit() -> None:
    flags = int(Flags.VALUE | Flags.TAG)
    body = arrow_body(value=VALUES, tag=pa.array(["\u00e9" * (TAG_BYTES_MAX // 2)] * 2))
    assert verify_batch(batch_of(body, flags, 2)).record_count == 2
    body = arrow_body(value=VALUES, tag=pa.array([None, "x" * (TAG_BYTES_MAX + 1)]))
    assert refusal(batch_of(body, flags, 2)).code == pb.BATCH_TOO_LARGE


def test_unsupported_batch_is_refused() -> None:
    body = arrow_body(value=VALUES)
    assert refusal(batch_of(body, int(VALUE | Flags.TRANSACTIONAL), 2)).code == pb.UNSUPPORTED_BATCH
    derived = int(VALUE | Flags.TIMESTAMP | Flags.DERIVED)
    assert refusal(batch_of(body, derived, 2)).code == pb.UNSUPPORTED_BATCH
    assert verify_batch(batch_of(body, int(VALUE | Flags.CONTROL), 2)).flags & Flags.CONTROL


# ------------------------------------------------------------------- bombs


def test_uncompressed_lengths_past_the_limit_are_refused_by_the_header() -> None:
    for codec in CODECS[1:]:
        batch = batch_of(b"x", VALUE, 1, codec=codec, uncompressed_length=BATCH_UNCOMPRESSED_BYTES_MAX + 1)
        assert refusal(batch).code == pb.BATCH_TOO_LARGE


def bomb(codec: Codec) -> bytes:
    """80 MiB of zeros in a body far below the limit."""
    zeros = pa.array([bytes(80 * MIB)], pa.binary())
    if codec in {Codec.LZ4, Codec.ZSTD}:
        return bytes(memoryview(arrow_body(codec, value=zeros)))
    message = arrow_body(value=zeros)
    if codec is Codec.GZIP:
        return zlib.compress(message, 1, 31)
    return bytes(memoryview(pa.Codec("snappy").compress(message)))


@pytest.mark.parametrize("codec", CODECS[1:])
def test_bombs_take_no_memory(codec: Codec) -> None:
    body = bomb(codec)
    assert len(body) < BATCH_BYTES_MAX // 2
    for claimed in (len(body), 1 * MIB, BATCH_UNCOMPRESSED_BYTES_MAX):
        batch = batch_of(body, VALUE, 1, codec=codec, uncompressed_length=claimed)
        arrow_before = pa.total_allocated_bytes()
        tracemalloc.start()
        try:
            assert refusal(batch).code == pb.CORRUPT_BATCH
            python_peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert python_peak < 2 * claimed + MIB
        assert pa.total_allocated_bytes() <= arrow_before


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_buffers_that_claim_more_or_less_than_they_hold(codec: Codec) -> None:
    good = encode_batch(columns_of([b"a" * 100]), now_us=NOW_US, codec=codec).to_bytes()
    at = good.rindex(struct.pack("<q", 100))  # in front of the last buffer, the data
    for claim in (99, 101, 104, 0, -2, 2**40, 2**63 - 1, -(2**63)):
        bad = bytearray(good)
        bad[at : at + 8] = struct.pack("<q", claim)
        assert refusal(restamped(bad)).code == pb.CORRUPT_BATCH
        if 0 <= claim < 200:
            # And with the header telling the same lie.
            length = unpack_header(good).uncompressed_length - 104 + -(-claim // 8) * 8
            assert refusal(restamped(bad, uncompressed_length=length)).code == pb.CORRUPT_BATCH


def test_a_header_that_claims_less_than_the_wrapped_body() -> None:
    for codec in (Codec.GZIP, Codec.SNAPPY):
        good = encode_batch(columns_of([b"a" * 100]), now_us=NOW_US, codec=codec).to_bytes()
        length = unpack_header(good).uncompressed_length
        for claim in (0, 1, length - 1, length + 1, BATCH_UNCOMPRESSED_BYTES_MAX):
            assert refusal(restamped(good, uncompressed_length=claim)).code == pb.CORRUPT_BATCH


@pytest.mark.parametrize("key", [None, b"", b"key"], ids=["no key", "empty key", "key"])
@pytest.mark.parametrize("value", [None, b"", b"value"], ids=["tombstone", "empty", "value"])
def test_single_records_are_judged_as_pyarrow_judges_them(key: bytes | None, value: bytes | None) -> None:
    """One record of bytes is checked by hand: every four bytes of its body are changed and both must agree."""
    body = arrow_body(key=pa.array([key], pa.binary()), value=pa.array([value], pa.binary()))
    assert verify_batch(batch_of(body, KEYED, 1)).record_count == 1
    for at in range(8, len(body) - 3):
        for number in (-1, 1, 3, 6, 1 << 30):
            changed = bytearray(body)
            struct.pack_into("<i", changed, at, number)
            batch = batch_of(bytes(changed), KEYED, 1)
            try:
                read = pa.ipc.read_record_batch(pa.py_buffer(bytes(changed)), schema_of(KEYED))
                read.validate(full=True)
            except (pa.ArrowException, OSError, EOFError):
                refusal(batch)
                continue
            with contextlib.suppress(ProtocolError):  # a node is stricter than pyarrow, never laxer
                verify_batch(batch)


def test_single_records_with_offsets_that_point_astray() -> None:
    body = bytearray(arrow_body(value=pa.array([b"abc"], pa.binary())))
    at = len(body) - 16
    assert struct.unpack_from("<ii3s", body, at) == (0, 3, b"abc")
    for start, end, good in ((0, 3, True), (1, 2, True), (3, 3, True), (2, 1, False), (-1, 2, False), (0, 99, False)):
        struct.pack_into("<ii", body, at, start, end)
        if good:
            assert verify_batch(batch_of(bytes(body), VALUE, 1)).record_count == 1
        else:
            assert "offsets" in refusal(batch_of(bytes(body), VALUE, 1)).message
