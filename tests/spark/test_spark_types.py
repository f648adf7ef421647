from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, DecimalType, IntegerType, LongType, StringType, StructField, StructType
from tests.proto.schemas import EVERY_TYPE, schemas
from tests.spark.conftest import SPARK

from pyspark_tidelog.errors import OptionError
from pyspark_tidelog.spark_types import arrow_as_declared, spark_field, spark_type
from tidelog.tables.typed_tables import columns_of_table
from tidelog_proto.schema.topic_schema import Schema


def made_by_spark(schema: StructType) -> pa.Schema:
    return to_arrow_schema(schema) if SPARK < (4, 1) else to_arrow_schema(schema, timezone="UTC")


@given(schemas())
@settings(max_examples=50, deadline=None)
def test_each_type_is_declared_as_spark_expects_it(schema: Schema) -> None:
    for tombstones in (False, True):
        columns = columns_of_table(schema, tombstones=tombstones)
        declared = StructType([spark_field(column) for column in columns])
        assert made_by_spark(declared).equals(columns)
        parsed = StructType.fromJson(declared.jsonValue())
        arrow = pa.schema([arrow_as_declared(one, known) for one, known in zip(parsed, columns, strict=True)])
        assert arrow.equals(made_by_spark(parsed))


def test_types_are_those_of_sql() -> None:
    columns = columns_of_table(EVERY_TYPE)
    assert [spark_type(column.type).simpleString() for column in columns] == [
        *(
            "timestamp",
            "string",
            "string",
            "boolean",
            "tinyint",
            "smallint",
            "int",
            "bigint",
            "float",
            "double",
            "string",
        ),
        *("binary", "date", "timestamp_ntz", "timestamp", "decimal(1,0)", "decimal(10,2)", "array<int>"),
        *("struct<city:string,Höhe über NN:float>", "int", "bigint", "timestamp"),
        "array<struct<key:string,value:binary>>",
    ]
    assert spark_field(columns.field(0), "when it left").metadata == {"comment": "when it left"}


LISTS = pa.field(
    "l", pa.list_(pa.field("item", pa.struct([pa.field("a", pa.int32(), nullable=False), ("b", pa.string())])))
)


def declared(a: Any = None, *, element: bool = True, nullable: bool = True, b: bool = True) -> StructField:
    inner = StructType([StructField("a", a or IntegerType()), StructField("b", StringType(), b)])
    return StructField("l", ArrayType(inner, element), nullable)


def test_a_declared_type_may_allow_nulls_that_the_values_lack() -> None:
    loose: Any = arrow_as_declared(declared(), LISTS)
    value: Any = pa.array([[{"a": 1, "b": None}], None, [None]], LISTS.type)
    assert value.cast(loose.type).to_pylist() == value.to_pylist()
    assert loose.type.value_type.field("a").nullable


@pytest.mark.parametrize(
    ("field", "says"),
    [
        (declared(LongType()), "column 'l' is array<struct<a:int,b:string>>, not array<struct<a:bigint,b:string>>"),
        (declared(nullable=False), "column 'l' cannot be NOT NULL"),
        (declared(element=False), "column 'l.element' cannot be NOT NULL"),
        (declared(b=False), "column 'l.element.b' cannot be NOT NULL"),
        (StructField("l", DecimalType(3, 1)), "not decimal"),
    ],
)
def test_other_declarations_are_refused(field: StructField, says: str) -> None:
    with pytest.raises(OptionError, match=says):
        arrow_as_declared(field, LISTS)
