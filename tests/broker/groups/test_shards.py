"""Distribution of groups over the partitions of `__offsets`."""

from __future__ import annotations

import pytest
from tests.broker.founded import Founded
from tests.broker.group_member import GroupMember
from tests.broker.peer import Peer, batch
from tests.broker.stand import Stand

from tidelog_broker.broker import Broker
from tidelog_broker.core.groups.positions import OffsetKey
from tidelog_broker.core.topics import OFFSETS_KEY, OFFSETS_TOPIC_ID
from tidelog_broker.metadata import internal_topics
from tidelog_broker.node.node import Node
from tidelog_broker.server.handlers import groups as groups_module
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import KIB
from tidelog_proto.names import OFFSETS_TOPIC

NAMES = [f"group-{number}" for number in range(40)]


async def made(peer: Peer, copies: int = 0) -> bytes:
    topic = await peer.create(replication_factor=copies)
    await peer.publish(topic.topic_id, batch(*[b"x"] * 100))
    return topic.topic_id


async def commit(peer: Peer, topic_id: bytes, group: str, next_offset: int, note: str = "") -> None:
    entry = pb.CommitEntry(topic_id=topic_id, next_offset=next_offset, note=note)
    reply = (await peer.ask(commit=pb.Commit(group=group, entries=[entry]))).envelope
    assert not reply.commit_reply.results[0].HasField("error"), reply


async def position(peer: Peer, group: str) -> int | None:
    while (reply := (await peer.ask(committed=pb.Committed(group=group))).envelope).HasField("error"):
        assert reply.error.retriable, reply
    return next((result.next_offset for result in reply.committed_reply.results), None)


async def listed(peer: Peer) -> list[list[str]]:
    """Return the names of all groups, page by page."""
    pages: list[list[str]] = []
    more, after = True, ""
    while more:
        reply = (await peer.ask(group_list=pb.GroupList(after=after))).envelope.group_list_reply
        pages.append([group.group for group in reply.groups])
        more, after = reply.more, pages[-1][-1] if pages[-1] else ""
    return pages


async def test_groups_keep_their_partition_when_settings_change(stand: Stand) -> None:
    await stand.start(offsets_partitions=8)
    peer = await stand.peer()
    topic_id = await made(peer)
    for number, name in enumerate(NAMES):
        await commit(peer, topic_id, name, number)
    assert len({stand.node.broker.groups.key_of(name) for name in NAMES}) > 5
    assert all(len(shard.positions) < len(NAMES) for shard in stand.node.broker.groups)
    assert stand.node.broker.groups.group_count() == len(NAMES)
    await stand.restart(offsets_partitions=3)
    peer = await stand.peer()
    assert [await position(peer, name) for name in NAMES] == [*range(len(NAMES))]
    assert len(stand.node.broker.groups.all_keys()) == 8
    assert stand.node.broker.topics.named(OFFSETS_TOPIC).config.partitions == 8


async def test_group_list_merges_all_partitions_in_order(
    node: Node, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic_id = await made(peer)
    for name in NAMES:
        await commit(peer, topic_id, name, 1)
    monkeypatch.setattr(groups_module, "PAGE_GROUPS", 7)
    pages = await listed(peer)
    assert [name for page in pages for name in page] == sorted(NAMES)
    assert max(map(len, pages)) == 7
    of_one = (await peer.ask(group_list=pb.GroupList(partition=3))).envelope.group_list_reply
    assert all(node.broker.groups.key_of(group.group)[1] == 3 for group in of_one.groups)
    assert (await peer.refused(group_list=pb.GroupList(partition=16))).code == pb.UNKNOWN_PARTITION


async def test_group_limits_cover_all_partitions(stand: Stand) -> None:
    await stand.start(groups_max=5)
    peer = await stand.peer()
    topic_id = await made(peer)
    for name in NAMES[:5]:
        await commit(peer, topic_id, name, 1)
    entry = pb.CommitEntry(topic_id=topic_id, next_offset=1)
    reply = (await peer.ask(commit=pb.Commit(group="one-more", entries=[entry]))).envelope.commit_reply
    assert reply.results[0].error.code == pb.INVALID_REQUEST
    assert await GroupMember(peer, "t", group="another").refused() == pb.INVALID_REQUEST
    await peer.ask(group_delete=pb.GroupDelete(group=NAMES[0]))
    await commit(peer, topic_id, "one-more", 1)


async def test_offsets_topic_of_an_older_release_keeps_one_partition(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def as_before(self: Broker) -> None:
        await self._internal(OFFSETS_TOPIC, OFFSETS_TOPIC_ID)

    with monkeypatch.context() as patched:
        patched.setattr(Broker, "found_offsets", as_before)
        await stand.start()
        peer = await stand.peer()
        topic_id = await made(peer)
        for number, name in enumerate(NAMES):
            await commit(peer, topic_id, name, number)
        await stand.stop()
    await stand.start()
    peer = await stand.peer()
    assert stand.node.broker.groups.all_keys() == [OFFSETS_KEY]
    assert [await position(peer, name) for name in NAMES] == [*range(len(NAMES))]


async def test_snapshot_makes_a_coordinator_forget_deleted_groups(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(internal_topics, "INTERNAL_SEGMENT_BYTES", 64 * KIB)
    await stand.start(offsets_partitions=2)
    peer, groups = await stand.peer(), stand.node.broker.groups
    topic_id = await made(peer)
    shard = groups.of("stays")
    gone = next(f"gone-{number}" for number in range(1_000) if groups.of(f"gone-{number}") is shard)
    await commit(peer, topic_id, gone, 3)
    old = shard.positions.get(OffsetKey(gone, topic_id, 0))
    assert old is not None
    await peer.ask(group_delete=pb.GroupDelete(group=gone))
    for next_offset in range(1, 50):  # more than a segment
        await commit(peer, topic_id, "stays", next_offset, note="n" * 2000)
    await shard.log.snapshot(await shard.log.ready())
    assert stand.node.broker.partitions.get(*shard.key).state.log_start > 0
    shard.positions.apply(old)  # as a node has it that was the owner before the deletion
    shard.log.applied = 1
    assert await position(peer, gone) is None
    assert await position(peer, "stays") == 49
    assert groups.group_count() == 1


async def test_every_node_finds_each_groups_coordinator(founded: Founded) -> None:
    await founded.found()
    await founded.settled()
    peers = [await founded.peer(name) for name in "abc"]
    topic_id = await made(peers[0], copies=3)
    await founded.copies((topic_id, 0))
    for number, name in enumerate(NAMES):
        await commit(peers[number % 3], topic_id, name, number)
    owners = {founded.owner(key, "a") for key in founded.nodes["a"].broker.groups.all_keys()}
    assert len(owners) > 1, "the groups are spread over several nodes"
    for peer in peers:
        assert [name for page in await listed(peer) for name in page] == sorted(NAMES)
    lost = founded.owner(founded.nodes["a"].broker.groups.key_of(NAMES[0]), "a")
    await founded.crash(lost)
    peer = await founded.peer(next(iter(founded.nodes)))
    assert [await position(peer, name) for name in NAMES] == [*range(len(NAMES))]


async def test_node_without_the_offsets_topic_answers_retriably(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node.broker.topics, "get", lambda _: None)
    with pytest.raises(ProtocolError) as refused:
        node.broker.groups.of("g")
    assert refused.value.code == pb.EPOCH_CHANGING
