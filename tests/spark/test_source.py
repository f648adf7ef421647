from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Self

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import BinaryType, LongType, StructField, StructType
from tests.spark.logs import FakeClient, FakeLog, numbered

from pyspark_tidelog import DataLossError, DefaultSource, source
from pyspark_tidelog.source import RangePartition, TidelogReader

OFFSET_AND_VALUE = StructType([StructField("offset", LongType()), StructField("value", BinaryType())])


class Entered(FakeClient):
    """The fake client as the source makes and uses it."""

    def __call__(self, bootstrap: tuple[str, ...], *, client_id: str, api_key: str | None) -> Entered:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        return None


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Entered:
    fake = Entered({"t": [FakeLog([numbered(30), numbered(30, 30)])]})
    monkeypatch.setattr(source, "Client", fake)
    return fake


def reader(**options: str) -> TidelogReader:
    given = {"bootstrap": "a:1", "subscribe": "t", "minPartitions": "2", **options}
    return DefaultSource(given).reader(OFFSET_AND_VALUE)


def offsets(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [offset for batch in batches for offset in batch.to_pydict()["offset"]]


def test_the_schema_follows_the_options() -> None:
    assert DefaultSource.name() == "tidelog"
    options = {"bootstrap": "a:1", "subscribe": "t", "columns": "offset,value"}
    assert DefaultSource(options).schema() == "offset bigint, value binary"


def test_ranges_are_planned_once_and_travel(fake: Entered) -> None:
    planned: TidelogReader = pickle.loads(pickle.dumps(reader()))
    partitions = pickle.loads(pickle.dumps(planned.partitions()))
    fake.logs["t"][0].batches.append(numbered(30, 60))
    assert [offsets(planned.read(partition)) for partition in partitions] == [list(range(30)), list(range(30, 60))]


def test_nothing_to_read_is_no_rows(fake: Entered) -> None:
    fake.logs["t"] = [FakeLog()]
    assert reader().partitions() == []
    assert list(reader().read(InputPartition(None))) == []


@pytest.mark.parametrize("gone", [True, False])
def test_another_topic_of_the_same_name_is_not_read(
    fake: Entered, gone: bool, caplog: pytest.LogCaptureFixture
) -> None:
    (first, _) = reader().partitions()
    if gone:
        fake.logs.clear()
    planned = RangePartition(first.wanted, first.topic_id if gone else b"an earlier topic")
    with pytest.raises(DataLossError, match="was deleted"):
        list(reader().read(planned))
    assert list(reader(failOnDataLoss="false").read(planned)) == []
    assert "skipped" in caplog.text
