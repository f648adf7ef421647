"""`where=` through the client, against a real node in a separate process."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.clients.test_real_node import RealNode

import tidelog
from tidelog import Client
from tidelog.errors import InvalidRequestError
from tidelog.rows.row_filter import WhereFilter
from tidelog_proto.filters.expression import Leaf, Operator
from tidelog_proto.filters.expression_messages import BoundFilter

pytestmark = pytest.mark.e2e

FIELDS = ["carrier string required", "number int16 required", "delay float64", "city string"]
WHERE: list[tuple[Any, Any]] = [
    ("number >= 90 and carrier in ('c1', 'c3')", lambda row: row["number"] >= 90 and row["carrier"] in {"c1", "c3"}),
    ("not delay < 3.5", lambda row: row["delay"] is not None and not row["delay"] < 3.5),
    ("city is null or starts_with(city, 'K')", lambda row: row["city"] is None or row["city"].startswith("K")),
    (pc.field("number") > 40_000, lambda _: False),
    (pc.field("number") < 40_000, lambda _: True),
    ((pc.field("number") == 5) | (pc.field("delay") == 7.0), lambda row: row["number"] == 5 or row["delay"] == 7.0),
]


def rows(count: int, start: int = 0) -> list[dict[str, Any]]:
    delays = [None, math.nan, 0.0, -0.0, 3.5, 7.0, math.inf]
    cities = [None, "Köln", "Bonn"]
    return [
        {"carrier": f"c{n % 5}", "number": n, "delay": delays[n % 7], "city": cities[n % 3]}
        for n in range(start, start + count)
    ]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    node = RealNode(Path(tmp_path_factory.mktemp("where")) / "data")
    node.start()
    yield f"127.0.0.1:{node.port}"
    node.stop()


@pytest.fixture
async def client(address: str) -> AsyncIterator[Client]:
    async with Client(address) as client:
        yield client


async def publish(client: Client, topic: str, sent: list[dict[str, Any]], size: int = 40) -> None:
    async with client.producer(topic) as producer:
        for at in range(0, len(sent), size):
            await producer.send_many(sent[at : at + size])


async def consumed(client: Client, topic: str, last: int, **options: Any) -> list[dict[str, Any]]:
    """Return the rows that a consumer delivers until its positions have reached `last` offsets in total."""
    found: list[dict[str, Any]] = []
    async with asyncio.timeout(20), client.consumer(topic, **options) as consumer:
        while True:
            found += [record.value for record in await consumer.poll(timeout_s=0.1)]
            if sum(consumer.position().values()) == last:
                return found


async def table_of(topic: str, address: str, **options: Any) -> pa.Table:
    """Return the rows that `read_arrow` reads."""
    return await asyncio.to_thread(lambda: tidelog.read_arrow(topic, bootstrap=address, **options).read_all())


def same(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> bool:
    def ordered(listed: list[dict[str, Any]]) -> list[str]:
        return [repr(row) for row in sorted(listed, key=lambda row: (row["carrier"], row["number"]))]

    return ordered(found) == ordered(expected)


async def test_readers_get_the_rows_that_match(client: Client, address: str) -> None:
    await client.create_topic("flights", schema=FIELDS, key="carrier", partitions=2)
    await publish(client, "flights", rows(200))
    for where, matches in WHERE:
        expected = [row for row in rows(200) if matches(row)]
        assert same(await consumed(client, "flights", 200, where=where), expected)
        table = await table_of("flights", address, where=where, batch_records=64)
        assert same(table.to_pylist(), expected)


async def test_fields_of_other_schemas(client: Client, address: str) -> None:
    await client.create_topic("evolving", schema=FIELDS, key="carrier")
    await publish(client, "evolving", rows(50))
    await client.evolve_schema("evolving", add=["gate string"], rename={"city": "place"}, widen={"number": "int64"})
    new = [
        {"carrier": "c9", "number": 10**10 + n, "delay": None, "place": "Köln", "gate": "A1" if n % 2 else None}
        for n in range(10)
    ]
    await publish(client, "evolving", new)
    old = [{"place" if name == "city" else name: row[name] for name in row} | {"gate": None} for row in rows(50)]
    wheres: list[tuple[str, Callable[[dict[str, Any]], bool]]] = [
        ("gate is null and place = 'Köln'", lambda row: row["gate"] is None and row["place"] == "Köln"),
        ("number > 40000 and gate is not null", lambda row: row["number"] > 40000 and row["gate"] is not None),
        ("number < 9999999999", lambda row: row["number"] < 9999999999),
    ]
    for where, matches in wheres:
        expected = [row for row in old + new if matches(row)]
        assert expected
        assert same(await consumed(client, "evolving", 60, where=where), expected)
        table = await table_of("evolving", address, where=where)
        assert same(table.to_pylist(), expected)


async def test_nodes_omit_rows_and_readers_have_the_same_rows_without_that(
    client: Client, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.create_topic("pushed", schema=FIELDS, key="carrier")
    for compression in (None, "lz4", "zstd"):
        async with client.producer("pushed", compression=compression) as producer:
            for at in range(0, 1000, 250):
                await producer.send_many(rows(250, at))
    schema = await client.schema("pushed")
    pushed: list[Any] = []
    original = WhereFilter.pushed

    def noted(self: WhereFilter, schema: Any) -> Any:
        pushed.append(original(self, schema))
        return pushed[-1]

    def read(where: Any) -> list[dict[str, Any]]:
        found = tidelog.read_arrow("pushed", bootstrap=address, where=where).read_all()
        return found.to_pylist()

    for where, matches in [*WHERE, ("_offset < 5", None), ("number = 77 and _offset > 5", None)]:
        with monkeypatch.context() as patched:
            patched.setattr(WhereFilter, "pushed", noted)
            narrowed = await asyncio.to_thread(read, where)
            patched.setattr(WhereFilter, "pushed", lambda *_: None)
            whole = await asyncio.to_thread(read, where)
        assert repr(narrowed) == repr(whole)
        if matches is not None:
            assert same(whole, [row for row in rows(1000) * 3 if matches(row)])
    assert [each is None for each in pushed] == [False] * len(WHERE) + [True, False]
    whole_bytes = await _fetched_bytes(client, "pushed", None)
    assert await _fetched_bytes(client, "pushed", WhereFilter("number = 77").pushed(schema)) * 20 < whole_bytes
    assert await _fetched_bytes(client, "pushed", WhereFilter("number > 30000").pushed(schema)) == 0
    assert await _fetched_bytes(client, "pushed", WhereFilter("number >= 0").pushed(schema)) == whole_bytes


@pytest.mark.parametrize("columns", [["city"], ["number"], ["carrier"], ["delay", "carrier"]])
async def test_a_filter_may_test_fields_that_are_not_read(client: Client, address: str, columns: list[str]) -> None:
    topic = f"some-{'-'.join(columns)}"
    await client.create_topic(topic, schema=FIELDS, key="carrier")
    async with client.producer(topic, compression="lz4") as producer:
        for at in range(0, 1500, 500):
            await producer.send_many(rows(500, at))
    for where, matches in [
        *WHERE,
        (
            "_offset >= 1400 and carrier = 'c1'",
            lambda row: row["number"] in range(1400, 1500) and row["carrier"] == "c1",
        ),
    ]:
        expected = [{name: row[name] for name in columns} for row in rows(1500) if matches(row)]
        assert repr(await consumed(client, topic, 1500, where=where, columns=columns)) == repr(expected)
        table = await table_of(topic, address, where=where, columns=columns)
        assert repr(table.to_pylist()) == repr(expected)


async def test_subscriptions_omit_rows_and_send_tested_fields(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    await client.create_topic("subscribed", schema=FIELDS, key="carrier", partitions=2)
    await publish(client, "subscribed", rows(1000), 250)
    received = [0]
    original = WhereFilter.kept

    def counted(self: WhereFilter, batch: Any, *more: Any) -> Any:
        received[0] += len(batch)
        return original(self, batch, *more)

    monkeypatch.setattr(WhereFilter, "kept", counted)
    for where, number_max in (("number = 77", 1), ("number > 40000", 0), ("_offset >= 0 and number = 5", 1)):
        received[0] = 0
        found = await consumed(client, "subscribed", 1000, where=where, columns=["city"])
        assert (len(found), received[0]) == (number_max, number_max)
        assert all(list(row) == ["city"] for row in found)
    received[0] = 0
    assert len(await consumed(client, "subscribed", 1000, where="number >= 500", key=b"c1")) == 100
    assert received[0] == 100
    for where, matches in WHERE:
        expected = [{"number": row["number"]} for row in rows(1000) if matches(row)]
        found = await consumed(client, "subscribed", 1000, where=where, columns=["number"])
        assert sorted(found, key=lambda row: row["number"]) == expected


async def test_a_subscription_follows_the_names_of_its_filter(client: Client) -> None:
    """Under the second schema the two fields have each other's name."""
    await client.create_topic("swapped", schema=["k int32 required", "a int32", "b int32"])
    await publish(client, "swapped", [{"k": n, "a": n % 2, "b": 5} for n in range(100)], 50)
    found: list[Any] = []
    async with asyncio.timeout(30), client.consumer("swapped", where="a = 1", columns=["k"]) as consumer:
        while sum(consumer.position().values()) < 100:
            found += [record.value["k"] for record in await consumer.poll(timeout_s=0.1)]
        await client.evolve_schema("swapped", rename={"a": "b", "b": "a"})
        await publish(client, "swapped", [{"k": n, "a": 1, "b": 7} for n in range(100, 200)], 50)
        while sum(consumer.position().values()) < 200:
            found += [record.value["k"] for record in await consumer.poll(timeout_s=0.1)]
    assert found == [*range(1, 100, 2), *range(100, 200)]


async def _fetched_bytes(client: Client, topic: str, where: Any) -> int:
    offset, found = 0, 0
    while offset < 3000:
        fetched = await client.fetch(topic, 0, offset, where=where)
        found += sum(batch.header.length for batch in fetched.batches)
        assert fetched.next_offset > offset
        offset = fetched.next_offset
    return found


async def test_nodes_refuse_filters_that_do_not_fit_the_topic(client: Client) -> None:
    await client.create_topic("unfit", schema=FIELDS, key="carrier")
    await publish(client, "unfit", rows(3))
    await client.create_topic("unfit-bytes")
    async with client.producer("unfit-bytes") as producer:
        await producer.send(b"x")
    for topic, number, message in (
        ("unfit-bytes", 1, "the topic is not typed"),
        ("unfit", 99, "schema 1 has no field with the id 99"),
    ):
        with pytest.raises(InvalidRequestError, match=message):
            await client.fetch(topic, 0, 0, where=BoundFilter(1, Leaf(number, Operator.IS_NULL)))


async def test_columns_of_records_positions_and_batches(client: Client, address: str) -> None:
    await client.create_topic("offsets", schema=FIELDS, key="carrier")
    await publish(client, "offsets", rows(100))
    where = "_offset between 10 and 12 or number = 70"
    async with asyncio.timeout(20), client.consumer("offsets", where=where, columns=["number"]) as consumer:
        offsets = []
        async for batch in consumer.batches():
            assert len(batch)
            offsets += batch.to_arrow().column("_offset").to_pylist()
            if offsets[-1] == 70:
                break
        assert offsets == [10, 11, 12, 70]
    table = await asyncio.to_thread(
        lambda: tidelog.read_arrow(
            "offsets", bootstrap=address, where=where, columns=["_offset"], since={0: 11}, until={0: 70}
        ).read_all()
    )
    assert table["_offset"].to_pylist() == [11, 12]


async def test_a_tombstone_matches_by_its_key_only(client: Client) -> None:
    await client.create_topic("deleted", schema=FIELDS, key="carrier")
    await publish(client, "deleted", rows(10))
    async with client.producer("deleted") as producer:
        await producer.delete(carrier="c1")
    assert await consumed(client, "deleted", 11, where="carrier = 'c1' and number is null") == [None]
    found: list[Any] = await consumed(client, "deleted", 11, where="carrier = 'c1'")
    assert found[-1] is None
    assert [row["number"] for row in found[:-1]] == [1, 6]
    assert None not in await consumed(client, "deleted", 11, where="number >= 0")


async def test_filters_that_do_not_fit_are_refused_and_no_record_is_skipped(client: Client, address: str) -> None:
    await client.create_topic("refused", schema=FIELDS, key="carrier")
    await publish(client, "refused", rows(10))
    async with asyncio.timeout(20), client.consumer("refused", where="nope = 1") as consumer:
        for _ in range(2):
            with pytest.raises(InvalidRequestError, match="where: no field is named 'nope'"):
                async for _ in consumer:
                    pass
        with pytest.raises(InvalidRequestError, match="where: no field is named 'nope'"):
            await consumer.next_batch()
        assert sum(consumer.position().values()) == 0
    with pytest.raises(InvalidRequestError, match="where: field 'number' has the type int16, and 'x' is not a value"):
        await asyncio.to_thread(tidelog.read_arrow, "refused", bootstrap=address, where="number = 'x'")
    with pytest.raises(InvalidRequestError, match="where: the filter has the end at character 9"):
        client.consumer("refused", where="number =")
    await client.create_topic("bytes")
    async with client.producer("bytes") as producer:
        await producer.send(b"x")
    async with asyncio.timeout(20), client.consumer("bytes", where="a = 1") as consumer:
        with pytest.raises(InvalidRequestError, match=r"'bytes' is not typed: .* and where= out"):
            await consumer.next_batch()
    with pytest.raises(InvalidRequestError, match="'bytes' is not typed"):
        await asyncio.to_thread(tidelog.read_arrow, "bytes", bootstrap=address, where="a = 1")
