from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.clients.schemas.described import roles_of
from tests.proto.schemas import EVERY_TYPE, schemas

from tidelog.schemas.json_schema_input import fields_of_json_schema
from tidelog.schemas.json_schema_output import json_schema
from tidelog_proto.schema.next_schema import first_schema
from tidelog_proto.schema.schema_error import SchemaError
from tidelog_proto.schema.topic_schema import Schema

jsonschema: Any = pytest.importorskip("jsonschema", reason="schemathesis, which needs it, is not installed")


@given(schemas())
@settings(max_examples=100, deadline=None)
def test_a_schema_survives_json_schema(schema: Schema) -> None:
    text = json.dumps(json_schema(schema))
    found = fields_of_json_schema(json.loads(text))
    assert found.notes == ()
    assert first_schema(found.fields, **roles_of(schema)) == schema


def test_the_output_is_a_json_schema() -> None:
    found = json_schema(EVERY_TYPE)
    jsonschema.Draft202012Validator.check_schema(found)
    assert found["properties"]["at"] == {"type": "string", "format": "date-time", "description": "when it left"}
    assert found["properties"]["stops"] == {
        "type": ["array", "null"],
        "items": {"type": "integer", "format": "int32"},
    }
    assert found["required"][:2] == ["at", "carrier"]
    assert found["additionalProperties"] is False


def fields_of(**properties: Any) -> list[str]:
    description = {"type": "object", "properties": properties, "required": list(properties)}
    found = fields_of_json_schema(description)
    return [f"{field.type}{'' if field.required else ' optional'}" for field in found.fields] + list(found.notes)


@pytest.mark.parametrize(
    ("given_type", "expected"),
    [
        ({"type": "integer"}, ["int64"]),
        ({"type": ["null", "integer"]}, ["int64 optional"]),
        ({"type": "integer", "nullable": True}, ["int64 optional"]),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None}, ["int64 optional"]),
        ({"allOf": [{"type": "number"}]}, ["float64"]),
        ({"type": "integer", "format": "uint32"}, ["int64", "field 'x': uint32 becomes int64"]),
        (
            {"type": "string", "format": "email"},
            ["string", "field 'x': the format 'email' is not checked; the field is string"],
        ),
        ({"type": "string", "format": {}}, ["string", "field 'x': the format {} is not checked; the field is string"]),
        (
            {"type": "string", "enum": ["a"], "minLength": 1},
            ["string", "field 'x': enum, minLength: not part of the field, and not checked"],
        ),
        ({"type": "string", "format": "byte"}, ["binary"]),
        ({"type": "string", "format": "decimal", "precision": 5}, ["decimal128(5, 0)"]),
        ({"type": "array", "items": {"type": "boolean"}}, ["list"]),
        ({"type": "object", "properties": {"y": {"type": "string"}}}, ["struct"]),
    ],
)
def test_types(given_type: dict[str, Any], expected: list[str]) -> None:
    assert fields_of(x=given_type) == expected


@pytest.mark.parametrize(
    ("given_type", "message"),
    [
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "it has several types; only one type, or that type and"),
        ({"type": ["integer", "string"]}, r"the type is \['integer', 'string'\]; give one type"),
        ({"type": ["null"]}, "give one type"),
        ({"oneOf": [{"type": "integer"}]}, "oneOf is not supported"),
        ({"type": "array", "prefixItems": []}, "prefixItems is not supported"),
        (
            {"type": "object", "additionalProperties": {"type": "string"}},
            "additional properties have no names; use a list",
        ),
        ({"type": "object", "properties": []}, "properties is not an object"),
        ({"type": "array"}, r"field 'x\.item': None is not a schema with a type"),
        ({"type": "null"}, "the type 'null' is not supported"),
        ({"type": "file"}, "the type 'file' is not supported; use one of integer, number"),
        ({}, "the type is None; give one type"),
        ({"type": {}}, "the type is {}; give one"),
        (True, "True is not a schema with a type"),
        ({"$ref": "#/$defs/unknown"}, "'#/\\$defs/unknown' is not a schema with a type"),
        ({"$ref": "https://example.org/x"}, "'https://example.org/x' is not a schema"),
        ({"$ref": "#/properties/x"}, "it has more than 16 references in a row; name the type itself"),
        ({"$ref": "#"}, "'x.x.x.x.x': there are more than 1024 fields or 4 levels"),
        ({"type": "string", "format": "decimal"}, "a decimal has no number of digits; add precision and scale"),
    ],
)
def test_other_types_are_refused(given_type: Any, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        fields_of(x=given_type)


def test_a_description_that_grows_exponentially_is_refused() -> None:
    level: dict[str, Any] = {"type": "integer"}
    definitions = {"0": level}
    for depth in range(1, 5):
        properties = {f"f{i}": {"$ref": f"#/$defs/{depth - 1}"} for i in range(1000)}
        definitions[str(depth)] = {"type": "object", "properties": properties}
    with pytest.raises(SchemaError, match="more than 1024 fields"):
        fields_of_json_schema({"$ref": "#/$defs/4", "$defs": definitions})


@pytest.mark.parametrize("description", [None, [], 1, "x", {}, {"type": "array"}, {"type": "string"}])
def test_other_descriptions_are_refused(description: object) -> None:
    with pytest.raises(SchemaError, match=r"is not a schema|give one type|describe a record as an object"):
        fields_of_json_schema(description)


class Place(pydantic.BaseModel):
    city: str


class Flight(pydantic.BaseModel):
    carrier: str = pydantic.Field(description="IATA")
    place: Place | None = None
    stops: list[Place]


def test_a_schema_of_pydantic_is_read() -> None:
    found = first_schema(fields_of_json_schema(Flight.model_json_schema()).fields)
    assert [(field.name, str(field.type), field.required) for field in found.fields] == [
        ("carrier", "string", True),
        ("place", "struct", False),
        ("stops", "list", True),
    ]
    assert found.fields[0].doc == "IATA"


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=3)
    | st.sampled_from(["object", "string", "array", "#"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "properties", "items", "$ref", "anyOf", "required", "format", "precision", "enum", "x"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=15,
)


@given(json_values)
@settings(max_examples=300)
def test_arbitrary_json_is_refused_or_read(value: object) -> None:
    for description in (value, {"type": "object", "properties": {"x": value}}):
        with suppress(SchemaError):
            assert first_schema(fields_of_json_schema(description).fields).number == 1


def test_values_are_those_of_the_json_view() -> None:
    """Decimals are strings, binary is base64: the output validates such values."""
    value: dict[str, Any] = {"at": "2026-01-01T00:00:00Z", "carrier": "UA", **{f"leaf{i}": None for i in range(14)}}
    value |= {"leaf0": True, "leaf2": 1, "leaf4": 2, "leaf6": 0.5, "leaf8": "AA==", "leaf10": "2026-01-01T00:00:00"}
    value |= {"leaf12": "1"}
    jsonschema.validate(value, json_schema(EVERY_TYPE))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**value, "unknown": 1}, json_schema(EVERY_TYPE))
