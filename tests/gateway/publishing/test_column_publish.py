"""Publishing of Arrow columns through a real gateway to a real node, at once and by the queue of a topic."""

from __future__ import annotations

import asyncio
import io
import secrets
from typing import Any

import httpx
import pyarrow as pa
import pytest
from tests.gateway.conftest import Serve
from tests.gateway.fake_log import FakeLog

from tidelog import Client

ARROW = {"content-type": "application/vnd.apache.arrow.stream"}


def body(*batches: list[bytes], keys: list[bytes] | None = None) -> bytes:
    names = ["value"] if keys is None else ["value", "key"]
    sink = io.BytesIO()
    schema = pa.schema([(name, pa.binary()) for name in names])
    with pa.ipc.new_stream(sink, schema) as writer:
        for values in batches:
            columns: list[Any] = [pa.array(values, pa.binary())]
            columns += [] if keys is None else [pa.array(keys, pa.binary())]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, names=names))
    return sink.getvalue()


@pytest.fixture
async def topic(http: httpx.AsyncClient) -> str:
    name = f"columns-{secrets.token_hex(4)}"
    response = await http.post("/v1/topics", json={"name": name, "partitions": 1})
    assert response.status_code == 201, response.text
    return name


async def publish(http: httpx.AsyncClient, topic: str, data: bytes, query: str = "") -> Any:
    response = await http.post(f"/v1/topics/{topic}/records{query}", content=data, headers=ARROW)
    assert response.status_code == 200, response.text
    return response.json()


async def values_of(address: str, topic: str) -> list[bytes | None]:
    async with Client(address) as client:
        fetched = await client.fetch(topic, 0, 0)
        return [value for batch in fetched.batches for value in batch.values()]


async def test_bodies_of_a_client_are_stored_in_its_order(
    http: httpx.AsyncClient, node_address: str, topic: str
) -> None:
    for number in range(5):
        answer = await publish(http, topic, body([b"%d-0" % number, b"%d-1" % number]))
        assert answer == {"records": 2, "ranges": [{"partition": 0, "base_offset": 2 * number, "count": 2}]}
    assert await values_of(node_address, topic) == [b"%d-%d" % (number, at) for number in range(5) for at in range(2)]


@pytest.mark.parametrize("query", ["", "?partition=0"])
async def test_keyed_columns_and_several_batches_are_stored_completely(
    http: httpx.AsyncClient, node_address: str, topic: str, query: str
) -> None:
    await publish(http, topic, body([b"a", b"b"], keys=[b"k", b"m"]), query)
    await publish(http, topic, body([b"c"], [b"d"]), query)
    assert sorted(value or b"" for value in await values_of(node_address, topic)) == [b"a", b"b", b"c", b"d"]


async def test_concurrent_bodies_are_all_stored_once(http: httpx.AsyncClient, node_address: str, topic: str) -> None:
    bodies = [[b"%d-%d" % (number, at) for at in range(20)] for number in range(30)]
    answers = await asyncio.gather(*(publish(http, topic, body(values)) for values in bodies))
    stored = await values_of(node_address, topic)
    for values, answer in zip(bodies, answers, strict=True):
        (place,) = answer["ranges"]
        assert stored[place["base_offset"] : place["base_offset"] + place["count"]] == values
    assert len(stored) == 600


async def test_a_recreated_topic_is_published_to(http: httpx.AsyncClient, node_address: str, topic: str) -> None:
    await publish(http, topic, body([b"old"]))
    assert (await http.delete(f"/v1/topics/{topic}")).status_code == 204
    assert (await http.post("/v1/topics", json={"name": topic, "partitions": 1})).status_code == 201
    await publish(http, topic, body([b"new"]))
    assert await values_of(node_address, topic) == [b"new"]


async def test_columns_of_an_unknown_topic_are_404(serve: Serve, log: FakeLog) -> None:
    del log
    async with serve() as served, httpx.AsyncClient(base_url=served.http) as http:
        response = await http.post("/v1/topics/missing/records", content=body([b"a"]), headers=ARROW)
        assert (response.status_code, response.json()["code"]) == (404, "unknown_topic")
