from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import httpx
import pytest
from tests.gateway.conftest import Serve, Served
from tests.gateway.fake_log import FakeLog
from websockets.asyncio.client import connect
from websockets.typing import Subprotocol

from tidelog_gateway.protocol.json_codec import JSON


async def talk(served: Served, *parts: bytes) -> str:
    """Send the parts and return the answer until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    for part in parts:
        writer.write(part)
        await writer.drain()
    async with asyncio.timeout(10):
        answer = await reader.read()
    writer.close()
    return answer.decode()


async def test_an_incomplete_head_is_408(serve: Serve) -> None:
    async with serve(head_timeout_s=0.1) as served:
        answer = await talk(served, b"GET /livez HTTP/1.1\r\nHos")
        assert answer.startswith("HTTP/1.1 408 ")
        assert "application/problem+json" in answer
        assert '"code":"request_timeout"' in answer
        assert (await talk(served)).startswith("HTTP/1.1 408 "), "a silent connection"


async def test_the_second_head_of_a_connection_also_has_a_deadline(serve: Serve) -> None:
    async with serve(head_timeout_s=0.3) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(10):
            assert (await reader.readuntil(b'"alive"}')).startswith(b"HTTP/1.1 200 ")
            writer.write(b"GET /li")
            assert (await reader.read()).startswith(b"HTTP/1.1 408 ")
        writer.close()


async def test_the_rest_of_a_refused_body_has_a_deadline(serve: Serve) -> None:
    async with serve(head_timeout_s=0.3, body_bytes_max=1024) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(b"POST /v1/topics HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\n")
        async with asyncio.timeout(10):
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 413 ")
            writer.write(b"x" * 100)
            await reader.read()
        writer.close()


async def test_slow_answers_are_not_interrupted_by_the_deadline_of_the_head(serve: Serve) -> None:
    async with serve(head_timeout_s=0.05, body_timeout_s=1) as served:
        head = b"POST /nowhere HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 1\r\n\r\n"
        answer = await talk(served, head)
        assert answer.startswith("HTTP/1.1 408 ")
        assert "the body did not arrive" in answer, "the deadline of the body, not of the head"


async def test_a_websocket_survives_the_deadline_of_its_head(serve: Serve) -> None:
    async with (
        serve(head_timeout_s=0.3) as served,
        connect(served.ws, subprotocols=[Subprotocol(JSON.subprotocol)]) as socket,
    ):
        for _ in range(2):  # each waits for one deadline, which began after the WebSocket's
            assert (await talk(served)).startswith("HTTP/1.1 408 ")
            async with asyncio.timeout(10):
                await (await socket.ping())


async def test_garbage_is_answered_with_a_problem(serve: Serve) -> None:
    async with serve() as served:
        for garbage in (b"\x16\x03\x01\x02\x00\r\n\r\n", b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\n bad\r\n\r\n"):
            answer = await talk(served, garbage)
            assert answer.startswith("HTTP/1.1 400 "), garbage
            assert '"code":"malformed_request"' in answer


async def test_an_endless_head_is_refused(serve: Serve) -> None:
    async with serve() as served:
        answer = await talk(served, b"GET / HTTP/1.1\r\nX: " + b"x" * 90_000)
        assert answer.startswith("HTTP/1.1 4")


async def test_a_connection_above_the_limit_is_refused_while_all_others_are_busy(serve: Serve, log: FakeLog) -> None:
    log.logs["t"] = [[]]
    waiting = b"GET /v1/topics/t/partitions/0/records?wait_ms=20000 HTTP/1.1\r\nHost: x\r\n\r\n"
    async with serve(connections_max=1) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(waiting)
        await log.fetch_waits.wait()
        answer = await talk(served)
        assert answer.startswith("HTTP/1.1 503 ")
        assert "Retry-After: 1" in answer
        assert '"retryable":true' in answer
        async with log.appended:
            log.appended.notify_all()
        async with asyncio.timeout(10):
            assert (await reader.readline()).startswith(b"HTTP/1.1 200 "), "a busy connection is not closed"
        writer.close()


async def test_idle_connections_do_not_block_new_ones(serve: Serve) -> None:
    async with serve(connections_max=8, address_connections_max=0, head_timeout_s=300) as served, asyncio.timeout(20):
        pairs = [await asyncio.open_connection("127.0.0.1", served.port) for _ in range(8)]
        for number, part in enumerate((b"", b"GET /li", POST + b"Content-Length: 19\r\n\r\n{") * 2):
            pairs[number][1].write(part)
        others = [await asyncio.open_connection("127.0.0.1", served.port) for _ in range(8)]
        for reader, writer in others:
            writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
        for number, (reader, _) in enumerate(pairs):
            end = await reader.read()
            if number in {0, 3, 6, 7}:
                assert end == b"", "without a request there is no answer"
            else:
                assert end.startswith(b"HTTP/1.1 503 "), number
                assert b"waited for its client" in end
        for _, writer in [*pairs, *others]:
            writer.close()


async def test_one_address_leaves_slots_to_others_even_when_busy(serve: Serve) -> None:
    async with AsyncExitStack() as stack:
        served = await stack.enter_async_context(serve(connections_max=8))
        here = [connect(served.ws, subprotocols=[Subprotocol(JSON.subprotocol)]) for _ in range(6)]
        opened = [await stack.enter_async_context(one) for one in here]
        answer = await talk(served)
        assert answer.startswith("HTTP/1.1 503 "), "three quarters are its share"
        elsewhere = httpx.AsyncHTTPTransport(local_address="127.0.0.2")
        async with httpx.AsyncClient(base_url=served.http, transport=elsewhere) as other:
            assert (await other.get("/livez")).status_code == 200
        await opened[0].close()
        async with asyncio.timeout(10), httpx.AsyncClient(base_url=served.http) as again:
            assert (await again.get("/livez")).status_code == 200, "a closed WebSocket has released its slot"


UPGRADE = (
    b"GET /v1/ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: tidelog.v1.json\r\n"
)
BAD_UPGRADES = {
    "a body is announced": UPGRADE + b"Content-Length: 5\r\n\r\n",
    "a body is announced and sent": UPGRADE + b"Content-Length: 5\r\n\r\nhello",
    "a chunked body": UPGRADE + b"Transfer-Encoding: chunked\r\n\r\n",
    "a POST": UPGRADE.replace(b"GET", b"POST") + b"\r\n",
    "a POST with a body": UPGRADE.replace(b"GET", b"POST") + b"Content-Length: 5\r\n\r\nhello",
    "a request after it": UPGRADE + b"\r\nGET /livez HTTP/1.1\r\nHost: x\r\n\r\n",
    "frames after it": UPGRADE + b"\r\n\x89\x80\x00\x00\x00\x00",
    "more headers than the other parser accepts": UPGRADE + b"X: y\r\n" * 300 + b"\r\n",
    "a header longer than the other parser accepts": UPGRADE + b"X: " + b"y" * 9000 + b"\r\n\r\n",
    "a path that is not ASCII": UPGRADE.replace(b"/v1/ws", b"/v1/w\xc3\xa9") + b"\r\n",
    "no key": UPGRADE.replace(b"Sec-WebSocket-Key", b"X-Key") + b"\r\n",
    "another version": UPGRADE.replace(b"Version: 13", b"Version: 7") + b"\r\n",
}


@pytest.mark.parametrize("what", BAD_UPGRADES)
async def test_an_invalid_upgrade_is_refused_at_once(serve: Serve, what: str) -> None:
    async with serve(head_timeout_s=300) as served:
        answer = await talk(served, BAD_UPGRADES[what])
        assert answer.startswith("HTTP/1.1 4"), what
        assert answer.count("HTTP/1.1 ") == 1, "bytes after it are not answered"


async def test_an_upgrade_with_content_length_0_is_accepted(serve: Serve) -> None:
    async with serve() as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(UPGRADE + b"Content-Length: 0\r\n\r\n")
        async with asyncio.timeout(10):
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
        writer.close()


async def test_an_upgrade_in_http_1_0_or_to_another_protocol_is_ignored(serve: Serve) -> None:
    """RFC 9110, 7.8: the request is answered as if the header were missing."""
    h2c = b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\n\r\n"
    async with serve() as served:
        old = UPGRADE.replace(b"HTTP/1.1", b"HTTP/1.0") + b"\r\n"
        assert (await talk(served, old)).startswith("HTTP/1.1 426 ")
        assert (await talk(served, h2c)).startswith("HTTP/1.1 200 ")


POST = b"POST /v1/topics HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
BODY = b'{"name":"smuggled"}'
CHUNKED = b"13\r\n" + BODY + b"\r\n0\r\n\r\n"
AMBIGUOUS = {
    "length and chunks": POST + b"Content-Length: 30\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKED,
    "chunks and length": POST + b"Transfer-Encoding: chunked\r\nContent-Length: 30\r\n\r\n" + CHUNKED,
    "two lengths": POST + b"Content-Length: 19\r\nContent-Length: 20\r\n\r\n" + BODY,
    "a list of lengths": POST + b"Content-Length: 19, 20\r\n\r\n" + BODY,
    "a length with a sign": POST + b"Content-Length: +19\r\n\r\n" + BODY,
    "a length below zero": POST + b"Content-Length: -19\r\n\r\n" + BODY,
    "a length with a space in it": POST + b"Content-Length: 1 9\r\n\r\n" + BODY,
    "a length in hexadecimal": POST + b"Content-Length: 0x13\r\n\r\n" + BODY,
    "a length in other digits": POST + "Content-Length: \u0661\u0669\r\n\r\n".encode() + BODY,
    "a space before the colon": POST + b"Content-Length : 19\r\n\r\n" + BODY,
    "identity": POST + b"Transfer-Encoding: identity\r\n\r\n" + BODY,
    "gzip, chunked": POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + CHUNKED,
    "chunked twice": POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKED,
    "chunks in HTTP/1.0": POST.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKED,
    "a chunk of negative length": POST + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n" + BODY,
    "a chunk longer than its size line": POST + b"Transfer-Encoding: chunked\r\n\r\n3\r\n" + BODY + b"\r\n0\r\n\r\n",
    "a folded length": POST + b"Content-Length: 1\r\n 9\r\n\r\n" + BODY,
    "a list of one length": POST + b"Content-Length: 19, 19\r\n\r\n" + BODY,
    "the same length twice": POST + b"Content-Length: 19\r\nContent-Length: 19\r\n\r\n" + BODY,
    "another folded field": POST + b"X: a\r\n b\r\nContent-Length: 19\r\n\r\n" + BODY,
    "a line that ends in LF": POST + b"X: a\nContent-Length: 19\r\n\r\n" + BODY,
    "a head that ends in LF": POST + b"Content-Length: 19\r\n\n" + BODY,
    "a head of LF alone": POST.replace(b"\r", b"") + b"Content-Length: 19\n\n" + BODY,
    "trailers that end in LF": POST + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKED[:-2] + b"\n",
    "a bare carriage return": POST + b"X: a\rContent-Length: 1\r\nContent-Length: 19\r\n\r\n" + BODY,
    "a zero byte": POST + b"X: a\x00b\r\nContent-Length: 19\r\n\r\n" + BODY,
    "two hosts": POST + b"Host: y\r\nContent-Length: 19\r\n\r\n" + BODY,
    "no host": POST.replace(b"Host: x\r\n", b"") + b"Content-Length: 19\r\n\r\n" + BODY,
}


@pytest.mark.parametrize("what", AMBIGUOUS)
async def test_an_ambiguous_request_is_refused_and_the_connection_closed(serve: Serve, log: FakeLog, what: str) -> None:
    async with serve() as served:
        answer = await talk(served, AMBIGUOUS[what] + b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        assert answer.startswith("HTTP/1.1 4"), what
        assert answer.count("HTTP/1.1 ") == 1, "bytes after it are not answered"
        assert not log.logs, "nothing was done"


async def test_chunk_extensions_and_trailers_are_ignored(serve: Serve, log: FakeLog) -> None:
    chunks = b"13;a=b\r\n" + BODY + b"\r\n0\r\nContent-Length: 5\r\nX: y\r\n\r\n"
    async with serve() as served:
        answer = await talk(served, POST + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks)
        assert answer.startswith("HTTP/1.1 201 ")
    assert list(log.logs) == ["smuggled"]


async def test_an_incomplete_body_has_a_deadline(serve: Serve) -> None:
    async with serve(body_timeout_s=0.2, head_timeout_s=0.2) as served:
        for framing in (b"Content-Length: 19\r\n\r\n{", b"Transfer-Encoding: chunked\r\n\r\n5\r\n{"):
            assert (await talk(served, POST + framing)).startswith("HTTP/1.1 408 ")


async def test_bad_connections_and_disconnects_are_not_logged(
    serve: Serve, log: FakeLog, server_log: list[str]
) -> None:
    log.logs["t"] = [[]]
    fetch = b"GET /v1/topics/t/partitions/0/records?wait_ms=20000 HTTP/1.1\r\nHost: x\r\n\r\n"
    leaving = [fetch, POST + b"Content-Length: 19\r\n\r\n{", UPGRADE + b"\r\n", UPGRADE + b"\r\n\r\n", UPGRADE]
    leaving += [b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"]
    leaving += [b"nonsense\r\n\r\n", b"", b"GET /", UPGRADE.replace(b"/v1/ws", b"/elsewhere") + b"\r\n"]
    async with serve() as served:
        for part in leaving:
            for reset in (False, True):
                _, writer = await asyncio.open_connection("127.0.0.1", served.port)
                writer.write(part)
                if reset:
                    await asyncio.sleep(0)
                    writer.transport.abort()
                else:
                    await asyncio.sleep(0.02)
                writer.close()
        assert (await talk(served, b"GET /livez HTTP/1.0\r\n\r\n")).startswith("HTTP/1.1 200 ")
    assert not server_log


async def test_a_shed_stream_of_lines_does_not_deny_stored_lines(serve: Serve, log: FakeLog) -> None:
    log.logs["t"] = [[]]
    async with serve(connections_max=4, address_connections_max=0, head_timeout_s=300) as served, asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(
            b"POST /v1/topics/t/records?receipts=errors HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-ndjson\r\n"
            b'Transfer-Encoding: chunked\r\n\r\ne\r\n{"value":"x"}\n\r\n'
        )
        while not log.logs["t"][0]:  # noqa: ASYNC110 # the log does not notify
            await asyncio.sleep(0.01)
        others = [await asyncio.open_connection("127.0.0.1", served.port) for _ in range(6)]
        assert b"503" not in await reader.read()
        for _, other in [(reader, writer), *others]:
            other.close()
