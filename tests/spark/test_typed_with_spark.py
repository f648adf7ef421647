"""Typed topics with a real Spark: rows are never taken for values, and values never stored as rows."""

from __future__ import annotations

import uuid
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from tests.spark.conftest import Node

from tidelog.sync import Client

pytestmark = pytest.mark.spark

FIELDS: list[pa.Field[Any]] = [pa.field("k", pa.string(), nullable=False), pa.field("n", pa.int32())]


@pytest.fixture
def topic(client: Client) -> str:
    name = f"rows-{uuid.uuid4().hex}"
    client.create_topic(name, schema=pa.schema(FIELDS), key="k")
    with client.producer(name) as producer:
        producer.send({"k": "a", "n": 1})
    return name


def test_values_of_rows_are_refused_and_other_columns_read(spark: SparkSession, node: Node, topic: str) -> None:
    reading = spark.read.format("tidelog").options(bootstrap=node.address, subscribe=topic)
    with pytest.raises(PySparkException, match="its values are rows and no bytes"):
        reading.load().collect()
    found = reading.option("columns", "key,offset").load().collect()
    assert [tuple(row) for row in found] == [(b"a", 0)]


def test_values_are_not_written_as_rows(spark: SparkSession, node: Node, client: Client, topic: str) -> None:
    frame = spark.createDataFrame([(bytearray(b'{"k": "b"}'),)], "value BINARY")
    with pytest.raises(PySparkException, match="are not fields of the schema"):
        frame.write.format("tidelog").options(bootstrap=node.address, topic=topic).mode("append").save()
    assert client.get(topic, "b") is None
