"""Records that a load leaves out stay at the node: by options, columns and filters, with a real Spark and node."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.spark.conftest import Node

from pyspark_tidelog.pushdown import PLAN_BELONGS_TO_SCAN, SETTING
from tidelog.sync import Client

pytestmark = pytest.mark.spark

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
                        "tag": ["red" if n % 200 == 9 else None for n in numbers],
                        "timestamp": stamps,
                    }
                    producer.send_arrow(pa.table(columns), partition=partition)
                    producer.flush()
    return name


Read = Callable[..., tuple[list[tuple[int, int]], float]]


@pytest.fixture
def read(node: Node, spark: SparkSession, topic: str) -> Read:
    def of(columns: str, where: str = "true", **options: Any) -> tuple[list[tuple[int, int]], float]:
        """Return partition and offset of the rows of a query, and the bytes that left the node for it.

        Options that are not text are those of the topic, as JSON.
        """
        before = node.metric("tidelog_bytes_out_total")
        named = {name: each if isinstance(each, str) else json.dumps({topic: each}) for name, each in options.items()}
        if "assign" not in named:
            named["subscribe"] = topic
        named["columns"] = f"partition,offset,{columns}".rstrip(",")
        reading = spark.read.format("tidelog").options(bootstrap=node.address, **named)
        frame: DataFrame = reading.load().where(where)
        found = sorted((row.partition, row.offset) for row in frame.select("partition", "offset").collect())
        return found, node.metric("tidelog_bytes_out_total") - before

    return of


def places(*offsets: int, partitions: tuple[int, ...] = (0, 1)) -> list[tuple[int, int]]:
    return [(partition, offset) for partition in partitions for offset in offsets]


@pytest.mark.long
def test_offsets_and_partitions_are_in_the_headers(read: Read) -> None:
    found, size_bytes = read("")
    assert found == places(*range(BATCHES * ROWS))
    assert size_bytes <= 2 * BATCHES * 128


@pytest.mark.parametrize(
    ("columns", "options", "wanted", "share"),
    [
        ("key,value", {"key": "k7"}, places(*range(7, 1000, 50)), 0.04),
        ("value", {"keyHex": b"k7".hex()}, places(*range(7, 1000, 50)), 0.04),
        ("", {"key": "k7", "endingOffsets": {"0": 100, "1": 60}}, [(0, 7), (0, 57), (1, 7), (1, 57)], 0.01),
        ("value", {"tag": "red"}, places(*range(9, 1000, 200)), 0.02),
        ("tag", {"key": "k9", "tag": "red"}, places(*range(9, 1000, 200)), 0.01),
        ("value", {"key": " k7"}, [], 0.0001),
        ("value", {"key": "k8", "tag": "red"}, [], 0.0001),
        (
            "value",
            {"startingOffsets": {"0": 250, "1": 990}, "endingOffsets": {"0": 260, "1": 991}},
            [*places(*range(250, 260), partitions=(0,)), (1, 990)],
            0.11,
        ),
        ("value", {"startingTimestamp": str((BASE_S + 985) * 1000)}, places(*range(985, 1000)), 0.11),
        ("value", {"endingTimestamp": str((BASE_S + 15) * 1000)}, places(*range(15)), 0.21),
    ],
)
def test_options_narrow_the_read(
    read: Read, columns: str, options: dict[str, Any], wanted: list[tuple[int, int]], share: float
) -> None:
    found, size_bytes = read(columns, **options)
    assert found == wanted
    assert size_bytes <= share * ALL_BYTES + 500


def test_partitions_that_are_not_assigned_are_not_read(read: Read) -> None:
    found, size_bytes = read("value", assign=[1])
    assert found == places(*range(1000), partitions=(1,))
    assert size_bytes <= 0.52 * ALL_BYTES


def test_a_stream_reads_the_records_of_one_key(node: Node, spark: SparkSession, topic: str, tmp_path: Path) -> None:
    options = {"bootstrap": node.address, "subscribe": topic, "startingOffsets": "earliest"}
    stream = spark.readStream.format("tidelog").options(**options, key="k7", columns="partition,offset").load()
    writing = stream.writeStream.format("memory").queryName("one_key").option("checkpointLocation", str(tmp_path))
    before = node.metric("tidelog_bytes_out_total")
    writing.trigger(availableNow=True).start().awaitTermination()
    found = sorted(map(tuple, spark.table("one_key").collect()))
    assert found == places(*range(7, 1000, 50))
    assert node.metric("tidelog_bytes_out_total") - before <= 0.04 * ALL_BYTES


@pytest.fixture
def _pushdown(spark: SparkSession) -> Iterator[None]:
    spark.conf.set(SETTING, "true")
    yield
    spark.conf.set(SETTING, "false")


@pytest.mark.long
@pytest.mark.skipif(not PLAN_BELONGS_TO_SCAN, reason="this Spark applies the filters of one scan to others")
@pytest.mark.usefixtures("_pushdown")
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
def test_pushed_filters_narrow_the_read(
    read: Read, where: str, columns: str, wanted: list[tuple[int, int]], share: float
) -> None:
    found, size_bytes = read(columns, where)
    assert found == wanted
    assert size_bytes <= share * ALL_BYTES + 500
