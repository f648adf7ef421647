from __future__ import annotations

import random
from typing import Any

import mmh3
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog_proto.batch.key_hash import LONG_BYTES, Slices, hash_one, hash_slices, murmur3_slices, slices_of

KNOWN = {
    b"": 0,
    b"a": 0x10F4A4CB0B00E337,
    b"user-1": 0x04C2719A40077F29,
    b"12345678": 0x1D5B215CF80315C6,
    b"123456789": 0xD8376A6B8854BAD4,
}

_MASK = (1 << 64) - 1
_KEYS = st.lists(
    st.none()
    | st.binary(max_size=40)
    | st.builds(lambda byte, length: bytes([byte]) * length, st.integers(0, 255), st.integers(LONG_BYTES - 9, 600)),
    max_size=40,
)


def slow_hash(key: bytes) -> int:
    """The 64-bit hash as the module's description has it, a key at a time."""
    if len(key) > LONG_BYTES:
        return mmh3.hash64(key, 0, signed=False)[0]
    state = len(key) * 0x9E3779B97F4A7C15 & _MASK
    for at in range(0, len(key), 8):
        word = int.from_bytes(key[at : at + 8].ljust(8, b"\0"), "little")
        state = (state ^ word) * 0xBF58476D1CE4E5B9 & _MASK
        state ^= state >> 29
    state = (state ^ state >> 32) * 0x94D049BB133111EB & _MASK
    return state ^ state >> 29


def column_of(keys: list[bytes | None]) -> pa.Array[Any]:
    """A slice, so that offsets do not begin at the front."""
    return pa.array([b"before", *keys, b"behind"], pa.binary()).slice(1, len(keys))


@pytest.mark.parametrize("key", KNOWN)
def test_the_index_hash_never_changes(key: bytes) -> None:
    assert hash_one(key) == KNOWN[key]


@given(keys=_KEYS)
def test_every_key_of_a_column_gets_its_hashes(keys: list[bytes | None]) -> None:
    slices = slices_of(column_of(keys))
    expected = [(slow_hash(key), mmh3.hash(key, 0, signed=False)) for key in keys if key is not None]
    rows = [row for row, key in enumerate(keys) if key is not None]
    assert list(zip(hash_slices(slices)[rows].tolist(), murmur3_slices(slices)[rows].tolist(), strict=True)) == expected
    assert [hash_one(key) for key in keys if key is not None] == [mine for mine, _ in expected]


def test_columns_of_more_than_a_block_are_hashed_like_short_ones() -> None:
    generator = random.Random(7)
    keys = [generator.randbytes(generator.choice((3, 8, 8, 16, 21))) for _ in range(70_000)]
    slices = slices_of(pa.array(keys, pa.binary()))
    assert murmur3_slices(slices).tolist() == [mmh3.hash(key, 0, signed=False) for key in keys]
    assert hash_slices(slices)[::997].tolist() == [slow_hash(key) for key in keys[::997]]


def test_a_string_column_is_hashed_as_its_bytes() -> None:
    tags = ["", "ä", "red", "x" * 4096]
    slices = slices_of(pa.array(tags, pa.string()))
    assert hash_slices(slices).tolist() == [slow_hash(tag.encode()) for tag in tags]


@pytest.mark.parametrize("keys", [[], [None], [b""], [None, b"", None]])
def test_columns_without_bytes(keys: list[bytes | None]) -> None:
    slices = slices_of(pa.array(keys, pa.binary()))
    assert len(hash_slices(slices)) == len(murmur3_slices(slices)) == len(keys)
    assert slices_of(pa.array([], pa.binary())).lengths.tolist() == []


def test_a_key_that_ends_where_the_data_ends_is_not_read_past_that() -> None:
    data = np.frombuffer(b"abcdefghijk", np.uint8)
    slices = Slices(data, np.array([0, 8, 10]), np.array([8, 3, 1]))
    assert hash_slices(slices).tolist() == [slow_hash(b"abcdefgh"), slow_hash(b"ijk"), slow_hash(b"k")]


def test_different_keys_spread() -> None:
    keys = [b"user-%d" % number for number in range(20_000)]
    hashes = hash_slices(slices_of(pa.array(keys, pa.binary())))
    assert len(np.unique(hashes)) == len(keys)
    upper = np.bincount((hashes >> np.uint64(60)).astype(np.int64), minlength=16)
    assert upper.min() > len(keys) / 16 * 0.85
