"""Failure detection of an owner whose node is alive: its resignation, and its silence."""

from __future__ import annotations

from collections.abc import Sequence

from tests.broker.core.bench import Bench
from tests.broker.core.replication.test_replica import NODES, Stage

from tidelog_broker.core.replication.effects import RebuildProducers
from tidelog_broker.core.replication.owner_failure import FIRST_EPOCH_FACTOR, OwnerMonitor
from tidelog_broker.core.replication.ports import Plan, Timing
from tidelog_broker.core.replication.replica import Replica
from tidelog_broker.core.topics import PartitionKey
from tidelog_proto import broker_pb2 as pb

TIMING = Timing()
ASKED_MS = TIMING.silent_ms + TIMING.pre_vote_ms
"""Timeout of an owner that was never heard of."""


class QuietStage(Stage):
    """Some nodes are unreachable for all others, although gossip reports them alive."""

    def __init__(self) -> None:
        self.mute: set[str] = set()
        self.delivered = 0
        super().__init__()

    def deliver(self) -> None:
        if self.messages[0][0] in self.mute and self.mute.isdisjoint(self.messages[0][1].to):
            self.messages.popleft()
            return
        self.delivered += 1
        super().deliver()

    def hand_over(self) -> tuple[Replica, Replica]:
        """Let the owner roll over to another node, which is silent; return both."""
        old = self.owner()
        new = next(node for node in NODES if node != old.state.node_id)
        self.mute = {new}
        old.roll_over(Plan(new, NODES, 2), self.now_ms)
        self.run()
        assert old.state.active.owner == new
        return old, self.replicas[new]


def test_halted_owner_is_replaced_while_its_node_is_alive() -> None:
    stage = Stage()
    stage.later(TIMING.grace_ms)
    owner = stage.owner()
    stage.publish("one")
    epoch = owner.state.active.epoch
    owner.state.halt("its log is damaged")
    stage.later(1000)
    successor = stage.owner()
    assert successor is not owner
    assert successor.state.active.epoch == epoch + 1
    assert stage.publish("two") == 2


def test_owner_halted_while_opening_stops_asking_for_producers() -> None:
    """Nothing happens at that time, so that the timer would be due again immediately, forever."""
    stage = Stage()
    owner = stage.owner()
    owner.state.owner, owner.state.role = None, "opening"
    effect = RebuildProducers(owner.state.active.epoch - 1, owner.state.active.start_offset)
    owner.ownership.rebuilt(effect, None, 0, stage.now_ms)
    assert owner.ownership._producers_fetch is not None
    owner.state.halt("the chains fork", permanently=True)
    now_ms = stage.now_ms + 60_000
    owner.tick(now_ms)
    deadline_ms = owner.deadline_ms
    assert deadline_ms is not None
    assert deadline_ms > now_ms


def test_permanently_halted_owner_stops_announcing_to_informed_nodes() -> None:
    """It processes no decisions any more, so that it would get the same ones again, forever."""
    stage = Stage()
    stage.later(TIMING.grace_ms)
    owner = stage.owner()
    epoch, away = owner.state.active.epoch, next(node for node in NODES if node != stage.owner().state.node_id)
    stage.down = {away}
    owner.state.halt("the chains fork", permanently=True)
    stage.later(1000)
    stage.down = set()
    resigns_ms = owner.deadline_ms
    assert resigns_ms is not None, "a node has not received it, or has not answered"
    stage.later(TIMING.back_off_ms_max + 1000)
    assert stage.owner().state.active.epoch > epoch
    assert owner.state.active.epoch == epoch
    assert owner.deadline_ms is None


def test_quickly_resigning_owners_replace_each_other_slowly() -> None:
    stage = Stage()
    first = stage.owner()
    first.state.halt("no node has the missing records")
    stage.later(TIMING.grace_ms - 2500)
    assert first.state.active.owner == first.state.node_id, "the epoch has only just begun"
    stage.later(3000)
    assert first.state.active.owner != first.state.node_id


def test_idle_owner_is_kept_without_messages() -> None:
    stage = QuietStage()
    stage.publish("one")
    owner = stage.owner()
    epoch = owner.state.active.epoch
    stage.later(1000)
    stage.delivered = 0
    stage.later(60_000)
    assert (stage.delivered, owner.state.active.epoch) == (0, epoch)


def test_owner_silent_since_its_epoch_began_is_replaced() -> None:
    stage = QuietStage()
    stage.publish("one")
    old, new = stage.hand_over()
    epoch = old.state.active.epoch
    stage.later(ASKED_MS - 500)
    assert old.state.active.epoch == epoch
    stage.later(1500)
    assert old.state.active.epoch > epoch
    assert old.state.active.owner != new.state.node_id


class Ranked:
    """The hints of one node of a stage, whose order of candidates includes the owner."""

    def __init__(self, stage: Stage, node: str, order: Sequence[str]) -> None:
        self._stage, self._node, self._order = stage, node, order

    def rank(self, key: PartitionKey, active: pb.EpochDescriptor) -> int:
        return self._order.index(self._node)

    def plan(self, key: PartitionKey, active: pb.EpochDescriptor) -> Plan:
        return Plan(self._node, tuple(active.placement), active.ack_quorum)

    def alive(self, node_id: str) -> bool:
        return self._stage.alive(node_id)

    def incarnation(self, node_id: str) -> int:
        return self._stage.incarnation(node_id)

    def backfill_wait_ms(self, size_bytes: int) -> int:
        return self._stage.backfill_wait_ms(size_bytes)

    def random_ms(self, below_ms: int) -> int:
        return self._stage.random_ms(below_ms)


def test_silent_first_ranked_owner_is_replaced() -> None:
    """Candidates that only wait for the owner's answer do not yield; otherwise both would restart forever."""
    stage = QuietStage()
    stage.publish("one")
    old, new = stage.hand_over()
    order = [new.state.node_id, *(node for node in NODES if node != new.state.node_id)]
    for node, replica in stage.replicas.items():
        replica.state.cluster_hints = Ranked(stage, node, order)
    epoch = old.state.active.epoch
    stage.later(ASKED_MS + 5000)
    assert old.state.active.epoch > epoch
    assert old.state.active.owner != new.state.node_id


def test_slow_owner_answers_the_pre_vote() -> None:
    stage = QuietStage()
    _, new = stage.hand_over()
    epoch = new.state.active.epoch
    stage.later(ASKED_MS - 500)
    stage.mute.clear()
    stage.later(20_000)
    assert (stage.owner(), new.state.active.epoch) == (new, epoch)


def test_returning_replica_asks_the_idle_owner_and_gets_a_heartbeat() -> None:
    """Its link broke and was restored, which the owner did not detect."""
    stage = QuietStage()
    owner = stage.owner()
    epoch = owner.state.active.epoch
    stage.later(1000)
    for node in NODES:
        if node != owner.state.node_id:
            stage.replicas[node]._watch.entered(stage.now_ms)
    stage.later(ASKED_MS + 500)
    stage.delivered = 0
    stage.later(20_000)
    assert (stage.delivered, owner.state.active.epoch) == (0, epoch), "the followers have received it, and ask no more"


def test_owner_of_a_new_partition_gets_more_time() -> None:
    bench = Bench()
    watch = OwnerMonitor(bench, 0)
    first_ms = FIRST_EPOCH_FACTOR * TIMING.silent_ms
    assert watch.reconsider_ms() == first_ms
    assert not watch.misses(first_ms - 1)
    assert watch.misses(first_ms)
    assert not watch.has_failure_evidence()
    watch.answered(first_ms)
    assert not watch.misses(2 * first_ms - 1)
    assert watch.reconsider_ms() == 2 * first_ms
    watch.heard_ms = first_ms
    assert watch.reconsider_ms() is None


def test_activity_of_an_owner_does_not_count_for_the_next() -> None:
    bench = Bench()
    watch = OwnerMonitor(bench, 0)
    watch.resigned()
    assert watch.misses(TIMING.grace_ms)
    watch.entered(TIMING.grace_ms)
    assert not watch.misses(TIMING.grace_ms + 10_000)
