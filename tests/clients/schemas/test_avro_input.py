from __future__ import annotations

import io
import json
from contextlib import suppress
from dataclasses import replace
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.clients.schemas.described import named_schemas, roles_of
from tests.proto.schemas import schema_of

from tidelog.schemas.avro_input import fields_of_avro
from tidelog.schemas.avro_output import avro_schema
from tidelog_proto.schema.data_types import INT8, INT16, INT32, INT64, STRING, STRUCT
from tidelog_proto.schema.fields import Field
from tidelog_proto.schema.next_schema import first_schema
from tidelog_proto.schema.schema_error import SchemaError
from tidelog_proto.schema.topic_schema import Schema

EXACT = "values that are not whole microseconds are refused"


def wider(fields: tuple[Field, ...]) -> tuple[Field, ...]:
    """Return fields as Avro has them: its narrowest integer has 32 bits."""
    return tuple(
        replace(field, type=INT32 if field.type in {INT8, INT16} else field.type, children=wider(field.children))
        for field in fields
    )


@given(named_schemas)
@settings(max_examples=100, deadline=None)
def test_a_schema_survives_avro_except_for_narrow_integers(schema: Schema) -> None:
    text = json.dumps(avro_schema(schema, "Row"))
    fastavro.parse_schema(json.loads(text))
    found = fields_of_avro(json.loads(text))
    assert found.notes == ()
    assert first_schema(found.fields, **roles_of(schema)) == replace(schema, fields=wider(schema.fields))


def test_the_output_describes_values() -> None:
    schema = schema_of(
        Field(0, "carrier", STRING, required=True, doc="IATA"),
        Field(0, "place", STRUCT, children=(Field(0, "height", INT64),)),
    )
    described = avro_schema(schema, "Flight")
    assert described == {
        "type": "record",
        "name": "Flight",
        "fields": [
            {"name": "carrier", "type": "string", "doc": "IATA"},
            {
                "name": "place",
                "type": [
                    "null",
                    {
                        "type": "record",
                        "name": "Flight_place_2",
                        "fields": [{"name": "height", "type": ["null", "long"], "default": None}],
                    },
                ],
                "default": None,
            },
        ],
    }
    fastavro.schemaless_writer(io.BytesIO(), described, {"carrier": "UA", "place": {"height": 5}})


def fields_of(avro_type: Any) -> list[str]:
    found = fields_of_avro({"type": "record", "name": "Row", "fields": [{"name": "x", "type": avro_type}]})
    return [f"{field.type}{'' if field.required else ' optional'}" for field in found.fields] + list(found.notes)


@pytest.mark.parametrize(
    ("given_type", "expected"),
    [
        ("int", ["int32"]),
        ({"type": "string", "avro.java.string": "String"}, ["string"]),
        (["long", "null"], ["int64 optional"]),
        (["null", {"type": {"type": "long", "logicalType": "timestamp-micros"}}], ["timestamp[us, UTC] optional"]),
        (
            {"type": "long", "logicalType": "timestamp-millis"},
            ["timestamp[us, UTC]", "field 'x': timestamp-millis becomes timestamp[us, UTC]"],
        ),
        (
            {"type": "long", "logicalType": "local-timestamp-nanos"},
            [
                "timestamp[us]",
                f"field 'x': local-timestamp-nanos becomes timestamp[us]; {EXACT}",
            ],
        ),
        (
            {"type": "string", "logicalType": "uuid"},
            ["string", "field 'x': the logical type 'uuid' is not supported; the field is string"],
        ),
        (
            {"type": "int", "logicalType": {}},
            ["int32", "field 'x': the logical type {} is not supported; the field is int32"],
        ),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, ["decimal128(9, 2)"]),
        ({"type": "fixed", "name": "F", "size": 9, "logicalType": "decimal", "precision": 9}, ["decimal128(9, 0)"]),
        (
            {"type": "enum", "name": "E", "symbols": ["A"]},
            ["string", "field 'x': enum becomes string; the symbols are not checked"],
        ),
        ({"type": "array", "items": "int"}, ["list"]),
        (
            {"type": "map", "values": ["null", "int"]},
            ["list", "field 'x': map becomes a list of structs with the fields key and value"],
        ),
    ],
)
def test_types(given_type: Any, expected: list[str]) -> None:
    assert fields_of(given_type) == expected


@pytest.mark.parametrize(
    ("given_type", "message"),
    [
        (["int", "string"], "it is a union; only one type, or that type and null"),
        (["null"], "it is a union"),
        ("null", "the Avro type 'null' is not supported"),
        ("Unknown", "the Avro type 'Unknown' is not supported"),
        ({"type": "fixed", "name": "F", "size": 16}, "the Avro type 'fixed' is not supported; use bytes"),
        ({"type": "bytes", "logicalType": "decimal"}, "a decimal has no number of digits; add its precision"),
        ({"type": "array"}, r"field 'x\.item': None is not a type; correct the schema"),
        ({"type": "record", "name": "R"}, "field 'x': the record has no list of fields"),
        ({"type": "record", "name": "R", "fields": [1]}, "field 'x': 1 is not a field with a name"),
        ({}, "None is not a type"),
        (5, "5 is not a type"),
        ("Row", "'x.x.x.x.x': there are more than 1024 fields or 4 levels"),
        ({"type": "array", "items": "Row"}, "4 levels"),
    ],
)
def test_other_types_are_refused(given_type: Any, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        fields_of(given_type)


def test_named_types_are_used_by_name() -> None:
    place = {"type": "record", "name": "Place", "namespace": "org", "fields": [{"name": "city", "type": "string"}]}
    fields = [
        {"name": name, "type": each} for name, each in (("a", place), ("b", "Place"), ("c", ["null", "org.Place"]))
    ]
    found = fields_of_avro({"type": "record", "name": "Row", "fields": fields})
    assert [field.children[0].name for field in found.fields] == ["city"] * 3


def test_a_default_is_announced() -> None:
    fields = [{"name": "a", "type": "int", "default": 0}, {"name": "b", "type": ["null", "int"], "default": None}]
    found = fields_of_avro({"type": "record", "name": "Row", "fields": fields})
    assert found.notes == ("field 'a': the default is not part of the field",)


@pytest.mark.parametrize("description", [None, [], 1, "int", {}, {"type": "array", "items": "int"}, ["null"]])
def test_other_descriptions_are_refused(description: object) -> None:
    with pytest.raises(SchemaError, match=r"is not a type|describe a record|is a union"):
        fields_of_avro(description)


def test_names_that_avro_cannot_have_are_refused() -> None:
    schema = schema_of(Field(0, "a b", INT64), Field(0, "é", INT64))
    with pytest.raises(SchemaError, match="2 faults: field 'a b': 'a b' cannot be a name in Avro; rename it"):
        avro_schema(schema, "Row")
    with pytest.raises(SchemaError, match="'a-b' cannot be a name in Avro; choose"):
        avro_schema(schema, "a-b")


avro_values = st.recursive(
    st.none() | st.integers() | st.text(max_size=3) | st.sampled_from(["record", "array", "int", "null", "R", "map"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "fields", "items", "values", "name", "logicalType", "namespace", "default"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=15,
)


@given(avro_values)
@settings(max_examples=300)
def test_arbitrary_json_is_refused_or_read(value: object) -> None:
    for description in (value, {"type": "record", "name": "R", "fields": [{"name": "x", "type": value}]}):
        with suppress(SchemaError):
            assert first_schema(fields_of_avro(description).fields).number == 1
