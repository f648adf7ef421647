"""Columns of records in expressions: readers test them, nodes do not."""

from __future__ import annotations

from typing import Final

from tidelog_proto.filters.expression import EVERY_ROW, AllOf, Expression, Leaf, all_of, any_of
from tidelog_proto.schema.data_types import BINARY, INT32, INT64, STRING, TIMESTAMP_UTC, DataType

RECORD_COLUMN_IDS: Final = {"_partition": -1, "_offset": -2, "_timestamp": -3, "_key": -4, "_tag": -5}
"""In place of ids of fields, which are positive."""
RECORD_COLUMN_NAMES: Final = {number: name for name, number in RECORD_COLUMN_IDS.items()}
RECORD_COLUMN_TYPES: Final[dict[int, DataType]] = dict(
    zip(RECORD_COLUMN_NAMES, (INT32, INT64, TIMESTAMP_UTC, BINARY, STRING), strict=True)
)


def of_fields(expression: Expression) -> Expression:
    """Return an expression without tests of record columns, which is true of all rows of which this one is."""
    if isinstance(expression, Leaf):
        return EVERY_ROW if expression.field_id < 0 else expression
    return (all_of if isinstance(expression, AllOf) else any_of)(map(of_fields, expression.nodes))
