"""The same as `tests.abuse.run` for the routes of a gateway; see there."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from tests.abuse.gateway_requests import HTTP, request
from tests.abuse.measured import Measured, p99, settled, tell, watched
from tests.abuse.probe import Probe
from tests.abuse.stand import Stand, gateway

ALONE_TIMEOUT_S: Final = 120.0
PER_S: Final = 20
POLITE: Final = b'{"records":[{"value":"polite"}]}'


class Sender:
    """A connection that sends HTTP requests, one after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, port: int) -> Sender:
        """Connect."""
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 24))

    async def ask(self, data: bytes) -> int:
        """Send a request and return the status of its answer, which is read to its end."""
        self.writer.write(data)
        await self.writer.drain()
        head = await self._reader.readuntil(b"\r\n\r\n")
        fields = dict(line.split(b": ", 1) for line in head.lower().split(b"\r\n")[1:] if b": " in line)
        await self._reader.readexactly(int(fields.get(b"content-length", b"0")))
        return int(head.split(b" ", 2)[1])


async def alone(port: int, probe: Probe, data: bytes, found: Measured) -> None:
    """Measure one request on a quiet gateway: the second of two, since the first one opens what is still closed."""
    for _ in range(2):
        sender = await Sender.connect(port)
        await settled(probe)
        before, began_s = probe.read(), time.monotonic()
        async with watched(probe) as peak, asyncio.timeout(ALONE_TIMEOUT_S):
            found.errors = str(await sender.ask(data))
            found.alone_s = time.monotonic() - began_s
            await asyncio.sleep(0.05)
        after = probe.read()
        found.cpu_s, found.stall_s, found.wall_s = after.cpu_s - before.cpu_s, after.stall_s, after.wall_s
        found.memory_bytes = peak.grown_bytes
        sender.writer.close()


async def polite(stand: Stand, port: int, seconds: float, found: Measured) -> float:
    """Publish a record now and then; return the p99 of how long each took from when it was due, in seconds."""
    data = request(stand, "POST /v1/topics/quiet/records", POLITE, principal="quiet")
    senders = [await Sender.connect(port) for _ in range(4)]
    loop = asyncio.get_running_loop()
    times_s: list[float] = []
    for sender in senders:
        await sender.ask(data)
    began_s = loop.time()

    async def send(number: int, sender: Sender, lock: asyncio.Lock) -> None:
        due_s = began_s + number / PER_S
        await asyncio.sleep(due_s - loop.time())
        async with lock:
            found.failed += await sender.ask(data) != 200
        times_s.append(loop.time() - due_s)

    locks = [asyncio.Lock() for _ in senders]
    count = int(PER_S * seconds)
    await asyncio.gather(*(send(number, senders[number % 4], locks[number % 4]) for number in range(count)))
    for sender in senders:
        sender.writer.close()
    return p99(times_s)


async def flood(port: int, data: bytes, found: Measured, answers: Counter[int]) -> None:
    """Send a request again and again, over a new connection where one ends."""
    while True:
        sender = await Sender.connect(port)
        try:
            while True:
                answers[await sender.ask(data)] += 1
                found.answered += 1
        except (ConnectionError, asyncio.IncompleteReadError):
            await asyncio.sleep(0.05)
        finally:
            sender.writer.transport.abort()


async def flooded(
    stand: Stand, port: int, probe: Probe, data: bytes, found: Measured, *, seconds: float, connections: int
) -> None:
    """Measure the polite principal alone, then beside a flood."""
    found.quiet_s = await polite(stand, port, seconds / 2, found)
    probe.reset()
    answers: Counter[int] = Counter()
    floods = [asyncio.create_task(flood(port, data, found, answers)) for _ in range(connections)]
    try:
        async with watched(probe) as peak:
            found.flooded_s = await polite(stand, port, seconds, found)
        found.flood_stall_s, found.flood_bytes = probe.read().stall_s, peak.grown_bytes
    finally:
        for task in floods:
            task.cancel()
        await asyncio.gather(*floods, return_exceptions=True)
    found.errors = ",".join(map(str, sorted(answers)))


async def judged(
    directory: Path, stand: Stand, only: list[str], *, seconds: float, connections: int, as_json: bool
) -> int:
    """Measure the routes whose names contain one of the texts; return how many break a bound."""
    faults = 0
    async with gateway(directory, stand) as (child, probe):
        port = child.ready["http_port"]
        for route, made in _chosen(only):
            found, data = Measured(route), made(stand)
            try:
                await alone(port, probe, data, found)
                if seconds:
                    bounds = {"seconds": seconds, "connections": connections}
                    await flooded(stand, port, probe, data, found, **bounds)  # type: ignore[arg-type]
            except TimeoutError:
                found.failed += 1
            faults += bool(found.faults())
            tell(found, as_json=as_json)
    return faults


def _chosen(only: list[str]) -> Iterator[tuple[str, Callable[[Stand], bytes]]]:
    for route, made in HTTP.items():
        if not only or any(text in route for text in only):
            yield route, made
