"""Columns of numbers as little-endian bytes, independent of the machine's byte order."""

from __future__ import annotations

from array import array
from typing import Final

_IS_LITTLE_ENDIAN: Final = array("H", [1]).tobytes()[0] == 1


def to_bytes(column: array[int]) -> bytes:
    """Return a column's numbers as bytes."""
    return _swapped(column[:]).tobytes()


def from_bytes(typecode: str, data: bytes) -> array[int]:
    """Return the column that `to_bytes` has encoded; `data` must have a whole number of items."""
    column = array(typecode)
    column.frombytes(data)
    return _swapped(column)


def _swapped(column: array[int]) -> array[int]:
    if not _IS_LITTLE_ENDIAN:
        column.byteswap()
    return column
