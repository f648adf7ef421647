from __future__ import annotations

import pytest
from tests.broker.founded import Founded
from tests.broker.rebalance.test_mover import PARTITIONS, TOPIC, World

from tidelog_broker.core.replication.epoch_writer import Follower
from tidelog_broker.core.topics import PartitionKey
from tidelog_broker.rebalance import mover
from tidelog_broker.rebalance.ownership_advice import AGAIN_S_MAX, Advice, Owned
from tidelog_broker.rebalance.preferred_owner import PreferredOwner
from tidelog_proto import broker_pb2 as pb

CALM_MS = 300_000
ALL = ("a", "b", "c")


class Trial:
    """Node `a` owns every partition, and all nodes store each."""

    def __init__(self, *, calm_ms: int = CALM_MS) -> None:
        self.world = World()
        self.now_s = 1000.0
        homing = PreferredOwner(
            self.world.cluster, calm_ms=calm_ms, now_ms=lambda: int(self.now_s * 1000), clock_s=lambda: self.now_s
        )
        self.advice = Advice(homing)
        self.followers = [Follower(name, 10, answered=True) for name in "bc"]

    def homes(self, *, epoch: int = 0) -> dict[PartitionKey, str]:
        """Return which partitions would go, and to whom."""
        found: dict[PartitionKey, str] = {}
        for index in range(PARTITIONS):
            active = pb.EpochDescriptor(epoch=epoch, owner="a", placement=ALL, ack_quorum=2, flush=pb.ALWAYS)
            plan = self.advice.plan(Owned((TOPIC, index), active, self.followers), self.now_s)
            if plan is not None:
                assert (plan.placement, plan.ack_quorum) == (ALL, 2)
                found[TOPIC, index] = plan.owner
        return found


def test_partitions_return_to_the_preferred_owner_after_a_stable_time() -> None:
    trial = Trial()
    assert trial.homes() == {}
    trial.now_s += CALM_MS / 1000
    homes = trial.homes()
    assert set(homes.values()) == {"b", "c"}
    assert len(homes) < PARTITIONS, "some are at home here"


@pytest.mark.parametrize("what", ["dead", "cut off", "leaving"])
def test_any_cluster_change_restarts_the_stable_time(what: str) -> None:
    trial = Trial()
    assert trial.homes() == {}
    trial.now_s += CALM_MS / 1000
    if what == "dead":
        trial.world.die("b")
    elif what == "cut off":
        trial.world.cluster.set_unreachable(frozenset({"b"}))
    else:
        trial.world.cluster.note_leaving("b", 1 << 24)
    assert trial.homes() == {}
    trial.now_s += CALM_MS / 1000 - 1
    assert trial.homes() == {}
    trial.now_s += 1
    assert set(trial.homes().values()) == {"c"}, "an absent node gets no partitions"


def test_newly_owned_partition_stays_for_a_while() -> None:
    """A remedy or a takeover that gossip knows nothing of has a reason; it is not undone at once."""
    trial = Trial()
    assert trial.homes() == {}
    trial.now_s += CALM_MS / 1000
    homes = trial.homes()
    assert homes
    assert trial.homes(epoch=1) == {}
    trial.now_s += CALM_MS / 1000 - 1
    assert trial.homes(epoch=1) == {}
    trial.now_s += 1
    assert trial.homes(epoch=1) == homes


def test_returned_partition_stays_longer_each_time() -> None:
    trial = Trial()
    trial.homes()
    trial.now_s += CALM_MS / 1000
    key = next(iter(trial.homes()))
    waits_s = []
    for epoch in range(1, 8):
        trial.advice.moved(key, trial.now_s)
        since_s = trial.now_s
        while key not in trial.homes(epoch=epoch):
            trial.now_s += CALM_MS / 1000
        waits_s.append(trial.now_s - since_s)
    assert waits_s[:3] == [2 * CALM_MS / 1000, 4 * CALM_MS / 1000, 8 * CALM_MS / 1000]
    assert waits_s[-1] == AGAIN_S_MAX


@pytest.mark.parametrize("how", ["behind", "silent", "lagging"])
def test_lagging_preferred_owner_gets_nothing(how: str) -> None:
    trial = Trial()
    assert trial.homes() == {}
    slow = trial.followers[0]
    slow.streaming, slow.answered = how != "behind", how != "silent"
    slow.goal_offset = 11 if how == "lagging" else 0
    trial.now_s += CALM_MS / 1000
    assert set(trial.homes().values()) == {"c"}
    slow.streaming, slow.answered, slow.goal_offset = True, True, 0
    assert set(trial.homes().values()) == {"b", "c"}


def test_zero_calm_time_disables_it() -> None:
    trial = Trial(calm_ms=0)
    assert trial.homes() == {}
    trial.now_s += 10 * CALM_MS
    assert trial.homes() == {}


async def test_restarted_node_regains_its_partitions(founded: Founded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mover, "AGAIN_S", 0.05)
    monkeypatch.setattr(mover, "PERIOD_S", 0.05)
    founded.settings["calm_ms"] = 500
    await founded.found()
    await founded.settled()
    peer = await founded.peer("a")
    topic = await peer.create(partitions=9, replication_factor=3)
    keys = [(topic.topic_id, index) for index in range(9)]
    for key in keys:
        await founded.publish(peer, key[0], b"first", partition=key[1])
    before = [founded.owner(key, "a") for key in keys]
    await founded.stop("b")
    await founded.until(lambda: "b" not in {founded.owner(key, "a") for key in keys}, "b still owns something")
    await founded.start("b")
    await founded.settled()
    await founded.until(lambda: [founded.owner(key, "a") for key in keys] == before, "not all came back")
