"""The configuration of `docs/behind-a-proxy.md` in a real nginx, in front of a real server on the log in memory."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from tests.gateway.conftest import Serve
from tests.gateway.fake_log import FakeLog
from websockets.asyncio.client import connect
from websockets.typing import Origin, Subprotocol

from tidelog_gateway.settings import GatewaySettings

PAGE = (Path(__file__).parents[2] / "docs" / "behind-a-proxy.md").read_text()
NGINX = shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
OURS = [Subprotocol("tidelog.v1.json")]
WAIT_S = 20


def configuration() -> str:
    """Return the page's configuration, with its additional locations."""
    server, locations = re.findall(r"^```nginx\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert server.count("    location / {") == 1
    return str(server).replace("    location / {", f"{locations}    location / {{")


@asynccontextmanager
async def nginx(gateway_port: int, port: int, folder: Path) -> AsyncIterator[str]:
    """Run nginx with the page's configuration in front of a gateway, and yield its URL."""
    if NGINX is None:
        pytest.skip("nginx is not installed: apt-get install nginx-light")
    text = configuration().replace("127.0.0.1:8080", f"127.0.0.1:{gateway_port}")
    text = text.replace("listen 8000", f"listen 127.0.0.1:{port}")
    own = "user root;\n" if os.geteuid() == 0 else ""
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    places = "".join(f"{kind}_temp_path {folder}/{kind};\n" for kind in kinds)
    main = f"{own}worker_processes 1;\npid {folder}/pid;\nerror_log {folder}/error.log;\nevents {{ }}\n"
    file = folder / "nginx.conf"
    file.write_text(f"{main}http {{\naccess_log off;\n{places}{text}}}\n")
    started = await asyncio.create_subprocess_exec(
        NGINX, "-p", str(folder), "-e", str(folder / "error.log"), "-c", str(file), "-g", "daemon off;"
    )
    address = f"http://127.0.0.1:{port}"
    try:
        async with asyncio.timeout(WAIT_S), httpx.AsyncClient() as api:
            while True:
                assert started.returncode is None, (folder / "error.log").read_text()
                try:
                    if (await api.get(f"{address}/livez")).status_code == 200:
                        break
                except httpx.TransportError:
                    pass
                await asyncio.sleep(0.05)
        yield address
    finally:
        if started.returncode is None:
            started.terminate()
        await started.wait()


async def test_requests_large_bodies_and_pages_pass_through(
    serve: Serve, log: FakeLog, tmp_path: Path, unused_tcp_port: int
) -> None:
    log.logs["t"] = [[]]
    async with (
        serve() as served,
        nginx(served.port, unused_tcp_port, tmp_path) as address,
        httpx.AsyncClient(base_url=address) as api,
    ):
        body = {"records": [{"value": "x" * 4_000_000}]}
        answer = await api.post("/v1/topics/t/records", json=body, headers={"Origin": address})
        assert answer.status_code == 200, answer.text
        assert answer.headers["X-Request-Id"]
        answer = await api.post("/v1/topics/t/records", json=body, headers={"Origin": "http://evil.example"})
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
        answer = await api.get("/v1/topics/t/partitions/0/records?max_records=1")
        assert len(answer.json()["records"][0]["value"]) == 4_000_000
        assert (await api.post("/v1/topics/t/records", content=b"x" * 9_000_000)).status_code == 413
        assert (await api.get("/readyz")).status_code == 200
        assert (await api.get("/v1/ws")).status_code == 426


async def test_additional_locations_pass_requests_on(
    serve: Serve, log: FakeLog, tmp_path: Path, unused_tcp_port: int
) -> None:
    log.logs["temps"] = [[]]
    async with (
        serve() as served,
        nginx(served.port, unused_tcp_port, tmp_path) as address,
        httpx.AsyncClient(base_url=address) as api,
    ):
        body = {"records": [{"value": "21"}]}
        answer = await api.post("/tidelog/v1/topics/temps/records", json=body, headers={"Origin": address})
        assert answer.status_code == 200, answer.text
        async with api.stream("GET", "/v1/topics/temps/stream?from=earliest", headers={"Origin": address}) as stream:
            assert stream.status_code == 200
            assert any([line.startswith("event: begin") async for line in _first_lines(stream, 4)])
        assert (await api.post("/v1/topics/temps/stream", json={})).status_code == 403
        assert (await api.get("/app/missing.html")).status_code == 404


async def _first_lines(answer: httpx.Response, count: int) -> AsyncIterator[str]:
    async for line in answer.aiter_lines():
        yield line
        count -= 1
        if not count:
            return


async def test_a_websocket_passes_through(serve: Serve, log: FakeLog, tmp_path: Path, unused_tcp_port: int) -> None:
    log.logs["t"] = [[]]
    async with serve() as served, nginx(served.port, unused_tcp_port, tmp_path) as address:
        where = address.replace("http", "ws") + "/v1/ws"
        async with asyncio.timeout(WAIT_S), connect(where, subprotocols=OURS, origin=Origin(address)) as socket:
            await socket.send(json.dumps({"id": 1, "sub": {"sid": 1, "topic": "t", "credit": {"records": 10}}}))
            assert "ok" in json.loads(await socket.recv())
            await socket.send(json.dumps({"id": 2, "pub": {"topic": "t", "records": [{"value": "a"}]}}))
            kinds = {name for _ in range(2) for name in json.loads(await socket.recv())}
            assert {"batch", "ok"} <= kinds


async def test_events_and_heartbeats_of_a_stream_pass_through_at_once(
    serve: Serve, log: FakeLog, tmp_path: Path, unused_tcp_port: int
) -> None:
    log.logs["t"] = [[]]
    async with (
        serve(stream_heartbeat_s=0.3) as served,
        nginx(served.port, unused_tcp_port, tmp_path) as address,
        httpx.AsyncClient(base_url=address, timeout=WAIT_S) as api,
        api.stream("GET", "/v1/topics/t/stream") as answer,
    ):
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        lines = answer.aiter_lines()
        async with asyncio.timeout(WAIT_S):
            while await anext(lines) != ":":
                pass
            await api.post("/v1/topics/t/records", json={"records": [{"value": "now"}]})
            while not (line := await anext(lines)).startswith('data: {"partition"'):
                pass
            assert json.loads(line.removeprefix("data: "))["records"][0]["value"] == "now"


def test_settings_on_the_page_have_the_documented_values() -> None:
    settings = GatewaySettings()
    for name, value in re.findall(r"`([a-z_]+)` \((\d+) s\)", PAGE):
        assert getattr(settings, name) == float(value), name
    named = set(re.findall(r"`([a-z]+_[a-z_]+)(?: = [^`]*)?`", PAGE))
    ours = {name for name in named if not name.startswith(("proxy_", "client_", "gzip", "last_event", "shutting"))}
    assert ours <= set(GatewaySettings.model_fields)
    assert "keep_alive_timeout_s" in ours
