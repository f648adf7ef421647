from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from tests.broker.founded import Founded
from tests.broker.linked import linked
from tests.broker.peer import batch

from tidelog_broker.broker import Broker
from tidelog_broker.core.cluster_secrets import ClusterSecrets
from tidelog_broker.core.peer_auth import Identity
from tidelog_broker.core.topics import META_KEY, PartitionKey
from tidelog_broker.server import forwarding
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.wire.frames import Frame


@pytest.fixture
async def three(founded: Founded) -> Founded:
    await founded.found()
    await founded.settled()
    return founded


def group_key(three: Founded) -> PartitionKey:
    """Return the partition of `__offsets` whose owner coordinates the group g."""
    return next(iter(three.nodes.values())).broker.groups.key_of("g")


async def test_any_node_accepts_any_request(three: Founded) -> None:
    """Topics are made, written, positions kept, through whichever node is asked."""
    for via in "abc":
        peer = await three.peer(via)
        topic = await peer.create(f"by-{via}", replication_factor=3)
        for value in (b"0", b"1"):
            await three.publish(peer, topic.topic_id, value)
        await three.copies((topic.topic_id, 0))
        entry = pb.CommitEntry(topic_id=topic.topic_id, next_offset=2)
        committed = (await peer.ask(commit=pb.Commit(group="g", entries=[entry]))).envelope.commit_reply
        assert committed.results[0].next_offset == 2
    for via in "abc":
        peer = await three.peer(via)
        found = (await peer.ask(committed=pb.Committed(group="g"))).envelope.committed_reply
        assert [result.next_offset for result in found.results] == [2, 2, 2]
        described = (await peer.ask(topic_describe=pb.TopicDescribe(name="by-a"))).envelope.topic_reply.topics[0]
        assert len(described.partitions[0].placement) == 3


async def test_publish_to_many_owners_has_one_answer(three: Founded) -> None:
    peer = await three.peer("a")
    topic = await three.spread(peer, 12)
    for index in range(12):  # every owner has heard of the topic
        await three.publish(peer, topic.topic_id, b"first", partition=index)
    batches = [batch(b"%d" % index) for index in range(12)]
    entries = [
        pb.PublishEntry(topic_id=topic.topic_id, partition=index, length=len(one)) for index, one in enumerate(batches)
    ]
    entries.append(pb.PublishEntry(topic_id=topic.topic_id, partition=99, length=len(batches[0])))
    while True:
        frame = await peer.ask(b"".join([*batches, batches[0]]), publish=pb.Publish(entries=entries))
        *good, bad = frame.envelope.publish_reply.results
        assert bad.error.code == pb.UNKNOWN_PARTITION
        failed = [result.error for result in good if result.HasField("error")]
        if not failed:
            break
        # On a busy machine a node may be thought dead for a moment, and then its partitions change hands.
        assert all(error.retriable and error.definite for error in failed), failed
    assert all(result.base_offset >= 1 for result in good)


async def test_lagging_owner_does_not_deny_a_new_partition(three: Founded) -> None:
    """The forwarding node knows that the partition exists; a client that names a missing one gets an error."""
    peer = await three.peer("a")
    topic = await peer.create(replication_factor=3)
    data = batch(b"v")
    entry = pb.PublishEntry(topic_id=topic.topic_id, partition=5, length=len(data))
    for forwarded, code in ((True, pb.EPOCH_CHANGING), (False, pb.UNKNOWN_PARTITION)):
        frame = await peer.ask(data, publish=pb.Publish(entries=[entry], forwarded=forwarded))
        (result,) = frame.envelope.publish_reply.results
        assert (result.error.code, result.error.definite) == (code, True)
        assert "has partitions 0 to 0, got 5" in result.error.message


async def test_forwarded_request_is_not_forwarded_again(three: Founded) -> None:
    topic_id, _, other = await three.used()
    data = batch(b"v")
    entry = pb.PublishEntry(topic_id=topic_id, length=len(data))
    frame = await (await three.peer(other)).ask(data, publish=pb.Publish(entries=[entry], forwarded=True))
    (result,) = frame.envelope.publish_reply.results
    assert result.error.code == pb.NOT_OWNER

    offsets_owner = three.owner(group_key(three), "a")
    elsewhere = three.nodes[next(name for name in "abc" if name != offsets_owner)]
    own = Identity(elsewhere.broker.cluster_id, "z", 1 << 24, ClusterSecrets(b"a secret for tests"))
    link = await linked(elsewhere.port, own, to=elsewhere.node_id)
    with pytest.raises(ProtocolError) as refused:
        await link.request(pb.Envelope(committed=pb.Committed(group="g")), timeout_s=10)
    link.close("done")
    assert refused.value.code == pb.NOT_OWNER


async def test_forwarded_answers_about_groups_are_marked(three: Founded) -> None:
    topic_id = (await (await three.peer("a")).create("t", replication_factor=3)).topic_id
    owner = three.owner(group_key(three), "a")
    entry = pb.CommitEntry(topic_id=topic_id, next_offset=0)
    for name in "abc":
        peer = await three.peer(name)
        committed = (await peer.ask(commit=pb.Commit(group="g", entries=[entry]))).envelope.commit_reply
        read = (await peer.ask(committed=pb.Committed(group="g"))).envelope.committed_reply
        if three.owner(group_key(three), name) != owner:
            continue  # on a busy machine the coordinator may move
        assert (committed.forwarded, read.forwarded) == (name != owner, name != owner)


async def test_new_topic_is_known_at_any_node(three: Founded) -> None:
    peers = {name: await three.peer(name) for name in "abc"}
    for number in range(20):
        await peers["abc"[number % 3]].create(f"t-{number}")
        asked = pb.Metadata(topics=[f"t-{number}"])
        reply = (await peers["abc"[(number + 1) % 3]].ask(metadata=asked)).envelope.metadata_reply
        assert not reply.topics[0].HasField("error")
    assert (await peers["a"].ask(metadata=pb.Metadata(topics=["none"]))).envelope.metadata_reply.topics[
        0
    ].error.code == pb.UNKNOWN_TOPIC


async def test_isolated_node_does_not_deny_a_topic(three: Founded) -> None:
    left = next(name for name in "abc" if name != three.owner(META_KEY, "a"))
    for name in [name for name in "abc" if name != left]:
        await three.stop(name)
    peer = await three.peer(left)
    asked = pb.Metadata(topics=["made-elsewhere"])
    (topic,) = (await peer.ask(metadata=asked)).envelope.metadata_reply.topics
    assert (topic.error.code, topic.error.retriable) == (pb.EPOCH_CHANGING, True)
    refused = await peer.refused(topic_describe=pb.TopicDescribe(name="made-elsewhere"))
    assert refused.code == pb.EPOCH_CHANGING


async def test_new_owner_of_offsets_has_every_position(three: Founded) -> None:
    owner = three.owner(group_key(three), "a")
    via = next(name for name in "abc" if name != owner)
    peer = await three.peer(via)
    topic = await peer.create(replication_factor=3)
    await three.publish(peer, topic.topic_id, *[b"v"] * 10)
    await three.copies((topic.topic_id, 0))
    entry = pb.CommitEntry(topic_id=topic.topic_id, next_offset=7)
    await peer.ask(commit=pb.Commit(group="g", entries=[entry]))
    await three.stop(owner)
    found = (await peer.ask(committed=pb.Committed(group="g"))).envelope.committed_reply
    assert [result.next_offset for result in found.results] == [7]
    assert three.owner(group_key(three), via) != owner


async def test_topics_are_created_during_a_change_of_metas_owner(three: Founded) -> None:
    owner = three.owner(META_KEY, "a")
    via = next(name for name in "abc" if name != owner)
    peer = await three.peer(via)
    stopping = asyncio.create_task(three.stop(owner))
    for number in range(5):
        await peer.create(f"t-{number}", replication_factor=3)
    await stopping
    assert three.owner(META_KEY, via) != owner
    topic = await peer.create("last", replication_factor=3)
    await three.publish(peer, topic.topic_id, b"v")


@pytest.mark.parametrize("how", ["dead", "moved"])
async def test_request_to_a_dead_node_fails_before_its_timeout(
    three: Founded, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    topic_id, owner, via = await three.used()
    node = three.nodes[via]
    asked = asyncio.Semaphore(0)

    def silent(*_: object, **__: object) -> asyncio.Future[Frame]:
        asked.release()
        return node.broker.loop.create_future()

    monkeypatch.setattr(node.broker.cluster, "request", silent)
    monkeypatch.setattr(node.broker.routes, "owner", lambda _: owner)
    publishing = asyncio.create_task((await three.peer(via)).publish(topic_id, batch(b"v")))
    committing = asyncio.create_task(
        (await three.peer(via)).refused(commit=pb.Commit(group="g", entries=[pb.CommitEntry(topic_id=topic_id)]))
    )
    for _ in range(2):
        await asked.acquire()
    if how == "dead":
        monkeypatch.setattr(node.broker.cluster, "alive", lambda _: False)
    else:
        monkeypatch.setattr(node.broker.routes, "owner", lambda _: via)
    (result,) = await publishing
    for error in (result.error, await committing):
        assert (error.code, error.retriable, error.definite) == (pb.TIMED_OUT, True, False)
        assert "failed before it answered" in error.message


async def test_owner_that_gossip_briefly_reports_dead_still_answers(
    three: Founded, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic_id, owner, via = await three.used()
    node = three.nodes[via]
    publishing, committing = node.broker.loop.create_future(), node.broker.loop.create_future()
    looks = Counter[PartitionKey]()

    def request(_: str, asked: pb.Envelope, *__: object, **___: object) -> asyncio.Future[Frame]:
        return publishing if asked.HasField("publish") else committing

    def is_well(_: Broker, key: PartitionKey, __: str) -> bool:
        looks[key] += 1
        if looks[key] == 3 and key == group_key(three):
            done = pb.CommitReply(results=[pb.CommittedResult(next_offset=3)])
            committing.set_result(Frame(pb.Envelope(commit_reply=done), memoryview(b"")))
        elif looks[key] == 3:
            result = pb.PublishResult(base_offset=7, epoch=1)
            publishing.set_result(Frame(pb.Envelope(publish_reply=pb.PublishReply(results=[result])), memoryview(b"")))
        return False

    monkeypatch.setattr(forwarding, "GRACE_S", 60.0)
    monkeypatch.setattr(node.broker.cluster, "request", request)
    monkeypatch.setattr(node.broker.routes, "owner", lambda _: owner)
    monkeypatch.setattr(forwarding, "_is_live_owner", is_well)
    peer = await three.peer(via)
    published = peer.post_publish(topic_id, batch(b"v"))
    committed = peer.post(commit=pb.Commit(group="g", entries=[pb.CommitEntry(topic_id=topic_id)]))
    assert (await peer.published(published))[0].base_offset == 7
    assert (await peer.reply(committed)).envelope.commit_reply.results[0].next_offset == 3


async def test_lost_quorum_is_reported_before_the_timeout(three: Founded) -> None:
    peer = await three.peer("a")
    topic = await peer.create("kept", replication_factor=3)
    await three.publish(peer, topic.topic_id, b"one")
    await three.copies((topic.topic_id, 0))
    for name in ("b", "c"):
        await three.stop(name)
    node = three.nodes["a"]
    await three.until(lambda: not any(map(node.broker.cluster.alive, "bc")), "the dead nodes are not detected")
    entry = pb.CommitEntry(topic_id=topic.topic_id, next_offset=1)
    questions: tuple[dict[str, Any], ...] = (
        {"committed": pb.Committed(group="g")},
        {"commit": pb.Commit(group="g", entries=[entry])},
        {"topic_create": pb.TopicCreate(name="more")},
    )
    for question in questions:
        async with asyncio.timeout(forwarding.FORWARD_TIMEOUT_S / 2):
            error = (await peer.ask(**question)).envelope.error
        assert (error.code, error.retriable, error.definite) == (pb.QUORUM_LOST, True, True)
        assert "1 of 3 replicas are alive, 2 are needed; start 'b' or 'c' again" in error.message.replace(
            "'c' or 'b'", "'b' or 'c'"
        )
    assert await peer.read_all(topic.topic_id) == [b"one"]
    await three.until(lambda: "kept/0" in node.lifecycle.health.no_quorum, "the node does not say what it lacks")
    status = (await peer.ask(cluster_status=pb.ClusterStatus(nodes_only=True))).envelope.cluster_status_reply
    assert [one.no_quorum for one in status.nodes if one.node.node_id == "a"] == [len(node.lifecycle.health.no_quorum)]
    await three.start("b")
    await three.until(lambda: not node.lifecycle.health.no_quorum, "it is not over")
    await three.publish(peer, topic.topic_id, b"two")
