"""The Arrow types of fields, and of the column `value` of a typed batch."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import pyarrow as pa

from tidelog_proto.schema.data_types import Kind
from tidelog_proto.schema.fields import Field
from tidelog_proto.schema.topic_schema import Schema

_ARROW_OF: Final[dict[Kind, pa.DataType]] = {
    Kind.BOOL: pa.bool_(),
    Kind.INT8: pa.int8(),
    Kind.INT16: pa.int16(),
    Kind.INT32: pa.int32(),
    Kind.INT64: pa.int64(),
    Kind.FLOAT32: pa.float32(),
    Kind.FLOAT64: pa.float64(),
    Kind.STRING: pa.string(),
    Kind.BINARY: pa.binary(),
    Kind.DATE32: pa.date32(),
    Kind.TIMESTAMP: pa.timestamp("us"),
    Kind.TIMESTAMP_UTC: pa.timestamp("us", "UTC"),
}


def arrow_type(field: Field) -> pa.DataType:
    """Return the Arrow type of a field's values, with those of its children."""
    kind, precision, scale = field.type
    if kind is Kind.DECIMAL128:
        return pa.decimal128(precision, scale)
    if kind is Kind.LIST:
        return pa.list_(arrow_field(field.children[0]))
    if kind is Kind.STRUCT:
        return pa.struct([arrow_field(child) for child in field.children])
    return _ARROW_OF[kind]


def arrow_field(field: Field) -> pa.Field[Any]:
    """Return the Arrow field without metadata; it is nullable unless the field is required."""
    return pa.field(field.name, arrow_type(field), nullable=not field.required)


@lru_cache(maxsize=1024)
def value_type(schema: Schema) -> pa.StructType:
    """Return the type of the column `value` in a batch of a schema: the fields without a role, in order."""
    return pa.struct([arrow_field(field) for field in schema.value_fields])


def arrow_schema(schema: Schema) -> pa.Schema:
    """Return all fields of a schema, with their ids as Parquet has them, and their descriptions as `doc`."""
    return pa.schema([_documented(field) for field in schema.fields])


def _documented(field: Field) -> pa.Field[Any]:
    metadata = {"PARQUET:field_id": str(field.id)}
    if field.doc:
        metadata["doc"] = field.doc
    children = [_documented(child) for child in field.children]
    data_type: pa.DataType = arrow_type(field)
    if field.type.kind is Kind.STRUCT:
        data_type = pa.struct(children)
    elif field.type.kind is Kind.LIST:
        data_type = pa.list_(children[0])
    return pa.field(field.name, data_type, nullable=not field.required, metadata=metadata)
