"""The polite principal, in a process of its own: `python -m tests.abuse.polite SIDE PORT`, its key in `ABUSE_KEY`.

It shares no event loop with the flood: latency that the flood's own process causes is not the server's. For each line
of standard input, a number of seconds, it sends small requests when they are due for as long, and writes one line: the
p99 of the time from when each was due to its answer, in seconds, and how many failed.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import uvloop
from tests.abuse.http_sender import HttpSender
from tests.abuse.measured import p99
from tests.abuse.stand import environment

from tidelog import Client
from tidelog_proto.tls.reloaded_files import TlsFiles, client_context

KEY_VARIABLE: Final = "ABUSE_KEY"
ADDRESS: Final = "127.0.0.3"
"""Where connections of TLS come from."""
NODE_PER_S: Final = 50
GATEWAY_PER_S: Final = 20
HANDSHAKES_PER_S: Final = 10
GATEWAY_CONNECTIONS: Final = 4
MEASURE_MORE_S: Final = 60.0
"""Timeout of unanswered requests after the last request was due."""

Sending = Callable[[], Awaitable[None]]
"""Sends one request and waits for its answer; raises if that is not a success."""


class Polite:
    """The process, as the suite sees it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def measure(self, seconds: float) -> tuple[float, int]:
        """Return the p99 of polite requests over so many seconds, and how many of them failed.

        Raises:
            TimeoutError: some were not answered within `MEASURE_MORE_S` more.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{seconds}\n".encode())
        async with asyncio.timeout(seconds + MEASURE_MORE_S):
            line = await self._process.stdout.readline()
        found = json.loads(line)
        return float(found["p99_s"]), int(found["failed"])


@asynccontextmanager
async def polite(side: str, port: int, secret: str) -> AsyncIterator[Polite]:
    """Start the process; `side` is "node" or "gateway" with an API key, or "tls" with the path of a CA's file."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.abuse.polite", side, str(port),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, env=environment() | {KEY_VARIABLE: secret},
    )  # fmt: skip
    try:
        yield Polite(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(5.0):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


# --- in the process ----------------------------------------------------------------------------------------


async def _measured(send: Sending, seconds: float, per_s: int) -> tuple[float, int]:
    loop = asyncio.get_running_loop()
    times_s: list[float] = []
    failed = 0

    async def one(due_s: float) -> None:
        nonlocal failed
        try:
            await send()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is counted
            failed += 1
            sys.stderr.write(f"polite: {error!r}\n")
        times_s.append(loop.time() - due_s)

    await send()
    began_s = loop.time()
    async with asyncio.TaskGroup() as group:
        for number in range(max(1, int(per_s * seconds))):
            due_s = began_s + number / per_s
            await asyncio.sleep(due_s - loop.time())
            group.create_task(one(due_s))
    return p99(times_s), failed


@asynccontextmanager
async def _at_node(port: int, secret: str) -> AsyncIterator[Sending]:
    async with Client(f"127.0.0.1:{port}", api_key=secret or None) as client:
        producer = client.producer("quiet")

        async def send() -> None:
            await producer.send(bytes(100))

        yield send


@asynccontextmanager
async def _at_gateway(port: int, secret: str) -> AsyncIterator[Sending]:
    body = b'{"records":[{"value":"polite"}]}'
    head = (
        f"POST /v1/topics/quiet/records HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {secret}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    async with AsyncExitStack() as stack:
        free: asyncio.Queue[HttpSender] = asyncio.Queue()
        for _ in range(GATEWAY_CONNECTIONS):
            sender = await HttpSender.connect(port)
            stack.callback(sender.close)
            free.put_nowait(sender)

        async def send() -> None:
            sender = await free.get()
            try:
                status = await sender.ask(head.encode() + body)
            finally:
                free.put_nowait(sender)
            if status != 200:
                raise RuntimeError(f"status {status}")

        yield send


@asynccontextmanager
async def _handshakes(port: int, secret: str) -> AsyncIterator[Sending]:
    context: ssl.SSLContext = client_context(TlsFiles(ca=Path(secret)))

    async def send() -> None:
        _, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=context, server_hostname="127.0.0.1", local_addr=(ADDRESS, 0)
        )
        writer.transport.abort()

    yield send


_SIDES: Final = {
    "node": (_at_node, NODE_PER_S),
    "gateway": (_at_gateway, GATEWAY_PER_S),
    "tls": (_handshakes, HANDSHAKES_PER_S),
}


async def _run(side: str, port: int, secret: str) -> None:
    connected, per_s = _SIDES[side]
    lines = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        async with connected(port, secret) as send:
            p99_s, failed = await _measured(send, float(line), per_s)
        sys.stdout.write(json.dumps({"p99_s": p99_s, "failed": failed}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    uvloop.run(_run(sys.argv[1], int(sys.argv[2]), os.environ[KEY_VARIABLE]))
