"""The coordinator in a cluster: crash, move, partition and stop, with members that continue."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest
from tests.broker.founded import Founded
from tests.broker.group_member import GroupMember, share
from tests.broker.metric import value_of
from tests.broker.peer import Peer, batch

from tidelog_broker.core.groups.member_access import UNRESTRICTED, MemberAccess
from tidelog_broker.core.security.session import Session
from tidelog_broker.core.topics import OFFSETS_KEY
from tidelog_broker.groups import coordinator as coordinator_module
from tidelog_broker.groups.coordinator import Coordinator
from tidelog_broker.node.node import Node
from tidelog_broker.partition.access import Access
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError


@pytest.fixture
async def three(founded: Founded) -> Founded:
    await founded.found()
    await founded.settled()
    await founded.until(lambda: founded.owner(OFFSETS_KEY, "a") != "", "__offsets has no owner")
    return founded


def coordinator_of(cluster: Founded) -> str:
    name = next(iter(cluster.nodes))
    return cluster.owner(cluster.nodes[name].broker.groups.key_of("g"), name)


async def ready_coordinator(cluster: Founded) -> tuple[Coordinator, int]:
    """Return the coordinator of group "g" and its epoch, also if the partition changes its owner meanwhile."""
    async with asyncio.timeout(30):
        while True:
            owner = coordinator_of(cluster)
            if owner in cluster.nodes:
                coordinator = cluster.nodes[owner].broker.groups.of("g").coordinator
                with contextlib.suppress(ProtocolError):
                    return coordinator, await coordinator.ready()
            await asyncio.sleep(0.05)


def another_than(cluster: Founded, *names: str) -> str:
    return next(name for name in cluster.nodes if name not in names)


async def topic(cluster: Founded, peer: Peer, partitions: int = 4) -> bytes:
    made = await peer.create("t", partitions=partitions, replication_factor=3)
    for partition in range(partitions):
        await cluster.publish(peer, made.topic_id, b"x", partition=partition)
    return made.topic_id


async def ask_again(member: GroupMember) -> None:
    """Ask as a client does: again, as long as the outcome is unknown or another node may do it soon."""
    async with asyncio.timeout(30):
        while True:
            error = await member.tried()
            if not error.code:
                return
            assert error.retriable, error
            await asyncio.sleep(0.02)


async def commit_again(member: GroupMember, topic_id: bytes, partition: int, offset: int) -> int:
    async with asyncio.timeout(30):
        while True:
            code = await member.commit(topic_id, partition, offset)
            if code not in {pb.EPOCH_CHANGING, pb.TIMED_OUT, pb.NOT_OWNER, pb.QUORUM_LOST}:
                return code
            await asyncio.sleep(0.02)


async def test_members_continue_after_the_coordinator_is_killed(three: Founded) -> None:
    coordinator = coordinator_of(three)
    running = another_than(three, coordinator)
    peer = await three.peer(running)
    topic_id = await topic(three, peer)
    ada, bob = GroupMember(peer, "t"), GroupMember(await three.peer(running), "t")
    await share(ada, bob, partitions=4)
    held, generation = (set(ada.held), set(bob.held)), ada.membership.generation
    mine = min(ada.held)
    assert await commit_again(ada, topic_id, mine, 7) == 0
    waiting = bob.post(wait_ms=3_000)
    await asyncio.sleep(0.05)
    began_s = time.monotonic()
    await three.crash(coordinator)
    await ask_again(ada)
    assert time.monotonic() - began_s < 10, "it is 0.4 s where nothing else runs"
    error = await bob.tried(waiting)
    assert error.retriable or not error.code
    await ask_again(bob)
    assert (ada.held, bob.held) == held
    assert ada.membership.generation == generation
    assert coordinator_of(three) != coordinator
    reply = (await peer.ask(committed=pb.Committed(group="g"))).envelope.committed_reply
    assert [result.next_offset for result in reply.results] == [7]
    assert await commit_again(ada, topic_id, mine, 8) == 0
    await three.until(
        lambda: sorted(value_of(node, "tidelog_group_members") for node in three.nodes.values()) == [0, 2],
        "one node, and no other, has both members",
    )


async def test_group_is_created_only_in_the_epoch_of_its_quota_count(three: Founded) -> None:
    coordinator, epoch = await ready_coordinator(three)
    wish = pb.GroupWish(topics=["t"])
    asked = pb.GroupHeartbeat(group="g", member_id="ada0000000000000", join=wish)
    with pytest.raises(ProtocolError) as refused:
        await coordinator.heartbeat(asked, UNRESTRICTED, creator="ann", counted_in=epoch - 1)
    assert refused.value.code == pb.EPOCH_CHANGING
    assert coordinator.is_new("g")
    await coordinator.heartbeat(asked, UNRESTRICTED, creator="ann", counted_in=epoch)
    assert not coordinator.is_new("g")


async def test_any_node_forwards_heartbeats(three: Founded) -> None:
    coordinator = coordinator_of(three)
    near, far = await three.peer(coordinator), await three.peer(another_than(three, coordinator))
    await topic(three, far)
    ada, bob = GroupMember(near, "t"), GroupMember(far, "t")
    await share(ada, bob, partitions=4)
    for peer in (near, far):
        described = (await peer.ask(group_describe=pb.GroupDescribe(group="g"))).envelope.group_describe_reply
        assert described.summary.coordinator == coordinator
        (listed,) = (await peer.ask(group_list=pb.GroupList())).envelope.group_list_reply.groups
        assert listed == described.summary
    for member in (ada, bob):
        await member.leave()
    await far.ask(group_delete=pb.GroupDelete(group="g"))
    assert not (await near.ask(group_list=pb.GroupList())).envelope.group_list_reply.groups


async def test_forwarded_heartbeat_is_answered_before_a_long_session_ends(
    three: Founded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node that hands a question on waits no longer than that for the answer."""
    monkeypatch.setattr(coordinator_module, "HELD_BACK_MS_MAX", 300)
    far = await three.peer(another_than(three, coordinator_of(three)))
    await topic(three, far)
    ada = GroupMember(far, "t", session_ms=600_000)
    await ask_again(ada)
    began_s = time.monotonic()
    assert (await ada.ask(wait_ms=600_000)).unchanged
    assert time.monotonic() - began_s < 10


async def test_graceful_stop_moves_the_coordinator(three: Founded) -> None:
    coordinator = coordinator_of(three)
    running = another_than(three, coordinator)
    peer = await three.peer(running)
    await topic(three, peer)
    ada, bob = GroupMember(peer, "t"), GroupMember(await three.peer(coordinator), "t")
    await share(ada, bob, partitions=4)
    held = set(ada.held)
    number = bob.post(wait_ms=3_000)
    await asyncio.sleep(0.05)
    began_s = time.monotonic()
    await three.stop(coordinator)
    assert time.monotonic() - began_s < 10
    with contextlib.suppress(ConnectionError):
        error = await bob.tried(number)
        assert error.retriable or not error.code
    bob.peer = peer
    await ask_again(ada)
    await ask_again(bob)
    assert ada.held == held
    assert len(bob.held) == 2


async def test_former_owner_does_not_answer_members(three: Founded, monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator's replicas do not confirm it, so its state may be outdated and does not keep members alive."""
    coordinator = coordinator_of(three)
    peer = await three.peer(coordinator)
    topic_id = await topic(three, peer)
    ada = GroupMember(peer, "t")
    await ask_again(ada)

    async def unconfirmed(self: Access) -> None:
        await self.ensure_active()
        raise ProtocolError(pb.QUORUM_LOST, "nobody confirms")

    with monkeypatch.context() as patched:
        patched.setattr(Access, "confirm_owner", unconfirmed)
        assert await ada.refused() == pb.QUORUM_LOST
        assert (await peer.refused(group_describe=pb.GroupDescribe(group="g"))).code == pb.QUORUM_LOST
        assert (await peer.refused(group_list=pb.GroupList())).code == pb.QUORUM_LOST
        assert (await peer.refused(committed=pb.Committed(group="g"))).code == pb.QUORUM_LOST
    assert (await ada.ask()).unchanged
    assert await commit_again(ada, topic_id, 0, 1) == 0


@pytest.mark.parametrize("principal", ["gate", "gateway2", "Gateway", ""])
async def test_member_belongs_to_exactly_its_principal(node: Node, principal: str) -> None:
    coordinator, permissions = node.broker.groups.of("g").coordinator, node.broker.security.registry.permissions
    member_id = "member0000000000"
    joins = pb.GroupHeartbeat(group="g", member_id=member_id, join=pb.GroupWish(topics=["t"]))
    await coordinator.heartbeat(joins, MemberAccess(Session(permissions, "gateway")))
    coordinator.check_caller("g", member_id, MemberAccess(Session(permissions, "gateway", frozenset({"etl"}))))
    with pytest.raises(ProtocolError) as refused:
        coordinator.check_caller("g", member_id, MemberAccess(Session(permissions, principal)))
    assert refused.value.code == pb.MEMBER_FENCED


class Reader(MemberAccess):
    """A caller that may read every topic."""

    def may_read(self, topic: str) -> bool:
        return bool(topic)


@pytest.mark.parametrize(("principal", "expected"), [("ann", {0, 1, 2, 3}), ("bob", set())])
async def test_only_the_principal_of_a_member_can_end_it_by_joining_again(
    node: Node, peer: Peer, principal: str, expected: set[int]
) -> None:
    await peer.create("t", partitions=4)
    coordinator, permissions = node.broker.groups.of("g").coordinator, node.broker.security.registry.permissions
    ann, caller = (Reader(Session(permissions, name)) for name in ("ann", principal))
    wish = pb.GroupWish(topics=["t"], born_us=1)
    first = pb.GroupHeartbeat(group="g", member_id="first00000000000", join=wish)
    assert (await coordinator.heartbeat(first, ann)).assigned
    again = pb.GroupHeartbeat(group="g", member_id="second0000000000", join=wish, ended_member_id="first00000000000")
    reply = await coordinator.heartbeat(again, caller)
    assert {number for topic in reply.assigned for number in topic.partitions} == expected
    assert coordinator.has_members("g")
    if expected:
        with pytest.raises(ProtocolError) as refused:
            await coordinator.heartbeat(first, ann)  # the join arrives once more
        assert refused.value.code == pb.MEMBER_FENCED


async def test_process_that_rejoins_after_an_outage_gets_its_partitions_at_once(node: Node, peer: Peer) -> None:
    await peer.create("t", partitions=4)
    ada, bob = GroupMember(peer, "t"), GroupMember(peer, "t")
    await share(ada, bob, partitions=4)
    before = set(ada.held), set(bob.held)
    shard = node.broker.groups.of("g")
    shard.coordinator.begin(node.broker.partitions.get(*shard.key).state.epoch)  # as after a restart
    again = [GroupMember(peer, "t"), GroupMember(peer, "t")]
    for member, earlier in zip(again, (ada, bob), strict=True):
        member.membership.ended_member_id = earlier.membership.member_id
        await member.ask()
    assert tuple(member.held for member in again) == before, "no partition waits for a session or moves"
    assert [await member.refused() for member in (ada, bob)] == [pb.MEMBER_FENCED] * 2


async def test_coordinator_of_an_ended_epoch_writes_nothing_and_refuses_commits(node: Node, peer: Peer) -> None:
    made = await peer.create("t")
    await peer.publish(made.topic_id, batch(b"v"))
    entry = pb.CommitEntry(topic_id=made.topic_id, next_offset=1)
    shard = node.broker.groups.of("g")
    kept = next(name for name in map(str, range(10_000)) if node.broker.groups.of(name) is shard)
    await peer.ask(commit=pb.Commit(group=kept, entries=[entry]))
    ada = GroupMember(peer, "t")
    await ada.ask()
    shard.coordinator.begin(node.broker.partitions.get(*shard.key).state.epoch + 1)
    for group, member_id in (("g", ada.membership.member_id), ("other", "")):
        with pytest.raises(ProtocolError) as refused:
            shard.coordinator.may_commit(group, member_id, 1)
        assert refused.value.code == pb.EPOCH_CHANGING
    with pytest.raises(ProtocolError) as refused:
        await shard.coordinator.delete(kept)
    assert refused.value.code == pb.EPOCH_CHANGING
    assert shard.positions.count_of(kept) == 1


async def test_heartbeat_is_refused_when_the_epoch_changes_before_its_answer(
    node: Node, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await peer.create("t")
    ada = GroupMember(peer, "t")
    await ada.ask()
    shard = node.broker.groups.of("g")
    coordinator, epoch = shard.coordinator, node.broker.partitions.get(*shard.key).state.epoch
    usual = coordinator.ready

    async def begins_anew(*, confirmed: bool = False) -> None:
        await usual(confirmed=confirmed)
        if confirmed:
            coordinator.begin(epoch)

    with monkeypatch.context() as patched:
        patched.setattr(coordinator, "ready", begins_anew)
        assert await ada.refused() == pb.EPOCH_CHANGING
    assert (await ada.ask()).unchanged
