from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tidelog.admin.schema_proposals import SchemaEdits, first_schema_of
from tidelog.errors import InvalidRequestError
from tidelog_proto.schema.fields import Role, path_text, paths_below
from tidelog_proto.schema.schema_error import SchemaError
from tidelog_proto.schema.topic_schema import Schema

FIRST = first_schema_of(
    ["id int32", "at timestamp[us, UTC]", "place struct<city: string>", "a.b string"], key="id", time="at"
)


def paths(schema: Schema) -> list[str]:
    return [path_text(path) for path, _ in paths_below(schema.fields)]


def test_roles_are_given_by_name() -> None:
    key, time = FIRST.field_of(Role.KEY), FIRST.field_of(Role.TIME)
    assert key is not None
    assert time is not None
    assert (key.name, time.name, FIRST.field_of(Role.TAG)) == ("id", "at", None)


def test_types_that_change_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "tidelog.client"):
        first_schema_of(pa.schema([("a", pa.uint8())]))
    assert "uint8 becomes int16" in caplog.text


@pytest.mark.parametrize(("described", "roles"), [(["a int9"], {}), (["a int8"], {"key": "b"}), ("missing.csv", {})])
def test_other_descriptions_are_refused(described: Any, roles: dict[str, str]) -> None:
    with pytest.raises(InvalidRequestError, match=r"^schema: "):
        first_schema_of(described, **roles)


def test_single_changes_name_fields_by_path() -> None:
    changed, changes = SchemaEdits(
        add=["gate string", "place.zip int32", "x.y int8"],
        rename={"place.city": "town"},
        widen={"id": "int64"},
        describe={"a.b": "text"},
    ).next_of(FIRST)
    assert paths(changed) == ["id", "at", "place", "place.town", "place.zip", "a.b", "gate", "x.y"]
    assert {change.what for change in changes} == {"added", "renamed", "widened", "described"}


def test_a_full_description_is_matched_by_name() -> None:
    described = ["id int64", "at timestamp[us, UTC]", "place struct<city: string>", "c string"]
    with pytest.raises(SchemaError, match=r"'a\.b' is missing"):
        SchemaEdits(described).next_of(FIRST)
    changed, _ = SchemaEdits(described, rename={"a.b": "c"}).next_of(FIRST)
    assert changed.fields[3].id == FIRST.fields[3].id
    with pytest.raises(SchemaError, match="only rename and drop go with it"):
        SchemaEdits(described, add=["d string"]).next_of(FIRST)
