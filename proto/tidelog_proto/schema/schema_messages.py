"""Schemas as protobuf messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tidelog_proto import schema_pb2
from tidelog_proto.limits import SCHEMA_DEPTH_MAX
from tidelog_proto.schema.data_types import DECIMAL_PRECISION_MAX, DataType, Kind
from tidelog_proto.schema.field_checks import FIELDS_MAX
from tidelog_proto.schema.fields import Field, Role, path_text
from tidelog_proto.schema.schema_error import SchemaError, shown
from tidelog_proto.schema.topic_schema import Schema

_DIGITS_MAX: Final = 255
"""Largest precision or scale of the canonical encoding, where both are u8."""


def message_of_schema(schema: Schema) -> schema_pb2.TopicSchema:
    """Return the message of a schema."""
    return schema_pb2.TopicSchema(
        number=schema.number,
        next_field_id=schema.next_field_id,
        fields=[_message_of(field) for field in schema.fields],
        digest=schema.digest,
    )


def schema_of_message(message: schema_pb2.TopicSchema) -> Schema:
    """Return the schema of a message, after work that the limits of schemas bound.

    Raises:
        SchemaError: the schema violates a rule, or has another digest than the message: a newer build has written it.
    """
    fields = _Fields().level(message.fields, ())
    schema = Schema(message.number, message.next_field_id, fields)
    if schema.digest != message.digest:
        raise SchemaError(
            f"schema {schema.number} has the digest {message.digest:08x}, and {schema.digest:08x} as this build "
            "understands it; update this build if a newer one has written the schema"
        )
    return schema


def _message_of(field: Field) -> schema_pb2.SchemaField:
    kind, precision, scale = field.type
    return schema_pb2.SchemaField(
        id=field.id,
        name=field.name,
        kind=schema_pb2.FieldKind.Name(kind),
        precision=precision,
        scale=scale,
        required=field.required,
        role=schema_pb2.FieldRole.Name(field.role),
        doc=field.doc,
        children=[_message_of(child) for child in field.children],
    )


class _Fields:
    """Reads the fields of one schema, and counts them."""

    def __init__(self) -> None:
        self._count = 0

    def level(self, messages: Sequence[schema_pb2.SchemaField], path: tuple[str, ...]) -> tuple[Field, ...]:
        self._count += len(messages)
        if self._count > FIELDS_MAX or len(path) > SCHEMA_DEPTH_MAX:
            raise SchemaError(
                f"the schema has more than {FIELDS_MAX} fields or {SCHEMA_DEPTH_MAX} levels of them; remove fields"
            )
        return tuple(self._field(message, (*path, message.name)) for message in messages)

    def _field(self, message: schema_pb2.SchemaField, path: tuple[str, ...]) -> Field:
        name = f"field {shown(path_text(path))}"
        try:
            kind, role = Kind(message.kind), Role(message.role)
        except ValueError:
            raise SchemaError(
                f"{name}: the type {message.kind} or the role {message.role} is unknown to this build; update it"
            ) from None
        if message.precision > _DIGITS_MAX or message.scale > _DIGITS_MAX:
            raise SchemaError(
                f"{name}: a precision of {message.precision} and a scale of {message.scale} were given; use "
                f"{DECIMAL_PRECISION_MAX} at most"
            )
        return Field(
            message.id,
            message.name,
            DataType(kind, message.precision, message.scale),
            required=message.required,
            role=role,
            children=self.level(message.children, path),
            doc=message.doc,
        )
