"""Which partition a key belongs to: the same answer from every client, for ever.

`(murmur3_32(key, seed 0) & 0x7fffffff) % partitions`, with Austin Appleby's MurmurHash3_x86_32 over the key's bytes.
Rejected: Python's `hash` (differs between processes) and CRC32C (its low bits follow the key's last bytes).
"""

from __future__ import annotations

from typing import Any, Final

import mmh3
import pyarrow as pa

_POSITIVE: Final = 0x7FFFFFFF


def partition_for_key(key: bytes, partitions: int) -> int:
    """Return the partition of `key`, 0 to `partitions - 1`."""
    assert partitions > 0
    return (mmh3.hash(key, 0, signed=False) & _POSITIVE) % partitions


def partition_column(keys: pa.Array[Any], partitions: int) -> pa.Array[Any]:
    """Return the partition of every key of a binary column as int32; null keys give null.

    Each different key is hashed once, so a column with few of them costs no Python per record.
    """
    encoded: Any = keys.dictionary_encode()
    of_unique = [partition_for_key(key, partitions) for key in encoded.dictionary.to_pylist()]
    result: pa.Array[Any] = pa.array(of_unique, pa.int32()).take(encoded.indices)
    return result
