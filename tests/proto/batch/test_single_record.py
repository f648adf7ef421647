"""One record encoded by hand is what pyarrow would have made of it, byte for byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog_proto.batch.record_batch import RecordBatch, columns_of, encode_batch
from tidelog_proto.batch.single_record import SINGLE_BYTES_MAX, encode_single
from tidelog_proto.batch.verification import verify_batch

LENGTHS = (0, 1, 7, 8, 9, 63, 64, 65, 255, 256, 4_096, 40_000)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("key", [None, b"", b"k", b"k" * 8, b"k" * 300], ids=lambda key: str(key and len(key)))
def test_the_bytes_are_those_of_the_general_way(length: int, key: bytes | None) -> None:
    value = bytes(range(256)) * (length // 256) + bytes(length % 256)
    columns = columns_of([value], keys=None if key is None else [key])
    single = encode_single(value, key, now_us=123, producer_id=7 << 60, producer_epoch=3, base_sequence=1 << 40)
    general = encode_batch(columns, now_us=123, producer_id=7 << 60, producer_epoch=3, base_sequence=1 << 40)
    assert single.to_bytes() == general.to_bytes()
    assert (single.record_count, single.length) == (1, len(single.to_bytes()))


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("key", [None, b"", b"k" * 9])
@pytest.mark.parametrize("tag", ["", "t", "ä" * 300])
def test_bytes_of_a_tagged_record_are_those_of_the_general_way(length: int, key: bytes | None, tag: str) -> None:
    columns = columns_of([bytes(length)], keys=None if key is None else [key], tags=[tag])
    single = encode_single(bytes(length), key, now_us=123, producer_id=7, tag=tag.encode())
    assert single.to_bytes() == encode_batch(columns, now_us=123, producer_id=7).to_bytes()


@given(value=st.binary(max_size=300), key=st.none() | st.binary(max_size=100))
def test_encoded_record_verifies_and_decodes(value: bytes, key: bytes | None) -> None:
    raw = encode_single(value, key, now_us=5).to_bytes()
    verify_batch(raw)
    (record,) = RecordBatch.parse(raw)
    assert (record.value, record.key, record.timestamp_us) == (value, key, 5)


def test_too_long_record_is_an_assertion_error() -> None:
    with pytest.raises(AssertionError):
        encode_single(bytes(SINGLE_BYTES_MAX), b"k", now_us=0)
