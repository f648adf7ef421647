"""Schemas of the largest size."""

from __future__ import annotations

from dataclasses import replace

from tidelog_proto.limits import SCHEMA_LEAVES_MAX
from tidelog_proto.schema.data_types import INT32, INT64
from tidelog_proto.schema.fields import Field
from tidelog_proto.schema.topic_schema import Schema

_DOC = "d" * 190


def largest_schema() -> Schema:
    """Return a first schema with as many fields as there may be, of some 60 KiB."""
    fields = tuple(Field(1 + at, f"field_{at:03}", INT32, doc=_DOC) for at in range(SCHEMA_LEAVES_MAX))
    return Schema(1, 1 + SCHEMA_LEAVES_MAX, fields)


def widened(schema: Schema) -> Schema:
    """Return the next schema, with each field widened and described again."""
    fields = tuple(replace(field, type=INT64, doc="e" + field.doc[1:]) for field in schema.fields)
    return Schema(schema.number + 1, schema.next_field_id, fields)
