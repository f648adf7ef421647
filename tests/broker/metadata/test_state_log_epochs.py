"""State logs whose records are pending while another node owns the partition."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.broker.cluster_stand import NODES, TOPIC_ID, ClusterStand, started_cluster
from tests.broker.peer import Peer
from tests.broker.stand import settled

from tidelog_broker.core.replication.ports import Plan
from tidelog_broker.core.topics import META_KEY, OFFSETS_KEY
from tidelog_broker.metadata import internal_topics
from tidelog_broker.metadata import state_log as state_log_module
from tidelog_broker.node.node import Node
from tidelog_proto import broker_pb2 as pb


class Handover:
    """Three nodes with an internal log; its first owner has writes in its pipeline when it is cut off."""

    def __init__(self, cluster: ClusterStand) -> None:
        self.cluster = cluster
        self.first = self.second = ""

    @property
    def node(self) -> Node:
        """The node that owned the log first, and is to own it again."""
        return self.cluster.nodes[self.first]

    @property
    def successor(self) -> Node:
        """The node that owns it in between."""
        return self.cluster.nodes[self.second]

    async def start(self, key: tuple[bytes, int], name: str) -> None:
        genesis = pb.EpochDescriptor(placement=NODES, ack_quorum=2, flush=pb.ALWAYS)
        self.cluster.key = key
        self.cluster.record = pb.TopicRecord(
            name=name, topic_id=key[0], config=internal_topics.internal_config(3), first_epochs=[genesis]
        )
        await self.cluster.start()
        for node in self.cluster.nodes.values():
            for node_id in NODES:
                node.broker.nodes.apply(
                    pb.NodeRecord(node_id=node_id, roles=[pb.INGESTION, pb.PERSISTENCE], weight=1, host=node_id)
                )
        self.first = await self.cluster.owner()

    async def start_with_groups(self) -> Peer:
        """Start with a partition of `__offsets`, and a topic that groups commit for; return a client of its owner."""
        await self.start(OFFSETS_KEY, "__offsets")
        topic = pb.TopicRecord(name="t", topic_id=TOPIC_ID, config=pb.TopicConfig(partitions=1), revision=1)
        for node in self.cluster.nodes.values():
            node.broker.topics.apply(topic)
        return await self.cluster.peer(self.first)

    def hold(self) -> None:
        """Cut the owner off undetected, and hold its next write."""
        self.cluster.cut = {self.first}
        self.cluster.disks[self.first].hold("sync")

    async def succeed(self) -> Peer:
        """Let another node take over while the owner waits for its disk; return a client of that one."""
        await self.cluster.disks[self.first].held_up()
        self.cluster.suspect(self.first)
        self.second = await self.cluster.owner(but=self.first)
        return await self.cluster.peer(self.second)

    async def hand_back(self, *, told_each: bool = False) -> None:
        """End the successor's epoch by a plan that names the first owner, which receives both decisions at once.

        `told_each`: it receives one after the other.
        """
        if told_each:
            self.cluster.isolate()
            await settled(
                lambda: self.epoch_at(self.first) == self.epoch_at(self.second), "it never received the decision"
            )
        epoch = self.epoch_at(self.second) + 1
        self.cluster.partition(self.second).driver.roll_over(Plan(self.first, NODES, 2, pb.ALWAYS))
        await settled(lambda: self.epoch_at(self.second) == epoch, "the epoch did not end")
        self.cluster.isolate()
        self.cluster.disks[self.first].heal()
        await settled(lambda: self.cluster.owners() == [self.first], "it does not own the log again")
        await settled(lambda: not self.cluster.partition(self.first).pipeline.queued_bytes, "something waits still")
        await self.cluster.partition(self.first).pipeline.idle()

    def epoch_at(self, name: str) -> int:
        return self.cluster.partition(name).state.epoch


@pytest.fixture
async def handover(tmp_path: Path) -> AsyncIterator[Handover]:
    async with started_cluster(tmp_path) as cluster:
        yield Handover(cluster)


def commit_of(next_offset: int, group: str = "g", *, reset: bool = False) -> pb.Commit:
    return pb.Commit(group=group, entries=[pb.CommitEntry(topic_id=TOPIC_ID, next_offset=next_offset)], reset=reset)


async def committed(peer: Peer, next_offset: int, group: str = "g", *, reset: bool = False) -> int:
    """Commit a position and return the resulting one."""
    answer = (await peer.ask(commit=commit_of(next_offset, group, reset=reset))).envelope
    assert answer.HasField("commit_reply"), answer
    (result,) = answer.commit_reply.results
    return result.next_offset


async def until_fetched(peer: Peer, **kind: Any) -> pb.Envelope:
    """Repeat a request to a new owner until it has fetched its missing records, as a client does."""
    async with asyncio.timeout(20):
        while (answer := (await peer.ask(**kind)).envelope).error.retriable:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return answer


@pytest.mark.parametrize("told_each", [False, True], ids=["both decisions at once", "one after the other"])
async def test_pending_positions_are_refused_after_another_owners_epoch(handover: Handover, *, told_each: bool) -> None:
    peer = await handover.start_with_groups()
    assert await committed(peer, 100) == 100
    handover.hold()
    waiting = [peer.post(commit=commit_of(offset)) for offset in (150, 200, 300, 350)]
    other = await handover.succeed()
    for offset in (400, 500):
        assert await committed(other, offset) == offset
    await handover.hand_back(told_each=told_each)
    (result,) = (await until_fetched(peer, committed=pb.Committed(group="g"))).committed_reply.results
    assert result.next_offset == 500
    for number in waiting:
        error = (await peer.reply(number)).envelope.error
        assert (error.code in {pb.EPOCH_CHANGING, pb.NOT_OWNER}, error.definite, error.retriable) == (True, True, True)


async def test_prepared_positions_end_with_their_epoch(handover: Handover, monkeypatch: pytest.MonkeyPatch) -> None:
    """Callers no longer wait for the outcome, which is unknown until the epoch has ended."""
    peer = await handover.start_with_groups()
    assert await committed(peer, 100) == 100
    handover.hold()
    monkeypatch.setattr(state_log_module, "WRITE_TIMEOUT_S", 0.05)
    for offset in (150, 200, 300, 350):
        assert (await peer.refused(commit=commit_of(offset))).code == pb.TIMED_OUT
    monkeypatch.undo()
    other = await handover.succeed()
    assert await committed(other, 10, reset=True) == 10
    await handover.hand_back()
    await until_fetched(peer, committed=pb.Committed(group="g"))
    assert await committed(peer, 20) == 20


async def test_former_owner_does_not_answer_from_an_old_state(handover: Handover) -> None:
    peer = await handover.start_with_groups()
    assert await committed(peer, 100) == 100
    handover.cluster.suspect(handover.first)
    other = await handover.cluster.peer(await handover.cluster.owner(but=handover.first))
    assert await committed(other, 10, reset=True) == 10
    error = await peer.refused(commit=commit_of(50))
    assert (error.code, error.retriable) == (pb.QUORUM_LOST, True)
    assert await committed(other, 20) == 20


async def test_deleted_group_does_not_return_after_another_owners_epoch(handover: Handover) -> None:
    peer = await handover.start_with_groups()
    for group in ("g", "h"):
        assert await committed(peer, 100, group) == 100
    handover.hold()
    for group in ("h", "g"):
        peer.post(commit=commit_of(150, group))
    other = await handover.succeed()
    assert (await until_fetched(other, group_delete=pb.GroupDelete(group="g"))).HasField("group_delete_reply")
    await handover.hand_back()
    groups = (await until_fetched(peer, group_list=pb.GroupList())).group_list_reply.groups
    assert [group.group for group in groups] == ["h"]


async def test_snapshot_stops_after_another_owners_epoch(handover: Handover, monkeypatch: pytest.MonkeyPatch) -> None:
    """The group's position is pending for a repetition, and the other node has deleted the group."""
    monkeypatch.setattr(state_log_module, "RECORDS_PER_BATCH", 1)
    peer = await handover.start_with_groups()
    for group in ("h", "g"):
        assert await committed(peer, 100, group) == 100
    offsets_log = handover.node.broker.groups.at(0).log
    handover.cluster.disks[handover.first].hold("sync")
    snapshot = asyncio.create_task(offsets_log.snapshot(await offsets_log.ready()))
    pipeline = handover.cluster.partition(handover.first).pipeline
    await settled(lambda: pipeline.queued_bytes > 0, "the second record does not wait for the first")
    other = await handover.succeed()
    assert (await until_fetched(other, group_delete=pb.GroupDelete(group="g"))).HasField("group_delete_reply")
    await handover.hand_back()
    await snapshot
    groups = (await until_fetched(peer, group_list=pb.GroupList())).group_list_reply.groups
    assert [group.group for group in groups] == ["h"]


async def test_topic_names_stay_unique_after_another_owners_epoch(
    handover: Handover, monkeypatch: pytest.MonkeyPatch
) -> None:
    await handover.start(META_KEY, "__meta")
    meta_log, go_on = handover.node.broker.meta_log, asyncio.Event()
    snapshot = meta_log.snapshot

    async def later(epoch: int) -> None:
        await go_on.wait()
        await snapshot(epoch)

    monkeypatch.setattr(state_log_module, "SNAPSHOT_AFTER_BYTES", 1)
    monkeypatch.setattr(meta_log, "snapshot", later)
    peer = await handover.cluster.peer(handover.first)
    await peer.create("before")
    handover.hold()
    go_on.set()  # so that the next record waits in the pipeline
    await handover.cluster.disks[handover.first].held_up()
    create = pb.TopicCreate(name="t", config=pb.TopicConfig(partitions=1))
    waiting = peer.post(topic_create=create)
    made = await (await handover.succeed()).create("t")
    await handover.hand_back()
    await until_fetched(peer, topic_delete=pb.TopicDelete(name="before"))
    records = handover.node.broker.topics.records()
    named = [record.topic_id for record in records if record.name == "t" and not record.deleted]
    assert named == [made.topic_id]
    assert (await peer.reply(waiting)).envelope.error.code in {pb.EPOCH_CHANGING, pb.NOT_OWNER}
