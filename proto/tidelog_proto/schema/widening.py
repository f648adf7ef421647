"""Types that hold each value of another type."""

from __future__ import annotations

from tidelog_proto.schema.data_types import INTEGERS, DataType, Kind


def widens(narrow: DataType, wide: DataType) -> bool:
    """Return whether `wide` is another type that holds each value of `narrow`, and that a field may change to."""
    if narrow.kind in INTEGERS and wide.kind in INTEGERS:
        return INTEGERS.index(narrow.kind) < INTEGERS.index(wide.kind)
    if narrow.kind is Kind.DECIMAL128 and wide.kind is Kind.DECIMAL128:
        return narrow.scale == wide.scale and narrow.precision < wide.precision
    return narrow.kind is Kind.FLOAT32 and wide.kind is Kind.FLOAT64
