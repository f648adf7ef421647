"""Writing the whole way: a real Spark, a real node, tasks that die between two rows and are done once more."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from tests.spark.conftest import Node, needs_spark_4_1

from tidelog.sync import Client

pytestmark = pytest.mark.spark

DEADLINE_S = 120


class Topics:
    """Topics of one test's own."""

    def __init__(self, node: Node, client: Client, spark: SparkSession) -> None:
        self.node = node
        self.client = client
        self.spark = spark

    def new(self, partitions: int = 2) -> str:
        name = f"w-{uuid.uuid4().hex}"
        self.client.create_topic(name, partitions=partitions, flush="never")
        return name

    def rows(self, topic: str, *columns: str) -> list[Any]:
        reading = self.spark.read.format("tidelog").options(bootstrap=self.node.address, subscribe=topic)
        frame = reading.options(includeHeaders="true", includeTags="true").load()
        return sorted(tuple(row) for row in frame.selectExpr(*columns or ["CAST(value AS STRING)"]).collect())

    def write(self, frame: DataFrame, **options: str) -> None:
        frame.write.format("tidelog").options(bootstrap=self.node.address, **options).mode("append").save()


@pytest.fixture
def topics(node: Node, client: Client, spark: SparkSession) -> Topics:
    return Topics(node, client, spark)


def test_every_column_arrives(topics: Topics) -> None:
    one, other = topics.new(), topics.new()
    frame = topics.spark.createDataFrame(
        [
            (one, 1, b"k", b"v", [("a", b"1"), ("a", None)], "red"),
            (other, 0, None, b"", None, None),
            (one, 0, b"", None, [], ""),
        ],
        "topic string, partition int, key binary, value binary, "
        "headers array<struct<key:string,value:binary>>, tag string",
    )
    topics.write(frame, compression="zstd", acks="all")
    columns = ("partition", "hex(key)", "hex(value)", "to_json(headers)", "tag")
    assert topics.rows(one, *columns) == [
        (0, "", None, None, ""),
        (1, "6B", "76", '[{"key":"a","value":"MQ=="},{"key":"a"}]', "red"),
    ]
    assert topics.rows(other, *columns) == [(0, None, "", None, None)]
    stamped = topics.spark.sql("SELECT 'x' AS value, timestamp_millis(1700000000123) AS timestamp")
    topics.write(stamped, topic=one)
    assert (1700000000123,) in topics.rows(one, "unix_millis(timestamp)")


def refused(topics: Topics, frame: DataFrame, match: str, mode: str = "append", **options: str) -> None:
    with pytest.raises(PySparkException, match=match):
        frame.write.format("tidelog").options(bootstrap=topics.node.address, **options).mode(mode).save()


@pytest.mark.long
def test_unwritable_frame_is_refused(topics: Topics) -> None:
    frame = topics.spark.sql("SELECT 'x' AS value")
    topic = topics.new()
    refused(topics, frame, "set the option 'topic'")
    refused(topics, frame, "mode\\('append'\\)", mode="overwrite", topic=topic)
    refused(topics, frame, "topic 'missing' does not exist", topic="missing")
    refused(topics, frame, "Did you mean 'topic'", subscribe=topic)
    refused(topics, topics.spark.sql("SELECT 'x' AS value, 1 AS nmber"), "to_json", topic=topic)
    refused(topics, topics.spark.sql("SELECT 1 AS value"), "cast it", topic=topic)
    refused(
        topics,
        topics.spark.sql("SELECT 'x' AS value, NULL AS topic").selectExpr("value", "CAST(topic AS STRING) AS topic"),
        "null",
    )
    refused(topics, frame, "'compression' must be one of", topic=topic, compression="brotli")


def dying(directory: Path, times: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return what passes rows on, and ends the first `times` tasks in the middle of them."""

    def passing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            died = len(list(directory.glob("died-*")))
            if number == 2 and died < times:
                (directory / f"died-{os.getpid()}-{time.monotonic_ns()}").touch()
                time.sleep(1.0)  # accepted rows are in flight
                raise RuntimeError("the task dies")
            yield batch

    return passing


def dying_second(directory: Path) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return what passes rows on, and ends the second task once when both have written."""

    def passing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        assert task is not None
        first_writes, died = directory / "first-writes", directory / "died"
        for number, batch in enumerate(batches):
            if number == 2 and task.partitionId() == 0:
                first_writes.touch()
            if number == 2 and task.partitionId() == 1 and not died.exists():
                while not first_writes.exists():
                    time.sleep(0.05)
                time.sleep(1.0)  # accepted rows are in flight
                died.touch()
                raise RuntimeError("the task dies")
            yield batch

    return passing


def dying_first(directory: Path) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return what passes rows on, and ends the first task once, without a row, when the second has written all."""

    def passing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        assert task is not None
        second_wrote, died = directory / "second-wrote", directory / "died"
        if task.partitionId() == 0 and not died.exists():
            while not second_wrote.exists():
                time.sleep(0.05)
            time.sleep(2.0)  # accepted rows are in flight
            died.touch()
            raise RuntimeError("the task dies")
        yield from batches
        second_wrote.touch()

    return passing


@pytest.mark.long
@needs_spark_4_1
def test_a_task_that_dies_and_is_tried_again_doubles_nothing(topics: Topics, tmp_path: Path) -> None:
    source, sink = topics.new(1), topics.new()
    with topics.client.producer(source) as producer:
        producer.send_arrow(pa.table({"value": [b"%d" % n for n in range(50_000)]}), partition=0)
    spark = topics.spark
    checkpoint = str(tmp_path / "checkpoint")

    def run(times: int) -> None:
        stream = spark.readStream.format("tidelog").options(bootstrap=topics.node.address, subscribe=source)
        frame = stream.options(startingOffsets="earliest").load()
        passed = frame.selectExpr("value", "key").mapInArrow(dying(tmp_path, times), "value binary, key binary")
        writing = passed.writeStream.format("tidelog").options(bootstrap=topics.node.address, topic=sink)
        query = writing.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        assert query.awaitTermination(DEADLINE_S)

    with pytest.raises(StreamingQueryException, match="the task dies"):
        run(1)
    assert len(topics.rows(sink)) > 0, "some had been written when it died"
    run(1)
    expected = sorted((str(n),) for n in range(50_000))
    assert topics.rows(sink) == expected
    with topics.client.producer(source) as producer:
        producer.send(b"50000")
    run(1)
    assert topics.rows(sink) == sorted([*expected, ("50000",)])


@pytest.mark.long
@needs_spark_4_1
def test_rows_that_change_between_attempts_are_reported(topics: Topics, tmp_path: Path) -> None:
    source, sink = topics.new(1), topics.new(1)
    with topics.client.producer(source) as producer:
        producer.send_arrow(pa.table({"value": [b"%d" % n for n in range(30_000)]}), partition=0)
    spark = topics.spark

    def run(**options: str) -> None:
        stream = spark.readStream.format("tidelog").options(bootstrap=topics.node.address, subscribe=source)
        frame = stream.options(startingOffsets="earliest").load()

        def changing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in dying(tmp_path, 1)(batches):
                mark = uuid.uuid4().bytes
                yield pa.record_batch({"value": pa.array([mark] * batch.num_rows)})

        passed = frame.selectExpr("value").mapInArrow(changing, "value binary")
        writing = passed.writeStream.format("tidelog").options(bootstrap=topics.node.address, topic=sink, **options)
        query = writing.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
        assert query.awaitTermination(DEADLINE_S)

    with pytest.raises(StreamingQueryException, match="the task dies"):
        run()
    with pytest.raises(StreamingQueryException, match="rows that the query no longer produces"):
        run()
    run(failOnChangedRows="false")


@pytest.mark.long
@needs_spark_4_1
@pytest.mark.parametrize("dying_one", [dying_first, dying_second])
def test_fewer_tasks_than_in_an_earlier_attempt_are_reported(
    topics: Topics,
    tmp_path: Path,
    dying_one: Callable[[Path], Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]],
) -> None:
    source, sink = topics.new(1), topics.new(1)
    with topics.client.producer(source) as producer:
        producer.send_arrow(pa.table({"value": [b"%d" % n for n in range(100_000)]}), partition=0)

    def run(tasks: int, **options: str) -> None:
        stream = topics.spark.readStream.format("tidelog").options(bootstrap=topics.node.address, subscribe=source)
        frame = stream.options(startingOffsets="earliest", minPartitions=str(tasks)).load()
        passed = frame.selectExpr("value").mapInArrow(dying_one(tmp_path), "value binary")
        writing = passed.writeStream.format("tidelog").options(bootstrap=topics.node.address, topic=sink, **options)
        query = writing.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
        assert query.awaitTermination(DEADLINE_S)

    with pytest.raises(StreamingQueryException, match="the task dies"):
        run(2)
    with pytest.raises(StreamingQueryException, match=r"tasks differently from this attempt \(1 tasks\)"):
        run(1)
    run(1, failOnChangedRows="false")


@needs_spark_4_1
def test_the_number_of_tasks_behind_a_shuffle_stays_the_same(topics: Topics, tmp_path: Path) -> None:
    """Spark would join small partitions, by the cores that there are: then rows move to other tasks in another run."""
    source, sink = topics.new(1), topics.new(1)
    with topics.client.producer(source) as producer:
        producer.send_many([b"%d" % n for n in range(1_000)])

    def numbered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        assert task is not None
        for _ in batches:
            yield pa.record_batch({"value": [b"%d" % task.partitionId()]})

    stream = topics.spark.readStream.format("tidelog").options(bootstrap=topics.node.address, subscribe=source)
    shuffled = stream.option("startingOffsets", "earliest").load().select("value").repartition("value")
    writing = shuffled.mapInArrow(numbered, "value binary").writeStream.format("tidelog")
    placed = writing.options(bootstrap=topics.node.address, topic=sink, checkpointLocation=str(tmp_path / "checkpoint"))
    query = placed.trigger(availableNow=True).start()
    assert query.awaitTermination(DEADLINE_S)
    tasks = int(topics.spark.conf.get("spark.sql.shuffle.partitions") or 0)
    assert tasks > 1
    assert {number for (number,) in topics.rows(sink)} == {str(number) for number in range(tasks)}
