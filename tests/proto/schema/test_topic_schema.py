from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from tests.proto.schemas import EVERY_TYPE, schema_of

from tidelog_proto.limits import FIELD_DOC_BYTES_MAX, SCHEMA_BYTES_MAX
from tidelog_proto.schema.arrow_types import value_type
from tidelog_proto.schema.data_types import INT64, STRING
from tidelog_proto.schema.fields import Field, Role
from tidelog_proto.schema.schema_error import SchemaError
from tidelog_proto.schema.topic_schema import Schema


@pytest.mark.parametrize("number", [0, -1, 257])
def test_a_number_beyond_its_bounds_is_refused(number: int) -> None:
    with pytest.raises(SchemaError, match=f"the schema has the number {number}; a topic has the numbers 1 to 256"):
        replace(EVERY_TYPE, number=number)


def test_a_schema_of_more_than_64_kib_is_refused() -> None:
    fields = [Field(0, f"f{i}", INT64, doc="x" * FIELD_DOC_BYTES_MAX) for i in range(16)]
    assert len(schema_of(*fields[:15]).encoding) <= SCHEMA_BYTES_MAX
    with pytest.raises(SchemaError, match=r"65\d{3} bytes in its encoding, at most 65536 are allowed; shorten names"):
        schema_of(*fields)


def test_a_schema_of_exactly_64_kib_is_allowed() -> None:
    fields = [Field(0, f"f{i:02}", INT64, doc="x" * FIELD_DOC_BYTES_MAX) for i in range(15)]
    missing = SCHEMA_BYTES_MAX - len(schema_of(*fields, Field(0, "f15", INT64)).encoding)
    assert len(schema_of(*fields, Field(0, "f15", INT64, doc="x" * missing)).encoding) == SCHEMA_BYTES_MAX
    with pytest.raises(SchemaError, match="65537 bytes"):
        schema_of(*fields, Field(0, "f16", INT64, doc="x" * (missing + 1)))


def test_each_part_of_a_schema_is_in_its_digest() -> None:
    field = Field(1, "a", INT64)
    schema = Schema(1, 3, (field, Field(2, "b", STRING)))
    others = [
        replace(schema, number=2),
        replace(schema, next_field_id=4),
        replace(schema, fields=schema.fields[::-1]),
        *(
            replace(schema, fields=(changed, schema.fields[1]))
            for changed in (
                replace(field, name="c"),
                replace(field, type=STRING),
                replace(field, required=True),
                replace(field, role=Role.KEY),
                replace(field, doc="d"),
            )
        ),
    ]
    digests = {schema.digest, *(other.digest for other in others)}
    assert len(digests) == 1 + len(others)
    assert hash(schema) == schema.digest == replace(schema).digest


def test_the_value_column_has_the_fields_without_a_role() -> None:
    found = value_type(EVERY_TYPE)
    assert [field.name for field in found] == [field.name for field in EVERY_TYPE.fields[3:]]
    assert found.field("stops").type == pa.list_(pa.field("item", pa.int32(), nullable=False))
    assert found.field("place").type == pa.struct(
        [pa.field("city", pa.string(), nullable=False), ("Höhe über NN", pa.float32())]
    )
    assert not found.field("leaf0").nullable
    assert found.field("leaf1").nullable
    assert value_type(replace(EVERY_TYPE)) is found


def test_fields_by_role() -> None:
    assert EVERY_TYPE.field_of(Role.KEY) is EVERY_TYPE.fields[1]
    assert schema_of(Field(0, "n", INT64)).field_of(Role.TIME) is None
