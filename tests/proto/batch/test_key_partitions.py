from __future__ import annotations

import mmh3
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog_proto.batch.key_partitions import FEW_KEYS, partition_column, partition_for_key, partition_list

# MurmurHash3_x86_32 with seed 0, as published with its reference implementations.
PUBLISHED = {
    b"": 0,
    b"aaaa": 0x7EEED987,
    b"Hello, world!": 0xC0363E43,
    b"hello": 0x248BFA47,
    b"hello, world": 0x149BBB7F,
    b"The quick brown fox jumps over the lazy dog": 0x2E4FF723,
    b"\x21\x43\x65\x87": 0xF55B516B,
    b"\xff\xff\xff\xff": 0x76293B50,
    b"\x00": 0x514E28B7,
    b"\x00\x00\x00\x00": 0x2362F9DE,
}


@pytest.mark.parametrize("key", PUBLISHED)
def test_published_hashes(key: bytes) -> None:
    assert mmh3.hash(key, 0, signed=False) == PUBLISHED[key]
    for partitions in (1, 2, 3, 4, 7, 4096):
        assert partition_for_key(key, partitions) == (PUBLISHED[key] & 0x7FFFFFFF) % partitions


def test_hashes_with_the_highest_bit_are_made_positive_by_masking_it() -> None:
    assert PUBLISHED[b"Hello, world!"] > 0x7FFFFFFF
    assert partition_for_key(b"Hello, world!", 10) == 0x40363E43 % 10


@given(keys=st.lists(st.none() | st.binary(max_size=8), max_size=30), partitions=st.integers(1, 4096))
def test_a_column_gets_what_its_keys_get(keys: list[bytes | None], partitions: int) -> None:
    expected = [None if key is None else partition_for_key(key, partitions) for key in keys]
    column = pa.array([b"before", *keys], pa.binary()).slice(1)
    result = partition_column(column, partitions)
    assert result.type == pa.int32()
    assert result.to_pylist() == expected


def test_every_partition_gets_its_share() -> None:
    keys = pa.array([b"key-%d" % i for i in range(4000)])
    counts = [0] * 4
    for partition in partition_column(keys, 4).to_pylist():
        assert partition is not None
        counts[partition] += 1
    assert min(counts) > 800


@given(keys=st.lists(st.binary(max_size=300), max_size=30), partitions=st.integers(1, 4096))
def test_a_list_gets_what_its_column_gets(keys: list[bytes], partitions: int) -> None:
    result = partition_list(keys, partitions)
    assert result is not None
    assert result.equals(partition_column(pa.array(keys, pa.binary()), partitions))


def test_the_column_is_taken_for_lists_that_are_long_or_have_records_without_a_key() -> None:
    assert partition_list([b"a"] * FEW_KEYS, 4) is not None
    assert partition_list([b"a"] * (FEW_KEYS + 1), 4) is None
    assert partition_list([b"a", None], 4) is None
