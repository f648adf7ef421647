"""Rows as JSON objects.

Fields are in the order of the schema. Decimals are strings, times RFC 3339 (those of `timestamp[us, UTC]` end with Z),
dates `YYYY-MM-DD`, bytes base64, and the numbers that JSON lacks the strings "NaN", "Infinity" and "-Infinity".
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping
from datetime import date, datetime
from typing import Any, Final

import numpy as np

from tidelog_proto.batch.record_batch import RecordBatch
from tidelog_proto.batch.row_reader import RowReader, leaf_values
from tidelog_proto.schema.data_types import Kind
from tidelog_proto.schema.fields import Field


def json_values(reader: RowReader, batch: RecordBatch) -> list[bytes | None]:
    """Return each record's row as a JSON object in UTF-8; None for a tombstone.

    Raises:
        ProtocolError: as `RowReader.arrays`.
    """
    dump = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
    return [None if row is None else dump(row).encode() for row in reader.rows(batch, json_leaves)]


def json_leaves(array: Any, field: Field) -> list[Any]:
    """Return the values of a leaf as what JSON has."""
    kind = field.type.kind
    if kind is Kind.FLOAT32:
        # The shortest text that is this number among those of 32 bits: 21.3, and not 21.299999237060547.
        return [None if each is None else _finite(float(str(np.float32(each)))) for each in array.to_pylist()]
    convert = _TO_JSON.get(kind)
    values = leaf_values(array, field)
    return values if convert is None else [None if value is None else convert(value) for value in values]


def _finite(number: float) -> float | str:
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


_TO_JSON: Final[Mapping[Kind, Callable[[Any], Any]]] = {
    Kind.FLOAT64: _finite,
    Kind.DECIMAL128: lambda value: format(value, "f"),
    Kind.BINARY: lambda value: base64.b64encode(value).decode(),
    Kind.DATE32: date.isoformat,
    Kind.TIMESTAMP: datetime.isoformat,
    Kind.TIMESTAMP_UTC: lambda value: value.isoformat().replace("+00:00", "Z"),
}
