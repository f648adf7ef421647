from __future__ import annotations

import asyncio

import httpx
from tests.gateway.conftest import Serve, Served
from websockets.asyncio.client import connect
from websockets.typing import Subprotocol

from tidelog_gateway.websocket.ws_protocol import SUBPROTOCOL


async def talk(served: Served, *parts: bytes) -> str:
    """Send the parts and return everything that comes until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    for part in parts:
        writer.write(part)
        await writer.drain()
    async with asyncio.timeout(10):
        answer = await reader.read()
    writer.close()
    return answer.decode()


async def test_a_head_that_does_not_come_is_408(serve: Serve) -> None:
    async with serve(head_timeout_s=0.1) as served:
        answer = await talk(served, b"GET /livez HTTP/1.1\r\nHos")
        assert answer.startswith("HTTP/1.1 408 ")
        assert "application/problem+json" in answer
        assert '"code":"request_timeout"' in answer
        assert (await talk(served)).startswith("HTTP/1.1 408 "), "a connection that says nothing at all"


async def test_the_second_head_of_a_connection_has_a_deadline_too(serve: Serve) -> None:
    async with serve(head_timeout_s=0.3) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(10):
            assert (await reader.readuntil(b'"alive"}')).startswith(b"HTTP/1.1 200 ")
            writer.write(b"GET /li")
            assert (await reader.read()).startswith(b"HTTP/1.1 408 ")
        writer.close()


async def test_the_rest_of_a_refused_body_is_read_only_so_long(serve: Serve) -> None:
    async with serve(head_timeout_s=0.3, body_bytes_max=1024) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(b"POST /v1/topics HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\n")
        async with asyncio.timeout(10):
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 413 ")
            writer.write(b"x" * 100)
            await reader.read()
        writer.close()


async def test_slow_answers_are_not_cut_by_the_deadline_of_the_head(serve: Serve) -> None:
    async with serve(head_timeout_s=0.05, body_timeout_s=1) as served:
        head = b"POST /nowhere HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 1\r\n\r\n"
        answer = await talk(served, head)
        assert answer.startswith("HTTP/1.1 408 ")
        assert "the body did not arrive" in answer, "the deadline of the body, not of the head"


async def test_a_websocket_outlives_the_deadline_of_its_head(serve: Serve) -> None:
    async with (
        serve(head_timeout_s=0.3) as served,
        connect(served.ws, subprotocols=[Subprotocol(SUBPROTOCOL)]) as socket,
    ):
        for _ in range(2):  # each waits for one deadline, which began after the WebSocket's
            assert (await talk(served)).startswith("HTTP/1.1 408 ")
            async with asyncio.timeout(10):
                await (await socket.ping())


async def test_what_is_not_http_is_a_problem(serve: Serve) -> None:
    async with serve() as served:
        for garbage in (b"\x16\x03\x01\x02\x00\r\n\r\n", b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\n bad\r\n\r\n"):
            answer = await talk(served, garbage)
            assert answer.startswith("HTTP/1.1 400 "), garbage
            assert '"code":"malformed_request"' in answer


async def test_a_head_that_never_ends_is_refused(serve: Serve) -> None:
    async with serve() as served:
        answer = await talk(served, b"GET / HTTP/1.1\r\nX: " + b"x" * 70_000)
        assert answer.startswith("HTTP/1.1 4")


async def test_too_many_connections_are_told_to_come_back(serve: Serve) -> None:
    async with serve(connections_max=1) as served, httpx.AsyncClient(base_url=served.http) as first:
        assert (await first.get("/livez")).status_code == 200
        answer = await talk(served)
        assert answer.startswith("HTTP/1.1 503 ")
        assert "Retry-After: 1" in answer
        assert '"retryable":true' in answer
        assert (await first.get("/livez")).status_code == 200
