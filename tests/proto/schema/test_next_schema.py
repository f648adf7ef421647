from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from tests.proto.schema_chains import chains
from tests.proto.schemas import schema_of

from tidelog_proto.schema.data_types import INT8, INT32, INT64, LIST, STRING, STRUCT, TIMESTAMP_UTC
from tidelog_proto.schema.field_paths import field_at
from tidelog_proto.schema.fields import ITEM, Field, Role, paths_below
from tidelog_proto.schema.next_schema import Edits, edited_schema, first_schema
from tidelog_proto.schema.schema_error import SchemaError
from tidelog_proto.schema.topic_schema import Schema

PROPOSAL = (
    Field(0, "carrier", STRING),
    Field(0, "scheduled", TIMESTAMP_UTC),
    Field(0, "place", STRUCT, children=(Field(0, "city", STRING, required=True),)),
    Field(0, "delay", INT8, required=True),
)


def test_the_first_schema_numbers_fields_and_gives_roles() -> None:
    schema = first_schema(PROPOSAL, time="scheduled", key="carrier")
    assert (schema.number, schema.next_field_id) == (1, 6)
    assert [(field.id, field.name) for field in schema.fields] == [
        (1, "carrier"),
        (2, "scheduled"),
        (3, "place"),
        (5, "delay"),
    ]
    assert schema.field_of(Role.KEY) == replace(PROPOSAL[0], id=1, role=Role.KEY)
    assert schema.field_of(Role.TIME) == replace(PROPOSAL[1], id=2, role=Role.TIME, required=True)
    assert schema.field_of(Role.TAG) is None


@pytest.mark.parametrize(
    ("roles", "message"),
    [
        ({"key": "unknown"}, "the key is 'unknown', and no field of the top level has this name; name a field"),
        ({"key": "city"}, "the key is 'city', and no field of the top level"),
        ({"key": "carrier", "tag": "carrier"}, "field 'carrier' is the key and the tag; choose one"),
        ({"time": "carrier"}, "field 'carrier': the time cannot have the type string"),
        ({"key": "place"}, "field 'place': the key cannot have the type struct"),
    ],
)
def test_roles_that_do_not_fit(roles: dict[str, str], message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        first_schema(PROPOSAL, **roles)


def test_edits_name_fields_as_they_were() -> None:
    schema = first_schema(PROPOSAL, key="carrier")
    edits = Edits(
        add=[("", Field(0, "gate", STRING)), ("place", Field(0, "at", STRUCT, children=(Field(0, "x", INT8),)))],
        rename={"delay": "late", "place": "airport"},
        widen={"delay": INT32},
        optional=["delay"],
        drop=["scheduled"],
        describe={"place.city": "its name"},
    )
    new, changes = edited_schema(schema, edits)
    assert [str(change) for change in changes] == [
        "'airport' renamed: from 'place' to 'airport'",
        "'airport.city' described: 'its name'",
        "'airport.at' added: struct",
        "'late' renamed: from 'delay' to 'late'",
        "'late' made optional",
        "'late' widened: from int8 to int32",
        "'gate' added: string",
        "'scheduled' dropped: timestamp[us, UTC]",
    ]
    assert (new.number, new.next_field_id) == (2, 9)
    assert [field.id for _, field in paths_below(new.fields)] == [1, 3, 4, 6, 7, 5, 8]
    again, _ = edited_schema(new, Edits(add=[("", Field(0, "scheduled", STRING))]))
    assert again.fields[-1].id == 9, "2 was the id of the dropped field"


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        (Edits(), "the new schema equals schema 1; change something, or keep that schema"),
        (Edits(drop=["unknown"]), "no field is named 'unknown'; there are, for example: 'carrier'"),
        (Edits(rename={"carier": "x"}), "no field is named 'carier'; there are, for example: 'carrier'"),
        (Edits(drop=["a"], optional=["b"]), "2 faults: no field is named 'a'; .*; no field is named 'b'"),
        (Edits(add=[("delay", Field(0, "x", INT8))]), "field 'delay' is a int8; fields are added to structs"),
        (Edits(add=[("", Field(0, "x", INT8, required=True))]), "field 'x': it is new and required"),
        (Edits(add=[("", Field(0, "Delay", INT8))]), "field 'Delay': 'delay' has the same name, ignoring case"),
        (Edits(rename={"delay": "carrier"}), "field 'carrier': 'carrier' has the same name"),
        (Edits(rename={"delay": "_delay"}), "names that begin with _"),
        (Edits(widen={"delay": STRING}), "field 'delay': its type changes from int8 to string"),
        (Edits(drop=["carrier"]), "field 'carrier': it is dropped and the key"),
        (Edits(drop=["place.city"]), "field 'place': the struct is empty"),
    ],
)
def test_edits_that_are_refused(edits: Edits, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        edited_schema(first_schema(PROPOSAL, key="carrier"), edits)


def test_a_topic_has_256_schemas() -> None:
    last = replace(first_schema(PROPOSAL), number=256)
    with pytest.raises(SchemaError, match="a topic has the numbers 1 to 256: create a new topic for further changes"):
        edited_schema(last, Edits(drop=["delay"]))


def test_paths_of_names_with_dots() -> None:
    schema = schema_of(
        Field(0, "a.b", STRUCT, children=(Field(0, "c", INT8),)),
        Field(0, "a", STRUCT, children=(Field(0, "d", INT8), Field(0, "b", INT64))),
        Field(0, "l", LIST, children=(Field(0, ITEM, INT8),)),
    )
    assert field_at(schema.fields, "a.b.c").type == INT8
    assert field_at(schema.fields, "a.d").type == INT8
    assert field_at(schema.fields, "l.item").type == INT8
    with pytest.raises(SchemaError, match=r"'a\.b' is the path of 2 fields, because names have dots; rename one"):
        field_at(schema.fields, "a.b")


@given(chains(2))
@settings(max_examples=50, deadline=None)
def test_each_path_finds_its_field(chain: list[Schema]) -> None:
    for path, field in paths_below(chain[-1].fields):
        if not any("." in name for name in path):
            assert field_at(chain[-1].fields, ".".join(path)) is field
