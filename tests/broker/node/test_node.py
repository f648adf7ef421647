from __future__ import annotations

import asyncio
import socket
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.broker.peer import Peer, batch
from tests.broker.stand import Stand, settled

from tidelog_broker.broker import Broker
from tidelog_broker.core.topics import META_TOPIC_ID
from tidelog_broker.node.node import Node
from tidelog_broker.partition.compaction import Compaction
from tidelog_broker.partition.retention import Retention
from tidelog_broker.storage.io.errors import DamagedError, LimboError, NodeDirLockedError
from tidelog_broker.storage.io.workers import WorkersFullError
from tidelog_broker.storage.node import node_dir
from tidelog_broker.storage.node.node_dir import open_node_dir
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.limits import MIB
from tidelog_proto.wire.frames import encode_frame


@pytest.mark.parametrize("flush", [pb.ALWAYS, pb.INTERVAL, pb.NEVER])
@pytest.mark.parametrize("end", ["stop", "crash"])
async def test_restart_keeps_all_data(stand: Stand, end: str, flush: pb.Flush) -> None:
    """Offsets, records, producer state, group positions: kill -9 loses no written data."""
    await stand.start()
    peer = await stand.peer()
    topic = await peer.create(partitions=2, flush=flush)
    data = [batch(b"%d" % number, producer_id=9, sequence=number) for number in range(10)]
    for one in data:
        await peer.publish(topic.topic_id, one)
    await peer.publish(topic.topic_id, batch(b"other"), partition=1)
    commit = pb.Commit(group="g", entries=[pb.CommitEntry(topic_id=topic.topic_id, next_offset=4)])
    await peer.ask(commit=commit)
    identity = (stand.node.node_id, stand.node.broker.cluster_id)
    incarnation = stand.node.incarnation
    await getattr(stand, end)()

    node = await stand.start()
    assert (node.node_id, node.broker.cluster_id) == identity
    assert node.incarnation > incarnation
    peer = await stand.peer()
    assert await peer.read_all(topic.topic_id) == [b"%d" % number for number in range(10)]
    assert await peer.read_all(topic.topic_id, partition=1) == [b"other"]
    (again,) = await peer.publish(topic.topic_id, data[-1])
    assert (again.duplicate, again.base_offset) == (True, 9)
    (fresh,) = await peer.publish(topic.topic_id, batch(b"10", producer_id=9, sequence=10))
    assert fresh.base_offset == 10
    position = (await peer.ask(committed=pb.Committed(group="g"))).envelope.committed_reply.results[0]
    assert position.next_offset == 4


@pytest.mark.parametrize("name", ["fences", "journal"])
async def test_node_without_a_journal_does_not_start(stand: Stand, name: str) -> None:
    await stand.start()
    peer = await stand.peer()
    await peer.publish((await peer.create()).topic_id, batch(b"0"))
    await stand.stop()
    (stand.path / "meta" / name).unlink()
    for _ in range(2):
        with pytest.raises(DamagedError, match=f"meta/{name} is missing.*promised.*--replace"):
            await stand.start()
        assert not (stand.path / "meta" / name).exists()


async def test_stop_waits_for_pending_publishes(stand: Stand, node: Node, peer: Peer) -> None:
    topic = await peer.create()
    await peer.publish(topic.topic_id, batch(b"0"))
    stand.disk.hold("sync")
    numbers = [peer.post_publish(topic.topic_id, batch(b"%d" % number)) for number in range(1, 6)]
    await stand.disk.held_up()
    partition = node.broker.partitions.get(topic.topic_id, 0)
    await settled(lambda: len(partition.pipeline._queue) == 4, "the batches did not gather")
    stopping = asyncio.create_task(stand.stop())
    await settled(lambda: node.lifecycle.stopping, "the stop did not begin")
    late = (await peer.refused(publish=pb.Publish())).code
    peer.send_raw(encode_frame(pb.Envelope(credit=pb.Credit(subscription_id=1, records=1))))
    await peer.refused(publish=pb.Publish())  # the node has taken the credit by now
    assert peer.events.empty(), "an error about no request would say that the connection ends"
    stand.disk.heal()
    offsets = [(await peer.published(number))[0].base_offset for number in numbers]
    assert await stopping == 0
    assert offsets == [1, 2, 3, 4, 5]
    assert late == pb.SHUTTING_DOWN
    await peer.closed()
    assert '"stopped_cleanly": true' in (stand.path / "node.json").read_text()
    await stand.start()
    assert len(await (await stand.peer()).read_all(topic.topic_id)) == 6


async def test_interrupted_request_is_answered_with_unknown_outcome(stand: Stand, node: Node, peer: Peer) -> None:
    topic = await peer.create()
    stand.disk.hold("sync", "__offsets")
    entry = pb.CommitEntry(topic_id=topic.topic_id, next_offset=0)
    commit = peer.post(commit=pb.Commit(group="g", entries=[entry]))
    await stand.disk.held_up()
    await node.broker.tasks.cancel()
    error = (await peer.reply(commit)).envelope.error
    assert (error.code, error.definite) == (pb.TIMED_OUT, False)
    stand.disk.heal()


async def test_stop_answers_long_polls_and_pending_writes(stand: Stand, node: Node, peer: Peer) -> None:
    topic = await peer.create()
    other = await stand.peer()
    poll = other.post_fetch(topic.topic_id, min_bytes=1, wait_ms=60_000)
    partition = node.broker.partitions.get(topic.topic_id, 0)
    await settled(lambda: bool(partition.changes.listeners), "the fetch does not wait")
    stand.disk.hold("sync", "__offsets")
    entry = pb.CommitEntry(topic_id=topic.topic_id, next_offset=0)
    commit = peer.post(commit=pb.Commit(group="g", entries=[entry]))
    await stand.disk.held_up()
    stopping = asyncio.create_task(stand.stop())
    await settled(lambda: node.lifecycle.stopping, "the stop did not begin")
    stand.disk.heal()
    assert (await other.reply(poll)).envelope.fetch_reply.results[0].length == 0
    assert (await peer.reply(commit)).envelope.commit_reply.results[0].found
    assert await stopping == 0


async def test_stop_without_writes_answers_long_polls(stand: Stand, node: Node, peer: Peer) -> None:
    topic = await peer.create()
    poll = peer.post_fetch(topic.topic_id, min_bytes=1, wait_ms=60_000)
    partition = node.broker.partitions.get(topic.topic_id, 0)
    await settled(lambda: bool(partition.changes.listeners), "the fetch does not wait")
    assert await stand.stop() == 0
    assert (await peer.reply(poll)).envelope.fetch_reply.results[0].length == 0


async def test_late_stop_leaves_unknown_outcomes_unanswered(stand: Stand) -> None:
    """Waiting batches are refused, the batch being written gets no answer, and the log is closed properly."""
    node = await stand.start(stop_timeout_ms=50)
    peer = await stand.peer()
    topic = await peer.create()
    await peer.publish(topic.topic_id, batch(b"0"))
    stand.disk.hold("sync")
    writing = peer.post_publish(topic.topic_id, batch(b"1"))
    await stand.disk.held_up()
    waiting = peer.post_publish(topic.topic_id, batch(b"2"))
    partition = node.broker.partitions.get(topic.topic_id, 0)
    await settled(lambda: len(partition.pipeline._queue) == 1, "the batch did not wait")
    stopping = asyncio.create_task(stand.stop())
    assert (await peer.published(waiting))[0].error.code == pb.SHUTTING_DOWN
    await peer.closed()
    with pytest.raises(ConnectionResetError):
        await peer.published(writing)
    stand.disk.heal()
    assert await stopping == 0
    await stand.start()
    assert (await (await stand.peer()).read_all(topic.topic_id)) == [b"0", b"1"]


async def test_client_that_does_not_read_cannot_delay_a_stop(stand: Stand) -> None:
    node = await stand.start(stop_timeout_ms=200)
    peer = await stand.peer()
    topic = await peer.create(flush=pb.NEVER)
    for _ in range(12):
        await peer.publish(topic.topic_id, batch(b"x" * MIB))
    deaf = await stand.peer(reading=False)
    deaf.post(hello=pb.Hello(version=1, client_id="deaf"))
    for _ in range(6):
        deaf.post_fetch(topic.topic_id, max_bytes=4 * MIB)
    await settled(lambda: any(not one.is_writable for one in node.server.connections), "the backlog did not grow")
    assert await stand.stop() == 0
    await settled(lambda: not node.server.connections, "a connection outlives its node")


async def test_port_in_use_is_an_error_and_keeps_the_directory_usable(stand: Stand) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for setting in ("port", "management_port"):
            with pytest.raises(OSError, match=r"(?i)in use"):
                await stand.start(**{setting: port})
            stand.settings.clear()
    assert not list(stand.path.rglob("epoch-*")), "a start that fails begins no epoch: each try would begin another"
    node = await stand.start()
    assert node.broker.partitions.get(META_TOPIC_ID, 0).state.epoch == 1
    assert (await (await stand.peer()).create()).name == "t"


async def test_directory_is_locked_by_one_node(stand: Stand, node: Node) -> None:
    with pytest.raises(NodeDirLockedError, match="in use by process"):
        open_node_dir(stand.path)
    await stand.stop()
    open_node_dir(stand.path).close()


@pytest.mark.parametrize("end", ["crash", "stop"])
async def test_machine_restart_logs_topics_with_possible_data_loss(
    stand: Stand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, end: str
) -> None:
    """Only for topics that do not sync before they acknowledge, and only after an unclean stop."""
    monkeypatch.setattr(node_dir, "BOOT_ID", boot_id := tmp_path / "boot_id")
    boot_id.write_text("one")
    await stand.start()
    peer = await stand.peer()
    for name, flush in (("lazy", pb.NEVER), ("timed", pb.INTERVAL), ("safe", pb.ALWAYS)):
        topic = await peer.create(name, flush=flush)
        await peer.publish(topic.topic_id, batch(b"a", b"b"))
    told = ["lazy", "timed"] if end == "crash" else []
    for boot, expected in (("one", []), ("two", told), ("two", [])):
        await getattr(stand, end)()
        boot_id.write_text(boot)
        caplog.clear()
        await stand.start()
        lost = [text for text in caplog.messages if "DATA_LOSS" in text]
        assert [name for name in ("lazy", "timed", "safe") if f"'{name}'" in "".join(lost)] == expected
        assert all(text.endswith("end at the offsets 2") for text in lost)


async def test_failed_start_keeps_the_restart_mark(
    stand: Stand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(node_dir, "BOOT_ID", boot_id := tmp_path / "boot_id")
    boot_id.write_text("one")
    await stand.start()
    peer = await stand.peer()
    topic = await peer.create("lazy", flush=pb.NEVER)
    await peer.publish(topic.topic_id, batch(b"a", b"b"))
    await stand.crash()
    boot_id.write_text("two")
    open_node_dir(stand.path).close()  # as far as a start gets whose port is in use
    for expected in (True, False):
        caplog.clear()
        await stand.start()
        assert any("DATA_LOSS" in text for text in caplog.messages) == expected
        await stand.crash()


async def test_stop_may_be_requested_twice(stand: Stand, node: Node) -> None:
    node.lifecycle.ask_to_stop()
    assert await stand.stop() == 0


async def test_start_with_damaged_topics_is_reported_and_repairable(stand: Stand) -> None:
    await stand.start()
    await (await stand.peer()).create("first")
    await (await stand.peer()).create("second")
    await stand.stop()
    (segment,) = (stand.path / "partitions").glob("__meta*/epoch-*/*.seg")
    good = segment.read_bytes()
    damaged = bytearray(good)
    damaged[damaged.index(b"TLRB") + 200] ^= 1
    segment.write_bytes(damaged)
    with pytest.raises(Exception, match="damaged"):
        await stand.start()
    segment.write_bytes(good)
    node = await stand.start()
    assert {"first", "second"} <= {record.name for record in node.broker.topics.live()}


async def publish_on(peer: Peer, topic_id: bytes, acknowledged: list[int]) -> None:
    """Publish one record after the other as one producer, noting the offsets that were acknowledged."""
    while True:
        sequence = len(acknowledged)
        (result,) = await peer.publish(topic_id, batch(b"%d" % sequence, producer_id=7, sequence=sequence))
        assert not result.HasField("error"), result.error
        acknowledged.append(result.base_offset)


def reached(acknowledged: list[int], target: int, tasks: list[asyncio.Task[None]]) -> bool:
    return len(acknowledged) >= target or any(task.done() for task in tasks)


async def stir(peer: Peer, topic_id: bytes, start: int) -> None:
    """Subscribe, then make and delete topics, fetch and commit, on and on."""
    entry = pb.SubscribeEntry(topic_id=topic_id)
    await peer.ask(subscribe=pb.Subscribe(subscription_id=1, entries=[entry], credit_records=10**6, credit_bytes=10**9))
    number = 0
    while True:
        number += 1
        await peer.create(f"x-{start}-{number}")
        await peer.fetch(topic_id, 0)
        position = pb.CommitEntry(topic_id=topic_id, next_offset=number % 3)
        await peer.ask(commit=pb.Commit(group="g", entries=[position]))
        await peer.delete(f"x-{start}-{number}")


@pytest.mark.parametrize("flush", [pb.ALWAYS, pb.INTERVAL, pb.NEVER])
async def test_node_recovers_from_crashes_at_any_point(stand: Stand, flush: pb.Flush) -> None:
    """Publishes, fetches, subscriptions, commits and topic changes are cut off; acknowledged publishes are kept."""
    acknowledged: list[int] = []
    await stand.start()
    topic_id = (await (await stand.peer()).create(flush=flush)).topic_id
    for start in range(3):
        target = len(acknowledged) + 20
        tasks = [
            asyncio.create_task(publish_on(await stand.peer(), topic_id, acknowledged)),
            asyncio.create_task(stir(await stand.peer(), topic_id, start)),
        ]
        await settled(partial(reached, acknowledged, target, tasks), "nothing is acknowledged")
        await stand.crash()
        for task in tasks:
            task.cancel()
        for error in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(error, (asyncio.CancelledError, ConnectionError)), error
        await stand.start()
    values = await (await stand.peer()).read_all(topic_id)
    assert acknowledged == list(range(len(acknowledged)))
    assert len(acknowledged) >= 60
    # Unacknowledged records of the last start may exist; the next producer's retry finds them as duplicates.
    assert values[: len(acknowledged)] == [b"%d" % number for number in range(len(acknowledged))]
    assert len(values) <= len(acknowledged) + 1


async def test_starting_node_answers_clients_with_a_retriable_error(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    recover, reached, go_on = Broker.recover, asyncio.Event(), asyncio.Event()

    async def slowly(self: Broker) -> None:
        reached.set()
        await go_on.wait()
        await recover(self)

    monkeypatch.setattr(Broker, "recover", slowly)
    starting = asyncio.create_task(stand.start())
    await reached.wait()
    peer = await stand.peer()
    error = await peer.refused(topic_list=pb.TopicList())
    assert (error.code, error.retriable, error.definite) == (pb.EPOCH_CHANGING, True, True)
    go_on.set()
    await starting
    assert (await peer.create()).name == "t"


@pytest.mark.parametrize("kind", [Retention, Compaction])
@pytest.mark.parametrize("fault", [WorkersFullError("full"), LimboError("damaged")], ids=["workers full", "damaged"])
async def test_partition_checks_continue_after_a_failure(
    stand: Stand, monkeypatch: pytest.MonkeyPatch, kind: type[Retention | Compaction], fault: Exception
) -> None:
    """Else nothing would be deleted, or compacted, on this node for as long as it runs."""
    looks = 0
    usual = kind.check

    async def fails_first(self: Any) -> None:
        nonlocal looks
        looks += 1
        if looks == 1:
            raise fault
        await usual(self)

    monkeypatch.setattr(kind, "check", fails_first)
    await stand.start(retention_interval_ms=10)
    await (await stand.peer()).create(cleanup=pb.COMPACT)
    await settled(lambda: looks > 3, "there is no second look")
