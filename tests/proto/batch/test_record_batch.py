from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.proto.batches import CODECS, EVERYTHING, NOW_US, ONE, Given, batch_of, given_records, restamped
from tests.proto.derived_batches import derived, nothing_left

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.columns import columns_of
from tidelog_proto.batch.header import Codec, Flags, stamp_owner, unpack_header, whole_common_batch
from tidelog_proto.batch.record_batch import RecordBatch, encode_batch, iter_batches
from tidelog_proto.batch.verification import verify_batch
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import BATCH_RECORDS_MAX, HEADER_BYTES


@given(records=given_records(), codec=st.sampled_from(CODECS), offset=st.integers(0, 2**62))
@settings(max_examples=150)
def test_every_combination_of_columns_and_codecs_comes_back(records: Given, codec: Codec, offset: int) -> None:
    encoded = encode_batch(records.columns(), now_us=NOW_US, codec=codec)
    stored = bytearray(encoded.to_bytes())
    assert verify_batch(bytes(stored)) == unpack_header(encoded.header)
    stamp_owner(stored, base_offset=offset, append_timestamp_us=1, epoch=2, owner_incarnation=3, previous_digest=4)
    batch = RecordBatch.parse(stored)
    assert list(batch) == records.records(offset)
    assert batch.columns().equals(records.columns())
    assert (batch.base_offset, batch.end_offset, len(batch)) == (offset, offset + len(records.values), len(batch))


@given(records=given_records(max_size=80), codec=st.sampled_from(CODECS), data=st.data())
@settings(max_examples=100)
def test_every_slice_of_columns_can_be_sent(records: Given, codec: Codec, data: st.DataObject) -> None:
    columns = records.columns()
    start = data.draw(st.integers(0, columns.num_rows - 1))
    part = columns.slice(start, data.draw(st.integers(1, columns.num_rows)))
    encoded = encode_batch(part, now_us=NOW_US, codec=codec).to_bytes()
    verify_batch(encoded)
    assert RecordBatch.parse(encoded).columns().equals(part)


@pytest.mark.parametrize("codec", CODECS)
def test_columns_by_themselves(codec: Codec) -> None:
    batch = RecordBatch.parse(encode_batch(EVERYTHING.columns(), now_us=1, codec=codec).to_bytes())
    assert batch.values() == EVERYTHING.values
    assert batch.keys() == EVERYTHING.keys
    assert batch.tags() == EVERYTHING.tags
    assert batch.timestamps_us() == EVERYTHING.timestamps_us
    assert batch.headers() == [tuple(one) for one in EVERYTHING.headers or []]
    assert batch.header.base_timestamp_us == -3
    assert batch.header.max_timestamp_us == NOW_US + 5


def test_absent_columns() -> None:
    batch = RecordBatch.parse(encode_batch(columns_of([b"a", b"b"]), now_us=77).to_bytes())
    assert batch.keys() == [None, None]
    assert batch.tags() == [None, None]
    assert batch.headers() == [(), ()]
    assert batch.timestamps_us() == [77, 77]
    assert batch.columns().schema.names == ["value"]


def test_header_says_what_was_asked_for() -> None:
    encoded = encode_batch(
        columns_of([b"a", None], keys=[None, b"k"]),
        now_us=9,
        codec=Codec.ZSTD,
        producer_id=7,
        producer_epoch=3,
        base_sequence=11,
        control=True,
    )
    header = unpack_header(encoded.header)
    assert header.codec is Codec.ZSTD
    assert header.flags & ~0xF00 == Flags.KEY | Flags.VALUE | Flags.CONTROL
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, 11)
    assert (header.record_count, header.last_offset_delta) == (2, 1)
    assert encoded.length == header.length == len(encoded.to_bytes()) == HEADER_BYTES + len(encoded.body)
    assert RecordBatch.parse(encoded.to_bytes()).control


@pytest.mark.parametrize("codec", CODECS)
def test_slices(codec: Codec) -> None:
    stored = bytearray(encode_batch(EVERYTHING.columns(), now_us=1, codec=codec).to_bytes())
    stamp_owner(stored, base_offset=100, append_timestamp_us=1, epoch=0, owner_incarnation=0, previous_digest=0)
    batch = RecordBatch.parse(stored)
    expected = EVERYTHING.records(100)
    for _ in range(2):  # the second time the columns are decoded already
        assert batch.slice_from(0) is batch
        assert batch.slice_from(100) is batch
        tail = batch.slice_from(101)
        assert list(tail) == expected[1:]
        assert list(tail.slice_from(102)) == expected[2:]
        assert tail.slice_from(100) is tail
        assert (tail.base_offset, tail.end_offset, len(tail)) == (101, 103, 2)
        assert tail.columns().equals(EVERYTHING.columns().slice(1))
        gone = batch.slice_from(500)
        assert (len(gone), gone.base_offset, list(gone)) == (0, 103, [])
        assert list(batch) == expected


def test_a_slice_of_columns_is_encoded_without_the_rest() -> None:
    count = 1000
    columns = columns_of(
        [b"%d" % i * 50 for i in range(count)],
        keys=[None if i % 3 else b"k" for i in range(count)],
        timestamps_us=range(count),
        headers=[[("h", b"%d" % i)] * (i % 3) for i in range(count)],
    )
    for start in (0, 1, 501, 998):
        part = columns.slice(start, 2)
        for codec in CODECS:
            encoded = encode_batch(part, now_us=1, codec=codec)
            assert encoded.length < 2000
            assert verify_batch(encoded.to_bytes()).record_count == 2
            assert RecordBatch.parse(encoded.to_bytes()).columns().equals(part)


def test_uncompressed_columns_are_not_copied() -> None:
    buffer = encode_batch(columns_of([b"v" * 1000]), now_us=1).to_bytes()
    before = pa.total_allocated_bytes()
    columns = RecordBatch.parse(buffer).columns()
    assert pa.total_allocated_bytes() == before
    assert columns.column("value").to_pylist() == [b"v" * 1000]


def test_batches_back_to_back_at_odd_positions() -> None:
    parts = [encode_batch(columns_of([b"x" * size]), now_us=size).to_bytes() for size in (1, 2, 3, 50)]
    found = list(iter_batches(memoryview(b"".join(parts))))
    assert [bytes(view) for view in found] == parts
    assert [RecordBatch.parse(view).values() for view in found] == [[b"x" * size] for size in (1, 2, 3, 50)]
    assert list(iter_batches(b"")) == []


@pytest.mark.parametrize("cut", [1, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 1])
def test_an_incomplete_batch_behind_whole_ones(cut: int) -> None:
    whole = encode_batch(columns_of([b"x"]), now_us=1).to_bytes()
    batches = iter_batches(whole + whole[:cut])
    assert bytes(next(batches)) == whole
    with pytest.raises(ProtocolError) as refused:
        next(batches)
    assert refused.value.code == pb.CORRUPT_BATCH


def test_garbage_between_batches() -> None:
    with pytest.raises(ProtocolError) as refused:
        list(iter_batches(bytes(HEADER_BYTES)))
    assert refused.value.code == pb.CORRUPT_BATCH
    huge = bytearray(encode_batch(columns_of([b"x"]), now_us=1).to_bytes())
    huge[12:16] = b"\xff" * 4
    with pytest.raises(ProtocolError) as refused:
        list(iter_batches(huge))
    assert refused.value.code == pb.BATCH_TOO_LARGE


@pytest.mark.parametrize("codec", CODECS)
def test_parse_refuses_every_flipped_bit_and_every_cut(codec: Codec) -> None:
    good = encode_batch(ONE.columns(), now_us=1, codec=codec).to_bytes()
    for at in range(len(good)):
        for bit in range(8):
            bad = bytearray(good)
            bad[at] ^= 1 << bit
            with pytest.raises(ProtocolError):
                RecordBatch.parse(bad)
        with pytest.raises(ProtocolError):
            RecordBatch.parse(good[:at])
    with pytest.raises(ProtocolError):
        RecordBatch.parse(good + b"\0")


def test_parse_refuses_what_it_cannot_place() -> None:
    good = encode_batch(columns_of([b"a", b"b"]), now_us=1).to_bytes()
    with pytest.raises(ProtocolError) as refused:
        RecordBatch.parse(restamped(good, flags=int(Flags.KEY)))
    assert refused.value.code == pb.UNSUPPORTED_BATCH


def test_body_without_arrow_message_is_refused() -> None:
    batch = RecordBatch.parse(batch_of(b"not arrow at all", int(Flags.VALUE), 1))
    with pytest.raises(ProtocolError) as refused:
        batch.values()
    assert refused.value.code == pb.CORRUPT_BATCH


def test_rows_that_are_not_the_headers() -> None:
    good = encode_batch(columns_of([b"a", b"b"]), now_us=1).to_bytes()
    batch = RecordBatch.parse(restamped(good, record_count=3, last_offset_delta=2))
    with pytest.raises(ProtocolError, match="2 rows"):
        list(batch)


def test_unencodable_columns_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        encode_batch(columns_of([]), now_us=1)
    with pytest.raises(TypeError, match="canonical"):
        encode_batch(pa.record_batch({"value": ["text"]}), now_us=1)
    with pytest.raises(TypeError, match="canonical"):
        encode_batch(pa.record_batch({"key": pa.array([b"k"])}), now_us=1)
    noise = random.Random(1).randbytes(17 * 2**20)
    too_many = pa.RecordBatch.from_arrays([pa.nulls(BATCH_RECORDS_MAX + 1, pa.binary())], names=["value"])
    too_long = columns_of([noise])
    too_long_uncompressed = columns_of([bytes(2**20)] * 65)
    for columns, codec in ((too_many, Codec.NONE), (too_long, Codec.LZ4), (too_long_uncompressed, Codec.ZSTD)):
        with pytest.raises(ProtocolError) as refused:
            encode_batch(columns, now_us=1, codec=codec)
        assert refused.value.code == pb.BATCH_TOO_LARGE


def test_largest_legal_counts() -> None:
    columns = pa.RecordBatch.from_arrays([pa.nulls(BATCH_RECORDS_MAX, pa.binary())], names=["value"])
    encoded = encode_batch(columns, now_us=1)
    assert verify_batch(encoded.to_bytes()).record_count == BATCH_RECORDS_MAX


# ------------------------------------------------------------------- derived batches

GAPS = derived(EVERYTHING, [12, 13, 17], base=10, end=20)


def test_a_derived_batch_gives_each_record_its_offset() -> None:
    batch = RecordBatch.parse(GAPS)
    assert (batch.base_offset, batch.end_offset, len(batch), batch.derived) == (10, 20, 3, True)
    assert batch.offsets().to_pylist() == [record.offset for record in batch] == [12, 13, 17]
    assert [record._replace(offset=0) for record in batch] == [
        record._replace(offset=0) for record in EVERYTHING.records()
    ]
    assert batch.columns().equals(EVERYTHING.columns())
    assert batch.values() == EVERYTHING.values
    assert batch.timestamps_us() == EVERYTHING.timestamps_us


@pytest.mark.parametrize("is_decoded", [False, True])
def test_slices_of_a_derived_batch(is_decoded: bool) -> None:
    for offset in range(8, 23):
        batch = RecordBatch.parse(GAPS)
        if is_decoded:
            batch.columns()
        part = batch.slice_from(offset)
        left = [each for each in (12, 13, 17) if each >= offset]
        assert part.offsets().to_pylist() == [record.offset for record in part] == left
        assert part.values() == EVERYTHING.values[3 - len(left) :]
        assert (len(part), part.base_offset, part.end_offset) == (len(left), min(max(offset, 10), 20), 20)
        again = part.slice_from(17)
        assert [record.offset for record in again] == [each for each in left if each >= 17]
        assert (part.slice_from(0) is part, again.slice_from(3) is again) == (True, True)


def test_a_batch_without_records() -> None:
    batch = RecordBatch.parse(nothing_left(base=10, end=10 + 2**32))
    assert (batch.base_offset, batch.end_offset, len(batch), batch.control) == (10, 10 + 2**32, 0, False)
    parts = (
        list(batch),
        batch.values(),
        batch.keys(),
        batch.timestamps_us(),
        batch.headers(),
        batch.offsets().to_pylist(),
    )
    assert not any(parts)
    assert batch.columns().num_rows == 0
    part = batch.slice_from(2**32)
    assert (part.base_offset, part.end_offset, len(part), list(part)) == (2**32, 10 + 2**32, 0, [])


def test_offsets_of_other_batches() -> None:
    batch = RecordBatch.parse(
        restamped(encode_batch(columns_of([b"a", b"b", b"c"]), now_us=1).to_bytes(), base_offset=5)
    )
    assert batch.offsets().to_pylist() == [5, 6, 7]
    assert batch.slice_from(6).offsets().to_pylist() == [6, 7]
    assert batch.slice_from(99).offsets().to_pylist() == []
    assert not batch.derived


_VARIED: st.SearchStrategy[dict[str, Any]] = st.one_of(
    *(
        st.fixed_dictionaries({name: values})
        for name, values in {
            "flags": st.integers(0, 2**20 - 1),
            "body_length": st.integers(0, 1000),
            "uncompressed_length": st.sampled_from([0, 2**32 - 1]),
            "record_count": st.integers(0, 4),
            "body_crc": st.just(1),
            "schema_id": st.integers(0, 1),
            "last_offset_delta": st.integers(0, 4),
            "base_timestamp_us": st.just(2**62),
            "base_offset": st.integers(0, 2**63 - 1),
            "sequence_span": st.integers(0, 5),
        }.items()
    )
)


@given(records=given_records(max_size=3), codec=st.sampled_from(CODECS), changes=_VARIED, data=st.data())
@settings(max_examples=300)
def test_the_fast_path_of_common_batches_accepts_nothing_that_parsing_refuses(
    records: Given, codec: Codec, changes: dict[str, Any], data: st.DataObject
) -> None:
    good = encode_batch(records.columns(), now_us=NOW_US, codec=codec).to_bytes()
    has_values = bool(unpack_header(good).flags & Flags.VALUE)
    assert whole_common_batch(memoryview(good)) == (unpack_header(good) if has_values else None)
    changed = unpack_header(good)._replace(**changes).pack() + good[HEADER_BYTES:]
    at = data.draw(st.integers(0, len(good) - 1))
    damaged = good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]
    for raw in (changed, damaged, good + b"x", good[:-1], good[:HEADER_BYTES], b""):
        header = whole_common_batch(raw)
        if header is not None:
            assert header == RecordBatch.parse(raw).header
            assert not header.flags & (Flags.CONTROL | Flags.DERIVED | Flags.PROJECTED)


def test_a_batch_of_some_records_keeps_their_offsets_and_columns() -> None:
    columns = columns_of([b"v%d" % n for n in range(6)], keys=[b"k"] * 6, timestamps_us=[NOW_US + n for n in range(6)])
    raw = bytearray(encode_batch(columns, now_us=NOW_US).to_bytes())
    stamp_owner(raw, base_offset=100, append_timestamp_us=1, epoch=1, owner_incarnation=1, previous_digest=0)
    batch = RecordBatch.parse(bytes(raw)).slice_from(101)
    kept = batch.keeping(np.array([True, False, False, True, False]))
    assert (list(kept.offset_list()), kept.values(), kept.keys()) == ([101, 104], [b"v1", b"v4"], [b"k", b"k"])
    assert (kept.base_offset, kept.end_offset, len(kept), kept.derived) == (101, 106, 2, True)
    assert kept.timestamps_us() == [NOW_US + 1, NOW_US + 4]
    assert kept.slice_from(102).values() == [b"v4"]
    assert kept.count_below(104) == 1
    again = kept.keeping(np.array([False, True]))
    assert (list(again.offset_list()), again.values()) == ([104], [b"v4"])
    none = kept.keeping(np.zeros(2, np.bool_))
    assert (len(none), list(none.offset_list()), none.end_offset) == (0, [], 106)
