"""A node as its own process, and clients that flood it with questions: it stays small and serves others.

How fast the polite client is served is compared with how fast it was served alone, in the same minute on the same
machine. Clients that do not read their answers have a test of their own (`test_never_reading`).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from tests.broker.peer import Peer, batch, connected
from tests.e2e.test_hostile_clients import RealNode, running
from tests.e2e.test_never_reading import anonymous_bytes, deaf_client

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.limits import ENTRIES_PER_REQUEST_MAX, MIB

pytestmark = pytest.mark.e2e

BUDGET_BYTES: Final = 64 * MIB
GROUPS_MAX: Final = 2000
QUIET_S: Final = 1.5
FLOOD_S: Final = 4.0
FLOOR_S: Final = 1.0
"""Limit of a polite request: three times the slowest of a hundred on a quiet node, or three times this."""
FLOODS: Final = 24


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RealNode]:
    monkeypatch.setenv("TIDELOG_NODE_NODE_OUTGOING_BYTES", str(BUDGET_BYTES))
    monkeypatch.setenv("TIDELOG_NODE_GROUPS_MAX", str(GROUPS_MAX))
    with running(tmp_path, monkeypatch) as started:
        yield started


async def names(node: RealNode, topic_id: bytes, number: int) -> None:
    """Ask for as many missing topics at once as allowed."""
    del topic_id
    asked = [f"flood.{number}.{at}" for at in range(ENTRIES_PER_REQUEST_MAX)]
    async with connected(node.port) as peer:
        while True:
            reply = (await peer.ask(metadata=pb.Metadata(topics=asked))).envelope.metadata_reply
            assert reply.topics[0].error.code == pb.UNKNOWN_TOPIC


async def groups(node: RealNode, topic_id: bytes, number: int) -> None:
    """Commit for many invented groups, one after the other, and read the positions."""
    async with connected(node.port) as peer:
        for at in range(10**9):
            group = f"flood.{number}.{at}"
            entry = pb.CommitEntry(topic_id=topic_id, next_offset=0)
            await peer.ask(commit=pb.Commit(group=group, entries=[entry]))
            await peer.ask(committed=pb.Committed(group=group))


async def pings(node: RealNode, topic_id: bytes, number: int) -> None:
    """Ask small questions again and again, and read no answer."""
    del topic_id, number
    peer = await deaf_client(node.port)
    try:
        while not peer.writer.is_closing():
            for _ in range(5):  # the polite client shares this process, so that the flood must leave it some time
                peer.post(metadata=pb.Metadata())
            await asyncio.sleep(0.05)
    finally:
        peer.writer.transport.abort()


async def polite(peer: Peer, topic_id: bytes, seconds: float) -> list[float]:
    """Publish and fetch for a while; return how long each took."""
    took_s: list[float] = []
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while loop.time() < end:
        began = time.monotonic()
        (result,) = await peer.publish(topic_id, batch(b"polite"))
        assert not result.HasField("error")
        assert await peer.fetch(topic_id, result.base_offset)
        took_s.append(time.monotonic() - began)
        await asyncio.sleep(0.005)
    return took_s


def p99(took_s: list[float]) -> float:
    return sorted(took_s)[len(took_s) * 99 // 100]


Flood = Callable[[RealNode, bytes, int], Awaitable[None]]


@pytest.mark.long
@pytest.mark.parametrize("flood", [names, groups, pings], ids=lambda flood: flood.__name__)
async def test_a_flood_keeps_to_the_budget_and_others_are_served(node: RealNode, flood: Flood) -> None:
    async with connected(node.port) as peer:
        topic_id = (await peer.create("t", flush=pb.NEVER)).topic_id
        quiet_s = await polite(peer, topic_id, QUIET_S)
        before_bytes = anonymous_bytes(node)
        flooding = [asyncio.ensure_future(flood(node, topic_id, number)) for number in range(FLOODS)]
        try:
            took_s = await polite(peer, topic_id, FLOOD_S)
            grown_bytes = anonymous_bytes(node) - before_bytes
            failed = [task.exception() for task in flooding if task.done() and not task.cancelled()]
        finally:
            for task in flooding:
                task.cancel()
            for task in flooding:
                with contextlib.suppress(asyncio.CancelledError):
                    await task
    assert failed in ([], [None] * len(failed))
    assert grown_bytes <= 1.25 * BUDGET_BYTES, f"{grown_bytes / MIB:.0f} MiB"
    assert p99(took_s) <= 3 * max(p99(quiet_s), FLOOR_S)
