"""Vectorised hashes of columns of keys or tags, without a Python object per record.

Two hashes: MurmurHash3_x86_32, which determines the partition of a key (`key_partitions.py`), equal to `mmh3` of each
key; and a 64-bit hash of this module, by which nodes find records by key and tag (the `.key` and `.tag` files,
docs/formats.md). Neither can change: hashes are stored in files and determine partitions.

All keys of a block are processed in parallel, word by word and sorted by descending length, so that the keys with
another word are always a prefix: a few numpy calls per word. Keys longer than `LONG_BYTES` are hashed one by one in C,
where the cost of a call is small against that of its bytes.

The 64-bit hash of up to `LONG_BYTES` bytes, in unsigned 64-bit arithmetic that wraps around:

    h = length · A;  for each word w of 8 bytes, little-endian, the last one padded with zeros:
        h = (h xor w) · B;  h = h xor (h >> 29)
    h = (h xor (h >> 32)) · C;  h = h xor (h >> 29)

A key whose length is a multiple of 8 has no padded word. The hash of longer keys is the first 64 bits of
MurmurHash3_x64_128.

Rejected: `mmh3` for each key of a column, slower and with an object per key; hashing the dictionary of the column,
which does not save time for unique keys; xxhash, a dependency without support for columns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

import mmh3
import numpy as np
import numpy.typing as npt
import pyarrow as pa

Hashes = npt.NDArray[np.uint64]
"""Hashes of keys: one number per record."""

LONG_BYTES: Final = 256
"""Maximum length of keys that are hashed in parallel; longer keys are hashed one by one."""

_BLOCK_ROWS: Final = 32 * 1024
"""Number of keys that are hashed at once, so that their words fit the processor's cache."""

_A: Final = np.uint64(0x9E3779B97F4A7C15)
_B: Final = np.uint64(0xBF58476D1CE4E5B9)
_C: Final = np.uint64(0x94D049BB133111EB)
_MASK: Final = (1 << 64) - 1
_29: Final = np.uint64(29)
_32: Final = np.uint64(32)

_Number = TypeVar("_Number", np.uint32, np.uint64)
_Ints = npt.NDArray[np.int64]
_Bytes = npt.NDArray[np.uint8]


class Slices(NamedTuple):
    """A column as slices of one buffer.

    Attributes:
        starts: position of each key in `data`.
        lengths: length of each key in bytes; all keys lie inside `data`.
    """

    data: _Bytes
    starts: _Ints
    lengths: _Ints


def slices_of(column: pa.Array[Any]) -> Slices:
    """Return a binary or string column as slices of its data. The slices of nulls are arbitrary."""
    _, offsets, data = column.buffers()
    count = len(column)
    if offsets is None or count == 0:
        return Slices(np.empty(0, np.uint8), np.zeros(count, np.int64), np.zeros(count, np.int64))
    bounds = np.frombuffer(memoryview(offsets), np.int32, count + 1, column.offset * 4).astype(np.int64)
    # A column without a single byte has no data buffer.
    flat = np.frombuffer(memoryview(data), np.uint8) if data is not None and data.size else np.empty(0, np.uint8)
    return Slices(flat, bounds[:-1], np.diff(bounds))


def hash_slices(slices: Slices) -> Hashes:
    """Return the 64-bit hash of each key."""
    return _hash_all(slices, np.uint64, _index_block, _hash_long)


def hash_one(key: bytes) -> int:
    """Return the 64-bit hash of one key, equal to that of `hash_slices` and ten times faster for one key."""
    if len(key) > LONG_BYTES:
        return _hash_long(key)
    state = len(key) * int(_A)
    for at in range(0, len(key), 8):
        state = (state & _MASK ^ int.from_bytes(key[at : at + 8], "little")) * int(_B) & _MASK
        state ^= state >> 29
    state &= _MASK
    state = (state ^ state >> 32) * int(_C) & _MASK
    return state ^ state >> 29


def murmur3_slices(slices: Slices) -> npt.NDArray[np.uint32]:
    """Return MurmurHash3_x86_32 with seed 0 of each key, as `mmh3.hash(key, 0, signed=False)`."""
    return _hash_all(slices, np.uint32, _murmur_block, lambda key: mmh3.mmh3_32_uintdigest(key, 0))


def _hash_long(key: bytes | memoryview) -> int:
    return mmh3.mmh3_x64_128_utupledigest(key, 0)[0]


def _hash_all(
    slices: Slices,
    kind: type[_Number],
    of_block: Callable[[Slices], npt.NDArray[_Number]],
    of_long: Callable[[memoryview], int],
) -> npt.NDArray[_Number]:
    data, starts, lengths = slices
    result = np.empty(len(starts), kind)
    for first in range(0, len(starts), _BLOCK_ROWS):
        block = slice(first, first + _BLOCK_ROWS)
        result[block] = _hash_block(Slices(data, starts[block], lengths[block]), kind, of_block, of_long)
    return result


def _hash_block(
    slices: Slices,
    kind: type[_Number],
    of_block: Callable[[Slices], npt.NDArray[_Number]],
    of_long: Callable[[memoryview], int],
) -> npt.NDArray[_Number]:
    data, starts, lengths = slices
    longest = int(lengths.max(initial=0))
    if longest <= LONG_BYTES and longest == lengths.min(initial=longest):
        return of_block(slices)
    result = np.empty(len(starts), kind)
    # 16-bit numbers are radix-sorted in linear time.
    order = np.argsort(LONG_BYTES - np.minimum(lengths, LONG_BYTES + 1).astype(np.int16), kind="stable")
    long_count = int(np.count_nonzero(lengths > LONG_BYTES))
    view = data.data
    for row in order[:long_count].tolist():
        start = int(starts[row])
        result[row] = of_long(view[start : start + int(lengths[row])])
    short = order[long_count:]
    result[short] = of_block(Slices(data, starts[short], lengths[short]))
    return result


def _index_block(slices: Slices) -> Hashes:
    """Hash keys that are sorted by descending length."""
    state = slices.lengths.astype(np.uint64) * _A
    steps, tails, tail_words = _words(slices, 8)
    for count, words in steps:
        part = state[:count]
        part ^= words
        part *= _B
        part ^= part >> _29
    part = state[tails]
    part ^= tail_words
    part *= _B
    part ^= part >> _29
    state[tails] = part
    state ^= state >> _32
    state *= _C
    state ^= state >> _29
    return state


def _murmur_block(slices: Slices) -> npt.NDArray[np.uint32]:
    """Hash keys that are sorted by descending length."""
    state = np.zeros(len(slices.starts), np.uint32)
    steps, tails, tail_words = _words(slices, 4)
    for count, words in steps:
        part = state[:count]
        part ^= _scrambled(words)
        part[:] = (part << np.uint32(13)) | (part >> np.uint32(19))
        part *= np.uint32(5)
        part += np.uint32(0xE6546B64)
    state[tails] ^= _scrambled(tail_words)
    state ^= slices.lengths.astype(np.uint32)
    state ^= state >> np.uint32(16)
    state *= np.uint32(0x85EBCA6B)
    state ^= state >> np.uint32(13)
    state *= np.uint32(0xC2B2AE35)
    state ^= state >> np.uint32(16)
    return state


def _scrambled(words: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    words = words * np.uint32(0xCC9E2D51)
    words = (words << np.uint32(15)) | (words >> np.uint32(17))
    words *= np.uint32(0x1B873593)
    return words


def _words(slices: Slices, word_bytes: int) -> tuple[Any, _Ints, Any]:
    """Split keys that are sorted by descending length into words.

    Returns:
        An iterator over (number of keys with an n-th word, those words) for each n; the indices of the keys with a
        partial last word; and these words, padded with zeros.
    """
    data, starts, lengths = slices
    kind = np.dtype(f"<u{word_bytes}")
    if len(data) < word_bytes:  # Zeros, so that the data has at least one complete word.
        data = np.concatenate([data, np.zeros(word_bytes, np.uint8)])
    # Overlapping words, one at every byte position of the data.
    words = np.ndarray((len(data) - word_bytes + 1,), kind, data, strides=(1,))
    whole = lengths // word_bytes
    counts = len(starts) - np.cumsum(np.bincount(whole)) if len(starts) else np.zeros(1, np.int64)
    steps = ((count, words[starts[:count] + number * word_bytes]) for number, count in enumerate(counts[:-1].tolist()))
    rests = lengths - whole * word_bytes
    tails = np.flatnonzero(rests)
    positions = starts[tails] + whole[tails] * word_bytes
    # The last word of the data may begin before the partial word; the bytes before it are shifted out.
    inside = np.minimum(positions, len(words) - 1)
    bits = kind.type(8)
    rest_words = words[inside] >> ((positions - inside).astype(kind) * bits)
    masks = (kind.type(1) << (rests[tails].astype(kind) * bits)) - kind.type(1)
    return steps, tails, rest_words & masks
