from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from crc32c import crc32c

from tidelog_loadtest.probe.server import ProbeFile, ProbeProtocol, ProbeServer
from tidelog_loadtest.probe.wire import APPEND, READ, REPLY, REQUEST

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

FRAME_BYTES = 100_000
WINDOW = 3


@pytest.fixture(params=[False, True], ids=["never", "always"])
async def probe(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Streams]:
    server = ProbeServer(tmp_path, sync=request.param, frame_bytes_max=FRAME_BYTES, window=WINDOW)
    listener = await asyncio.get_running_loop().create_server(lambda: ProbeProtocol(server), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*listener.sockets[0].getsockname())
    yield reader, writer
    writer.close()
    await writer.wait_closed()
    listener.close()
    await server.disconnect()
    server.close()
    assert await asyncio.to_thread(_names_in, tmp_path) == [], "the probe leaves nothing behind"


def _names_in(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()]


def _append(payload: bytes) -> bytes:
    return REQUEST.pack(APPEND, len(payload), crc32c(payload), 0, 0) + payload


async def _reply(reader: asyncio.StreamReader) -> tuple[int, int, int]:
    kind, length, position = REPLY.unpack(await reader.readexactly(REPLY.size))
    return kind, length, position


async def test_payloads_are_stored_aligned_and_returned(probe: Streams) -> None:
    reader, writer = probe
    payloads = [b"a" * 10, b"b" * FRAME_BYTES, b"c" * 5_000]
    writer.write(b"".join(_append(payload) for payload in payloads))
    positions = [(await _reply(reader))[2] for _ in payloads]
    assert positions == [0, 64, 64 + 100_032]
    for payload, position in zip(payloads, positions, strict=True):
        writer.write(REQUEST.pack(READ, len(payload), 0, 0, position))
        assert await _reply(reader) == (READ, len(payload), position)
        assert await reader.readexactly(len(payload)) == payload


async def test_a_frame_may_arrive_in_any_pieces(probe: Streams) -> None:
    reader, writer = probe
    frame = _append(b"x" * 40)
    for byte in frame:
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0)
    assert await _reply(reader) == (APPEND, 0, 0)


async def test_a_read_past_the_end_is_empty(probe: Streams) -> None:
    reader, writer = probe
    writer.write(_append(b"x" * 64) + REQUEST.pack(READ, 10, 0, 0, 1_000))
    assert sorted([await _reply(reader), await _reply(reader)]) == [(APPEND, 0, 0), (READ, 0, 1_000)]


@pytest.mark.parametrize(
    "request_bytes",
    [
        REQUEST.pack(APPEND, 4, 0, 0, 0) + b"oops",
        REQUEST.pack(APPEND, 2 * FRAME_BYTES, 0, 0, 0),
        REQUEST.pack(99, 0, 0, 0, 0),
    ],
    ids=["wrong-crc", "too-long", "unknown-kind"],
)
async def test_an_invalid_frame_closes_the_connection(
    probe: Streams, request_bytes: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    reader, writer = probe
    writer.write(request_bytes)
    with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
        await _reply(reader)
    assert "connection closed" in capfd.readouterr().err


@pytest.mark.parametrize("sync", [False, True])
def test_a_bounded_file_wraps_around(tmp_path: Path, sync: bool) -> None:
    file = ProbeFile(tmp_path / "x.seg", keep_bytes=192)
    payloads = [memoryview(bytes([number]) * 40) for number in range(5)]
    assert file.append(payloads[:2], sync=sync) + file.append(payloads[2:], sync=sync) == [0, 64, 128, 0, 64]
    file.end = 192
    assert bytes(file.read(0, 40)) == payloads[3]
    assert bytes(file.read(128, 40)) == payloads[2]
    file.close()


def test_views_of_a_closed_file_stay_valid(tmp_path: Path) -> None:
    file = ProbeFile(tmp_path / "x.seg")
    file.append([memoryview(b"first")], sync=True)
    view = file.read(0, 100)
    file.close()
    assert bytes(view[:5]) == b"first"
