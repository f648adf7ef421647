from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Unpack

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition
from tests.clients.logs import FakeClient, FakeLog, numbered, stored

from pyspark_tidelog import DataLossError, task
from pyspark_tidelog.options import parse_options
from pyspark_tidelog.task import RangePartition, RangeReader
from tidelog.errors import LimboError
from tidelog.fetch_options import FetchOptions
from tidelog.model import Fetched
from tidelog.requests.offset_ranges import OffsetRange

SCHEMA = pa.schema([pa.field("offset", pa.int64())])
WANTED = OffsetRange("t", 0, 10, 50)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    fake = FakeClient({"t": [FakeLog([numbered(30), numbered(30, 30)])]})
    monkeypatch.setattr(task, "Client", fake)
    return fake


def reader(**options: str) -> RangeReader:
    return RangeReader(parse_options({"bootstrap": "a:1", "subscribe": "t", **options}), SCHEMA)


def offsets(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [offset for batch in batches for offset in batch.to_pydict()["offset"]]


def test_a_range_is_read_of_the_topic_that_it_was_planned_for_where_that_is_known(fake: FakeClient) -> None:
    for topic_id in (fake.topic("t").topic_id, b""):
        assert offsets(reader().read(RangePartition(WANTED, topic_id))) == list(range(10, 50))
    assert offsets(reader().read(InputPartition(None))) == []


def test_only_a_spark_worker_freezes_loaded_objects(fake: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(task, "freeze_loaded_objects", lambda: told.append("told"))
    planned = RangePartition(WANTED, fake.topic("t").topic_id)
    list(reader().read(planned))
    assert not told, "it is a process of the user's"
    monkeypatch.setattr(task, "TaskContext", InsideOfATask)
    list(reader().read(planned))
    assert told


def test_loaded_objects_are_frozen() -> None:
    call = "task.freeze_loaded_objects(); print(gc.get_freeze_count())"
    code = f"import gc; from pyspark_tidelog import task; {call}"
    frozen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert int(frozen) > 10_000


class InsideOfATask:
    """Says that it is one."""

    @staticmethod
    def get() -> object:
        return object()


@pytest.mark.parametrize("gone", [True, False])
def test_another_topic_of_the_same_name_is_not_read(
    fake: FakeClient, gone: bool, caplog: pytest.LogCaptureFixture
) -> None:
    planned = RangePartition(WANTED, fake.topic("t").topic_id)
    if gone:
        fake.logs.clear()
    else:
        fake.made["t"] = 1
    with pytest.raises(DataLossError, match="topic 't' was deleted"):
        list(reader().read(planned))
    assert list(reader(failOnDataLoss="false").read(planned)) == []
    assert "skipped" in caplog.text


def test_topic_recreated_between_two_fetches_is_not_mixed_in(
    fake: FakeClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    planned = RangePartition(WANTED, fake.topic("t").topic_id)
    (log,) = fake.logs["t"]
    log.batches_per_fetch = 1
    first = log.fetch

    def once(offset: int) -> Fetched:
        fake.made["t"] = 1
        return first(offset)

    monkeypatch.setattr(log, "fetch", once)
    with pytest.raises(DataLossError, match="was deleted or recreated after this read was planned"):
        list(reader().read(planned))
    fake.made.clear()
    assert offsets(reader(failOnDataLoss="false", maxRecordsPerBatch="5").read(planned)) == list(range(10, 30))
    assert "skipped" in caplog.text


def test_a_failure_says_what_was_read(fake: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(offset: int) -> Fetched:
        raise LimboError("the copy is damaged")

    monkeypatch.setattr(fake.logs["t"][0], "fetch", fails)
    with pytest.raises(LimboError) as caught:
        list(reader().read(RangePartition(WANTED, b"")))
    assert caught.value.__notes__ == ["while a task read topic 't', partition 0, offset 10"]


def test_task_reads_from_its_zone_if_configured(fake: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    list(reader().read(RangePartition(WANTED, b"")))
    assert (fake.zone, fake.options.get("nearest"), fake.options.get("end_offset")) == ("", False, 50)
    list(reader(readFrom="nearest", zone="east").read(RangePartition(WANTED, b"")))
    assert (fake.zone, fake.options.get("nearest")) == ("east", True)
    monkeypatch.setenv("TIDELOG_ZONE", "west")
    list(reader().read(RangePartition(WANTED, b"")))
    assert (fake.zone, fake.options.get("nearest")) == ("", False), "the zone of the machine is not asked for"
    list(reader(readFrom="nearest").read(RangePartition(WANTED, b"")))
    assert fake.zone == "west"


def test_a_key_and_a_tag_of_the_options_are_asked_of_the_node_with_their_columns(fake: FakeClient) -> None:
    assert offsets(reader(key="k", tag="red").read(RangePartition(WANTED, b""))) == [], "the records have no keys"
    assert (fake.options.get("key"), fake.options.get("tag")) == (b"k", "red")
    assert (fake.options.get("columns"), fake.options.get("min_bytes")) == (["key", "tag"], 0)


def test_filtered_records_that_a_node_does_not_have_yet_are_waited_for(
    fake: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that has just taken over answers a fetch that does not wait for records with nothing."""
    (log,) = fake.logs["t"]
    late = log.batches
    log.batches = []
    first = fake.fetch

    def fetch(topic: str, partition: int, offset: int, **options: Unpack[FetchOptions]) -> Fetched:
        if options.get("min_bytes"):
            log.batches = late
        elif not log.batches:
            return Fetched([], offset, 0, 0, 0)
        return first(topic, partition, offset, **options)

    monkeypatch.setattr(fake, "fetch", fetch)
    late[:] = [stored([b"%d" % n for n in range(30)], tags=["red"] * 30), numbered(30, 30)]
    assert offsets(reader(tag="red").read(RangePartition(WANTED, b""))) == list(range(10, 30))
