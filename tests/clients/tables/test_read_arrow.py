"""Reading of topics as Arrow, at a real node."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

import tidelog
from tidelog import TidelogError, testing
from tidelog.errors import InvalidRequestError, OffsetOutOfRangeError, UnknownTopicError
from tidelog.security.quotas import Quota
from tidelog.sync import Client
from tidelog.tables.read_arrow import TABLE_SCHEMA

BASE_US = 1_700_000_000_000_000


@pytest.fixture(scope="module")
def node() -> Iterator[testing.LocalNode]:
    with testing.node() as node:
        yield node


@pytest.fixture
def topic(node: testing.LocalNode) -> str:
    """Two partitions, of 1,000 and 500 records, a millisecond apart."""
    name = f"table-{uuid.uuid4().hex[:8]}"
    with Client(node.bootstrap) as client:
        client.create_topic(name, partitions=2)
        with client.producer(name) as producer:
            for partition, count in ((0, 1000), (1, 500)):
                for start in range(0, count, 100):
                    numbers = range(start, start + 100)
                    columns = {
                        "value": [b"%d" % n for n in numbers],
                        "timestamp": pa.array([BASE_US + n * 1000 for n in numbers]).cast(pa.timestamp("us", "UTC")),
                    }
                    producer.send_arrow(pa.table(columns), partition=partition)
    return name


def test_all_columns(node: testing.LocalNode, topic: str) -> None:
    reader = tidelog.read_arrow(topic, bootstrap=node.bootstrap, batch_records=300)
    assert reader.schema.equals(TABLE_SCHEMA)
    batches = list(reader)
    assert [batch.num_rows for batch in batches] == [300, 300, 300, 100, 300, 200]
    for batch in batches:
        batch.validate(full=True)
    table = pa.Table.from_batches(batches)
    assert table["offset"].to_pylist() == [*range(1000), *range(500)]
    assert table["value"].to_pylist() == [b"%d" % n for n in [*range(1000), *range(500)]]
    assert set(table["topic"].to_pylist()) == {topic}
    assert table["headers"].null_count == 0


def read(node: testing.LocalNode, topic: str, **more: Any) -> list[Any]:
    table = tidelog.read_arrow(topic, bootstrap=node.bootstrap, columns=["partition", "offset"], **more).read_all()
    return list(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))


def test_range_and_columns(node: testing.LocalNode, topic: str) -> None:
    moment = datetime.fromtimestamp(1_700_000_000.490, UTC)
    assert read(node, topic, since=moment, until=BASE_US + 495_000) == [
        (partition, offset) for partition in (0, 1) for offset in range(490, 495)
    ]
    assert read(node, topic, since={0: 998, 1: 500}) == [(0, 998), (0, 999)]
    assert read(node, topic, since={1: 3}, until={1: 5}, partitions=[1]) == [(1, 3), (1, 4)]
    assert read(node, topic, since="latest") == []
    assert read(node, topic, since=datetime(2100, 1, 1, tzinfo=UTC)) == []
    assert read(node, topic, since={0: 1000, 1: 500}) == [], "the next record's"


@pytest.mark.parametrize(("value", "unit"), [(1_700_000_000_490, "milliseconds"), (1_700_000_000, "seconds")])
@pytest.mark.parametrize("name", ["since", "until"])
def test_integer_in_another_unit_is_refused(
    node: testing.LocalNode, topic: str, name: str, value: int, unit: str
) -> None:
    with pytest.raises(InvalidRequestError, match=f"{name}: {value} is 2023-11-14T22:13:20Z in {unit}.*microseconds"):
        read(node, topic, **{name: value})


def test_later_records_are_not_read(node: testing.LocalNode, topic: str) -> None:
    reader = tidelog.read_arrow(topic, bootstrap=node.bootstrap, columns=["value"])
    with Client(node.bootstrap) as client, client.producer(topic) as producer:
        producer.send(b"late", partition=1)
    assert sum(batch.num_rows for batch in reader) == 1500


def test_invalid_arguments_are_refused_at_the_call(node: testing.LocalNode, topic: str) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"columns": ["valu"]}, "columns must be distinct names of topic"),
        ({"columns": []}, "got none"),
        ({"since": {0: 3}}, r"an offset for each partition, got none for \[1\]"),
        ({"since": {0: 3, 1: 0}, "until": {0: 2, 1: 0}}, "until must not be before since, got until 2 and since 3"),
        ({"since": {0: 3, 1: 501}}, "/1 ends at offset 500, got 501"),
        ({"since": {0: 1001}, "until": BASE_US, "partitions": [0]}, "/0 ends at offset 1000, got 1001"),
        ({"context": "prod"}, "pass only one of them"),
        ({"batch_records": 0}, ">= 1, got 0"),
        ({"partitions": [0, 1, 0]}, r"must be distinct, got \[0, 1, 0\]"),
    ]
    for more, text in wrong:
        with pytest.raises(InvalidRequestError, match=text):
            tidelog.read_arrow(topic, bootstrap=node.bootstrap, **more)
    with pytest.raises(UnknownTopicError):
        tidelog.read_arrow("nowhere", bootstrap=node.bootstrap)
    with pytest.raises(TidelogError):
        tidelog.read_arrow(topic, bootstrap="127.0.0.1:1", request_timeout_s=0.2)


def test_records_deleted_during_the_read_raise(node: testing.LocalNode, topic: str) -> None:
    reader = tidelog.read_arrow(topic, bootstrap=node.bootstrap, partitions=[0])
    with Client(node.bootstrap) as client:
        client.delete_records(topic, 10, [0])
    with pytest.raises(OffsetOutOfRangeError, match="offsets 0 to 9 cannot be read any more"):
        reader.read_all()


def test_recreated_topic_is_not_read_as_the_old_one(node: testing.LocalNode, topic: str) -> None:
    reader = tidelog.read_arrow(topic, bootstrap=node.bootstrap, columns=["value"])
    with Client(node.bootstrap) as client:
        client.delete_topic(topic)
        client.create_topic(topic, partitions=2)
        with client.producer(topic) as producer:
            for partition in range(2):
                producer.send_many([b"another's"] * 1000, partition=partition)
    with pytest.raises(UnknownTopicError, match="was deleted and created again"):
        reader.read_all()


def test_readers_that_share_a_quota_wait() -> None:
    with testing.node() as node, Client(node.bootstrap) as client:
        client.create_topic("t", partitions=2)
        with client.producer("t") as producer:
            for partition in range(2):
                producer.send_many([bytes(70_000)], partition=partition)
        client.security.set_quota("default", Quota(consume_bytes=10_000))

        def records(partition: int) -> int:
            options: dict[str, Any] = {"bootstrap": node.bootstrap, "request_timeout_s": 1}
            return tidelog.read_arrow("t", partitions=[partition], **options).read_all().num_rows

        assert records(0) == 1, "more than the bytes of a second: the quota delays the other reader by 7 s"
        assert records(1) == 1
