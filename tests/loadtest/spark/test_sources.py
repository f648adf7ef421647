from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, IntegerType, LongType, StructField, StructType

from pyspark_tidelog.columns import arrow_schema
from tidelog_loadtest.spark.sources import EmptySource, rows_of

SCHEMA = StructType(
    [
        StructField("value", BinaryType()),
        StructField("offset", LongType(), nullable=False),
        StructField("partition", IntegerType(), nullable=False),
    ]
)


@pytest.mark.parametrize("rows", [10, 96, 100])
def test_the_empty_source_yields_the_requested_rows(rows: int) -> None:
    source = EmptySource({"rows": str(rows), "size": "5", "partitions": "2", "batch": "32"})
    reader = source.reader(SCHEMA)
    for partition in reader.partitions():
        batches = list(reader.read(partition))
        assert sum(batch.num_rows for batch in batches) == rows // 2
        assert max(batch.num_rows for batch in batches) <= 32
        assert {len(value.as_py()) for batch in batches for value in batch.column("value")} == {5}
    assert len(reader.partitions()) == 2


def test_columns_are_those_of_the_schema() -> None:
    schema = arrow_schema(SCHEMA)
    assert rows_of(schema, 3, 5).schema == schema
    narrow = pa.schema([schema.field("offset"), schema.field("partition")])
    assert rows_of(narrow, 3, 5).to_pydict() == {"offset": [0, 1, 2], "partition": [0, 0, 0]}
