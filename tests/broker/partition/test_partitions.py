from __future__ import annotations

import pytest
from tests.broker.peer import Peer, batch
from tests.broker.stand import Stand, settled

from tidelog_broker.node.node import Node
from tidelog_broker.partition import partitions as partitions_module
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError


def revised(node: Node, name: str, *, deleted: bool = False, partitions: int = 1) -> pb.TopicRecord:
    """Return the next revision of a topic."""
    record = pb.TopicRecord()
    record.CopyFrom(node.broker.topics.named(name))
    record.revision += 1
    record.deleted = deleted
    record.config.partitions = partitions
    return record


async def test_partitions_are_found_by_id_and_number(node: Node, peer: Peer) -> None:
    topic = await peer.create(partitions=2)
    assert [node.broker.partitions.get(topic.topic_id, index).name for index in (0, 1)] == ["t/0", "t/1"]
    with pytest.raises(ProtocolError) as beyond:
        node.broker.partitions.get(topic.topic_id, 2)
    assert beyond.value.code == pb.UNKNOWN_PARTITION
    with pytest.raises(ProtocolError) as unknown:
        node.broker.partitions.get(b"?" * 16, 0)
    assert unknown.value.code == pb.UNKNOWN_TOPIC
    assert node.broker.partitions.of_topic(b"?" * 16) == []
    assert len(node.broker.partitions.all()) == 3, "__meta is one of them; no request has created __offsets yet"


async def test_following_adds_partitions_and_keeps_existing_ones(node: Node, peer: Peer) -> None:
    topic = await peer.create()
    (first,) = node.broker.partitions.of_topic(topic.topic_id)
    record = revised(node, "t", partitions=3)
    record.config.segment_bytes = 1 << 20
    await node.broker.partitions.follow(record)
    assert node.broker.partitions.find((topic.topic_id, 0)) is first
    assert [partition.state.index for partition in node.broker.partitions.of_topic(topic.topic_id)] == [0, 1, 2]
    assert first.log.segment_bytes == 1 << 20
    before = node.broker.partitions.of_topic(topic.topic_id)
    await node.broker.partitions.follow(record)
    assert node.broker.partitions.of_topic(topic.topic_id) == before


async def test_following_a_deletion_refuses_at_once_and_removes_later(stand: Stand, node: Node, peer: Peer) -> None:
    topic = await peer.create()
    await peer.publish(topic.topic_id, batch(b"x"))
    (partition,) = node.broker.partitions.of_topic(topic.topic_id)
    ring_bytes = node.broker.rings.size_bytes
    await node.broker.partitions.follow(revised(node, "t", deleted=True))
    assert node.broker.partitions.of_topic(topic.topic_id) == []
    assert partition.state.refusal is not None
    assert partition.state.refusal.code == pb.UNKNOWN_TOPIC
    assert node.broker.rings.size_bytes < ring_bytes
    await settled(lambda: not partition.log.directory.exists(), "the files stay")


async def test_sweep_removes_remains_of_a_crash_and_is_idempotent(stand: Stand, node: Node, peer: Peer) -> None:
    topic = await peer.create(partitions=2)
    await peer.publish(topic.topic_id, batch(b"x"), partition=1)
    directory = node.broker.partitions.get(topic.topic_id, 1).log.directory
    await peer.delete("t")
    await settled(lambda: not node.broker.replication.chains.knows(topic.topic_id, 1), "the deletion does not end")
    (directory / "epoch-00000000").mkdir(parents=True)
    (directory / "epoch-00000000" / "left.seg").write_bytes(b"x")
    for _ in range(2):
        await node.broker.partitions.sweep()
        assert not directory.exists()


async def test_objects_of_open_partitions_are_reported_to_the_collector(
    node: Node, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[int] = []
    monkeypatch.setattr(partitions_module, "count_long_lived", counted.append)
    await peer.create(partitions=3)
    assert counted == [partitions_module.PARTITION_BLOCKS] * 3, "open partitions do not count as growth"
    await node.broker.partitions.follow(revised(node, "t", deleted=True, partitions=3))
    assert sum(counted) == 0, "the objects of a deleted topic may be in cycles"
