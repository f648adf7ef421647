from __future__ import annotations

import asyncio
import json
import socket

import httpx
import pytest
from tests.gateway.conftest import Serve
from tests.gateway.fake_log import FakeLog

from tidelog_gateway.server import listen
from tidelog_gateway.settings import GatewaySettings


async def test_a_stop_wakes_whoever_waits_for_records(serve: Serve, log: FakeLog) -> None:
    log.logs["t"] = [[]]
    async with serve() as served, httpx.AsyncClient(base_url=served.http, timeout=20) as http:
        path = "/v1/topics/t/partitions/0/records"
        waiting = asyncio.create_task(http.get(path, params={"wait_ms": 30_000}))
        await log.fetch_waits.wait()
        await served.stop()
        response = await waiting
    assert response.status_code == 200
    assert response.json()["records"] == []


async def test_the_ready_line_names_the_port(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    async with serve() as served, httpx.AsyncClient(base_url=served.http) as http:
        assert (await http.get("/livez")).status_code == 200
        assert json.loads(capsys.readouterr().out) == {"event": "ready", "http_port": served.port}


def test_listening_on_a_port_in_use_is_an_error() -> None:
    first = listen(GatewaySettings(http_port=0))
    with first, pytest.raises(OSError, match="in use"):
        listen(GatewaySettings(http_port=first.getsockname()[1]))


def test_peers_that_never_read_are_dropped_by_the_kernel() -> None:
    with (
        listen(GatewaySettings(http_port=0, ws_slow_timeout_s=3)) as listener,
        socket.create_connection(listener.getsockname()),
    ):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 6000
