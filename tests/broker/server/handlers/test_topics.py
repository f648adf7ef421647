from __future__ import annotations

import asyncio
from functools import partial

import pytest
from tests.broker.founded import Founded
from tests.broker.peer import Peer, batch
from tests.broker.stand import Stand, settled
from tests.holding import entries_of

from tidelog_broker.cluster import route_watch
from tidelog_broker.node.node import Node
from tidelog_broker.server.handlers import metadata
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.limits import (
    DIRTY_PERCENT_DEFAULT,
    PARTITIONS_MAX,
    SEGMENT_BYTES_DEFAULT,
    TOMBSTONE_RETENTION_MS_DEFAULT,
)


async def names(peer: Peer, *, internal: bool = False) -> list[str]:
    reply = (await peer.ask(topic_list=pb.TopicList(internal=internal))).envelope.topic_reply
    return [topic.name for topic in reply.topics]


async def described(peer: Peer, name: str = "t") -> pb.TopicInfo:
    return (await peer.ask(topic_describe=pb.TopicDescribe(name=name))).envelope.topic_reply.topics[0]


def data_dirs(stand: Stand, name: str) -> list[str]:
    return sorted(path.name for path in (stand.path / "partitions").iterdir() if name in path.name)


async def test_created_topic_is_described_with_all_settings(node: Node, peer: Peer) -> None:
    made = await peer.create(partitions=3)
    assert made == await described(peer)
    assert len(made.topic_id) == 16
    assert made.config == pb.TopicConfig(
        partitions=3,
        flush=pb.ALWAYS,
        flush_interval_ms=100,
        segment_bytes=SEGMENT_BYTES_DEFAULT,
        replication_factor=1,
        engine="segment",
        cleanup=pb.DELETE,
        tombstone_retention_ms=TOMBSTONE_RETENTION_MS_DEFAULT,
        dirty_percent=DIRTY_PERCENT_DEFAULT,
        file_model=pb.PER_PARTITION,
    )
    assert [partition.partition for partition in made.partitions] == [0, 1, 2]
    assert {partition.owner for partition in made.partitions} == {node.node_id}


async def test_description_follows_stored_data(peer: Peer) -> None:
    topic = await peer.create(partitions=2)
    await peer.publish(topic.topic_id, batch(b"a", b"b"), partition=1)
    idle, used = (await described(peer)).partitions
    assert (idle.high_watermark, idle.size_bytes) == (0, 0)
    assert (used.high_watermark, used.log_start_offset, used.state) == (2, 0, "active")
    assert used.size_bytes > 0


async def test_topic_list_is_sorted_without_internal_topics(peer: Peer) -> None:
    for name in ("b", "a", "c"):
        await peer.create(name)
    assert await names(peer) == ["a", "b", "c"]
    assert {"__meta", "__offsets"} <= set(await names(peer, internal=True))


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "__mine", "x" * 201, "\u00e9", "a\x00b", "-" * 300])
async def test_invalid_topic_names_are_refused(peer: Peer, name: str) -> None:
    assert (await peer.refused(topic_create=pb.TopicCreate(name=name))).code == pb.INVALID_TOPIC
    assert await names(peer) == []


@pytest.mark.parametrize(
    "config",
    [
        pb.TopicConfig(partitions=PARTITIONS_MAX + 1),
        pb.TopicConfig(segment_bytes=1),
        pb.TopicConfig(flush_interval_ms=10**6),
        pb.TopicConfig(flush=9),  # type: ignore[arg-type]  # a value of a newer client
        pb.TopicConfig(replication_factor=3),
        pb.TopicConfig(engine="leveldb"),
    ],
)
async def test_invalid_topic_settings_are_refused(peer: Peer, config: pb.TopicConfig) -> None:
    error = await peer.refused(topic_create=pb.TopicCreate(name="t", config=config))
    assert error.code == pb.INVALID_REQUEST
    assert await names(peer) == []


async def test_concurrent_creates_of_a_name_create_one_topic(stand: Stand, node: Node) -> None:
    peers = [await stand.peer() for _ in range(4)]
    replies = await asyncio.gather(*[peer.ask(topic_create=pb.TopicCreate(name="t")) for peer in peers])
    kinds = sorted(reply.envelope.WhichOneof("kind") or "" for reply in replies)
    assert kinds == ["error"] * 3 + ["topic_reply"]
    assert {reply.envelope.error.code for reply in replies} == {0, pb.TOPIC_EXISTS}


async def test_unknown_topic_is_refused(peer: Peer) -> None:
    assert (await peer.refused(topic_describe=pb.TopicDescribe(name="no"))).code == pb.UNKNOWN_TOPIC
    assert (await peer.refused(topic_alter=pb.TopicAlter(name="no"))).code == pb.UNKNOWN_TOPIC
    assert (await peer.refused(topic_delete=pb.TopicDelete(name="no"))).code == pb.UNKNOWN_TOPIC
    reply = (await peer.ask(metadata=pb.Metadata(topics=["no"]))).envelope.metadata_reply
    assert (reply.topics[0].name, reply.topics[0].error.code) == ("no", pb.UNKNOWN_TOPIC)


async def test_internal_topics_are_refused_for_clients(peer: Peer) -> None:
    assert (await peer.refused(topic_delete=pb.TopicDelete(name="__meta"))).code == pb.FORBIDDEN
    assert (await peer.refused(topic_alter=pb.TopicAlter(name="__offsets", partitions=3))).code == pb.FORBIDDEN


async def test_alter_changes_only_named_settings_durably(stand: Stand, node: Node, peer: Peer) -> None:
    topic = await peer.create(retention_bytes=1 << 30)
    alter = pb.TopicAlter(name="t", partitions=4, flush=pb.NEVER)
    changed = (await peer.ask(topic_alter=alter)).envelope.topic_reply.topics[0]
    assert (changed.topic_id, changed.config.retention_bytes) == (topic.topic_id, 1 << 30)
    await peer.publish(topic.topic_id, batch(b"new"), partition=3)
    assert (await peer.refused(topic_alter=pb.TopicAlter(name="t", partitions=3))).code == pb.INVALID_REQUEST
    await stand.restart()
    peer = await stand.peer()
    assert (await described(peer)).config == changed.config
    assert await peer.read_all(topic.topic_id, partition=3) == [b"new"]


async def test_recreated_topic_has_another_id(stand: Stand, node: Node, peer: Peer) -> None:
    old = await peer.create()
    await peer.publish(old.topic_id, batch(b"old"))
    labels = {"topic": "t", "partition": "0"}
    gauge = partial(node.broker.metrics.registry.get_sample_value, "tidelog_high_watermark_offset", labels)
    assert gauge() == 1
    await peer.delete("t")
    assert gauge() is None
    new = await peer.create()
    assert new.topic_id != old.topic_id
    assert await peer.read_all(new.topic_id) == []
    assert (await peer.publish(old.topic_id, batch(b"x")))[0].error.code == pb.UNKNOWN_TOPIC
    await peer.publish(new.topic_id, batch(b"new"))
    assert gauge() == 1
    await settled(lambda: not data_dirs(stand, old.topic_id.hex()), "the old data was not deleted")
    assert gauge() == 1
    await stand.restart()
    assert await (await stand.peer()).read_all(new.topic_id) == [b"new"]


async def test_deletion_by_an_old_id_spares_the_recreated_topic(node: Node, peer: Peer) -> None:
    old = await peer.create()
    await peer.ask(topic_delete=pb.TopicDelete(name="t", topic_id=old.topic_id))
    new = await peer.create()
    late = await peer.refused(topic_delete=pb.TopicDelete(name="t", topic_id=old.topic_id))
    assert late.code == pb.UNKNOWN_TOPIC
    assert (await described(peer)).topic_id == new.topic_id


async def test_deleted_data_leaves_the_disk(stand: Stand, node: Node, peer: Peer) -> None:
    topic = await peer.create(partitions=2)
    for partition in (0, 1):
        await peer.publish(topic.topic_id, batch(b"x"), partition=partition)
    assert len(data_dirs(stand, topic.topic_id.hex())) == 4, "two directories, each with its existence marker"
    await peer.delete("t")
    await settled(lambda: not data_dirs(stand, topic.topic_id.hex()), "the data was not deleted")
    assert await names(peer) == []
    await settled(lambda: not node.broker.replication.chains.knows(topic.topic_id, 0), "the chain was not deleted")


@pytest.mark.parametrize("operation", ["rename", "unlink", "remove_dir"])
async def test_next_start_finishes_an_interrupted_deletion(stand: Stand, operation: str) -> None:
    await stand.start()
    peer = await stand.peer()
    topic = await peer.create(partitions=2)
    for partition in (0, 1):
        await peer.publish(topic.topic_id, batch(b"x"), partition=partition)
    stand.disk.hold(operation, topic.topic_id.hex())
    await peer.delete("t")
    await stand.disk.held_up()
    await stand.crash()
    assert data_dirs(stand, topic.topic_id.hex())
    node = await stand.start()
    await settled(lambda: not data_dirs(stand, topic.topic_id.hex()), "the data stays")
    await settled(lambda: not node.broker.replication.chains.knows(topic.topic_id, 0), "the journals keep it")
    assert await names(await stand.peer()) == []


@pytest.mark.parametrize("flush", [pb.ALWAYS, pb.INTERVAL, pb.NEVER])
async def test_deletion_under_load_affects_only_the_topic(
    stand: Stand, node: Node, peer: Peer, flush: pb.Flush
) -> None:
    """Writes, growth of files and timed syncs are on their way when the files go."""
    others = [await stand.peer() for _ in range(3)]
    stays = await peer.create("stays")
    for round_number in range(4):
        topic = await peer.create(flush=flush, flush_interval_ms=1, segment_bytes=64 * 1024)
        numbers = [
            (other, other.post_publish(topic.topic_id, batch(b"x" * 30_000))) for _ in range(6) for other in others
        ]
        if round_number % 2:
            await others[0].published(numbers[0][1])
        await peer.delete("t")
        for other, number in numbers:
            (result,) = await other.published(number)
            assert result.error.code in {0, pb.UNKNOWN_TOPIC}
    assert not (await peer.publish(stays.topic_id, batch(b"still here")))[0].HasField("error")
    assert node.lifecycle.health.state == "running"


async def test_deletion_during_a_takeover_affects_only_the_topic(stand: Stand) -> None:
    await stand.start()
    peer = await stand.peer()
    topic = await peer.create()
    await peer.publish(topic.topic_id, batch(b"old"))
    node = await stand.restart()
    peer, other = await stand.peer(), await stand.peer()
    stand.disk.hold("sync", "fences")
    number = other.post_publish(topic.topic_id, batch(b"new"))
    await stand.disk.held_up()
    deletion = asyncio.create_task(peer.delete("t"))
    await asyncio.wait([deletion], timeout=0.2)
    stand.disk.heal()
    await deletion
    (result,) = await other.published(number)
    assert result.error.code in {0, pb.UNKNOWN_TOPIC}
    assert (await peer.create("next")).name == "next"
    assert node.lifecycle.health.state == "running"


@pytest.mark.parametrize("end", ["stop", "crash"])
async def test_topics_survive_a_restart(stand: Stand, end: str) -> None:
    await stand.start()
    peer = await stand.peer()
    made = [await peer.create(name, partitions=2) for name in ("a", "b")]
    await peer.create("gone")
    await peer.delete("gone")
    await getattr(stand, end)()
    await stand.start()
    peer = await stand.peer()
    assert await names(peer) == ["a", "b"]
    found = [await described(peer, name) for name in ("a", "b")]
    assert [topic.topic_id for topic in found] == [topic.topic_id for topic in made]
    assert [topic.config for topic in found] == [topic.config for topic in made]


async def test_metadata_contains_the_node_and_all_public_topics(node: Node, peer: Peer) -> None:
    topic = await peer.create(partitions=2)
    reply = (await peer.ask(metadata=pb.Metadata())).envelope.metadata_reply
    assert reply.cluster_id == node.broker.cluster_id
    assert [(one.host, one.port, one.alive) for one in reply.nodes] == [("127.0.0.1", node.port, True)]
    assert [one.topic_id for one in reply.topics] == [topic.topic_id]
    assert [one.owner for one in reply.topics[0].partitions] == [node.node_id] * 2
    many = [str(number) for number in range(4097)]
    assert (await peer.refused(metadata=pb.Metadata(topics=many))).code == pb.INVALID_REQUEST


def asks_for_news(topic_id: bytes, *news_from: int, wait_ms: int = 10_000) -> pb.Metadata:
    return pb.Metadata(topics=["t"], wait_ms=wait_ms, known=[pb.KnownEpochs(topic_id=topic_id, news_from=news_from)])


def up_to_date(topic: pb.TopicInfo) -> list[int]:
    return [partition.epoch + 1 for partition in topic.partitions]


async def test_metadata_without_changes_is_held(node: Node, peer: Peer) -> None:
    topic = await peer.create(partitions=1)
    for stale in ([0], []):  # known changes are answered at once, without the long wait
        async with asyncio.timeout(5):
            await peer.ask(metadata=asks_for_news(topic.topic_id, *stale))
    held = asyncio.ensure_future(peer.ask(metadata=asks_for_news(topic.topic_id, *up_to_date(topic))))
    await peer.create("another")
    await peer.publish(topic.topic_id, batch(b"one"))
    assert not held.done(), "neither is news about the topic"
    await peer.ask(topic_alter=pb.TopicAlter(name="t", partitions=2))
    async with asyncio.timeout(5):
        (told,) = (await held).envelope.metadata_reply.topics
        assert [partition.partition for partition in told.partitions] == [1]
    assert not entries_of(node.broker.route_news)


async def test_metadata_hold_ends_at_the_requested_time(peer: Peer) -> None:
    topic = await peer.create(partitions=1)
    async with asyncio.timeout(5):
        reply = await peer.ask(metadata=asks_for_news(topic.topic_id, *up_to_date(topic), wait_ms=1))
    assert [one.name for one in reply.envelope.metadata_reply.topics] == ["t"]


@pytest.mark.parametrize("end", ["the node stops", "the client goes"])
async def test_held_metadata_does_not_block_other_requests(
    stand: Stand,
    node: Node,
    peer: Peer,
    end: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = await peer.create(partitions=1)
    held = asyncio.ensure_future(peer.ask(metadata=asks_for_news(topic.topic_id, *up_to_date(topic))))
    await peer.create("another")
    assert entries_of(node.broker.route_news)
    async with asyncio.timeout(5):
        if end == "the node stops":
            await stand.stop()
            assert (await held).envelope.WhichOneof("kind") == "metadata_reply"
        else:
            held.cancel()
            made: list[str] = []
            monkeypatch.setattr(node.broker.cluster, "nodes", partial(made.append, "an unread answer"))
            await peer.close()
            while entries_of(node.broker.route_news):  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.01)
            assert not made


async def test_held_metadata_returns_only_changes(node: Node, peer: Peer) -> None:
    topic = await peer.create(partitions=4)
    known = up_to_date(topic)

    async def told(*news_from: int, topic_id: bytes = topic.topic_id) -> list[int]:
        async with asyncio.timeout(5):
            reply = await peer.ask(metadata=asks_for_news(topic_id, *news_from, wait_ms=20))
        (info,) = reply.envelope.metadata_reply.topics
        return [partition.partition for partition in info.partitions]

    assert await told(*known) == [], "the time is over, and there is no news"
    assert await told(*known[:2], 0, known[3]) == [2]
    assert await told(*known[:3]) == [3]
    assert await told() == [0, 1, 2, 3]
    assert await told(*known, topic_id=b"?" * 16) == [0, 1, 2, 3], "the client's epochs belong to another topic"
    everything = pb.Metadata(wait_ms=20, known=[pb.KnownEpochs(topic_id=topic.topic_id, news_from=known)])
    (info,) = (await peer.ask(metadata=everything)).envelope.metadata_reply.topics
    assert len(info.partitions) == 4, "the client has not named topics"


async def test_changes_beyond_a_page_are_sent_next_time(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "ROUTED_ENTRIES", 3)
    topic = await peer.create(partitions=5)
    news_from = [0] * 5
    for expected in ([0, 1, 2], [3, 4], []):
        reply = await peer.ask(metadata=asks_for_news(topic.topic_id, *news_from, wait_ms=20))
        (info,) = reply.envelope.metadata_reply.topics
        assert [partition.partition for partition in info.partitions] == expected
        for partition in info.partitions:
            news_from[partition.partition] = partition.epoch + 1


async def test_too_many_known_epochs_are_refused(peer: Peer) -> None:
    for known in ([pb.KnownEpochs()] * 4097, [pb.KnownEpochs(news_from=[0] * 131_073)]):
        assert (await peer.refused(metadata=pb.Metadata(wait_ms=1, known=known))).code == pb.INVALID_REQUEST


async def test_inconsistent_metadata_requests_are_answered(peer: Peer) -> None:
    topic = await peer.create(partitions=1)
    absurd = pb.KnownEpochs(topic_id=topic.topic_id, news_from=[2**64 - 1] * 4096)
    repeated = pb.Metadata(topics=["t"] * 3, wait_ms=20, known=[absurd] * 8)
    assert len((await peer.ask(metadata=repeated)).envelope.metadata_reply.topics) == 1, (
        "a topic named twice is answered once"
    )
    async with asyncio.timeout(5):  # at once: none of these is a topic
        for topic_id in (b"", b"?", b"?" * 16, b"?" * 5000):
            await peer.ask(metadata=asks_for_news(topic_id, 0, wait_ms=2**32 - 1))


@pytest.mark.parametrize("again", [False, True])
async def test_topic_deletion_ends_held_metadata(node: Node, peer: Peer, *, again: bool) -> None:
    topic = await peer.create(partitions=1)
    held = asyncio.ensure_future(peer.ask(metadata=asks_for_news(topic.topic_id, *up_to_date(topic))))
    await peer.ask(metadata=pb.Metadata())
    assert not held.done()
    await peer.ask(topic_delete=pb.TopicDelete(name="t"))
    made = await peer.create(partitions=1) if again else None
    async with asyncio.timeout(5):
        (told,) = (await held).envelope.metadata_reply.topics
    if made is None or told.HasField("error"):
        assert told.error.code == pb.UNKNOWN_TOPIC
    else:
        assert told.topic_id == made.topic_id
    assert not entries_of(node.broker.route_news)


async def test_metadata_beyond_the_hold_limit_is_answered_at_once(
    node: Node, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await peer.create(partitions=1)
    monkeypatch.setattr(route_watch, "HELD_BYTES_MAX", 6000)
    held = asyncio.ensure_future(peer.ask(metadata=asks_for_news(topic.topic_id, *up_to_date(topic))))
    await peer.ask(metadata=pb.Metadata())
    async with asyncio.timeout(5):
        await peer.ask(metadata=asks_for_news(topic.topic_id, *up_to_date(topic)))
    assert not held.done()
    held.cancel()


async def test_new_owner_ends_held_metadata(founded: Founded) -> None:
    await founded.found()
    await founded.settled()
    topic_id, owner, other = await founded.used()
    peer = await founded.peer(other)
    topic = await described(peer)
    held = asyncio.ensure_future(peer.ask(metadata=asks_for_news(topic_id, *up_to_date(topic), wait_ms=10_000)))
    await peer.ask(metadata=pb.Metadata())
    assert not held.done()
    await founded.stop(owner)
    async with asyncio.timeout(5):
        (told,) = (await held).envelope.metadata_reply.topics
    assert told.partitions[0].owner not in ("", owner)


async def test_status_counts_partitions_and_bytes(node: Node, peer: Peer) -> None:
    topic = await peer.create()
    await peer.publish(topic.topic_id, batch(b"x"))
    reply = (await peer.ask(cluster_status=pb.ClusterStatus())).envelope.cluster_status_reply
    (status,) = reply.nodes
    assert (status.state, status.connections, status.node.node_id) == ("running", 1, node.node_id)
    assert status.data_bytes > 0
    assert status.disk_free_bytes > 0
    assert [one.name for one in reply.topics] == ["__meta", "__offsets", "t"]


async def test_any_node_describes_a_topic_with_its_owners_data(founded: Founded) -> None:
    await founded.found()
    await founded.settled()
    peer = await founded.peer("a")
    topic = await peer.create(partitions=6, replication_factor=1)
    assert len({partition.owner for partition in topic.partitions}) > 1
    for partition in topic.partitions:
        owner = await founded.peer(partition.owner)
        await founded.publish(owner, topic.topic_id, b"one", b"two", partition=partition.partition)
    for via in "abc":
        info = await described(await founded.peer(via))
        assert [(one.high_watermark, one.state, one.size_bytes > 0) for one in info.partitions] == [
            (2, "active", True)
        ] * 6


async def test_any_node_reports_a_failed_copy(founded: Founded) -> None:
    await founded.found()
    await founded.settled()
    topic_id, owner, other = await founded.used()
    founded.nodes[other].broker.partitions.get(topic_id, 0).replica.state.halt("damaged for a test")
    for via in "abc":
        (partition,) = (await described(await founded.peer(via))).partitions
        faults = {replica.node_id: replica.copy_fault for replica in partition.replicas}
        assert faults == dict.fromkeys("abc", "") | {other: "limbo"}, f"{owner} owns it"
