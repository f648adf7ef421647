"""Deletion of unused groups after the retention time, in spite of clock jumps."""

from __future__ import annotations

import time

import pytest
from tests.broker.founded import Founded
from tests.broker.group_member import GroupMember
from tests.broker.peer import Peer, batch
from tests.broker.stand import Stand

from tidelog_broker.base.steady_clock import SteadyClock
from tidelog_broker.groups.group_expiry import GroupExpiry
from tidelog_broker.node.node import Node
from tidelog_proto import broker_pb2 as pb

HOUR_S = 3600
RETENTION_S = 7 * 24 * HOUR_S


class Time:
    """A wall clock and one that is steady, which a test moves; they begin as the machine's are."""

    def __init__(self, *, started_later_s: int = 0) -> None:
        self._wall_s = time.time() + started_later_s
        self._steady_s = 1000.0
        self.clock = SteadyClock(
            HOUR_S, wall_ns=lambda: int(self._wall_s * 1e9), steady_ns=lambda: int(self._steady_s * 1e9)
        )

    def passes(self, seconds: float) -> None:
        while seconds > 0:  # looked at now and then, as the node does
            step = min(seconds, HOUR_S / 2)
            self._wall_s += step
            self._steady_s += step
            self.clock.now_us()
            seconds -= step

    def jumps(self, seconds: float) -> None:
        self._wall_s += seconds
        self.clock.now_us()


def expiry(node: Node, told: Time, *, retention_s: int = RETENTION_S) -> GroupExpiry:
    return GroupExpiry(node.broker.groups, clock=told.clock, retention_ms=retention_s * 1000)


async def make(peer: Peer) -> bytes:
    topic = await peer.create("t", partitions=2)
    await peer.publish(topic.topic_id, batch(*[b"x"] * 10))
    return topic.topic_id


async def commit(peer: Peer, topic_id: bytes, group: str, offset: int = 1) -> None:
    entry = pb.CommitEntry(topic_id=topic_id, next_offset=offset)
    reply = (await peer.ask(commit=pb.Commit(group=group, entries=[entry]))).envelope.commit_reply
    assert reply.results[0].found


async def names(peer: Peer) -> list[str]:
    return [group.group for group in (await peer.ask(group_list=pb.GroupList())).envelope.group_list_reply.groups]


async def test_unused_group_is_deleted_after_the_retention_time(stand: Stand, node: Node, peer: Peer) -> None:
    topic_id = await make(peer)
    await commit(peer, topic_id, "old")
    left, stays = GroupMember(peer, "t", group="left"), GroupMember(peer, "t", group="stays")
    await left.ask()
    await stays.ask()
    await left.leave()
    told = Time()
    looking = expiry(node, told)
    assert await looking.look() == []
    told.passes(RETENTION_S - HOUR_S)
    assert await looking.look() == []
    told.passes(2 * HOUR_S)
    assert sorted(await looking.look()) == ["left", "old"]
    assert await names(peer) == ["stays"]
    assert await looking.look() == []
    assert (await stays.ask()).unchanged
    await stand.restart()
    peer = await stand.peer()
    assert await names(peer) == ["stays"]
    assert not (await peer.ask(committed=pb.Committed(group="old"))).envelope.committed_reply.results


@pytest.mark.parametrize("jump_s", [30 * 24 * HOUR_S, -30 * 24 * HOUR_S])
async def test_clock_jump_deletes_nothing_early(node: Node, peer: Peer, jump_s: int) -> None:
    await commit(peer, await make(peer), "g")
    told = Time()
    looking = expiry(node, told)
    await looking.look()
    told.jumps(jump_s)
    assert await looking.look() == []
    told.passes(2 * HOUR_S)  # by now the new time is believed
    assert await looking.look() == []
    told.jumps(-jump_s)
    told.passes(2 * HOUR_S)
    assert await looking.look() == []


async def test_downtime_counts_after_the_clock_has_settled(node: Node, peer: Peer) -> None:
    await commit(peer, await make(peer), "g")
    told = Time(started_later_s=2 * RETENTION_S)
    looking = expiry(node, told)
    assert await looking.look() == []
    told.passes(HOUR_S / 2)
    assert await looking.look() == []
    told.passes(HOUR_S)
    assert await looking.look() == ["g"]


async def test_timestamps_use_the_steady_clock(node: Node, peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wall clock that is put a year back stamps nothing as a year old."""
    topic_id = await make(peer)
    began_us = node.broker.clock.now_us()
    with monkeypatch.context() as patched:
        patched.setattr(time, "time_ns", lambda: 1_000_000_000)
        await commit(peer, topic_id, "g")
    ada = GroupMember(peer, "t")
    await ada.ask()
    record = node.broker.groups.of("g").records.get("g")
    assert record is not None
    assert record.changed_us >= began_us
    assert node.broker.groups.of("g").positions.last_commit_us("g") >= began_us


async def test_pending_commit_keeps_a_group(stand: Stand, node: Node, peer: Peer) -> None:
    topic_id = await make(peer)
    await commit(peer, topic_id, "g")
    told = Time()
    told.passes(2 * RETENTION_S)
    looking = expiry(node, told)
    stand.disk.hold("sync", "__offsets")
    entry = pb.CommitEntry(topic_id=topic_id, next_offset=5)
    number = (await stand.peer()).post(commit=pb.Commit(group="g", entries=[entry]))
    await stand.disk.held_up()
    assert await looking.look() == []
    stand.disk.heal()
    await stand.peers[-1].reply(number)
    assert await looking.look() == ["g"], "the test's clock is far ahead of the stamp of that one, too"


async def test_group_of_unknown_age_is_kept(node: Node, peer: Peer) -> None:
    await make(peer)
    shard = node.broker.groups.of("unstamped")
    epoch = await shard.coordinator.ready()
    await shard.log.write_group(pb.GroupRecord(group="unstamped", revision=1), epoch=epoch)
    told = Time()
    told.passes(2 * RETENTION_S)
    assert await expiry(node, told).look() == []
    assert await names(peer) == ["unstamped"]


async def test_retention_zero_keeps_groups(node: Node, peer: Peer) -> None:
    await expiry(node, Time(), retention_s=0).run()  # ends at once, and nothing is looked for


async def test_only_the_coordinator_deletes_groups(founded: Founded) -> None:
    await founded.found()
    await founded.settled()
    peer = await founded.peer("a")
    topic = await peer.create("t", replication_factor=3)
    await founded.publish(peer, topic.topic_id, b"x")
    await commit(peer, topic.topic_id, "g")
    owner = founded.owner(founded.nodes["a"].broker.groups.key_of("g"), "a")
    told = Time()
    told.passes(2 * RETENTION_S)
    for name, node in founded.nodes.items():
        if name != owner:
            assert await expiry(node, told).look() == []
    assert await names(peer) == ["g"]
    assert await expiry(founded.nodes[owner], told).look() == ["g"]
    assert await names(peer) == []
