"""`tidelog bench live`: the gateway's cost of live delivery per frame and socket, compared with bare broadcasts.

Sockets subscribe to a topic at its end, a producer publishes a batch at a time at a steady rate, and each batch becomes
one frame for each socket. Probes broadcast frames of the same length at the same rate:

- *fastapi_memory*, *fastapi_relay*: a FastAPI application (`fastapi_broadcast.py`) sends a text to each socket. It
  repeats the text from memory, or receives it over a WebSocket.
- *transport_memory*, *transport_relay*: the same below the framework (`bare_broadcast.py`): the probe writes a finished
  frame to the transport of each socket.
- *translator*: the probe below the framework receives the batches of the node over TCP, reads their Arrow columns and
  writes them as JSON. This is the minimal work of a gateway.

The runs alternate. Processor time is compared, because other processes influence it little. A stream of
server-sent events (`--surface sse`) is read by plain HTTP; its probes are the broadcasts of WebSocket frames.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal, Protocol, cast

from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

from tidelog import Client, Producer
from tidelog_cli.base.failures import CommandFailed
from tidelog_cli.up.child_processes import Child, running
from tidelog_loadtest.measure.footprint import cpu_s
from tidelog_loadtest.measure.steady_rate import at_rate
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import stamp_owner
from tidelog_proto.batch.record_batch import columns_of, encode_batch
from tidelog_proto.wire.frames import encode_frame

TOPIC: Final = "live"
CREDIT: Final = 2**53 - 1
OPEN_AT_ONCE: Final = 20
WARM_UP_S: Final = 0.5
OPEN_S: Final = 20.0
SETTLE_S: Final = 5.0
Surface = Literal["websocket", "sse"]


@dataclass(frozen=True, slots=True)
class LivePlan:
    """The parameters of a measurement of live delivery.

    Attributes:
        sockets: number of sockets that subscribe.
        batch_records, size: number of records in a batch, and size of a value in bytes.
        rate: batches per second.
        seconds: duration of one run.
        rounds: number of runs of the gateway and of each probe.
        partitions: number of partitions of the topic; batches go to each in turn.
        surface: the protocol of the subscriptions.
    """

    sockets: int = 100
    batch_records: int = 10
    size: int = 100
    rate: float = 100.0
    seconds: float = 4.0
    rounds: int = 3
    partitions: int = 1
    surface: Surface = "websocket"


@dataclass(frozen=True, slots=True)
class ProbeCost:
    """Processor time of one probe.

    Attributes:
        name: name of the probe, as in the description of this module.
        us: processor time in µs per frame and socket; median of the rounds.
        ratio: the probe's time divided by the gateway's; median of the ratios of the rounds.
    """

    name: str
    us: float
    ratio: float


@dataclass(frozen=True, slots=True)
class LiveResult:
    """Processor time of live delivery.

    Attributes:
        gateway_us: the gateway's processor time in µs per frame and socket; median of the rounds.
        probes: the costs of the probes, which only broadcast.
    """

    sockets: int
    surface: str
    frame_bytes: int
    frames: int
    gateway_us: float
    probes: tuple[ProbeCost, ...]

    def document(self) -> dict[str, Any]:
        """Return the JSON form of the result."""
        return asdict(self)


class _Counter(asyncio.Protocol):
    """A client that counts the received frames by a mark in each frame, and discards them."""

    def __init__(self, request: bytes, begin: bytes, mark: bytes, after: bytes = b"") -> None:
        self.frames = 0
        self.begun = asyncio.get_running_loop().create_future()
        self._request = request
        self._begin = begin
        self._mark = mark
        self._after = after
        self._head = b""
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Uvloop's transports are not subclasses of `asyncio.Transport`.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if not self.begun.done():
            self._head += data
            if self._after and b"\r\n\r\n" in self._head:
                self._transport.write(self._after)
                self._after = b""
            if self._begin in self._head:
                self.begun.set_result(None)
            return
        data = self._tail + data
        self.frames += data.count(self._mark)
        self._tail = data[-len(self._mark) + 1 :]

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.begun.done():
            self.begun.set_exception(
                exc
                or CommandFailed(
                    f"the server closed a connection before the subscription began; it had sent: {self._head[-300:]!r}"
                )
            )


def _handshake(port: int, path: str, protocol: str = "") -> bytes:
    offered = f"Sec-WebSocket-Protocol: {protocol}\r\n" if protocol else ""
    return (
        f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n{offered}\r\n"
    ).encode()


def _masked(text: str) -> bytes:
    """Return a text frame of a client, with a mask of zeros."""
    data = text.encode()
    length = bytes([0x80 | len(data)]) if len(data) < 126 else b"\xfe" + len(data).to_bytes(2, "big")
    return b"\x81" + length + bytes(4) + data


async def measure_live(plan: LivePlan, directory: Path) -> LiveResult:
    """Run the benchmark, alternating between the gateway and the probes.

    Raises:
        CommandFailed: a process did not start, or not every frame arrived.
    """
    async with contextlib.AsyncExitStack() as stack:
        node_command = ("node", "--data", str(directory / "node"), "--port", "0", "--management-port", "0")
        node = await stack.enter_async_context(running("node", node_command))
        bootstrap = f"127.0.0.1:{node.ready['port']}"
        gateway_command = ("--context=", "gateway", "--bootstrap", bootstrap, "--http-port", "0")
        gateway = await stack.enter_async_context(running("gateway", gateway_command))
        bare = await _started_probe(stack, "bare_broadcast")
        fastapi = await _started_probe(stack, "fastapi_broadcast")
        client = await stack.enter_async_context(Client(bootstrap, client_id="tidelog-bench"))
        await client.create_topic(TOPIC, partitions=plan.partitions, flush="never")
        producer = await stack.enter_async_context(client.producer(TOPIC))
        gateway_port = int(gateway.ready["http_port"])
        frame = await _frame(gateway_port, plan, producer)
        translated = await stack.enter_async_context(_translated(int(bare.ready["feed_port"]), plan))
        bare_feed, fastapi_feed = await _feed(stack, bare), await _feed(stack, fastapi)
        probes: dict[str, tuple[Child, _Source]] = {
            "fastapi_memory": (fastapi, _Repeated(fastapi_feed, frame)),
            "fastapi_relay": (fastapi, _Relayed(fastapi_feed, frame)),
            "transport_memory": (bare, _Repeated(bare_feed, frame)),
            "transport_relay": (bare, _Relayed(bare_feed, frame)),
            "translator": (bare, translated),
        }
        gateway_us: list[float] = []
        probes_us: dict[str, list[float]] = {name: [] for name in probes}
        for _ in range(plan.rounds):
            async with _sockets(_gateway_client(gateway_port, plan), gateway_port, plan) as sockets:
                gateway_us.append(await _run(plan, gateway.process.pid, sockets, _Publisher(plan, producer)))
            for name, (probe, source) in probes.items():
                port = int(probe.ready["http_port"])
                async with _sockets(_probe_client(port, frame), port, plan) as sockets:
                    probes_us[name].append(await _run(plan, probe.process.pid, sockets, source))
    return LiveResult(
        sockets=plan.sockets,
        surface=plan.surface,
        frame_bytes=len(frame),
        frames=plan.rounds * int(plan.rate * plan.seconds),
        gateway_us=round(statistics.median(gateway_us), 2),
        probes=tuple(
            ProbeCost(name, round(statistics.median(us), 2), _ratio(us, gateway_us)) for name, us in probes_us.items()
        ),
    )


async def _started_probe(stack: contextlib.AsyncExitStack, module: str) -> Child:
    return await stack.enter_async_context(running(module, (), module=f"tidelog_loadtest.gateway.{module}"))


async def _feed(stack: contextlib.AsyncExitStack, probe: Child) -> ClientConnection:
    address = f"ws://127.0.0.1:{probe.ready['http_port']}/feed"
    return await stack.enter_async_context(connect(address, compression=None))


def _ratio(probe_us: list[float], gateway_us: list[float]) -> float:
    """Return the median of the ratios of the rounds."""
    ratios = [probe / max(gateway, 0.01) for probe, gateway in zip(probe_us, gateway_us, strict=True)]
    return round(statistics.median(ratios), 2)


class _Source(Protocol):
    async def send(self, rate: float, count: int) -> None:
        """Send `count` frames, `rate` per second."""
        ...


class _Publisher:
    """Publishes batches, to each partition in turn."""

    def __init__(self, plan: LivePlan, producer: Producer) -> None:
        self._values = [b"x" * plan.size] * plan.batch_records
        self._partitions = plan.partitions
        self._producer = producer
        self._at = 0

    async def send(self, rate: float, count: int) -> None:
        await at_rate(rate, count, self.send_one)

    async def send_one(self) -> None:
        self._at += 1
        await self._producer.send_many(self._values, partition=self._at % self._partitions)


class _Translated:
    """Sends batches to the probe in frames like those of a node, for each partition in turn."""

    def __init__(self, plan: LivePlan, writer: asyncio.StreamWriter) -> None:
        self._columns = columns_of([b"x" * plan.size] * plan.batch_records)
        self._records = plan.batch_records
        self._partitions = plan.partitions
        self._writer = writer
        self._at = 0

    async def send(self, rate: float, count: int) -> None:
        await at_rate(rate, count, self.send_one)

    async def send_one(self) -> None:
        partition, base_offset = self._at % self._partitions, self._at // self._partitions * self._records
        self._at += 1
        now_us = time.time_ns() // 1000
        batch = bytearray(encode_batch(self._columns, now_us=now_us).to_bytes())
        stamp_owner(
            batch,
            base_offset=base_offset,
            append_timestamp_us=now_us,
            epoch=1,
            owner_incarnation=1,
            previous_digest=0,
        )
        end_offset = base_offset + self._records
        event = pb.MessageEvent(
            subscription_id=1,
            topic_id=bytes(16),
            partition=partition,
            record_count=self._records,
            high_watermark=end_offset,
            next_offset=end_offset,
        )
        self._writer.write(encode_frame(pb.Envelope(message_event=event), len(batch)) + batch)
        await self._writer.drain()


@contextlib.asynccontextmanager
async def _translated(port: int, plan: LivePlan) -> AsyncIterator[_Translated]:
    """Connect to the port where the probe receives batches."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield _Translated(plan, writer)
    finally:
        writer.close()


class _Relayed:
    """Makes a probe broadcast each frame that it receives."""

    def __init__(self, feed: ClientConnection, frame: str) -> None:
        self._feed = feed
        self._text = f"relay {frame}"

    async def send(self, rate: float, count: int) -> None:
        await at_rate(rate, count, lambda: self._feed.send(self._text))


class _Repeated:
    """Makes a probe broadcast a frame from memory."""

    def __init__(self, feed: ClientConnection, frame: str) -> None:
        self._feed = feed
        self._frame = frame

    async def send(self, rate: float, count: int) -> None:
        await self._feed.send(f"repeat {rate} {count} {self._frame}")
        await asyncio.sleep(count / rate)


async def _frame(port: int, plan: LivePlan, producer: Producer) -> str:
    """Return a frame as the gateway sends it."""
    protocols = [Subprotocol("tidelog.v1.json")]
    async with connect(f"ws://127.0.0.1:{port}/v1/ws", subprotocols=protocols, compression=None) as socket:
        await socket.send(_sub())
        await socket.recv()
        await _Publisher(plan, producer).send_one()
        return str(await socket.recv())


def _sub() -> str:
    return json.dumps({"id": 1, "sub": {"sid": 1, "topic": TOPIC, "credit": {"records": CREDIT}}})


def _gateway_client(port: int, plan: LivePlan) -> Any:
    if plan.surface == "sse":
        path = f"/v1/topics/{TOPIC}/stream"
        request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAccept: text/event-stream\r\n\r\n".encode()
        return lambda: _Counter(request, b"event: begin", b'data: {"partition":')
    request = _handshake(port, "/v1/ws", "tidelog.v1.json")
    return lambda: _Counter(request, b'"ok"', b'{"batch":', after=_masked(_sub()))


def _probe_client(port: int, frame: str) -> Any:
    return lambda: _Counter(_handshake(port, "/"), b"\r\n\r\n", frame[:9].encode())


@contextlib.asynccontextmanager
async def _sockets(make: Any, port: int, plan: LivePlan) -> AsyncIterator[list[_Counter]]:
    """Open all clients; yield when they are subscribed."""
    loop = asyncio.get_running_loop()
    opened: list[tuple[asyncio.Transport, _Counter]] = []
    try:
        while len(opened) < plan.sockets:
            some = range(min(OPEN_AT_ONCE, plan.sockets - len(opened)))
            opened += await asyncio.gather(*(loop.create_connection(make, "127.0.0.1", port) for _ in some))
            async with asyncio.timeout(OPEN_S):
                await asyncio.gather(*(counter.begun for _, counter in opened))
        yield [counter for _, counter in opened]
    finally:
        for transport, _ in opened:
            transport.close()


async def _run(plan: LivePlan, pid: int, sockets: list[_Counter], source: _Source) -> float:
    """Send frames at the plan's rate; return the process's CPU time per frame and socket, in µs."""
    warm_up, before = int(plan.rate * WARM_UP_S), sockets[0].frames
    await source.send(plan.rate, warm_up)
    await _arrived(sockets, before + warm_up)
    count = int(plan.rate * plan.seconds)
    before_s, before = cpu_s(pid), sockets[0].frames
    await source.send(plan.rate, count)
    await _arrived(sockets, before + count)
    return (cpu_s(pid) - before_s) * 1e6 / count / len(sockets)


async def _arrived(sockets: list[_Counter], frames: int) -> None:
    try:
        async with asyncio.timeout(SETTLE_S):
            while any(each.frames < frames for each in sockets):  # noqa: ASYNC110 - a hundred of them count
                await asyncio.sleep(0.01)
    except TimeoutError:
        least = min(each.frames for each in sockets)
        raise CommandFailed(
            f"a subscriber received only {least} of {frames} frames within {SETTLE_S:g} s: publish at a lower --rate"
        ) from None
