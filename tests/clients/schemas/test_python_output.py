from __future__ import annotations

import sys
import types
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.clients.schemas.described import named_schemas, roles_of
from tests.proto.schemas import schema_of

from tidelog.schemas.python_input import fields_of_class
from tidelog.schemas.python_output import Style, python_source
from tidelog_proto.schema.data_types import FLOAT32, INT8, INT64, LIST, STRING, STRUCT, TIMESTAMP_UTC, decimal128
from tidelog_proto.schema.fields import ITEM, Field, Role
from tidelog_proto.schema.next_schema import first_schema
from tidelog_proto.schema.schema_error import SchemaError
from tidelog_proto.schema.topic_schema import Schema

FLIGHT = schema_of(
    Field(0, "carrier", STRING, required=True, role=Role.KEY, doc="IATA code"),
    Field(0, "scheduled", TIMESTAMP_UTC, required=True, role=Role.TIME),
    Field(0, "delay", INT8),
    Field(0, "price", decimal128(9, 2), doc="in 'USD'"),
    Field(0, "stops", LIST, children=(Field(0, ITEM, STRUCT, required=True, children=(Field(0, "city", STRING),)),)),
)


def classes_of(source: str) -> dict[str, Any]:
    """Run the source as a module."""
    module = types.ModuleType("generated_source")
    sys.modules[module.__name__] = module
    try:
        exec(compile(source, "<generated>", "exec", dont_inherit=True), module.__dict__)
    finally:
        del sys.modules[module.__name__]
    return module.__dict__


def test_a_dataclass() -> None:
    assert (
        python_source(FLIGHT, "Flight")
        == """\
from dataclasses import dataclass
from dataclasses import field
from datetime import datetime
from decimal import Decimal
from typing import Annotated


@dataclass(kw_only=True)
class StopsItem:
    city: str | None = None


@dataclass(kw_only=True)
class Flight:
    carrier: str = field(metadata={'doc': 'IATA code'})
    scheduled: datetime
    delay: Annotated[int, "int8"] | None = None
    price: Annotated[Decimal, "decimal128(9, 2)"] | None = field(default=None, metadata={'doc': "in 'USD'"})
    stops: list[StopsItem] | None = None
"""
    )


def test_a_pydantic_model() -> None:
    source = python_source(FLIGHT, "Flight", "pydantic")
    assert "class Flight(BaseModel):\n    carrier: str = Field(description='IATA code')\n" in source
    flight = classes_of(source)["Flight"](carrier="UA", scheduled=0, stops=[{"city": "x"}])
    assert flight.model_dump()["stops"] == [{"city": "x"}]


@pytest.mark.parametrize("style", ["dataclass", "pydantic"])
@given(schema=named_schemas)
@settings(max_examples=60, deadline=None)
@pytest.mark.filterwarnings("ignore:Field name .* shadows an attribute in parent")
def test_a_schema_survives_its_class(style: Style, schema: Schema) -> None:
    """Without the descriptions of a list's items, which have no name in a class."""
    found = classes_of(python_source(schema, "Row", style))
    (name,) = [name for name in found if name.startswith("Row")]
    assert first_schema(fields_of_class(found[name]).fields, **roles_of(schema)) == schema


@pytest.mark.parametrize("name", ["a b", "class", "é", "1a"])
def test_names_that_python_cannot_have_are_refused(name: str) -> None:
    nested = schema_of(Field(0, "s", STRUCT, children=(Field(0, name, INT64),)), Field(0, name, FLOAT32))
    with pytest.raises(
        SchemaError, match=f"^2 faults: field 's.{name}': '{name}' cannot be the name of a member in Python; rename"
    ):
        python_source(nested, "Row")
    with pytest.raises(SchemaError, match=f"'{name}' cannot be the name of a class in Python; choose"):
        python_source(FLIGHT, name)


def test_names_that_pydantic_keeps_for_itself_are_refused() -> None:
    schema = schema_of(Field(0, "model_config", INT64))
    with pytest.raises(SchemaError, match="field 'model_config': "):
        python_source(schema, "Row", "pydantic")
    assert "model_config: int | None" in python_source(schema, "Row")


@given(st.text(max_size=30))
def test_descriptions_are_quoted(doc: str) -> None:
    schema = schema_of(Field(0, "a", INT64, doc=doc.encode(errors="replace").decode()))
    found = classes_of(python_source(schema, "Row"))
    assert fields_of_class(found["Row"]).fields[0].doc == schema.fields[0].doc
