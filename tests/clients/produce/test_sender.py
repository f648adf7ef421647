"""Sending of batches. Failures are tested in test_partition_queue.py and test_producer.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.clients.fake_node import Do, FakeNode, running_fake_node
from tests.clients.fake_partition import FakePartition

from tidelog.cluster import owner_changes
from tidelog.cluster.connection_pool import ConnectionPool, Identity
from tidelog.cluster.routing import Router
from tidelog.errors import OutcomeUnknownError
from tidelog.produce import sender as module
from tidelog.produce.batches import ColumnChunk
from tidelog.produce.partition_queue import PartitionQueue, QueueOptions
from tidelog.produce.sender import Sender
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.columns import columns_of


@pytest.fixture
async def router(node: FakeNode) -> AsyncIterator[Router]:
    pool = ConnectionPool(Identity("test", "test", 5.0))
    router = Router([("127.0.0.1", node.port)], pool, request_timeout_s=5.0)
    yield router
    await router.close()


@pytest.fixture
async def sender(node: FakeNode, router: Router) -> AsyncIterator[Sender]:
    sender = Sender(router, "wide", acks=pb.ALL, loop=asyncio.get_running_loop(), clock_us=lambda: 5)
    sender.topic_id = node.topics["wide"].topic_id
    yield sender
    await sender.close()


def queues_of(count: int, *, batch_bytes: int = 10) -> list[PartitionQueue]:
    return [PartitionQueue(number, QueueOptions(producer_id=3, batch_bytes=batch_bytes)) for number in range(count)]


def chunk(queue: PartitionQueue, value: bytes = b"v") -> ColumnChunk:
    deadline = asyncio.get_running_loop().time() + 60.0
    made = ColumnChunk(columns_of([value]), partition=queue.partition, deadline=deadline, size_bytes=10)
    queue.add(made)
    return made


async def test_queues_share_a_frame_with_one_batch_each(node: FakeNode, sender: Sender) -> None:
    queues = queues_of(4)
    chunks = [chunk(queue) for queue in queues for _ in range(2)]
    for queue in queues:
        sender.wake(queue)
        sender.wake(queue)
    await asyncio.gather(*chunks)
    first = [[entry[0] for entry in publish] for publish in node.publishes]
    # The queues get the connection one after the other, so the first frame may have fewer batches.
    assert sorted(number for publish in first for number in publish) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert all(len(set(publish)) == len(publish) for publish in first)
    again = [chunk(queue) for queue in queues]
    for queue in queues:
        sender.wake(queue)
    await asyncio.gather(*again)
    assert [entry[0] for entry in node.publishes[-1]] == [0, 1, 2, 3]


async def test_frame_size_is_bounded(
    node: FakeNode, router: Router, sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FRAME_BYTES_TARGET", 5000)
    await router.connection("wide", 0)
    queues = queues_of(4)
    chunks = [chunk(queue, b"x" * 2000) for queue in queues]
    for queue in queues:
        sender.wake(queue)
    await asyncio.gather(*chunks)
    assert [len(publish) for publish in node.publishes] == [2, 2]


async def test_batches_stay_queued_while_the_connection_accepts_nothing(
    node: FakeNode, router: Router, sender: Sender
) -> None:
    connection = await router.connection("wide", 0)
    connection.pause_writing()
    (queue,) = queues_of(1)
    waiting = chunk(queue)
    sender.wake(queue)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert queue.in_flight == 0
    connection.resume_writing()
    await waiting


async def test_request_has_acks_and_timeout(node: FakeNode, sender: Sender) -> None:
    seen: list[pb.Publish] = []

    def look(publish: pb.Publish) -> Do:
        seen.append(publish)
        return Do.STORE

    node.script.append(look)
    (queue,) = queues_of(1)
    waiting = chunk(queue)
    sender.wake(queue)
    await waiting
    assert seen[0].acks == pb.ALL
    assert seen[0].timeout_ms == 5000


async def test_a_closed_sender_sends_nothing_more(node: FakeNode, sender: Sender) -> None:
    (queue,) = queues_of(1)
    chunk(queue)
    sender.wake(queue)
    await sender.close()
    await asyncio.sleep(0)
    sender.wake(queue)
    await asyncio.sleep(0)
    assert queue.in_flight == 0
    assert node.publishes == []


# -------------------------------------------------------------------------------------------- a partition that moves


@pytest.fixture
async def heir() -> AsyncIterator[FakeNode]:
    """A node that becomes the next owner of the partition."""
    async with running_fake_node() as heir:
        heir.node_id = "heir"
        yield heir


async def publish_and_move(
    node: FakeNode, heir: FakeNode, router: Router, sender: Sender
) -> tuple[PartitionQueue, ColumnChunk]:
    """Leave a batch unanswered at `node`, and make `heir` the owner of its partition."""
    node.hold = asyncio.Event()
    (queue,) = queues_of(1)
    waiting = chunk(queue, b"first")
    sender.wake(queue)
    await node.received("publish")
    node.others = [pb.NodeInfo(node_id="heir", host="127.0.0.1", port=heir.port)]
    node.owner_of, node.epoch = {0: "heir"}, 1
    await router.refresh("wide")
    await router.connection("wide", 0)
    return queue, waiting


async def test_new_owner_gets_nothing_while_the_old_one_may_answer(
    node: FakeNode, heir: FakeNode, router: Router, sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner_changes, "GRACE_S", 60.0)
    queue, first = await publish_and_move(node, heir, router, sender)
    second = chunk(queue, b"second")
    sender.wake(queue)
    await router.call(await router.connection("wide", 0), pb.Envelope(cluster_status=pb.ClusterStatus()))
    assert heir.publishes == []
    assert node.hold is not None
    node.hold.set()
    await asyncio.gather(first, second)
    assert heir.publishes[0] == [(0, 1, 1)]


async def test_late_answer_to_abandoned_batch_is_ignored(
    node: FakeNode, heir: FakeNode, router: Router, sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.cluster.owner_changes.GRACE_S", 0.0)
    heir.hold = asyncio.Event()
    queue, waiting = await publish_and_move(node, heir, router, sender)
    await heir.received("publish")
    assert node.hold is not None
    node.hold.set()
    await router.call(await router.pool.get(("127.0.0.1", node.port)), pb.Envelope(cluster_status=pb.ClusterStatus()))
    assert not waiting.done
    assert queue.in_flight == 1
    heir.hold.set()
    await waiting
    assert heir.publishes == node.publishes, "the same batch with the same sequence number"


async def test_batch_in_flight_at_close_is_settled(node: FakeNode, router: Router, sender: Sender) -> None:
    node.script.append(Do.SILENT_BEFORE)
    (queue,) = queues_of(1)
    waiting = chunk(queue)
    sender.wake(queue)
    await node.received("publish")
    await sender.close()
    node.drop_connections()
    with pytest.raises(OutcomeUnknownError, match="closed"):
        await waiting


async def test_newer_epoch_in_answer_refreshes_metadata(
    node: FakeNode, router: Router, sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[tuple[str, int, int]] = []
    epoch = node.epoch
    append = FakePartition.append

    def append_in(partition: FakePartition, data: bytes) -> pb.PublishResult:
        result = append(partition, data)
        result.epoch = epoch
        return result

    monkeypatch.setattr(FakePartition, "append", append_in)
    monkeypatch.setattr(router, "stored_in", lambda *said: heard.append(said))
    (queue,) = queues_of(1)
    for expected in ([], [("wide", 0, node.epoch + 1)]):
        made = chunk(queue)
        sender.wake(queue)
        await made
        assert heard == expected
        epoch += 1
    monkeypatch.undo()
    asked = node.requests.count("metadata")
    router.stored_in("wide", 0, node.epoch)
    router.stored_in("wide", 0, node.epoch + 1)
    await router.refresh("wide")  # joins a running refresh
    assert node.requests.count("metadata") == asked + 1
