"""Selections of leaf fields: their bits, and the layouts of batches that have only these fields."""

from __future__ import annotations

import pytest
from tests.proto.schemas import schema_of

from tidelog_proto.batch.field_selection import all_fields, narrowed_layout, selection_of
from tidelog_proto.schema.data_types import INT32, LIST, STRING, STRUCT
from tidelog_proto.schema.fields import Field, Role

SCHEMA = schema_of(
    Field(0, "carrier", STRING, required=True, role=Role.KEY),
    Field(0, "n", INT32),
    Field(0, "place", STRUCT, children=(Field(0, "city", STRING), Field(0, "zone", INT32))),
    Field(0, "stops", LIST, children=(Field(0, "item", STRING),)),
)
CARRIER, NUMBER, PLACE, STOPS = SCHEMA.fields
CITY, ZONE = PLACE.children


def bits(*fields: Field) -> int:
    return int.from_bytes(selection_of(SCHEMA, frozenset(field.id for field in fields)), "little")


def test_each_leaf_has_a_bit_in_the_order_of_the_fields() -> None:
    assert [bits(field) for field in (NUMBER, CITY, ZONE, STOPS)] == [0b1, 0b10, 0b100, 0b1000]


def test_a_field_selects_everything_below_it() -> None:
    assert bits(PLACE) == 0b110
    assert bits(STOPS) == bits(STOPS.children[0])


def test_fields_of_columns_and_unknown_ids_select_nothing() -> None:
    assert bits(CARRIER) == 0
    assert selection_of(SCHEMA, frozenset({9999})) == bytes(8)


def test_selections_are_padded_to_eight_bytes() -> None:
    assert all_fields(SCHEMA) == (0b1111).to_bytes(8, "little")
    wide = schema_of(*(Field(0, f"f{number}", INT32) for number in range(65)))
    assert all_fields(wide) == (2**65 - 1).to_bytes(16, "little")


def test_a_narrowed_layout_has_the_selected_fields_and_their_parents() -> None:
    layout = narrowed_layout(SCHEMA, selection_of(SCHEMA, frozenset({ZONE.id, NUMBER.id})))
    assert [field.name for field in layout.value_fields] == ["n", "place"]
    assert [child.name for child in layout.value_fields[1].children] == ["zone"]
    assert narrowed_layout(SCHEMA, all_fields(SCHEMA)).value_fields == SCHEMA.value_fields


@pytest.mark.parametrize("selection", [b"", bytes(7), bytes(16), b"\x10" + bytes(7), b"\xff" * 8])
def test_a_selection_of_another_schema_is_refused(selection: bytes) -> None:
    with pytest.raises(ValueError, match="does not fit the 4 leaves"):
        narrowed_layout(SCHEMA, selection)
