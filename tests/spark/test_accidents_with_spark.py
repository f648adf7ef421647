"""Faults of records during a query of a real Spark: damage, size, deletion, recreated topics, many partitions."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from tests.spark.conftest import Node, needs_spark_4_1, started_node

from tidelog.sync import Client
from tidelog_proto.limits import BATCH_BYTES_MAX, MIB

pytestmark = pytest.mark.spark

STEP = "spark.sql.execution.arrow.maxRecordsPerBatch"
MANY_PARTITIONS = 10_000
PLANNING_S_MAX = 60
"""On a machine that does other things; on its own it is a few seconds."""


@dataclass(frozen=True)
class Lab:
    """A node that keeps nothing in memory, so that what is read comes from files, and a Spark."""

    node: Node
    client: Client
    spark: SparkSession
    data: Path

    def topic(self, partitions: int = 1, **more: Any) -> str:
        name = f"a-{uuid.uuid4().hex}"
        self.client.create_topic(name, partitions=partitions, flush="never", **more)
        return name

    def publish(self, topic: str, values: list[bytes], partition: int = 0) -> None:
        with self.client.producer(topic) as producer:
            producer.send_arrow(pa.table({"value": pa.array(values, pa.binary())}), partition=partition)

    def load(self, topic: str, **options: str) -> DataFrame:
        return self.spark.read.format("tidelog").options(bootstrap=self.node.address, subscribe=topic, **options).load()


@pytest.fixture(scope="module")
def lab(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    data = tmp_path_factory.mktemp("accidents")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIDELOG_NODE_RING_BYTES", "0")
        with started_node(data) as node, Client(node.address) as client:
            yield Lab(node, client, spark, data)


def numbers(start: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, end)]


def failure(frame: DataFrame) -> str:
    with pytest.raises(PySparkException) as caught:
        frame.collect()
    return str(caught.value)


def flip_a_byte(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 0xFF]))


def test_a_damaged_batch_fails_the_task_and_says_where_it_is(lab: Lab) -> None:
    topic = lab.topic(segment_bytes=64 * 1024)
    for start in range(0, 40_000, 1_000):
        lab.publish(topic, numbers(start, start + 1_000))
    segments = sorted((lab.data / "data" / "partitions").glob(f"{topic}.*/epoch-*/*.seg"))
    damaged = segments[2]
    first = int(damaged.stem)
    flip_a_byte(damaged, 2_000)  # in the body of its first batch
    told = failure(lab.load(topic))
    assert f"topic '{topic}', partition 0, offset {first}: the header declares CRC32C " in told
    assert lab.load(topic, columns="offset").count() == 40_000, "headers are enough for that"
    around = [
        lab.load(topic, endingOffsets=json.dumps({topic: {"0": first}})),
        lab.load(topic, startingOffsets=json.dumps({topic: {"0": first + 1_000}})),
    ]
    assert sum(frame.count() for frame in around) == 39_000


@pytest.mark.long
def test_the_largest_records_are_read_and_written(lab: Lab) -> None:
    source, target = lab.topic(), lab.topic()
    large = BATCH_BYTES_MAX - 64 * 1024  # columns have some bytes besides
    with lab.client.producer(source) as producer:
        for fill in (b"a", b"b", b"c"):
            producer.send(fill * large, key=fill)
    read = lab.load(source)
    sizes = read.select("offset", f.length("value").alias("size"), f.crc32("value").alias("crc"))
    assert [row.size for row in sizes.orderBy("offset").collect()] == [large] * 3
    read.select("key", "value").write.format("tidelog").options(bootstrap=lab.node.address, topic=target).mode(
        "append"
    ).save()
    copied = lab.load(target).select(f.crc32("value").alias("crc")).collect()
    assert sorted(row.crc for row in copied) == sorted(row.crc for row in sizes.collect())
    assert large > 15 * MIB
    too_large = lab.spark.range(1).select(f.expr(f"repeat('x', {BATCH_BYTES_MAX + 1})").alias("value"))
    with pytest.raises(PySparkException, match="send smaller batches"):
        too_large.write.format("tidelog").options(bootstrap=lab.node.address, topic=target).mode("append").save()


@needs_spark_4_1
def test_a_topic_that_is_cut_under_a_query(lab: Lab) -> None:
    topic = lab.topic()
    lab.publish(topic, numbers(0, 1_000))
    planned = {told: lab.load(topic, failOnDataLoss=told) for told in ("true", "false")}
    for frame in planned.values():
        assert frame.count() == 1_000
    lab.client.delete_records(topic, 600)
    assert f"{topic}-0: offsets 0 to 599 existed when the read was planned, but are missing" in failure(planned["true"])
    assert sorted(int(row.value) for row in planned["false"].collect()) == list(range(600, 1_000))
    assert lab.load(topic).count() == 400


@needs_spark_4_1
def test_topic_that_is_recreated_before_the_tasks_start(lab: Lab) -> None:
    topic = lab.topic()
    lab.publish(topic, numbers(0, 100))
    planned = {told: lab.load(topic, failOnDataLoss=told) for told in ("true", "false")}
    for frame in planned.values():
        assert frame.count() == 100
    lab.client.delete_topic(topic)
    lab.client.create_topic(topic, flush="never")
    lab.publish(topic, numbers(5_000, 5_100))
    assert f"topic '{topic}' was deleted or recreated after this read was planned" in failure(planned["true"])
    assert planned["false"].collect() == []
    assert min(int(row.value) for row in lab.load(topic).collect()) == 5_000


@pytest.fixture
def small_steps(spark: SparkSession) -> Iterator[None]:
    """Have Spark hand records on to the next step in Python a few at a time, not ten thousand."""
    spark.conf.set(STEP, "16")
    yield
    spark.conf.unset(STEP)


@pytest.mark.usefixtures("small_steps")
def test_topic_that_is_recreated_between_two_fetches_of_a_task(lab: Lab) -> None:
    """A later step recreates it when the first records arrive: records that are not fetched by then are lost."""
    topic, address = lab.topic(), lab.node.address
    records, record_bytes = 640, 128 * 1024  # 80 MiB: ten fetches, of which few are under way
    for _ in range(records // 64):
        lab.publish(topic, [b"old".ljust(record_bytes, b".")] * 64)

    def make_anew(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        is_done = False
        for batch in batches:
            if not is_done:
                is_done = True
                with Client(address) as client:
                    client.delete_topic(topic)
                    client.create_topic(topic, flush="never")
                    with client.producer(topic) as producer:
                        for _ in range(records // 64):
                            producer.send_many([b"new".ljust(record_bytes, b".")] * 64, partition=0)
            yield batch

    read = lab.load(topic, columns="value", maxRecordsPerBatch="16")
    kinds = read.mapInArrow(make_anew, "value binary").select(f.substring("value", 1, 3).alias("kind"))
    message = failure(kinds.groupBy("kind").count())
    assert f"topic '{topic}' was deleted or recreated after this read was planned" in message


@pytest.mark.long
def test_ten_thousand_partitions_are_planned_in_time(lab: Lab) -> None:
    topic = lab.topic(MANY_PARTITIONS)
    used = range(0, MANY_PARTITIONS, MANY_PARTITIONS // 20)
    for partition in used:
        lab.publish(topic, [b"%d" % partition], partition)
    lab.client.list_offsets(topic, "latest")  # the first who asks has the node open all of them
    began = time.monotonic()
    frame = lab.load(topic)
    assert frame.rdd.getNumPartitions() == len(used), "partitions without records have no task"
    assert time.monotonic() - began < PLANNING_S_MAX
    assert sorted(int(row.value) for row in frame.select("value").collect()) == list(used)
