from __future__ import annotations

from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)
from tests.spark.logs import NOW_US, numbered, stored

from pyspark_tidelog import columns
from pyspark_tidelog.columns import Joiner, WireBatch, arrow_schema, ddl_of, wire_batch
from pyspark_tidelog.errors import OptionError
from pyspark_tidelog.options import COLUMN_NAMES
from tidelog_proto.header import Codec

HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
FULL = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
        StructField("headers", HEADERS),
        StructField("tag", StringType()),
    ]
)


def joined(batches: list[WireBatch], schema: pa.Schema, *, max_records: int = 1000) -> list[pa.RecordBatch]:
    joiner = Joiner(schema, topic="t", partition=3, max_records=max_records)
    return [*(out for batch in batches for out in joiner.add(batch)), *joiner.finish()]


def test_the_schema_is_what_spark_makes_of_it() -> None:
    assert tuple(FULL.fieldNames()) == COLUMN_NAMES
    assert arrow_schema(FULL).equals(to_arrow_schema(FULL, timezone="UTC"), check_metadata=True)
    assert ddl_of(["offset", "headers"]) == "offset bigint, headers array<struct<key:string,value:binary>>"
    assert ddl_of(COLUMN_NAMES).count(",") == len(COLUMN_NAMES)  # one of them is inside the headers


def test_a_choice_of_columns_keeps_its_order_and_its_not_nulls() -> None:
    chosen = StructType([StructField("value", BinaryType()), StructField("offset", LongType(), nullable=False)])
    assert arrow_schema(chosen).equals(to_arrow_schema(chosen, timezone="UTC"), check_metadata=True)


@pytest.mark.parametrize(
    ("field", "says"),
    [
        (StructField("ofset", LongType()), "Did you mean 'offset'"),
        (StructField("Offset", LongType()), "Did you mean 'offset'"),
        (StructField("offset", IntegerType()), "is bigint, not int"),
        (StructField("value", StringType()), "is binary, not string: read it as binary and cast"),
        (StructField("value", BinaryType(), nullable=False), "cannot be NOT NULL"),
    ],
)
def test_a_schema_that_is_not_ours_is_refused(field: StructField, says: str) -> None:
    with pytest.raises(OptionError, match=says):
        arrow_schema(StructType([field]))


def test_a_column_twice_is_refused() -> None:
    with pytest.raises(OptionError, match="twice"):
        arrow_schema(StructType([StructField("offset", LongType()), StructField("offset", LongType())]))


@pytest.mark.parametrize("codec", list(Codec))
def test_all_columns(codec: Codec) -> None:
    schema = arrow_schema(FULL)
    bare = stored([b"a", None], 5, codec=codec)
    full = stored(
        [b"c", b"d"],
        7,
        codec=codec,
        keys=[None, b"k"],
        tags=["x", None],
        headers=[[], [("h", b"1"), ("h", None)]],
        timestamps_us=[NOW_US + 1, NOW_US + 2],
    )
    (batch,) = joined([wire_batch(bare, schema), wire_batch(full, schema)], schema)
    batch.validate(full=True)
    assert batch.schema.equals(schema, check_metadata=True)
    rows: dict[str, list[Any]] = batch.to_pydict()
    assert [int(moment.timestamp() * 1e6) for moment in rows.pop("timestamp")] == [
        *(NOW_US, NOW_US),
        *(NOW_US + 1, NOW_US + 2),
    ]
    assert rows.pop("headers") == [None, None, None, [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]]
    assert rows == {
        "key": [None, None, None, b"k"],
        "value": [b"a", None, b"c", b"d"],
        "topic": ["t"] * 4,
        "partition": [3] * 4,
        "offset": [5, 6, 7, 8],
        "timestampType": [0] * 4,
        "tag": [None, None, "x", None],
    }


@given(st.lists(st.lists(st.sampled_from(["a", "b"]), max_size=3), min_size=1, max_size=8), st.data())
def test_no_headers_are_null_wherever_a_batch_is_cut(names: list[list[str]], data: st.DataObject) -> None:
    schema = arrow_schema(StructType([StructField("headers", HEADERS)]))
    batch = stored([b"v"] * len(names), headers=[[(name, name.encode()) for name in each] for each in names])
    start = data.draw(st.integers(0, len(names) - 1))
    end = data.draw(st.integers(start + 1, len(names)))
    (out,) = joined([wire_batch(batch, schema).cut(start, end)], schema)
    out.validate(full=True)
    assert out.column("headers").to_pylist() == [
        [{"key": name, "value": name.encode()} for name in each] or None for each in names[start:end]
    ]


def test_nothing_is_decoded_for_columns_that_are_not_in_the_body(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: object) -> None:
        raise AssertionError("decoded")

    batch = numbered(4, 10)
    monkeypatch.setattr(type(batch), "columns", refuse)
    schema = arrow_schema(StructType([StructField("offset", LongType()), StructField("timestamp", TimestampType())]))
    (out,) = joined([wire_batch(batch, schema)], schema)
    assert out.column("offset").to_pylist() == [10, 11, 12, 13]


@given(st.integers(0, 12), st.integers(0, 12))
def test_a_cut_holds_exactly_the_offsets_asked_for(start: int, end: int) -> None:
    schema = arrow_schema(StructType([StructField("value", BinaryType())]))
    piece = wire_batch(numbered(5, 4), schema).cut(start, end)
    expected = [offset for offset in range(4, 9) if start <= offset < end]
    assert piece.rows == len(expected)
    assert piece.arrays["value"].to_pylist() == [b"%d" % offset for offset in expected]
    assert piece.offsets.tolist() == expected


@given(st.lists(st.integers(1, 40), max_size=12), st.integers(1, 50))
def test_joining_loses_and_repeats_nothing(counts: list[int], max_records: int) -> None:
    schema = arrow_schema(StructType([StructField("offset", LongType()), StructField("value", BinaryType())]))
    ends = [0]
    for count in counts:
        ends.append(ends[-1] + count)
    batches = [wire_batch(numbered(end - start, start), schema) for start, end in pairwise(ends)]
    out = joined(batches, schema, max_records=max_records)
    assert [offset for batch in out for offset in batch.column("offset").to_pylist()] == list(range(ends[-1]))
    assert [v for batch in out for v in batch.column("value").to_pylist()] == [b"%d" % i for i in range(ends[-1])]
    assert all(batch.num_rows == max_records for batch in out[:-1])
    assert all(0 < batch.num_rows <= max_records for batch in out[-1:])


def test_large_values_leave_before_the_rows_are_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "JOINED_BYTES", 1000)
    schema = arrow_schema(StructType([StructField("value", BinaryType())]))
    batches = [wire_batch(stored([b"x" * 600], offset), schema) for offset in range(5)]
    assert [out.num_rows for out in joined(batches, schema)] == [2, 2, 1]
