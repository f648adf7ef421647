"""What a node keeps for its users, and what it says about itself."""

from __future__ import annotations

from importlib.metadata import version

from tests.broker.peer import Peer, batch
from tests.broker.stand import Stand

from tidelog_broker.broker import SOFTWARE
from tidelog_broker.core.topics import META_TOPIC_ID, OFFSETS_TOPIC_ID
from tidelog_broker.node import Node
from tidelog_proto.names import META_TOPIC, OFFSETS_TOPIC


async def test_the_brokers_own_topics_are_there_before_any_other(node: Node) -> None:
    assert {record.name: record.topic_id for record in node.topics.live()} == {
        META_TOPIC: META_TOPIC_ID,
        OFFSETS_TOPIC: OFFSETS_TOPIC_ID,
    }


def test_the_software_is_called_by_its_version() -> None:
    assert version("tidelog") in SOFTWARE


async def test_a_status_adds_up(node: Node, peer: Peer) -> None:
    topic = await peer.create()
    await peer.publish(topic.topic_id, batch(b"x" * 1000))
    status = node.status()
    assert status.node.port == node.port
    assert status.connections == 1
    assert status.state == "running"
    assert status.data_bytes >= 1000
    assert status.disk_free_bytes > 0


async def test_topics_are_recovered_with_their_partitions(stand: Stand) -> None:
    await stand.start()
    peer = await stand.peer()
    topic = await peer.create(partitions=3)
    await stand.stop()
    node = await stand.start()
    assert [partition.index for partition in node.partitions.of_topic(topic.topic_id)] == [0, 1, 2]
