"""A large body of columns is received directly into its buffer, in any pieces."""

from __future__ import annotations

import asyncio
import io
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.authority import Authority
from tests.gateway.conftest import Serve, Served
from tests.gateway.fake_log import FakeLog

from tidelog_gateway.flow.body_limits import DIRECT_BYTES
from tidelog_proto.tls.reloaded_files import TlsFiles, client_context

LAST = b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
VALUES = [b"%0100d" % number for number in range(2_000)]


def stream() -> bytes:
    batch: Any = pa.RecordBatch.from_arrays([pa.array(VALUES, pa.binary())], names=["value"])
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


BODY = stream()
ROOM_BYTES = len(BODY) + 1000
assert len(BODY) > DIRECT_BYTES


def request(body: bytes = BODY, *, fields: bytes = b"") -> bytes:
    kind = b"Content-Type: application/vnd.apache.arrow.stream\r\n"
    head = b"POST /v1/topics/t/records HTTP/1.1\r\nHost: x\r\n" + kind + fields
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


async def answer_to(served: Served, *parts: bytes, pause_s: float = 0.001, **options: Any) -> bytes:
    """Send the parts one by one and return the answer until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port, **options)
    async with asyncio.timeout(20):
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(pause_s)
        answer = await reader.read()
    writer.close()
    return answer


def values(log: FakeLog) -> list[bytes | None]:
    return [record.value for batch in log.logs["t"][0] for record in batch]


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.integers(0, 2 * len(BODY)), max_size=6))
async def test_requests_before_and_after_it_are_answered_in_order(serve: Serve, log: FakeLog, cuts: list[int]) -> None:
    log.logs["t"] = [[]]
    data = request() + request(fields=b"X-Second: 1\r\n") + LAST
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    async with serve() as served:
        answer = await answer_to(served, *(data[a:b] for a, b in pairwise(places)))
    assert re.findall(rb"HTTP/1\.1 ([0-9]+)", answer) == [b"200"] * 3
    assert values(log) == VALUES * 2


async def answer_of(reader: asyncio.StreamReader) -> bytes:
    """Return the head of the next answer, whose body is read."""
    head = await reader.readuntil(b"\r\n\r\n")
    await reader.readexactly(int(re.findall(rb"content-length: ([0-9]+)", head.lower())[0]))
    return head


async def test_a_connection_takes_other_requests_between_bodies(serve: Serve, log: FakeLog) -> None:
    log.logs["t"] = [[]]
    single = b"POST /v1/topics/t/records HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    record = b'{"records":[{"value":"%b"}]}' % (b"j" * 20_000)
    requests = [request(), request(), single + b"Content-Length: %d\r\n\r\n" % len(record) + record, request()]
    upgrade = (
        b"GET /v1/ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        b"Sec-WebSocket-Protocol: tidelog.v1.json\r\n\r\n"
    )
    async with serve() as served, asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        for data in requests:
            writer.write(data)
            assert (await answer_of(reader)).startswith(b"HTTP/1.1 200 ")
        writer.write(upgrade)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
        writer.write(b"\x89\x80" + bytes(4))  # a ping
        assert await reader.readexactly(2) == b"\x8a\x00"
        writer.close()
    assert values(log) == [*VALUES, *VALUES, b"j" * 20_000, *VALUES]


async def test_a_body_over_tls_is_received(serve: Serve, log: FakeLog, tmp_path: Path) -> None:
    log.logs["t"] = [[]]
    authority = Authority(tmp_path / "ca")
    files = authority.files("server", "gateway")
    context = client_context(TlsFiles(ca=authority.ca))
    data = request() + LAST
    async with serve(tls_cert_file=files.cert, tls_key_file=files.key) as served:
        options: dict[str, Any] = {"ssl": context, "server_hostname": "localhost"}
        answer = await answer_to(served, data[:1000], data[1000:100_000], data[100_000:], **options)
    assert re.findall(rb"HTTP/1\.1 ([0-9]+)", answer) == [b"200"] * 2
    assert values(log) == VALUES


async def test_a_body_after_100_continue_is_received(serve: Serve, log: FakeLog) -> None:
    log.logs["t"] = [[]]
    head, _, body = request(fields=b"Expect: 100-continue\r\n").partition(b"\r\n\r\n")
    async with serve() as served:
        answer = await answer_to(served, head + b"\r\n\r\n", body, LAST, pause_s=0.05)
    assert re.findall(rb"HTTP/1\.1 ([0-9]+)", answer) == [b"100", b"200", b"200"]
    assert values(log) == VALUES


async def test_an_incomplete_body_is_408_and_returns_its_reservation(serve: Serve, log: FakeLog) -> None:
    log.logs["t"] = [[]]
    data = request()
    async with serve(body_timeout_s=0.2, body_bytes_max=ROOM_BYTES, in_flight_bytes_max=ROOM_BYTES) as served:
        for _ in range(3):
            answer = await answer_to(served, data[: len(data) // 2])
            assert answer.startswith(b"HTTP/1.1 408 ")
            assert b"\r\nconnection: close\r\n" in answer.lower()
        assert (await answer_to(served, data + LAST)).startswith(b"HTTP/1.1 200 ")
    assert values(log) == VALUES


@pytest.mark.parametrize("sent_bytes", [200, 100_000])
async def test_a_body_of_a_client_that_disconnects_is_not_published(
    serve: Serve, log: FakeLog, sent_bytes: int
) -> None:
    log.logs["t"] = [[]]
    async with serve(body_bytes_max=ROOM_BYTES, in_flight_bytes_max=ROOM_BYTES) as served:
        for _ in range(3):
            _, writer = await asyncio.open_connection("127.0.0.1", served.port)
            writer.write(request()[:sent_bytes])
            await writer.drain()
            await asyncio.sleep(0.05)
            writer.transport.abort()
            await asyncio.sleep(0.05)
        assert (await answer_to(served, request() + LAST)).startswith(b"HTTP/1.1 200 ")
    assert values(log) == VALUES


async def test_a_body_above_the_limit_is_refused_unread(serve: Serve) -> None:
    async with serve(body_bytes_max=DIRECT_BYTES) as served:
        assert (await answer_to(served, request(fields=b"Connection: close\r\n")[:5_000])).startswith(b"HTTP/1.1 413 ")


async def test_a_stop_ends_an_incomplete_body(serve: Serve, log: FakeLog) -> None:
    log.logs["t"] = [[]]
    async with serve() as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(request()[:100_000])
        await writer.drain()
        await asyncio.sleep(0.05)
        async with asyncio.timeout(20):
            await served.stop()
            answer = await reader.read()
        writer.close()
    assert answer.startswith(b"HTTP/1.1 503 ") or not answer
    assert not values(log)
