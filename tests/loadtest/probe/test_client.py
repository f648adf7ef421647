from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.authority import Authority

from tidelog_loadtest.measure.runs import Budget, latency_of
from tidelog_loadtest.probe.client import Payload, ProbeFailedError, append_run, payload_of, read_run
from tidelog_loadtest.probe.server import ProbeProtocol, ProbeServer
from tidelog_loadtest.probe.wire import aligned
from tidelog_loadtest.stand.payloads import encoded, value_batches
from tidelog_proto.tls.reloaded_files import TlsFiles, client_context, server_context

WINDOW = 3
BATCH_RECORDS = 50


@pytest.fixture
def payloads() -> list[Payload]:
    return encoded(value_batches(100, BATCH_RECORDS, count=4))


@pytest.fixture(params=[False, True], ids=["never", "always"])
async def port(request: pytest.FixtureRequest, tmp_path: Path, payloads: list[Payload]) -> AsyncIterator[int]:
    server = ProbeServer(tmp_path, sync=request.param, frame_bytes_max=payloads[0].length_bytes, window=WINDOW)
    listener = await asyncio.get_running_loop().create_server(lambda: ProbeProtocol(server), "127.0.0.1", 0)
    yield listener.sockets[0].getsockname()[1]
    listener.close()
    await server.disconnect()
    server.close()


async def test_appended_payloads_are_read_back_completely(port: int, payloads: list[Payload]) -> None:
    pushed = await append_run(port, payloads, Budget(batches=11), window=WINDOW)
    assert (pushed.batches, pushed.records) == (11, 11 * BATCH_RECORDS)
    assert len(pushed.latencies_ns) == 11
    latency = latency_of([pushed])
    assert latency is not None
    assert latency.p50 > 0
    read = await read_run(port, read_bytes=2 * aligned(payloads[0].length_bytes))
    assert (read.batches, read.records, read.length_bytes) == (pushed.batches, pushed.records, pushed.length_bytes)


async def test_payloads_are_read_back_over_tls(tmp_path: Path, payloads: list[Payload]) -> None:
    files = Authority(tmp_path / "ca").files("server", "probe")
    server = ProbeServer(tmp_path, sync=False, frame_bytes_max=payloads[0].length_bytes, window=WINDOW)
    listener = await asyncio.get_running_loop().create_server(
        lambda: ProbeProtocol(server), "127.0.0.1", 0, ssl=server_context(files)
    )
    port = listener.sockets[0].getsockname()[1]
    tls = client_context(TlsFiles(ca=files.ca))
    pushed = await append_run(port, payloads, Budget(batches=11), window=WINDOW, tls=tls)
    read = await read_run(port, read_bytes=2 * aligned(payloads[0].length_bytes), tls=tls)
    assert (read.batches, read.records) == (pushed.batches, pushed.records) == (11, 11 * BATCH_RECORDS)
    with pytest.raises(ProbeFailedError):
        await append_run(port, payloads, Budget(batches=1), window=1)
    listener.close()
    await server.disconnect()
    server.close()


async def test_a_window_of_one_takes_one_round_trip_per_payload(port: int, payloads: list[Payload]) -> None:
    pushed = await append_run(port, payloads, Budget(batches=4), window=1)
    assert len(pushed.latencies_ns) == 4
    assert min(pushed.latencies_ns) > 0
    assert sum(pushed.latencies_ns) <= pushed.elapsed_ns


async def test_a_damaged_batch_is_detected(port: int, payloads: list[Payload]) -> None:
    header, body = (bytes(part) for part in payloads[0].parts)
    damaged = payload_of(header, memoryview(body[:-1] + bytes([body[-1] ^ 1])), BATCH_RECORDS)
    await append_run(port, [damaged], Budget(batches=1), window=1)
    with pytest.raises(ProbeFailedError, match="returned a batch whose body does not match"):
        await read_run(port, read_bytes=aligned(damaged.length_bytes))


async def test_a_window_larger_than_that_of_the_server_is_disconnected(
    port: int, payloads: list[Payload], capfd: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    if "never" in request.node.name:
        pushed = await append_run(port, payloads, Budget(batches=20), window=10)
        assert pushed.batches == 20, "without a sync each is answered before the next is read"
        return
    with pytest.raises(ProbeFailedError, match="closed the connection"):
        await append_run(port, payloads, Budget(batches=20), window=10)
    assert "--window" in capfd.readouterr().err
