"""Requests of many entries are worked through in pieces, charged to their caller, and dropped with their connection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from tests.broker.peer import Peer, batch
from tests.broker.stand import Stand, settled

from tidelog_broker.node.node import Node
from tidelog_broker.partition.reader import PartitionReader
from tidelog_broker.wire import account
from tidelog_broker.wire.connection import Connection, Request
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.limits import ENTRIES_PER_REQUEST_MAX

ENTRIES = ENTRIES_PER_REQUEST_MAX
LATER_US = 1 << 60


def look_ups(topic_id: bytes, **at: Any) -> pb.ListOffsets:
    return pb.ListOffsets(entries=[pb.ListOffsetsEntry(topic_id=topic_id, **at)] * ENTRIES)


def fetch(topic_id: bytes) -> dict[str, Any]:
    return {"fetch": pb.Fetch(entries=[pb.FetchEntry(topic_id=topic_id)] * ENTRIES, max_bytes=1)}


def latest(topic_id: bytes) -> dict[str, Any]:
    return {"list_offsets": look_ups(topic_id, latest=True)}


def subscribe(topic_id: bytes) -> dict[str, Any]:
    entries = [pb.SubscribeEntry(topic_id=topic_id)] * ENTRIES
    return {"subscribe": pb.Subscribe(subscription_id=1, entries=entries)}


def committed(topic_id: bytes) -> dict[str, Any]:
    entries = [pb.CommittedEntry(topic_id=topic_id, partition=number) for number in range(ENTRIES)]
    return {"committed": pb.Committed(group="g", entries=entries)}


@pytest.fixture
def turns_of_loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], int]]:
    """Count the turns of the event loop between the dispatch of the last request and its answer."""
    ticks = began = ended = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    init, finish = Request.__init__, Connection.finish

    def begins(self: Request, *told: Any) -> None:
        nonlocal began
        began = ticks
        init(self, *told)

    def ends(self: Connection, *told: Any) -> None:
        nonlocal ended
        ended = ticks
        finish(self, *told)

    monkeypatch.setattr(Request, "__init__", begins)
    monkeypatch.setattr(Connection, "finish", ends)
    ticking = asyncio.get_event_loop().create_task(tick())
    yield lambda: ended - began
    ticking.cancel()


@pytest.mark.parametrize("kind", [fetch, latest, subscribe, committed])
async def test_others_have_their_turn_in_the_middle_of_a_large_request(
    peer: Peer, turns_of_loop: Callable[[], int], kind: Callable[[bytes], dict[str, Any]]
) -> None:
    topic_id = (await peer.create()).topic_id
    await peer.publish(topic_id, batch(b"x"))
    await peer.ask(committed=pb.Committed(group="g"))  # the group's log is open
    await peer.ask(**kind(topic_id))
    assert turns_of_loop() > 10


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note each look-up by time."""
    found: list[int] = []
    find: Callable[[PartitionReader, int], Awaitable[tuple[int, int] | None]] = PartitionReader.find_by_time

    async def noting(self: PartitionReader, timestamp_us: int) -> tuple[int, int] | None:
        found.append(timestamp_us)
        return await find(self, timestamp_us)

    monkeypatch.setattr(PartitionReader, "find_by_time", noting)
    return found


async def test_work_ends_when_its_connection_is_gone(stand: Stand, node: Node, looked: list[int]) -> None:
    one = await stand.peer()
    topic_id = (await one.create()).topic_id
    await one.publish(topic_id, batch(b"x"))
    for _ in range(4):
        one.post(list_offsets=look_ups(topic_id, timestamp_us=LATER_US))
    await settled(lambda: bool(looked), "nothing was looked up")
    one.writer.transport.abort()
    await settled(lambda: node.broker.bounds.open_connections == 0, "the connection is still open")
    await node.server.worked_off()
    assert len(looked) < ENTRIES


@pytest.mark.usefixtures("node")
async def test_work_ends_when_the_node_stops(stand: Stand, looked: list[int]) -> None:
    one = await stand.peer()
    topic_id = (await one.create()).topic_id
    await one.publish(topic_id, batch(b"x"))
    number = one.post(list_offsets=look_ups(topic_id, timestamp_us=LATER_US))
    await settled(lambda: bool(looked), "nothing was looked up")
    await stand.stop()
    assert len(looked) < ENTRIES
    assert (await one.reply(number)).envelope.error.code == pb.SHUTTING_DOWN


async def test_no_more_is_read_while_much_is_being_worked_on(
    stand: Stand, node: Node, looked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(account, "WORK_US_MAX", 1_000)
    one = await stand.peer()
    topic_id = (await one.create()).topic_id
    await one.publish(topic_id, batch(b"x"))
    numbers = [one.post(list_offsets=look_ups(topic_id, timestamp_us=LATER_US)) for _ in range(8)]
    await settled(lambda: bool(looked), "nothing was looked up")
    (connection,) = node.server.connections
    assert connection.requests_in_flight < len(numbers)
    assert connection.work_us > 1_000
    one.writer.transport.abort()
    await settled(lambda: not node.server.connections, "the connection is still open")
    await node.server.worked_off()
    assert connection.work_us == 0


async def test_the_results_of_a_large_request_are_those_of_small_ones(peer: Peer) -> None:
    topic_id = (await peer.create(partitions=3)).topic_id
    for partition in range(3):
        await peer.publish(topic_id, *[batch(b"x", timestamps_us=[100 + n]) for n in range(4)], partition=partition)
    entries = [
        pb.ListOffsetsEntry(topic_id=topic_id, partition=number % 3, timestamp_us=99 + number % 6)
        for number in range(900)
    ]
    reply = (await peer.ask(list_offsets=pb.ListOffsets(entries=entries))).envelope.list_offsets_reply
    found = [(result.offset, result.found) for result in reply.results]
    assert found == [(min(4, max(0, number % 6 - 1)), number % 6 < 5) for number in range(900)]
