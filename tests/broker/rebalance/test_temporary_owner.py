from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from tests.broker.founded import Founded
from tests.broker.peer import Peer
from tests.broker.rebalance.test_mover import PARTITIONS, TOPIC, World

from tidelog_broker.core.replication.epoch_writer import Follower
from tidelog_broker.core.replication.ports import Timing
from tidelog_broker.core.topics import META_KEY, PartitionKey
from tidelog_broker.rebalance import mover, temporary_owner
from tidelog_broker.rebalance.ownership_advice import AGAIN_S_MAX, Advice, Owned
from tidelog_broker.rebalance.temporary_owner import AGAIN_S, STEADY_S, TemporaryOwner
from tidelog_proto import broker_pb2 as pb

ALL = ("a", "b", "c")
STORES = [pb.PERSISTENCE]
ROUTES = [pb.INGESTION]
BOTH = [pb.INGESTION, pb.PERSISTENCE]


def set_roles(world: World, node_id: str, roles: list[pb.NodeRole]) -> None:
    record = pb.NodeRecord()
    record.CopyFrom(next(one for one in world.nodes.live() if one.node_id == node_id))
    del record.roles[:]
    record.roles.extend(roles)
    record.revision += 1
    world.nodes.apply(record)


class Trial:
    """Node `a` owns every partition, `b` may own and keeps up, `c` only stores copies; what `a` may is the test's."""

    def __init__(self, roles: list[pb.NodeRole]) -> None:
        self.world = World()
        set_roles(self.world, "a", roles)
        set_roles(self.world, "c", STORES)
        self.now_s = 1000.0
        self.advice = Advice(
            TemporaryOwner(self.world.cluster, now_ms=lambda: int(self.now_s * 1000), clock_s=lambda: self.now_s)
        )
        self.followers = [Follower(name, 10, answered=True) for name in "bc"]

    def plan(self, *, epoch: int = 0) -> str | None:
        """Return to whom a partition would go."""
        active = pb.EpochDescriptor(epoch=epoch, owner="a", placement=ALL, ack_quorum=2, flush=pb.ALWAYS)
        plan = self.advice.plan(Owned((TOPIC, 0), active, self.followers), self.now_s)
        assert plan is None or (plan.placement, plan.ack_quorum) == (ALL, 2)
        return plan.owner if plan is not None else None


def test_storing_node_hands_over_once_an_able_replica_keeps_up() -> None:
    trial = Trial(STORES)
    trial.followers[0].answered = False
    for _ in range(3):
        assert trial.plan() is None
        trial.now_s += STEADY_S
    trial.followers[0].answered = True
    assert trial.plan() is None
    trial.now_s += STEADY_S - 1
    assert trial.plan() is None
    trial.now_s += 1
    assert trial.plan() == "b"


def test_node_that_may_own_keeps_its_partitions() -> None:
    trial = Trial(BOTH)
    assert trial.plan() is None
    trial.now_s += 1000
    assert trial.plan() is None


@pytest.mark.parametrize("what", ["dead", "leaving", "drained", "stores too"])
def test_partition_stays_without_another_able_replica(what: str) -> None:
    trial = Trial(STORES)
    if what == "dead":
        trial.world.die("b")
    elif what == "leaving":
        trial.world.cluster.note_leaving("b", 1 << 24)
    elif what == "drained":
        trial.world.drain("b")
    else:
        set_roles(trial.world, "b", STORES)
    assert trial.plan() is None
    trial.now_s += 1000
    assert trial.plan() is None


def test_unstable_replica_does_not_get_the_partition_each_time() -> None:
    trial = Trial(STORES)
    waits_s = []
    for epoch in range(8):
        since_s = trial.now_s
        while trial.plan(epoch=epoch) is None:
            trial.now_s += STEADY_S
        waits_s.append(trial.now_s - since_s)
        trial.advice.moved((TOPIC, 0), trial.now_s)
    assert waits_s[:4] == [STEADY_S, AGAIN_S, 2 * AGAIN_S, 4 * AGAIN_S]
    assert waits_s[-1] == AGAIN_S_MAX


def test_replica_must_keep_up_continuously() -> None:
    trial = Trial(STORES)
    for _ in range(5):
        trial.followers[0].answered = not trial.followers[0].answered
        assert trial.plan() is None
        trial.now_s += STEADY_S
    assert not trial.followers[0].answered


def test_partition_on_storing_nodes_only_gets_a_copy_on_an_able_node() -> None:
    world = World()
    assert world.mover.due_moves(everything=False) == []
    set_roles(world, "a", STORES)
    set_roles(world, "b", STORES)
    wanted = world.mover.due_moves(everything=False)
    assert len(wanted) == PARTITIONS
    assert all(plan.owner == "c" and len(plan.placement) == 2 for _, plan in wanted)
    world.die("c")
    assert world.mover.due_moves(everything=False) == []


def test_node_that_loses_the_storing_role_gives_up_its_copies() -> None:
    world = World()
    set_roles(world, "b", ROUTES)
    wanted = world.mover.due_moves(everything=False)
    assert len(wanted) == PARTITIONS
    assert all(set(plan.placement) == {"a", "c"} for _, plan in wanted)


# --- on real nodes -------------------------------------------------------------------------------------

NAMES = ("a", "b", "c", "d")


@pytest.fixture
async def mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Founded]:
    """Four nodes: `a` and `d` only store copies, `b` has both roles, `c` stores nothing."""
    monkeypatch.setattr(mover, "AGAIN_S", 0.05)
    monkeypatch.setattr(mover, "PERIOD_S", 0.05)
    monkeypatch.setattr(temporary_owner, "STEADY_S", 0.2)
    monkeypatch.setattr(temporary_owner, "AGAIN_S", 0.2)
    roles = {"a": ["persistence"], "c": ["ingestion"], "d": ["persistence"]}
    cluster = Founded(tmp_path, NAMES, roles)
    await cluster.found()
    await cluster.settled()
    yield cluster
    await cluster.close()


def owners(cluster: Founded, keys: list[PartitionKey], seen_by: str = "a") -> set[str]:
    return {cluster.owner(key, seen_by) for key in keys}


async def told_owners(peer: Peer, name: str) -> set[str]:
    """Return where a node sends publishers."""
    (topic,) = (await peer.ask(metadata=pb.Metadata(topics=[name]))).envelope.metadata_reply.topics
    return {partition.owner for partition in topic.partitions}


@pytest.mark.parametrize(("copies", "placed"), [(1, [{"b"}]), (2, [{"a", "b"}, {"b", "d"}]), (0, [{"a", "b", "d"}])])
async def test_new_partitions_are_owned_by_able_nodes(mixed: Founded, copies: int, placed: list[set[str]]) -> None:
    peers = {name: await mixed.peer(name) for name in NAMES}
    topic = await peers["c"].create(partitions=8, replication_factor=copies)
    assert topic.config.replication_factor == (copies or 3)
    assert all(set(partition.placement) in placed for partition in topic.partitions)
    for name, peer in peers.items():
        for index in range(8):
            await mixed.publish(peer, topic.topic_id, name.encode(), partition=index)
        assert await told_owners(peer, "t") == {"b"}
    for index in range(8):
        found: list[bytes | None] = []
        for _ in range(500):  # a quorum may have the last one a moment before its owner's own log does
            found = await peers["b"].read_all(topic.topic_id, partition=index)
            if len(found) >= len(NAMES):
                break
            await asyncio.sleep(0.02)
        assert found == [name.encode() for name in NAMES]
    assert list(mixed.nodes["c"].broker.partitions.all()) == [], "it stores nothing"
    for key in (META_KEY, (topic.topic_id, 0)):
        await mixed.until(lambda key=key: mixed.owner(key, "c") == "b", "it should not own this")  # type: ignore[misc]


async def test_storing_node_owns_temporarily_if_no_other_can(mixed: Founded) -> None:
    """The only node that may own stops and comes back; a topic that is made meanwhile goes to it, too."""
    front = await mixed.peer("c")
    topic = await front.create(partitions=4, replication_factor=3)
    keys = [(topic.topic_id, index) for index in range(4)]

    async def publish(value: bytes) -> None:
        for index in range(4):
            await mixed.publish(front, topic.topic_id, value, partition=index)

    await publish(b"before")
    assert owners(mixed, keys) == {"b"}
    await mixed.stop("b")
    await publish(b"meanwhile")
    assert owners(mixed, keys) <= {"a", "d"}
    made = await front.create("made", replication_factor=1)
    lone = (made.topic_id, 0)
    await mixed.publish(front, made.topic_id, b"meanwhile")
    assert mixed.owner(lone, "c") in {"a", "d"}
    await mixed.start("b")
    await mixed.settled()
    await mixed.until(lambda: owners(mixed, [*keys, META_KEY]) == {"b"}, "ownership does not leave who only stores")
    await mixed.until(lambda: mixed.owner(lone, "b") == "b", "the lone copy stays where it must not be owned")
    await publish(b"after")
    await mixed.publish(front, made.topic_id, b"after")
    peer = await mixed.peer("b")
    for index in range(4):
        assert await peer.read_all(topic.topic_id, partition=index) == [b"before", b"meanwhile", b"after"]
    await mixed.until(is_whole(mixed, lone), "its history was not fetched")
    assert await peer.read_all(made.topic_id) == [b"meanwhile", b"after"]


async def test_partition_is_writable_while_its_only_able_replica_is_halted(mixed: Founded) -> None:
    """Its node lives, so that gossip and roles speak for it; but a role must not make a partition unwritable."""
    front = await mixed.peer("c")
    topic = await front.create(replication_factor=3)
    key = (topic.topic_id, 0)
    await mixed.publish(front, topic.topic_id, b"first")
    for name in "abd":
        mixed.nodes[name].broker.partitions.get(*key).replica.state.timing = Timing(grace_ms=0)
    halted = mixed.nodes["b"].broker.partitions.get(*key)
    halted.replica.state.halt("a test says so")
    halted.driver.execute_effects()
    other = mixed.nodes["a"].broker.partitions.get(*key).replica
    await mixed.until(lambda: other.state.active.epoch > 0, "no node took over")
    assert (await mixed.publish(front, topic.topic_id, b"second")).base_offset == 1
    assert pb.EpochDecision.FromString(other.state.chain.decisions[0]).next.owner in {"a", "d"}
    await mixed.until(lambda: other.state.active.owner == "b", "it does not own it with a copy that is whole again")
    assert (await mixed.publish(front, topic.topic_id, b"third")).base_offset == 2


async def restart(cluster: Founded, name: str, roles: list[str]) -> None:
    await cluster.stop(name)
    await cluster.start_as(name, name, {"bootstrap": cluster.path / "cluster.json", "roles": roles})
    await cluster.settled()


async def test_node_restarted_without_the_storing_role_loses_its_copies(mixed: Founded) -> None:
    front = await mixed.peer("c")
    solo, trio = [await front.create(name, replication_factor=copies) for name, copies in (("solo", 1), ("trio", 3))]
    for topic in (solo, trio):
        await mixed.publish(front, topic.topic_id, b"before")

    def stored_by(topic: pb.TopicInfo) -> set[str]:
        route = mixed.nodes["a"].broker.routes.get((topic.topic_id, 0))
        return set(route.placement) if route is not None else set()

    await restart(mixed, "d", ["ingestion"])
    await mixed.until(lambda: stored_by(trio) == {"a", "b"}, "a node that stores nothing is counted on")
    assert (await front.create("later")).config.replication_factor == 2, "as many as there are nodes that store copies"
    await restart(mixed, "d", ["ingestion", "persistence"])
    await mixed.until(lambda: stored_by(trio) == {"a", "b", "d"}, "the copy is not made again")
    await restart(mixed, "b", ["ingestion"])
    await mixed.until(lambda: stored_by(trio) == {"a", "d"}, "a node that stores nothing is counted on")
    for topic in (solo, trio):
        await mixed.publish(front, topic.topic_id, b"after")
        key = (topic.topic_id, 0)
        await mixed.until(lambda key=key: mixed.owner(key, "c") == "d", "the one that may does not own it")  # type: ignore[misc]
        await mixed.until(is_whole(mixed, key, "d"), "its history was not fetched")
        assert await (await mixed.peer("d")).read_all(topic.topic_id) == [b"before", b"after"]
    await mixed.until(lambda: stored_by(solo) == {"d"}, "a node that holds no copy is not told where it went")


def is_whole(cluster: Founded, key: PartitionKey, name: str = "b") -> Callable[[], bool]:
    def ask() -> bool:
        partition = cluster.nodes[name].broker.partitions.find(key)
        return partition is not None and not partition.replica.backfill.incomplete

    return ask
