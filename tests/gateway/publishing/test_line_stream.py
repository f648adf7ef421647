"""JSON lines over real sockets: receipts while lines arrive, back-pressure, and the ends of a stream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.gateway.conftest import Serve, Served
from tests.gateway.fake_log import FakeLog

from tidelog.errors import BatchTooLargeError, TidelogError
from tidelog_gateway.bodies import json_lines
from tidelog_gateway.bodies.json_lines import GROUP_LINES
from tidelog_gateway.publishing import line_stream

PATH = "/v1/topics/t/records"


@pytest.fixture(autouse=True)
def topic(log: FakeLog) -> None:
    log.logs["t"] = [[], []]


def count(log: FakeLog) -> int:
    return sum(len(batch) for batch in log.logs["t"][0])


class Client:
    """One request in chunks, and the lines of its answer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._left = b""

    async def begin(self, query: str = "") -> None:
        head = f"POST {PATH}{query} HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-ndjson\r\n"
        self.writer.write(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())

    def send(self, data: bytes) -> None:
        self.writer.write(b"%x\r\n%b\r\n" % (len(data), data) if data else b"0\r\n\r\n")

    async def status(self) -> int:
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 10)
        return int(head.split()[1])

    async def line(self) -> dict[str, Any]:
        while b"\n" not in self._left:
            size = int(await asyncio.wait_for(self.reader.readline(), 10), 16)
            assert size, "the answer has ended"
            self._left += (await self.reader.readexactly(size + 2))[:-2]
        text, self._left = self._left.split(b"\n", 1)
        found: dict[str, Any] = json.loads(text)
        return found

    async def end(self) -> None:
        assert not self._left
        assert await asyncio.wait_for(self.reader.readexactly(5), 10) == b"0\r\n\r\n"


@asynccontextmanager
async def opened(served: Served, query: str = "") -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    client = Client(reader, writer)
    try:
        await client.begin(query)
        yield client
    finally:
        writer.close()


def records(*values: str) -> bytes:
    return b"".join(b'{"value":"%b"}\n' % value.encode() for value in values)


async def test_lines_are_answered_while_the_body_arrives(serve: Serve, log: FakeLog) -> None:
    async with serve() as served, opened(served) as client:
        client.send(records("a", "b")[:-5])
        assert await client.status() == 200
        assert await client.line() == {"line": 1, "partition": 0, "offset": 0}
        client.send(b'"b"}\n\n\r\n{"value":1}\n{"value":"c"}')
        assert await client.line() == {"line": 2, "partition": 0, "offset": 1}
        wrong = await client.line()
        assert (wrong["line"], wrong["error"]["status"], wrong["error"]["code"]) == (5, 422, "invalid_request")
        client.send(b"")
        assert await client.line() == {"line": 6, "partition": 0, "offset": 2}
        assert await client.line() == {"done": True, "records": 4, "stored": 3, "failed": 1}
        await client.end()
        assert [record.value for batch in log.logs["t"][0] for record in batch] == [b"a", b"b", b"c"]
        client.writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")  # the connection stays open
        assert await client.status() == 200


async def test_receipts_are_in_the_order_of_the_lines(serve: Serve, log: FakeLog) -> None:
    total = 5 * GROUP_LINES
    async with serve() as served, opened(served) as client:
        client.send(records(*map(str, range(total))))
        client.send(b"")
        await client.status()
        found = [await client.line() for _ in range(total)]
    assert [each["line"] for each in found] == list(range(1, total + 1))
    assert [each["offset"] for each in found] == list(range(total))
    assert [record.value for batch in log.logs["t"][0] for record in batch] == [b"%d" % at for at in range(total)]


async def test_only_errors_are_answered_on_request(serve: Serve, log: FakeLog) -> None:
    def refuse(value: bytes | None) -> TidelogError | None:
        return BatchTooLargeError("too large") if value == b"large" else None

    log.refuse = refuse
    async with serve() as served, opened(served, "?receipts=errors") as client:
        client.send(records("a", "large", "b") + b"{\n")
        client.send(b"")
        await client.status()
        first, second = await client.line(), await client.line()
        assert (first["line"], first["error"]["code"]) == (2, "batch_too_large")
        assert (second["line"], second["error"]["code"]) == (4, "invalid_request")
        assert await client.line() == {"done": True, "records": 4, "stored": 2, "failed": 2}


async def test_silence_ends_a_stream_with_the_next_line(serve: Serve, log: FakeLog) -> None:
    async with serve(body_timeout_s=0.5) as served, opened(served) as client:
        client.send(records("a") + b'{"value":"ha')
        await client.status()
        await client.line()
        end = await client.line()
        assert (end["done"], end["stored"], end["next_line"]) == (False, 1, 2)
        assert end["error"]["code"] == "request_timeout"
        await client.end()
    async with serve(body_timeout_s=0.5) as served, opened(served) as client:
        client.send(b'{"value":"ha')
        assert await client.status() == 408
    async with serve(body_timeout_s=0.6) as served, opened(served) as client:
        for _ in range(4):
            client.send(b"\n")
            await asyncio.sleep(0.3)
        client.send(records("b"))
        client.send(b"")
        assert await client.status() == 200
    assert count(log) == 2


async def test_a_line_above_the_limit_ends_a_stream(serve: Serve, log: FakeLog) -> None:
    async with serve(body_bytes_max=1024) as served:
        async with opened(served) as client:
            client.send(records("a") + b"x" * 4_000)
            await client.status()
            await client.line()
            end = await client.line()
            assert (end["next_line"], end["error"]["code"]) == (2, "body_too_large")
            assert "line 2 has more than 1024 bytes" in end["error"]["detail"]
        async with opened(served) as client:
            client.send(records(*["a" * 50] * 200) + b"x" * 4_000 + b"\n")
            await client.status()
            for _ in range(200):
                await client.line()
            assert (await client.line())["next_line"] == 201
    assert count(log) == 201, "only the length of lines is limited, not of the body"


async def test_a_client_that_disconnects_ends_the_work(serve: Serve, log: FakeLog) -> None:
    log.enqueued.clear()
    async with serve() as served:
        async with opened(served) as client:
            client.send(records(*["a"] * GROUP_LINES * 2))
            await asyncio.sleep(0.3)
        await asyncio.sleep(0.3)
        log.enqueued.set()
        await asyncio.sleep(0.3)
        assert count(log) == 0, "nothing was accepted when the client disconnected"


async def test_a_log_that_does_not_answer_slows_the_client_down(
    serve: Serve, log: FakeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed = 0
    parse_lines = json_lines.parse_lines

    async def counted(lines: Any, **more: Any) -> Any:
        nonlocal parsed
        parsed += len(lines)
        return await parse_lines(lines, **more)

    monkeypatch.setattr(line_stream, "parse_lines", counted)
    log.enqueued.clear()
    async with serve() as served, opened(served) as client:
        data = records(*["x" * 100] * 1_000)
        sent = 0
        while sent < 200:
            client.send(data)
            try:
                await asyncio.wait_for(client.writer.drain(), 0.5)
            except TimeoutError:
                break
            sent += 1
        assert sent < 200, "the client cannot send all of its 23 MB"
        assert parsed <= line_stream.GROUPS_MAX * GROUP_LINES
        log.enqueued.set()
        await client.status()
        for number in range(1_000):
            assert (await client.line())["offset"] == number


async def test_a_stop_ends_a_stream_with_a_last_line(serve: Serve) -> None:
    async with serve(stop_timeout_s=5) as served, opened(served) as client:
        client.send(records("a"))
        await client.status()
        await client.line()
        stopping = asyncio.create_task(served.stop())
        end = await client.line()
        assert (end["done"], end["next_line"], end["error"]["code"]) == (False, 2, "shutting_down")
        client.writer.close()
        await asyncio.wait_for(stopping, 5)


async def test_without_room_a_stream_waits_and_then_ends(
    serve: Serve, log: FakeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_stream, "ROOM_WAIT_S", 0.3)
    async with serve(in_flight_bytes_max=2_000, body_bytes_max=8_192) as served, opened(served) as client:
        client.send(records("a"))
        await client.status()
        await client.line()
        client.send(records("x" * 4_000))
        end = await client.line()
        assert (end["next_line"], end["error"]["code"]) == (2, "overloaded")
    assert count(log) == 1


async def test_a_million_empty_lines_store_nothing(serve: Serve, log: FakeLog) -> None:
    async with serve() as served, opened(served) as client:
        for _ in range(100):
            client.send(b"\n" * 10_000)
            await client.writer.drain()
        client.send(records("a"))
        client.send(b"")
        await client.status()
        assert (await client.line())["line"] == 1_000_001
    assert count(log) == 1


async def test_a_body_of_invalid_lines_is_ended_early(serve: Serve, log: FakeLog) -> None:
    async with serve() as served, opened(served) as client:
        client.send(records("a") + b"text\n" * 20_000)
        await client.status()
        await client.line()
        found = await client.line()
        while "line" in found:
            found = await client.line()
        assert (found["done"], found["stored"], found["error"]["code"]) == (False, 1, "invalid_request")
        assert line_stream.FAULTS_MAX <= found["failed"] < line_stream.FAULTS_MAX + GROUP_LINES
        assert found["next_line"] == found["records"] + 1
