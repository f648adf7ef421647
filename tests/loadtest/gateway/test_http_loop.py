from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest

from tidelog_cli.base.failures import CommandFailed
from tidelog_loadtest.gateway.http_loop import answer_to, closed_loop, request_bytes


@asynccontextmanager
async def answering(
    answer: bytes, *, end_at: int | None = None, ending: bytes = b""
) -> AsyncIterator[tuple[int, list[bytes]]]:
    """Respond to every request with the same bytes in two pieces; yield the port and the requests.

    The request number `end_at` of a connection gets `ending`, and the connection is closed.
    """
    requests: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = 0
        while head := await reader.readuntil(b"\r\n\r\n") if not reader.at_eof() else b"":
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
            requests.append(head + await reader.readexactly(length))
            number += 1
            if number == end_at:
                writer.write(ending)
                break
            writer.write(answer[:20])
            await asyncio.sleep(0)
            writer.write(answer[20:])
        writer.close()

    async def quietly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handling.add(cast("asyncio.Task[None]", asyncio.current_task()))
        try:
            await serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.transport.abort()

    handling: set[asyncio.Task[None]] = set()
    server = await asyncio.start_server(quietly, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], requests
        await asyncio.gather(*handling)


async def test_a_response_is_returned_without_its_head() -> None:
    async with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello") as (port, requests):
        assert await answer_to(port, request_bytes("POST", "/a", b"{}")) == b"hello"
    (request,) = requests
    assert request.startswith(b"POST /a HTTP/1.1\r\nHost: 127.0.0.1\r\n")
    assert request.endswith(b"\r\nContent-Length: 2\r\n\r\n{}")


async def test_a_closed_loop_counts_responses() -> None:
    async with answering(b"HTTP/1.1 204 No Content\r\n\r\n") as (port, requests):
        run = await closed_loop(port, request_bytes("GET", "/"), connections=3, seconds=0.2)
    assert run.requests == len(requests) >= 3
    assert run.seconds >= 0.2


async def test_another_status_ends_the_loop() -> None:
    async with answering(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n") as (port, _):
        with pytest.raises(CommandFailed, match="503 Busy"):
            await closed_loop(port, request_bytes("GET", "/"), connections=2, seconds=5)


async def test_a_connection_that_the_server_closes_ends_the_loop() -> None:
    async with answering(b"HTTP/1.1 204 No Content\r\n\r\n", end_at=3) as (port, _):
        with pytest.raises(CommandFailed, match="the server closed a connection"):
            await closed_loop(port, request_bytes("GET", "/"), connections=2, seconds=0.3)


async def test_an_incomplete_response_is_an_error() -> None:
    async with answering(b"", end_at=1, ending=b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel") as (port, _):
        with pytest.raises(CommandFailed, match="the server closed a connection: no complete response"):
            await answer_to(port, request_bytes("GET", "/"))
