"""How long a process takes to end (SIGTERM) while it works on the largest requests there are."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

from tests.abuse.measured import Measured, tell
from tests.abuse.node_requests import LARGEST
from tests.abuse.polite import polite
from tests.abuse.stand import STOP_TIMEOUT_S, Stand, environment

from tidelog import Client
from tidelog_cli.up.child_processes import Child, running
from tidelog_cli.up.local_cluster import prepare

NODE: Final = "SIGTERM of a node in a flood"
GATEWAY: Final = "SIGTERM of a gateway in a flood"
CLUSTER: Final = "SIGTERM of a node of three in a flood"
STOP_MORE_S: Final = 5.0
"""For the end of the process itself, on a busy machine."""
FLOODED_S: Final = 1.0
"""How long the flood lasts before the process is to end."""
BUSY: Final = (
    "list_offsets: 4,096 by time",
    "publish: 1,024 batches",
    "fetch: 4,096 partitions",
    "commit: 4,096 positions",
)
"""Kinds of which the floods consist, a connection each."""

Flood = Callable[[], Awaitable[Any]]


async def stopped(child: Child, floods: Sequence[Flood], found: Measured) -> None:
    """Flood a process, have it end, and note how long that took."""
    tasks = [asyncio.create_task(_flooding(flood)) for flood in floods]
    await asyncio.sleep(FLOODED_S)
    began_s = time.monotonic()
    child.process.terminate()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(10 * STOP_TIMEOUT_S):
            await child.process.wait()
    found.alone_s = time.monotonic() - began_s
    if found.alone_s > STOP_TIMEOUT_S + STOP_MORE_S or child.process.returncode != 0:
        found.late.append(f"ended with code {child.process.returncode} after {found.alone_s:.1f} s")
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _flooding(flood: Flood) -> None:
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, OSError):
        await flood()


async def node_stopped(stand: Stand, flood: Callable[[Iterator[bytes]], Awaitable[Any]], *, as_json: bool) -> int:
    """Stop the node; return 1 if that takes longer than it may."""
    found = Measured(NODE)
    frames = [LARGEST[kind](stand) for kind in BUSY]
    await stopped(stand.child, [_bound(flood, each) for each in frames], found)
    tell(found, as_json=as_json)
    return bool(found.faults())


def _bound(flood: Callable[[Iterator[bytes]], Awaitable[Any]], frames: Iterator[bytes]) -> Flood:
    return lambda: flood(frames)


async def cluster_stopped(
    directory: Path, flood: Callable[[int, Iterator[bytes]], Awaitable[Any]], *, seconds: float, as_json: bool
) -> int:
    """Stop one of three nodes while others publish, which must continue; return 1 if a limit is exceeded."""
    found = Measured(CLUSTER)
    async with cluster(directory / "cluster") as (children, ports), AsyncExitStack() as stack:
        async with Client([f"127.0.0.1:{port}" for port in ports]) as admin:
            topics = {
                name: (await admin.create_topic(name, partitions=count, flush="never")).topic_id
                for name, count in (("quiet", 1), ("flood", 1), ("sink", 1), ("wide", 256))
            }
            async with admin.producer("flood") as producer:
                await producer.send_many([b"%d" % number for number in range(1_000)])
        beside = await stack.enter_async_context(polite("node", ports[1], ""))
        child = children[0]
        stand = Stand(child, None, ports[0], {}, topics)
        measuring = asyncio.create_task(beside.measure(seconds + 4 * FLOODED_S))
        floods = [_at(flood, ports[0], LARGEST[kind](stand)) for kind in BUSY]
        await stopped(child, floods, found)
        found.flooded_s, found.failed = await measuring
        found.flooded_s = 0.0  # the time of a change of owners is judged elsewhere
    tell(found, as_json=as_json)
    return bool(found.faults())


def _at(flood: Callable[[int, Iterator[bytes]], Awaitable[Any]], port: int, frames: Iterator[bytes]) -> Flood:
    return lambda: flood(port, frames)


@asynccontextmanager
async def cluster(directory: Path) -> AsyncIterator[tuple[list[Child], list[int]]]:
    """Run three nodes without authentication."""
    nodes = prepare(directory, nodes=3, port=0, first_port=0, management_ports=[0])
    async with AsyncExitStack() as stack:
        started = []
        for each in nodes:
            log = stack.enter_context((directory / f"{each.node_id}.log").open("ab"))
            run = running(each.node_id, each.command, log=log, environ=environment())
            started.append(stack.enter_async_context(run))
        children = await asyncio.gather(*started)
        yield list(children), [each.port for each in nodes]


assert all(kind in LARGEST for kind in BUSY)
