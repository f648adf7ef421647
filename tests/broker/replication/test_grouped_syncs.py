"""Partitions that share a sync: each is completed or failed by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from tests.broker.peer import batch
from tests.broker.stand import Stand, settled

from tidelog_broker.base.offload import Offload
from tidelog_broker.replication.grouped_syncs import GroupedSyncs
from tidelog_broker.storage.engine.store import StagedBatch
from tidelog_broker.storage.io.errors import StorageFailedError
from tidelog_broker.storage.io.workers import IoWorkers
from tidelog_proto import broker_pb2 as pb


class Group:
    """Stores that are made durable together; `error` is raised by every sync."""

    def __init__(self, error: Exception | None = None) -> None:
        self.syncs = 0
        self.error = error

    def sync(self) -> None:
        self.syncs += 1
        if self.error is not None:
            raise self.error

    def has_room(self, size_bytes: int) -> bool:
        raise AssertionError(size_bytes)

    def append_staged(self, staged: Sequence[StagedBatch]) -> None:
        raise AssertionError(staged)


class Trial:
    """Requests of partitions by name, and how each of them ended."""

    def __init__(self, workers: IoWorkers) -> None:
        loop = asyncio.get_running_loop()
        self.ended: dict[str, BaseException | None] = {}
        self.raised: list[BaseException] = []
        self.syncs = GroupedSyncs(Offload(workers, loop))
        loop.set_exception_handler(lambda _, context: self.raised.append(context["exception"]))

    def request(self, group: Group, name: str, fault: Exception | None = None) -> None:
        def done(error: BaseException | None) -> None:
            self.ended[name] = error
            if fault is not None:
                raise fault

        self.syncs.request(group, done)


@pytest.fixture
async def trial() -> AsyncIterator[Trial]:
    workers = IoWorkers(1)
    yield Trial(workers)
    await asyncio.to_thread(workers.close)


async def test_requests_during_a_sync_share_the_next_one(trial: Trial) -> None:
    group = Group()
    for name in ("first", "b", "c", "d"):
        trial.request(group, name)
    await settled(lambda: len(trial.ended) == 4, "a request is not answered")
    assert trial.ended == dict.fromkeys(("first", "b", "c", "d"))
    assert group.syncs == 2


async def test_fault_of_one_partition_leaves_its_neighbours_and_the_next_sync_alone(trial: Trial) -> None:
    group, faults = Group(), [RuntimeError("b"), ValueError("c")]
    trial.request(group, "first")
    for name, fault in (("b", faults[0]), ("c", faults[1]), ("d", None)):
        trial.request(group, name, fault)
    await settled(lambda: len(trial.ended) == 4, "a neighbour is not answered")
    trial.request(group, "next")
    await settled(lambda: "next" in trial.ended, "there is no next sync")
    assert trial.ended == dict.fromkeys(("first", "b", "c", "d", "next"))
    assert trial.raised == faults[:1], "the others are logged"


async def test_failed_sync_fails_every_partition_although_one_raises(trial: Trial) -> None:
    failure = StorageFailedError("the disk is broken")
    group = Group(failure)
    trial.request(group, "first")
    trial.request(group, "b", RuntimeError("b"))
    trial.request(group, "c")
    await settled(lambda: len(trial.ended) == 3, "a neighbour is not answered")
    assert trial.ended == dict.fromkeys(("first", "b", "c"), failure)


async def test_engine_that_raises_after_a_shared_sync_fails_its_partition_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand = Stand(tmp_path)
    node = await stand.start()
    peer = await stand.peer()
    topics = [await peer.create(f"t{number}", file_model=pb.SHARED) for number in range(4)]
    for topic in topics:
        await peer.publish(topic.topic_id, batch(b"before"))
    partitions = [node.broker.partitions.get(topic.topic_id, 0) for topic in topics]
    broken = partitions[1].log.active
    assert broken is not None

    def fail() -> int:
        raise RuntimeError("a defect of the engine")

    monkeypatch.setattr(broken, "sync", fail)
    stand.disk.hold("sync", ".clog")
    held = [peer.post_publish(topic.topic_id, batch(b"after")) for topic in topics]
    await settled(lambda: all(one.log.end_offset == 2 for one in partitions), "not all are written")
    stand.disk.heal()
    results = [(await peer.published(number))[0] for number in held]
    assert [result.error.code for result in results] == [0, pb.STORAGE_FAILED, 0, 0]
    assert await stand.stopped() != 0, "a node whose log has failed ends"
    await stand.start()
    peer = await stand.peer()
    for topic in topics:
        assert (await peer.read_all(topic.topic_id))[:1] == [b"before"]
    await stand.close()
