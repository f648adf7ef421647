from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from tests.proto.schema_chains import chains

from tidelog_proto.schema.data_types import INT8, INT16, INT64, LIST, STRING, STRUCT, TIMESTAMP_UTC
from tidelog_proto.schema.fields import ITEM, Field, Role, fields_below, path_text, paths_below
from tidelog_proto.schema.matched_schema import matched_schema
from tidelog_proto.schema.next_schema import first_schema
from tidelog_proto.schema.schema_error import SchemaError
from tidelog_proto.schema.topic_schema import Schema

TIME = Field(0, "at", TIMESTAMP_UTC)
KEY = Field(0, "carrier", STRING, doc="IATA")
PLACE = Field(0, "place", STRUCT, children=(Field(0, "city", STRING, required=True), Field(0, "n", INT8)))
STOPS = Field(0, "stops", LIST, children=(Field(0, ITEM, INT8),))
OLD = first_schema((TIME, KEY, PLACE, STOPS), time="at", key="carrier")


def test_fields_are_matched_by_name() -> None:
    place = replace(PLACE, children=(Field(0, "height", INT64), *PLACE.children))
    stops = replace(STOPS, name="landings", children=(replace(STOPS.children[0], type=INT16),))
    new, changes = matched_schema(
        OLD, (stops, Field(0, "gate", STRING), replace(KEY, doc=""), place, TIME), rename={"stops": "landings"}, drop=[]
    )
    assert [str(change) for change in changes] == [
        "'landings' renamed: from 'stops' to 'landings'",
        "'landings.item' widened: from int8 to int16",
        "'gate' added: string",
        "'place.height' added: int64",
        "the schema reordered: landings, gate, carrier, place, at",
    ]
    assert [field.id for field in new.fields] == [6, 8, 2, 3, 1]
    assert new.field_of(Role.KEY) == OLD.field_of(Role.KEY), "the role and the description are kept"
    assert new.field_of(Role.TIME) == OLD.field_of(Role.TIME), "the time stays required"


@pytest.mark.parametrize(
    ("fields", "changes", "message"),
    [
        ((TIME, KEY, PLACE), {}, "field 'stops' is missing in the new schema; drop it or rename it explicitly"),
        (
            (TIME, KEY, replace(PLACE, children=PLACE.children[:1]), STOPS),
            {},
            "field 'place.n' is missing in the new schema",
        ),
        ((TIME, KEY, PLACE, STOPS), {"drop": ["stops"]}, "field 'stops' is dropped, and the new schema has it"),
        (
            (TIME, KEY, PLACE),
            {"rename": {"stops": "x"}},
            "field 'stops' is renamed to 'x', and the new schema lacks that",
        ),
        ((TIME, KEY, PLACE), {"rename": {"stops": "place"}}, "fields 'place' and 'stops' both become 'place'"),
        ((TIME, KEY, PLACE), {"drop": ["unknown"]}, "no field is named 'unknown'"),
        ((TIME, KEY, PLACE, STOPS), {}, "the new schema equals schema 1"),
        ((TIME, PLACE, STOPS), {"drop": ["carrier"]}, "field 'carrier': it is dropped and the key"),
        (
            (TIME, KEY, Field(0, "place", STRING), STOPS),
            {},
            "^field 'place': its type changes from struct to string; [^;]*$",
        ),
        ((TIME, KEY, PLACE, replace(STOPS, type=STRUCT)), {}, "field 'stops': its type changes from list to struct"),
    ],
)
def test_proposals_that_are_refused(fields: Sequence[Field], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        matched_schema(OLD, fields, **{"rename": {}, "drop": [], **changes})


def test_names_may_be_exchanged() -> None:
    old = first_schema((Field(0, "a", INT8), Field(0, "b", INT8)))
    new, changes = matched_schema(old, (Field(0, "a", INT8), Field(0, "b", INT8)), rename={"a": "b", "b": "a"}, drop=[])
    assert [(field.id, field.name) for field in new.fields] == [(2, "a"), (1, "b")]
    assert len(changes) == 3


def without_ids(fields: Sequence[Field]) -> tuple[Field, ...]:
    return tuple(replace(field, id=0, role=Role.NONE, children=without_ids(field.children)) for field in fields)


@given(chains(2))
@settings(max_examples=150, deadline=None)
def test_a_step_follows_from_names_renames_and_drops(chain: list[Schema]) -> None:
    old, new = chain
    before = {field.id: path_text(path) for path, field in paths_below(old.fields)}
    if any("." in field.name for schema in chain for field in fields_below(schema.fields)):
        return
    after = {field.id: field.name for field in fields_below(new.fields)}
    names = {field.id: field.name for field in fields_below(old.fields)}
    rename = {before[each]: after[each] for each in before.keys() & after.keys() if names[each] != after[each]}
    drop = [path for each, path in before.items() if each not in after]
    reused = {path.rpartition(".")[2] for path in drop} & set(after.values())
    if reused:
        return
    matched, _ = matched_schema(old, without_ids(new.fields), rename=rename, drop=drop)
    assert [(field.name, field.type, field.required, field.doc) for field in fields_below(matched.fields)] == [
        (field.name, field.type, field.required, field.doc) for field in fields_below(new.fields)
    ]
    kept = [(field.id, field.name) for field in fields_below(new.fields) if field.id in before]
    assert [(field.id, field.name) for field in fields_below(matched.fields) if field.id in before] == kept
