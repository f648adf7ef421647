"""What a query does not ask for stays at the node: by columns and by filters, with a real node and a real Spark."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceReader
from tests.spark.conftest import Node

from tidelog.sync import Client

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(not hasattr(DataSourceReader, "pushFilters"), reason="Spark 4.0 pushes nothing down"),
]

BASE_S = 1_700_000_000
VALUE_BYTES = 1000
BATCHES, ROWS = 10, 100
ALL_BYTES = 2 * BATCHES * ROWS * VALUE_BYTES


@pytest.fixture(scope="module")
def topic(node: Node) -> str:
    """Two partitions of ten batches of a hundred records, a second apart."""
    name = f"t-{uuid.uuid4().hex}"
    with Client(node.address) as client:
        client.create_topic(name, partitions=2, flush="never")
        with client.producer(name) as producer:
            for partition in range(2):
                for batch in range(BATCHES):
                    numbers = range(batch * ROWS, (batch + 1) * ROWS)
                    stamps = pa.array([(BASE_S + n) * 1_000_000 for n in numbers]).cast(pa.timestamp("us", "UTC"))
                    columns = {
                        "value": [os.urandom(VALUE_BYTES) for _ in numbers],
                        "key": [b"k%d" % (n % 50) for n in numbers],
                        "timestamp": stamps,
                    }
                    producer.send_arrow(pa.table(columns), partition=partition)
                    producer.flush()
    return name


Read = Callable[[str, str], tuple[list[tuple[int, int]], float]]


@pytest.fixture
def read(node: Node, spark: SparkSession, topic: str) -> Read:
    def of(where: str, columns: str) -> tuple[list[tuple[int, int]], float]:
        """Return partition and offset of what a filter leaves, and the bytes that left the node for it."""
        before = node.metric("tidelog_bytes_out_total")
        frame: DataFrame = (
            spark.read.format("tidelog")
            .options(bootstrap=node.address, subscribe=topic, columns=f"partition,offset,{columns}".rstrip(","))
            .load()
            .where(where)
        )
        found = sorted((row.partition, row.offset) for row in frame.select("partition", "offset").collect())
        return found, node.metric("tidelog_bytes_out_total") - before

    return of


def places(*offsets: int, partitions: tuple[int, ...] = (0, 1)) -> list[tuple[int, int]]:
    return [(partition, offset) for partition in partitions for offset in offsets]


@pytest.mark.long
def test_offsets_and_partitions_are_in_the_headers(read: Read) -> None:
    found, size_bytes = read("true", "")
    assert found == places(*range(BATCHES * ROWS))
    assert size_bytes <= 2 * BATCHES * 128


@pytest.mark.long
@pytest.mark.parametrize(
    ("where", "columns", "wanted", "share"),
    [
        ("offset >= 250 AND offset < 260", "value", places(*range(250, 260)), 0.15),
        ("partition = 1 AND offset > 990", "value", places(*range(991, 1000), partitions=(1,)), 0.07),
        ("partition IN (1, 7) AND offset <= 3", "value", places(0, 1, 2, 3, partitions=(1,)), 0.07),
        (f"timestamp >= timestamp_seconds({BASE_S + 985})", "timestamp,value", places(*range(985, 1000)), 0.15),
        (f"timestamp < timestamp_seconds({BASE_S + 15})", "timestamp,value", places(*range(15)), 0.15),
        (f"timestamp = timestamp_seconds({BASE_S + 512})", "timestamp,value", places(512), 0.15),
        ("key = CAST('k7' AS BINARY)", "key,value", places(*range(7, 1000, 50)), 0.04),
        ("key = CAST('k7' AS BINARY) AND offset < 100", "key", places(7, 57), 0.01),
        ("offset > 20 AND offset < 20", "value", [], 0.0001),
        ("value IS NOT NULL AND offset % 500 = 3", "value", places(3, 503), 1.1),
    ],
)
def test_filters(read: Read, where: str, columns: str, wanted: list[tuple[int, int]], share: float) -> None:
    found, size_bytes = read(where, columns)
    assert found == wanted
    assert size_bytes <= share * ALL_BYTES + 500


@pytest.mark.long
def test_without_pushing_down_the_answer_is_the_same(read: Read, spark: SparkSession) -> None:
    name = "spark.sql.python.filterPushdown.enabled"
    assert spark.conf.get(name) == "true", "local_spark() says so"
    spark.conf.set(name, "false")
    try:
        found, size_bytes = read("offset = 7", "value")
    finally:
        spark.conf.set(name, "true")
    assert found == places(7)
    assert size_bytes > ALL_BYTES
