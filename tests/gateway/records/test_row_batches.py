"""Typed batches as records with JSON values, in parts."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.proto.batches import CODECS
from tests.proto.schemas import schemas
from tests.proto.typed_batches import encoded, parsed, rows_of_schema

from tidelog.model import ConsumedBatch
from tidelog_gateway.problems import Problem
from tidelog_gateway.records.row_batches import RowBatchReader, parts_of, reader_of
from tidelog_proto.batch.derived_batch import kept_rows
from tidelog_proto.batch.json_view import json_values
from tidelog_proto.batch.record_batch import RecordBatch
from tidelog_proto.batch.row_layout import row_layout
from tidelog_proto.batch.row_reader import row_reader
from tidelog_proto.schema.next_schema import first_schema
from tidelog_proto.schema.topic_schema import Schema
from tidelog_proto.schema.type_text import field_of_text

SCHEMA = first_schema([field_of_text("n int32"), field_of_text("text string")])
LAYOUT = row_layout(SCHEMA)


def batch_of(texts: list[str]) -> RecordBatch:
    rows = pa.RecordBatch.from_pydict({"n": pa.array(range(len(texts)), pa.int32()), "text": texts})
    return parsed(encoded(LAYOUT, rows, base=100), {1: LAYOUT})


@given(schema=schemas(), codec=st.sampled_from(CODECS), data=st.data())
@settings(max_examples=60, deadline=None)
def test_parts_have_the_records_of_a_batch(schema: Schema, codec: Any, data: st.DataObject) -> None:
    layout = row_layout(schema)
    raw = encoded(layout, data.draw(rows_of_schema(schema)), codec, base=70)
    if data.draw(st.booleans()):
        whole = parsed(raw, {1: layout})
        raw = bytes(kept_rows(whole, np.array([data.draw(st.booleans()) for _ in range(len(whole))])) or raw)
    whole = parsed(raw, {1: layout})
    whole = whole.slice_from(data.draw(st.integers(0, whole.end_offset - 1)))
    reader = row_reader(schema, schema)
    parts = list(parts_of(whole, records_max=data.draw(st.integers(1, 4))))
    assert [offset for part in parts for offset in part.offset_list()] == list(whole.offset_list())
    assert [value for part in parts for value in json_values(reader, part)] == json_values(reader, whole)
    assert [each for part in parts for each in part.timestamps_us()] == whole.timestamps_us()
    assert [each for part in parts for each in part.keys()] == whole.keys()  # noqa: SIM118 - a method of batches
    assert not parts or parts[-1].end_offset == whole.end_offset
    assert [one.end_offset for one in parts[:-1]] == [one.offset_list()[-1] + 1 for one in parts[:-1]]


@pytest.mark.parametrize("json_bytes_max", [1, 300, 5_000, 10**9])
async def test_reader_returns_every_record_once(json_bytes_max: int) -> None:
    batch = batch_of(["é" * (number % 90) for number in range(1234)])
    reader = RowBatchReader(batch, row_reader(SCHEMA, SCHEMA, ("text", "n")))
    found: list[dict[str, Any]] = []
    while len(reader):
        await reader.prepare()
        first, position = reader.first_offset, reader.next_offset
        assert first == position
        taken = reader.take_json(400, 10**9, json_bytes_max)
        assert taken.records == 1 or len(taken.data) <= json_bytes_max
        found += json.loads(taken.data)
        assert reader.next_offset == 100 + len(found)
    assert [record["offset"] for record in found] == [*range(100, 1334)]
    assert [record["value"] for record in found] == [{"text": "é" * (n % 90), "n": n} for n in range(1234)]


async def test_peeked_records_are_removed_by_advance() -> None:
    reader = RowBatchReader(batch_of(["x"] * 700), row_reader(SCHEMA, SCHEMA))
    left = 700
    while left:
        await reader.prepare()
        rows = reader.peek(450, 10**9)
        reader.advance(rows.columns.num_rows)
        left -= rows.columns.num_rows
        assert len(reader) == left
    assert reader.next_offset == 800


async def test_large_records_are_parts_of_their_own_and_rendered_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = batch_of(["x" * 600_000] * 3)
    assert [len(part) for part in parts_of(batch)] == [1, 1, 1]
    threads = 0
    to_thread = asyncio.to_thread

    async def counted(*of: Any) -> Any:
        nonlocal threads
        threads += 1
        return await to_thread(*of)

    monkeypatch.setattr(asyncio, "to_thread", counted)
    reader = RowBatchReader(batch, row_reader(SCHEMA, SCHEMA))
    while len(reader):
        await reader.prepare()
        reader.take_json(10, 10**9, 10**9)
    assert threads == 3


def test_columns_that_the_schema_lacks_are_a_problem() -> None:
    with pytest.raises(Problem, match="are not fields of schema 1"):
        reader_of(ConsumedBatch("t", 0, batch_of(["x"]), SCHEMA, ("gone",)))
