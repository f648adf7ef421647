"""The Avro schema of the values of a topic."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from tidelog_proto.schema.data_types import Kind
from tidelog_proto.schema.fields import ITEM, Field, Path, path_text, paths_below
from tidelog_proto.schema.schema_error import SchemaError, refuse, shown
from tidelog_proto.schema.topic_schema import Schema

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_LEAVES: Final[dict[Kind, Any]] = {
    Kind.BOOL: "boolean",
    Kind.INT8: "int",
    Kind.INT16: "int",
    Kind.INT32: "int",
    Kind.INT64: "long",
    Kind.FLOAT32: "float",
    Kind.FLOAT64: "double",
    Kind.STRING: "string",
    Kind.BINARY: "bytes",
    Kind.DATE32: {"type": "int", "logicalType": "date"},
    Kind.TIMESTAMP: {"type": "long", "logicalType": "local-timestamp-micros"},
    Kind.TIMESTAMP_UTC: {"type": "long", "logicalType": "timestamp-micros"},
}


def avro_schema(schema: Schema, name: str) -> dict[str, Any]:
    """Return an Avro record called `name` with all fields; int8 and int16 are `int`, because Avro has no narrower type.

    Raises:
        SchemaError: a field or the record has a name that Avro cannot have.
    """
    if not _NAME.fullmatch(name):
        raise SchemaError(f"{shown(name)} cannot be a name in Avro; choose ASCII letters, digits and _")
    refuse(
        f"field {shown(path_text(path))}: {shown(field.name)} cannot be a name in Avro; rename it with ASCII letters, "
        "digits and _, or choose another format"
        for path, field in paths_below(schema.fields)
        if not _NAME.fullmatch(field.name)
    )
    return _Records(name).record(schema.fields, ())


class _Records:
    """Gives each record a name of its own."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._count = 0

    def record(self, fields: Sequence[Field], path: Path) -> dict[str, Any]:
        self._count += 1
        # Paths of different structs may have the same text with `_` in between.
        name = "_".join([self._name, *path, str(self._count)]) if path else self._name
        return {"type": "record", "name": name, "fields": [self._field(field, path) for field in fields]}

    def _field(self, field: Field, path: Path) -> dict[str, Any]:
        described: dict[str, Any] = {"name": field.name, "type": self._value(field, (*path, field.name))}
        if not field.required:
            described["default"] = None
        if field.doc:
            described["doc"] = field.doc
        return described

    def _value(self, field: Field, path: Path) -> Any:
        value = self._type(field, path)
        return value if field.required else ["null", value]

    def _type(self, field: Field, path: Path) -> Any:
        kind, precision, scale = field.type
        if kind is Kind.STRUCT:
            return self.record(field.children, path)
        if kind is Kind.LIST:
            return {"type": "array", "items": self._value(field.children[0], (*path, ITEM))}
        if kind is Kind.DECIMAL128:
            return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
        return _LEAVES[kind]
