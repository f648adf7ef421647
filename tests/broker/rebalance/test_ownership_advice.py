from __future__ import annotations

from tests.broker.rebalance.test_mover import TOPIC, World

from tidelog_broker.core.membership.members import MemberState
from tidelog_broker.core.replication.epoch_writer import KEEPS_UP_MS, Follower
from tidelog_broker.core.replication.ports import Plan
from tidelog_broker.rebalance.ownership_advice import (
    AGAIN_S,
    AGAIN_S_MAX,
    FULL_S,
    NO_SPARE_S,
    Advice,
    Owned,
    OwnershipAdvice,
)
from tidelog_proto import broker_pb2 as pb

KEY = (TOPIC, 0)
LAG_MS = 30_000


class Trial:
    """Node `a` owns a partition of three copies, and there are four nodes."""

    def __init__(self, *placement: str, quorum: int = 2) -> None:
        self.world = World(names="abcd")
        self.now_s = 1000.0
        remedies = OwnershipAdvice(
            self.world.cluster,
            lag_ms=LAG_MS,
            now_ms=lambda: int(self.now_s * 1000),
            clock_s=lambda: self.now_s,
        )
        self.advice = Advice(remedies)
        nodes = placement or ("a", "b", "c")
        self.active = pb.EpochDescriptor(owner="a", placement=nodes, ack_quorum=quorum, flush=pb.ALWAYS)
        self.followers = {node: Follower(node, 10, answered=True) for node in nodes if node != "a"}

    def lag(self, *names: str) -> None:
        """Let replicas lack something from now on."""
        for name in names:
            self.followers[name].goal_offset, self.followers[name].goal_ms = 11, int(self.now_s * 1000)

    def plan(self, *, waits_for_all: bool = False, full_since_s: float | None = None) -> Plan | None:
        followers = list(self.followers.values())
        return self.advice.plan(Owned(KEY, self.active, followers, waits_for_all, full_since_s), self.now_s)

    def replaced(self, **how: bool) -> set[str]:
        """Return which replicas the next epoch goes without."""
        plan = self.plan(**how)
        return set(self.active.placement) - set(plan.placement) if plan is not None else set()


def test_lagging_replica_is_replaced_by_the_spare_node_only() -> None:
    trial = Trial()
    trial.lag("b")
    trial.now_s += LAG_MS / 1000 - 1
    assert trial.plan() is None
    trial.now_s += 1
    assert trial.plan() == Plan("a", ("a", "d", "c"), 2, pb.ALWAYS)
    trial.followers["b"].held_offset = 11
    assert trial.plan() is None, "it has caught up"


def test_lagging_copy_stays_without_a_live_spare() -> None:
    trial = Trial()
    trial.lag("b")
    trial.now_s += 100
    trial.world.die("d")
    assert trial.plan() is None


def test_no_replacement_if_too_few_replicas_keep_up() -> None:
    trial = Trial()
    trial.lag("b", "c")
    trial.now_s += 100
    assert trial.plan() is None


def test_no_replacement_if_the_others_are_in_doubt() -> None:
    trial = Trial()
    trial.lag("b")
    trial.now_s += 100
    trial.followers["c"].answered = False
    assert trial.plan() is None, "without b and c there is no quorum to decide that b goes"
    trial.followers["c"].answered = True
    assert trial.replaced() == {"b"}


def test_down_replica_is_replaced_at_once_if_a_publish_waits_for_all() -> None:
    trial = Trial()
    trial.world.die("c")
    assert trial.replaced() == set()
    assert trial.replaced(waits_for_all=True) == {"c"}
    trial.world.die("d")
    assert trial.replaced(waits_for_all=True) == set()


def test_back_off_after_a_remedy_doubles() -> None:
    trial = Trial()
    trial.lag("b")
    trial.now_s += 100
    waits_s = []
    for _ in range(8):
        assert trial.plan() is not None
        trial.advice.moved(KEY, trial.now_s)
        since_s = trial.now_s
        while trial.plan() is None:
            trial.now_s += 30
        waits_s.append(trial.now_s - since_s)
    assert waits_s[:3] == [AGAIN_S, 2 * AGAIN_S, 4 * AGAIN_S]
    assert waits_s[-1] == AGAIN_S_MAX


def test_back_off_is_reset_after_a_long_time() -> None:
    trial = Trial()
    trial.lag("b")
    trial.now_s += 100
    for _ in range(5):
        trial.advice.moved(KEY, trial.now_s)
    trial.now_s += 40 * AGAIN_S + AGAIN_S_MAX
    trial.advice.moved(KEY, trial.now_s)
    trial.now_s += AGAIN_S
    assert trial.plan() is not None


def test_lagging_node_is_not_used_as_a_spare_for_a_while() -> None:
    trial = Trial()
    trial.lag("b")
    trial.now_s += 100
    assert trial.replaced() == {"b"}
    other = Trial("a", "c", "d")
    other.advice, other.now_s = trial.advice, trial.now_s
    other.lag("c")
    trial.now_s += 100
    assert other.plan() is None, "only b could take it"
    trial.now_s += NO_SPARE_S
    assert other.replaced() == {"c"}


def test_owner_with_a_full_disk_hands_over_and_stays_a_replica() -> None:
    trial = Trial()
    assert trial.plan(full_since_s=trial.now_s - FULL_S + 1) is None
    plan = trial.plan(full_since_s=trial.now_s - FULL_S)
    assert plan is not None
    assert (plan.owner != "a", set(plan.placement), plan.ack_quorum) == (True, {"a", "b", "c"}, 2)
    trial.followers[plan.owner].answered = False
    another = trial.plan(full_since_s=trial.now_s - FULL_S)
    assert another is not None
    assert another.owner not in {"a", plan.owner}
    trial.followers[plan.owner].answered = True
    trial.lag(plan.owner)
    trial.now_s += KEEPS_UP_MS / 1000
    assert trial.plan(full_since_s=0.0) == another


def test_owner_with_a_full_disk_stays_without_live_replicas() -> None:
    trial = Trial("a", "b", quorum=1)
    trial.world.die("b")
    assert trial.plan(full_since_s=0.0) is None
    assert trial.world.cluster.membership("b") == MemberState.DEAD.name.lower()
