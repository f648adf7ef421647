from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest
from tests.broker.cluster_stand import KEY, started_cluster
from tests.broker.peer import batch
from tests.broker.stand import Stand, settled

from tidelog_broker.core.placement.registry import NodeRegistry
from tidelog_broker.core.topics import PartitionKey
from tidelog_broker.partition import background_opener as background_opener_module
from tidelog_broker.partition import partitions as partitions_module
from tidelog_broker.partition.background_opener import BackgroundOpener
from tidelog_broker.partition.closed_partitions import ClosedPartitions
from tidelog_broker.storage.node import node_dir
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

ID = b"t" * 16


class Sleepers:
    """Closed partitions, and their expected opens."""

    def __init__(self) -> None:
        self.closed = ClosedPartitions()
        self.opening = self
        self.asked: list[int] = []
        self.failing: set[int] = set()

    def soon(self, key: PartitionKey, *, is_wanted: bool) -> None:
        assert not is_wanted
        self.asked.append(key[1])

    async def opened(self, key: PartitionKey, *, is_wanted: bool) -> None:
        self.soon(key, is_wanted=is_wanted)
        if key[1] in self.failing:
            raise ProtocolError(pb.DISK_FULL, "no space")
        self.closed.discard(key)

    def known_epoch(self, key: PartitionKey) -> pb.EpochDescriptor | None:
        return pb.EpochDescriptor(placement=["n9"]) if key[1] == 9 else None


class Around:
    """The ids of the running nodes."""

    def __init__(self) -> None:
        self.dead: set[str] = set()

    def alive(self, node_id: str) -> bool:
        return node_id not in self.dead


def waking(sleepers: Sleepers, around: Around, nodes: NodeRegistry | None = None) -> BackgroundOpener:
    return BackgroundOpener(
        cast("Any", sleepers),
        neighbours=cast("Any", around),
        nodes=nodes or NodeRegistry(),
        node_id="n0",
        first_epoch=lambda _, index: pb.EpochDescriptor(placement=["n0", f"n{index}"]),
        loop=asyncio.get_running_loop(),
    )


async def test_unknown_owner_counts_as_down_only_after_the_grace_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_opener_module, "GRACE_S", 0.01)
    sleepers, around = Sleepers(), Around()
    for index, owner in enumerate(["n0", "n1", "n2", ""]):
        sleepers.closed.add((ID, index), owner, is_used=False)
    around.dead = {"n1"}
    subject = waking(sleepers, around)
    subject.liveness_changed()
    subject.begin()
    assert sleepers.asked == []
    await settled(lambda: sleepers.asked == [1, 3], "the request to a dead node has not ended")
    around.dead = {"n2"}
    subject.liveness_changed()
    assert sleepers.asked[2:] == [2, 3]


def record(node_id: str, *, draining: bool = False, revision: int = 1) -> pb.NodeRecord:
    return pb.NodeRecord(
        node_id=node_id,
        host="h",
        port=1,
        gossip_host="h",
        gossip_port=1,
        incarnation=revision,
        draining=draining,
        revision=revision,
        roles=[pb.INGESTION, pb.PERSISTENCE],
        directory_id=node_id.encode().ljust(16),
    )


async def test_owned_partitions_are_opened_when_nodes_join_or_drain() -> None:
    sleepers, nodes = Sleepers(), NodeRegistry()
    for index in (1, 2, 9):
        sleepers.closed.add((ID, index), "n0", is_used=False)
    sleepers.closed.add((ID, 5), "n5", is_used=False)
    nodes.apply(record("n1", draining=True))
    nodes.apply(record("n9", draining=True))
    subject = waking(sleepers, Around(), nodes)
    subject.nodes_changed()
    assert sleepers.asked == [], "the node does not serve yet"
    subject.begin()
    assert sleepers.asked == [1, 9], "only partitions on drained nodes have to move"
    nodes.apply(record("n1", draining=True, revision=2))
    subject.nodes_changed()
    assert len(sleepers.asked) == 2, "a node that was started again changes nothing"
    nodes.apply(record("n7"))
    subject.nodes_changed()
    assert sleepers.asked[2:] == [1, 2, 9]


async def test_used_partitions_are_opened_in_the_background(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(background_opener_module, "PAUSE_S_MIN", 0.0)
    monkeypatch.setattr(background_opener_module, "SHARE", 0)
    monkeypatch.setattr(background_opener_module, "LOOK_S", 0.001)
    sleepers = Sleepers()
    for index in range(4):
        sleepers.closed.add((ID, index), "n0", is_used=index != 2)
    sleepers.failing = {1}
    running = asyncio.create_task(waking(sleepers, Around()).run())
    await settled(lambda: sleepers.asked == [0, 1, 3], "not all were opened")
    sleepers.closed.add((ID, 4), "n0", is_used=True)
    await settled(lambda: sleepers.asked == [0, 1, 3, 4], "a later partition was not opened")
    running.cancel()


# ------------------------------------------------------------------------------------------ whole nodes


def entry(topic_id: bytes, partition: int, data: bytes) -> pb.PublishEntry:
    return pb.PublishEntry(topic_id=topic_id, partition=partition, length=len(data))


@pytest.fixture
def lazy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions_module, "OPEN_AHEAD", 0)
    monkeypatch.setattr(background_opener_module, "SHARE", 1_000_000)
    monkeypatch.setattr(background_opener_module, "PAUSE_S_MIN", 1_000)


@pytest.mark.usefixtures("lazy")
async def test_requested_partition_is_opened_and_waiting_requests_keep_their_order(stand: Stand) -> None:
    node = await stand.start()
    peer = await stand.peer()
    topic = await peer.create(partitions=4)
    partitions = node.broker.partitions
    assert partitions.of_topic(topic.topic_id) == []
    assert (partitions.closed.count(topic.topic_id), partitions.count == node.broker.topics.partitions) == (4, True)
    with pytest.raises(ProtocolError) as closed:
        partitions.get(topic.topic_id, 1)
    assert closed.value.code == pb.EPOCH_CHANGING
    posted = [
        peer.post(one, publish=pb.Publish(entries=[entry(topic.topic_id, 1, one)]))
        for one in (batch(b"%d" % number, producer_id=7, sequence=number) for number in range(5))
    ]
    for number, one in enumerate(posted):
        (result,) = (await peer.reply(one)).envelope.publish_reply.results
        assert (result.base_offset, result.error.code) == (number, 0)
    assert [partition.state.index for partition in partitions.of_topic(topic.topic_id)] == [1]
    assert not (node.dir.partitions / f"t.{topic.topic_id.hex()}-0").exists(), "one that is not used costs nothing"


@pytest.mark.usefixtures("lazy")
@pytest.mark.parametrize("how", ["stop", "crash"])
async def test_closed_partitions_are_readable_after_a_start(stand: Stand, how: str) -> None:
    await stand.start()
    peer = await stand.peer()
    topic = await peer.create(partitions=3)
    for index in (0, 2):
        await peer.publish(topic.topic_id, batch(b"a"), partition=index)
    await (stand.stop() if how == "stop" else stand.crash())
    node = await stand.start()
    assert node.broker.partitions.of_topic(topic.topic_id) == []
    peer = await stand.peer()
    assert await peer.read_all(topic.topic_id, partition=2) == [b"a"]
    assert [partition.state.index for partition in node.broker.partitions.of_topic(topic.topic_id)] == [2]
    told = (await peer.ask(topic_describe=pb.TopicDescribe(name="t"))).envelope.topic_reply.topics[0].partitions
    assert [(one.size_bytes > 0, one.state) for one in told] == [(True, "sealed"), (False, "idle"), (True, "active")]
    await peer.publish(topic.topic_id, batch(b"b"), partition=0)
    assert await peer.read_all(topic.topic_id, partition=0) == [b"a", b"b"]


@pytest.mark.usefixtures("lazy")
async def test_topic_with_closed_partitions_can_be_deleted(stand: Stand) -> None:
    await stand.start()
    peer = await stand.peer()
    topic = await peer.create(partitions=3)
    for index in range(3):
        await peer.publish(topic.topic_id, batch(b"a"), partition=index)
    node = await stand.restart()
    peer = await stand.peer()
    await peer.delete("t")
    again = await peer.create(partitions=3)
    await peer.publish(again.topic_id, batch(b"new"), partition=0)
    old = f"t.{topic.topic_id.hex()}"
    await settled(
        lambda: not any(path.name.startswith(old) for path in node.dir.partitions.iterdir()), "the old data stays"
    )
    assert not node.broker.partitions.closed.count(topic.topic_id)
    assert await peer.read_all(again.topic_id) == [b"new"]
    with pytest.raises(ProtocolError):
        node.broker.partitions.get(topic.topic_id, 0)


@pytest.mark.usefixtures("lazy")
async def test_machine_crash_is_recorded_in_logs_opened_later(
    stand: Stand, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(node_dir, "BOOT_ID", boot_id := tmp_path / "boot_id")
    boot_id.write_text("a\n")
    await stand.start()
    peer = await stand.peer()
    topic = await peer.create(partitions=2, flush=pb.NEVER)
    await peer.publish(topic.topic_id, batch(b"a"), partition=1)
    await stand.crash()
    boot_id.write_text("b\n")
    node = await stand.start()
    assert node.dir.machine_rebooted
    await settled(lambda: not node.broker.tasks.named("recording a machine restart"), "it is not noted")
    (partition,) = node.broker.partitions.of_topic(topic.topic_id)
    assert partition.state.index == 1
    assert (partition.log.directory / "short-00000000").exists()
    assert not (await stand.restart()).dir.machine_rebooted


@pytest.mark.usefixtures("lazy")
async def test_closed_replicas_are_opened_and_take_over_when_their_owner_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background_opener_module, "GRACE_S", 0.01)
    async with started_cluster(tmp_path) as stand:
        await stand.start()
        for name in stand.nodes:
            stand.nodes[name].broker.partitions.opening.soon(KEY)
        owner = await stand.owner()
        await stand.publish(b"a")
        await stand.agree(b"a")
        for name in list(stand.nodes):
            await stand.stop(name)
        await stand.start()
        await asyncio.sleep(0.05)
        assert all(node.broker.partitions.find(KEY) is None for node in stand.nodes.values()), (
            "no node has opened the partition"
        )
        said = stand.nodes["a"].broker.routes.owner(KEY)
        await stand.crash(said)
        assert await stand.owner(but=said) != said
        assert owner
        await stand.publish(b"b")
        await stand.start(said)
        await settled(lambda: stand.nodes[said].broker.partitions.find(KEY) is not None, "the one that was away sleeps")
        await stand.agree(b"a", b"b")
