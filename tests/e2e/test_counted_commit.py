"""How many Python calls the commit of one position takes at the nodes: the client asks the coordinator directly."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from tests.e2e.counted_calls import Bound, Least, NodeThread, running_nodes

from tidelog import Client
from tidelog_broker.replication import log_writer
from tidelog_proto.names import OFFSETS_TOPIC

pytestmark = pytest.mark.e2e

COORDINATOR: Final = Bound(300, 57)
WARM: Final = 30
COUNTED: Final = 15
COUNTED_MAX: Final = 200
SETTLE_S: Final = 0.02


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[dict[str, NodeThread]]:
    with running_nodes(tmp_path) as nodes:
        yield nodes


async def test_commit_goes_to_its_coordinator(nodes: dict[str, NodeThread], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_writer, "SLOW_S", math.inf)  # a write on a worker takes other calls
    monkeypatch.setattr(log_writer, "SLOW_S_PER_BYTE", math.inf)
    async with Client(",".join(node.address for node in nodes.values())) as client:
        await client.create_topic("t", flush="never", replication_factor=3)
        await client.producer("t").send_many([b"x"] * 1000)
        least = {name: Least() for name in nodes}
        for offset in range(WARM):
            await client.commit("g", "t", {0: offset})
        coordinator = (await client.topic(OFFSETS_TOPIC)).partitions[0].owner
        for at in range(COUNTED_MAX):
            for node in nodes.values():
                await node.run(node.counting.begin)
            await client.commit("g", "t", {0: WARM + at})
            await asyncio.sleep(SETTLE_S)
            for name, node in nodes.items():
                least[name].see(await node.run(node.counting.end))
            if at >= COUNTED and least[coordinator].found.within(COORDINATOR):
                break
    for name in nodes:
        print(name, name == coordinator, least[name].found, f"\n{least[name]}")
    assert least[coordinator].found.within(COORDINATOR)
    handlers = [name for name in least if "server/handlers/commit.py" in str(least[name])]
    assert handlers == [coordinator], "only the coordinator handles the request"
