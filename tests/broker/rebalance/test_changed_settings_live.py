"""Topics that change their flush, engine and file model while records are published and read, on real nodes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import pytest
from tests.broker.founded import WAIT_S, Founded
from tests.broker.peer import batch
from tests.broker.stand import Stand, settled

from tidelog import Client
from tidelog.errors import TidelogError
from tidelog_broker.core.topics import META_KEY, PartitionKey
from tidelog_broker.node.node import Node
from tidelog_broker.partition.partition import Partition
from tidelog_broker.rebalance import changed_settings
from tidelog_broker.storage.rocksdb.database import ROCKSDB
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.topic_settings import MEMORY_ASYNC, MEMORY_ENGINE, SHARED_FILES_ENGINE


class Change(NamedTuple):
    """An alteration of a topic, and the engine of its epochs after it as in `pb.EpochDescriptor`."""

    flush: str
    engine: str
    file_model: str = "per-partition"
    stored_by: str = ""

    @property
    def settings(self) -> dict[str, Any]:
        return {"flush": self.flush, "engine": self.engine, "file_model": self.file_model}


SEGMENT_ALWAYS = Change("always", "segment")
SEGMENT_NEVER = Change("never", "segment")
SHARED_ALWAYS = Change("always", "segment", "shared", SHARED_FILES_ENGINE)
MEMORY_NEVER = Change("never", "memory", stored_by=MEMORY_ENGINE)
MEMORY_BEHIND = Change("async", "memory", stored_by=MEMORY_ASYNC)
ROCKS = Change("always", "rocksdb", stored_by=ROCKSDB)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changed_settings, "SETTINGS_PERIOD_S", 0.01)


@pytest.fixture
async def three(founded: Founded) -> Founded:
    await founded.found()
    await founded.settled()
    return founded


class Load:
    """One producer that publishes 0, 1, 2, ... to partition 0 of the topic `t`, and one consumer that reads on."""

    def __init__(self, ports: Callable[[], Sequence[int]]) -> None:
        self.ports = ports
        self.client = Client(",".join(f"127.0.0.1:{port}" for port in ports()))
        self.acknowledged: list[int] = []
        """The offset of each value."""
        self.read: list[bytes | None] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._is_over = False

    async def begin(self, **config: Any) -> PartitionKey:
        """Create the topic and begin; return its partition."""
        topic = await self.client.create_topic("t", partitions=1, **config)
        self._tasks = [asyncio.create_task(self._publish()), asyncio.create_task(self._consume())]
        return topic.topic_id, 0

    async def _publish(self) -> None:
        producer = self.client.producer("t", delivery_timeout_s=WAIT_S)
        while not self._is_over:
            receipt = await producer.send(b"%d" % len(self.acknowledged))
            self.acknowledged.append(receipt.offset)

    async def _consume(self) -> None:
        async with self.client.consumer("t", start="earliest") as consumer:
            while not self._is_over or len(self.read) < len(self.acknowledged):
                self.read += [record.value for record in await consumer.poll(timeout_s=0.2)]

    async def more(self, count: int = 20) -> None:
        """Wait until more records are acknowledged."""
        target = len(self.acknowledged) + count
        async with asyncio.timeout(WAIT_S):
            while len(self.acknowledged) < target:
                for task in self._tasks:
                    if task.done():
                        await task
                await asyncio.sleep(0.005)

    async def alter(self, change: Change) -> None:
        """Change the topic; repeat it while the owner of `__meta` is being replaced."""
        async with asyncio.timeout(WAIT_S):
            while True:
                with contextlib.suppress(TidelogError):
                    await self.client.alter_topic("t", **change.settings)
                    return
                await asyncio.sleep(0.05)

    async def finish(self) -> None:
        """Check that every record was stored once and in order, and that the consumer has read all of them."""
        self._is_over = True
        async with asyncio.timeout(WAIT_S):
            await asyncio.gather(*self._tasks)
        count = len(self.acknowledged)
        assert self.acknowledged == list(range(count))
        assert self.read == [b"%d" % number for number in range(count)]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.client.close()


@pytest.fixture
async def loads() -> AsyncIterator[Callable[[Callable[[], Sequence[int]]], Load]]:
    made: list[Load] = []

    def make(ports: Callable[[], Sequence[int]]) -> Load:
        made.append(Load(ports))
        return made[-1]

    yield make
    for load in made:
        await load.close()


MakeLoad = Callable[[Callable[[], Sequence[int]]], Load]


def partition_of(node: Node, key: PartitionKey) -> Partition | None:
    return node.broker.partitions.find(key)


def has(node: Node, key: PartitionKey, change: Change) -> bool:
    """Return whether a node stores new records as a change wants it."""
    partition = partition_of(node, key)
    if partition is None:
        return False
    active = partition.replica.state.active
    return (active.engine, pb.Flush.Name(active.flush).lower()) == (change.stored_by, change.flush)


async def test_topic_of_a_single_node_passes_through_every_engine_under_load(stand: Stand, loads: MakeLoad) -> None:
    node = await stand.start()
    load = loads(lambda: [node.port])
    key = await load.begin()
    changes = (MEMORY_NEVER, ROCKS, SHARED_ALWAYS, SEGMENT_NEVER, MEMORY_BEHIND, SEGMENT_ALWAYS)
    for change in changes:
        await load.more()
        await load.alter(change)
        await settled(partial(has, node, key, change), f"{change} does not take effect")
    await load.more()
    await load.finish()
    partition = partition_of(node, key)
    assert partition is not None
    assert partition.state.epoch == len(changes), "each change took one epoch"
    described = await load.client.topic("t")
    assert described.partitions[0].unapplied == ""


async def test_change_of_an_unused_topic_takes_effect_with_its_first_records(stand: Stand, loads: MakeLoad) -> None:
    """Its partition may be closed; a restart changes nothing about that."""
    node = await stand.start()
    load = loads(lambda: [node.port])
    await load.client.create_topic("t", partitions=1)
    await load.alter(SEGMENT_NEVER)
    await stand.restart()
    peer = await stand.peer()
    key = (stand.node.broker.topics.named("t").topic_id, 0)
    await peer.publish(key[0], batch(b"first"))
    await settled(partial(has, stand.node, key, SEGMENT_NEVER), "the change does not take effect")
    assert await peer.read_all(key[0]) == [b"first"]


async def test_engine_that_the_node_lacks_is_reported_and_records_are_stored_as_before(
    stand: Stand, loads: MakeLoad, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await stand.start()
    monkeypatch.setattr(node.broker.engines, "has", lambda name: name != ROCKSDB)
    load = loads(lambda: [node.port])
    await load.begin()
    await load.more()
    await load.alter(ROCKS)
    await load.more()
    (partition,) = (await load.client.topic("t")).partitions
    assert partition.epoch == 0
    assert partition.unapplied.startswith(
        f"flush=always engine=segment: engine rocksdb is not installed on {node.node_id}"
    )
    await load.alter(SEGMENT_ALWAYS)
    assert (await load.client.topic("t")).partitions[0].unapplied == ""
    await load.finish()


async def test_every_copy_of_a_quiet_cluster_changes(three: Founded) -> None:
    peer = await three.peer("a")
    topic = await three.spread(peer, partitions=8)
    keys = [(topic.topic_id, index) for index in range(8)]
    for key in keys:
        await three.publish(peer, key[0], b"before", partition=key[1])
    before = {key: three.owner(key, "a") for key in keys}
    await peer.ask(topic_alter=pb.TopicAlter(name=topic.name, engine=MEMORY_ENGINE, flush=pb.NEVER))
    for node in three.nodes.values():
        for key in keys:
            await three.until(partial(has, node, key, MEMORY_NEVER), "a copy keeps its engine")
    assert {key: three.owner(key, "a") for key in keys} == before, "nothing moves"
    for key in keys:
        await three.publish(peer, key[0], b"after", partition=key[1])
        copies = await three.copies(key, end_offset=2)
        assert {copy.state.epoch for copy in copies} == {1}


async def test_cluster_changes_under_load(three: Founded, loads: MakeLoad) -> None:
    load = loads(lambda: [three.ports[name] for name in three.nodes])
    key = await load.begin(replication_factor=3)
    for change in (MEMORY_NEVER, SHARED_ALWAYS, MEMORY_BEHIND, SEGMENT_NEVER, SEGMENT_ALWAYS):
        await load.more()
        await load.alter(change)
        for node in three.nodes.values():
            await three.until(partial(has, node, key, change), f"{change} does not take effect")
    await load.more()
    await load.finish()


@pytest.mark.parametrize("whose", ["t", "__meta"])
@pytest.mark.parametrize("change", [MEMORY_NEVER, SHARED_ALWAYS])
async def test_owner_that_crashes_during_a_change_loses_nothing(
    three: Founded, loads: MakeLoad, whose: str, change: Change
) -> None:
    """The owner of the partition, or that of `__meta`, which may not have told all nodes of the change."""
    load = loads(lambda: [three.ports[name] for name in three.nodes])
    key = await load.begin(replication_factor=3)
    for number, current in enumerate((change, SEGMENT_ALWAYS)):
        await load.more()
        altering = asyncio.create_task(load.alter(current))
        await asyncio.sleep(0.02 * number)
        victim = three.owner(key if whose == "t" else META_KEY, next(iter(three.nodes)))
        await three.crash(victim)
        await load.more()
        await altering
        for node in three.nodes.values():
            await three.until(partial(has, node, key, current), f"{current} does not take effect")
        await three.start(victim)
        await three.settled()
        await three.until(partial(is_whole, three, key), "a copy lacks records")
    await load.finish()


def is_whole(cluster: Founded, key: PartitionKey) -> bool:
    """Return whether every copy has, or may soon have, all records."""
    copies = [partition_of(node, key) for node in cluster.nodes.values()]
    return all(
        copy is not None and not copy.replica.state.doubt and copy.replica.backfill.missing() is None for copy in copies
    ) and any(copy is not None and copy.state.assigner is not None for copy in copies)
