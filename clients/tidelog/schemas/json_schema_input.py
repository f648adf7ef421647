"""Fields of a JSON Schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from tidelog_proto.schema.data_types import (
    BINARY,
    BOOL,
    DATE32,
    FLOAT32,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    LIST,
    STRING,
    STRUCT,
    TIMESTAMP,
    TIMESTAMP_UTC,
    DataType,
    decimal128,
)
from tidelog_proto.schema.fields import ITEM, Field, Path
from tidelog_proto.schema.proposal import FoundType, Proposal, ProposalBuilder
from tidelog_proto.schema.schema_error import SchemaError, shown

_STEPS_MAX: Final = 16
"""Maximum number of references and single choices around one type."""
_FORMATS: Final[dict[str, dict[str, tuple[DataType, str]]]] = {
    "integer": {
        "int8": (INT8, ""),
        "int16": (INT16, ""),
        "int32": (INT32, ""),
        "int64": (INT64, ""),
        "uint8": (INT16, "uint8 becomes int16"),
        "uint16": (INT32, "uint16 becomes int32"),
        "uint32": (INT64, "uint32 becomes int64"),
        "uint64": (decimal128(20, 0), "uint64 becomes decimal128(20, 0)"),
    },
    "number": {"float": (FLOAT32, ""), "double": (FLOAT64, "")},
    "string": {
        "date": (DATE32, ""),
        "date-time": (TIMESTAMP_UTC, ""),
        "date-time-local": (TIMESTAMP, ""),
        "byte": (BINARY, ""),
    },
    "boolean": {},
}
"""Formats of the registry of OpenAPI, by type."""
_DEFAULTS: Final = {"integer": INT64, "number": FLOAT64, "string": STRING, "boolean": BOOL}
_UNSUPPORTED: Final = ("oneOf", "not", "if", "patternProperties", "prefixItems", "dependentSchemas", "$dynamicRef")
_UNCHECKED: Final = (
    *("enum", "const", "pattern", "minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum"),
    *("exclusiveMaximum", "multipleOf", "minItems", "maxItems", "uniqueItems", "contains", "default"),
)


class _Resolved(NamedTuple):
    """A schema without references and choices around it.

    Attributes:
        nullable: whether null is allowed.
        doc: the outermost description.
    """

    schema: Mapping[str, Any]
    nullable: bool
    doc: str


def fields_of_json_schema(description: object) -> Proposal:
    """Return the fields of a JSON Schema, as its parsed JSON, whose type is `object`.

    Numbers become int64 and float64 unless their `format` names another type.

    Raises:
        SchemaError: it is another value, or a field has a type that no field of a topic can have.
    """
    reading = _Reading(description)
    return reading.builder.proposal(reading.root())


class _Reading:
    def __init__(self, description: object) -> None:
        self.builder = ProposalBuilder()
        self._description = description

    def root(self) -> tuple[Field, ...]:
        resolved = self._resolved(self._description, ())
        if resolved is None:
            return ()
        if resolved.schema.get("type") != "object":
            raise SchemaError("the JSON Schema does not have the type object; describe a record as an object")
        return self._struct(resolved.schema, ())

    def _struct(self, schema: Mapping[str, Any], parent: Path) -> tuple[Field, ...]:
        properties, required = schema.get("properties", {}), schema.get("required", [])
        if not isinstance(properties, Mapping) or not isinstance(required, list):
            self.builder.fault(parent, "properties is not an object, or required is not a list; correct the schema")
            return ()
        if isinstance(extra := schema.get("additionalProperties"), Mapping) and extra:
            self.builder.fault(parent, "additional properties have no names; use a list of objects with key and value")
        found = [self._field(each, (*parent, name), required=name in required) for name, each in properties.items()]
        return tuple(field for field in found if field is not None)

    def _field(self, description: object, path: Path, *, required: bool) -> Field | None:
        self.builder.enter(path)
        resolved = self._resolved(description, path)
        if resolved is None or (found := self._type(resolved.schema, path)) is None:
            return None
        data_type, children = found
        is_required = required and not resolved.nullable
        return Field(0, path[-1], data_type, required=is_required, children=children, doc=resolved.doc)

    def _resolved(self, description: object, path: Path) -> _Resolved | None:
        nullable, doc = False, ""
        for _ in range(_STEPS_MAX):
            if not isinstance(description, Mapping):
                self.builder.fault(path, f"{shown(description)} is not a schema with a type; give an object")
                return None
            doc = doc or _text(description.get("description"))
            nullable |= description.get("nullable") is True
            choices = description.get("anyOf") or description.get("allOf")
            if "$ref" in description:
                description = self._referenced(description["$ref"])
            elif isinstance(choices, list):
                choices, had_null = _without_null(choices, is_any="anyOf" in description)
                nullable |= had_null
                if len(choices) != 1:
                    self.builder.fault(path, "it has several types; only one type, or that type and null, is supported")
                    return None
                description = choices[0]
            else:
                return self._simple(description, path, nullable=nullable, doc=doc)
        self.builder.fault(path, f"it has more than {_STEPS_MAX} references in a row; name the type itself")
        return None

    def _simple(self, schema: Mapping[str, Any], path: Path, *, nullable: bool, doc: str) -> _Resolved | None:
        """Return a schema with one type."""
        if unsupported := [word for word in _UNSUPPORTED if word in schema]:
            self.builder.fault(path, f"{unsupported[0]} is not supported; describe one type")
            return None
        given = schema.get("type")
        if isinstance(given, list):
            kinds = [kind for kind in given if kind != "null"]
            nullable |= len(kinds) < len(given)
            given = kinds[0] if len(kinds) == 1 else given
        if not isinstance(given, str):
            self.builder.fault(path, f"the type is {shown(given)}; give one type, or one type and null")
            return None
        unchecked = [word for word in _UNCHECKED if word in schema]
        if unchecked:
            self.builder.note(path, f"{', '.join(unchecked)}: not part of the field, and not checked")
        return _Resolved({**schema, "type": given}, nullable, doc)

    def _type(self, schema: Mapping[str, Any], path: Path) -> FoundType | None:
        kind = schema["type"]
        if kind == "object":
            return STRUCT, self._struct(schema, path)
        if kind == "array":
            item = self._field(schema.get("items"), (*path, ITEM), required=True)
            return (LIST, (item,)) if item is not None else None
        if kind not in _DEFAULTS:
            self.builder.fault(path, f"the type {shown(kind)} is not supported; use one of {', '.join(_DEFAULTS)}")
            return None
        return self._leaf(kind, schema, path), ()

    def _leaf(self, kind: str, schema: Mapping[str, Any], path: Path) -> DataType:
        given = schema.get("format")
        if given == "decimal" and kind == "string":
            return self.builder.decimal(path, schema, "add precision and scale, such as 9 and 2") or STRING
        if kind == "string" and schema.get("contentEncoding") == "base64":
            return BINARY
        if given is None:
            return _DEFAULTS[kind]
        if not isinstance(given, str) or given not in _FORMATS[kind]:
            self.builder.note(path, f"the format {shown(given)} is not checked; the field is {_DEFAULTS[kind]}")
            return _DEFAULTS[kind]
        data_type, note = _FORMATS[kind][given]
        if note:
            self.builder.note(path, note)
        return data_type

    def _referenced(self, reference: object) -> object:
        """Return the part of the description that a reference names; other documents are not read."""
        found: Any = self._description
        if not isinstance(reference, str) or not reference.startswith("#"):
            return reference
        for part in reference[1:].split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, Mapping) or key not in found:
                return reference
            found = found[key]
        return found


def _without_null(choices: list[Any], *, is_any: bool) -> tuple[list[Any], bool]:
    others = [each for each in choices if not (is_any and isinstance(each, Mapping) and each.get("type") == "null")]
    return others, len(others) < len(choices)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
