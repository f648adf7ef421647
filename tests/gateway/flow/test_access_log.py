"""The access log of a real gateway, for each end of a request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.gateway.conftest import OpenApi, Serve, process
from tests.gateway.fake_log import FakeLog
from websockets.asyncio.client import connect
from websockets.typing import Subprotocol

from tidelog_proto.batch.record_batch import columns_of


def lines(out: str) -> list[dict[str, Any]]:
    return [told for line in out.splitlines() if (told := json.loads(line)).get("event") == "access"]


@pytest.fixture
def logged(log: FakeLog) -> FakeLog:
    log.logs["t"] = [[]]
    return log


async def test_each_request_is_logged_when_it_ends(
    open_api: OpenApi, logged: FakeLog, capsys: pytest.CaptureFixture[str]
) -> None:
    del logged
    async with open_api(access_log=True) as api:
        published = await api.post(
            "/v1/topics/t/records", json={"records": [{"value": "a"}]}, headers={"user-agent": "x/1"}
        )
        await api.get("/v1/topics/none?cursor=abc")
        await api.get("/nowhere/" + "a" * 1000)
    first, second, third = lines(capsys.readouterr().out)
    assert first["request_id"] == published.headers["x-request-id"]
    assert (first["method"], first["status"], first["protocol"]) == ("POST", 200, "http")
    assert (first["path"], first["route"]) == ("/v1/topics/t/records", "/v1/topics/{topic}/records")
    assert (first["user_agent"], first["principal"]) == ("x/1", None)
    assert first["bytes_in"] == len(published.request.content)
    assert first["bytes_out"] == len(published.content)
    assert first["duration_ms"] >= 0
    assert first["time"].endswith("Z")
    assert (second["status"], second["path"]) == (422, "/v1/topics/none"), "a query is not logged"
    assert len(third["path"]) == 500
    assert third["route"] is None


async def test_nothing_is_logged_by_default(
    open_api: OpenApi, logged: FakeLog, capsys: pytest.CaptureFixture[str]
) -> None:
    del logged
    async with open_api() as api:
        await api.get("/livez")
    assert lines(capsys.readouterr().out) == []


async def test_refused_requests_are_logged_without_credentials(
    open_api: OpenApi, logged: FakeLog, capsys: pytest.CaptureFixture[str]
) -> None:
    del logged
    async with open_api(access_log=True, auth="callers") as api:
        assert (await api.get("/v1/topics")).status_code == 401
        too_long = {"content-length": str(1 << 40)}
        assert (await api.post("/v1/topics/t/records", content=b"", headers=too_long)).status_code in {401, 413}
    out = capsys.readouterr().out
    assert next(each["status"] for each in lines(out)) == 401
    assert "authorization" not in out.lower()


async def test_a_websocket_is_logged_when_it_is_closed(
    serve: Serve, logged: FakeLog, capsys: pytest.CaptureFixture[str]
) -> None:
    del logged
    async with serve(access_log=True) as served:
        async with connect(served.ws, subprotocols=[Subprotocol("tidelog.v1.json")]) as socket:
            await socket.send('{"id":1,"nothing":{}}')
            await socket.recv()
        await served.stop()
    (line,) = lines(capsys.readouterr().out)
    assert (line["protocol"], line["status"], line["route"]) == ("websocket", 101, "/v1/ws")
    assert line["bytes_in"] == len('{"id":1,"nothing":{}}')
    assert line["bytes_out"] > 0
    assert line["close_code"] is not None


async def test_the_bytes_that_a_feed_has_pushed_are_logged(
    serve: Serve, logged: FakeLog, capsys: pytest.CaptureFixture[str]
) -> None:
    received = 0
    async with serve(access_log=True) as served:
        async with connect(served.ws, subprotocols=[Subprotocol("tidelog.v1.json")]) as socket:
            await socket.send('{"id":1,"sub":{"sid":1,"topic":"t","from":"latest","credit":{"records":1000}}}')
            received += len(await socket.recv())
            for _ in range(5):
                await logged.append("t", 0, columns_of([b"x" * 1000]))
                async with asyncio.timeout(10):
                    received += len(await socket.recv())
        await served.stop()
    (line,) = lines(capsys.readouterr().out)
    heads = line["bytes_out"] - received
    assert 0 <= heads <= 5 * 4, "pushed messages count with the heads of their frames"


@pytest.fixture
def gateway(node_address: str) -> Iterator[tuple[Any, str]]:
    told = {"TIDELOG_GATEWAY_ACCESS_LOG": "true"}
    with process("gateway", "--bootstrap", node_address, "--http-port", "0", **told) as (started, ready):
        yield started, f"http://127.0.0.1:{ready['http_port']}"


@pytest.mark.e2e
def test_a_real_gateway_writes_it_after_its_ready_line(gateway: tuple[Any, str]) -> None:
    started, address = gateway
    assert httpx.get(f"{address}/livez").status_code == 200
    line = json.loads(started.stdout.readline())
    assert (line["event"], line["path"], line["status"]) == ("access", "/livez", 200)
    assert line["client"] == "127.0.0.1"
