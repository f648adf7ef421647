"""The JSON Schema of the values of a topic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tidelog_proto.schema.data_types import Kind
from tidelog_proto.schema.fields import Field
from tidelog_proto.schema.topic_schema import Schema

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_LEAVES: Final[dict[Kind, dict[str, Any]]] = {
    Kind.BOOL: {"type": "boolean"},
    Kind.INT8: {"type": "integer", "format": "int8"},
    Kind.INT16: {"type": "integer", "format": "int16"},
    Kind.INT32: {"type": "integer", "format": "int32"},
    Kind.INT64: {"type": "integer", "format": "int64"},
    Kind.FLOAT32: {"type": "number", "format": "float"},
    Kind.FLOAT64: {"type": "number", "format": "double"},
    Kind.STRING: {"type": "string"},
    Kind.BINARY: {"type": "string", "contentEncoding": "base64"},
    Kind.DATE32: {"type": "string", "format": "date"},
    Kind.TIMESTAMP: {"type": "string", "format": "date-time-local"},
    Kind.TIMESTAMP_UTC: {"type": "string", "format": "date-time"},
}


def json_schema(schema: Schema) -> dict[str, Any]:
    """Return a JSON Schema with all fields; decimals are strings with the format `decimal`, a precision and a scale."""
    return {"$schema": _DIALECT, **_object(schema.fields)}


def _object(fields: Sequence[Field]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {field.name: _value(field) for field in fields},
        "required": [field.name for field in fields if field.required],
        "additionalProperties": False,
    }


def _value(field: Field) -> dict[str, Any]:
    value = _type(field)
    if not field.required:
        value["type"] = [value["type"], "null"]
    if field.doc:
        value["description"] = field.doc
    return value


def _type(field: Field) -> dict[str, Any]:
    kind, precision, scale = field.type
    if kind is Kind.STRUCT:
        return _object(field.children)
    if kind is Kind.LIST:
        return {"type": "array", "items": _value(field.children[0])}
    if kind is Kind.DECIMAL128:
        return {"type": "string", "format": "decimal", "precision": precision, "scale": scale}
    return dict(_LEAVES[kind])
