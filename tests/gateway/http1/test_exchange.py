from __future__ import annotations

import asyncio
import json
import re

import pytest
from tests.gateway.conftest import Serve, Served
from tests.gateway.fake_log import FakeLog

POST = b"POST /v1/topics HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
BODY = b'{"name":"made"}'
LIVE = b"GET /livez HTTP/1.1\r\nHost: x\r\n"


async def talk(served: Served, *parts: bytes) -> bytes:
    """Send the parts one by one and return the answer until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    async with asyncio.timeout(10):
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.01)
        answer = await reader.read()
    writer.close()
    return answer


async def test_a_request_with_expect_is_answered_with_100_continue(serve: Serve, log: FakeLog) -> None:
    head = POST + b"Content-Length: %d\r\nExpect: 100-continue\r\n" % len(BODY)
    async with serve() as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(head + b"\r\n")
        async with asyncio.timeout(10):
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(BODY)
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 201 ")
        writer.close()
        both = await talk(served, head.replace(b"Host", b"Connection: close\r\nHost") + b"\r\n" + BODY)
        assert both.startswith(b"HTTP/1.1 409 "), "no 100 Continue for a body that was sent"
    assert list(log.logs) == ["made"]


async def test_a_body_above_the_limit_is_refused_instead_of_100_continue(serve: Serve) -> None:
    head = POST + b"Connection: close\r\nContent-Length: 9999\r\nExpect: 100-continue\r\n\r\n"
    async with serve(body_bytes_max=1024) as served:
        assert (await talk(served, head)).startswith(b"HTTP/1.1 413 ")


async def test_pipelined_requests_are_answered_in_order(serve: Serve, log: FakeLog) -> None:
    post = POST + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
    chunked = POST + b"Transfer-Encoding: chunked\r\n\r\nf\r\n" + BODY + b"\r\n0\r\n\r\n"
    last = LIVE + b"Connection: close\r\n\r\n"
    requests = LIVE + b"\r\n" + post + chunked + LIVE + b"\r\n" + last
    for size, data in ((7, requests), (10_000, requests + LIVE + b"\r\n")):
        async with serve() as served:
            answer = await talk(served, *(data[at : at + size] for at in range(0, len(data), size)))
        statuses = re.findall(rb"HTTP/1\.1 ([0-9]+)", answer)
        assert statuses == [b"200", b"201", b"409", b"200", b"200"], "requests after Connection: close are not answered"
        log.logs.clear()


async def test_a_head_request_is_answered_without_a_body(serve: Serve) -> None:
    async with serve() as served:
        answer = await talk(served, b"HEAD /nowhere HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 404 ")
    assert not body


async def test_http_1_0_is_answered_and_closed(serve: Serve) -> None:
    async with serve() as served:
        answer = await talk(served, b"GET /livez HTTP/1.0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"\r\nconnection: close\r\n" in answer


async def test_a_large_body_is_received_in_any_pieces(serve: Serve, log: FakeLog) -> None:
    log.logs["t"] = [[]]
    value = "x" * 300_000
    body = json.dumps({"records": [{"value": value}]}).encode()
    head = b"POST /v1/topics/t/records HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
    framed = (
        head + b"Content-Length: %d\r\n\r\n" % len(body) + body,
        head + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n",
    )
    async with serve() as served:
        for data in framed:
            assert (await talk(served, data[:100], data[100:70_000], data[70_000:])).startswith(b"HTTP/1.1 200 ")
    assert [record.value for batch in log.logs["t"][0] for record in batch] == [value.encode()] * 2


async def test_pipelined_bytes_wait_unread(serve: Serve, log: FakeLog) -> None:
    """Such bytes are in no budget, so they stay with the client until the request before them is answered."""
    log.logs["t"] = [[]]
    waiting = b"GET /v1/topics/t/partitions/0/records?offset=0&wait_ms=20000 HTTP/1.1\r\nHost: x\r\n\r\n"
    async with serve() as served:
        _, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(waiting)
        await log.fetch_waits.wait()
        writer.write(b"G" * (64 << 20))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await writer.drain()
        assert writer.transport.get_write_buffer_size() > 32 << 20, "the server has read little of it"
        writer.transport.abort()
        async with log.appended:
            log.appended.notify_all()


async def test_a_fast_path_writes_the_same_head_as_the_route(serve: Serve, log: FakeLog) -> None:
    log.logs["t"] = [[]]
    path = b"GET /v1/topics/t/partitions/0/records?offset=0 HTTP/1.1\r\nHost: x\r\n"
    async with serve() as served:
        fast_path = await talk(served, path + b"Connection: close\r\n\r\n")
        route = await talk(served, path + b"Connection: close\r\nX-A: 1\r\nX-A: 2\r\n\r\n")

    def lines(answer: bytes) -> list[bytes]:
        head, _, _ = answer.partition(b"\r\n\r\n")
        own = b"x-request-id", b"date"
        return sorted(line for line in head.split(b"\r\n") if line.partition(b":")[0] not in own)

    assert lines(fast_path) == lines(route)
    assert fast_path.count(b"x-request-id: ") == route.count(b"x-request-id: ") == 1
    assert fast_path.partition(b"\r\n\r\n")[2] == route.partition(b"\r\n\r\n")[2]


async def test_a_connection_stays_open_after_an_answered_fault(serve: Serve, log: FakeLog) -> None:
    def broken(_: bytes | None) -> None:
        raise ZeroDivisionError

    log.logs["t"] = [[]]
    log.refuse = broken
    body = b'{"records":[{"value":"x"}]}'
    head = b"POST /v1/topics/t/records HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    request = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    async with serve() as served:
        answer = await talk(served, request, request, LIVE + b"Connection: close\r\n\r\n")
    assert re.findall(rb"HTTP/1\.1 ([0-9]+)", answer) == [b"500", b"500", b"200"]


LINES = (
    b"POST /v1/topics/t/records HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-ndjson\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
LINE = b'e\r\n{"value":"x"}\n\r\n'


async def test_a_fault_in_a_streamed_body_ends_the_answer_in_its_own_form(serve: Serve, log: FakeLog) -> None:
    log.logs["t"] = [[]]
    async with serve() as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        async with asyncio.timeout(10):
            writer.write(LINES + LINE)
            begun = await reader.readuntil(b'"offset":0}\n')
            writer.write(b"zz\r\n")
            rest = await reader.read()
        writer.close()
    assert begun.startswith(b"HTTP/1.1 200 ")
    assert b"HTTP/1.1" not in rest, "no second answer in the middle of the first"
    assert b'"done":false' in rest
    assert b'"next_line":2' in rest
    assert b'"code":"malformed_request"' in rest


async def test_a_fault_in_a_streamed_body_reports_the_stored_lines(serve: Serve, log: FakeLog) -> None:
    log.logs["t"] = [[]]
    async with serve() as served:
        answer = await talk(served, LINES.replace(b"records ", b"records?receipts=errors ") + LINE, b"zz\r\n")
        nothing = await talk(served, LINES + b"zz\r\n" + LIVE + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b'"stored":1' in answer
    assert b'"next_line":2' in answer
    assert nothing.startswith(b"HTTP/1.1 400 ")
    assert nothing.count(b"HTTP/1.1") == 1, "bytes after a fault are not read"


async def test_a_fault_in_the_rest_of_a_refused_body_is_not_answered(serve: Serve) -> None:
    head = LINES.replace(b"/t/", b"/none/")
    async with serve() as served:
        answer = await talk(served, head, b"zz\r\n", b"more")
    assert answer.startswith(b"HTTP/1.1 404 ")
    assert answer.count(b"HTTP/1.1") == 1


async def test_a_fault_in_a_buffered_body_is_400(serve: Serve, log: FakeLog) -> None:
    async with serve() as served:
        answer = await talk(served, POST + b"Transfer-Encoding: chunked\r\n\r\n", b"f\r\n" + BODY, b"\r\nzz\r\n" + LIVE)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1") == 1
    assert not log.logs
