"""Typed topics through the client, against a real node in a separate process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pytest
from pydantic import BaseModel
from tests.clients.test_real_node import RealNode

import tidelog
from tidelog import Client, sync
from tidelog.errors import (
    InvalidRequestError,
    RecordError,
    SchemaMismatchError,
    SerializationError,
    TopicExistsError,
    UnknownSchemaError,
)
from tidelog_proto.batch.row_layout import row_layout

pytestmark = pytest.mark.e2e

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)


@dataclass
class Place:
    city: str
    zip: Annotated[int, "int32"] | None = None


@dataclass
class Flight:
    carrier: str
    scheduled: datetime
    flight: Annotated[int, "int32"]
    delay: float | None = None
    fare: Annotated[Decimal, "decimal128(9, 2)"] | None = None
    stops: list[str] | None = None
    place: Place | None = None


class Delay(BaseModel):
    carrier: str
    delay: float | None


def flight(number: int, **fields: Any) -> dict[str, Any]:
    row = {"carrier": "UA", "scheduled": NOW + timedelta(seconds=number), "flight": number, "delay": None, "fare": None}
    return row | {"stops": None, "place": None} | fields


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    node = RealNode(Path(tmp_path_factory.mktemp("typed")) / "data")
    node.start()
    yield f"127.0.0.1:{node.port}"
    node.stop()


@pytest.fixture
async def client(address: str) -> AsyncIterator[Client]:
    async with Client(address) as client:
        yield client


async def create(client: Client, name: str, **options: Any) -> None:
    await client.create_topic(name, schema=Flight, key="carrier", time="scheduled", **options)


async def consumed(client: Client, topic: str, count: int, **options: Any) -> list[Any]:
    values: list[Any] = []
    async with asyncio.timeout(20), client.consumer(topic, **options) as consumer:
        async for record in consumer:
            values.append(record.value)
            if len(values) == count:
                return values
    raise AssertionError("the consumer ended")


async def test_rows_are_published_and_consumed(client: Client) -> None:
    await create(client, "rows")
    full = flight(2, delay=1.5, fare=Decimal("99.90"), stops=["DEN"], place={"city": "Köln", "zip": 5})
    async with client.producer("rows") as producer:
        receipt = await producer.send({"carrier": "UA", "scheduled": NOW + timedelta(seconds=1), "flight": 1})
        assert receipt.offset == 0
        await producer.send(full)
        await producer.send(Flight("UA", NOW + timedelta(seconds=3), 3, place=Place("Bonn")))
        await producer.send_many([flight(number) for number in range(4, 300)])
        await producer.send(b'{"carrier": "UA", "scheduled": "2026-11-30T12:05:00Z", "flight": 300, "fare": "1.50"}')
        producer.put(flight(301))
        await producer.flush()
    values = await consumed(client, "rows", 301)
    assert values[:2] == [flight(1), full]
    assert values[2] == flight(3, place={"city": "Bonn", "zip": None})
    assert values[3:299] == [flight(number) for number in range(4, 300)]
    assert values[299:] == [flight(300, fare=Decimal("1.50")), flight(301)]
    record = await client.get("rows", b"UA")
    assert record is not None
    assert (record.value, record.key) == (flight(301), b"UA")
    assert record.timestamp_us == int((NOW + timedelta(seconds=301)).timestamp() * 1_000_000)


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
async def test_many_rows_in_partitions_keep_their_keys(client: Client, compression: Any) -> None:
    name = f"parts-{compression}"
    await create(client, name, partitions=4)
    rows = [flight(number, carrier=f"c{number % 50}", stops=[str(number)] * (number % 3)) for number in range(5000)]
    async with client.producer(name, compression=compression) as producer:
        receipts = [await producer.enqueue(row) for row in rows[:2500]]
        await producer.send_arrow(pa.Table.from_pylist(rows[2500:], schema=_arrow(await client.schema(name))))
        await producer.flush()
    found: dict[int, list[Any]] = {}
    async with asyncio.timeout(30), client.consumer(name) as consumer:
        async for record in consumer:
            found.setdefault(record.partition, []).append(record.value)
            if sum(map(len, found.values())) == len(rows):
                break
    assert sorted(row["flight"] for part in found.values() for row in part) == list(range(5000))
    for part in found.values():
        for carrier in {row["carrier"] for row in part}:
            assert [row for row in part if row["carrier"] == carrier] == [r for r in rows if r["carrier"] == carrier]
    assert (await receipts[0]).partition in found


def _arrow(schema: Any) -> pa.Schema:
    return row_layout(schema).row_schema


async def test_bad_rows_are_refused_at_the_call_and_others_are_stored(client: Client) -> None:
    await create(client, "bad")
    async with client.producer("bad") as producer:
        for row in ({"flight": 1}, flight(1, flight=2**31), flight(1, x=1), flight(1, delay="1"), None, "text", b"[]"):
            with pytest.raises(SerializationError):
                await producer.send(row)
            with pytest.raises(SerializationError):
                await producer.send_many([flight(0), row])
        with pytest.raises(SerializationError, match="the schema has a field for it, 'carrier'"):
            await producer.send(flight(1), key=b"k")
        with pytest.raises(SerializationError, match="'flight'"):
            await producer.send_arrow(pa.table({"carrier": ["UA"], "scheduled": [NOW], "flight": ["1"]}))
        await producer.send(flight(5))
    assert await consumed(client, "bad", 1) == [flight(5)]
    with pytest.raises(InvalidRequestError, match="leave value_serializer out"):
        async with client.producer("bad", value_serializer="json") as producer:
            await producer.send(flight(1))


async def test_tombstones_delete_keys(client: Client) -> None:
    await client.create_topic("deleted", schema=Flight, key="carrier", time="scheduled", cleanup="compact")
    async with client.producer("deleted") as producer:
        await producer.send(flight(1))
        await producer.delete(carrier="UA", scheduled=NOW)
        with pytest.raises(SerializationError, match="'flight'"):
            await producer.delete(carrier="UA", flight=1)
    assert await consumed(client, "deleted", 2) == [flight(1), None]
    record = await client.get("deleted", b"UA")
    assert record is not None
    assert record.value is None


async def test_views_of_rows(client: Client) -> None:
    await create(client, "views")
    async with client.producer("views") as producer:
        await producer.send(flight(1, delay=float("nan")))
        await producer.delete(carrier="UA")
    assert await consumed(client, "views", 2, columns=["flight", "carrier"]) == [{"flight": 1, "carrier": "UA"}, None]
    assert await consumed(client, "views", 1, values="json") == [
        b'{"carrier":"UA","scheduled":"2026-11-30T12:00:01Z","flight":1,"delay":"NaN","fare":null,"stops":null,"place":null}'
    ]
    assert await consumed(client, "views", 1, rows=Delay, columns=["carrier"], on_undecodable="skip") == [None]
    (model, gone) = await consumed(client, "views", 2, rows=Flight)
    assert model.place is None
    assert isinstance(model, Flight)
    assert gone is None
    for options, said in (
        ({"columns": ["nothing"]}, "are not fields of schema 1"),
        ({"value_deserializer": "json"}, "leave it out, or pass values='json'"),
    ):
        with pytest.raises(InvalidRequestError, match=said):
            await consumed(client, "views", 1, **options)
    assert (await consumed(client, "views", 1, values="json", value_deserializer="json"))[0]["flight"] == 1


async def test_schemas_evolve_and_old_records_stay_readable(client: Client) -> None:
    await create(client, "evolved")
    async with client.producer("evolved") as producer:
        await producer.send(flight(1, delay=1.0))
        with pytest.raises(InvalidRequestError, match="'carrier'"):
            await client.evolve_schema("evolved", drop=["carrier"])
        found = await client.check_schema("evolved", add=["gate string"], rename={"delay": "late"})
        assert found.schema.number == 2
        assert len(found.changes) == 2
        assert (await client.schema("evolved")).number == 1
        changes: Any = {"add": ["gate string"], "rename": {"delay": "late"}, "widen": {"flight": "int64"}}
        assert (await client.evolve_schema("evolved", expected=1, **changes)).schema.number == 2
        with pytest.raises(SchemaMismatchError, match="schema 2 now"):
            await client.evolve_schema("evolved", expected=1, add=["other string"])
        row = {"carrier": "UA", "scheduled": NOW, "flight": 2**40, "gate": "B7", "late": 2.0}
        await producer.send(row)  # an unknown field: the producer looks for a newer schema once
        with pytest.raises(SerializationError, match="other"):
            await producer.send(row | {"other": 1})
    values = await consumed(client, "evolved", 2)
    assert [(value["flight"], value["late"], value["gate"]) for value in values] == [(1, 1.0, None), (2**40, 2.0, "B7")]
    assert (await client.schema("evolved", 1)).number == 1
    with pytest.raises(UnknownSchemaError):
        await client.schema("evolved", 3)


async def test_a_running_consumer_follows_the_newest_schema(client: Client, address: str) -> None:
    await create(client, "followed")
    async with (
        asyncio.timeout(30),
        Client(address) as other,
        client.consumer("followed") as consumer,
        other.producer("followed") as producer,
    ):
        await producer.send(flight(1))
        assert (await anext(consumer)).value == flight(1)
        await other.evolve_schema("followed", add=["gate string"])
        await producer.send(flight(2, gate="B7"))
        assert (await anext(consumer)).value == flight(2, gate="B7")


async def test_producers_encode_again_below_the_floor(client: Client, address: str) -> None:
    await create(client, "floor", partitions=2)
    async with Client(address) as other, client.producer("floor") as producer:
        await producer.send(flight(1))
        await other.evolve_schema("floor", widen={"flight": "int64"}, raise_floor=True)
        receipts = [await producer.enqueue(flight(number, carrier=f"c{number}")) for number in range(2, 400)]
        await producer.flush()
        for receipt in receipts:
            assert (await receipt).offset >= 0
        await other.evolve_schema("floor", drop=["delay"], raise_floor=True)
        with pytest.raises(SchemaMismatchError, match="'delay' was dropped") as caught:
            await producer.send(flight(500, delay=1.0))
        assert caught.value.definite
        await producer.send({"carrier": "UA", "scheduled": NOW, "flight": 501})
    values = await consumed(client, "floor", 400)
    assert sorted(value["flight"] for value in values) == [*range(1, 400), 501]


async def test_topics_as_tables(client: Client, address: str) -> None:
    await create(client, "tables", partitions=2)
    async with client.producer("tables") as producer:
        await producer.send_many([flight(number, carrier=f"c{number}") for number in range(100)])
        await producer.delete(carrier="c5")
        await client.evolve_schema("tables", add=["gate string"], rename={"delay": "late"})
        await producer.send(_renamed(flight(100), "B7"))

    def read(**options: Any) -> pa.Table:
        return tidelog.read_arrow("tables", bootstrap=address, **options).read_all()

    table = await asyncio.to_thread(read)
    assert table.num_rows == 101
    assert table.schema.names == ["carrier", "scheduled", "flight", "late", "fare", "stops", "place", "gate"]
    table = await asyncio.to_thread(read, columns=["_offset", "gate", "flight", "_partition"], batch_records=7)
    flights: list[Any] = table.column("flight").to_pylist()
    assert sorted(flights) == list(range(101))
    assert table.column("gate").null_count == 100
    table = await asyncio.to_thread(read, columns=["carrier", "flight"], tombstones=True)
    gone = table.filter(table.column("_deleted")).to_pylist()
    assert gone == [{"carrier": "c5", "flight": None, "_deleted": True}]
    for columns in (["value"], ["flight", "flight"], ["_key"], []):
        with pytest.raises(InvalidRequestError, match="columns must be different names"):
            await asyncio.to_thread(read, columns=columns)
    async with asyncio.timeout(20), client.consumer("tables") as consumer:
        async for batch in consumer.batches():
            assert batch.to_arrow().schema.names[-5:] == ["_partition", "_offset", "_timestamp", "_headers", "_tag"]
            break


def _renamed(row: dict[str, Any], gate: str) -> dict[str, Any]:
    return {("late" if name == "delay" else name): value for name, value in row.items()} | {"gate": gate}


async def test_undecodable_rows_become_json_in_the_dead_letter_topic(client: Client) -> None:
    @dataclass
    class Strict:
        flight: int

        def __post_init__(self) -> None:
            if self.flight == 1:
                raise ValueError("no")

    await create(client, "source")
    await client.create_topic("dead")
    async with client.producer("source") as producer:
        await producer.send_many([flight(1), flight(2)])
    (good,) = await consumed(client, "source", 1, rows=Strict, dead_letter="dead")
    assert good == Strict(2)
    async with asyncio.timeout(20), client.consumer("dead") as consumer:
        record = await anext(consumer)
    assert record.value.startswith(b'{"carrier":"UA"')
    assert dict(record.headers)["tidelog-schema"] == b"1"
    with pytest.raises(RecordError):
        await consumed(client, "source", 1, rows=Strict)


async def test_topics_stay_typed_or_untyped(client: Client) -> None:
    await create(client, "typed")
    await client.create_topic("untyped")
    with pytest.raises(TopicExistsError, match="not typed"):
        await create(client, "untyped", exist_ok=True)
    with pytest.raises(TopicExistsError, match="is typed"):
        await client.create_topic("typed", exist_ok=True)
    await create(client, "typed", exist_ok=True)
    with pytest.raises(TopicExistsError, match="another schema"):
        await client.create_topic("typed", schema=["a int8", "b string"], exist_ok=True)
    for call in (client.schema("untyped"), client.evolve_schema("untyped", add=["a int8"])):
        with pytest.raises(InvalidRequestError, match="is not typed"):
            await call
    with pytest.raises(InvalidRequestError, match="pass schema="):
        await client.create_topic("other", key="a")
    with pytest.raises(InvalidRequestError, match="schema: "):
        await client.create_topic("other", schema=["a int9"])
    async with client.producer("untyped") as producer:
        with pytest.raises(TypeError, match="must be bytes"):
            await producer.send({"a": 1})
        await producer.send(b"v")
    with pytest.raises(InvalidRequestError, match="is not typed"):
        await consumed(client, "untyped", 1, rows=Flight)
    assert await consumed(client, "untyped", 1, values="json") == [b"v"]


def test_the_blocking_client_has_the_same_calls(address: str) -> None:
    with sync.Client(address) as client:
        client.create_topic("blocking", schema=Flight, key="carrier", time="scheduled")
        with client.producer("blocking") as producer:
            producer.put(flight(1))
            producer.send(flight(2))
            producer.send_many([flight(3)])
            producer.delete(carrier="UA", scheduled=NOW)
        assert client.schema("blocking").number == 1
        assert client.evolve_schema("blocking", add=["gate string"]).schema.number == 2
        with client.consumer("blocking") as consumer:
            values = [record.value for record in islice(consumer, 4)]
    assert values == [flight(1) | {"gate": None}, flight(2) | {"gate": None}, flight(3) | {"gate": None}, None]
