"""Large requests are processed in slices, charged to their caller, and end with their connection."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from tests.broker.peer import Peer, batch
from tests.broker.stand import Stand, settled

from tidelog_broker.core.request_costs import BATCH_US, BATCHES_PER_PIECE, PARTITION_BATCHES
from tidelog_broker.node.node import Node
from tidelog_broker.partition.pipeline import Pipeline, QueuedBatch
from tidelog_broker.partition.reader import PartitionReader
from tidelog_broker.server.handlers.publish import SLICE_PARTITIONS
from tidelog_broker.wire import quota_account
from tidelog_broker.wire.connection import Connection, Request
from tidelog_broker.wire.read_turns import TURN_BYTES, WORK_BYTES_PER_US
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.limits import BATCHES_PER_PUBLISH_MAX, ENTRIES_PER_REQUEST_MAX

ENTRIES = ENTRIES_PER_REQUEST_MAX
LATER_US = 1 << 60
TURN_BATCHES_MAX = TURN_BYTES // (WORK_BYTES_PER_US * BATCH_US) + BATCHES_PER_PIECE
"""The batches that fit into a caller's turn of reading, including the piece that ends it."""


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
async def test_large_request_yields_to_other_callers(
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


async def test_closed_connection_ends_its_work(stand: Stand, node: Node, looked: list[int]) -> None:
    one = await stand.peer()
    topic_id = (await one.create()).topic_id
    await one.publish(topic_id, batch(b"x"))
    for _ in range(4):
        one.post(list_offsets=look_ups(topic_id, timestamp_us=LATER_US))
    await settled(lambda: bool(looked), "nothing was looked up")
    one.writer.transport.abort()
    await settled(lambda: node.broker.bounds.open_connections == 0, "the connection is still open")
    await node.server.requests_finished()
    assert len(looked) < ENTRIES


async def test_request_that_ends_early_is_freed_at_once(stand: Stand, node: Node, looked: list[int]) -> None:
    """Cycles of thousands of objects are freed by a full collection only, which blocks the event loop."""
    one = await stand.peer()
    topic_id = (await one.create()).topic_id
    await one.publish(topic_id, batch(b"x"))
    gc.collect()
    gc.disable()
    try:
        one.post(list_offsets=look_ups(topic_id, timestamp_us=LATER_US))
        await settled(lambda: bool(looked), "nothing was looked up")
        one.writer.transport.abort()
        await settled(lambda: node.broker.bounds.open_connections == 0, "the connection is still open")
        await node.server.requests_finished()
        await settled(lambda: not any(type(each) is Request for each in gc.get_objects()), "the request is in a cycle")
    finally:
        gc.enable()


@pytest.mark.usefixtures("node")
async def test_stopping_node_ends_work_in_pieces(stand: Stand, looked: list[int]) -> None:
    one = await stand.peer()
    topic_id = (await one.create()).topic_id
    await one.publish(topic_id, batch(b"x"))
    number = one.post(list_offsets=look_ups(topic_id, timestamp_us=LATER_US))
    await settled(lambda: bool(looked), "nothing was looked up")
    await stand.stop()
    assert len(looked) < ENTRIES
    assert (await one.reply(number)).envelope.error.code == pb.SHUTTING_DOWN


async def test_reading_pauses_while_much_work_is_pending(
    stand: Stand, node: Node, looked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quota_account, "WORK_US_MAX", 1_000)
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
    await node.server.requests_finished()
    assert connection.work_us == 0


async def test_large_request_has_the_results_of_small_ones(peer: Peer) -> None:
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


def publish(topic_id: bytes, *, timeout_ms: int = 0) -> tuple[bytes, pb.Publish]:
    """Return a publish of as many batches as there may be, each with its number as its record."""
    batches = [batch(b"%d" % number) for number in range(BATCHES_PER_PUBLISH_MAX)]
    entries = [pb.PublishEntry(topic_id=topic_id, length=len(each)) for each in batches]
    return b"".join(batches), pb.Publish(entries=entries, timeout_ms=timeout_ms)


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the batches that are queued in each turn of the event loop."""
    turns: list[int] = []
    submit = Pipeline.submit
    is_counting = False

    def ended() -> None:
        nonlocal is_counting
        is_counting = False

    def noting(self: Pipeline, pending: QueuedBatch) -> None:
        nonlocal is_counting
        if not is_counting:
            is_counting = True
            turns.append(0)
            asyncio.get_running_loop().call_soon(ended)
        turns[-1] += 1
        submit(self, pending)

    monkeypatch.setattr(Pipeline, "submit", noting)
    return turns


async def test_publish_of_many_batches_is_queued_in_pieces_in_order(peer: Peer, submitted: list[int]) -> None:
    topic_id = (await peer.create()).topic_id
    attachment, asked = publish(topic_id)
    numbers = [peer.post(attachment, publish=asked), peer.post(attachment, publish=asked)]
    small = batch(b"x")
    entry = pb.PublishEntry(topic_id=topic_id, length=len(small))
    last = peer.post(small, publish=pb.Publish(entries=[entry]))
    replies = [(await peer.reply(number)).envelope.publish_reply.results for number in (*numbers, last)]
    found = [result.base_offset for results in replies for result in results]
    assert found == list(range(2 * BATCHES_PER_PUBLISH_MAX + 1)), "batches are stored in the order in which they came"
    assert max(submitted) <= TURN_BATCHES_MAX


async def test_slices_of_a_publish_to_many_partitions_are_smaller_and_charged(
    peer: Peer, submitted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    partitions = 4 * SLICE_PARTITIONS
    topic_id = (await peer.create(partitions=partitions)).topic_id
    charged: list[int] = []
    took = Connection.took

    def noting(self: Connection, size_bytes: int) -> None:
        charged.append(size_bytes)
        took(self, TURN_BYTES)  # one slice a turn

    monkeypatch.setattr(Connection, "took", noting)
    small = batch(b"x")
    entries = [pb.PublishEntry(topic_id=topic_id, partition=number, length=len(small)) for number in range(partitions)]
    await peer.ask(small * partitions, publish=pb.Publish(entries=entries))
    assert max(submitted) <= 2 * SLICE_PARTITIONS, "the second turn starts before the first iteration ends"
    weight = SLICE_PARTITIONS + PARTITION_BATCHES * (SLICE_PARTITIONS - 1)
    assert charged.count(WORK_BYTES_PER_US * BATCH_US * weight) == 3, "the first slice was charged before it began"


async def test_closed_connection_drops_the_rest_of_a_publish(
    stand: Stand, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await stand.peer()
    topic_id = (await one.create()).topic_id
    queued = 0
    submit = Pipeline.submit

    def noting(self: Pipeline, pending: QueuedBatch) -> None:
        nonlocal queued
        queued += 1
        if queued == 1:
            (connection,) = node.server.connections
            connection.cut_off()
        submit(self, pending)

    monkeypatch.setattr(Pipeline, "submit", noting)
    attachment, asked = publish(topic_id)
    one.post(attachment, publish=asked)
    await settled(lambda: not node.server.connections, "the connection is still open")
    await settled(lambda: node.broker.bounds.budget.used_bytes == 0, "its share was not given back")
    assert 0 < queued <= TURN_BATCHES_MAX


async def test_publish_of_a_throttled_caller_is_finished(
    stand: Stand, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quota_account, "WORK_US_MAX", 1_000)
    one = await stand.peer()
    topic_id = (await one.create()).topic_id
    attachment, asked = publish(topic_id)
    numbers = [one.post(attachment, publish=asked) for _ in range(4)]
    for number in numbers:
        results = (await one.reply(number)).envelope.publish_reply.results
        assert not any(result.HasField("error") for result in results)
    (connection,) = node.server.connections
    assert connection.work_us == 0
