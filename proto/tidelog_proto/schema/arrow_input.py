"""Fields of an Arrow schema."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import pyarrow as pa

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
from tidelog_proto.schema.schema_error import shown

_PLAIN: Final[dict[pa.DataType, DataType]] = {
    pa.bool_(): BOOL,
    pa.int8(): INT8,
    pa.int16(): INT16,
    pa.int32(): INT32,
    pa.int64(): INT64,
    pa.float32(): FLOAT32,
    pa.float64(): FLOAT64,
    pa.string(): STRING,
    pa.binary(): BINARY,
    pa.date32(): DATE32,
}
_CONVERTED: Final[dict[pa.DataType, DataType]] = {
    pa.uint8(): INT16,
    pa.uint16(): INT32,
    pa.uint32(): INT64,
    pa.uint64(): decimal128(20, 0),
    pa.large_string(): STRING,
    pa.string_view(): STRING,
    pa.large_binary(): BINARY,
    pa.binary_view(): BINARY,
}
"""Types whose values all fit another type."""


class Leaf(NamedTuple):
    """The type of a field for values of an Arrow type.

    Attributes:
        note: how values change; "" if they do not.
    """

    type: DataType
    note: str


def leaf_of_arrow(data_type: Any) -> Leaf | None:
    """Return the type of a field for values of an Arrow type; None for lists, structs, maps and unsupported types."""
    if data_type in _PLAIN:
        return Leaf(_PLAIN[data_type], "")
    if data_type in _CONVERTED:
        return Leaf(_CONVERTED[data_type], f"{data_type} becomes {_CONVERTED[data_type]}")
    if pa.types.is_dictionary(data_type):
        value = leaf_of_arrow(data_type.value_type)
        return value and Leaf(value.type, f"{data_type} becomes {value.type}, without a dictionary")
    if pa.types.is_timestamp(data_type):
        return _timestamp(data_type)
    if pa.types.is_decimal128(data_type) and 0 <= data_type.scale <= data_type.precision:
        return Leaf(decimal128(data_type.precision, data_type.scale), "")
    return None


def _timestamp(data_type: Any) -> Leaf:
    kind = TIMESTAMP if data_type.tz is None else TIMESTAMP_UTC
    if data_type.unit == "us" and data_type.tz in {None, "UTC"}:
        return Leaf(kind, "")
    note = f"{data_type} becomes {kind}"
    if data_type.tz not in {None, "UTC"}:
        note += ", the same instants"
    if data_type.unit == "ns":
        note += "; values that are not whole microseconds are refused"
    return Leaf(kind, note)


def fields_of_arrow(schema: pa.Schema) -> Proposal:
    """Return the fields of an Arrow schema; descriptions are those in the metadata `doc` of its fields.

    Raises:
        SchemaError: a field has a type that no field of a topic can have.
    """
    reading = _Reading()
    return reading.builder.proposal(reading.level(schema, ()))


class _Reading:
    def __init__(self) -> None:
        self.builder = ProposalBuilder()

    def level(self, fields: Iterable[Any], parent: Path) -> tuple[Field, ...]:
        found = (self._field(field, (*parent, field.name)) for field in fields)
        return tuple(field for field in found if field is not None)

    def _field(self, field: Any, path: Path) -> Field | None:
        self.builder.enter(path)
        found = self._type(field.type, path)
        if found is None:
            return None
        data_type, children = found
        doc = (field.metadata or {}).get(b"doc", b"").decode(errors="replace")
        return Field(0, path[-1], data_type, required=not field.nullable, children=children, doc=doc)

    def _type(self, data_type: Any, path: Path) -> FoundType | None:
        if (leaf := leaf_of_arrow(data_type)) is not None:
            if leaf.note:
                self.builder.note(path, leaf.note)
            return leaf.type, ()
        if pa.types.is_struct(data_type):
            return STRUCT, self.level(data_type, path)
        if _is_list(data_type):
            if not pa.types.is_list(data_type):
                self.builder.note(path, f"{_name_of(data_type)} becomes list")
            return LIST, self.level([data_type.value_field.with_name(ITEM)], path)
        if pa.types.is_map(data_type):
            self.builder.note(path, "map becomes a list of structs with the fields key and value")
            entry = pa.struct([data_type.key_field.with_name("key"), data_type.item_field.with_name("value")])
            return LIST, self.level([pa.field(ITEM, entry, nullable=False)], path)
        self.builder.fault(
            path,
            f"the Arrow type {shown(str(data_type))} is not supported; cast it to a number, decimal128, string, "
            "binary, date32, timestamp, list or struct, or leave the field out",
        )
        return None


def _is_list(data_type: Any) -> bool:
    types = pa.types
    return (
        types.is_list(data_type)
        or types.is_large_list(data_type)
        or types.is_list_view(data_type)
        or types.is_large_list_view(data_type)
    )


def _name_of(data_type: Any) -> str:
    return str(data_type).partition("<")[0]
