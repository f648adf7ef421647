from __future__ import annotations

import pickle
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import BinaryType, LongType, StructField, StructType
from tests.clients.logs import FakeClient, FakeLog, numbered

from pyspark_tidelog import DefaultSource, OptionError, source, task
from pyspark_tidelog.source import TidelogReader
from tidelog.model import Topic

OFFSET_AND_VALUE = StructType([StructField("offset", LongType()), StructField("value", BinaryType())])


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    fake = FakeClient({"t": [FakeLog([numbered(30), numbered(30, 30)])]})
    monkeypatch.setattr(task, "Client", fake)
    return fake


def reader(**options: str) -> TidelogReader:
    given = {"bootstrap": "a:1", "subscribe": "t", "minPartitions": "2", **options}
    return DefaultSource(given).reader(OFFSET_AND_VALUE)


def offsets(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [offset for batch in batches for offset in batch.to_pydict()["offset"]]


@pytest.mark.usefixtures("fake")
def test_the_schema_follows_the_options() -> None:
    assert DefaultSource.name() == "tidelog"
    options = {"bootstrap": "a:1", "subscribe": "t", "columns": "offset,value"}
    assert DefaultSource(options).schema() == "offset bigint, value binary"


def test_ranges_are_planned_once_and_travel(fake: FakeClient) -> None:
    planned: TidelogReader = pickle.loads(pickle.dumps(reader()))
    partitions = pickle.loads(pickle.dumps(planned.partitions()))
    fake.logs["t"][0].batches.append(numbered(30, 60))
    assert [offsets(planned.read(partition)) for partition in partitions] == [list(range(30)), list(range(30, 60))]


@pytest.mark.parametrize("belongs_to_scan", [False, True])
def test_pushed_filters_narrow_only_a_read_that_belongs_to_its_scan(
    fake: FakeClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, belongs_to_scan: bool
) -> None:
    equal_to = pytest.importorskip("pyspark.sql.datasource").__dict__.get("EqualTo")
    if equal_to is None:
        pytest.skip("Spark 4.0 has no filters")
    monkeypatch.setattr(source, "PLAN_BELONGS_TO_SCAN", belongs_to_scan)
    filters = [equal_to(("offset",), 7)]
    narrow = reader()
    assert narrow.pushFilters(filters) == filters, "Spark applies them itself"
    found = [offset for partition in narrow.partitions() for offset in offsets(narrow.read(partition))]
    assert found == ([7] if belongs_to_scan else list(range(60)))
    assert ("Switch the setting off" in caplog.text) is not belongs_to_scan


def test_empty_topic_has_no_rows(fake: FakeClient) -> None:
    fake.logs["t"] = [FakeLog()]
    assert reader().partitions() == []
    assert list(reader().read(InputPartition(None))) == []


def test_a_topic_is_looked_up_once_and_the_answer_travels(fake: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    topic = fake.topic

    def ask(name: str) -> Topic:
        asked.append(name)
        return topic(name)

    monkeypatch.setattr(fake, "topic", ask)
    source = DefaultSource({"bootstrap": "a:1", "subscribe": "t"})
    source.schema()
    pickle.loads(pickle.dumps(source)).reader(OFFSET_AND_VALUE)
    assert asked == ["t"]
    DefaultSource({"bootstrap": "a:1", "subscribe": "missing"}).schema()
    DefaultSource({"bootstrap": "a:1", "subscribe": "t,u"}).schema()
    DefaultSource({"bootstrap": "a:1", "subscribePattern": "t"}).schema()
    assert asked == ["t", "missing"], "several topics have the columns of records"


@pytest.mark.usefixtures("fake")
def test_options_for_streams_make_columns_too_and_are_refused_for_batches() -> None:
    bare = {"bootstrap": "a:1", "subscribe": "t", "columns": "offset"}
    for more in ({"startingOffsets": "latest"}, {"maxOffsetsPerTrigger": "7"}):
        source = DefaultSource(bare | more)
        assert source.schema() == "offset bigint"
        source.streamReader(StructType([StructField("offset", LongType())]))
        with pytest.raises(OptionError):
            source.reader(OFFSET_AND_VALUE)
    ending = DefaultSource({**bare, "endingOffsets": "latest"})
    assert ending.schema() == "offset bigint"
    with pytest.raises(OptionError, match="a stream has no end"):
        ending.streamReader(OFFSET_AND_VALUE)
    with pytest.raises(OptionError, match="Did you mean 'columns'"):
        DefaultSource({**bare, "colums": "x"}).schema()
