"""How far a publish runs through the code: Python calls and files at the client, the owner and each follower.

Each publish is counted by itself, and of each function the least of many counts is taken, which leaves out timers
and gossip. The numbers are bounds: one that is lowered stays low, and one that is passed wants a reason.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest
from tests.e2e.counted_calls import NAMES, Bound, Counting, Least, NodeThread, running_nodes

from tidelog import Client
from tidelog_broker.core.replication.ports import Timing
from tidelog_broker.replication import log_writer, replicas

pytestmark = pytest.mark.e2e

RECORDS: Final = 1000
WARM: Final = 50
COUNTED: Final = 20
COUNTED_MAX: Final = 400
TRIES: Final = 3
HEARTBEAT_MS: Final = 500
SETTLE_S: Final = 0.02
"""The followers are done with a publish a little after the client has its answer."""

BOUNDS: Final = {"client": Bound(78, 19), "owner": Bound(190, 30), "follower": Bound(78, 21)}
"""ADR 0177 to 0179 and 0184 list what is left. Where the answers of an owner's followers come one by one in all
samples, it makes one step more."""


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, NodeThread]]:
    """Run nodes whose timers are rare: on a slow machine a counted publish takes longer than a usual heartbeat."""
    monkeypatch.setattr(replicas, "Timing", partial(Timing, heartbeat_ms=HEARTBEAT_MS))
    with running_nodes(tmp_path) as nodes:
        yield nodes


async def owner_of(client: Client) -> str:
    return (await client.topic("t")).partitions[0].owner


async def count(client: Client, nodes: dict[str, NodeThread], least: dict[str, Least], roles: dict[str, str]) -> None:
    """Publish until all have been seen within their bounds, or for long enough."""
    columns = pa.record_batch({"value": pa.array([b"x" * 100] * RECORDS, pa.binary())})
    own = Counting()
    async with client.producer("t") as producer:
        for _ in range(WARM):
            await producer.send_arrow(columns, partition=0)
        for at in range(COUNTED_MAX):
            for node in nodes.values():
                await node.run(node.counting.begin)
            own.begin()
            await producer.send_arrow(columns, partition=0)
            least["client"].see(own.end())
            await asyncio.sleep(SETTLE_S)
            for name, node in nodes.items():
                least[name].see(await node.run(node.counting.end))
            if at >= COUNTED and all(least[name].found.within(BOUNDS[role]) for name, role in roles.items()):
                break  # on a busy machine messages come in more pieces, and it takes longer to see one undisturbed


async def test_a_publish_makes_no_more_calls_in_no_more_files_than_it_did(
    nodes: dict[str, NodeThread], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_writer, "SLOW_S", math.inf)  # the way through a worker is another one
    monkeypatch.setattr(log_writer, "SLOW_S_PER_BYTE", math.inf)
    addresses = ",".join(node.address for node in nodes.values())
    least: dict[str, Least] = {}
    roles: dict[str, str] = {}
    async with Client(addresses) as client:
        await client.create_topic("t", flush="never", replication_factor=3)
        for _ in range(TRIES):
            owner = await owner_of(client)
            roles = {name: "owner" if name == owner else "follower" for name in NAMES} | {"client": "client"}
            least = {name: Least() for name in ("client", *NAMES)}
            await count(client, nodes, least, roles)
            if await owner_of(client) == owner:
                break  # else it was taken over meanwhile, as happens on a busy machine
    for name, role in roles.items():
        print(f"{role} {least[name].found}\n{least[name]}")
    for name, role in roles.items():
        found, bound = least[name].found, BOUNDS[role]
        assert found.within(bound), role
        assert found.calls > bound.calls * 2 // 3, f"{role}: not all calls were counted, or the bound can be lowered"
