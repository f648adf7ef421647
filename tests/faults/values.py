"""Values that identify their sender: a record's number is in its bytes, and determines every other byte.

So a reader, or a replica's file, can distinguish records from damaged ones without a list of sent records.
"""

from __future__ import annotations

import struct
from typing import Final

SEQUENCE_BITS: Final = 40
CONTROL: Final = -1
"""Represents the broker's own records, which readers skip."""
CORRUPT: Final = -2
"""Represents bytes that no client sent."""

_U64: Final = struct.Struct(">Q")
_REPEATS_MAX: Final = 25
_MIX: Final = 0x9E3779B97F4A7C15


def number_of(producer: int, sequence: int) -> int:
    """Return the number of a producer's record; `sequence` counts from 0 and grows as the producer sends."""
    assert 0 <= sequence < 1 << SEQUENCE_BITS
    return producer << SEQUENCE_BITS | sequence


def producer_of(number: int) -> int:
    """Return the producer that a record's number names."""
    return number >> SEQUENCE_BITS


def value_of(number: int) -> bytes:
    """Return the bytes of a record, 8 to 200 of them."""
    return _U64.pack(number) * (1 + (number * _MIX >> 32) % _REPEATS_MAX)


def number_in(value: bytes | None) -> int:
    """Return the number of the record in these bytes, CORRUPT if they are not a record."""
    if value is None or len(value) < _U64.size:
        return CORRUPT
    (number,) = _U64.unpack_from(value)
    return int(number) if number < 1 << 63 and value == value_of(number) else CORRUPT


def show(number: int) -> str:
    """Return a record's number as a person reads it: producer and sequence."""
    if number == CONTROL:
        return "a control record"
    if number == CORRUPT:
        return "bytes that no client sent"
    return f"record {number & (1 << SEQUENCE_BITS) - 1} of producer {producer_of(number)}"
