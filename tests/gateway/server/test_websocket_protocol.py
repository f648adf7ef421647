from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from tests.gateway.conftest import Serve, Served
from uvicorn.server import ServerState

from tidelog_gateway.budget.connection_output import ConnectionOutput
from tidelog_gateway.budget.request_budget import RequestBudget
from tidelog_gateway.budget.response_budget import ResponseBudget
from tidelog_gateway.server.websocket_protocol import FRAGMENTS_MAX, BoundedWebSocket, bounded_websocket
from tidelog_proto.limits import MIB

HANDSHAKE = (
    b"GET /v1/ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: tidelog.v1.json\r\n\r\n"
)
MASK = bytes(4)
TEXT, CONTINUATION, CLOSE, PING = 1, 0, 8, 9


def frame(opcode: int, data: bytes = b"", *, fin: bool = True) -> bytes:
    """Return a client's frame; a mask of zeros leaves the data as it is."""
    assert len(data) < 126
    return bytes([opcode | (0x80 if fin else 0), 0x80 | len(data)]) + MASK + data


async def opened(served: Served) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(HANDSHAKE)
    async with asyncio.timeout(10):
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
    return reader, writer


async def received(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Return the next frame's opcode and data."""
    async with asyncio.timeout(10):
        head = await reader.readexactly(2)
        length = head[1] if head[1] < 126 else int.from_bytes(await reader.readexactly(2), "big")
        return head[0] & 0x0F, await reader.readexactly(length)


async def close_code(reader: asyncio.StreamReader) -> int:
    """Take the close frame, which is all that comes; return its code."""
    opcode, data = await received(reader)
    assert opcode == CLOSE
    async with asyncio.timeout(10):
        assert not await reader.read()
    return int.from_bytes(data[:2], "big")


async def test_fragments_are_counted(serve: Serve) -> None:
    async with serve() as served:
        reader, writer = await opened(served)
        pieces = frame(TEXT, b"[", fin=False) + frame(CONTINUATION, b" ", fin=False) * 100 + frame(CONTINUATION, b"]")
        writer.write(pieces)
        assert b"invalid_request" in (await received(reader))[1]
        writer.write(frame(TEXT, fin=False) + frame(CONTINUATION, fin=False) * (FRAGMENTS_MAX + 50))
        assert await close_code(reader) == 1009
        writer.close()


async def test_text_that_is_not_utf_8_closes_without_a_log_line(serve: Serve, server_log: list[str]) -> None:
    async with serve() as served:
        reader, writer = await opened(served)
        writer.write(frame(TEXT, b"\xff"))
        assert await close_code(reader) == 1007
        writer.close()
    assert not server_log


@pytest.mark.parametrize("junk", [b"\xff" * 20, b"\x83\x80" + MASK, b"\x81\x01a", frame(CONTINUATION, b"a")])
async def test_junk_ends_the_websocket_without_a_line_in_the_log(
    serve: Serve, junk: bytes, server_log: list[str]
) -> None:
    async with serve() as served:
        reader, writer = await opened(served)
        writer.write(junk)
        assert await close_code(reader) == 1002
        writer.close()
    assert not server_log


class Line(asyncio.Transport):
    """A transport that records its calls; `unsent` is its reported buffer size."""

    def __init__(self) -> None:
        super().__init__()
        self.ended = asyncio.Event()
        self.written = b""
        self.unsent = 0
        self.reading = True

    def write(self, data: Any) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.ended.is_set()

    def close(self) -> None:
        self.ended.set()

    def abort(self) -> None:
        self.ended.set()

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def get_write_buffer_size(self) -> int:
        return self.unsent


@asynccontextmanager
async def protocol_on(
    line: Line, application: Any, *, timeout_s: float = 30, incoming: RequestBudget | None = None
) -> AsyncIterator[BoundedWebSocket]:
    """Run one connection's protocol on a line, with the handshake received."""
    config = uvicorn.Config(application, log_config=None, ws_ping_interval=None)
    config.load()
    protocol_class = bounded_websocket(handshake_timeout_s=timeout_s)
    assert issubclass(protocol_class, BoundedWebSocket)
    outlet = ConnectionOutput(ResponseBudget(MIB, MIB), 30)
    outlet.connected(line)
    state = ServerState()
    app_state = {"incoming": incoming or RequestBudget(10 * MIB), "outlet": outlet, "release_slot": lambda: None}
    protocol = protocol_class(config, state, app_state)
    protocol.connection_made(line)
    protocol.data_received(HANDSHAKE)
    try:
        yield protocol
    finally:
        protocol.connection_lost(None)
        for task in state.tasks:
            task.cancel()
        await asyncio.gather(*state.tasks, return_exceptions=True)


async def mute(scope: Any, receive: Any, send: Any) -> None:
    await asyncio.Event().wait()


async def accepting(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "websocket.accept"})
    await asyncio.Event().wait()


async def test_a_handshake_that_the_application_leaves_unanswered_has_a_deadline() -> None:
    line = Line()
    async with protocol_on(line, mute, timeout_s=0.05), asyncio.timeout(10):
        await line.ended.wait()


async def test_pings_are_answered_only_while_the_answers_are_read() -> None:
    line = Line()
    async with protocol_on(line, accepting) as protocol:
        await asyncio.sleep(0)
        protocol.data_received(frame(PING, b"one"))
        assert line.written.endswith(b"\x8a\x03one")
        line.unsent = 100_000
        before = len(line.written)
        for _ in range(10):
            protocol.data_received(frame(PING, b"two"))
        assert len(line.written) == before
        line.unsent = 0
        protocol.data_received(frame(PING, b"three"))
        assert line.written[before:] == b"\x8a\x05three"


async def test_a_flood_of_pings_is_handled_a_few_at_a_time() -> None:
    line = Line()
    async with protocol_on(line, accepting) as protocol:
        await asyncio.sleep(0)
        before = len(line.written)
        protocol.data_received(frame(PING, b"p" * 100) * 2000)
        answered = (len(line.written) - before) // 102
        assert 0 < answered < 100
        assert not line.reading
        async with asyncio.timeout(10):
            while (len(line.written) - before) // 102 == answered:  # noqa: ASYNC110 - only time passes
                await asyncio.sleep(0.01)


async def test_messages_are_parsed_as_they_are_taken() -> None:
    line = Line()
    taken: list[str] = []
    go_on = asyncio.Semaphore(0)

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "websocket.accept"})
        await receive()
        while True:
            await go_on.acquire()
            taken.append((await receive())["text"])

    async with protocol_on(line, slow) as protocol:
        await asyncio.sleep(0)
        protocol.data_received(b"".join(frame(TEXT, b"%06d" % at) for at in range(5000)))
        assert protocol.queue.qsize() < 1000
        assert not line.reading
        for _ in range(5000):
            go_on.release()
        async with asyncio.timeout(20):
            while len(taken) < 5000:  # noqa: ASYNC110 - only time passes
                await asyncio.sleep(0.01)
        assert taken == [f"{at:06}" for at in range(5000)]
        assert line.reading
