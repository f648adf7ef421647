from __future__ import annotations

import random
from time import monotonic

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from tests.proto.schemas import EVERY_TYPE, schemas

from tidelog_proto import schema_pb2
from tidelog_proto.limits import ENVELOPE_BYTES_MAX
from tidelog_proto.schema.data_types import Kind
from tidelog_proto.schema.fields import Role
from tidelog_proto.schema.schema_error import SchemaError
from tidelog_proto.schema.schema_messages import message_of_schema, schema_of_message
from tidelog_proto.schema.topic_schema import Schema


@given(schemas())
@settings(max_examples=100)
def test_a_schema_survives_its_message(schema: Schema) -> None:
    data = message_of_schema(schema).SerializeToString()
    assert schema_of_message(schema_pb2.TopicSchema.FromString(data)) == schema


def test_numbers_of_kinds_and_roles_are_those_of_the_messages() -> None:
    assert {kind.name: kind.value for kind in Kind} == dict(schema_pb2.FieldKind.items()[1:])
    names = {f"FIELD_ROLE_{role.name}" if role is Role.NONE else role.name: role.value for role in Role}
    assert names == dict(schema_pb2.FieldRole.items())
    assert [kind.value for kind in Kind] == list(range(1, 16))


def changed(**values: int) -> schema_pb2.TopicSchema:
    message = message_of_schema(EVERY_TYPE)
    for name, value in values.items():
        setattr(message.fields[1], name, value)
    return message


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        (schema_pb2.TopicSchema(), "the number 0"),
        (changed(kind=16), "field 'carrier': the type 16 or the role 2 is unknown to this build; update it"),
        (changed(kind=0), "field 'carrier': the type 0"),
        (changed(role=4), "the type 9 or the role 4 is unknown"),
        (changed(precision=256), "field 'carrier': a precision of 256 and a scale of 0 were given; use 38 at most"),
        (changed(scale=2**32 - 1), "scale of 4294967295 were given"),
        (changed(id=1), "field 'carrier': field 'at' has the same id, 1"),
        (changed(id=2**32 - 1), "the id is 4294967295"),
        (changed(required=False), r"schema 1 has the digest [0-9a-f]{8}, and [0-9a-f]{8} as this build understands it"),
    ],
)
def test_invalid_messages_are_refused(message: schema_pb2.TopicSchema, fault: str) -> None:
    with pytest.raises(SchemaError, match=fault):
        schema_of_message(message)


def test_fields_of_a_newer_build_are_not_ignored() -> None:
    message = message_of_schema(EVERY_TYPE)
    message.digest ^= 1  # as a build with more fields in its encoding computes it
    unknown = b"\xa0\x06\x01"  # field 100
    with pytest.raises(SchemaError, match="update this build"):
        schema_of_message(schema_pb2.TopicSchema.FromString(message.SerializeToString() + unknown))


def nested(levels: int) -> schema_pb2.SchemaField:
    field = schema_pb2.SchemaField(id=1, name="a", kind=schema_pb2.STRING)
    for _ in range(levels):
        field = schema_pb2.SchemaField(id=1, name="a", kind=schema_pb2.STRUCT, children=[field])
    return field


@pytest.mark.parametrize("levels", [4, 60])
def test_deep_messages_are_refused(levels: int) -> None:
    with pytest.raises(SchemaError, match="more than 1024 fields or 4 levels"):
        schema_of_message(schema_pb2.TopicSchema(number=1, next_field_id=2, fields=[nested(levels)]))


def test_a_message_that_fills_an_envelope_is_refused_promptly() -> None:
    field = schema_pb2.SchemaField(id=1)
    message = schema_pb2.TopicSchema(number=1, next_field_id=2, fields=[field] * (ENVELOPE_BYTES_MAX // 4))
    begun = monotonic()
    with pytest.raises(SchemaError, match="more than 1024 fields"):
        schema_of_message(message)
    assert monotonic() - begun < 10


def test_changed_bytes_are_refused() -> None:
    """Nearly all: a byte may change so that the messages remain equal."""
    seeded = random.Random(6)
    original = message_of_schema(EVERY_TYPE).SerializeToString()
    for _ in range(3_000):
        data = bytearray(original)
        data[seeded.randrange(len(data))] = seeded.randrange(256)
        try:
            found = schema_of_message(schema_pb2.TopicSchema.FromString(bytes(data)))
        except (SchemaError, DecodeError):
            continue
        assert found == EVERY_TYPE
