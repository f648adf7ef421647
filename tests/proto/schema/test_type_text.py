from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.proto.schemas import LEAF_TYPES, fields

from tidelog_proto.schema.data_types import INT8, LIST, STRING, STRUCT, DataType
from tidelog_proto.schema.fields import ITEM, Field
from tidelog_proto.schema.schema_error import SchemaError
from tidelog_proto.schema.type_text import field_of_text, type_of_text


@pytest.mark.parametrize("data_type", LEAF_TYPES, ids=str)
def test_each_type_is_read_as_it_is_written(data_type: DataType) -> None:
    assert type_of_text(str(data_type)) == data_type
    assert type_of_text(f"  {str(data_type).replace(', ', ',')} ") == data_type


def text_of(field: Field) -> str:
    text = str(field.type)
    if field.type == LIST:
        text += f"<{text_of(field.children[0])}>"
    elif field.type == STRUCT:
        text += f"<{', '.join(f'{child.name}: {text_of(child)}' for child in field.children)}>"
    return f"{text} required" if field.required else text


def plain(field: Field, at: int = 0) -> Field:
    """Return a field without a description and with a name that text can have."""
    children = tuple(plain(child, at) for at, child in enumerate(field.children))
    name = ITEM if field.name == ITEM else f"name{at}"
    return Field(0, name, field.type, required=field.required, children=children)


@given(fields())
@settings(max_examples=100)
def test_each_field_is_read_as_it_is_written(field: Field) -> None:
    assert field_of_text(f"name0 {text_of(plain(field))}") == plain(field)


def test_a_field() -> None:
    item = Field(0, ITEM, STRUCT, required=True, children=(Field(0, "a", STRING, required=True), Field(0, "b", INT8)))
    assert field_of_text(" stops  list< struct<a:string required,b : int8>required > ") == Field(
        0, "stops", LIST, children=(item,)
    )
    assert field_of_text("Höhe-1 int8 required") == Field(0, "Höhe-1", INT8, required=True)


@pytest.mark.parametrize(
    "text",
    [
        *("int", "", "int8 int8", "int8 x", "timestamp", "timestamp[ns]", "timestamp[us, Europe/Berlin]", "decimal128"),
        *("decimal128(1)", "decimal128(1, 2", "decimal128(-1, 2)", "decimal128(100, 2)", "list", "list<>", "list<int8"),
        *(
            "struct<int8>",
            "struct<a: int8,>",
            "struct<a int8>",
            "list<int8, int8>",
            "INT8",
            "int8;",
            "decimal128(٣, 0)",
        ),
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(SchemaError, match="is not a type; the types are bool, int8, "):
        type_of_text(text)
    with pytest.raises(SchemaError, match=r"is not a type|is not a field; give a name, a space and a type"):
        field_of_text(f"x {text}")


def test_a_type_is_neither_required_nor_deep_nor_long() -> None:
    with pytest.raises(SchemaError, match="'int8 required' is more than a type without fields; remove required"):
        type_of_text("int8 required")
    with pytest.raises(SchemaError, match="more than 4 levels of fields; flatten it"):
        field_of_text("x " + "list<" * 400 + "int8")
    with pytest.raises(SchemaError, match="a type of 5000 characters was given; at most 4096"):
        type_of_text("<" * 5000)
    for text in ("x", "", " x "):
        with pytest.raises(SchemaError, match="is not a field; give a name, a space and a type, such as 'gate string'"):
            field_of_text(text)


WORDS = ["int8", "list", "struct", "decimal128", "<", ">", ":", ",", "(", ")", "1", " ", "a", "required", "é"]


@given(st.lists(st.sampled_from(WORDS)).map("".join))
@settings(max_examples=200)
def test_arbitrary_text_is_refused_or_read(text: str) -> None:
    with suppress(SchemaError):
        assert field_of_text("x " + text).name == "x"
