"""Readers of some fields of a typed topic, against a real node in a separate process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.clients.test_real_node import RealNode

import tidelog
from tidelog import Client
from tidelog.errors import InvalidRequestError
from tidelog.requests import field_projection
from tidelog.requests.field_projection import add_fields
from tidelog.subscriptions import field_binding
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import Flags
from tidelog_proto.batch.row_layout import row_layout
from tidelog_proto.batch.typed_rows import rows_of

pytestmark = pytest.mark.e2e

FIELDS = ["k string required", "t timestamp[us, UTC] required", "a int32", "b string", "c float64", "d list<int64>"]
COUNT = 900
FROM = 1_700_000_000_000_000


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    node = RealNode(Path(tmp_path_factory.mktemp("fields")) / "data")
    node.start()
    yield f"127.0.0.1:{node.port}"
    node.stop()


@pytest.fixture
async def client(address: str) -> AsyncIterator[Client]:
    async with Client(address) as client:
        yield client


@pytest.fixture(params=[True, False], ids=["narrowing node", "older node"])
def narrows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the node gets the ids of fields; an older one ignores them, as a node does that gets none."""
    if not request.param:

        def without_ids(message: pb.Projection, *of: Any) -> None:
            add_fields(message, *of)
            message.ClearField("fields")

        for module in (field_projection, field_binding):
            monkeypatch.setattr(module, "add_fields", without_ids)
    return bool(request.param)


def rows(schema: Any, first: int, count: int = COUNT, **renamed: str) -> pa.RecordBatch:
    numbers = range(first, first + count)
    columns: dict[str, Any] = {
        "k": [f"k{number % 50}" for number in numbers],
        "t": [FROM + number for number in numbers],
        "a": list(numbers),
        "b": [f"text {number}" * 5 for number in numbers],
        "c": [number / 7 if number % 3 else None for number in numbers],
        "d": [[number] * (number % 3) for number in numbers],
    }
    arrow = row_layout(schema).row_schema
    columns = {renamed.get(name, name): values for name, values in columns.items()}
    arrays = {name: pa.array(columns.get(name, [None] * count), arrow.field(name).type) for name in arrow.names}
    return pa.RecordBatch.from_pydict(arrays)


async def evolved_topic(client: Client, name: str, **options: Any) -> None:
    """Make a topic with batches of three schemas and codecs, and tombstones; `b` is named `text` in the end."""
    await client.create_topic(name, schema=FIELDS, key="k", time="t", exist_ok=True, **options)
    async with client.producer(name) as producer:
        await producer.send_arrow(pa.Table.from_batches([rows(await client.schema(name), 0)]))
        await producer.delete(k="k3")
    await client.evolve_schema(name, add=["e string"], widen={"a": "int64"})
    async with client.producer(name, compression="lz4") as producer:
        await producer.send_arrow(pa.Table.from_batches([rows(await client.schema(name), COUNT)]))
    await client.evolve_schema(name, rename={"b": "text"}, add=["b int16"], drop=["c"])
    async with client.producer(name, compression="zstd") as producer:
        await producer.send_arrow(pa.Table.from_batches([rows(await client.schema(name), 2 * COUNT, b="text")]))
        await producer.send({"k": "k1", "t": datetime(2026, 12, 1, tzinfo=UTC), "b": 5})


END = 3 * COUNT + 2


async def consumed(client: Client, topic: str, end: int = END, **options: Any) -> list[Any]:
    values: list[Any] = []
    async with asyncio.timeout(30), client.consumer(topic, **options) as consumer:
        async for record in consumer:
            values.append((record.offset, record.key, record.timestamp_us, record.value))
            if record.offset == end - 1:
                return values
    raise AssertionError("the consumer ended")


def picked(records: list[Any], names: list[str]) -> list[Any]:
    return [(*of, None if row is None else {name: row[name] for name in names}) for *of, row in records]


@pytest.mark.parametrize("compacted", [False, True])
async def test_rows_of_some_fields_are_those_of_whole_rows(
    client: Client, address: str, narrows: bool, compacted: bool
) -> None:
    name = f"rows-{compacted}-{narrows}"
    await evolved_topic(client, name, cleanup="compact" if compacted else "delete")
    if compacted:
        await client.compact_topic(name)
    whole = await consumed(client, name)
    assert (len(whole) < END) == compacted
    for names in (["a"], ["text", "b"], ["e", "k"], ["t"], ["d", "a", "text"]):
        assert await consumed(client, name, columns=names) == picked(whole, names), names
    keyed = await consumed(client, name, columns=["a", "text"], key=b"k1")
    assert keyed == picked([each for each in whole if each[1] == b"k1"], ["a", "text"])
    table = await asyncio.to_thread(lambda: tidelog.read_arrow(name, bootstrap=address).read_all())
    for names in (["a"], ["b", "text"], ["k"], ["t", "e"], ["d"]):
        reader = await asyncio.to_thread(tidelog.read_arrow, name, bootstrap=address, columns=names)
        some = await asyncio.to_thread(reader.read_all)
        assert some.equals(table.select(names)), names
    records = await asyncio.to_thread(
        lambda: tidelog.read_arrow(
            name, bootstrap=address, columns=["_offset", "_timestamp", "a"], tombstones=True, since={0: 3}
        ).read_all()
    )
    expected = [each for each in whole if each[0] >= 3]
    assert records.column("_offset").to_pylist() == [each[0] for each in expected]
    assert records.column("_timestamp").cast(pa.int64()).to_pylist() == [each[2] for each in expected]
    assert records.column("_deleted").to_pylist() == [each[3] is None for each in expected]


async def test_columns_of_batches_are_those_that_were_asked_for(client: Client, narrows: bool) -> None:
    name = f"batches-{narrows}"
    await evolved_topic(client, name)
    received = 0
    async with asyncio.timeout(30), client.consumer(name, columns=["text", "a"]) as consumer:
        async for batch in consumer.batches():
            received += batch.batch.header.length
            assert batch.to_arrow().schema.names == [
                "text",
                "a",
                "_partition",
                "_offset",
                "_timestamp",
                "_headers",
                "_tag",
            ]
            if batch.batch.end_offset == END:
                break
    whole = 0
    async with asyncio.timeout(30), client.consumer(name) as consumer:
        async for batch in consumer.batches():
            whole += batch.batch.header.length
            if batch.batch.end_offset == END:
                break
    assert (received < 0.8 * whole) == narrows


async def test_fetch_names_fields_or_ids(client: Client) -> None:
    await evolved_topic(client, "fetched")
    schema = await client.schema("fetched")
    ids = {field.name: field.id for field in schema.fields}
    whole = await client.fetch("fetched", 0, 0)
    chosen: list[list[str | int]] = [["a"], [ids["a"]], ["a", "a", ids["a"]], ["a", 2**31 - 1]]
    for fields in chosen:
        found = await client.fetch("fetched", 0, 0, columns=[], fields=fields)
        assert found.next_offset == whole.next_offset
        for one, other in zip(found.batches[:1], whole.batches[:1], strict=True):
            wanted = frozenset({ids["a"]})
            assert rows_of(one, fields=wanted).equals(rows_of(other, fields=wanted))
            assert not one.header.flags & (Flags.KEY | Flags.TIMESTAMP)
            assert one.header.length < other.header.length / 4
    (keys, *_) = (await client.fetch("fetched", 0, 0, columns=[], fields=["k", "t"])).batches
    assert keys.keys() == whole.batches[0].keys()
    assert keys.timestamps_us() == whole.batches[0].timestamps_us()
    (_, *others) = (await client.fetch("fetched", 0, 0, fields=["a"])).batches
    assert any(each.header.flags & Flags.KEY for each in others), "columns= left out: all columns, some fields"
    refused: list[tuple[Any, str]] = [
        (["nothing"], r"\['nothing'\] are not fields of schema 3"),
        ("a", "must be a list"),
        ([0], "ids of fields are 1 to"),
        ([2**31], "ids of fields are 1 to"),
        (range(1, 301), "at most 256 fields can be requested, got 300"),
        ([b"a"], "must be a list"),
    ]
    for wrong, said in refused:
        with pytest.raises(InvalidRequestError, match=said):
            await client.fetch("fetched", 0, 0, fields=wrong)
    await client.create_topic("plain")
    with pytest.raises(InvalidRequestError, match="'plain' is not typed"):
        await client.fetch("plain", 0, 0, fields=["a"])


async def test_names_of_a_running_consumer_mean_one_field_until_a_batch_has_a_later_schema(
    client: Client, address: str
) -> None:
    await client.create_topic("moved", schema=FIELDS, key="k", time="t")
    async with asyncio.timeout(60), Client(address) as other, client.consumer("moved", columns=["b"]) as consumer:

        async def publish(**row: Any) -> None:
            async with other.producer("moved") as producer:
                await producer.send({"k": "x", "t": datetime(2026, 12, 1, tzinfo=UTC)} | row)

        await publish(b="one")
        assert (await anext(consumer)).value == {"b": "one"}
        await other.evolve_schema("moved", rename={"b": "text"}, add=["b int16"])
        await client.schema("moved")  # the consumer's client knows the newest schema by now
        waiting = asyncio.ensure_future(anext(consumer))
        await publish(b=7, text="two")
        assert (await waiting).value == {"b": 7}, "the name of another field now"
        await publish(text="three")
        assert (await anext(consumer)).value == {"b": None}
        await consumer.seek(next(iter(consumer.assignment())), 0)
        assert [(await anext(consumer)).value for _ in range(3)] == [{"b": None}, {"b": 7}, {"b": None}]


async def test_dead_letters_have_all_fields(client: Client) -> None:
    await client.create_topic("rejected", schema=FIELDS, key="k", time="t")
    await client.create_topic("letters")
    async with client.producer("rejected") as producer:
        await producer.send_arrow(pa.Table.from_batches([rows(await client.schema("rejected"), 1, 100)]))

    class Picky(dict[str, Any]):
        pass

    def fails(value: bytes) -> Any:
        raise ValueError(value)

    options: Any = {"columns": ["a"], "dead_letter": "letters", "values": "json", "value_deserializer": fails}
    async with asyncio.timeout(30), client.consumer("rejected", **options) as consumer:
        await consumer.poll(10, 2)
    async with asyncio.timeout(30), client.consumer("letters", value_deserializer="json") as consumer:
        letter = await anext(consumer)
    assert (letter.value["a"], letter.value["b"]) == (1, "text 1" * 5)
