from __future__ import annotations

from functools import partial

import pytest
from tests.broker.founded import Founded
from tests.broker.peer import Peer, batch

from tidelog_broker.core.topics import META_KEY
from tidelog_broker.partition.unsafe_recovery import UnsafeRecovery
from tidelog_proto import broker_pb2 as pb


def asked(topic: str, partition: int, node: str) -> pb.ClusterChange:
    return pb.ClusterChange(unsafe_recovery=pb.UnsafeRecovery(topic=topic, partition=partition, node_id=node))


def chains(founded: Founded, name: str) -> dict[tuple[bytes, int], tuple[int, bytes]]:
    drivers = founded.nodes[name].broker.replication.all()
    statuses = [driver.replica.state.chain_status() for driver in drivers]
    return {(one.topic_id, one.partition): (one.epoch, one.previous_hash) for one in statuses}


def follows(founded: Founded, name: str) -> bool:
    return chains(founded, name) == chains(founded, "a")


async def recovered(peer: Peer, topic: str, node: str) -> pb.ClusterChangeReply:
    return (await peer.ask(cluster_change=asked(topic, 0, node))).envelope.cluster_change_reply


async def test_last_node_recovers_the_partition(founded: Founded, caplog: pytest.LogCaptureFixture) -> None:
    await founded.found()
    await founded.settled()
    peer = await founded.peer("a")
    topic = await peer.create(partitions=1, replication_factor=3)
    await founded.publish(peer, topic.topic_id, b"one", b"two")
    left = founded.nodes["a"]
    await founded.copies((topic.topic_id, 0), end_offset=2)
    await founded.stop("b")

    def level(key: tuple[bytes, int]) -> bool:
        here, there = (founded.nodes[name].broker.partitions.get(*key).replica.state.active for name in ("a", "c"))
        return here == there and here.owner in {"a", "c"}

    # Decisions of b during its shutdown must reach the others: they would be overruled otherwise, and b would halt.
    await founded.until(lambda: all(level(key) for key in ((topic.topic_id, 0), META_KEY)), "no replica follows b")
    await founded.stop("c")
    await founded.until(
        lambda: not left.broker.cluster.alive("b") and not left.broker.cluster.alive("c"), "the lost are not missed"
    )
    refused = await peer.publish(topic.topic_id, batch(b"nobody"))
    assert refused[0].error.code in {pb.QUORUM_LOST, pb.EPOCH_CHANGING}
    for name in ("__meta", "__offsets", "t"):
        told = await recovered(peer, name, "a")
        assert told.unsafe
    assert told.end_offset == 2
    assert "DATA_LOSS: t/0: an operator ended epoch" in caplog.text
    result = await founded.publish(peer, topic.topic_id, b"three")
    assert result.base_offset == 2
    assert (await peer.read_all(topic.topic_id)) == [b"one", b"two", b"three"]
    assert (await peer.create("u")).name == "u", "topics can be changed again"
    assert left.broker.partitions.get(*META_KEY).replica.state.halted is None
    # The lost nodes were only away. They return one at a time; both at once could be a quorum of the given-up records.
    for name in ("b", "c"):
        await founded.start(name)
        await founded.until(partial(follows, founded, name), f"{name} does not follow")
    await peer.ask(cluster_change=pb.ClusterChange(rebalance=True))

    def all_hold() -> bool:
        copies = [node.broker.partitions.find((topic.topic_id, 0)) for node in founded.nodes.values()]
        return all(
            copy is not None
            and copy.state.readable_end == 3
            and copy.replica.state.is_member
            and not copy.replica.backfill.incomplete
            for copy in copies
        )

    await founded.until(all_hold, "the copies do not come back")
    for name in ("b", "c"):
        assert await (await founded.peer(name)).read_all(topic.topic_id) == [b"one", b"two", b"three"]


async def test_working_partition_is_unchanged(founded: Founded) -> None:
    await founded.found()
    await founded.settled()
    peer = await founded.peer("b")
    topic = await peer.create(partitions=1, replication_factor=3)
    await founded.publish(peer, topic.topic_id, b"one")
    key = (topic.topic_id, 0)
    copies = await founded.copies(key, end_offset=1)
    epoch = copies[0].state.epoch
    for name in "abc":
        error = await peer.refused(cluster_change=asked("t", 0, name))
        assert error.code == pb.INVALID_REQUEST
        assert f"t/0 has its quorum: {founded.owner(key, 'a')} owns it" in error.message
    await founded.publish(peer, topic.topic_id, b"two")
    assert {copy.state.epoch for copy in copies} == {epoch}


async def test_recovery_with_a_quorum_is_safe_on_any_node(founded: Founded, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the lost ones come back while an operator gives them up."""

    async def seems_lost(_: UnsafeRecovery) -> bool:
        return False

    monkeypatch.setattr(UnsafeRecovery, "_works", seems_lost)
    await founded.found()
    await founded.settled()
    peer = await founded.peer("b")
    topic = await peer.create(partitions=1, replication_factor=3)
    await founded.publish(peer, topic.topic_id, b"one")
    await founded.copies((topic.topic_id, 0), end_offset=1)
    told = await recovered(peer, "t", "c")
    assert (told.unsafe, told.end_offset) == (False, 1)
    await founded.publish(peer, topic.topic_id, b"two")
    copy = founded.nodes["b"].broker.partitions.get(topic.topic_id, 0)
    await founded.until(lambda: copy.state.readable_end == 2, "the watermark is not told")
    assert await peer.read_all(topic.topic_id) == [b"one", b"two"]


async def test_unrecoverable_copy_is_refused_with_a_reason(founded: Founded) -> None:
    await founded.found()
    await founded.settled()
    peer = await founded.peer("a")
    topic = await peer.create(partitions=1, replication_factor=2)
    (outsider,) = {"a", "b", "c"} - set(topic.partitions[0].placement)
    await founded.until(
        lambda: all(one.broker.topics.exists("t") for one in founded.nodes.values()), "a node does not know t"
    )

    async def refusal(name: str, partition: int, node: str) -> tuple[pb.ErrorCode, str]:
        error = await peer.refused(cluster_change=asked(name, partition, node))
        return error.code, error.message

    assert await refusal("t", 0, "z") == (
        pb.INVALID_REQUEST,
        "node 'z' does not exist; list the nodes with: tidelog cluster status",
    )
    assert (await refusal("nothing", 0, "a"))[0] == pb.UNKNOWN_TOPIC
    assert (await refusal("t", 7, "a"))[0] == pb.UNKNOWN_PARTITION
    code, text = await refusal("t", 0, outsider)
    assert code == pb.INVALID_REQUEST
    assert "stores no copy" in text or "holds no copy" in text
    await founded.stop("c")
    await founded.until(lambda: "c" not in founded.nodes["a"].broker.cluster.linked, "c is not missed")
    code, text = await refusal("t", 0, "c")
    assert (code, "cannot reach node 'c'" in text) == (pb.INVALID_REQUEST, True)
