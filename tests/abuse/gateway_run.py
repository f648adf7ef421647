"""The same as `tests.abuse.run` for the routes of a gateway and the messages of its WebSockets; see there."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

from tests.abuse import stops
from tests.abuse.gateway_requests import HTTP
from tests.abuse.http_sender import HttpSender
from tests.abuse.known_costs import known_ms
from tests.abuse.measured import COUNTED, LONG_S, Measured, kept, own_cpu_s, settled, tell, watched
from tests.abuse.polite import Polite, polite
from tests.abuse.probe import Probe
from tests.abuse.stand import GATEWAY_BUDGET_BYTES, Stand, gateway
from tests.abuse.ws_requests import MESSAGES, Ask, ws_asking
from websockets.exceptions import WebSocketException

ALONE_TIMEOUT_S: Final = 120.0
STOPPED: Final = ("POST records: 10,000 records of 700 bytes", "GET topic: 4,096 partitions")
"""Routes of which the flood consists in which the gateway ends."""

Asking = Callable[[], AbstractAsyncContextManager[Ask]]
"""Opens a connection that sends one request after the other."""


@asynccontextmanager
async def http_asking(port: int, data: bytes) -> AsyncIterator[Ask]:
    """Open a connection that sends an HTTP request."""
    sender = await HttpSender.connect(port)

    async def ask() -> str:
        return str(await sender.ask(data))

    try:
        yield ask
    finally:
        sender.close()


async def alone(asking: Asking, probe: Probe, found: Measured) -> None:
    """Measure one request on a quiet gateway: some after a first one, which opens connections."""
    for number in range(1 + COUNTED):
        async with asking() as ask:
            idle = await settled(probe)
            before, began_s = probe.read(), time.monotonic()
            async with watched(probe) as peak, asyncio.timeout(ALONE_TIMEOUT_S):
                found.errors = await ask()
                took_s = time.monotonic() - began_s
                await asyncio.sleep(0.05)
            after = probe.read()
            cpu_s = await own_cpu_s(probe, after.cpu_s - before.cpu_s, time.monotonic() - began_s, idle)
            if number:
                found.note_alone(took_s, cpu_s, after, peak.grown_bytes)
            if number and took_s > LONG_S:
                break


async def flood(asking: Asking, found: Measured, answers: Counter[str]) -> None:
    """Send a request again and again, over a new connection where one ends."""
    while True:
        try:
            async with asking() as ask:
                while True:
                    answers[await ask()] += 1
                    found.answered += 1
        except (ConnectionError, asyncio.IncompleteReadError, WebSocketException):
            await asyncio.sleep(0.05)


async def flooded(
    beside: Polite, probe: Probe, asking: Asking, found: Measured, *, seconds: float, connections: int
) -> None:
    """Measure the polite principal alone, then during a flood."""
    found.quiet_s, found.failed = await beside.measure(seconds / 2)
    probe.reset()
    answers: Counter[str] = Counter()
    floods = [asyncio.create_task(flood(asking, found, answers)) for _ in range(connections)]
    try:
        async with watched(probe) as peak:
            found.flooded_s, failed = await beside.measure(seconds)
        found.failed += failed
        found.flood_stall_s, found.flood_bytes = probe.read().stall_s, peak.grown_bytes
    finally:
        for task in floods:
            task.cancel()
        await asyncio.gather(*floods, return_exceptions=True)
    found.errors = ",".join(sorted(answers))


async def judged(
    directory: Path, stand: Stand, only: list[str], *, seconds: float, connections: int, as_json: bool
) -> int:
    """Measure the requests whose names contain one of the texts; return how many exceed a limit."""
    faults = 0
    async with gateway(directory, stand) as (child, probe):
        port = child.ready["http_port"]
        async with polite("gateway", port, stand.keys["quiet"]) as beside:
            for name, asking in _chosen(stand, port, only):
                bounds = {"seconds": seconds, "connections": connections}
                measured = partial(_measured, name, asking, probe, beside, **bounds)  # type: ignore[arg-type]
                faults += not await kept(measured, as_json=as_json)
        if not only or any(text in stops.GATEWAY for text in only):
            found = Measured(stops.GATEWAY)
            answers: Counter[str] = Counter()
            routes = [partial(http_asking, port, HTTP[route](stand)) for route in STOPPED for _ in range(2)]
            await stops.stopped(child, [partial(flood, asking, found, answers) for asking in routes], found)
            tell(found, as_json=as_json)
            faults += bool(found.faults())
    return faults


async def _measured(
    name: str, asking: Asking, probe: Probe, beside: Polite, *, seconds: float, connections: int
) -> Measured:
    """Measure one kind of request alone, and in a flood."""
    found = Measured(name, budget_bytes=GATEWAY_BUDGET_BYTES, known_s=known_ms(name) / 1e3)
    try:
        await alone(asking, probe, found)
        if seconds:
            await flooded(beside, probe, asking, found, seconds=seconds, connections=connections)
    except TimeoutError:
        found.late.append("was not answered in time")
    return found


def _chosen(stand: Stand, port: int, only: list[str]) -> Iterator[tuple[str, Asking]]:
    for name in (*HTTP, *MESSAGES):
        if not only or any(text in name for text in only):
            if name in HTTP:
                yield name, partial(http_asking, port, HTTP[name](stand))
            else:
                yield name, partial(ws_asking, stand, port, MESSAGES[name])
