"""Requests of group members and administrators at one node, over a real connection."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest
from tests.broker.group_member import GroupMember, share
from tests.broker.metric import value_of
from tests.broker.peer import Peer, batch
from tests.broker.stand import Stand

from tidelog_broker.core.groups import consumer_group
from tidelog_broker.groups import descriptions as descriptions_module
from tidelog_broker.metadata.state_log import OffsetsLog
from tidelog_broker.node.node import Node
from tidelog_broker.server.handlers import groups as groups_module
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

GOOD_ID = "a" * 16


async def make(peer: Peer, name: str = "t", partitions: int = 4) -> bytes:
    topic = await peer.create(name, partitions=partitions)
    for partition in range(partitions):
        await peer.publish(topic.topic_id, batch(*[b"x"] * 10), partition=partition)
    return topic.topic_id


async def describe(peer: Peer, group: str = "g") -> pb.GroupDescribeReply:
    return (await peer.ask(group_describe=pb.GroupDescribe(group=group))).envelope.group_describe_reply


async def listed(peer: Peer, after: str = "") -> pb.GroupListReply:
    return (await peer.ask(group_list=pb.GroupList(after=after))).envelope.group_list_reply


async def commit_code(peer: Peer, topic_id: bytes, *, group: str = "g", offset: int = 1, partition: int = 0) -> int:
    entry = pb.CommitEntry(topic_id=topic_id, partition=partition, next_offset=offset)
    envelope = (await peer.ask(commit=pb.Commit(group=group, entries=[entry]))).envelope
    return envelope.error.code or envelope.commit_reply.results[0].error.code


async def test_second_member_shares_partitions(peer: Peer) -> None:
    topic_id = await make(peer)
    ada, bob = GroupMember(peer, "t"), GroupMember(peer, "t")
    reply = await ada.ask()
    assert [(one.topic_id, one.topic) for one in reply.assigned] == [(topic_id, "t")]
    assert ada.held == {0, 1, 2, 3}
    assert (await ada.ask()).unchanged
    await share(ada, bob, partitions=4)
    assert len(ada.held) == len(bob.held) == 2
    described = await describe(peer)
    assert described.summary.state == "stable"
    assert (described.summary.members, described.summary.generation) == (2, 2)
    assert {topic.name for topic in described.topics} == {"t"}


async def test_load_based_group_asks_members_for_loads(peer: Peer) -> None:
    await make(peer)
    ada, bob = GroupMember(peer, "t"), GroupMember(peer, "t", assignor=pb.BY_LOAD)
    assert not (await ada.ask()).wants_loads
    assert not (await ada.ask()).wants_loads
    assert (await bob.ask()).wants_loads, "with news"
    assert (await ada.ask()).wants_loads, "another member has said so"
    unchanged = await ada.ask()
    assert unchanged.unchanged
    assert unchanged.wants_loads
    eve = GroupMember(peer, "t", assignor=pb.STICKY)
    assert not (await eve.ask()).wants_loads


async def test_members_wait_while_a_record_has_an_unknown_outcome(
    stand: Stand, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make(peer)
    ada, bob = GroupMember(peer, "t"), GroupMember(await stand.peer(), "t")
    await ada.ask()
    write, gate = OffsetsLog.write_group, asyncio.Event()

    async def times_out(_: OffsetsLog, record: pb.GroupRecord, *, epoch: int) -> None:
        del epoch
        raise ProtocolError(pb.TIMED_OUT, f"revision {record.revision} may come about")

    async def waits(self: OffsetsLog, record: pb.GroupRecord, *, epoch: int) -> None:
        await gate.wait()
        await write(self, record, epoch=epoch)

    monkeypatch.setattr(OffsetsLog, "write_group", times_out)
    assert await bob.refused() == pb.TIMED_OUT
    monkeypatch.setattr(OffsetsLog, "write_group", waits)
    number = ada.post()
    await asyncio.sleep(0.2)
    assert not peer.answered(number)
    gate.set()
    await ada.taken(number)
    assert (await describe(peer)).summary.members == 1


async def test_heartbeat_is_held_until_a_change(stand: Stand, peer: Peer) -> None:
    await make(peer)
    ada, bob = GroupMember(peer, "t"), GroupMember(await stand.peer(), "t")
    await ada.ask()
    number = ada.post(wait_ms=10_000)
    await asyncio.sleep(0.1)
    assert not peer.answered(number)
    await bob.ask()
    await ada.taken(number)
    assert len(ada.held) == 2, "the member got the revocation at once"
    waiting = bob.post(wait_ms=10_000)
    await ada.ask()
    await bob.taken(waiting)
    assert len(bob.held) == 2


async def test_heartbeat_is_held_for_at_most_a_third_of_the_session(peer: Peer) -> None:
    await make(peer)
    ada = GroupMember(peer, "t", session_ms=900)
    await ada.ask()
    began_s = time.monotonic()
    assert (await ada.ask(wait_ms=60_000)).unchanged
    assert 0.25 < time.monotonic() - began_s < 5


async def test_leaving_member_is_replaced_at_once(stand: Stand, peer: Peer) -> None:
    await make(peer)
    ada, bob = GroupMember(peer, "t"), GroupMember(await stand.peer(), "t")
    await share(ada, bob, partitions=4)
    waiting = bob.post(wait_ms=10_000)
    await ada.leave()
    await bob.taken(waiting)
    assert bob.held == {0, 1, 2, 3}
    assert await ada.refused() == pb.MEMBER_FENCED
    await ada.leave()  # twice is once


async def test_late_join_of_a_departed_member_is_fenced(stand: Stand, peer: Peer) -> None:
    """It is answered late, where the coordinator had to be found first, and whoever sent it has gone meanwhile."""
    await make(peer)
    late, bob = GroupMember(await stand.peer(), "t"), GroupMember(peer, "t")
    await late.leave()
    assert await late.refused() == pb.MEMBER_FENCED
    await bob.ask()
    assert bob.held == {0, 1, 2, 3}


async def test_expired_member_cannot_commit(node: Node, stand: Stand, peer: Peer) -> None:
    topic_id = await make(peer)
    ada, bob = GroupMember(peer, "t", session_ms=600), GroupMember(await stand.peer(), "t")
    await share(ada, bob, partitions=4)
    (mine, *_) = ada.held
    assert await ada.commit(topic_id, mine, 5) == 0
    assert await bob.commit(topic_id, mine, 6) == pb.MEMBER_FENCED
    while len(bob.held) < 4:
        await bob.ask(wait_ms=2000)
    assert ada.membership.is_over(time.monotonic()), "it has stopped before others have what it had"
    assert await ada.commit(topic_id, mine, 7) == pb.MEMBER_FENCED
    assert await bob.commit(topic_id, mine, 8) == 0
    assert value_of(node, "tidelog_group_members_fenced_total") == 1
    assert value_of(node, "tidelog_group_members") == 1
    assert value_of(node, "tidelog_groups") == 1
    assert value_of(node, "tidelog_group_generations_total") == 3


async def test_disconnected_member_stays_for_its_session(stand: Stand, peer: Peer) -> None:
    """The member may read on by its own clock: until then no other member may get its partitions."""
    await make(peer)
    gone, bob = GroupMember(await stand.peer(), "t", session_ms=8_000), GroupMember(peer, "t")
    await share(gone, bob, partitions=4)
    gone.post(wait_ms=10_000)
    await asyncio.sleep(0.05)
    await gone.peer.close()
    end_s = time.monotonic() + 4.5
    while time.monotonic() < end_s:
        await bob.ask(wait_ms=500)
        assert len(bob.held) == 2 or gone.membership.is_over(time.monotonic())


async def test_commit_without_membership_needs_an_empty_group(peer: Peer) -> None:
    topic_id = await make(peer)
    assert await commit_code(peer, topic_id) == 0
    ada = GroupMember(peer, "t")
    await ada.ask()
    assert await commit_code(peer, topic_id, offset=2) == pb.GROUP_NOT_EMPTY
    await ada.leave()
    assert await commit_code(peer, topic_id, offset=3) == 0


async def test_unknown_group_is_refused(peer: Peer) -> None:
    assert (await peer.refused(group_describe=pb.GroupDescribe(group="no"))).code == pb.UNKNOWN_GROUP
    assert (await peer.refused(group_delete=pb.GroupDelete(group="no"))).code == pb.UNKNOWN_GROUP
    assert not (await listed(peer)).groups
    stranger = pb.GroupHeartbeat(group="no", member_id=GOOD_ID)
    assert (await peer.refused(group_heartbeat=stranger)).code == pb.MEMBER_FENCED
    await peer.ask(group_heartbeat=pb.GroupHeartbeat(group="no", member_id=GOOD_ID, leave=True))
    assert not (await listed(peer)).groups


async def test_deleted_group_loses_positions_and_can_be_recreated(stand: Stand, peer: Peer) -> None:
    topic_id = await make(peer)
    ada = GroupMember(peer, "t")
    await ada.ask()
    assert await ada.commit(topic_id, 0, 5) == 0
    assert (await peer.refused(group_delete=pb.GroupDelete(group="g"))).code == pb.GROUP_NOT_EMPTY
    await ada.leave()
    assert (await peer.ask(group_delete=pb.GroupDelete(group="g"))).envelope.HasField("group_delete_reply")
    assert not (await listed(peer)).groups
    assert (await peer.refused(group_describe=pb.GroupDescribe(group="g"))).code == pb.UNKNOWN_GROUP
    again = GroupMember(peer, "t")
    await again.ask()
    assert await again.commit(topic_id, 0, 2) == 0
    await stand.restart()
    peer = await stand.peer()
    described = await describe(peer)
    assert (described.summary.positions, described.summary.members) == (1, 1)
    (result,) = (await peer.ask(committed=pb.Committed(group="g"))).envelope.committed_reply.results
    assert result.next_offset == 2


async def test_requests_during_a_group_deletion_wait_or_are_refused(stand: Stand, node: Node, peer: Peer) -> None:
    """A commit after the deletion would be lost although the client got a success."""
    topic_id = await make(peer)
    assert await commit_code(peer, topic_id, offset=5) == 0
    stand.disk.hold("sync", "__offsets")
    number = peer.post(group_delete=pb.GroupDelete(group="g"))
    await stand.disk.held_up()
    other = await stand.peer()
    assert await commit_code(other, topic_id, offset=6) == pb.EPOCH_CHANGING
    assert (await other.refused(group_delete=pb.GroupDelete(group="g"))).code == pb.EPOCH_CHANGING
    joining = GroupMember(other, "t")
    assert await joining.refused() == pb.EPOCH_CHANGING
    stand.disk.heal()
    await peer.reply(number)
    assert await commit_code(peer, topic_id, offset=2) == 0
    await stand.restart()
    (result,) = (await (await stand.peer()).ask(committed=pb.Committed(group="g"))).envelope.committed_reply.results
    assert result.next_offset == 2


async def test_group_list_is_paginated_by_name(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    topic_id = await make(peer, partitions=1)
    names = [f"group-{number}" for number in range(7)]
    for name in names:
        assert await commit_code(peer, topic_id, group=name) == 0
    ada = GroupMember(peer, "t", group="with-members")
    await ada.ask()
    for page_groups, effort in ((3, 1 << 30), (100, 1)):
        monkeypatch.setattr(groups_module, "PAGE_GROUPS", page_groups)
        monkeypatch.setattr(groups_module, "PAGE_EFFORT", effort)
        found: list[str] = []
        while True:
            page = await listed(peer, found[-1] if found else "")
            assert page.groups
            found += [group.group for group in page.groups]
            if not page.more:
                break
        assert found == [*names, "with-members"]
    (last,) = (await listed(peer, names[-1])).groups
    assert (last.members, last.state, last.last_commit_us) == (1, "stable", 0)


async def test_assignment_follows_topic_changes(peer: Peer) -> None:
    await make(peer, partitions=2)
    ada = GroupMember(peer, "t", "later", pattern="made-.*")
    await ada.ask()
    assert len(ada.membership.held) == 2
    await peer.ask(topic_alter=pb.TopicAlter(name="t", partitions=3))
    await ada.ask(wait_ms=5_000)
    assert ada.held == {0, 1, 2}
    await make(peer, "later", 1)
    await make(peer, "made-1", 2)
    while len(ada.membership.held) < 6:
        await ada.ask(wait_ms=2_000)
    await peer.delete("t")
    while len(ada.membership.held) > 3:
        await ada.ask(wait_ms=2_000)
    await ada.ask()  # says that it has given them up
    while (described := await describe(peer)).summary.state != "stable":
        await ada.ask(wait_ms=100)
    assert sorted(topic.name for topic in described.topics) == ["later", "made-1"]
    await make(peer, "t", 1)
    while len(ada.membership.held) < 4:
        await ada.ask(wait_ms=2_000)


@pytest.mark.parametrize("end", ["stop", "crash"])
async def test_members_and_generations_survive_a_restart(stand: Stand, end: str) -> None:
    await stand.start()
    peer = await stand.peer()
    topic_id = await make(peer)
    ada, bob = GroupMember(peer, "t"), GroupMember(peer, "t")
    await share(ada, bob, partitions=4)
    (mine, *_) = ada.held
    assert await ada.commit(topic_id, mine, 5) == 0
    held, generation = (set(ada.held), set(bob.held)), ada.membership.generation
    await getattr(stand, end)()
    await stand.start()
    ada.peer = bob.peer = await stand.peer()
    assert await ada.commit(topic_id, mine, 6) == 0
    await ada.ask()
    await bob.ask()
    assert (ada.held, bob.held) == held
    assert ada.membership.generation == generation


async def test_stopping_node_answers_held_heartbeats(stand: Stand, node: Node, peer: Peer) -> None:
    await make(peer)
    ada = GroupMember(peer, "t")
    await ada.ask()
    number = ada.post(wait_ms=10_000)
    await asyncio.sleep(0.05)
    began_s = time.monotonic()
    await stand.stop()
    assert time.monotonic() - began_s < 2.5
    with contextlib.suppress(ConnectionError):
        await ada.tried(number)
    await stand.start()


async def test_number_of_groups_is_limited(stand: Stand) -> None:
    await stand.start(groups_max=2, offsets_partitions=1)
    peer = await stand.peer()
    topic_id = await make(peer)
    stand.disk.hold("sync", "__offsets")
    first = [GroupMember(await stand.peer(), "t", group=f"g{number}") for number in range(3)]
    numbers = [member.post() for member in first]
    await stand.disk.held_up()
    assert (await first[2].peer.reply(numbers[2])).envelope.error.code == pb.INVALID_REQUEST, "two are on their way"
    stand.disk.heal()
    for member, number in zip(first[:2], numbers[:2], strict=True):
        await member.taken(number)
    assert await commit_code(peer, topic_id, group="another") == pb.INVALID_REQUEST
    second = GroupMember(peer, "t", group="g0")
    await second.ask()
    assert await first[0].commit(topic_id, 0, 1) == 0


async def test_exhausted_group_memory_refuses_members(stand: Stand) -> None:
    await stand.start(positions_bytes=20_000)
    peer = await stand.peer()
    await make(peer)
    refused = 0
    for _ in range(20):
        error = await GroupMember(peer, "t", host="h" * 250).tried()
        assert not error.code or "positions_bytes" in error.message
        refused += bool(error.code)
    assert 0 < refused < 20


async def test_number_of_members_and_partitions_is_limited(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    await make(peer, partitions=3)
    monkeypatch.setattr(consumer_group, "MEMBERS_MAX", 1)
    monkeypatch.setattr(consumer_group, "PARTITIONS_MAX", 2)
    assert await GroupMember(peer, "t").refused() == pb.INVALID_REQUEST
    assert not (await listed(peer)).groups
    monkeypatch.setattr(consumer_group, "PARTITIONS_MAX", 3)
    ada = GroupMember(peer, "t")
    await ada.ask()
    assert await GroupMember(peer, "t").refused() == pb.INVALID_REQUEST
    assert (await ada.ask()).unchanged


WISH = pb.GroupWish(topics=["t"])


@pytest.mark.parametrize(
    "asked",
    [
        pb.GroupHeartbeat(group="", member_id=GOOD_ID, join=WISH),
        pb.GroupHeartbeat(group="x" * 256, member_id=GOOD_ID, join=WISH),
        pb.GroupHeartbeat(group="g", member_id="short", join=WISH),
        pb.GroupHeartbeat(group="g", member_id="a" * 65, join=WISH),
        pb.GroupHeartbeat(group="g", member_id="ä" * 16, join=WISH),
        pb.GroupHeartbeat(group="g", member_id="a" * 15 + "\n", join=WISH),
        pb.GroupHeartbeat(group="g", member_id=GOOD_ID, join=pb.GroupWish()),
        pb.GroupHeartbeat(group="g", member_id=GOOD_ID, join=pb.GroupWish(topics=[""])),
        pb.GroupHeartbeat(group="g", member_id=GOOD_ID, join=pb.GroupWish(topics=["__meta"], pattern="(")),
        pb.GroupHeartbeat(group="g", member_id=GOOD_ID, join=pb.GroupWish(pattern="a)|(?:b")),
        pb.GroupHeartbeat(group="g", member_id=GOOD_ID, join=pb.GroupWish(topics=["t"], session_timeout_ms=1)),
        pb.GroupHeartbeat(group="g", member_id=GOOD_ID, join=pb.GroupWish(topics=["t"], session_timeout_ms=2**31)),
        pb.GroupHeartbeat(group="g", member_id=GOOD_ID, join=pb.GroupWish(topics=["t"], instance_id="\x00")),
        pb.GroupHeartbeat(group="g", member_id=GOOD_ID, join=pb.GroupWish(topics=["t"], instance_id="i" * 256)),
        pb.GroupHeartbeat(group="g", member_id=GOOD_ID, join=pb.GroupWish(topics=["t"], client_id="c" * 256)),
        pb.GroupHeartbeat(group="g", member_id=GOOD_ID, join=pb.GroupWish(topics=["t"], host="a\nb")),
        pb.GroupHeartbeat(group="g", member_id=GOOD_ID, loads=[pb.PartitionLoad(bytes_per_s=float("nan"))]),
        pb.GroupHeartbeat(group="g", member_id=GOOD_ID, loads=[pb.PartitionLoad(bytes_per_s=float("inf"))]),
        pb.GroupHeartbeat(group="g", member_id=GOOD_ID, loads=[pb.PartitionLoad(bytes_per_s=-1)]),
        pb.GroupHeartbeat(
            group="g", member_id=GOOD_ID, held=[pb.TopicPartitions(topic_id=b"t", partitions=[1] * 100_001)]
        ),
    ],
)
async def test_invalid_heartbeats_are_refused(peer: Peer, asked: pb.GroupHeartbeat) -> None:
    assert (await peer.refused(group_heartbeat=asked)).code in {pb.INVALID_REQUEST, pb.INVALID_TOPIC}
    assert not (await listed(peer)).groups


async def test_unusual_heartbeats_are_accepted(peer: Peer) -> None:
    await make(peer)
    ada = GroupMember(peer, "t", assignor=77, born_us=-5)  # a way that may come to be
    await ada.ask()
    assert ada.held == {0, 1, 2, 3}
    said = ada.membership.heartbeat(wait_ms=2**32 - 1)
    said.seen_revision = 0
    said.held.add(topic_id=b"?" * 99, partitions=[2**32 - 1, 5, 5])
    said.loads.add(topic_id=b"", partition=9, bytes_per_s=1e12)
    assert (await peer.ask(group_heartbeat=said)).envelope.HasField("group_heartbeat_reply")
    for bad in ("", "x" * 256, "a\nb"):
        assert (await peer.refused(group_describe=pb.GroupDescribe(group=bad))).code == pb.INVALID_REQUEST
        assert (await peer.refused(group_delete=pb.GroupDelete(group=bad))).code == pb.INVALID_REQUEST
        await listed(peer, bad)


async def test_full_disk_refuses_joins_and_keeps_members(stand: Stand) -> None:
    await stand.start(offsets_partitions=1)
    peer = await stand.peer()
    topic_id = await make(peer)
    ada = GroupMember(peer, "t", session_ms=1500)
    await ada.ask()
    stand.disk.fill_up()
    for note in ("n" * 4000, "n" * 300, ""):  # until what is allocated is full
        for offset in range(2000):
            entry = pb.CommitEntry(topic_id=topic_id, next_offset=offset % 2, note=note)
            asked = pb.Commit(group="other", entries=[entry], reset=True)
            if (await peer.ask(commit=asked)).envelope.HasField("error"):
                break
        else:
            raise AssertionError("the disk took everything")
    for number in range(3):
        assert await GroupMember(peer, "t", group=f"new-{number}").refused() == pb.DISK_FULL
    assert {group.group for group in (await listed(peer)).groups} == {"g", "other"}
    bob = GroupMember(peer, "t", host="h" * 250, client_id="c" * 250)
    assert await bob.refused() == pb.DISK_FULL
    assert (await ada.ask()).unchanged, "an assignment that is not durable is not sent"
    await asyncio.sleep(1.9)  # its expiry cannot be written: it is a member, and is expected again
    stand.disk.heal()
    await ada.ask()
    assert ada.held == {0, 1, 2, 3}
    later = GroupMember(peer, "t", host="h" * 250)
    await share(ada, later, partitions=4)
    while len(later.held) < 4:
        await later.ask(wait_ms=1000)
    assert await ada.refused() == pb.MEMBER_FENCED


async def test_oversized_group_description_is_shortened(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("t", "u"):
        await make(peer, name, 2)
    ada, bob = GroupMember(peer, "t", "u"), GroupMember(peer, "t")
    await ada.ask()
    await bob.ask()
    assert not (await describe(peer)).shortened
    monkeypatch.setattr(descriptions_module, "PAGE_BYTES", 25)
    described = await describe(peer)
    assert described.shortened
    assert len(described.topics) == 1
    monkeypatch.setattr(descriptions_module, "PARTITIONS_BYTES", 0)
    described = await describe(peer)
    assert [member.member_id for member in described.members]
    assert not any(member.target for member in described.members)
    carol = GroupMember(peer, "t", "u", group="other")
    reply = await carol.ask()
    assert len(reply.assigned) == 2, "all partitions are sent, names only as far as they fit"
    assert sum(bool(topic.topic) for topic in reply.assigned) == 2 or not reply.assigned[-1].topic
