"""Assignment of keys to partitions, equal in every client and version.

`(murmur3_32(key, seed 0) & 0x7fffffff) % partitions`, with MurmurHash3_x86_32 over the key's bytes. Rejected: Python's
`hash` (differs between processes) and CRC32C (its low bits depend mostly on the key's last bytes).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import mmh3
import numpy as np
import pyarrow as pa

from tidelog_proto.batch.key_hash import murmur3_slices, slices_of

FEW_KEYS: Final = 4_096
"""Number of keys up to which hashing them one by one is faster than as a column, which takes some sixty numpy calls for
any length."""

_POSITIVE: Final = 0x7FFFFFFF


def partition_for_key(key: bytes, partitions: int) -> int:
    """Return the partition of `key`, 0 to `partitions - 1`."""
    assert partitions > 0
    return (mmh3.hash(key, 0, signed=False) & _POSITIVE) % partitions


def partition_column(keys: pa.Array[Any], partitions: int) -> pa.Array[Any]:
    """Return the partition of every key of a binary column as int32; null keys give null."""
    hashes = murmur3_slices(slices_of(keys))
    numbers = ((hashes & np.uint32(_POSITIVE)) % np.uint32(partitions)).astype(np.int32)
    mask = keys.is_null().to_numpy(zero_copy_only=False) if keys.null_count else None
    result: pa.Array[Any] = pa.array(numbers, pa.int32(), mask=mask)
    return result


def partitions_of_keys(
    columns: pa.RecordBatch, partitions: int, keys: Sequence[bytes | None] | None = None
) -> pa.Array[Any]:
    """Return the partition of every key of a batch as int32; null keys give null.

    Args:
        columns: a batch with the column `key`.
        keys: the same keys as a list, from which few keys are hashed faster.
    """
    few = None if keys is None else partition_list(keys, partitions)
    return partition_column(columns.column("key"), partitions) if few is None else few


def partition_list(keys: Sequence[bytes | None], partitions: int) -> pa.Array[Any] | None:
    """Return the partition of every key of a list, equal to `partition_column` of its column.

    Returns None if the caller should use the column: for more than `FEW_KEYS` keys, or keys that are not all bytes.
    """
    if len(keys) > FEW_KEYS:
        return None
    try:
        hashes: Any = np.fromiter(map(mmh3.hash, keys), np.int32, len(keys))  # type: ignore[arg-type]  # None raises
    except TypeError:
        return None
    hashes &= np.int32(_POSITIVE)
    hashes %= np.int32(partitions)
    return pa.array(hashes, pa.int32())
