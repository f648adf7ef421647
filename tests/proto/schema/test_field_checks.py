from __future__ import annotations

from dataclasses import replace
from time import monotonic

import pytest
from hypothesis import given, settings
from tests.proto.schemas import EVERY_TYPE, schema_of, schemas

from tidelog_proto.batch.row_layout import RowLayout, row_layout
from tidelog_proto.limits import FIELD_DOC_BYTES_MAX, FIELD_ID_MAX, FIELD_NAME_BYTES_MAX
from tidelog_proto.schema.data_types import (
    BOOL,
    DATE32,
    FLOAT64,
    INT32,
    INT64,
    LIST,
    NAME_OF_KIND,
    STRING,
    STRUCT,
    TIMESTAMP,
    TIMESTAMP_UTC,
    DataType,
    Kind,
    decimal128,
)
from tidelog_proto.schema.field_checks import ROLE_KINDS
from tidelog_proto.schema.fields import ITEM, Field, Role
from tidelog_proto.schema.schema_error import FAULTS_MAX, SchemaError
from tidelog_proto.schema.topic_schema import Schema

PLAIN = Field(0, "n", INT64)


def struct(*children: Field, name: str = "s") -> Field:
    return Field(0, name, STRUCT, children=children)


def list_of(item: Field, name: str = "l") -> Field:
    return Field(0, name, LIST, children=(replace(item, name=ITEM),))


@given(schemas())
@settings(max_examples=100)
def test_generated_schemas_are_valid(schema: Schema) -> None:
    assert all(field.role is Role.NONE for field in schema.value_fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ((), "no fields; add at least one"),
        ((replace(PLAIN, name=""),), "field '': the name is empty; give the field a name"),
        ((replace(PLAIN, name="_offset"),), r"field '_offset': names that begin with _ are reserved"),
        ((replace(PLAIN, name="a\nb"),), r"U\+000A; use visible characters"),
        ((replace(PLAIN, name="a\u202eb"),), r"U\+202E"),
        ((replace(PLAIN, name="\ud800"),), r"U\+D800"),
        ((replace(PLAIN, name=" a"),), "begins or ends with a space; remove it"),
        ((replace(PLAIN, name="ä" * 128),), f"256 bytes of UTF-8; use at most {FIELD_NAME_BYTES_MAX}"),
        ((PLAIN, replace(PLAIN, name="N")), "field 'N': 'n' has the same name, ignoring case; rename one"),
        ((replace(PLAIN, name="straße"), replace(PLAIN, name="STRASSE")), "'straße' has the same name"),
        ((struct(PLAIN, replace(PLAIN, name="N")),), "field 's.N': 'n' has the same name"),
        ((replace(PLAIN, doc="x" * (FIELD_DOC_BYTES_MAX + 1)),), "the description has 4097 bytes.*at most 4096"),
        ((replace(PLAIN, doc="\udc00"),), "half a surrogate pair; use valid Unicode"),
        ((replace(PLAIN, type=decimal128(0, 0)),), r"decimal128\(0, 0\) has a precision of 0; use 1 to 38"),
        ((replace(PLAIN, type=decimal128(39, 0)),), "precision of 39; use 1 to 38"),
        ((replace(PLAIN, type=decimal128(5, 6)),), "a scale of 6; use 0 to the precision, 5"),
        ((replace(PLAIN, type=decimal128(5, -1)),), "a scale of -1"),
        ((replace(PLAIN, type=DataType(Kind.INT8, 3)),), "int8 has a precision or scale of 3 and 0; only decimals"),
        ((Field(0, "s", STRUCT),), "field 's': the struct is empty; give it at least one field"),
        ((Field(0, "l", LIST),), "field 'l': the list is empty; give it an item, named item"),
        ((Field(0, "l", LIST, children=(PLAIN,)),), "one field below it, named item, got .*'n'"),
        ((Field(0, "l", LIST, children=(replace(PLAIN, name=ITEM), PLAIN)),), "a list has one field below it"),
        ((replace(PLAIN, children=(PLAIN,)),), "int64 has 1 fields below it; only lists and structs may"),
        ((list_of(list_of(list_of(list_of(PLAIN)))),), "would be at level 5; at most 4 levels are allowed"),
        ((struct(struct(list_of(struct(PLAIN), "a"), name="b"), name="c"),), r"field 'c\.b\.a\.item': .*level 5"),
    ],
)
def test_a_fault_names_the_field_the_value_and_the_remedy(fields: tuple[Field, ...], message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        schema_of(*fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            (PLAIN, Field(0, "t", TIMESTAMP, required=True, role=Role.TIME)),
            r"the time cannot have the type timestamp\[us\]",
        ),
        ((PLAIN, Field(0, "t", TIMESTAMP_UTC, role=Role.TIME)), "the field is optional; make it required"),
        ((PLAIN, Field(0, "k", FLOAT64, role=Role.KEY)), "the key cannot have the type float64; choose .*string"),
        ((PLAIN, Field(0, "k", BOOL, role=Role.KEY)), "the key cannot have the type bool"),
        ((PLAIN, Field(0, "k", INT32, role=Role.TAG)), "the tag cannot have the type int32; .*one of these: string"),
        ((PLAIN, replace(list_of(PLAIN), role=Role.KEY)), "the key cannot have the type list"),
        ((struct(Field(0, "k", STRING, role=Role.KEY)),), "field 's.k': only fields of the top level may be the key"),
        (
            (PLAIN, Field(0, "a", STRING, role=Role.KEY), Field(0, "b", DATE32, role=Role.KEY)),
            r"fields \['a', 'b'\] are each the key; choose one",
        ),
        ((Field(0, "k", STRING, role=Role.KEY),), "add a field without such a role"),
    ],
)
def test_roles(fields: tuple[Field, ...], message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        schema_of(*fields)


@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize("kind", list(Kind))
def test_the_types_of_each_role(role: Role, kind: Kind) -> None:
    if kind in {Kind.LIST, Kind.STRUCT}:
        return
    of_role = Field(0, "f", DataType(kind, kind is Kind.DECIMAL128), required=True, role=role)
    if kind in ROLE_KINDS[role]:
        assert schema_of(PLAIN, of_role).field_of(role) is not None
    else:
        with pytest.raises(SchemaError, match=r"cannot have the type"):
            schema_of(PLAIN, of_role)


@pytest.mark.parametrize(
    ("next_field_id", "ids", "message"),
    [
        (3, (1, 1), "field 'b': field 'a' has the same id, 1; ids must be unique"),
        (2, (1, 2), "field 'b': the id is 2; it must be 1 to 1, below the next field id"),
        (3, (0, 1), "field 'a': the id is 0"),
        (3, (-1, 1), "field 'a': the id is -1"),
        (0, (1, 2), "the next field id is 0; it must be 1 to"),
        (FIELD_ID_MAX + 1, (1, 2), f"the next field id is {FIELD_ID_MAX + 1}"),
    ],
)
def test_ids(next_field_id: int, ids: tuple[int, int], message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        Schema(1, next_field_id, (Field(ids[0], "a", INT64), Field(ids[1], "b", INT64)))


def test_an_id_is_unique_in_the_whole_schema() -> None:
    with pytest.raises(SchemaError, match=r"field 's\.x': field 'a' has the same id, 1"):
        Schema(1, 9, (Field(1, "a", INT64), Field(2, "s", STRUCT, children=(Field(1, "x", INT64),))))


def test_256_leaves_are_allowed_and_257_are_not() -> None:
    leaves = [Field(0, f"f{i}", INT64) for i in range(257)]
    assert len(schema_of(*leaves[:256]).fields) == 256
    with pytest.raises(SchemaError, match="more than 256 fields that hold values; remove fields"):
        schema_of(*leaves)
    in_structs = [struct(*leaves[:130], name="a"), struct(*leaves[:127], name="b")]
    with pytest.raises(SchemaError, match="more than 256 fields"):
        schema_of(*in_structs)


def row_of(*fields: Field) -> RowLayout:
    """Return the layout of a schema with each role."""
    time = Field(0, "time", TIMESTAMP_UTC, required=True, role=Role.TIME)
    others = (Field(0, "key", STRING, role=Role.KEY), Field(0, "tag", STRING, role=Role.TAG))
    return row_layout(schema_of(time, *others, *fields))


def test_batches_of_each_schema_can_be_described() -> None:
    assert row_of(*(Field(0, f"f{i}", STRING) for i in range(253))).schema.number == 1
    deep = [list_of(list_of(list_of(PLAIN)), f"f{i}") for i in range(121)]
    assert row_of(*deep[:120]).schema.next_field_id == 4 + 4 * 120
    with pytest.raises(SchemaError, match=r"the schema has 484 Arrow arrays in 968 buffers; .*: remove lists, structs"):
        row_of(*deep)
    strings = [list_of(Field(0, "", STRING), f"f{i}") for i in range(201)]
    assert row_of(*strings[:200]).schema.next_field_id == 4 + 2 * 200
    with pytest.raises(SchemaError, match="402 Arrow arrays in 1005 buffers; at most 1000 buffers, and 1450 arrays"):
        row_of(*strings)


def test_the_number_of_faults_in_one_error_is_bounded() -> None:
    with pytest.raises(SchemaError, match=f"^{FAULTS_MAX} faults: field '_0': names that begin") as caught:
        schema_of(*(Field(0, f"_{i}", INT64) for i in range(100)))
    assert len(caught.value.faults) == FAULTS_MAX
    assert len(str(caught.value)) < 4_000


def test_a_hostile_number_of_fields_is_refused_after_bounded_work() -> None:
    shared = tuple(Field(i + 1, f"f{i}", INT64) for i in range(256))
    for _ in range(3):
        shared = tuple(Field(1, f"s{i}", STRUCT, children=shared) for i in range(256))
    begun = monotonic()
    with pytest.raises(SchemaError, match="more than 256 fields"):
        Schema(1, 300, shared)
    assert monotonic() - begun < 10, "4 billion fields were looked at"


def test_names_of_kinds() -> None:
    assert len(set(NAME_OF_KIND.values())) == len(Kind)
    assert str(decimal128(10, 2)) == "decimal128(10, 2)"
    assert str(EVERY_TYPE.fields[0].type) == "timestamp[us, UTC]"
