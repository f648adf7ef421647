"""The limit probe's sender and reader: the client side of a minimal publish and fetch.

Each is one protocol object that acts inside the socket's callbacks, without a task, future or queue per batch, since
those are costs of the product. `append_run` sends prepared payloads with a fixed number in flight and measures
each from its write to its reply; `read_run` requests the stored bytes in large reads, keeps two requests pending, and
verifies the CRC32C of every record batch, as a consumer must.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple, cast

import pyarrow as pa
from crc32c import crc32c

from tidelog_loadtest.measure.runs import Budget, Run
from tidelog_loadtest.probe.wire import APPEND, READ, REPLY, REQUEST, aligned
from tidelog_proto.batch.gathered_batch import encode_gathered
from tidelog_proto.batch.header import unpack_header
from tidelog_proto.limits import HEADER_BYTES
from tidelog_proto.process.buffers import batch_pool

READS_IN_FLIGHT: Final = 2
"""Number of pending reads: one reply is verified while the next is in transit."""


class Payload(NamedTuple):
    """One encoded record batch, ready to send."""

    request: bytes
    parts: tuple[bytes | memoryview, ...]
    records: int
    length_bytes: int

    def wire(self) -> list[bytes | memoryview]:
        """Return the buffers to write."""
        return [self.request, *self.parts]


class ArrowPayload(NamedTuple):
    """An Arrow record batch that is serialized when it is sent, as the product serializes its batches.

    The work is minimal: large values are not copied, small ones are serialized by Arrow, and a CRC32C is computed.
    """

    header: bytes
    columns: pa.RecordBatch
    records: int
    length_bytes: int

    def wire(self) -> list[bytes | memoryview]:
        """Serialize the batch, and return the buffers to write."""
        gathered = encode_gathered([self.columns], now_us=0)
        if gathered is not None:
            parts = (gathered.header, gathered.body, *gathered.rest)
            crc = 0
            for part in parts:
                crc = crc32c(part, crc)
            return [REQUEST.pack(APPEND, gathered.length, crc, 0, 0), *parts]
        body = memoryview(self.columns.serialize(memory_pool=batch_pool())).cast("B")
        request = REQUEST.pack(APPEND, len(self.header) + len(body), crc32c(body, crc32c(self.header)), 0, 0)
        return [request, self.header, body]


def payload_of(header: bytes, body: memoryview, records: int) -> Payload:
    """Return an encoded batch (128-byte header and body) as a payload of the probe."""
    length_bytes = len(header) + len(body)
    request = REQUEST.pack(APPEND, length_bytes, crc32c(body, crc32c(header)), 0, 0)
    return Payload(request, (header, body), records, length_bytes)


class ProbeFailedError(Exception):
    """The probe's server closed the connection or sent an invalid reply during a run."""


class _Appender(asyncio.Protocol):
    def __init__(self, payloads: Sequence[Payload | ArrowPayload], budget: Budget, window: int) -> None:
        self.done: asyncio.Future[Run] = asyncio.get_running_loop().create_future()
        self._payloads = payloads
        self._budget = budget
        self._window = window
        self._sent_at: deque[int] = deque()
        self._run = Run()
        self._sent = 0
        self._pending = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._budget.begin()
        self._run.begin()
        for _ in range(self._window):
            self._send_next()

    def _send_next(self) -> None:
        assert self._transport is not None
        if not self._budget.take():
            return
        payload = self._payloads[self._sent % len(self._payloads)]
        self._sent += 1
        self._sent_at.append(time.perf_counter_ns())
        self._transport.writelines(payload.wire())

    def data_received(self, data: bytes) -> None:
        now_ns = time.perf_counter_ns()
        data = self._pending + data if self._pending else data
        whole = len(data) // REPLY.size * REPLY.size
        self._pending = data[whole:]
        for _ in range(whole // REPLY.size):
            payload = self._payloads[self._run.batches % len(self._payloads)]
            self._run.add(payload.records, payload.length_bytes, now_ns - self._sent_at.popleft())
            self._send_next()
        if not self._sent_at and not self.done.done():
            self._run.end()
            self.done.set_result(self._run)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(ProbeFailedError(f"the limit probe closed the connection: {exc}"))


class _Reader(asyncio.BufferedProtocol):
    def __init__(self, read_bytes: int) -> None:
        self.done: asyncio.Future[Run] = asyncio.get_running_loop().create_future()
        self._read_bytes = read_bytes
        self._run = Run()
        # The buffer holds one reply, which is verified before the next is received.
        self._buffer = memoryview(bytearray(REPLY.size + read_bytes))
        self._have = 0
        self._end = 0
        self._position = 0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._run.begin()
        for _ in range(READS_IN_FLIGHT):
            self._ask()

    def _ask(self) -> None:
        assert self._transport is not None
        self._transport.write(REQUEST.pack(READ, self._read_bytes, 0, 0, self._position))
        self._position += self._read_bytes

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the reply says how much, not the hint
        return self._buffer[self._have : self._end or REPLY.size]

    def buffer_updated(self, nbytes: int) -> None:
        self._have += nbytes
        if not self._end and self._have == REPLY.size:
            self._end = REPLY.size + REPLY.unpack_from(self._buffer)[1]
        if self._end and self._have == self._end:
            payload = self._buffer[REPLY.size : self._end]
            self._have = self._end = 0
            self._reply_whole(payload)

    def _reply_whole(self, payload: memoryview) -> None:
        if self.done.done():
            return
        if not payload:
            self._run.end()
            self.done.set_result(self._run)
            return
        self._ask()
        at = 0
        while at < len(payload):
            header = unpack_header(payload, at)
            body = payload[at + HEADER_BYTES : at + header.length]
            if crc32c(body) != header.body_crc:
                self.done.set_exception(
                    ProbeFailedError("the limit probe returned a batch whose body does not match its CRC32C")
                )
                return
            self._run.add(header.record_count, header.length)
            at += aligned(header.length)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(ProbeFailedError(f"the limit probe closed the connection: {exc}"))


async def append_run(
    port: int,
    payloads: Sequence[Payload | ArrowPayload],
    budget: Budget,
    *,
    window: int,
    tls: ssl.SSLContext | None = None,
) -> Run:
    """Send `payloads` in turn, `window` in flight, until the budget is used up and all are acknowledged.

    Args:
        port: port of the probe's server, on this machine.
        payloads: at least one.
        budget: limit of the run.
        window: number of payloads in flight.
        tls: settings of TLS, which the event loop implements; None for an unencrypted connection.

    Raises:
        ProbeFailedError: the server closed the connection; its stderr has the reason.
    """
    loop = asyncio.get_running_loop()
    transport, sender = await loop.create_connection(
        lambda: _Appender(payloads, budget, window), "127.0.0.1", port, ssl=tls
    )
    try:
        return await sender.done
    finally:
        transport.close()


async def read_run(port: int, *, read_bytes: int, tls: ssl.SSLContext | None = None) -> Run:
    """Read all stored bytes, `read_bytes` per request, and verify every batch.

    Args:
        port: port of the probe's server, on this machine.
        read_bytes: a multiple of the length, rounded up by `aligned`, that all stored payloads have, so that no batch
            straddles two replies.
        tls: as for `append_run`.

    Raises:
        ProbeFailedError: the server closed the connection, or the body of a batch does not match its CRC32C.
    """
    loop = asyncio.get_running_loop()
    transport, reader = await loop.create_connection(lambda: _Reader(read_bytes), "127.0.0.1", port, ssl=tls)
    try:
        return await reader.done
    finally:
        transport.close()
