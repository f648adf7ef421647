from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import replace

import pytest
from tests.broker.linked import identity, make_links
from tests.holding import entries_of

from tidelog_broker.cluster.cluster_view import Cluster
from tidelog_broker.core.membership.members import Address, Member, Members, MemberState
from tidelog_broker.core.placement.registry import NodeRegistry
from tidelog_broker.core.replication.epoch_writer import Follower
from tidelog_broker.core.replication.ports import Plan
from tidelog_broker.core.topics import PartitionKey, TopicRegistry
from tidelog_broker.rebalance import copy_progress, mover
from tidelog_broker.rebalance.copy_progress import STALLED_MS, CopyReport, NewCopies
from tidelog_broker.rebalance.mover import TRIES, Mover
from tidelog_broker.rebalance.ownership_advice import Owned, OwnershipAdvice
from tidelog_broker.wire.links import Links
from tidelog_proto import broker_pb2 as pb

TOPIC = b"t" * 16
PARTITIONS = 10
AT_ONCE = 4
"""Fewer than there are partitions here, so that it matters."""


@pytest.fixture(autouse=True)
def _few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mover, "AT_ONCE", AT_ONCE)


class World:
    """Nodes, three unless named, of which this is `a`; it owns everything, and rolling over works at once."""

    def __init__(self, *, works: bool = True, names: str = "abc") -> None:
        self.works = works
        topics, nodes = TopicRegistry(), NodeRegistry()
        self.topics, self.nodes = topics, nodes
        topics.apply(pb.TopicRecord(name="t", topic_id=TOPIC, revision=1, config=pb.TopicConfig(replication_factor=2)))
        for name in names:
            record = pb.NodeRecord(node_id=name, host=name, port=1, weight=100, incarnation=1 << 24, revision=1)
            record.roles.extend([pb.INGESTION, pb.PERSISTENCE])
            nodes.apply(record)
        self.cluster = Cluster("a", 1 << 24, topics=topics, nodes=nodes, info=pb.NodeInfo)
        self.cluster.use_links(links())
        self.members = Members(len(names))
        for name in names:
            self.members.merge(Member(name, 1 << 24, name, 1, Address("127.0.0.1", 1)))
        self.cluster.use_members(self.members)
        self.active = {
            (TOPIC, index): pb.EpochDescriptor(owner="a", placement=["a", "b"], ack_quorum=2, flush=pb.ALWAYS)
            for index in range(PARTITIONS)
        }
        self.moved: list[PartitionKey] = []
        self.moving: set[PartitionKey] = set()
        """Of these the end of the epoch is planned, and not proposed yet."""
        self.slow = Follower("b", 0, answered=True)
        self.others: list[Follower] = []
        self.now_ms = 0
        self.lacks: dict[PartitionKey, int] = {}
        """Records that new copies of a partition lack."""
        advisers = [OwnershipAdvice(self.cluster, lag_ms=1000, now_ms=lambda: 0)]
        self.mover = Mover(
            begin_single_copies=lambda: None,
            owned=self.owned,
            roll_over=self.roll_over,
            cluster=self.cluster,
            nodes=nodes,
            advisers=advisers,
            copies=NewCopies(ask=self.ask, alive=self.cluster.alive, now_ms=lambda: self.now_ms),
            now_ms=lambda: self.now_ms,
        )

    def owned(self) -> list[Owned]:
        return [
            Owned(
                key,
                active,
                followers=[one for one in (self.slow, *self.others) if one.node_id in active.placement],
                is_moving=key in self.moving,
            )
            for key, active in self.active.items()
            if active.owner == "a"
        ]

    def roll_over(self, key: PartitionKey, plan: Plan) -> None:
        self.moved.append(key)
        if self.works:
            old = self.active[key]
            self.active[key] = pb.EpochDescriptor(
                epoch=old.epoch + 1,
                owner=plan.owner,
                placement=plan.placement,
                ack_quorum=plan.ack_quorum,
                flush=plan.flush,
            )

    async def ask(self, node_id: str, keys: Collection[PartitionKey]) -> CopyReport:
        told: dict[PartitionKey, pb.PartitionInfo] = {}
        for key in keys:
            active, lacks = self.active[key], self.lacks.get(key, 0)
            assert not self.works or node_id in active.placement
            told[key] = pb.PartitionInfo(
                epoch=active.epoch, placement=active.placement, missing_epochs=int(lacks > 0), missing_records=lacks
            )
        return told

    def die(self, node_id: str) -> None:
        self.members.merge(replace(self.members[node_id], state=MemberState.DEAD))

    def drain(self, node_id: str) -> None:
        self.nodes.apply(self.nodes.drained(node_id, draining=True))
        self.mover.wake()


def links() -> Links:
    return make_links(identity("a"))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy_progress, "MOVES_MAX", PARTITIONS)
    monkeypatch.setattr(mover, "PERIOD_S", 0)
    monkeypatch.setattr(mover, "AGAIN_S", 0)


async def run(world: World, steps: int) -> None:
    task = asyncio.create_task(world.mover.run())
    for _ in range(steps * 10):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_nothing_moves_without_a_reason() -> None:
    world = World()
    await run(world, 5)
    assert world.moved == []


async def test_drained_node_loses_all_copies_of_owned_partitions() -> None:
    world = World()
    world.drain("b")
    await run(world, 20)
    assert sorted(world.moved) == [(TOPIC, index) for index in range(PARTITIONS)]
    assert all(sorted(active.placement) == ["a", "c"] for active in world.active.values())


def test_moves_being_synced_ahead_count_and_are_not_repeated() -> None:
    world = World()
    world.drain("b")
    keys = list(world.active)
    world.moving = set(keys[:3])
    assert world.mover.rebalance() == len(keys), "they are not where they should be yet"
    assert world.mover.step() == AT_ONCE
    assert world.moved == keys[3:4]
    world.moving = set(keys[: AT_ONCE + 1])
    assert world.mover.step() == AT_ONCE + 1
    assert world.moved == keys[3:4]


async def test_concurrent_moves_are_bounded() -> None:
    world = World()
    world.drain("b")
    assert world.mover.step() == AT_ONCE
    assert len(world.moved) == AT_ONCE


async def test_moves_with_incomplete_copies_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy_progress, "MOVES_MAX", 3)
    world = World()
    world.lacks = dict.fromkeys(world.active, 1000)
    world.drain("b")
    await run(world, 20)
    assert len(world.moved) == 3
    world.lacks[world.moved[1]] = 0
    await run(world, 20)
    assert len(world.moved) == 4, "one is whole, one more may follow"
    world.now_ms = STALLED_MS
    await run(world, 20)
    assert len(world.moved) == 7, "a stuck move does not block the others"
    world.lacks.clear()
    await run(world, 20)
    assert sorted(world.moved) == sorted(world.active)


async def test_advised_moves_do_not_wait_for_requested_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(copy_progress, "MOVES_MAX", 2)
    world = World(names="abcd")
    world.lacks = dict.fromkeys(world.active, 1000)
    world.drain("b")
    await run(world, 20)
    assert len(world.moved) == 2
    for key in [key for key in world.active if key not in world.moved][:4]:
        world.active[key].ack_quorum = 1
    world.slow.goal_offset, world.slow.goal_ms = 5, -10_000
    await run(world, 20)
    assert len(world.moved) == 4, "and for no more than as many of its own"


async def test_moves_of_ownership_do_not_wait_for_history(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy_progress, "MOVES_MAX", 1)
    world = World()
    world.lacks = dict.fromkeys(world.active, 1000)
    where = {owned.key: plan for owned, plan in world.mover.due_moves(everything=True)}
    news = {key for key, plan in where.items() if "c" in plan.placement}
    assert 1 < len(news) < len(where)
    world.mover.rebalance()
    await run(world, 20)
    assert len(set(world.moved) & news) == 1
    assert set(world.moved) >= where.keys() - news


async def test_rebalancing_continues_after_waiting_for_history(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy_progress, "MOVES_MAX", 1)
    world = World(names="abcd")
    world.lacks = dict.fromkeys(world.active, 1000)
    moves = world.mover.rebalance()
    assert moves > 2
    await run(world, 20)
    world.now_ms = mover.REBALANCE_MS
    await run(world, 20)
    assert len(world.moved) < moves
    world.lacks.clear()
    await run(world, 40)
    assert len(world.moved) == moves


async def test_requested_moves_do_not_wait_for_advised_ones() -> None:
    """With hundreds of partitions behind one slow node a drain would have to wait for all of them."""
    world = World(names="abcd", works=False)
    for active in list(world.active.values())[:8]:
        active.ack_quorum = 1
    for active in list(world.active.values())[8:]:
        active.placement[:] = ["a", "d"]
    world.slow.goal_offset, world.slow.goal_ms = 5, -10_000
    world.drain("d")
    assert world.mover.step() == AT_ONCE
    assert world.moved == [(TOPIC, 0), (TOPIC, 8), (TOPIC, 1), (TOPIC, 9)]


async def test_move_that_is_advised_and_requested_happens_once() -> None:
    world = World(names="abcd", works=False)
    world.active = {key: active for key, active in world.active.items() if key[1] < 2}
    for active in world.active.values():
        active.ack_quorum = 1
    world.slow.goal_offset, world.slow.goal_ms = 5, -10_000
    world.drain("b")
    assert world.mover.step() == 2
    assert sorted(world.moved) == sorted(world.active)


async def test_attempts_are_counted_per_epoch() -> None:
    world = World(works=False)
    world.drain("b")
    held: set[int] = set()
    for epoch in range(3):
        for active in world.active.values():
            active.epoch = epoch
        world.moved.clear()
        for _ in range(10 * TRIES):
            world.mover.step()
        assert len(world.moved) == TRIES * PARTITIONS, "another epoch, another chance"
        held.add(entries_of(world.mover))
    assert len(held) == 1, "it keeps nothing of earlier epochs"


async def test_unsuccessful_move_is_given_up() -> None:
    world = World(works=False)
    world.drain("b")
    for _ in range(10 * TRIES):
        world.mover.step()
    assert len(world.moved) == TRIES * PARTITIONS


async def test_rebalancing_ends_when_all_partitions_are_placed() -> None:
    world = World()
    before = dict(world.active)
    moves = world.mover.rebalance()
    assert 0 < moves < PARTITIONS, "some lie where they should"
    await run(world, 20)
    assert len(world.moved) == moves
    world.now_ms = mover.REBALANCE_MS
    await run(world, 5)
    world.active |= before
    await run(world, 5)
    assert len(world.moved) == moves


async def test_rebalancing_waits_for_starting_nodes() -> None:
    world = World()
    before = dict(world.active)
    world.mover.rebalance()
    await run(world, 20)
    world.active |= before  # as if only now anything could move
    done = len(world.moved)
    await run(world, 20)
    assert len(world.moved) == 2 * done > 0


async def test_rebalancing_chooses_owners_that_keep_up() -> None:
    world = World()
    homes = {owned.key: plan.owner for owned, plan in world.mover.due_moves(everything=True)}
    assert "b" in homes.values()
    world.slow.answered = False
    found = {owned.key: plan for owned, plan in world.mover.due_moves(everything=True)}
    assert "b" not in {plan.owner for plan in found.values() if "a" in plan.placement}
    for key in homes.keys() - found.keys():
        assert homes[key] == "b", "what else is out of place moves as ever"
    assert all(set(plan.placement) != {"a", "b"} for plan in found.values()), "nothing else changes there"


async def test_no_move_if_writers_would_wait_for_an_incomplete_copy() -> None:
    """A copy in doubt or damaged acknowledges nothing, and its node lives."""
    world = World(names="abcd")
    for active in world.active.values():
        active.placement[:] = ["a", "b", "c"]
    world.slow.answered = False
    other = Follower("c", 0, answered=True)
    world.others.append(other)
    world.drain("c")
    assert world.mover.step() == AT_ONCE, "two of three are enough"
    other.answered = False
    assert world.mover.step() == 0
    assert not world.mover._tries.keys() - set(world.moved), "and that did not count as a try"
    other.answered = True
    owned = next(one for one in world.owned() if "c" in one.active.placement)
    plan = Plan("a", ("a", "b", "d"), 2)
    assert owned.can_begin(plan, 0, alive=world.cluster.alive)
    world.die("d")
    assert not owned.can_begin(plan, 0, alive=world.cluster.alive), "the next epoch would depend on the copy"
    world.slow.answered = True
    assert owned.can_begin(plan, 0, alive=world.cluster.alive)


def three_copies() -> World:
    """Return a world with a topic that wants a copy on each node."""
    world = World()
    config = pb.TopicConfig(replication_factor=3)
    world.topics.apply(pb.TopicRecord(name="t", topic_id=TOPIC, revision=2, config=config))
    for active in world.active.values():
        active.placement[:] = ["a", "b", "c"]
    return world


async def test_unmovable_partitions_of_a_drained_node_stay() -> None:
    """Three copies of three nodes: ownership alone would go to and fro with each takeover."""
    world = three_copies()
    world.drain("c")
    assert {plan.owner for _, plan in world.mover.due_moves(everything=True)} == {"b"}, "some would be better off there"
    assert world.mover.due_moves(everything=False) == []


async def test_drained_owner_hands_over_ownership_even_if_copies_cannot_move() -> None:
    world = three_copies()
    world.drain("a")
    found = [plan for _, plan in world.mover.due_moves(everything=False)]
    assert len(found) == PARTITIONS
    assert {plan.owner for plan in found} == {"b", "c"}
    assert {frozenset(plan.placement) for plan in found} == {frozenset("abc")}


async def test_drained_owner_hands_over_to_a_replica_that_keeps_up() -> None:
    world = World(names="abc")
    for active in world.active.values():
        active.placement[:] = ["a", "b", "c"]
    world.drain("a")
    assert {plan.owner for _, plan in world.mover.due_moves(everything=False)} == {"b", "c"}
    world.slow.streaming = False
    assert {plan.owner for _, plan in world.mover.due_moves(everything=False)} == {"c"}


async def test_missing_copies_are_created_when_there_are_nodes_for_all() -> None:
    world = World()
    key = (TOPIC, 0)
    world.active[key] = pb.EpochDescriptor(owner="a", placement=["a"], ack_quorum=1, flush=pb.ALWAYS)
    for name in "bc":
        world.nodes.apply(world.nodes.drained(name, draining=True))
    await run(world, 5)
    assert len(world.active[key].placement) == 1
    for name in "bc":
        world.nodes.apply(world.nodes.drained(name, draining=False))
    await run(world, 5)
    assert len(world.active[key].placement) == 2


async def test_lagging_replica_is_replaced_and_its_partition_left_alone() -> None:
    world = World()
    for key in list(world.active)[1:]:
        world.active[key].owner = "c"
    world.active[TOPIC, 0].ack_quorum = 1
    world.slow.goal_offset, world.slow.goal_ms = 5, -10_000
    await run(world, 5)
    assert world.moved == [(TOPIC, 0)]
    assert list(world.active[TOPIC, 0].placement) == ["a", "c"]
    world.active[TOPIC, 0].placement[:] = ["a", "b"]
    await run(world, 5)
    assert world.moved == [(TOPIC, 0)]
