"""`tidelog bench idle`: the gateway's memory per idle WebSocket and per idle SSE stream.

Each connection subscribes to the end of a topic without new records. The figure is the growth of the private memory of
the gateway's process; the kernel's socket buffers are not included.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, cast

from tidelog import Client
from tidelog_cli.base.failures import CommandFailed
from tidelog_cli.up.child_processes import running
from tidelog_loadtest.gateway.live_delivery import Surface
from tidelog_loadtest.measure.footprint import cpu_s, rss_anon_bytes

TOPIC: Final = "idle"
CREDIT: Final = 1_000
OPEN_AT_ONCE: Final = 50
OPEN_S: Final = 60.0
SETTLE_S: Final = 1.0
WARM_UP: Final = 20
"""Number of connections that are opened and closed first, so that loading code and filling caches is not measured."""
SPARE: Final = 100


@dataclass(frozen=True, slots=True)
class IdleResult:
    """The memory of idle connections.

    Attributes:
        memory_bytes: growth of the gateway's private memory.
        per_connection_bytes: `memory_bytes` divided by the number of connections.
        cpu_ms_s: processor time of the idle gateway in ms per second.
    """

    surface: str
    connections: int
    memory_bytes: int
    per_connection_bytes: int
    cpu_ms_s: float

    def document(self) -> dict[str, Any]:
        """Return the JSON form of the result."""
        return asdict(self)


class _Idle(asyncio.Protocol):
    """A client that sends its requests, waits until it is subscribed, and discards received data."""

    def __init__(self, requests: list[bytes], marks: list[bytes]) -> None:
        self.begun = asyncio.get_running_loop().create_future()
        self.lost = False
        self._requests = requests
        self._marks = marks
        self._head = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Uvloop's transports are not subclasses of `asyncio.Transport`.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._requests[0])

    def data_received(self, data: bytes) -> None:
        if self.begun.done():
            return
        self._head += data
        if self._marks[0] in self._head:
            self._requests, self._marks = self._requests[1:], self._marks[1:]
            if not self._marks:
                self._head = b""
                self.begun.set_result(None)
            else:
                self._transport.write(self._requests[0])

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        if not self.begun.done():
            self.begun.set_exception(
                exc
                or CommandFailed(
                    f"the gateway closed a connection before the subscription began; it had sent: {self._head[-300:]!r}"
                )
            )


async def measure_idle(surface: Surface, connections: int, seconds: float, directory: Path) -> IdleResult:
    """Open idle connections and measure the gateway.

    Args:
        surface: kind of subscription.
        connections: number of connections.
        seconds: duration of the measurement while all connections are idle.
        directory: directory for the node's data.

    Raises:
        CommandFailed: a process did not start, or a connection was closed.
    """
    limits = {
        "CONNECTIONS_MAX": str(connections + SPARE),
        "ADDRESS_CONNECTIONS_MAX": "0",
        "WS_CONNECTIONS_MAX": str(2 * connections + SPARE),  # one caller may open half of all WebSockets and streams
        "WS_PING_INTERVAL_S": "600",
        "STREAM_HEARTBEAT_S": "600",
    }
    environ = os.environ | {f"TIDELOG_GATEWAY_{name}": value for name, value in limits.items()}
    async with contextlib.AsyncExitStack() as stack:
        node_command = ("node", "--data", str(directory / "node"), "--port", "0", "--management-port", "0")
        node = await stack.enter_async_context(running("node", node_command))
        bootstrap = f"127.0.0.1:{node.ready['port']}"
        gateway_command = ("--context=", "gateway", "--bootstrap", bootstrap, "--http-port", "0")
        gateway = await stack.enter_async_context(running("gateway", gateway_command, environ=environ))
        client = await stack.enter_async_context(Client(bootstrap, client_id="tidelog-bench"))
        await client.create_topic(TOPIC)
        port, pid = int(gateway.ready["http_port"]), gateway.process.pid
        async with _opened(surface, port, min(WARM_UP, connections)):
            await asyncio.sleep(SETTLE_S)
        await asyncio.sleep(SETTLE_S)
        before_bytes = rss_anon_bytes(pid)
        async with _opened(surface, port, connections) as clients:
            await asyncio.sleep(SETTLE_S)
            used_bytes = rss_anon_bytes(pid) - before_bytes
            before_s = cpu_s(pid)
            await asyncio.sleep(seconds)
            cpu_ms_s = (cpu_s(pid) - before_s) * 1000 / seconds
            if any(each.lost for each in clients):
                raise CommandFailed(
                    f"the gateway closed {sum(each.lost for each in clients)} of {connections} connections; see its "
                    "output above"
                )
    return IdleResult(surface, connections, used_bytes, used_bytes // connections, round(cpu_ms_s, 2))


@contextlib.asynccontextmanager
async def _opened(surface: Surface, port: int, connections: int) -> AsyncIterator[list[_Idle]]:
    """Open connections; yield when all are subscribed."""
    loop = asyncio.get_running_loop()
    opened: list[tuple[asyncio.Transport, _Idle]] = []
    try:
        while len(opened) < connections:
            some = range(min(OPEN_AT_ONCE, connections - len(opened)))
            make = _client_of(surface, port)
            new = await asyncio.gather(*(loop.create_connection(make, "127.0.0.1", port) for _ in some))
            opened += new
            async with asyncio.timeout(OPEN_S):
                await asyncio.gather(*(client.begun for _, client in new))
        yield [client for _, client in opened]
    finally:
        for transport, _ in opened:
            transport.close()


def _client_of(surface: Surface, port: int) -> Any:
    host = f"Host: 127.0.0.1:{port}\r\n"
    if surface == "sse":
        request = f"GET /v1/topics/{TOPIC}/stream HTTP/1.1\r\n{host}Accept: text/event-stream\r\n\r\n"
        return lambda: _Idle([request.encode()], [b"event: begin"])
    handshake = (
        f"GET /v1/ws HTTP/1.1\r\n{host}Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: tidelog.v1.json\r\n\r\n"
    )
    sub = json.dumps({"id": 1, "sub": {"sid": 1, "topic": TOPIC, "credit": {"records": CREDIT}}}).encode()
    assert len(sub) < 126, "the frame's length fits one byte"
    frame = b"\x81" + bytes([0x80 | len(sub)]) + bytes(4) + sub  # masked with zeros
    return lambda: _Idle([handshake.encode(), frame], [b"\r\n\r\n", b'"ok"'])
