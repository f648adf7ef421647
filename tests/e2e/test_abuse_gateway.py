"""A gateway as its own process, and clients that do not read their answers: its memory is bounded and it serves others.

The limit applies to the process's anonymous memory, as the kernel counts it, beyond that of the idle process. The
latency of the polite client is compared with its latency when it is alone, in the same minute on the same machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from tests.gateway.conftest import process

from tidelog import Client
from tidelog_proto.limits import KIB, MIB

pytestmark = pytest.mark.e2e

BUDGET_BYTES: Final = 128 * MIB
GROWTH_MAX_BYTES: Final = BUDGET_BYTES * 5 // 4
RECORD_BYTES: Final = 10 * KIB
RECORDS: Final = 4000
SECONDS: Final = 4.0
FLOOR_S: Final = 2.0
"""Limit of a polite request: three times the slowest of a hundred on a quiet gateway, or three times this."""

HANDSHAKE = (
    b"GET /v1/ws HTTP/1.1\r\nHost: [::1]\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: tidelog.v1.json\r\n"
)
FETCH = b"GET /v1/topics/t/partitions/0/records?max_records=2000 HTTP/1.1\r\nHost: [::1]\r\n\r\n"
SWAGGER = b"GET /docs/assets/swagger-ui-bundle.js HTTP/1.1\r\nHost: [::1]\r\n\r\n"
PING: Final = b"\x89\xfd" + bytes(4) + b"p" * 125


def text_frame(message: Any) -> bytes:
    """Return a client's text frame; a mask of zeros leaves the text as it is."""
    data = json.dumps(message).encode()
    assert 126 <= len(data) < 65_536 or len(data) < 126
    length = bytes([0x80 | len(data)]) if len(data) < 126 else b"\xfe" + len(data).to_bytes(2, "big")
    return b"\x81" + length + bytes(4) + data


def subscriptions(records: int, count: int) -> bytes:
    """Return the messages that open `count` subscriptions with so much credit."""
    return b"".join(
        text_frame({"id": sid, "sub": {"sid": sid, "topic": "t", "from": "earliest", "credit": {"records": records}}})
        for sid in range(count)
    )


@dataclass(slots=True)
class Gateway:
    """The gateway's process and the sockets that abuse it."""

    pid: int
    port: int
    peak_bytes: int = 0
    sockets: list[asyncio.StreamWriter] = field(default_factory=list)

    def memory_bytes(self) -> int:
        """Return the anonymous memory of the process."""
        found = re.search(r"^RssAnon:\s+(\d+) kB$", Path(f"/proc/{self.pid}/status").read_text(), re.MULTILINE)
        assert found is not None
        return int(found[1]) * 1024

    async def attack(self, data: bytes) -> asyncio.StreamWriter:
        """Open a connection, send, and never read."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1)
        del reader
        writer.transport.pause_reading()  # type: ignore[attr-defined] # the streams' transport can
        self.sockets.append(writer)
        writer.write(data)
        return writer

    async def watch(self) -> None:
        """Remember the most memory that the process ever has."""
        while True:
            self.peak_bytes = max(self.peak_bytes, self.memory_bytes())
            await asyncio.sleep(0.02)


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a node with records for all clients; return its address."""
    data = str(tmp_path_factory.mktemp("abuse"))
    with process("node", "--data", data, "--port", "0", "--management-port", "0") as (_, ready):
        address = f"127.0.0.1:{ready['port']}"
        asyncio.run(fill(address))
        yield address


async def fill(address: str) -> None:
    """Store the records that all clients request."""
    async with Client(address) as client:
        await client.create_topic("t", flush="never")
        async with client.producer("t") as producer:
            for _ in range(RECORDS // 100):
                await producer.send_many([b"x" * RECORD_BYTES] * 100, partition=0)


@pytest.fixture
async def gateway(addresses: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Gateway]:
    """Run a gateway with a small budget and warm it up: its one-time allocations, such as the blocks that it receives
    frames into, does not count."""
    monkeypatch.setenv("TIDELOG_GATEWAY_OUT_BYTES_MAX", str(BUDGET_BYTES))
    monkeypatch.setenv("TIDELOG_GATEWAY_IN_FLIGHT_BYTES_MAX", str(BUDGET_BYTES // 2))
    monkeypatch.setenv("TIDELOG_GATEWAY_CONNECTION_OUT_BYTES_MAX", str(BUDGET_BYTES // 4))
    with process("gateway", "--bootstrap", addresses, "--http-port", "0") as (started, ready):
        found = Gateway(started.pid, ready["http_port"])
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{found.port}", timeout=60) as http:
            for _ in range(2):
                path, params = "/v1/topics/t/partitions/0/records", {"max_records": 2000}
                answers = await asyncio.gather(*(http.get(path, params=params) for _ in range(6)))
                assert all(answer.status_code == 200 for answer in answers)
            assert (await http.get("/openapi.json")).status_code == 200
        yield found
        for socket in found.sockets:
            socket.transport.abort()


async def polite(gateway: Gateway, seconds: float) -> list[float]:
    """Publish and fetch for a while as a good client does; return how long each request took, retries included."""
    took_s: list[float] = []
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{gateway.port}", timeout=60) as http:

        async def publish() -> httpx.Response:
            return await http.post("/v1/topics/t/records", json={"records": [{"value": "polite"}]})

        async def fetch() -> httpx.Response:
            return await http.get("/v1/topics/t/partitions/0/records", params={"max_records": 10})

        for request in itertools.cycle((publish, fetch)):
            if loop.time() > end:
                return took_s
            began = time.monotonic()
            async with asyncio.timeout(60):
                while (response := await request()).status_code != 200:
                    assert response.status_code in {429, 503}, response.text
                    await asyncio.sleep(0.05)
            took_s.append(time.monotonic() - began)
            await asyncio.sleep(0.01)
    raise AssertionError("the cycle has no end")


def p99(took_s: list[float]) -> float:
    return sorted(took_s)[len(took_s) * 99 // 100]


Abuse = Callable[[Gateway], Coroutine[Any, Any, None]]


async def fetches_never_read(gateway: Gateway) -> None:
    for _ in range(100):
        await gateway.attack(FETCH * 5)


async def files_never_read(gateway: Gateway) -> None:
    for _ in range(100):
        await gateway.attack(SWAGGER * 20)


async def websockets_with_credit(gateway: Gateway) -> None:
    for _ in range(20):
        await websocket(gateway, subscriptions(1_000_000, 64))


async def websockets_without_credit(gateway: Gateway) -> None:
    for _ in range(20):
        await websocket(gateway, subscriptions(0, 64))


async def websockets_with_little_credit(gateway: Gateway) -> None:
    for _ in range(20):
        await websocket(gateway, subscriptions(1, 64))


async def pings_without_reading(gateway: Gateway) -> None:
    sockets = [await websocket(gateway, b"") for _ in range(10)]
    for _ in range(100):
        for socket in sockets:
            socket.write(PING * 500)
        await asyncio.sleep(0.02)


async def idle_upgrades(gateway: Gateway) -> None:
    for at in range(300):
        body = (b"Content-Length: 5\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n", b"\r\n")[at % 3]
        await gateway.attack(HANDSHAKE + body)


async def bad_requests(gateway: Gateway) -> None:
    for at in range(500):
        await gateway.attack(
            (b"\x16\x03\x01\x02\x00\r\n\r\n", b"nonsense\r\n\r\n", b"GET /nowhere HTTP/1.0\r\n\r\n")[at % 3]
        )


async def bodies_never_sent(gateway: Gateway) -> None:
    """Each announces as much as one may, then less and less, until they have the whole budget."""
    head = b"POST /v1/topics/t/records HTTP/1.1\r\nHost: [::1]\r\nContent-Type: application/json\r\n"
    for size_bytes in [8 * MIB] * 16 + [2**power for power in range(22, 3, -1) for _ in range(3)]:
        await gateway.attack(head + b"Content-Length: %d\r\n\r\n{" % size_bytes)


async def messages_never_ended(gateway: Gateway) -> None:
    head = b"\x81\xff" + (MIB - KIB).to_bytes(8, "big") + bytes(4)
    for _ in range(300):
        await websocket(gateway, head + bytes(MIB - 2 * KIB))


async def websocket(gateway: Gateway, data: bytes) -> asyncio.StreamWriter:
    writer = await gateway.attack(HANDSHAKE + b"\r\n")
    await asyncio.sleep(0.01)  # no message may follow before the answer, which is not read here
    writer.write(data)
    return writer


ABUSE: Final[dict[str, Abuse]] = {
    abuse.__name__: abuse
    for abuse in (
        fetches_never_read,
        files_never_read,
        websockets_with_credit,
        websockets_without_credit,
        websockets_with_little_credit,
        pings_without_reading,
        idle_upgrades,
        bad_requests,
        bodies_never_sent,
        messages_never_ended,
    )
}


@pytest.mark.long
@pytest.mark.parametrize("name", ABUSE)
async def test_memory_keeps_to_the_budget_and_others_are_served(gateway: Gateway, name: str) -> None:
    quiet_s = await polite(gateway, SECONDS / 3)
    before_bytes = gateway.memory_bytes()
    watching = asyncio.create_task(gateway.watch())
    abusing = asyncio.create_task(ABUSE[name](gateway))
    try:
        took_s = await polite(gateway, SECONDS)
        await abusing
    finally:
        for task in (watching, abusing):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
    grown_bytes = gateway.peak_bytes - before_bytes
    assert grown_bytes <= GROWTH_MAX_BYTES, f"{grown_bytes / MIB:.0f} MiB"
    assert p99(took_s) <= 3 * max(p99(quiet_s), FLOOR_S)
