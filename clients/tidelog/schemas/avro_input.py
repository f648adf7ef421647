"""Fields of an Avro schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from tidelog_proto.schema.data_types import (
    BINARY,
    BOOL,
    DATE32,
    FLOAT32,
    FLOAT64,
    INT32,
    INT64,
    LIST,
    STRING,
    STRUCT,
    TIMESTAMP,
    TIMESTAMP_UTC,
    DataType,
)
from tidelog_proto.schema.fields import ITEM, Field, Path
from tidelog_proto.schema.proposal import FoundType, Proposal, ProposalBuilder
from tidelog_proto.schema.schema_error import SchemaError, shown

_STEPS_MAX: Final = 16
"""Maximum number of names and wrappers around one type."""
_PRIMITIVES: Final = {
    "boolean": BOOL,
    "int": INT32,
    "long": INT64,
    "float": FLOAT32,
    "double": FLOAT64,
    "bytes": BINARY,
    "string": STRING,
}
_EXACT: Final = "values that are not whole microseconds are refused"
_LOGICAL: Final[dict[tuple[str, str], tuple[DataType, str]]] = {
    ("int", "date"): (DATE32, ""),
    ("long", "timestamp-millis"): (TIMESTAMP_UTC, "timestamp-millis becomes timestamp[us, UTC]"),
    ("long", "timestamp-micros"): (TIMESTAMP_UTC, ""),
    ("long", "timestamp-nanos"): (TIMESTAMP_UTC, f"timestamp-nanos becomes timestamp[us, UTC]; {_EXACT}"),
    ("long", "local-timestamp-millis"): (TIMESTAMP, "local-timestamp-millis becomes timestamp[us]"),
    ("long", "local-timestamp-micros"): (TIMESTAMP, ""),
    ("long", "local-timestamp-nanos"): (TIMESTAMP, f"local-timestamp-nanos becomes timestamp[us]; {_EXACT}"),
}
_NAMED: Final = ("record", "enum", "fixed", "error")


class _Resolved(NamedTuple):
    """A type without unions, names and wrappers around it."""

    kind: str
    schema: Mapping[str, Any]
    nullable: bool


def fields_of_avro(description: object) -> Proposal:
    """Return the fields of an Avro schema, as its parsed JSON, which is a record.

    Raises:
        SchemaError: it is not a record, or a field has a type that no field of a topic can have.
    """
    reading = _Reading()
    resolved = reading.resolved(description, ())
    if resolved is not None and resolved.kind != "record":
        raise SchemaError(f"the Avro schema is a {resolved.kind}; describe a record")
    return reading.builder.proposal(reading.record(resolved.schema, ()) if resolved else ())


class _Reading:
    def __init__(self) -> None:
        self.builder = ProposalBuilder()
        self._named: dict[str, Mapping[str, Any]] = {}

    def record(self, schema: Mapping[str, Any], parent: Path) -> tuple[Field, ...]:
        fields = schema.get("fields")
        if not isinstance(fields, list):
            self.builder.fault(parent, "the record has no list of fields; add one")
            return ()
        found = [self._field(each, parent) for each in fields]
        return tuple(field for field in found if field is not None)

    def resolved(self, description: object, path: Path) -> _Resolved | None:
        nullable, wrapper = False, dict[str, Any]()
        for _ in range(_STEPS_MAX):
            if isinstance(description, list):
                others = [each for each in description if each != "null"]
                nullable |= len(others) < len(description)
                if len(others) != 1:
                    self.builder.fault(path, "it is a union; only one type, or that type and null, is supported")
                    return None
                (description,) = others
            elif isinstance(description, Mapping):
                self._remember(description)
                inner = description.get("type")
                wrapper = {**wrapper, **description}
                if isinstance(inner, str) and inner not in self._named:
                    return _Resolved(inner, wrapper, nullable)
                description = inner
            elif isinstance(description, str) and description in self._named:
                description = self._named[description]
            elif isinstance(description, str):
                return _Resolved(description, wrapper, nullable)
            else:
                self.builder.fault(path, f"{shown(description)} is not a type; correct the schema")
                return None
        self.builder.fault(path, f"it has more than {_STEPS_MAX} wrappers around its type; name the type itself")
        return None

    def _remember(self, description: Mapping[str, Any]) -> None:
        """Keep a named type: later fields may use its name, with its namespace or without."""
        name, namespace = description.get("name"), description.get("namespace")
        if description.get("type") in _NAMED and isinstance(name, str) and name not in {*_PRIMITIVES, *_NAMED, "null"}:
            self._named[name] = description
            self._named[name.rpartition(".")[2]] = description
            if isinstance(namespace, str) and "." not in name:
                self._named[f"{namespace}.{name}"] = description

    def _field(self, description: object, parent: Path) -> Field | None:
        if not isinstance(description, Mapping) or not isinstance(name := description.get("name"), str):
            self.builder.fault(parent, f"{shown(description)} is not a field with a name; correct the schema")
            return None
        path = (*parent, name)
        doc = description.get("doc")
        if "default" in description and description["default"] is not None:
            self.builder.note(path, "the default is not part of the field")
        return self._made(description.get("type"), path, doc if isinstance(doc, str) else "")

    def _made(self, description: object, path: Path, doc: str = "") -> Field | None:
        self.builder.enter(path)
        resolved = self.resolved(description, path)
        if resolved is None or (found := self._type(resolved, path)) is None:
            return None
        data_type, children = found
        return Field(0, path[-1], data_type, required=not resolved.nullable, children=children, doc=doc)

    def _type(self, resolved: _Resolved, path: Path) -> FoundType | None:
        kind, schema, _ = resolved
        if kind == "record":
            return STRUCT, self.record(schema, path)
        if kind == "array":
            item = self._made(schema.get("items"), (*path, ITEM))
            return (LIST, (item,)) if item is not None else None
        if kind == "map":
            return self._map(schema, path)
        if kind == "enum":
            self.builder.note(path, "enum becomes string; the symbols are not checked")
            return STRING, ()
        logical = schema.get("logicalType")
        if logical == "decimal" and kind in {"bytes", "fixed"}:
            return self.builder.decimal(path, schema, "add its precision") or BINARY, ()
        if kind not in _PRIMITIVES:
            remedy = "use bytes" if kind == "fixed" else "use a primitive type, a record, an array or a map"
            self.builder.fault(path, f"the Avro type {shown(kind)} is not supported; {remedy}")
            return None
        return self._primitive(kind, logical, path), ()

    def _primitive(self, kind: str, logical: object, path: Path) -> DataType:
        if logical is None:
            return _PRIMITIVES[kind]
        unknown = f"the logical type {shown(logical)} is not supported; the field is {_PRIMITIVES[kind]}"
        data_type, note = _LOGICAL.get((kind, str(logical)), (_PRIMITIVES[kind], unknown))
        if note:
            self.builder.note(path, note)
        return data_type

    def _map(self, schema: Mapping[str, Any], path: Path) -> FoundType | None:
        self.builder.note(path, "map becomes a list of structs with the fields key and value")
        below = (*path, ITEM)
        self.builder.enter(below)
        key = self._made("string", (*below, "key"))
        value = self._made(schema.get("values"), (*below, "value"))
        if key is None or value is None:
            return None
        return LIST, (Field(0, ITEM, STRUCT, required=True, children=(key, value)),)
