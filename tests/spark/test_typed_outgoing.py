from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)
from tests.spark.typed_frames import schema_of, topic_of

from pyspark_tidelog.errors import OptionError, TidelogSourceError
from pyspark_tidelog.typed_outgoing import check_row_columns, error_with_row, typed_rows_by_place
from tidelog.rows.arrow_rows import typed_columns
from tidelog.rows.value_checks import RowError
from tidelog_proto.batch.row_layout import row_layout
from tidelog_proto.schema.topic_schema import Schema

FLIGHTS = schema_of(
    "at timestamp[us,UTC]",
    "carrier string required",
    "flight int16",
    "fare decimal128(6,2)",
    "weight float32",
    "place struct<city: string required, zip: int32>",
    "stops list<int32>",
    "local timestamp[us]",
    "facts list<struct<key: string, value: int8>>",
    time="at",
    key="carrier",
)
NEEDED: dict[str, DataType] = {"at": TimestampType(), "carrier": StringType()}


def frame(**columns: DataType) -> StructType:
    return StructType([StructField(name, of) for name, of in columns.items()])


def check(schema: Schema = FLIGHTS, /, **columns: DataType) -> None:
    check_row_columns(frame(**columns), topic_of(schema))


def check_flights(columns: dict[str, DataType]) -> None:
    check_row_columns(frame(**(NEEDED | columns)), topic_of(FLIGHTS))


def struct(**children: DataType) -> StructType:
    return frame(**children)


@pytest.mark.parametrize(
    "columns",
    [
        {},
        {"flight": ShortType()},
        {"flight": LongType()},
        {"flight": NullType()},
        {"fare": DecimalType(38, 18)},
        {"fare": DecimalType(4, 2)},
        {"weight": FloatType()},
        {"place": struct(city=StringType())},
        {"place": struct(zip=ShortType(), city=StringType())},
        {"stops": ArrayType(ShortType())},
        {"local": TimestampNTZType()},
        {"facts": MapType(StringType(), ByteType())},
        {"_deleted": BooleanType(), "_partition": IntegerType()},
        {"_headers": ArrayType(struct(key=StringType(), value=BinaryType()))},
    ],
)
def test_columns_of_the_fields_are_accepted(columns: dict[str, DataType]) -> None:
    check_flights(columns)


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"gate": StringType()}, "column 'gate' is not a field of schema 1 of topic 't'"),
        ({"Flight": ShortType()}, "column 'Flight' is not a field .* Did you mean 'flight'"),
        ({"value": BinaryType()}, "column 'value' is not a field"),
        ({"_offset": LongType()}, "column '_offset' is not a field"),
        ({"_timestamp": TimestampType()}, "column '_timestamp' is not a field"),
        ({"_key": BinaryType()}, "column '_key' is not a field"),
        ({"_partition": LongType()}, "column '_partition' must be int, got bigint"),
        ({"flight": DoubleType()}, "column 'flight' must be smallint, got double: cast it"),
        ({"flight": StringType()}, "column 'flight' must be smallint, got string"),
        ({"fare": DoubleType()}, r"column 'fare' must be decimal\(6,2\), got double"),
        ({"fare": IntegerType()}, r"column 'fare' must be decimal\(6,2\), got int"),
        ({"weight": DoubleType()}, "column 'weight' must be float, got double"),
        ({"local": TimestampType()}, "column 'local' must be timestamp_ntz, got timestamp"),
        ({"local": DateType()}, "column 'local' must be timestamp_ntz, got date"),
        ({"stops": ArrayType(LongType())}, "column 'stops.element' must be int, got bigint"),
        ({"stops": IntegerType()}, "column 'stops' must be array<int>, got int"),
        ({"place": StringType()}, "column 'place' must be struct<city:string,zip:int>, got string"),
        ({"place": struct(zip=IntegerType())}, "column 'place': the struct lacks the required fields 'city'"),
        ({"place": struct(city=StringType(), Zip=IntegerType())}, "the struct has no field 'Zip'. Did you mean 'zip'"),
        ({"facts": MapType(StringType(), LongType())}, "column 'facts.value' must be tinyint, got bigint"),
    ],
)
def test_other_columns_are_refused(columns: dict[str, DataType], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        check_flights(columns)


def test_required_fields_need_a_column() -> None:
    with pytest.raises(OptionError, match="the required fields 'carrier' of topic 't' have no column"):
        check(at=TimestampType())
    keyed = schema_of("k string required", "n int8 required", key="k")
    with pytest.raises(OptionError, match="the required fields 'n'"):
        check(keyed, k=StringType())
    check(keyed, k=StringType(), _deleted=BooleanType())
    with pytest.raises(OptionError, match="has no key field, so there is no key to delete"):
        check(schema_of("n int8"), n=ShortType(), _deleted=BooleanType())
    check(schema_of("n int8"), n=ShortType(), _deleted=BooleanType(), _key=StringType())
    twice = StructType([StructField("n", ShortType()), StructField("n", ShortType())])
    with pytest.raises(OptionError, match="the column 'n' is duplicate"):
        check_row_columns(twice, topic_of(schema_of("n int8")))


def test_rows_go_to_the_partition_that_they_name_in_their_order() -> None:
    batch = pa.record_batch({"n": [1, 2, 3, 4], "_partition": pa.array([1, 0, 1, None], pa.int32())})
    places = [(rows.topic, rows.partition, rows.columns.to_pydict()) for rows in typed_rows_by_place(batch, "t")]
    assert places == [("t", 1, {"n": [1, 3]}), ("t", 0, {"n": [2]}), ("t", None, {"n": [4]})]
    (rows,) = typed_rows_by_place(batch.select(["n"]), "t")
    assert rows.partition is None
    assert list(typed_rows_by_place(batch.slice(0, 0), "t")) == []


def located(schema: Schema, rows_before: int = 0, **columns: Any) -> Exception:
    layout, batch = row_layout(schema), pa.record_batch(columns)
    with pytest.raises(RowError) as caught:
        typed_columns(layout, batch.select([name for name in columns if name != "_partition"]))
    return error_with_row(caught.value, layout, batch, rows_before)


def test_a_row_that_does_not_fit_is_named_with_its_field_and_value() -> None:
    schema = schema_of("k string required", "n int32", "d decimal128(4,2)", key="k")
    numbers = [*range(700), 2**40, *range(300), 2**41]
    error = located(schema, 1000, k=["x"] * 1002, n=numbers)
    assert isinstance(error, TidelogSourceError)
    assert "row 1700 of the task's rows (the first is 0) does not fit schema 1" in str(error)
    assert f"column 'n': Integer value {2**40} not in range" in str(error)
    no_key = located(schema, k=["x", None, "y"], n=[1, 2, 3], _partition=pa.array([0, 1, 0], pa.int32()))
    assert "row 1 of" in str(no_key)
    assert "'k'" in str(no_key)
    for at in range(5):
        values = [1.25] * 5
        values[at] = 1.125
        decimals = pa.array(values).cast(pa.decimal128(10, 3))
        assert f"row {at} of" in str(located(schema, k=["x"] * 5, d=decimals))


def test_columns_that_do_not_fit_have_no_row() -> None:
    assert isinstance(located(schema_of("n int32"), value=[b"x"]), RowError)
