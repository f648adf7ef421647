from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.clients.rows.python_rows import python_rows, read, stored
from tests.clients.rows.test_row_writer import ROW, SCHEMA
from tests.proto.schemas import schemas

from tidelog.rows.json_rows import row_of_json
from tidelog.rows.row_writer import row_writer
from tidelog.rows.value_checks import RowError
from tidelog_proto.batch.json_view import json_values
from tidelog_proto.batch.row_reader import row_reader
from tidelog_proto.schema.topic_schema import Schema


def as_json(schema: Schema, rows: list[dict[str, Any]]) -> list[bytes | None]:
    return json_values(row_reader(schema, schema), stored(schema, rows))


def test_the_json_view_has_the_order_of_the_schema() -> None:
    row = ROW | {"ratio": float("nan"), "half": 21.3}
    assert as_json(SCHEMA, [row]) == [
        '{"id":-7,"at":"2026-11-30T12:00:00Z","kind":"sale","small":127,"price":"1234.50","ratio":"NaN","half":21.3,'
        '"ok":true,"raw":"AP8=","day":"2026-02-28","local":"2026-01-01T08:30:00","stops":[1,null,3],'
        '"place":{"city":"Köln","zip":null}}'.encode()
    ]


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_json_is_read_back_as_the_same_rows(data: st.DataObject) -> None:
    schema = data.draw(schemas())
    rows = data.draw(python_rows(schema))
    parsed = [row_of_json(schema, text) for text in as_json(schema, rows) if text is not None]
    assert repr(read(stored(schema, parsed), schema)) == repr(rows)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1]", "is not a JSON object"),
        ("{", "is not a JSON object"),
        ('{"id": 1, "id": 2}', "a name is repeated: ['id']"),
        ('{"ratio": NaN}', "use the string 'NaN'"),
        ("\udcff", "is not a JSON object"),
        ('{"raw": "?"}', "give base64"),
        ('{"raw": "QR=="}', "bits beyond its last byte"),
        ('{"price": "1_0"}', "not a decimal number"),
        ('{"price": " 1.5"}', "not a decimal number"),
        ('{"price": "１"}', "not a decimal number"),  # noqa: RUF001 - a digit that is wide
        ('{"ratio": 1e400}', "expected float64, got the Decimal"),
        ('{"ratio": -1e-400}', "expected float64, got the Decimal"),
        ('{"half": 1e39}', "a float within its range"),
        ('{"price": "x"}', "give a string such as '1.50'"),
        ('{"at": "noon"}', "give a string such as '2026-01-31T08:00:00Z'"),
        ('{"at": "2026-01-01T00:00:00.1234567Z"}', "more digits than microseconds"),
        ('{"place": {"city": 1}, "stops": 1}', "expected"),
        ('{"id": 1.0}', "expected int64, got the Decimal"),
        ('{"id": "1"}', "expected int64, got the str"),
        ('{"id": true}', "expected int64, got the bool"),
        ('{"at": "2026-01-01T00:00:00"}', "give it a time zone"),
        ('{"ratio": "1"}', "expected float64"),
        ('{"name": "x"}', "the row has ['name']"),
        ("[" * 100_000, "is not a JSON object"),
    ],
)
def test_other_json_is_refused(text: str, said: str) -> None:
    def take() -> None:
        row_writer(SCHEMA).copy({"id": 1, "at": ROW["at"]} | row_of_json(SCHEMA, text))

    with pytest.raises(RowError) as caught:
        take()
    assert said in str(caught.value)


def test_decimals_are_taken_as_strings_and_exact_numbers() -> None:
    for price in ('"1.50"', "1.5", "1.50"):
        text = json.dumps({"id": 1, "at": "2026-11-30T12:00:00+00:00"})[:-1] + f', "price": {price}}}'
        (row,) = as_json(SCHEMA, [row_of_json(SCHEMA, text)])
        assert row is not None
        assert b'"price":"1.50"' in row
