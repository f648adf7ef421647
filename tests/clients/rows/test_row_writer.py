from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from tests.clients.rows.python_rows import python_rows, read, stored
from tests.proto.schemas import schemas

from tidelog.rows.row_writer import row_writer
from tidelog.rows.value_checks import RowError
from tidelog_proto.batch.key_bytes import key_column
from tidelog_proto.schema.next_schema import first_schema
from tidelog_proto.schema.topic_schema import Schema
from tidelog_proto.schema.type_text import field_of_text

SCHEMA = first_schema(
    [
        field_of_text(text)
        for text in (
            "id int64 required",
            "at timestamp[us, UTC] required",
            "kind string",
            "small int8",
            "price decimal128(6, 2)",
            "ratio float64",
            "half float32",
            "ok bool",
            "raw binary",
            "day date32",
            "local timestamp[us]",
            "stops list<int32>",
            "place struct<city: string required, zip: int32>",
        )
    ],
    key="id",
    time="at",
    tag="kind",
)
NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
ROW = {
    "id": -7,
    "at": NOW,
    "kind": "sale",
    "small": 127,
    "price": Decimal("1234.50"),
    "ratio": 0.1,
    "half": 1.5,
    "ok": True,
    "raw": b"\x00\xff",
    "day": date(2026, 2, 28),
    "local": datetime(2026, 1, 1, 8, 30),  # noqa: DTZ001 - a time without a zone
    "stops": [1, None, 3],
    "place": {"city": "Köln", "zip": None},
}


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_rows_of_any_schema_are_read_back_equal(data: st.DataObject) -> None:
    schema = data.draw(schemas())
    rows = data.draw(python_rows(schema))
    assert repr(read(stored(schema, rows), schema)) == repr(rows)


def test_a_row_is_read_back_with_its_types() -> None:
    assert read(stored(SCHEMA, [ROW]), SCHEMA) == [ROW]


def test_the_node_accepts_the_batch() -> None:
    batch = row_writer(SCHEMA)
    copied = [batch.copy(ROW), batch.tombstone({"id": 3, "at": NOW}, 0)]
    values, keys, tags, stamps, _ = (list(column) for column in zip(*copied, strict=True))
    columns = batch.columns(values, keys=keys, tags=tags, timestamps_us=stamps)
    assert columns.column("value").null_count == 1
    columns.validate(full=True)


def test_missing_optional_fields_are_null() -> None:
    (row,) = read(stored(SCHEMA, [{"id": 1, "at": NOW}]), SCHEMA)
    assert row is not None
    assert {name for name, value in row.items() if value is not None} == {"id", "at"}


def test_the_row_is_copied_at_the_call() -> None:
    stops, place, raw = [1], {"city": "a"}, bytearray(b"a")
    copied = row_writer(SCHEMA).copy({"id": 1, "at": NOW, "stops": stops, "place": place, "raw": raw})
    stops.append(2)
    place["city"] = "b"
    raw[0] = 0
    assert copied[0] is not None
    assert {b"a", "a"} <= {copied[0][5], copied[0][9][0]}
    assert [1] in copied[0]


@dataclass
class Place:
    city: str
    zip: int | None = None


@dataclass
class Sale:
    id: int
    at: datetime
    place: Place | None = None


class SaleModel(BaseModel):
    id: int
    at: datetime
    stops: list[int] = []


def test_models_are_rows() -> None:
    writer = row_writer(SCHEMA)
    fields = {"id": 1, "at": NOW}
    assert writer.copy(Sale(1, NOW, Place("Köln"))) == writer.copy({**fields, "place": {"city": "Köln"}})
    assert writer.copy(SaleModel(id=1, at=NOW, stops=[2])) == writer.copy({**fields, "stops": [2]})


@pytest.mark.parametrize("row", [None, b'{"id": 1}', "text", 5, [("id", 1)], Sale])
def test_other_objects_are_refused(row: Any) -> None:
    with pytest.raises(RowError, match="a row must be a dict, a dataclass or a pydantic model"):
        row_writer(SCHEMA).copy(row)


@given(st.integers(-(2**63), 2**63 - 1))
def test_keys_have_the_bytes_that_columns_have(number: int) -> None:
    key = row_writer(SCHEMA).copy({"id": number, "at": NOW})[1]
    assert [key] == key_column(pa.array([number], pa.int64())).to_pylist()


def test_tombstones_have_the_key_and_a_time() -> None:
    writer = row_writer(SCHEMA)
    assert writer.tombstone({"id": 5}, 77)[:4] == (None, writer.copy({"id": 5, "at": NOW})[1], None, 77)
    assert writer.tombstone({"id": 5, "kind": "sale", "at": NOW}, 77)[2] == "sale"
    for fields, said in (({}, "needs the key field 'id'"), ({"id": 1, "price": 2}, "the row has ['price']")):
        with pytest.raises(RowError, match=r"needs the key|the row has") as caught:
            writer.tombstone(fields, 0)
        assert said in str(caught.value)
    keyless = first_schema([field_of_text("a int8")])
    with pytest.raises(RowError, match="no key field"):
        row_writer(keyless).tombstone({"a": 1}, 0)


def test_values_without_a_text_are_refused_too() -> None:
    with pytest.raises(RowError, match=r"expected decimal128\(6, 2\), got the int \(without a text\)"):
        row_writer(SCHEMA).copy(ROW | {"price": 10**5000})


def test_names_are_never_source_text() -> None:
    name = '"] = 1; raise SystemExit #'
    hostile = Schema(1, 2, (replace(field_of_text("a int8"), name=name, id=1),))
    assert row_writer(hostile).copy({name: 5})[0] == (5,)
