from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.broker.faulty_disk import GoneError
from tests.broker.peer import Peer, batch
from tests.broker.stand import Stand, settled

from tidelog_broker.core.replication.chain import EpochChain
from tidelog_broker.core.topics import PartitionKey
from tidelog_broker.node.node import Node
from tidelog_broker.replication.driver import ReplicaDriver
from tidelog_broker.replication.replicas import FIRST, PORTION, RECENTLY_MS, clock_ms
from tidelog_proto import broker_pb2 as pb


def chain_of(node: Node, topic_id: bytes, partition: int = 0) -> EpochChain:
    driver = node.broker.replication.get((topic_id, partition))
    assert driver is not None
    return driver.replica.state.chain


async def topic_with(stand: Stand, *values: bytes) -> bytes:
    peer = await stand.peer()
    topic = await peer.create()
    for value in values:
        await peer.publish(topic.topic_id, batch(value))
    return topic.topic_id


async def test_every_incarnation_opens_an_epoch_when_the_partition_is_first_used(stand: Stand) -> None:
    topic_id = b""
    for start in range(4):
        node = await stand.start()
        peer = await stand.peer()
        topic_id = topic_id or (await peer.create()).topic_id
        (result,) = await peer.publish(topic_id, batch(b"%d" % start))
        assert (result.epoch, result.base_offset) == (start, start)
        assert chain_of(node, topic_id).active.owner_incarnation == node.incarnation
        await (stand.crash() if start % 2 else stand.stop())
    await stand.start()
    assert await (await stand.peer()).read_all(topic_id) == [b"0", b"1", b"2", b"3"]


async def test_unused_partition_keeps_its_epoch(stand: Stand) -> None:
    await stand.start()
    topic_id = await topic_with(stand, b"a")
    for _ in range(3):
        await stand.restart()
    node = stand.node
    partition = node.broker.partitions.get(topic_id, 0)
    assert (partition.state.summary, partition.state.epoch) == ("sealed", 0)
    peer = await stand.peer()
    assert len(await peer.fetch(topic_id)) == 1
    assert (partition.state.summary, partition.state.epoch) == ("active", 1)


async def test_epochs_without_a_record_leave_no_directory_and_no_gap(stand: Stand) -> None:
    await stand.start()
    topic_id = await topic_with(stand, b"a")
    for _ in range(3):
        await stand.restart()
        await (await stand.peer()).fetch(topic_id)
    node = await stand.restart()
    peer = await stand.peer()
    (result,) = await peer.publish(topic_id, batch(b"b"))
    assert (result.epoch, result.base_offset) == (4, 1)
    epochs = sorted(path.name for path in node.broker.partitions.get(topic_id, 0).log.directory.glob("epoch-*"))
    assert epochs == ["epoch-00000000", "epoch-00000004"]
    assert await peer.read_all(topic_id) == [b"a", b"b"]


def die_at(stand: Stand, node: Node, step: int, when: str) -> list[int]:
    """Kill the node before or after the `step`-th append to a journal; return where the appends are counted."""
    count = [0]
    for writes in (node.broker.replication.chains._fence_writes, node.broker.replication.chains._chain_writes):

        def counted(entries: list[Any], append: Callable[[list[Any]], None] = writes._append) -> None:
            count[0] += 1
            if count[0] == step and when == "before":
                stand.disk.kill()
                raise GoneError
            append(entries)
            if count[0] == step:
                stand.disk.kill()
                raise GoneError

        writes._append = counted
    return count


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("used", [True, False])
@pytest.mark.parametrize("step", [1, 2, 3, 4])
async def test_crash_at_every_step_of_a_takeover_is_recovered(stand: Stand, used: bool, step: int, when: str) -> None:
    """It takes four journal appends: promise, accept, decision, the step into the next epoch."""
    await stand.start()
    topic_id = await topic_with(stand, *([b"a"] if used else []))
    node = await stand.restart()
    count = die_at(stand, node, step, when)
    peer = await stand.peer()
    peer.post_publish(topic_id, batch(b"lost"))
    await settled(lambda: count[0] >= step, "the take-over did not get that far")
    await stand.crash()

    for start in range(2):
        await stand.start()
        peer = await stand.peer()
        (result,) = await peer.publish(topic_id, batch(b"%d" % start))
        assert not result.HasField("error"), result.error
        assert await peer.read_all(topic_id) == [b"a"][: int(used)] + [b"0", b"1"][: start + 1]
        assert chain_of(stand.node, topic_id).active.owner_incarnation == stand.node.incarnation
        await stand.stop()


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_crash_before_a_new_partition_is_fenced_leaves_it_usable(stand: Stand, when: str) -> None:
    node = await stand.start()
    count = die_at(stand, node, 1, when)
    peer = await stand.peer()
    peer.post(topic_create=pb.TopicCreate(name="t"))
    await settled(lambda: count[0] >= 1, "nothing was fenced")
    await stand.crash()
    await stand.start()
    peer = await stand.peer()
    topic = (await peer.ask(topic_describe=pb.TopicDescribe(name="t"))).envelope.topic_reply.topics[0]
    assert not (await peer.publish(topic.topic_id, batch(b"x")))[0].HasField("error")
    assert await peer.read_all(topic.topic_id) == [b"x"]


async def publish(peer: Peer, topic_id: bytes, sequence: int, producer_id: int = 5) -> pb.PublishResult:
    (result,) = await peer.publish(topic_id, batch(b"%d" % sequence, producer_id=producer_id, sequence=sequence))
    return result


@pytest.mark.parametrize("end", ["stop", "crash"])
async def test_producers_are_known_exactly_after_a_restart(stand: Stand, end: str) -> None:
    await stand.start()
    peer = await stand.peer()
    topic_id = (await peer.create()).topic_id
    for sequence in range(12):
        await publish(peer, topic_id, sequence)
    await getattr(stand, end)()
    await stand.start()
    peer = await stand.peer()
    again = await publish(peer, topic_id, 11)
    assert (again.duplicate, again.base_offset, again.epoch) == (True, 11, 0)
    assert (await publish(peer, topic_id, 4)).base_offset == 4
    (other,) = await peer.publish(topic_id, batch(b"x", producer_id=5, sequence=11))
    assert other.error.code == pb.PRODUCER_ID_SHARED
    assert not other.error.retriable
    assert (await publish(peer, topic_id, 3)).error.code == pb.DUPLICATE_OUT_OF_WINDOW
    assert (await publish(peer, topic_id, 13)).error.code == pb.SEQUENCE_GAP
    fresh = await publish(peer, topic_id, 12)
    assert (fresh.duplicate, fresh.base_offset, fresh.epoch) == (False, 12, 1)


def copy_epochs(source: Path, target: Path) -> None:
    for path in source.glob("epoch-*"):
        shutil.copytree(path, target / path.name)


async def test_snapshot_ahead_of_a_truncated_log_is_ignored(stand: Stand, tmp_path: Path) -> None:
    """As after a power cut: the snapshot was synced, the log's tail was not. Then the log grows past it again."""
    node = await stand.start()
    peer = await stand.peer()
    topic_id = (await peer.create()).topic_id
    for sequence in range(3):
        await publish(peer, topic_id, sequence)
    directory = node.broker.partitions.get(topic_id, 0).log.directory
    copy_epochs(directory, tmp_path / "short")
    for sequence in range(3, 5):
        await publish(peer, topic_id, sequence)
    await stand.stop()
    assert list(directory.glob("producers-*5.snap"))
    shutil.rmtree(directory / "epoch-00000000")
    copy_epochs(tmp_path / "short", directory)

    await stand.start()
    peer = await stand.peer()
    assert (await publish(peer, topic_id, 2)).duplicate
    for sequence in range(5):
        assert (await publish(peer, topic_id, sequence, producer_id=6)).base_offset == 3 + sequence
    await stand.crash()
    await stand.start()
    peer = await stand.peer()
    assert (await publish(peer, topic_id, 4, producer_id=6)).base_offset == 7
    fresh = await publish(peer, topic_id, 3)
    assert (fresh.duplicate, fresh.base_offset) == (False, 8)


@pytest.mark.parametrize("end", ["stop", "crash"])
async def test_append_timestamps_never_decrease_over_a_restart(
    stand: Stand, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    await stand.start()
    peer = await stand.peer()
    topic_id = (await peer.create()).topic_id
    first = await publish(peer, topic_id, 0)
    await getattr(stand, end)()
    await stand.start()
    monkeypatch.setattr("tidelog_broker.replication.driver.time.time_ns", lambda: 1_000_000)
    second = await publish(await stand.peer(), topic_id, 1)
    assert second.append_timestamp_us >= first.append_timestamp_us


async def test_deadline_is_checked_shortly_after_a_publish(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    node = await stand.start()
    topic_id = await topic_with(stand, b"a")
    driver = node.broker.replication.get((topic_id, 0))
    assert driver is not None
    await settled(lambda: not driver.is_touched, "its deadline is never looked at")
    at_once: list[ReplicaDriver] = []
    later: list[ReplicaDriver] = []
    driver._schedule = at_once.append
    monkeypatch.setattr(node.broker.replication, "_schedule", later.append)
    peer = await stand.peer()
    for value in (b"b", b"c"):
        await peer.publish(topic_id, batch(value))
    await settled(lambda: bool(later) and not driver.is_touched, "its deadline is never looked at")
    assert driver in later
    assert at_once == []
    driver.tick()
    assert at_once == [driver]


async def test_liveness_changes_reach_replicas_in_portions_internal_topics_first(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await stand.start()
    peer = await stand.peer()
    count = 2 * PORTION
    topic_id = (await peer.create(partitions=count)).topic_id
    for partition in range(count):
        await peer.publish(topic_id, batch(b"a"), partition=partition)
    replication = node.broker.replication
    drivers = replication.all()[::-1]
    monkeypatch.setattr(replication, "all", lambda: drivers)  # in the order in which they were opened, as it may be
    now_ms = clock_ms(asyncio.get_running_loop())()
    assert all(now_ms - driver.written_ms < RECENTLY_MS for driver in drivers if driver.key[0] == topic_id)
    for number, driver in enumerate(drivers):
        driver.written_ms = now_ms - (number % 2) * 2 * RECENTLY_MS  # those of own topics, too
    own = {driver.key for driver in drivers if driver.key[0] in FIRST}
    assert own
    assert own.isdisjoint(driver.key for driver in drivers[: len(own)])
    told: list[PartitionKey] = []
    monkeypatch.setattr(ReplicaDriver, "liveness_changed", lambda driver: told.append(driver.key))
    replication.liveness_changed()
    assert set(told[: len(own)]) == own
    assert len(told) == PORTION, "the others hear of it when messages have been seen to"
    replication.liveness_changed()
    assert len(told) == PORTION, "the running pass restarts"
    await settled(lambda: len(told) >= PORTION + len(drivers), "not all drivers were notified")
    assert sorted(told[PORTION:]) == sorted(driver.key for driver in drivers)
    assert set(told[PORTION : PORTION + len(own)]) == own
    of_key = {driver.key: driver.written_ms for driver in drivers}
    written_ms = [of_key[key] for key in told[PORTION + len(own) :]]
    assert written_ms == sorted(written_ms, reverse=True), "recently written partitions were not notified first"
    assert len(set(written_ms)) == 2
