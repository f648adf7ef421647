"""The types of fields."""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

DECIMAL_PRECISION_MAX: Final = 38


class Kind(IntEnum):
    """Kinds of values. The numbers are those of the canonical encoding and of `schema.proto`; they never change."""

    BOOL = 1
    INT8 = 2
    INT16 = 3
    INT32 = 4
    INT64 = 5
    FLOAT32 = 6
    FLOAT64 = 7
    DECIMAL128 = 8
    STRING = 9
    BINARY = 10
    DATE32 = 11
    TIMESTAMP = 12
    """Microseconds of a calendar and a clock, without a time zone."""
    TIMESTAMP_UTC = 13
    """An instant: microseconds since 1970, UTC."""
    LIST = 14
    STRUCT = 15


class DataType(NamedTuple):
    """A type; the children of a list or a struct are those of its field.

    Attributes:
        precision: number of decimal digits of a decimal; 0 for other types.
        scale: how many of these follow the decimal point.
    """

    kind: Kind
    precision: int = 0
    scale: int = 0

    def __str__(self) -> str:
        if self.kind is Kind.DECIMAL128:
            return f"decimal128({self.precision}, {self.scale})"
        return NAME_OF_KIND[self.kind]


NAME_OF_KIND: Final = {
    **{kind: kind.name.lower() for kind in Kind},
    Kind.TIMESTAMP: "timestamp[us]",
    Kind.TIMESTAMP_UTC: "timestamp[us, UTC]",
}

BOOL: Final = DataType(Kind.BOOL)
INT8: Final = DataType(Kind.INT8)
INT16: Final = DataType(Kind.INT16)
INT32: Final = DataType(Kind.INT32)
INT64: Final = DataType(Kind.INT64)
FLOAT32: Final = DataType(Kind.FLOAT32)
FLOAT64: Final = DataType(Kind.FLOAT64)
STRING: Final = DataType(Kind.STRING)
BINARY: Final = DataType(Kind.BINARY)
DATE32: Final = DataType(Kind.DATE32)
TIMESTAMP: Final = DataType(Kind.TIMESTAMP)
TIMESTAMP_UTC: Final = DataType(Kind.TIMESTAMP_UTC)
LIST: Final = DataType(Kind.LIST)
STRUCT: Final = DataType(Kind.STRUCT)


def decimal128(precision: int, scale: int) -> DataType:
    """Return the type of decimal numbers with `precision` digits, `scale` of them after the decimal point."""
    return DataType(Kind.DECIMAL128, precision, scale)


NESTED: Final = frozenset({Kind.LIST, Kind.STRUCT})
INTEGERS: Final = (Kind.INT8, Kind.INT16, Kind.INT32, Kind.INT64)
"""From the narrowest to the widest."""
