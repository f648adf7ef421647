"""Writing several buffers at once, on real sockets: on asyncio's loop of this Python, and on uvloop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import TypeAlias, cast

import pytest
import uvloop

from tidelog_proto.wire.frames import write_parts

KIB = 1024
MIB = 1024 * KIB
HIGH_BYTES = 256 * KIB


class Sender(asyncio.Protocol):
    """Records its callbacks."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.lost = asyncio.Event()
        self.resumed = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).set_write_buffer_limits(high=HIGH_BYTES)

    def pause_writing(self) -> None:
        self.told.append("pause")

    def resume_writing(self) -> None:
        self.told.append("resume")
        self.resumed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()


@asynccontextmanager
async def pair() -> AsyncIterator[tuple[asyncio.Transport, Sender, socket.socket]]:
    """Connect a transport to a socket that reads on request."""
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        transport, sender = await loop.create_connection(Sender, *listening.getsockname())
        reader, _ = listening.accept()
    reader.setblocking(False)
    with reader:
        try:
            async with asyncio.timeout(20):
                yield transport, sender, reader
        finally:
            if not sender.lost.is_set():
                transport.abort()
                await sender.lost.wait()


async def read_to_end(reader: socket.socket) -> bytes:
    loop, content = asyncio.get_running_loop(), bytearray()
    while piece := await loop.sock_recv(reader, MIB):
        content += piece
    return bytes(content)


Case: TypeAlias = Callable[[], Coroutine[None, None, None]]


async def empty_buffers_do_not_hold_a_close_up() -> None:
    async with pair() as (transport, sender, reader):
        write_parts(transport, [b"one", b"", memoryview(b"two"), memoryview(b"")])
        transport.close()
        assert await read_to_end(reader) == b"onetwo"
        await sender.lost.wait()


async def empty_buffers_alone_are_nothing() -> None:
    async with pair() as (transport, _, reader):
        write_parts(transport, [b"", memoryview(b"")])
        write_parts(transport, [])
        write_parts(transport, [b"x"])
        transport.close()
        assert await read_to_end(reader) == b"x"


async def a_full_buffer_pauses_and_an_empty_one_resumes() -> None:
    async with pair() as (transport, sender, reader):
        data = bytes(HIGH_BYTES // 2)
        written_bytes = 0
        while not sender.told:
            assert written_bytes < 64 * MIB, "the protocol was not paused"
            write_parts(transport, [data])
            written_bytes += len(data)
            await asyncio.sleep(0)
        write_parts(transport, [data])
        write_parts(transport, [data])
        assert sender.told == ["pause"]
        reading = asyncio.ensure_future(read_to_end(reader))
        await sender.resumed.wait()
        transport.close()
        assert len(await reading) == written_bytes + 2 * len(data)
        assert sender.told == ["pause", "resume"]


async def nothing_goes_to_a_transport_that_closes() -> None:
    async with pair() as (transport, sender, reader):
        full = [bytes(4 * MIB)]
        write_parts(transport, full)
        transport.close()
        write_parts(transport, full)
        assert len(await read_to_end(reader)) == 4 * MIB
        await sender.lost.wait()


async def the_next_connection_reads_whatever_was_written_to_one_that_broke() -> None:
    """It gets the number of the old one's socket, and must not inherit what the loop watched there."""
    async with pair() as (transport, sender, _):
        transport.abort()
        write_parts(transport, [b"late"])
        await sender.lost.wait()
    async with pair() as (transport, sender, reader):
        reader.close()
        await sender.lost.wait()


CASES = [
    empty_buffers_do_not_hold_a_close_up,
    empty_buffers_alone_are_nothing,
    a_full_buffer_pauses_and_an_empty_one_resumes,
    nothing_goes_to_a_transport_that_closes,
    the_next_connection_reads_whatever_was_written_to_one_that_broke,
]


@pytest.mark.parametrize("case", CASES)
def test_on_the_loop_of_clients(case: Case) -> None:
    asyncio.run(case())


@pytest.mark.parametrize("case", CASES)
def test_on_the_loop_of_nodes(case: Case) -> None:
    uvloop.run(case())
