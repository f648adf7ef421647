"""The gateway and Spark before three nodes, while nodes are killed: nothing is lost, repeated or left out."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from pyspark.sql import SparkSession
from tests.gateway.conftest import process
from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

from tidelog import Client
from tidelog_cli.up.local_cluster import prepare
from tidelog_cli.up.local_stack import LocalStack, running_stack

pytestmark = pytest.mark.e2e

TOPIC = "visits"
WAIT_S = 60
RETRIED = {429, 503}
"""Nothing was written: the same request may be sent again."""


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the gateway, and a node that ends, wait for a cluster for seconds only; asked for before `stack`."""
    monkeypatch.setenv("TIDELOG_GATEWAY_REQUEST_TIMEOUT_S", "4")
    monkeypatch.setenv("TIDELOG_NODE_STOP_TIMEOUT_MS", "1000")


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[LocalStack]:
    nodes = prepare(tmp_path / "data", nodes=3, port=0, first_port=0, management_ports=[0])
    async with running_stack(nodes, http_port=0, gateway_log=tmp_path / "gateway.log") as running:
        yield running


@pytest.fixture
async def http(stack: LocalStack) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=stack.http_url, timeout=WAIT_S) as client:
        yield client


async def kill(stack: LocalStack, node_id: str) -> None:
    (node,) = [node for node in stack.nodes if node.ready["node_id"] == node_id]
    os.kill(node.process.pid, signal.SIGKILL)
    await node.process.wait()


async def owner(stack: LocalStack, partition: int = 0) -> str:
    async with Client(stack.bootstrap) as client:
        return (await client.topic(TOPIC)).partitions[partition].owner


def is_sound_problem(answer: httpx.Response) -> bool:
    """Whether an error response marks the request as retryable."""
    return (
        answer.status_code in RETRIED
        and answer.headers["content-type"] == "application/problem+json"
        and int(answer.headers["retry-after"]) > 0
        and answer.json()["retryable"] is True
    )


async def answered(ask: Callable[[], Awaitable[httpx.Response]]) -> httpx.Response:
    """Repeat a request until it succeeds; each error must be a retryable problem."""
    async with asyncio.timeout(WAIT_S):
        while (answer := await ask()).status_code != 200:
            assert is_sound_problem(answer), f"{answer.status_code} {answer.headers} {answer.text}"
            await asyncio.sleep(float(answer.headers["retry-after"]))
    return answer


async def publish(http: httpx.AsyncClient, values: range) -> list[int]:
    """Publish to partition 0, one request a value, and return the offsets."""

    async def one(value: int) -> int:
        body = {"records": [{"value": str(value), "partition": 0}]}
        answer = await answered(lambda: http.post(f"/v1/topics/{TOPIC}/records", json=body))
        return int(answer.json()["results"][0]["offset"])

    return [await one(value) for value in values]


async def fetch(http: httpx.AsyncClient, end: int) -> list[str]:
    """Return the values of partition 0 up to an offset."""
    values: list[str] = []
    while len(values) < end:
        path = f"/v1/topics/{TOPIC}/partitions/0/records?offset={len(values)}&wait_ms=1000"
        page = (await answered(functools.partial(http.get, path))).json()
        values += [record["value"] for record in page["records"]]
    return values


async def receive(socket: ClientConnection) -> Any:
    async with asyncio.timeout(WAIT_S):
        return json.loads(await socket.recv())


async def collect(socket: ClientConnection, into: list[tuple[int, str]], count: int) -> None:
    """Read batch messages until there are `count` records."""
    while len(into) < count:
        message = await receive(socket)
        assert "batch" in message, message
        into += [(record["offset"], record["value"]) for record in message["batch"]["records"]]


@pytest.mark.long
async def test_http_and_a_websocket_outlive_the_owner(stack: LocalStack, http: httpx.AsyncClient) -> None:
    assert (await http.post("/v1/topics", json={"name": TOPIC, "replication_factor": 3})).status_code == 201
    opened = connect(stack.http_url.replace("http", "ws") + "/v1/ws", subprotocols=[Subprotocol("tidelog.v1.json")])
    seen: list[tuple[int, str]] = []
    async with opened as socket:
        subscription = {"sid": 1, "topic": TOPIC, "from": "earliest", "credit": {"records": 10_000}}
        await socket.send(json.dumps({"id": 1, "sub": subscription}))
        assert "ok" in await receive(socket)
        assert await publish(http, range(50)) == list(range(50))
        await collect(socket, seen, 50)
        killed = await owner(stack)
        publishing = asyncio.create_task(publish(http, range(50, 150)))
        await collect(socket, seen, 60)  # in the middle of it
        await kill(stack, killed)
        assert await publishing == list(range(50, 150)), "each stored once, in order"
        await collect(socket, seen, 150)
    expected = [str(value) for value in range(150)]
    assert seen == list(enumerate(expected)), "neither a gap nor a repeat"
    assert await owner(stack) != killed
    assert await fetch(http, 150) == expected
    item = {"topic": TOPIC, "partition": 0, "next_offset": 150}
    path = "/v1/groups/readers/offsets"
    await answered(lambda: http.put(path, json={"offsets": [item]}))
    (held,) = (await answered(lambda: http.get(path))).json()["offsets"]
    assert held["next_offset"] == 150
    assert (await http.get("/readyz")).status_code == 200, "two nodes of three do"


@pytest.mark.long
async def test_a_lost_quorum_is_reported_in_time(impatient: None, stack: LocalStack, http: httpx.AsyncClient) -> None:
    assert (await http.post("/v1/topics", json={"name": TOPIC, "replication_factor": 3})).status_code == 201
    await publish(http, range(3))
    left = await owner(stack)
    for node in stack.nodes:
        if node.ready["node_id"] != left:
            await kill(stack, node.ready["node_id"])
    answer = await http.post(f"/v1/topics/{TOPIC}/records", json={"records": [{"value": "3", "partition": 0}]})
    document = answer.json()
    assert answer.status_code in {503, 504}, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.status_code == 504 or is_sound_problem(answer)
    assert document["retryable"] is True
    assert await fetch(http, 3) == ["0", "1", "2"], "committed records are read without a quorum"


@contextlib.contextmanager
def spark_session() -> Iterator[SparkSession]:
    from pyspark_tidelog import local_spark  # noqa: PLC0415 - Java is started for one test alone

    session = local_spark("cluster", memory_mb=512)
    try:
        yield session
    finally:
        session.stop()


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
async def test_spark_reads_with_a_node_down(stack: LocalStack) -> None:
    addresses = stack.bootstrap.split(",")
    async with Client(stack.bootstrap) as client:
        await client.create_topic(TOPIC, partitions=3, replication_factor=3)
        async with client.producer(TOPIC) as producer:
            for partition in range(3):
                values = [b"%d" % value for value in range(partition * 1000, partition * 1000 + 1000)]
                await producer.send_many(values, partition=partition)
        down = stack.nodes[0]
        await kill(stack, down.ready["node_id"])
    assert str(down.ready["port"]) in addresses[0], "the first address is that of the node that is down"

    def read() -> list[int]:
        with spark_session() as spark:
            frame = spark.read.format("tidelog").option("bootstrap", stack.bootstrap).option("subscribe", TOPIC).load()
            return sorted(int(row.value) for row in frame.select("value").collect())

    assert await asyncio.to_thread(read) == list(range(3000))


@pytest.mark.long
async def test_retries_with_a_key_outlive_owners_and_the_gateway(stack: LocalStack, http: httpx.AsyncClient) -> None:
    """Each request is sent until it is answered, whatever its outcome, and again through another gateway."""
    made = await http.post("/v1/topics", json={"name": TOPIC, "replication_factor": 3, "partitions": 3})
    assert made.status_code == 201
    path = f"/v1/topics/{TOPIC}/records"

    def body(number: int) -> dict[str, Any]:
        return {"records": [{"key": f"{number} {at}", "value": f"{number} {at}"} for at in range(1 + number % 5)]}

    async def send(client: httpx.AsyncClient, number: int) -> Any:
        headers = {"Idempotency-Key": f"request {number}"}
        async with asyncio.timeout(WAIT_S):
            while (answer := await client.post(path, json=body(number), headers=headers)).status_code != 200:
                assert answer.status_code in {*RETRIED, 504, 207}, f"{answer.status_code} {answer.text}"
                await asyncio.sleep(0.2)
        return answer.json()

    async def send_all() -> list[Any]:
        return [await send(http, number) for number in range(120)]

    sending = asyncio.create_task(send_all())
    await asyncio.sleep(0.5)
    await kill(stack, await owner(stack))
    firsts = await sending
    with process("gateway", "--bootstrap", stack.bootstrap, "--http-port", "0") as (_, ready):
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{ready['http_port']}", timeout=WAIT_S) as other:
            assert [await send(other, number) for number in range(120)] == firsts
            values: list[str] = []
            for partition in range(3):
                offset = 0
                while True:
                    at = f"/v1/topics/{TOPIC}/partitions/{partition}/records?offset={offset}"
                    page = (await other.get(at)).json()
                    values += [record["value"] for record in page["records"]]
                    if page["next_offset"] <= offset:
                        break
                    offset = page["next_offset"]
    assert sorted(values) == sorted(record["value"] for number in range(120) for record in body(number)["records"])
