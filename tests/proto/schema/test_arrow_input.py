from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from tests.proto.schemas import EVERY_TYPE, schemas

from tidelog_proto.schema.arrow_input import fields_of_arrow
from tidelog_proto.schema.arrow_types import arrow_field, arrow_schema
from tidelog_proto.schema.data_types import STRING
from tidelog_proto.schema.fields import Role, fields_below
from tidelog_proto.schema.next_schema import first_schema
from tidelog_proto.schema.schema_error import SchemaError
from tidelog_proto.schema.topic_schema import Schema


def roles_of(schema: Schema) -> dict[str, str]:
    """Return the roles of a schema as a caller gives them: no description of fields has them."""
    return {field.role.name.lower(): field.name for field in schema.fields if field.role is not Role.NONE}


@given(schemas())
@settings(max_examples=100, deadline=None)
def test_a_schema_survives_arrow(schema: Schema) -> None:
    """Numbers and ids do not: another topic gives its own."""
    found = fields_of_arrow(arrow_schema(schema))
    assert found.notes == ()
    assert first_schema(found.fields, **roles_of(schema)) == schema


def test_ids_and_descriptions_are_metadata() -> None:
    found = arrow_schema(EVERY_TYPE)
    assert found.field("at").metadata == {b"PARQUET:field_id": b"1", b"doc": b"when it left"}
    place: Any = found.field("place").type
    assert [child.metadata for child in place] == [
        {b"PARQUET:field_id": b"21"},
        {b"PARQUET:field_id": b"22", b"doc": b"in m"},
    ]


CONVERTED = [
    (pa.uint8(), "int16", "uint8 becomes int16"),
    (pa.uint16(), "int32", "uint16 becomes int32"),
    (pa.uint32(), "int64", "uint32 becomes int64"),
    (pa.uint64(), "decimal128(20, 0)", "uint64 becomes decimal128(20, 0)"),
    (pa.large_string(), "string", "large_string becomes string"),
    (pa.string_view(), "string", "string_view becomes string"),
    (pa.large_binary(), "binary", "large_binary becomes binary"),
    (pa.binary_view(), "binary", "binary_view becomes binary"),
    (
        pa.dictionary(pa.int8(), pa.large_string()),
        "string",
        "dictionary<values=large_string, indices=int8, ordered=0> becomes string, without a dictionary",
    ),
    (
        pa.timestamp("us", "Europe/Berlin"),
        "timestamp[us, UTC]",
        "timestamp[us, tz=Europe/Berlin] becomes timestamp[us, UTC], the same instants",
    ),
    (pa.timestamp("s"), "timestamp[us]", "timestamp[s] becomes timestamp[us]"),
    (pa.timestamp("ms", "UTC"), "timestamp[us, UTC]", "timestamp[ms, tz=UTC] becomes timestamp[us, UTC]"),
    (
        pa.timestamp("ns"),
        "timestamp[us]",
        "timestamp[ns] becomes timestamp[us]; values that are not whole microseconds are refused",
    ),
    (pa.large_list(pa.int8()), "list", "large_list becomes list"),
    (pa.list_view(pa.int8()), "list", "list_view becomes list"),
    (pa.large_list_view(pa.int8()), "list", "large_list_view becomes list"),
    (pa.map_(pa.string(), pa.int8()), "list", "map becomes a list of structs with the fields key and value"),
]


@pytest.mark.parametrize(("given_type", "wanted", "note"), CONVERTED, ids=str)
def test_each_conversion_is_announced(given_type: pa.DataType, wanted: str, note: str) -> None:
    found = fields_of_arrow(pa.schema([pa.field("x", given_type)]))
    assert [str(field.type) for field in found.fields] == [wanted]
    assert found.notes == (f"field 'x': {note}",)
    nested = fields_of_arrow(pa.schema([pa.field("s", pa.struct([("x", given_type)]))]))
    assert nested.notes == (f"field 's.x': {note}",)


def test_a_map_has_entries_with_required_keys() -> None:
    (field,) = fields_of_arrow(pa.schema([("m", pa.map_(pa.string(), pa.int8()))])).fields
    entry = pa.struct([pa.field("key", pa.string(), nullable=False), ("value", pa.int8())])
    assert arrow_field(field).type == pa.list_(pa.field("item", entry, nullable=False))


@pytest.mark.parametrize(
    "data_type",
    [
        *(pa.null(), pa.float16(), pa.date64(), pa.time32("s"), pa.time64("us"), pa.duration("us")),
        *(pa.month_day_nano_interval(), pa.decimal256(40, 2), pa.decimal128(5, -2), pa.decimal128(5, 6)),
        *(pa.binary(16), pa.list_(pa.int8(), 3), pa.run_end_encoded(pa.int32(), pa.int8()), pa.uuid()),
        *(pa.sparse_union([pa.field("a", pa.int8())]), pa.dense_union([pa.field("a", pa.int8())])),
        pa.dictionary(pa.int8(), pa.time32("s")),
    ],
    ids=str,
)
def test_other_types_are_refused(data_type: pa.DataType) -> None:
    schema = pa.schema([pa.field("s", pa.struct([pa.field("x", data_type)])), pa.field("n", pa.int8())])
    with pytest.raises(SchemaError, match=r"^field 's\.x': the Arrow type '.*' is not supported; cast it to"):
        fields_of_arrow(schema)


def test_all_refused_fields_are_listed() -> None:
    with pytest.raises(SchemaError, match=r"^2 faults: field 'a': .*; field 'b': "):
        fields_of_arrow(pa.schema([pa.field(name, pa.null()) for name in ("a", "b")]))


def test_names_are_checked_with_the_schema() -> None:
    with pytest.raises(SchemaError, match="field 'A': 'a' has the same name"):
        first_schema(fields_of_arrow(pa.schema([("a", pa.int8()), ("A", pa.int8())])).fields)
    with pytest.raises(SchemaError, match="has the same name"):
        first_schema(fields_of_arrow(pa.schema([("a", pa.int8()), ("a", pa.int8())])).fields)


def test_many_and_deep_fields_are_refused_after_bounded_work() -> None:
    leaf: Any = pa.int8()
    wide: Any = pa.struct([(f"f{i}", leaf) for i in range(1000)])
    with pytest.raises(SchemaError, match="more than 1024 fields"):
        fields_of_arrow(pa.schema([(f"s{i}", wide) for i in range(1000)]))
    deep: Any = pa.int8()
    for _ in range(200):
        deep = pa.list_(deep)
    with pytest.raises(SchemaError, match=r"more than 1024 fields or 4 levels of them; remove fields, or flatten"):
        fields_of_arrow(pa.schema([("x", deep)]))


def test_descriptions_that_are_not_utf_8_are_replaced() -> None:
    (field,) = fields_of_arrow(pa.schema([pa.field("x", pa.string(), metadata={"doc": b"\xff"})])).fields
    assert (field.type, field.doc) == (STRING, "\ufffd")
    assert list(fields_below([field])) == [field]
