"""Streams over typed topics with a real Spark and a real node, while the schema changes."""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.spark.conftest import Node, needs_spark_4_1

import tidelog
from tidelog.sync import Client

pytestmark = pytest.mark.spark

DEADLINE_S = 240
FIELDS = ["carrier string required", "delay int32"]


class TypedStream:
    """A typed topic, and queries over it that have one checkpoint."""

    def __init__(self, node: Node, client: Client, spark: SparkSession, directory: Path) -> None:
        self.name = f"ts-{uuid.uuid4().hex}"
        self.client = client
        self.rows: list[dict[str, Any]] = []
        self.fails = False
        self._node = node
        self._spark = spark
        self._checkpoint = directory / "checkpoint"
        client.create_topic(self.name, schema=FIELDS, key="carrier", flush="never")

    def publish(self, *rows: dict[str, Any]) -> None:
        with self.client.producer(self.name) as producer:
            producer.send_many(rows)

    def frame(self, **options: str) -> DataFrame:
        given = {"bootstrap": self._node.address, "subscribe": self.name, "startingOffsets": "earliest", **options}
        return self._spark.readStream.format("tidelog").options(**given).load()

    @contextlib.contextmanager
    def query(self, **options: str) -> Iterator[StreamingQuery]:
        writing = self.frame(**options).writeStream.option("checkpointLocation", str(self._checkpoint))
        query = writing.trigger(processingTime="0 seconds").foreachBatch(self._take).start()
        try:
            yield query
        finally:
            query.stop()

    def wait_for(self, count: int, query: StreamingQuery) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while len(self.rows) < count:
            assert time.monotonic() < deadline, self.rows
            assert query.isActive, query.exception()
            time.sleep(0.05)

    def _take(self, frame: DataFrame, batch_id: int) -> None:
        rows = [row.asDict(recursive=True) for row in frame.collect()]
        if rows and self.fails:
            raise RuntimeError("it dies in the middle of a batch")
        self.rows += rows

    def last_offset(self) -> dict[str, Any]:
        newest = max((self._checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
        (position,) = json.loads(newest.read_text().splitlines()[-1]).values()
        return position  # type: ignore[no-any-return]


@pytest.fixture
def stream(node: Node, client: Client, spark: SparkSession, tmp_path: Path) -> TypedStream:
    return TypedStream(node, client, spark, tmp_path)


def test_a_schema_changes_under_a_running_query(stream: TypedStream) -> None:
    client, name = stream.client, stream.name
    stream.publish({"carrier": "UA", "delay": 1})
    with stream.query() as query:
        stream.wait_for(1, query)
        assert stream.last_offset()["schema"] == 1
        client.evolve_schema(name, add=["gate string"])
        stream.publish({"carrier": "AA", "delay": 2, "gate": "B7"})
        stream.wait_for(2, query)
        assert stream.rows == [{"carrier": "UA", "delay": 1}, {"carrier": "AA", "delay": 2}], (
            "the new field is left out"
        )
        client.evolve_schema(name, widen={"delay": "int64"})
        stream.publish({"carrier": "B6", "delay": 2**40, "gate": "C1"})
        with pytest.raises(
            StreamingQueryException, match=r"the record has schema 3, and the columns .* of schema 1"
        ) as stopped:
            query.awaitTermination(DEADLINE_S)
        assert "restart the query with its checkpoint" in str(stopped.value)
        assert "field 'delay' has the type int32, and int64" in str(stopped.value)
    stream.publish({"carrier": "DL", "delay": -1, "gate": "D1"})
    with stream.query() as query:
        stream.wait_for(4, query)
        assert stream.rows[2:] == [
            {"carrier": "B6", "delay": 2**40, "gate": None},
            {"carrier": "DL", "delay": -1, "gate": "D1"},
        ], "the micro-batch of the first attempt is repeated with the fields that it had"
        assert stream.last_offset()["schema"] == 3
    stream.publish({"carrier": "XX"})
    stops = pytest.raises(StreamingQueryException, match="leave out the option 'schemaNumber'")
    with stream.query(schemaNumber="2") as query, stops:
        query.awaitTermination(DEADLINE_S)


def test_a_repeated_batch_has_the_fields_of_its_first_attempt(stream: TypedStream) -> None:
    stream.publish({"carrier": "UA", "delay": 1})
    with stream.query() as query:
        stream.wait_for(1, query)
        stream.fails = True
        stream.client.evolve_schema(stream.name, add=["gate string"])
        stream.publish({"carrier": "AA", "delay": 2, "gate": "B7"})
        with pytest.raises(StreamingQueryException, match="it dies"):
            query.awaitTermination(DEADLINE_S)
    stream.fails = False
    with stream.query() as query:
        stream.wait_for(2, query)
        stream.publish({"carrier": "B6", "delay": 3, "gate": "C1"})
        stream.wait_for(3, query)
    assert stream.rows[1:] == [
        {"carrier": "AA", "delay": 2, "gate": None},
        {"carrier": "B6", "delay": 3, "gate": "C1"},
    ]


def test_a_recreated_topic_stops_the_query(stream: TypedStream) -> None:
    stream.publish({"carrier": "UA", "delay": 1})
    with stream.query(failOnDataLoss="false") as query:
        stream.wait_for(1, query)
        stream.client.delete_topic(stream.name)
        stream.client.create_topic(stream.name, schema=["carrier int32"])
        with pytest.raises(StreamingQueryException, match="was deleted and recreated after the DataFrame was created"):
            query.awaitTermination(DEADLINE_S)
    stream.publish({"carrier": 7})
    with stream.query(failOnDataLoss="false") as query:
        stream.wait_for(2, query)
    assert stream.rows == [{"carrier": "UA", "delay": 1}, {"carrier": 7}]


@needs_spark_4_1
def test_rows_of_a_stream_are_written_as_rows(stream: TypedStream, node: Node, client: Client, tmp_path: Path) -> None:
    target = f"{stream.name}-out"
    client.create_topic(target, schema=["carrier string required", "late int16", "gate string"], key="carrier")
    stream.publish(*({"carrier": f"c{number}", "delay": number} for number in range(50)))

    def run(condition: str) -> None:
        frame = stream.frame().where(condition).selectExpr("carrier", "delay AS late", "delay < 3 AS _deleted")
        writing = frame.writeStream.format("tidelog").options(bootstrap=node.address, topic=target)
        query = writing.option("checkpointLocation", str(tmp_path / "out")).trigger(availableNow=True).start()
        assert query.awaitTermination(DEADLINE_S)

    run("delay < 40")
    client.evolve_schema(target, rename={"gate": "door"}, add=["note string"])
    stream.publish({"carrier": "new", "delay": 20})
    run("delay < 40")
    found = tidelog.read_arrow(target, bootstrap=node.address, tombstones=True).read_all().to_pylist()
    assert sorted((each["carrier"], each["late"]) for each in found if not each["_deleted"]) == sorted(
        [*((f"c{number}", number) for number in range(3, 40)), ("new", 20)]
    )
    assert sorted(each["carrier"] for each in found if each["_deleted"]) == ["c0", "c1", "c2"]
    stream.publish({"carrier": "big", "delay": 2**20})
    with pytest.raises(StreamingQueryException, match=r"row \d+ of the task's rows .*'late': Integer value 1048576"):
        run("delay > 0")
