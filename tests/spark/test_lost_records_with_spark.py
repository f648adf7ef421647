"""Records that were lost with the memory of nodes, read by a real Spark: an error with the offsets, or the rest."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from tests.e2e.lost_records import LOST_FROM, TOPIC, Loss, lost_records
from tests.spark.conftest import needs_spark_4_1

pytestmark = pytest.mark.spark

DEADLINE_S = 120


@pytest.fixture(scope="module")
def loss(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loss]:
    with lost_records(tmp_path_factory.mktemp("loss")) as made:
        yield made


def load(loss: Loss, spark: SparkSession, **options: str) -> list[bytes]:
    given = {"bootstrap": loss.bootstrap, "subscribe": TOPIC, **options}
    rows = spark.read.format("tidelog").options(**given).load().orderBy("offset").collect()
    return [bytes(row.value) for row in rows]


@needs_spark_4_1
def test_a_batch_names_the_lost_offsets_or_reads_what_is_left(loss: Loss, spark: SparkSession) -> None:
    with pytest.raises(PySparkException, match=f"offsets {LOST_FROM} to {loss.resume - 1} existed"):
        load(loss, spark)
    assert load(loss, spark, failOnDataLoss="false") == [b"a", b"c"]
    after = json.dumps({TOPIC: {"0": loss.resume}})
    assert load(loss, spark, startingOffsets=after) == [b"c"]


@needs_spark_4_1
def test_a_stream_names_the_lost_offsets_or_reads_what_is_left(loss: Loss, spark: SparkSession, tmp_path: Path) -> None:
    taken: list[bytes] = []

    def take(frame: DataFrame, batch_id: int) -> None:
        del batch_id
        taken.extend(bytes(row.value) for row in frame.orderBy("offset").collect())

    def run(name: str, **options: str) -> None:
        given = {"bootstrap": loss.bootstrap, "subscribe": TOPIC, "startingOffsets": "earliest", **options}
        writing = spark.readStream.format("tidelog").options(**given).load().writeStream.foreachBatch(take)
        query = writing.option("checkpointLocation", str(tmp_path / name)).trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(DEADLINE_S)
        finally:
            query.stop()

    with pytest.raises(StreamingQueryException, match=f"offsets {LOST_FROM} to {loss.resume - 1} existed"):
        run("refused")
    taken.clear()
    run("skipped", failOnDataLoss="false")
    assert taken == [b"a", b"c"]
