from __future__ import annotations

from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.clients.logs import numbered, stored

from tidelog.tables import joined_batches
from tidelog.tables.joined_batches import BatchJoiner, WireBatch, wire_batch
from tidelog_proto.batch.columns import HEADERS_TYPE, TIMESTAMP_TYPE

OFFSET: Any = pa.field("offset", pa.int64())
VALUE: Any = pa.field("value", pa.binary())
TIMESTAMP: Any = pa.field("timestamp", TIMESTAMP_TYPE)
HEADERS_OR_NULL: Any = pa.field("headers", HEADERS_TYPE)


def joined(batches: list[WireBatch], schema: pa.Schema, *, max_records: int = 1000) -> list[pa.RecordBatch]:
    joiner = BatchJoiner(schema, {"partition": pa.scalar(3, pa.int32())}, max_records=max_records)
    return [*(out for batch in batches for out in joiner.add(batch)), *joiner.finish()]


def test_missing_columns_are_filled_in() -> None:
    fields: list[Any] = [pa.field("partition", pa.int32()), VALUE, pa.field("headers", HEADERS_TYPE, nullable=False)]
    schema = pa.schema([*fields, pa.field("tag", pa.string())])
    bare, headed = stored([b"a", None], 5), stored([b"b"], 7, headers=[[("h", b"1")]])
    (batch,) = joined([wire_batch(bare, schema), wire_batch(headed, schema)], schema)
    batch.validate(full=True)
    assert batch.to_pydict() == {
        "partition": [3, 3, 3],
        "value": [b"a", None, b"b"],
        "headers": [[], [], [{"key": "h", "value": b"1"}]],
        "tag": [None, None, None],
    }


@given(st.lists(st.lists(st.sampled_from(["a", "b"]), max_size=3), min_size=1, max_size=8), st.data())
def test_missing_headers_are_null_in_every_slice(names: list[list[str]], data: st.DataObject) -> None:
    schema = pa.schema([HEADERS_OR_NULL])
    batch = stored([b"v"] * len(names), headers=[[(name, name.encode()) for name in each] for each in names])
    start = data.draw(st.integers(0, len(names) - 1))
    end = data.draw(st.integers(start + 1, len(names)))
    (out,) = joined([wire_batch(batch, schema).cut(start, end)], schema)
    out.validate(full=True)
    assert out.column("headers").to_pylist() == [
        [{"key": name, "value": name.encode()} for name in each] or None for each in names[start:end]
    ]


def test_batch_is_not_decoded_for_constant_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: object) -> None:
        raise AssertionError("decoded")

    batch = numbered(4, 10)
    monkeypatch.setattr(type(batch), "columns", refuse)
    schema = pa.schema([OFFSET, TIMESTAMP])
    (out,) = joined([wire_batch(batch, schema)], schema)
    assert out.column("offset").to_pylist() == [10, 11, 12, 13]


@given(st.integers(0, 12), st.integers(0, 12))
def test_cut_has_exactly_the_requested_offsets(start: int, end: int) -> None:
    schema = pa.schema([VALUE])
    piece = wire_batch(numbered(5, 4), schema).cut(start, end)
    expected = [offset for offset in range(4, 9) if start <= offset < end]
    assert piece.rows == len(expected)
    assert piece.arrays["value"].to_pylist() == [b"%d" % offset for offset in expected]
    assert piece.offsets.tolist() == expected


@given(st.lists(st.integers(1, 40), max_size=12), st.integers(1, 50))
def test_joining_loses_and_repeats_nothing(counts: list[int], max_records: int) -> None:
    schema = pa.schema([OFFSET, VALUE])
    ends = [0]
    for count in counts:
        ends.append(ends[-1] + count)
    batches = [wire_batch(numbered(end - start, start), schema) for start, end in pairwise(ends)]
    out = joined(batches, schema, max_records=max_records)
    assert [offset for batch in out for offset in batch.column("offset").to_pylist()] == list(range(ends[-1]))
    assert [v for batch in out for v in batch.column("value").to_pylist()] == [b"%d" % i for i in range(ends[-1])]
    assert all(batch.num_rows == max_records for batch in out[:-1])
    assert all(0 < batch.num_rows <= max_records for batch in out[-1:])


@given(st.lists(st.integers(1, 40), min_size=1, max_size=8))
def test_constants_fill_all_rows(counts: list[int]) -> None:
    schema = pa.schema([OFFSET, pa.field("topic", pa.string()), pa.field("partition", pa.int32())])
    constants = {"partition": pa.scalar(3, pa.int32()), "topic": pa.scalar("flüge", pa.string())}
    joiner, offset = BatchJoiner(schema, constants, max_records=40), 0
    for count in counts:
        out = [*joiner.add(wire_batch(numbered(count, offset), schema)), *joiner.finish()]
        offset += count
        assert sum(batch.num_rows for batch in out) == count
        for batch in out:
            batch.validate(full=True)
            assert batch.column("topic").to_pylist() == ["flüge"] * batch.num_rows
            assert batch.column("partition").to_pylist() == [3] * batch.num_rows


def test_large_batch_is_not_copied() -> None:
    schema = pa.schema([VALUE])
    large = wire_batch(stored([b"x" * joined_batches.JOINED_BYTES]), schema)
    (out,) = joined([large], schema)
    given, taken = large.arrays["value"].buffers()[2], out.column("value").buffers()[2]
    assert given is not None
    assert taken is not None
    assert taken.address == given.address


def test_large_values_are_emitted_before_max_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joined_batches, "JOINED_BYTES", 1000)
    schema = pa.schema([VALUE])
    batches = [wire_batch(stored([b"x" * 600], offset), schema) for offset in range(5)]
    assert [out.num_rows for out in joined(batches, schema)] == [2, 2, 1]


def test_filtered_records_keep_their_offsets_and_columns() -> None:
    schema = pa.schema([OFFSET, VALUE])
    batch = wire_batch(stored([b"a", None, b"c"], 7), schema)
    assert batch.where(pa.array([True, True, True])) is batch
    chosen = batch.where(pa.array([True, None, False]))
    assert (chosen.rows, chosen.offsets.tolist(), chosen.arrays["value"].to_pylist()) == (1, [7], [b"a"])
    (out,) = joined([chosen, batch.where(pa.array([False, True, True]))], schema)
    assert out.to_pydict() == {"offset": [7, 8, 9], "value": [b"a", None, b"c"]}
