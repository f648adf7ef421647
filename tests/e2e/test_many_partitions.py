"""Tens of thousands of partitions on a node that is a process: created, killed meanwhile, and idle."""

from __future__ import annotations

import asyncio
import contextlib
import os
import urllib.request
from pathlib import Path
from typing import Final

import pytest

from tidelog import Client
from tidelog.errors import TidelogError
from tidelog_cli.up.child_processes import Child, running
from tidelog_loadtest.measure.footprint import cpu_s
from tidelog_loadtest.node.partition_curves import CurvesPlan, partition_curves

pytestmark = pytest.mark.e2e

PARTITIONS: Final = 20_000
TRIES: Final = 8
SHARE_MAX: Final = 0.05
"""Maximum share of a core of an idle node."""
FILES_MAX: Final = 150
PAGE_BYTES_MAX: Final = 256 * 1024


def node_in(directory: Path, **settings: int) -> contextlib.AbstractAsyncContextManager[Child]:
    environ = os.environ | {f"TIDELOG_NODE_{name.upper()}": str(value) for name, value in settings.items()}
    arguments = ("node", "--data", str(directory), "--port", "0", "--management-port", "0")
    return running("node", arguments, environ=environ)


async def test_a_node_that_is_killed_during_a_creation_has_the_whole_topic_or_none(tmp_path: Path) -> None:
    data, found = tmp_path / "node", list[int]()
    for number in range(TRIES + 1):
        async with node_in(data) as node, Client(f"127.0.0.1:{node.ready['port']}") as client:
            found = [len(topic.partitions) for topic in await client.topics()]
            assert set(found) <= {PARTITIONS}, "a topic has some of its partitions"
            if number == TRIES:
                return
            creation = asyncio.create_task(client.create_topic(f"t{number}", partitions=PARTITIONS))
            await asyncio.wait([creation], timeout=0.04 * number)
            node.process.kill()
            await node.process.wait()
            creation.cancel()
            with contextlib.suppress(TidelogError, asyncio.CancelledError):
                await creation
    raise AssertionError(f"the last round does not return, topics {found}")


async def test_partitions_that_are_not_used_cost_no_files_and_hardly_any_time(tmp_path: Path) -> None:
    result = await partition_curves(CurvesPlan((PARTITIONS,), seconds=0.5, idle_s=4.0, data=tmp_path))
    (point,) = result.points
    assert point.open_files < FILES_MAX
    assert point.core_share < SHARE_MAX
    assert point.killed_core_share < SHARE_MAX
    assert point.metrics_bytes < PAGE_BYTES_MAX


async def test_open_partitions_cost_hardly_any_time_and_their_topic_one_line_of_metrics(tmp_path: Path) -> None:
    used = 500
    async with (
        node_in(tmp_path / "node", metrics_partitions_max=400) as node,
        Client(f"127.0.0.1:{node.ready['port']}") as client,
    ):
        await client.create_topic("t", partitions=PARTITIONS, flush="never")
        async with client.producer("t") as producer:
            for first in range(0, used, 250):
                await asyncio.gather(*(producer.send(b"x", partition=first + each) for each in range(250)))
        url = f"http://127.0.0.1:{node.ready['management_port']}/metrics"
        page = await asyncio.to_thread(lambda: urllib.request.urlopen(url).read().decode())
        assert len(page) < PAGE_BYTES_MAX
        assert f'tidelog_topic_high_watermarks{{topic="t"}} {used}.0' in page
        await asyncio.sleep(2)
        before_s = cpu_s(node.process.pid)
        await asyncio.sleep(4)
        assert cpu_s(node.process.pid) - before_s < 4 * SHARE_MAX
