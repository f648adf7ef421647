"""Partitioners other than the default: the choice of a record's partition, by name or by the user's function.

The default is elsewhere: keys are hashed as a column (`tidelog_proto.batch.key_partitions`), and records
without a key go to the partition with the fewest unacknowledged bytes. Partitioners are called once for each record, so
they cost more.

`crc32` and `murmur2` choose the same partitions as Kafka clients (librdkafka's default and the Java client), for topics
that are migrated partition by partition. With them, records without a key use the default.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable
from typing import Any, Final

from tidelog.errors import InvalidRequestError

Partitioner = str | Callable[[bytes | None, int], int]
"""A name ("murmur3", "murmur2", "crc32", "round_robin"), or a function of (key or None, number of partitions)."""

Chooser = Callable[[bytes | None, int], int | None]
"""A function of (key or None, number of partitions) that returns a partition number, or None to use the default
partitioner."""

_MASK: Final = 0xFFFFFFFF
_M: Final = 0x5BD1E995
_POSITIVE: Final = 0x7FFFFFFF


def murmur2(key: bytes) -> int:
    """Return MurmurHash2 of a key with the seed of Kafka's Java client, 0 to 2**32 - 1."""
    length = len(key)
    h = (0x9747B28C ^ length) & _MASK
    whole = length & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(key[at : at + 4], "little") * _M & _MASK
        h = (h * _M & _MASK) ^ ((k ^ k >> 24) * _M & _MASK)
    if length > whole:
        h = (h ^ int.from_bytes(key[whole:], "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


def _by_murmur2(key: bytes | None, partitions: int) -> int | None:
    return None if key is None else (murmur2(key) & _POSITIVE) % partitions


def _by_crc32(key: bytes | None, partitions: int) -> int | None:
    return None if key is None else zlib.crc32(key) % partitions


def _round_robin() -> Chooser:
    numbers = itertools.count()
    return lambda _, partitions: next(numbers) % partitions


_NAMED: Final[dict[str, Callable[[], Chooser | None]]] = {
    "murmur3": lambda: None,
    "murmur2": lambda: _by_murmur2,
    "crc32": lambda: _by_crc32,
    "round_robin": _round_robin,
}


def chooser_of(partitioner: Partitioner | None) -> Chooser | None:
    """Return the function that chooses partitions; None for the default.

    Raises:
        InvalidRequestError: the name is unknown, or the argument is neither a name nor a function.
    """
    if partitioner is None:
        return None
    if isinstance(partitioner, str) and partitioner in _NAMED:
        return _NAMED[partitioner]()
    if isinstance(partitioner, str) or not callable(partitioner):
        names = ", ".join(map(repr, _NAMED))
        raise InvalidRequestError(f"partitioner must be one of {names}, or a function, got {partitioner!r}")
    function = partitioner

    def checked(key: bytes | None, partitions: int) -> int:
        number: Any = function(key, partitions)
        if not hasattr(number, "__index__") or not 0 <= number < partitions:
            raise ValueError(f"the partitioner must return a partition from 0 to {partitions - 1}, got {number!r}")
        return int(number)

    return checked
