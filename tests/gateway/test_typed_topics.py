"""Typed topics through the gateway: rows are JSON objects or Arrow columns."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import secrets
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import httpx
import pyarrow as pa
import pytest
from websockets.asyncio.client import connect
from websockets.typing import Subprotocol

from tidelog import Client
from tidelog_proto import websocket_pb2 as pb
from tidelog_proto.batch.row_layout import row_layout

pytestmark = pytest.mark.e2e

FIELDS: list[pa.Field[Any]] = [
    pa.field("k", pa.string(), nullable=False),
    pa.field("n", pa.int32()),
    pa.field("at", pa.timestamp("us", "UTC")),
    pa.field("day", pa.date32()),
    pa.field("fare", pa.decimal128(9, 2)),
    pa.field("ratio", pa.float64()),
    pa.field("raw", pa.binary()),
    pa.field("stops", pa.list_(pa.string())),
]
ARROW = "application/vnd.apache.arrow.stream"
AT = datetime(2026, 12, 1, 12, tzinfo=UTC)
FULL = {
    "k": "a",
    "n": 1,
    "at": AT,
    "day": date(2026, 12, 1),
    "fare": Decimal("99.90"),
    "ratio": float("nan"),
    "raw": b"\xff",
    "stops": ["x", 'y"'],
}
FULL_JSON = {
    "k": "a",
    "n": 1,
    "at": "2026-12-01T12:00:00Z",
    "day": "2026-12-01",
    "fare": "99.90",
    "ratio": "NaN",
    "raw": "/w==",
    "stops": ["x", 'y"'],
}
NULLS: dict[str, Any] = dict.fromkeys([field.name for field in FIELDS])


@pytest.fixture
async def topic(node_address: str) -> str:
    """A topic with a full row, a tombstone, a row of nulls, and one of a later schema."""
    name = f"rows-{secrets.token_hex(4)}"
    async with Client(node_address) as client:
        await client.create_topic(name, schema=pa.schema(FIELDS), key="k")
        async with client.producer(name) as producer:
            await producer.send(FULL, headers=[("h", b"1")])
            await producer.delete(k="gone")
            await producer.send({"k": "b"})
    return name


EXPECTED = [FULL_JSON, None, NULLS | {"k": "b"}]


def values_in(records: list[dict[str, Any]]) -> list[Any]:
    assert [record["value_encoding"] for record in records] == [
        "utf8" if r["value"] is None else "json" for r in records
    ]
    return [record["value"] for record in records]


@pytest.mark.parametrize("query", ["", "&value_encoding=json", "&max_records=100"])
async def test_rows_of_a_partition_are_objects(http: httpx.AsyncClient, topic: str, query: str) -> None:
    answer = await http.get(f"/v1/topics/{topic}/partitions/0/records?offset=0{query}")
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert values_in(body["records"]) == EXPECTED
    assert list(body["records"][0]["value"]) == [field.name for field in FIELDS], "the order of the schema"
    assert (body["next_offset"], body["high_watermark"]) == (3, 3)
    assert (body["records"][0]["key"], body["records"][0]["headers"]) == ("a", [["h", "1"]])
    limited = (await http.get(f"/v1/topics/{topic}/partitions/0/records?offset=1&max_records=1{query}")).json()
    if "max_records" not in query:
        assert (values_in(limited["records"]), limited["next_offset"]) == ([None], 2)


async def test_rows_are_text_in_other_encodings(http: httpx.AsyncClient, topic: str) -> None:
    url = f"/v1/topics/{topic}/partitions/0/records?offset=0"
    text = (await http.get(f"{url}&value_encoding=utf8")).json()["records"]
    assert [record["value"] and json.loads(record["value"]) for record in text] == EXPECTED
    lines = (await http.get(url, headers={"accept": "application/x-ndjson"})).text.splitlines()
    assert values_in([json.loads(line) for line in lines]) == EXPECTED
    table = list(csv.DictReader(io.StringIO((await http.get(url, headers={"accept": "text/csv"})).text)))
    assert [row["value"] and json.loads(row["value"]) for row in table] == [row or "" for row in EXPECTED]
    assert table[0]["value_encoding"] == "json"


async def test_columns_select_fields(http: httpx.AsyncClient, topic: str) -> None:
    expected = [{"fare": "99.90", "k": "a"}, None, {"fare": None, "k": "b"}]
    for url in (f"/v1/topics/{topic}/partitions/0/records?offset=0&", f"/v1/topics/{topic}/records?"):
        body = (await http.get(f"{url}columns=fare,k")).json()
        assert values_in(body["records"]) == expected
        assert list(body["records"][0]["value"]) == ["fare", "k"]
        for columns, said in (("x", "['x'] are not fields"), ("k,k", "repeated"), ("", "[''] are not fields")):
            answer = await http.get(f"{url}columns={columns}")
            assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request"), answer.text
            assert said in answer.json()["detail"]
    whole = (await http.get(f"/v1/topics/{topic}/records")).json()
    assert values_in(whole["records"]) == EXPECTED
    assert whole["caught_up"]


async def test_columns_of_an_untyped_topic_are_refused(
    http: httpx.AsyncClient, node_address: str, gateway_address: str
) -> None:
    name = f"bytes-{secrets.token_hex(4)}"
    async with Client(node_address) as client:
        await client.create_topic(name)
    for route in ("partitions/0/records?", "records?", "stream?"):
        answer = await http.get(f"/v1/topics/{name}/{route}columns=k")
        assert answer.status_code == 422, answer.text
        assert "is not typed" in answer.json()["detail"]
    received = await subscribed(gateway_address, {"topic": name, "columns": ["k"]}, 1)
    assert "is not typed" in str(received[0]["error"])


@pytest.mark.parametrize("route", ["partitions/0/records?offset=0", "records?"])
async def test_arrow_streams_have_fields_as_columns(
    http: httpx.AsyncClient, node_address: str, topic: str, route: str
) -> None:
    answer = await http.get(f"/v1/topics/{topic}/{route}", headers={"accept": ARROW})
    assert answer.status_code == 200, answer.text
    table = pa.ipc.open_stream(answer.content).read_all()
    table.validate(full=True)
    async with Client(node_address) as client:
        schema = row_layout(await client.schema(topic)).row_schema
    assert table.schema.names[: len(FIELDS)] == schema.names
    assert table.schema.names[len(FIELDS) :] == ["_partition", "_offset", "_timestamp", "_headers", "_tag"]
    assert [table.schema.field(name) for name in schema.names] == list(schema)
    rows = table.to_pylist()
    assert [row["_offset"] for row in rows] == [0, 2], "without tombstones"
    assert repr({name: rows[0][name] for name in FULL if name != "at"}) == repr(
        {name: value for name, value in FULL.items() if name != "at"}
    )
    some = await http.get(f"/v1/topics/{topic}/{route}&columns=n", headers={"accept": ARROW})
    assert pa.ipc.open_stream(some.content).read_all().column("n").to_pylist() == [1, None]
    if "offset" in route:
        assert some.headers["Tidelog-Next-Offset"] == "3"
    refused = await http.get(f"/v1/topics/{topic}/{route}&value_encoding=json", headers={"accept": ARROW})
    assert refused.status_code == 422


async def test_newest_row_of_a_key(http: httpx.AsyncClient, node_address: str, topic: str) -> None:
    for key, value in (("a", FULL_JSON), ("gone", None)):
        answer = await http.get(f"/v1/topics/{topic}/keys/{key}")
        assert (answer.status_code, answer.json()["record"]["value"]) == (200, value), answer.text
    name = f"numbers-{secrets.token_hex(4)}"
    async with Client(node_address) as client:
        await client.create_topic(name, schema=["id int64 required", "x string"], key="id")
        async with client.producer(name) as producer:
            await producer.send({"id": -42, "x": "y"})
    answer = await http.get(f"/v1/topics/{name}/keys/-42")
    assert answer.json()["record"]["value"] == {"id": -42, "x": "y"}
    assert (await http.get(f"/v1/topics/{name}/keys/7")).status_code == 404
    answer = await http.get(f"/v1/topics/{name}/keys/x")
    assert (answer.status_code, "is not a int64" in answer.text) == (422, True), answer.text


@pytest.mark.parametrize(("query", "expected"), [("", EXPECTED), ("&columns=n", [{"n": 1}, None, {"n": None}])])
async def test_streams_have_rows(http: httpx.AsyncClient, topic: str, query: str, expected: list[Any]) -> None:
    found: list[dict[str, Any]] = []
    async with asyncio.timeout(20), http.stream("GET", f"/v1/topics/{topic}/stream?from=earliest{query}") as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: ") and "records" in (data := json.loads(line[6:])):
                found += data["records"]
                if len(found) == len(expected):
                    break
    assert values_in(found) == expected


async def subscribed(gateway_address: str, sub: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """Return the records of a subscription, or the answer if it is refused."""
    protocol = Subprotocol("tidelog.v1.json")
    found: list[dict[str, Any]] = []
    async with connect(f"ws://{gateway_address}/v1/ws", subprotocols=[protocol]) as socket, asyncio.timeout(20):
        await socket.send(json.dumps({"id": 1, "sub": {"sid": 1, "from": "earliest", "credit": {"records": 10}} | sub}))
        while len(found) < count:
            message = json.loads(await socket.recv())
            if "error" in message or "end" in message:
                return [message]
            found += message.get("batch", {}).get("records", [])
    return found


async def test_subscriptions_have_rows(gateway_address: str, topic: str) -> None:
    assert values_in(await subscribed(gateway_address, {"topic": topic}, 3)) == EXPECTED
    some = {"topic": topic, "columns": ["stops", "n"]}
    assert values_in(await subscribed(gateway_address, some, 3)) == [
        {"stops": ["x", 'y"'], "n": 1},
        None,
        {"stops": None, "n": None},
    ]
    keyed = {"topic": topic, "key": "b", "columns": ["k"]}
    assert values_in(await subscribed(gateway_address, keyed, 1)) == [{"k": "b"}]
    for columns in (["x"], ["n", "n"]):
        (refused,) = await subscribed(gateway_address, {"topic": topic, "columns": columns}, 1)
        assert refused["error"]["code"] == "invalid_request"


async def test_protobuf_subscriptions_have_json(gateway_address: str, topic: str) -> None:
    protocol = Subprotocol("tidelog.v1.proto")
    found: list[Any] = []
    async with connect(f"ws://{gateway_address}/v1/ws", subprotocols=[protocol]) as socket, asyncio.timeout(20):
        options: dict[str, Any] = {"from": "earliest"}
        sub = pb.Sub(sid=1, topic=topic, columns=["n"], credit=pb.InitialCredit(records=10), **options)
        await socket.send(pb.ClientMessage(id=1, sub=sub).SerializeToString())
        while len(found) < 3:
            message = pb.ServerMessage.FromString(await socket.recv(decode=False))
            found += [json.loads(each.value) if each.HasField("value") else None for each in message.batch.records]
    assert found == [{"n": 1}, None, {"n": None}]


async def test_subscription_that_is_at_the_end_gets_rows_of_later_schemas(
    gateway_address: str, node_address: str, topic: str
) -> None:
    for sub in ({}, {"columns": ["n", "k"]}):
        waiting = asyncio.ensure_future(subscribed(gateway_address, {"topic": topic, "from": "latest"} | sub, 1))
        await asyncio.sleep(1)
        async with Client(node_address) as client:
            name = f"more{len(sub)}"
            await client.evolve_schema(topic, add=[f"{name} string"])
            async with client.producer(topic) as producer:
                await producer.send({"k": "z", "n": 5, name: "new"})
        (value,) = values_in(await waiting)
        if sub:
            assert value == {"n": 5, "k": "z"}
        else:
            assert (value["k"], value["more0"]) == ("z", "new")


async def test_large_topics_are_read_in_bounded_answers(http: httpx.AsyncClient, node_address: str) -> None:
    name = f"large-{secrets.token_hex(4)}"
    async with Client(node_address) as client:
        await client.create_topic(name, schema=["k string required", "n int32", "text string"], key="k")
        table = pa.table(
            {"k": [f"k{n}" for n in range(3000)], "n": pa.array(range(3000), pa.int32()), "text": ["t" * 400] * 3000}
        )
        async with client.producer(name, compression="lz4") as producer:
            await producer.send_arrow(table)
            await producer.send({"k": "wide", "n": -1, "text": "w" * 700_000})
    for media_type in ("application/json", "application/x-ndjson", ARROW):
        for query in ("&max_records=700", "&max_bytes=50000&max_records=10000&columns=n"):
            numbers, offset, answers = [], 0, 0
            while offset < 3001:
                url = f"/v1/topics/{name}/partitions/0/records?offset={offset}{query}"
                answer = await http.get(url, headers={"accept": media_type})
                assert answer.status_code == 200, answer.text
                answers += 1
                if media_type == ARROW:
                    numbers += pa.ipc.open_stream(answer.content).read_all().column("n").to_pylist()
                    offset = int(answer.headers["Tidelog-Next-Offset"])
                elif media_type == "application/json":
                    numbers += [record["value"]["n"] for record in answer.json()["records"]]
                    offset = answer.json()["next_offset"]
                else:
                    numbers += [json.loads(line)["value"]["n"] for line in answer.text.splitlines()]
                    offset = int(answer.headers["Tidelog-Next-Offset"])
            assert numbers == [*range(3000), -1], (media_type, query)
            assert answers > 1


async def test_json_objects_are_published_as_rows(http: httpx.AsyncClient, node_address: str, topic: str) -> None:
    records: list[dict[str, Any]] = [{"value": '{"k": "b", "n": 2}'}]
    answer = await http.post(f"/v1/topics/{topic}/records", json={"records": records})
    assert answer.status_code == 200, answer.text
    as_json = {"records": [{"value": FULL_JSON | {"k": "c"}, "value_encoding": "json"}]}
    answer = await http.post(f"/v1/topics/{topic}/records", json=as_json)
    assert answer.status_code == 200, answer.text
    async with Client(node_address) as client:
        found = [record.value for key in (b"b", b"c") if (record := await client.get(topic, key)) is not None]
    assert repr(found) == repr([NULLS | {"k": "b", "n": 2}, FULL | {"k": "c"}])


@pytest.mark.parametrize(
    ("value", "said"),
    [("x", "not a JSON object"), ('{"n": 1}', "'k' is required"), ('{"k": "b", "n": "1"}', "expected int32")],
)
async def test_values_that_are_not_rows_are_refused(http: httpx.AsyncClient, topic: str, value: str, said: str) -> None:
    answer = await http.post(f"/v1/topics/{topic}/records", json={"records": [{"value": value}]})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request"), answer.text
    assert said in answer.json()["detail"]


def stream_of(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


async def test_arrow_streams_of_rows_are_published(http: httpx.AsyncClient, node_address: str, topic: str) -> None:
    rows = [FULL | {"k": f"p{n}", "n": n, "at": AT + timedelta(seconds=n)} for n in range(300)]
    table = pa.Table.from_pylist(rows, schema=pa.schema(FIELDS))
    more = pa.table({"k": ["p0", "p1"], "_deleted": [True, False], "n": pa.array([None, 7], pa.int64())})
    for each in (table, more):
        answer = await http.post(
            f"/v1/topics/{topic}/records", content=stream_of(each), headers={"content-type": ARROW}
        )
        assert (answer.status_code, answer.json()["records"]) == (200, each.num_rows), answer.text
    async with Client(node_address) as client:
        found = [await client.get(topic, f"p{n}".encode()) for n in (0, 1, 299)]
    assert found[0] is not None
    assert found[0].value is None
    assert repr([each.value for each in found if each is not None][1:]) == repr(
        [NULLS | {"k": "p1", "n": 7}, rows[299]]
    )


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"k": ["a"], "x": [1]}, "'x' is not a field of schema 1"),
        ({"n": pa.array([1], pa.int32())}, "'k'"),
        ({"k": ["a"], "n": pa.array([2**40])}, "'n'"),
        ({"k": pa.array(["a"]).dictionary_encode()}, "is not supported"),
        ({"value": [b"v"]}, "the columns ['value'] are not fields"),
        ({"k": ["a"], "stops": pa.array([[[["deep"]]]])}, "field 'stops.item'"),
    ],
)
async def test_arrow_streams_that_are_not_rows_are_refused(
    http: httpx.AsyncClient, topic: str, columns: dict[str, Any], said: str
) -> None:
    answer = await http.post(
        f"/v1/topics/{topic}/records", content=stream_of(pa.table(columns)), headers={"content-type": ARROW}
    )
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request"), answer.text
    assert said in answer.json()["detail"]
    assert (await http.get(f"/v1/topics/{topic}/partitions/0/records?offset=0")).json()["next_offset"] == 3
