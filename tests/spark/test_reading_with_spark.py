"""The whole way: records published to a real node, read back by a real Spark."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f
from tests.spark.conftest import Node, needs_spark_4_1

from tidelog.sync import Client

pytestmark = pytest.mark.spark

BASE_MS = 1_700_000_000_000


class Topic:
    """A topic of one test's own."""

    def __init__(self, node: Node, client: Client, spark: SparkSession, partitions: int = 1, **more: Any) -> None:
        self.name = f"t-{uuid.uuid4().hex}"
        self.client = client
        self._node = node
        self._spark = spark
        client.create_topic(self.name, partitions=partitions, flush="never", **more)

    def publish(self, columns: dict[str, Any], partition: int = 0, compression: Any = None) -> None:
        producer = self.client.producer(self.name, compression=compression)
        producer.send_arrow(pa.table(columns), partition=partition)
        producer.close()

    def load(self, schema: str | None = None, **options: str) -> DataFrame:
        if "assign" not in options and "subscribePattern" not in options:
            options["subscribe"] = self.name
        reading = self._spark.read.format("tidelog").options(bootstrap=self._node.address, **options)
        return (reading if schema is None else reading.schema(schema)).load()


NewTopic = Callable[..., Topic]


@pytest.fixture
def new_topic(node: Node, client: Client, spark: SparkSession) -> NewTopic:
    return lambda *args, **more: Topic(node, client, spark, *args, **more)


def texts(start: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, end)]


def values(frame: DataFrame) -> list[int]:
    return sorted(int(row.value) for row in frame.select("value").collect())


def failure(load: Callable[[], DataFrame]) -> str:
    with pytest.raises(PySparkException) as caught:
        load().collect()
    return str(caught.value)


@pytest.mark.parametrize("compression", [None, "lz4", "zstd", "snappy", "gzip"])
def test_every_column_is_as_published(new_topic: NewTopic, compression: str | None) -> None:
    topic = new_topic(2)
    topic.publish({"value": pa.array([b"bare", None])}, 0, compression)
    headers = pa.array(
        [[{"key": "a", "value": b"1"}, {"key": "a", "value": None}], []],
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    )
    columns: dict[str, Any] = {
        "timestamp": pa.array([BASE_MS * 1000 + 7, BASE_MS * 1000 + 8]).cast(pa.timestamp("us", "UTC")),
        "key": pa.array([b"k", None]),
        "value": pa.array([b"\x00\xff", b""]),
        "headers": headers,
        "tag": pa.array([None, "tagged"]),
    }
    topic.publish(columns, 1, compression)
    frame = topic.load(includeHeaders="true", includeTags="true")
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>,tag:string>"
    )
    rows = frame.withColumn("timestamp", f.unix_micros("timestamp")).orderBy("partition", "offset").collect()
    now_us = rows[0].timestamp
    assert now_us > BASE_MS * 1000
    none = {"topic": topic.name, "timestampType": 0, "key": None, "headers": None, "tag": None}
    two_headers = [Row(key="a", value=b"1"), Row(key="a", value=None)]
    assert [{**row.asDict(), "value": row.value and bytes(row.value)} for row in rows] == [
        {**none, "value": b"bare", "partition": 0, "offset": 0, "timestamp": now_us},
        {**none, "value": None, "partition": 0, "offset": 1, "timestamp": now_us},
        {
            **none,
            "key": b"k",
            "value": b"\x00\xff",
            "headers": two_headers,
            "partition": 1,
            "offset": 0,
            "timestamp": BASE_MS * 1000 + 7,
        },
        {**none, "value": b"", "tag": "tagged", "partition": 1, "offset": 1, "timestamp": BASE_MS * 1000 + 8},
    ]


@pytest.mark.long
def test_ranges_tasks_and_batches(new_topic: NewTopic) -> None:
    topic = new_topic(3)
    for start in range(0, 6000, 1000):
        topic.publish({"value": texts(start, start + 1000)}, start // 1000 % 2)
    everything = topic.load()
    assert everything.rdd.getNumPartitions() == 2  # the third partition is empty
    assert values(everything) == list(range(6000))
    split = topic.load(minPartitions="5", maxRecordsPerBatch="700")
    assert split.rdd.getNumPartitions() == 5
    assert values(split) == list(range(6000))
    part = topic.load(
        startingOffsets=json.dumps({topic.name: {"0": 999, "1": 2990, "2": -2}}),
        endingOffsets=json.dumps({topic.name: {"0": 1001, "1": -1, "2": 0}}),
    )
    assert values(part) == [999, 2000, *range(5990, 6000)]
    assigned = topic.load(assign=json.dumps({topic.name: [1]}))
    assert values(assigned) == [*range(1000, 2000), *range(3000, 4000), *range(5000, 6000)]
    assert topic.load(subscribePattern=topic.name[:-1] + ".").count() == 6000
    assert len(everything.limit(3).collect()) == 3


@pytest.mark.long
def test_times(new_topic: NewTopic) -> None:
    topic = new_topic()
    stamps = pa.array([(BASE_MS + 10 * i) * 1000 for i in range(100)]).cast(pa.timestamp("us", "UTC"))
    topic.publish({"timestamp": stamps, "value": texts(0, 100)})
    part = topic.load(startingTimestamp=str(BASE_MS + 95), endingTimestamp=str(BASE_MS + 200))
    assert values(part) == list(range(10, 20))
    late = {"startingTimestamp": str(BASE_MS + 10**6)}
    assert "no record is at or after" in failure(lambda: topic.load(**late))
    assert topic.load(**late, startingOffsetsByTimestampStrategy="latest").count() == 0


@needs_spark_4_1
def test_query_reads_the_records_at_its_planning(new_topic: NewTopic) -> None:
    topic = new_topic()
    topic.publish({"value": texts(0, 10)})
    frame = topic.load()
    assert frame.count() == 10
    topic.publish({"value": texts(10, 20)})
    assert (frame.count(), topic.load().count()) == (10, 20)


def test_a_choice_of_columns(new_topic: NewTopic) -> None:
    topic = new_topic()
    topic.publish({"value": texts(0, 10), "key": [b"k"] * 10})
    assert topic.load("offset bigint, key binary").collect() == [Row(offset=i, key=b"k") for i in range(10)]
    assert topic.load(columns="partition").distinct().collect() == [Row(partition=0)]
    assert "cast it in the query" in failure(lambda: topic.load("value string"))


def test_an_empty_topic_has_no_rows_and_a_missing_one_is_an_error(new_topic: NewTopic) -> None:
    topic = new_topic(2)
    assert topic.load().collect() == []
    topic.client.delete_topic(topic.name)
    assert f"topic '{topic.name}' does not exist" in failure(topic.load)


def test_a_wrong_option_says_what_is_right(new_topic: NewTopic) -> None:
    assert "Did you mean 'startingOffsets'?" in failure(lambda: new_topic().load(startingOffset="earliest"))


def test_sql(new_topic: NewTopic, spark: SparkSession, node: Node) -> None:
    topic = new_topic()
    topic.publish({"value": texts(0, 10)})
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW numbers USING tidelog "
        f"OPTIONS (bootstrap '{node.address}', subscribe '{topic.name}')"
    )
    total = "SELECT sum(CAST(CAST(value AS STRING) AS INT)) AS total FROM"
    assert spark.sql(f"{total} numbers").collect() == [Row(total=45)]


def test_a_table_is_refused(spark: SparkSession, node: Node) -> None:
    options = f"bootstrap = '{node.address}', subscribe = 't'"
    with pytest.raises(PySparkException, match="CREATE TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE kept USING tidelog OPTIONS ({options})")
    spark.sql("CREATE TABLE kept (value BINARY) USING tidelog")  # of which Spark does not ask the source
    try:
        assert "use CREATE TEMPORARY VIEW" in failure(lambda: spark.table("kept"))
    finally:
        spark.sql("DROP TABLE kept")


@pytest.mark.long
def test_json_values(new_topic: NewTopic) -> None:
    topic = new_topic(2)
    carriers = ("UA", "B6", "DL")
    for partition in range(2):
        records = [json.dumps({"carrier": carriers[i % 3], "dep_delay": i % 7 or None}) for i in range(9000)]
        topic.publish({"value": pa.array(records).cast(pa.binary())}, partition, "lz4")
    text = topic.load().select(f.col("value").cast("string").alias("text"))
    parsed = text.select(f.from_json("text", "carrier STRING, dep_delay DOUBLE").alias("r")).select("r.*")
    grouped = parsed.groupBy("carrier").agg(f.count("*").alias("flights"), f.count("dep_delay").alias("with_delay"))
    delays = [i for i in range(9000) if i % 7]
    assert {row.carrier: (row.flights, row.with_delay) for row in grouped.collect()} == {
        carrier: (6000, 2 * sum(1 for i in delays if i % 3 == at)) for at, carrier in enumerate(carriers)
    }
    picked = text.select(f.get_json_object("text", "$.carrier").alias("carrier"))
    assert picked.filter("carrier = 'UA'").count() == 6000


def start_after_retention(topic: Topic) -> int:
    """Wait until the node has deleted what its topic may not hold, and return where the log starts then."""
    for _ in range(600):
        (partition,) = topic.client.topic(topic.name).partitions
        if partition.log_start_offset > 0 and partition.size_bytes <= topic.client.topic(topic.name).retention_bytes:
            return partition.log_start_offset
        # The node checks every 50 ms: a fetch at the end waits that long.
        topic.client.fetch(topic.name, 0, partition.high_watermark, min_bytes=1, wait_ms=50)
    raise AssertionError("retention deleted nothing")


@pytest.mark.long
def test_records_deleted_by_retention(new_topic: NewTopic) -> None:
    topic = new_topic(1, segment_bytes=64 * 1024, retention_bytes=128 * 1024)
    for start in range(0, 60_000, 1000):
        topic.publish({"value": texts(start, start + 1000)})
    start = start_after_retention(topic)
    assert 0 < start < 60_000
    from_zero = {"startingOffsets": json.dumps({topic.name: {"0": 0}})}
    assert f"offsets 0 to {start - 1} are deleted" in failure(lambda: topic.load(**from_zero))
    assert values(topic.load(**from_zero, failOnDataLoss="false")) == list(range(start, 60_000))
    assert values(topic.load()) == list(range(start, 60_000))
    beyond = {"endingOffsets": json.dumps({topic.name: {"0": 60_001}})}
    assert "offset 60001 is after the partition's end" in failure(lambda: topic.load(**beyond))
