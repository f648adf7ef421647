from __future__ import annotations

import asyncio
from typing import Any

import pytest
import uvicorn
from tests.gateway.conftest import Serve, Served
from uvicorn.server import ServerState

from tidelog_gateway.websocket.frames import FRAGMENTS_MAX, BoundedWebSocket, bounded_websocket

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


async def test_text_that_is_no_utf_8_closes_without_a_line_in_the_log(serve: Serve, server_log: list[str]) -> None:
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
    """A line that remembers what became of it."""

    def __init__(self) -> None:
        super().__init__()
        self.ended = asyncio.Event()
        self.written = b""

    def write(self, data: Any) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.ended.is_set()

    def close(self) -> None:
        self.ended.set()

    abort = close

    def get_write_buffer_size(self) -> int:
        return 0


async def test_a_handshake_that_the_application_leaves_unanswered_has_a_deadline() -> None:
    async def mute(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.Event().wait()

    config = uvicorn.Config(mute, log_config=None)
    protocol_class = bounded_websocket(handshake_timeout_s=0.05)
    assert issubclass(protocol_class, BoundedWebSocket)
    state = ServerState()
    config.load()
    protocol, line = protocol_class(config, state, {}), Line()
    protocol.connection_made(line)
    protocol.data_received(HANDSHAKE)
    async with asyncio.timeout(10):
        await line.ended.wait()
    protocol.connection_lost(None)
    for task in state.tasks:
        task.cancel()
    await asyncio.gather(*state.tasks, return_exceptions=True)
