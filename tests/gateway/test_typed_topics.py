"""Typed topics through the gateway: it publishes JSON objects as rows, and refuses to read rows as bytes."""

from __future__ import annotations

import asyncio
import json
import secrets
from typing import Any

import httpx
import pyarrow as pa
import pytest
from websockets.asyncio.client import connect
from websockets.typing import Subprotocol

from tidelog import Client

pytestmark = pytest.mark.e2e

FIELDS: list[pa.Field[Any]] = [pa.field("k", pa.string(), nullable=False), pa.field("n", pa.int32())]
REFUSED = "the topic is typed, and this gateway does not read rows yet"


@pytest.fixture
async def topic(node_address: str) -> str:
    name = f"rows-{secrets.token_hex(4)}"
    async with Client(node_address) as client:
        await client.create_topic(name, schema=pa.schema(FIELDS), key="k")
        async with client.producer(name) as producer:
            await producer.send({"k": "a", "n": 1})
    return name


@pytest.mark.parametrize(
    ("route", "media_type"),
    [
        ("partitions/0/records?offset=0", "application/json"),
        ("partitions/0/records?offset=0", "application/vnd.apache.arrow.stream"),
        ("partitions/0/records?offset=0", "text/csv"),
        ("partitions/0/records?offset=0", "application/x-ndjson"),
        ("records", "application/json"),
        ("keys/a", "application/json"),
    ],
)
async def test_reads_are_refused(http: httpx.AsyncClient, topic: str, route: str, media_type: str) -> None:
    answer = await http.get(f"/v1/topics/{topic}/{route}", headers={"accept": media_type})
    assert (answer.status_code, answer.json()["code"]) == (422, "unsupported_batch"), answer.text
    assert REFUSED in answer.json()["detail"]


async def test_a_stream_ends_with_the_reason(http: httpx.AsyncClient, topic: str) -> None:
    lines: list[str] = []
    async with asyncio.timeout(20), http.stream("GET", f"/v1/topics/{topic}/stream?from=earliest") as answer:
        async for line in answer.aiter_lines():
            lines.append(line)
            if REFUSED in line:
                break
    assert REFUSED in "\n".join(lines)


async def test_a_subscription_ends_with_the_reason(gateway_address: str, topic: str) -> None:
    protocol = Subprotocol("tidelog.v1.json")
    async with connect(f"ws://{gateway_address}/v1/ws", subprotocols=[protocol]) as socket, asyncio.timeout(20):
        subscription = {"sid": 1, "topic": topic, "from": "earliest", "credit": {"records": 10}}
        await socket.send(json.dumps({"id": 1, "sub": subscription}))
        received = ""
        while REFUSED not in received:
            received += str(await socket.recv())


async def test_json_objects_are_published_as_rows(http: httpx.AsyncClient, node_address: str, topic: str) -> None:
    records: list[dict[str, Any]] = [{"value": '{"k": "b", "n": 2}'}]
    answer = await http.post(f"/v1/topics/{topic}/records", json={"records": records})
    assert answer.status_code == 200, answer.text
    as_json = {"records": [{"value": {"k": "c"}, "value_encoding": "json"}]}
    answer = await http.post(f"/v1/topics/{topic}/records", json=as_json)
    assert answer.status_code == 200, answer.text
    async with Client(node_address) as client:
        found = [record.value for key in (b"a", b"b", b"c") if (record := await client.get(topic, key)) is not None]
    assert found == [{"k": "a", "n": 1}, {"k": "b", "n": 2}, {"k": "c", "n": None}]


@pytest.mark.parametrize(
    ("value", "said"),
    [("x", "not a JSON object"), ('{"n": 1}', "'k' is required"), ('{"k": "b", "n": "1"}', "expected int32")],
)
async def test_values_that_are_not_rows_are_refused(http: httpx.AsyncClient, topic: str, value: str, said: str) -> None:
    answer = await http.post(f"/v1/topics/{topic}/records", json={"records": [{"value": value}]})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request"), answer.text
    assert said in answer.json()["detail"]
