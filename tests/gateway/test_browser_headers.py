from __future__ import annotations

import asyncio

import httpx
import pytest
from tests.gateway.conftest import OpenApi, Serve

from tidelog_gateway.browser_headers import BROWSER_HEADERS
from tidelog_gateway.metrics.gateway_metrics import Metrics

HANDSHAKE = b"GET /v1/ws HTTP/1.1\r\nHost: %b\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n%b\r\n"
KEY = b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"


def refuses_browsers(headers: httpx.Headers) -> bool:
    return all(headers.get_list(name) == [value] for name, value in BROWSER_HEADERS.items())


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/livez", 200),
        ("GET", "/readyz", 200),
        ("GET", "/metrics", 200),
        ("GET", "/openapi.json", 200),
        ("GET", "/v1/topics", 200),
        ("POST", "/v1/topics", 415),
        ("GET", "/v1/topics/none", 404),
        ("GET", "/nowhere", 404),
        ("PUT", "/livez", 405),
    ],
)
async def test_every_answer_has_each_header_once(api: httpx.AsyncClient, method: str, path: str, status: int) -> None:
    answer = await api.request(method, path)
    assert answer.status_code == status
    assert refuses_browsers(answer.headers), answer.headers


async def test_refusals_before_the_route_and_bugs_have_them(open_api: OpenApi, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_api(auth="callers") as api:
        refused = await api.get("/v1/topics")
    monkeypatch.setattr(Metrics, "page", lambda _: 1 / 0)
    async with open_api() as api:
        failed = await api.get("/metrics")
    assert [refused.status_code, failed.status_code] == [401, 500]
    assert refuses_browsers(refused.headers)
    assert refuses_browsers(failed.headers)


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /livez\r\n\r\n",
        b"GET /v1/topics HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n",
        HANDSHAKE % (b"evil.example", KEY),
        HANDSHAKE % (b"x", b""),
    ],
)
async def test_an_answer_without_the_application_has_them(serve: Serve, request_bytes: bytes) -> None:
    async with serve() as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(request_bytes)
        async with asyncio.timeout(20):
            head = await reader.readuntil(b"\r\n\r\n")
        writer.close()
    assert head.startswith(b"HTTP/1.1 4")
    lines = [line.split(": ", 1) for line in head.decode("latin-1").split("\r\n")[1:] if line]
    headers = httpx.Headers([(name, value) for name, value in lines])
    assert refuses_browsers(headers), headers
