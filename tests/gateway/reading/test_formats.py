from __future__ import annotations

import csv
import io
import json
from typing import Any

import orjson
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gateway.reading.bodies import batch_of, body_of

from tidelog_gateway.records.json_encoding import rows_of
from tidelog_gateway.requests.content_negotiation import ARROW, CSV, JSON, NDJSON
from tidelog_proto.batch.record_batch import RecordBatch, columns_of
from tidelog_proto.batch.record_schema import RECORDS_SCHEMA, columns_at

BYTES = st.one_of(st.none(), st.binary(max_size=5), st.text(max_size=5).map(str.encode), st.just(b'{"a":"\\n"}'))
HEADERS = st.lists(st.tuples(st.text(max_size=3), BYTES), max_size=3)
ROWS = st.lists(
    st.tuples(BYTES, BYTES, HEADERS, st.one_of(st.none(), st.text(max_size=4)), st.integers(0, 253402300799999999)),
    min_size=1,
    max_size=5,
)


def batch_from(rows: list[tuple[Any, ...]]) -> RecordBatch:
    values, keys, headers, tags, stamps = (list(column) for column in zip(*rows, strict=True))
    return batch_of(columns_of(values, keys=keys, headers=headers, tags=tags, timestamps_us=stamps), base_offset=7)


@settings(max_examples=150, deadline=None)
@given(ROWS)
async def test_json_and_ndjson_are_the_rows_of_the_other_way(rows: list[tuple[Any, ...]]) -> None:
    batch = batch_from(rows)
    expected = rows_of(batch.columns(), batch.offset_list(), 0)
    assert orjson.loads(await body_of(batch, JSON))["records"] == expected
    lines = await body_of(batch, NDJSON)
    assert [orjson.loads(line) for line in lines.splitlines()] == [{"partition": 3, **row} for row in expected]
    assert lines.count(b"\n") == len(rows)


@settings(max_examples=150, deadline=None)
@given(ROWS)
async def test_csv_is_exact(rows: list[tuple[Any, ...]]) -> None:
    batch = batch_from(rows)
    text = (await body_of(batch, CSV)).decode()
    found = list(csv.DictReader(io.StringIO(text, newline="")))
    for row, record in zip(found, rows_of(batch.columns(), batch.offset_list(), 0), strict=True):
        assert (int(row["partition"]), int(row["offset"])) == (3, record["offset"])
        assert int(row["timestamp_ms"]) == record["timestamp_ms"]
        assert row["value"] == (record["value"] or "")
        assert row["value_encoding"] == ("" if record["value"] is None else record["value_encoding"])
        assert row["key"] == (record["key"] or "")
        assert row["key_encoding"] == ("" if record["key"] is None else record.get("key_encoding", "utf8"))
        assert row["tag"] == record.get("tag", "")
        assert json.loads(row["headers"] or "[]") == record.get("headers", [])


async def test_csv_tells_null_from_empty_text() -> None:
    batch = batch_of(columns_of([b"", None, b'a,"b"\nc'], keys=[None, b"", b"k"]))
    assert (await body_of(batch, CSV)).decode() == (
        "partition,offset,timestamp_ms,key,key_encoding,value,value_encoding,tag,headers\n"
        '3,0,1000,,,"","utf8",,\n'
        '3,1,1000,"","utf8",,,,\n'
        '3,2,1000,"k","utf8","a,""b""\nc","utf8",,\n'
    )


@settings(max_examples=100, deadline=None)
@given(ROWS)
async def test_arrow_has_the_columns_as_they_are(rows: list[tuple[Any, ...]]) -> None:
    batch = batch_from(rows)
    table = pa.ipc.open_stream(await body_of(batch, ARROW)).read_all()
    assert table.schema == RECORDS_SCHEMA
    assert table.to_batches()[0].equals(columns_at(batch, 3))


async def test_arrow_without_records_is_a_stream() -> None:
    empty = batch_of(columns_of([b"x"])).slice_from(1)
    assert pa.ipc.open_stream(await body_of(empty, ARROW)).read_all().num_rows == 0


@pytest.mark.parametrize("encoding", ["utf8", "json"])
async def test_arrow_has_text_if_asked_for(encoding: Any) -> None:
    data = await body_of(batch_of(columns_of([b"[1]", None, b'"x"'])), ARROW, encoding)
    column = pa.ipc.open_stream(data).read_all()["value"]
    assert (column.type, column.to_pylist()) == (pa.string(), ["[1]", None, '"x"'])


async def test_json_values_are_the_bytes_that_were_sent() -> None:
    values = [b'{"b":1.10,"a":12345678901234567.89,"b":-0}', b" [ 1 ] ", None, b"null", b'{"a":\n1}']
    batch = batch_of(columns_of(values))
    data = await body_of(batch, JSON, "json")
    for value in (b'"value":{"b":1.10,"a":12345678901234567.89,"b":-0},', b'"value": [ 1 ] ,', b'"value":{"a":\n1},'):
        assert value in data
    records = orjson.loads(data)["records"]
    assert [record["value_encoding"] for record in records] == ["json", "json", "utf8", "json", "json"]
    assert [record["value"] for record in records][2:4] == [None, None]
    lines = (await body_of(batch, NDJSON, "json")).splitlines()
    assert len(lines) == 5, "a line break between tokens ends no line"
    assert orjson.loads(lines[4])["value_encoding"] == "utf8"
    assert orjson.loads(lines[4])["value"] == '{"a":\n1}'


async def test_base64_holds_for_every_value() -> None:
    records = orjson.loads(await body_of(batch_of(columns_of([b"a", None, b"\xff"])), JSON, "base64"))["records"]
    assert [(record["value"], record["value_encoding"]) for record in records] == [
        ("YQ==", "base64"),
        (None, "utf8"),
        ("/w==", "base64"),
    ]
