"""Faults of nodes, logs and drivers during a query of a real Spark: down, drained, compacted, killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession
from tests.spark import held_driver, nodes
from tests.spark.conftest import Node, needs_spark_4_1, needs_spark_4_2
from tests.spark.test_accidents_with_spark import small_steps
from tests.spark.test_streaming_with_spark import Stream

from tidelog.sync import Client
from tidelog.testing.free_ports import free_ports

pytestmark = [pytest.mark.spark, pytest.mark.long]

__all__ = ["small_steps"]

RECORDS, RECORD_BYTES = 640, 128 * 1024
"""80 MiB: ten fetches, of which few are under way."""
KEYS = 16
DEADLINE_S = 120
ANOTHER_SPARK_S = 240
"""A second Java beside the tests' own, on a machine that does other things; on its own it is some 20 s."""
TOLD_S_MAX = 100
"""A client tries for 30 s; Spark and a machine that does other things take the rest."""

Step = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def publish_large(client: Client, topic: str) -> None:
    """Publish numbers as keys, in turn, with what fills the records up behind the number as value."""
    with client.producer(topic) as producer:
        for start in range(0, RECORDS, 64):
            numbers = range(start, start + 64)
            values = [(b"%d." % number).ljust(RECORD_BYTES, b".") for number in numbers]
            producer.send_arrow(
                pa.table({"key": [b"%d" % (number % KEYS) for number in numbers], "value": values}), partition=0
            )


def numbers_read(spark: SparkSession, address: str, topic: str, step: Step) -> list[int]:
    """Read a topic through a step behind the reader, which does something when the first records come."""
    options = {"bootstrap": address, "subscribe": topic, "columns": "value", "maxRecordsPerBatch": "16"}
    read = spark.read.format("tidelog").options(**options).load()
    passed = read.mapInArrow(step, "value binary").selectExpr("CAST(substring_index(value, '.', 1) AS INT) AS number")
    return sorted(row.number for row in passed.collect())


def once(act: Callable[[], object]) -> Step:
    """Return what passes records on, and does something before the first ones."""

    def passing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        is_done = False
        for batch in batches:
            if not is_done:
                is_done = True
                act()
            yield batch

    return passing


def until(condition: Callable[[], bool], what: str, deadline_s: float = DEADLINE_S) -> None:
    deadline = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def test_a_node_that_is_down_when_a_query_begins_is_named(spark: SparkSession, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    options = {"bootstrap": f"127.0.0.1:{port}", "subscribe": "t"}
    began = time.monotonic()
    stream = spark.readStream.format("tidelog").options(**options).load()
    query = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    said = re.escape(f"cannot connect to 127.0.0.1:{port}") + ".*is the node running"
    try:
        with pytest.raises(PySparkException, match=said):
            spark.read.format("tidelog").options(**options).load().count()
        with pytest.raises(StreamingQueryException, match=said):
            query.awaitTermination(DEADLINE_S)
    finally:
        query.stop()
    assert time.monotonic() - began < TOLD_S_MAX


@pytest.mark.usefixtures("small_steps")
def test_a_node_that_goes_down_under_a_read_and_comes_back(spark: SparkSession, tmp_path: Path) -> None:
    with nodes.one_node(tmp_path) as node, Client(node.address) as client:
        client.create_topic("t")
        publish_large(client, "t")
        pid = node.pid
        with ThreadPoolExecutor(1) as thread:
            kill = once(lambda: os.kill(pid, signal.SIGKILL))
            reading = thread.submit(numbers_read, spark, node.address, "t", kill)
            node.killed()
            assert not reading.done()
            node.start()
            assert reading.result(DEADLINE_S) == list(range(RECORDS))


class Copying:
    """A query from topic to topic, at nodes of one test's own."""

    def __init__(self, spark: SparkSession, bootstrap: str, client: Client, directory: Path) -> None:
        self.source, self.sink = "source", "sink"
        self.client = client
        self.checkpoint = directory / "checkpoint"
        self._spark = spark
        self._bootstrap = bootstrap
        self._published = 0

    def publish(self, count: int) -> None:
        """Publish the next numbers, over all partitions."""
        with self.client.producer(self.source, delivery_timeout_s=DEADLINE_S) as producer:
            producer.send_many([b"%d" % (self._published + n) for n in range(count)])
        self._published += count

    def start(self, **trigger: Any) -> Any:
        """Start the query."""
        stream = self._spark.readStream.format("tidelog").options(bootstrap=self._bootstrap, subscribe=self.source)
        frame = stream.options(startingOffsets="earliest").load().select("value")
        writing = frame.writeStream.format("tidelog").options(bootstrap=self._bootstrap, topic=self.sink)
        return writing.option("checkpointLocation", str(self.checkpoint)).trigger(**trigger).start()

    def numbers(self) -> list[int]:
        """Return what is in the sink."""
        read = self._spark.read.format("tidelog").options(bootstrap=self._bootstrap, subscribe=self.sink).load()
        return sorted(int(row.value) for row in read.select("value").collect())

    def is_copied(self) -> bool:
        """Whether all that was published is in the sink, or more; a query that failed says why."""
        return len(self.numbers()) >= self._published

    def check(self) -> None:
        """Wait until all published records are in the sink; check that each is stored once."""
        until(self.is_copied, "not all is written")
        assert self.numbers() == list(range(self._published))


def gone_on(copying: Copying, query: Any) -> None:
    """Wait until the query has copied all, and see that it runs."""
    until(lambda: copying.is_copied() or not query.isActive, "not all is written")
    assert query.exception() is None
    assert query.isActive
    copying.check()


@needs_spark_4_1
def test_a_node_that_goes_down_under_a_stream_and_comes_back(spark: SparkSession, tmp_path: Path) -> None:
    with nodes.one_node(tmp_path) as node, Client(node.address) as client:
        copying = Copying(spark, node.address, client, tmp_path)
        for topic in (copying.source, copying.sink):
            client.create_topic(topic, partitions=2)
        copying.publish(100)
        query = copying.start(processingTime="0 seconds")
        try:
            gone_on(copying, query)
            node.kill()
            node.start()
            copying.publish(100)
            gone_on(copying, query)
        finally:
            query.stop()


@needs_spark_4_1
def test_a_node_that_is_drained_and_goes_under_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    with nodes.three_nodes(tmp_path) as cluster:
        bootstrap = ",".join(node.address for node in cluster.values())
        with Client(bootstrap) as client:
            copying = Copying(spark, bootstrap, client, tmp_path)
            for topic in (copying.source, copying.sink):
                client.create_topic(topic, partitions=3, replication_factor=2)
            copying.publish(100)
            query = copying.start(processingTime="0 seconds")
            try:
                gone_on(copying, query)
                leaving = client.topic(copying.source).partitions[0].owner
                client.drain_node(leaving)
                copying.publish(100)
                topics = (copying.source, copying.sink)
                until(lambda: has_nothing(client, leaving, topics), f"{leaving} is not drained")
                gone_on(copying, query)
                cluster[leaving].kill()
                copying.publish(100)
                gone_on(copying, query)
            finally:
                query.stop()


def has_nothing(client: Client, node_id: str, topics: tuple[str, ...]) -> bool:
    """Whether a node has no copy of a partition of these topics any more, and all others are whole."""
    partitions = [partition for topic in topics for partition in client.topic(topic).partitions]
    return not any(
        node_id in partition.placement or any(replica.missing_epochs for replica in partition.replicas)
        for partition in partitions
    )


@pytest.mark.usefixtures("small_steps")
def test_a_topic_that_is_compacted_under_a_read(spark: SparkSession, node: Node, client: Client) -> None:
    topic, address = f"c-{uuid.uuid4().hex}", node.address
    client.create_topic(topic, cleanup="compact", flush="never")
    publish_large(client, topic)

    def compact() -> None:
        with Client(address) as tasks_own:
            tasks_own.compact_topic(topic)

    read = numbers_read(spark, address, topic, once(compact))
    newest = list(range(RECORDS - KEYS, RECORDS))
    assert read[-KEYS:] == newest
    assert read == sorted(set(read)), "nothing twice"
    assert KEYS < len(read) < RECORDS, "some was read before, and some was removed before it was read"
    assert numbers_read(spark, address, topic, once(lambda: None)) == newest


@needs_spark_4_2
def test_a_topic_that_is_compacted_under_a_stream(
    node: Node, client: Client, spark: SparkSession, tmp_path: Path
) -> None:
    stream = Stream(node, client, spark, tmp_path)

    def compact(batch_id: int) -> None:
        if batch_id == 1:
            client.compact_topic(stream.name)

    stream.before = compact
    client.create_topic(stream.name, cleanup="compact", flush="never")

    def publish(start: int, end: int) -> None:
        numbers = range(start, end)
        columns = {"key": [b"%d" % (n % KEYS) for n in numbers], "value": [b"%d" % n for n in numbers]}
        with client.producer(stream.name) as producer:
            producer.send_arrow(pa.table(columns), partition=0)

    for start in range(0, 3_000, 100):
        publish(start, start + 100)
    stream.run(maxOffsetsPerTrigger="1000")
    assert stream.batches[0] == list(range(1_000)), "it was read before"
    assert sorted(stream.batches[-1]) == list(range(3_000 - KEYS, 3_000))
    assert stream.taken() == [*range(1_000), *range(3_000 - KEYS, 3_000)]
    publish(3_000, 3_010)
    stream.run()
    assert stream.batches[-1] == list(range(3_000, 3_010))


@needs_spark_4_1
@pytest.mark.timeout(2 * ANOTHER_SPARK_S)
def test_a_driver_that_is_killed_between_writing_and_committing(
    node: Node, client: Client, spark: SparkSession, tmp_path: Path
) -> None:
    copying = Copying(spark, node.address, client, tmp_path)
    copying.source, copying.sink = f"k-{uuid.uuid4().hex}", f"k-{uuid.uuid4().hex}"
    for topic in (copying.source, copying.sink):
        client.create_topic(topic, partitions=2, flush="never")
    copying.publish(1_000)
    reached = tmp_path / "reached"
    places = [node.address, copying.source, copying.sink, str(copying.checkpoint), str(reached)]
    with (tmp_path / "driver.log").open("w") as log:
        driver = subprocess.Popen(
            [sys.executable, "-m", held_driver.__name__, *places], stdout=log, stderr=log, start_new_session=True
        )
    try:
        until(lambda: reached.exists() or driver.poll() is not None, "it is not written", ANOTHER_SPARK_S)
        assert driver.poll() is None, (tmp_path / "driver.log").read_text()
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    assert copying.numbers() == list(range(1_000)), "all was written"
    assert (copying.checkpoint / "offsets" / "0").exists()
    assert not (copying.checkpoint / "commits" / "0").exists(), "and Spark does not know it"
    copying.publish(10)
    query = copying.start(availableNow=True)
    assert query.awaitTermination(DEADLINE_S)
    assert (copying.checkpoint / "commits" / "0").exists(), "it was done once more"
    copying.check()
