from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
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
from tests.clients.logs import NOW_US, stored
from tests.spark.conftest import SPARK

from pyspark_tidelog.columns import arrow_schema, constants, ddl_of
from pyspark_tidelog.errors import OptionError
from pyspark_tidelog.options import COLUMN_NAMES
from tidelog.tables.joined_batches import BatchJoiner, WireBatch, wire_batch
from tidelog_proto.batch.header import Codec

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
    joiner = BatchJoiner(schema, constants("t", 3), max_records=max_records)
    return [*(out for batch in batches for out in joiner.add(batch)), *joiner.finish()]


def made_by_spark(schema: StructType) -> pa.Schema:
    """Return what this release of Spark makes of a schema."""
    if SPARK < (4, 1):
        return to_arrow_schema(schema)  # it always says UTC
    return to_arrow_schema(schema, timezone="UTC")


def test_the_schema_is_what_spark_makes_of_it() -> None:
    assert tuple(FULL.fieldNames()) == COLUMN_NAMES
    assert arrow_schema(FULL).equals(made_by_spark(FULL), check_metadata=True)
    assert ddl_of(["offset", "headers"]) == "offset bigint, headers array<struct<key:string,value:binary>>"
    assert ddl_of(COLUMN_NAMES).count(",") == len(COLUMN_NAMES)  # one of them is inside the headers


def test_a_choice_of_columns_keeps_its_order_and_its_not_nulls() -> None:
    chosen = StructType([StructField("value", BinaryType()), StructField("offset", LongType(), nullable=False)])
    assert arrow_schema(chosen).equals(made_by_spark(chosen), check_metadata=True)


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
    with pytest.raises(OptionError, match="duplicate column"):
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
