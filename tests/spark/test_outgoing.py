from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from pyspark_tidelog.errors import OptionError
from pyspark_tidelog.outgoing import check_columns, rows_by_place


def schema(**columns: Any) -> StructType:
    return StructType([StructField(name, of) for name, of in columns.items()])


def refused(where: str | None, **columns: Any) -> str:
    with pytest.raises(OptionError) as caught:
        check_columns(schema(**columns), topic=where)
    return str(caught.value)


def test_columns_are_those_of_records() -> None:
    check_columns(schema(value=StringType(), partition=IntegerType()), topic="t")
    check_columns(schema(value=StringType(), topic=StringType()), topic=None)
    assert "Did you mean 'partition'" in refused("t", value=StringType(), partitions=IntegerType())
    assert "to_json(struct(*))" in refused("t", carrier=StringType())
    assert "must be binary or string, got bigint" in refused("t", value=LongType())
    assert "column 'value' is missing" in refused("t", key=StringType())
    assert "set the option 'topic'" in refused(None, value=StringType())
    assert "drop one of them" in refused("t", value=StringType(), topic=StringType())


def places(columns: dict[str, Any], topic: str | None = None) -> list[tuple[str, int | None, list[Any]]]:
    return [
        (rows.topic, rows.partition, rows.columns.column("value").to_pylist())
        for rows in rows_by_place(pa.record_batch(columns), topic)
    ]


def test_rows_go_where_they_say_in_their_order() -> None:
    values = ["a", "b", "c", "d", "e"]
    assert places({"value": values}, "t") == [("t", None, values)]
    assert places({"value": values, "topic": ["x", "y", "x", "y", "x"]}) == [
        ("x", None, ["a", "c", "e"]),
        ("y", None, ["b", "d"]),
    ]
    by_both = {"value": values, "topic": ["x", "y", "x", "y", "x"], "partition": [1, 0, 0, 0, None]}
    assert places(by_both) == [("x", 1, ["a"]), ("x", 0, ["c"]), ("x", None, ["e"]), ("y", 0, ["b", "d"])]
    assert places({"value": pa.array([], pa.string())}, "t") == []
    with pytest.raises(OptionError, match="is null"):
        places({"value": ["a", "b"], "topic": ["x", None]})


def test_columns_that_no_row_uses_are_left_out() -> None:
    nothing = pa.nulls(2, pa.binary())
    given = {"key": nothing, "tag": pa.array([None, "t"]), "value": nothing, "headers": pa.nulls(2)}
    (rows,) = rows_by_place(pa.record_batch(given), "t")
    assert rows.columns.schema.names == ["tag", "value"]


def test_timestamps_that_are_all_null_are_kept() -> None:
    given = {"value": ["a", "b"], "timestamp": pa.nulls(2, pa.timestamp("us", "UTC"))}
    (rows,) = rows_by_place(pa.record_batch(given), "t")
    assert rows.columns.schema.names == ["value", "timestamp"]
