"""A closed loop of one HTTP/1.1 request over keep-alive connections, with minimal Python overhead."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, cast

from tidelog_cli.base.failures import CommandFailed

ANSWER_TIMEOUT_S: Final = 60.0
"""How long to wait for the last responses after the duration of a loop."""
_SHOWN_BYTES: Final = 400


@dataclass(frozen=True, slots=True)
class LoadRun:
    """The result of a closed-loop load run.

    Attributes:
        requests: number of responses with the expected status.
        seconds: duration.
    """

    requests: int
    seconds: float


def request_bytes(method: str, path: str, body: bytes = b"", media_type: str = "application/json") -> bytes:
    """Return a request with the headers that clients usually send."""
    lines = [
        f"{method} {path} HTTP/1.1",
        "Host: 127.0.0.1",
        "Accept: */*",
        "Accept-Encoding: gzip, deflate",
        "User-Agent: tidelog-bench",
        "Connection: keep-alive",
    ]
    if body:
        lines += [f"Content-Type: {media_type}", f"Content-Length: {len(body)}"]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class _Connection(asyncio.Protocol):
    def __init__(self, request: bytes, load: _Load) -> None:
        self._request = request
        self._load = load
        self._received = bytearray()
        self._expected_bytes = 0
        self._transport: asyncio.Transport | None = None
        self._finished = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        if not self._expected_bytes:
            end = received.find(b"\r\n\r\n")
            if end < 0:
                return
            head = bytes(received[:end]).lower()
            length = head.partition(b"content-length:")[2].partition(b"\r\n")[0]
            if head[9:12] not in {b"200", b"204"} or not (length or head[9:12] == b"204"):
                self._load.fail(bytes(received[:_SHOWN_BYTES]).decode(errors="replace"))
                return
            self._expected_bytes = end + 4 + int(length or 0)
        if len(received) < self._expected_bytes:
            return
        self._load.answer = bytes(received)
        received.clear()
        self._expected_bytes = 0
        assert self._transport is not None
        if self._load.answered():
            self._transport.write(self._request)
        else:
            self._finished = True
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._load.left(None if self._finished else exc or EOFError("no complete response was received"))


class _Load:
    def __init__(self, connections: int, seconds: float, requests_max: int | None) -> None:
        self.answer = b""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.requests = 0
        self.timeout_s = seconds + ANSWER_TIMEOUT_S
        self._until = time.perf_counter() + seconds
        self._requests_max = requests_max
        self._open = connections

    def answered(self) -> bool:
        self.requests += 1
        if self._requests_max is not None and self.requests >= self._requests_max:
            return False
        return time.perf_counter() < self._until

    def fail(self, why: str) -> None:
        if not self.done.done():
            self.done.set_exception(CommandFailed(f"the HTTP server sent an unexpected response: {why}"))

    def left(self, error: Exception | None) -> None:
        """Note that a connection has ended: after its last response (None), or with an error."""
        self._open -= 1
        if not self.done.done() and (error is not None or not self._open):
            if error is None:
                self.done.set_result(None)
            else:
                self.done.set_exception(CommandFailed(f"the server closed a connection: {error}"))


async def closed_loop(port: int, *requests: bytes, connections: int, seconds: float) -> LoadRun:
    """Send a request on each connection, and again on every response, for `seconds`.

    Several requests are distributed over the connections in turn.

    Raises:
        CommandFailed: the status of a response is neither 200 nor 204, or the server closes a connection before
            its last response.
        TimeoutError: responses are still missing `ANSWER_TIMEOUT_S` after the end.
    """
    load = _Load(connections, seconds, None)
    began = time.perf_counter()
    await _run(load, port, requests, connections)
    return LoadRun(load.requests, time.perf_counter() - began)


async def answer_to(port: int, request: bytes) -> bytes:
    """Send a request once and return the body of the response.

    Raises:
        CommandFailed: the status is neither 200 nor 204, or the server closes the connection before the response.
        TimeoutError: the response did not arrive within `ANSWER_TIMEOUT_S`.
    """
    load = _Load(1, 0.0, 1)
    await _run(load, port, [request], 1)
    return load.answer.partition(b"\r\n\r\n")[2]


async def _run(load: _Load, port: int, requests: Sequence[bytes], connections: int) -> None:
    loop = asyncio.get_running_loop()
    transports: list[asyncio.Transport] = []
    try:
        for number in range(connections):
            make = partial(_Connection, requests[number % len(requests)], load)
            transport, _protocol = await loop.create_connection(make, "127.0.0.1", port)
            transports.append(transport)
        async with asyncio.timeout(load.timeout_s):
            await load.done
    finally:
        for transport in transports:
            transport.abort()
