"""Which partition a key belongs to: the same answer from every client, for ever.

`(murmur3_32(key, seed 0) & 0x7fffffff) % partitions`, with Austin Appleby's MurmurHash3_x86_32 over the key's bytes.
Rejected: Python's `hash` (differs between processes) and CRC32C (its low bits follow the key's last bytes).
"""

from __future__ import annotations

from typing import Any, Final

import mmh3
import numpy as np
import pyarrow as pa

from tidelog_proto.key_hash import murmur3_slices, slices_of

_POSITIVE: Final = 0x7FFFFFFF


def partition_for_key(key: bytes, partitions: int) -> int:
    """Return the partition of `key`, 0 to `partitions - 1`."""
    assert partitions > 0
    return (mmh3.hash(key, 0, signed=False) & _POSITIVE) % partitions


def partition_column(keys: pa.Array[Any], partitions: int) -> pa.Array[Any]:
    """Return the partition of every key of a binary column as int32; null keys give null."""
    hashes = murmur3_slices(slices_of(keys))
    found = ((hashes & np.uint32(_POSITIVE)) % np.uint32(partitions)).astype(np.int32)
    mask = keys.is_null().to_numpy(zero_copy_only=False) if keys.null_count else None
    result: pa.Array[Any] = pa.array(found, pa.int32(), mask=mask)
    return result
