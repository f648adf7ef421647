"""The same as `tests.abuse.run` for the routes of a gateway; see there."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final

from tests.abuse.gateway_requests import HTTP
from tests.abuse.http_sender import HttpSender
from tests.abuse.measured import Measured, settled, tell, watched
from tests.abuse.polite import Polite, polite
from tests.abuse.probe import Probe
from tests.abuse.stand import Stand, gateway

from tidelog_cli.children import Child

ALONE_TIMEOUT_S: Final = 120.0


async def alone(port: int, probe: Probe, data: bytes, found: Measured) -> None:
    """Measure one request on a quiet gateway: the second of two, since the first one opens what is still closed."""
    for _ in range(2):
        sender = await HttpSender.connect(port)
        await settled(probe)
        before, began_s = probe.read(), time.monotonic()
        async with watched(probe) as peak, asyncio.timeout(ALONE_TIMEOUT_S):
            found.errors = str(await sender.ask(data))
            found.alone_s = time.monotonic() - began_s
            await asyncio.sleep(0.05)
        after = probe.read()
        found.cpu_s, found.stall_s, found.wall_s = after.cpu_s - before.cpu_s, after.stall_s, after.wall_s
        found.memory_bytes = peak.grown_bytes
        sender.close()


async def flood(port: int, data: bytes, found: Measured, answers: Counter[int]) -> None:
    """Send a request again and again, over a new connection where one ends."""
    while True:
        sender = await HttpSender.connect(port)
        try:
            while True:
                answers[await sender.ask(data)] += 1
                found.answered += 1
        except (ConnectionError, asyncio.IncompleteReadError):
            await asyncio.sleep(0.05)
        finally:
            sender.close()


async def flooded(
    beside: Polite, port: int, probe: Probe, data: bytes, found: Measured, *, seconds: float, connections: int
) -> None:
    """Measure the polite principal alone, then beside a flood."""
    found.quiet_s, found.failed = await beside.measure(seconds / 2)
    probe.reset()
    answers: Counter[int] = Counter()
    floods = [asyncio.create_task(flood(port, data, found, answers)) for _ in range(connections)]
    try:
        async with watched(probe) as peak:
            found.flooded_s, failed = await beside.measure(seconds)
        found.failed += failed
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
    async with gateway(directory, stand) as (child, probe), _beside(child, stand) as beside:
        port = child.ready["http_port"]
        for route, made in _chosen(only):
            found, data = Measured(route), made(stand)
            try:
                await alone(port, probe, data, found)
                if seconds:
                    bounds = {"seconds": seconds, "connections": connections}
                    await flooded(beside, port, probe, data, found, **bounds)  # type: ignore[arg-type]
            except TimeoutError:
                found.failed += 1
            faults += bool(found.faults())
            tell(found, as_json=as_json)
    return faults


def _beside(child: Child, stand: Stand) -> AbstractAsyncContextManager[Polite]:
    return polite("gateway", child.ready["http_port"], stand.keys["quiet"])


def _chosen(only: list[str]) -> Iterator[tuple[str, Callable[[Stand], bytes]]]:
    for route, made in HTTP.items():
        if not only or any(text in route for text in only):
            yield route, made
