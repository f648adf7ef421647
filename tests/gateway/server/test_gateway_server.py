from __future__ import annotations

import asyncio
import json
import socket
import time

import httpx
import pytest
from tests.gateway.conftest import Serve
from tests.gateway.fake_log import FakeLog

from tidelog_gateway.server import gateway_server, http_protocol
from tidelog_gateway.server.gateway_server import GatewayServer
from tidelog_gateway.server.listeners import listen
from tidelog_gateway.settings import GatewaySettings
from tidelog_proto.process.server_tuning import tune_server


async def test_a_stop_wakes_requests_that_wait_for_records(serve: Serve, log: FakeLog) -> None:
    log.logs["t"] = [[]]
    async with serve() as served, httpx.AsyncClient(base_url=served.http, timeout=20) as http:
        path = "/v1/topics/t/partitions/0/records"
        waiting = asyncio.create_task(http.get(path, params={"wait_ms": 30_000}))
        await log.fetch_waits.wait()
        await served.stop()
        response = await waiting
    assert response.status_code == 200
    assert response.json()["records"] == []


def test_the_process_of_a_gateway_is_tuned_at_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []
    monkeypatch.setattr(GatewayServer, "run", lambda server, **_: started.append(server.on_started))
    gateway_server.serve(GatewaySettings(http_port=0), None)
    assert started == [tune_server]


async def test_the_ready_line_has_the_port(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    async with serve() as served, httpx.AsyncClient(base_url=served.http) as http:
        assert (await http.get("/livez")).status_code == 200
        assert json.loads(capsys.readouterr().out) == {"event": "ready", "http_port": served.port}


async def test_an_idle_connection_survives_the_idle_timeout_of_load_balancers(serve: Serve) -> None:
    """Balancers keep connections for 60 s; the server's own default is 5 s."""
    assert GatewaySettings().keep_alive_timeout_s > 75
    async with serve() as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        for idle_s in (0.0, 6.0):
            await asyncio.sleep(idle_s)
            writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
            await reader.readuntil(b'"alive"}')
        writer.close()


async def test_an_idle_connection_is_closed_after_the_configured_time(serve: Serve) -> None:
    async with serve(keep_alive_timeout_s=1) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readuntil(b'"alive"}')
        assert await asyncio.wait_for(reader.read(), 60) == b""
        writer.close()


_LIVE = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"


async def test_requests_that_clients_have_sent_when_a_stop_begins_are_answered(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "FIRST_REQUEST_S", 20.0)
    shutdown = GatewayServer.shutdown
    async with serve(stop_timeout_s=60) as served:
        clients = [socket.create_connection(("127.0.0.1", served.port), timeout=20) for _ in range(4)]
        new, late, begun, kept = clients
        begun.sendall(_LIVE[:9])
        kept.sendall(_LIVE)  # the server accepts in order: the answer shows that it has accepted all
        assert (await asyncio.to_thread(kept.recv, 4096)).endswith(b'"alive"}')

        async def send_and_shut_down(server: GatewayServer, sockets: list[socket.socket] | None = None) -> None:
            for client, data in ((new, _LIVE), (begun, _LIVE[9:]), (kept, _LIVE)):
                client.sendall(data)  # the server reads nothing before it ends idle connections
            asyncio.get_running_loop().call_later(0.3, late.sendall, _LIVE)
            await shutdown(server, sockets)

        monkeypatch.setattr(GatewayServer, "shutdown", send_and_shut_down)
        stopping = asyncio.create_task(served.stop())
        for client in clients:
            with client, client.makefile("rb") as answer:
                head, _, body = (await asyncio.to_thread(answer.read)).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 ")
            assert b"connection: close" in head
            assert body.endswith(b'"alive"}')
        await stopping


async def test_connections_without_a_request_delay_a_stop_by_a_bounded_time(
    serve: Serve, server_log: list[str]
) -> None:
    async with serve(stop_timeout_s=20) as served:
        silent, silent_writer = await asyncio.open_connection("127.0.0.1", served.port)
        kept, kept_writer = await asyncio.open_connection("127.0.0.1", served.port)
        kept_writer.write(_LIVE)
        await kept.readuntil(b'"alive"}')
        began_s = time.monotonic()
        await served.stop()
        took_s = time.monotonic() - began_s
        assert (await kept.read(), await silent.read()) == (b"", b"")
        silent_writer.close()
        kept_writer.close()
    assert (server_log, took_s < 10) == ([], True)


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


_HEAD = b"POST /v1/topics/t/records HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    "rest",
    [
        b"Content-Length: 8388608\r\n\r\n{",
        b"Content-Length: 8388608\r\n\r\n",
        b"Content-Length: 8388608\r\nExpect: 100-continue\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n",
    ],
)
async def test_bodies_without_progress_do_not_delay_a_stop(
    serve: Serve, log: FakeLog, server_log: list[str], rest: bytes
) -> None:
    log.logs["t"] = [[]]
    async with serve() as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(_HEAD + rest)
        await asyncio.sleep(0.2)
        started = time.monotonic()
        await served.stop()
        took_s = time.monotonic() - started
        answer = await reader.read()
        writer.close()
    assert b" 503 " in answer
    assert b'"shutting_down"' in answer
    assert (server_log, took_s < 4) == ([], True), "the default is 10 s"


async def test_a_slow_body_is_answered_before_the_time_of_the_stop_ends(
    serve: Serve, log: FakeLog, server_log: list[str]
) -> None:
    log.logs["t"] = [[]]
    async with serve(stop_timeout_s=3) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(_HEAD + b"Content-Length: 8388608\r\n\r\n")

        async def send_on() -> None:
            while True:
                writer.write(b" " * 90_000)
                await asyncio.sleep(0.2)

        sending = asyncio.create_task(send_on())
        await asyncio.sleep(0.2)
        stopping = asyncio.create_task(served.stop())
        answer = await asyncio.wait_for(reader.readuntil(b"\r\n"), 5)
        sending.cancel()
        await stopping
        writer.close()
    assert answer.startswith(b"HTTP/1.1 503")
    assert server_log == []


async def test_a_request_that_the_log_does_not_answer_has_an_unknown_outcome(
    serve: Serve, log: FakeLog, server_log: list[str]
) -> None:
    log.logs["t"] = [[]]
    log.enqueued.clear()
    async with serve(stop_timeout_s=1) as served, httpx.AsyncClient(base_url=served.http, timeout=20) as http:
        publishing = asyncio.create_task(http.post("/v1/topics/t/records", json={"records": [{"value": "x"}]}))
        await asyncio.sleep(0.2)
        await served.stop()
        response = await publishing
    assert (response.status_code, response.json()["code"]) == (504, "outcome_unknown")
    assert [line for line in server_log if "Exception" in line] == []
