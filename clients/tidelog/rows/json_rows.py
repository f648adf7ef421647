"""Rows of JSON objects, in the form that `json_view.py` describes."""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from tidelog.rows.value_checks import RowError
from tidelog_proto.schema.data_types import Kind
from tidelog_proto.schema.fields import Field, Path, path_text
from tidelog_proto.schema.schema_error import shown
from tidelog_proto.schema.topic_schema import Schema

_NOT_FINITE: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_BEYOND_MICROSECONDS: Final = re.compile(r"[.,]\d{6}(\d+)")
_DECIMAL_TEXT: Final = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_FLOATS: Final = frozenset({Kind.FLOAT32, Kind.FLOAT64})


def row_of_json(schema: Schema, text: bytes | bytearray | str) -> dict[str, Any]:
    """Return the row of a JSON object, for `RowWriter.copy`, which checks it.

    Raises:
        RowError: the text is not a JSON object, a name is repeated, or a value is not the JSON form of its field.
    """
    try:
        row = json.loads(text, parse_float=Decimal, parse_constant=_no_constant, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise RowError(
            f"the topic is typed, and {shown(text)} is not a JSON object with its fields: {error}"
        ) from error
    if not isinstance(row, dict):
        raise RowError(f"the topic is typed, and {shown(text)} is not a JSON object with its fields; give an object")
    return row_of_object(schema, row)


def row_of_object(schema: Schema, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a parsed JSON object whose numbers with a fraction or exponent are Decimals or floats.

    Raises:
        RowError: a value is not the JSON form of its field.
    """
    return _struct(row, schema.fields, ())


def _struct(row: Mapping[str, Any], fields: Sequence[Field], path: Path) -> dict[str, Any]:
    by_name = {field.name: field for field in fields}
    return {
        name: value if (field := by_name.get(name)) is None else _value(value, field, (*path, name))
        for name, value in row.items()
    }


def _value(value: Any, field: Field, path: Path) -> Any:
    """Return the Python value for a JSON value; other values are left to the check of the row."""
    kind = field.type.kind
    if value is None:
        return None
    if kind is Kind.STRUCT and isinstance(value, dict):
        return _struct(value, field.children, path)
    if kind is Kind.LIST and isinstance(value, list):
        (item,) = field.children
        return [_value(each, item, (*path, item.name)) for each in value]
    if kind in _FLOATS:
        return _float(value)
    convert = _FROM_TEXT.get(kind)
    if convert is None or not isinstance(value, str):
        return value
    try:
        return convert(value)
    except (ValueError, InvalidOperation, binascii.Error) as error:
        raise RowError(
            f"field {shown(path_text(path))}: {shown(value)} is not the JSON form of {field.type}: {error}; give "
            f"{_FORMS[kind]}"
        ) from error


def _float(value: Any) -> Any:
    """Return the nearest float of a number; leave one that a float cannot hold to the check of the row."""
    if isinstance(value, Decimal):
        nearest = float(value)
        return nearest if math.isfinite(nearest) and (nearest or not value) else value
    return _NOT_FINITE.get(value, value) if isinstance(value, str) else value


def _datetime(text: str) -> datetime:
    if (beyond := _BEYOND_MICROSECONDS.search(text)) and beyond[1].strip("0"):
        raise ValueError("it has more digits than microseconds")  # `fromisoformat` would leave them out
    return datetime.fromisoformat(text)


def _decimal(text: str) -> Decimal:
    if not _DECIMAL_TEXT.fullmatch(text):
        raise ValueError("it is not a decimal number")  # `Decimal` takes spaces, underscores and digits of all scripts
    return Decimal(text)


def _binary(text: str) -> bytes:
    value = base64.b64decode(text, validate=True)
    if base64.b64encode(value).decode() != text:
        raise ValueError("it has bits beyond its last byte")
    return value


_FROM_TEXT: Final[Mapping[Kind, Callable[[str], Any]]] = {
    Kind.DECIMAL128: _decimal,
    Kind.BINARY: _binary,
    Kind.DATE32: date.fromisoformat,
    Kind.TIMESTAMP: _datetime,
    Kind.TIMESTAMP_UTC: _datetime,
}
_FORMS: Final = {
    Kind.DECIMAL128: "a string such as '1.50'",
    Kind.BINARY: "base64",
    Kind.DATE32: "a string such as '2026-01-31'",
    Kind.TIMESTAMP: "a string such as '2026-01-31T08:00:00'",
    Kind.TIMESTAMP_UTC: "a string such as '2026-01-31T08:00:00Z'",
}


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON; use the string {name!r}")


def _unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    listed = list(pairs)
    row = dict(listed)
    if len(row) != len(listed):
        names = [name for name, _ in listed]
        raise ValueError(f"a name is repeated: {shown(sorted({name for name in names if names.count(name) > 1}))}")
    return row
