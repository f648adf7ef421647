"""Syncing ahead before the proposal of a planned end: conditions and time limits."""

from __future__ import annotations

import itertools

import pytest
from tests.broker.core.bench import NODES, Bench, descriptor, run_of
from tests.broker.core.replication.test_replica import Stage

from tidelog_broker.core.replication.chain import EpochChain
from tidelog_broker.core.replication.effects import EpochFenced, Send, SyncAhead
from tidelog_broker.core.replication.planned_end import ROUND_MS, ROUNDS_MAX, SLACK_BYTES, SYNC_AHEAD, PlannedEnd
from tidelog_broker.core.replication.ports import Plan
from tidelog_proto import broker_pb2 as pb

TO_B = Plan("b", NODES, 2)
TO_A = Plan("a", NODES, 2)


class Planning(Bench):
    """A replica, by default owner `a`, of an epoch with records."""

    def __init__(self, *, node: str = "a", flush: pb.Flush = pb.NEVER, records: int = 3) -> None:
        epoch = descriptor(flush=flush)
        super().__init__(EpochChain(epoch), node=node, held=run_of(epoch, records) if records else ())
        self.proposed: list[tuple[Plan, int]] = []
        self.end = PlannedEnd(self, propose=lambda plan, now_ms: self.proposed.append((plan, now_ms)))

    def asked(self) -> dict[str, int]:
        """Return the newly asked nodes with the attempt number; this node is asked by an effect."""
        found: dict[str, int] = {}
        for effect in self.take(Send, SyncAhead):
            if isinstance(effect, SyncAhead):
                found[effect.to] = effect.attempt
            else:
                assert isinstance(effect, Send)
                assert isinstance(effect.message, pb.PreVote)
                assert effect.message.probe, "it must promise nothing, and look for no takeover"
                found |= dict.fromkeys(effect.to, effect.message.attempt)
        return found

    def hears(self, *nodes: str, attempt: int, now_ms: int = 0, status: pb.ReplicaStatus = pb.HELD) -> None:
        """Report that nodes have synced ahead, with this status."""
        for node in nodes:
            if node == self.node_id:
                self.end.synced(attempt, now_ms)
            else:
                self.end.on_reply(node, pb.PreVoteReply(attempt=attempt, status=status), now_ms)


@pytest.mark.parametrize("flush", [pb.ALWAYS, pb.FLUSH_UNSPECIFIED])
def test_epoch_with_synced_appends_ends_immediately(flush: pb.Flush) -> None:
    owner = Planning(flush=flush)
    owner.end.begin(TO_B, 5)
    assert (owner.proposed, owner.peek(), owner.end.is_waiting) == ([(TO_B, 5)], [], False)


def test_epoch_without_records_ends_immediately() -> None:
    owner = Planning(records=0)
    owner.end.begin(TO_B, 5)
    assert (owner.proposed, owner.peek()) == ([(TO_B, 5)], [])


@pytest.mark.parametrize("flush", [pb.INTERVAL, pb.NEVER])
def test_end_is_proposed_once_owner_next_owner_and_a_quorum_are_synced(flush: pb.Flush) -> None:
    for plan, enough in ((TO_B, ("b", "a")), (TO_A, ("a", "c")), (TO_A, ("b", "a"))):
        owner = Planning(flush=flush)
        owner.end.begin(plan, 5)
        asked = owner.asked()
        assert asked == dict.fromkeys(NODES, SYNC_AHEAD | 1)
        owner.hears(enough[0], attempt=asked["a"], now_ms=6)
        assert (owner.proposed, owner.end.is_waiting) == ([], True)
        owner.hears(enough[1], attempt=asked["a"], now_ms=7)
        assert (owner.proposed, owner.end.is_waiting) == ([(plan, 7)], False)


def test_quorum_without_the_next_owner_is_not_sufficient() -> None:
    owner = Planning()
    owner.end.begin(TO_B, 0)
    owner.hears("a", "c", attempt=SYNC_AHEAD | 1)
    assert owner.proposed == []
    owner.hears("b", attempt=SYNC_AHEAD | 1)
    assert owner.proposed == [(TO_B, 0)]


def test_invalid_answers_are_ignored() -> None:
    owner = Planning()
    owner.end.begin(TO_B, 0)
    owner.hears("a", attempt=SYNC_AHEAD | 1)
    owner.hears("c", attempt=SYNC_AHEAD | 1, status=pb.IN_LIMBO)
    owner.hears("b", attempt=SYNC_AHEAD | 2)
    owner.hears("d", attempt=SYNC_AHEAD | 1)
    assert owner.proposed == []


def test_long_round_is_repeated_up_to_a_limit() -> None:
    owner = Planning()
    now_ms = 0
    owner.end.begin(TO_B, now_ms)
    for number in range(1, ROUNDS_MAX + 1):
        assert owner.proposed == []
        assert owner.asked() == dict.fromkeys(NODES, SYNC_AHEAD | number)
        now_ms += ROUND_MS + 1
        owner.hears("a", "b", attempt=SYNC_AHEAD | number, now_ms=now_ms)
    assert owner.proposed == [(TO_B, now_ms)]
    assert owner.asked() == {}


def test_unanswered_requests_are_repeated_with_back_off_up_to_a_limit() -> None:
    owner = Planning()
    owner.end.begin(TO_B, 0)
    owner.asked()
    owner.hears("c", attempt=SYNC_AHEAD | 1)
    times: list[int] = []
    while not owner.proposed:
        due_ms = owner.end.deadline_ms
        assert due_ms is not None
        owner.end.tick(due_ms - 1)
        assert owner.asked() == {}
        owner.end.tick(due_ms)
        if not owner.proposed:
            assert owner.asked() == {"b": SYNC_AHEAD | 1}
            times.append(due_ms)
    distances = [after - before for before, after in itertools.pairwise([0, *times])]
    assert distances[0] == owner.timing.resend_ms
    assert all(after == 2 * before for before, after in itertools.pairwise(distances))
    assert owner.proposed == [(TO_B, owner.timing.sync_ahead_ms)]
    assert owner.end.deadline_ms is None


def test_later_plan_replaces_an_earlier_one() -> None:
    owner = Planning()
    owner.end.begin(TO_B, 0)
    owner.asked()
    owner.hears("a", "c", attempt=SYNC_AHEAD | 1)
    owner.end.begin(TO_A, 9)
    assert (owner.proposed, owner.asked()) == ([(TO_A, 9)], {})


@pytest.mark.parametrize("dead", ["b", "bc", "c"])
def test_plan_is_dropped_when_its_next_owner_or_the_quorum_dies(dead: str) -> None:
    for plan in (TO_B, TO_A):
        owner = Planning()
        owner.end.begin(plan, 0)
        owner.hints.dead = set(dead)
        owner.end.tick(1)  # the set of live nodes has changed
        is_past = plan.owner in dead or len(dead) == 2
        assert owner.end.is_waiting != is_past
        owner.end.tick(owner.timing.sync_ahead_ms)
        assert owner.proposed == ([] if is_past else [(plan, owner.timing.sync_ahead_ms)])


def test_plan_is_dropped_when_its_next_owner_is_damaged() -> None:
    owner = Planning()
    owner.end.begin(TO_B, 0)
    owner.hears("c", attempt=SYNC_AHEAD | 1, status=pb.IN_LIMBO)
    assert owner.end.is_waiting
    owner.hears("b", attempt=SYNC_AHEAD | 1, status=pb.IN_LIMBO)
    assert not owner.end.is_waiting


def test_ended_epoch_is_not_ended_again_by_old_answers() -> None:
    owner = Planning()
    owner.end.begin(TO_B, 0)
    owner.end.forget()
    owner.hears("a", "b", attempt=SYNC_AHEAD | 1)
    assert (owner.proposed, owner.end.deadline_ms) == ([], None)
    owner.end.begin(TO_B, 0)
    owner.hears("a", "b", attempt=SYNC_AHEAD | 1)
    assert owner.proposed == []


def test_replica_syncs_ahead_only_for_its_owner_and_unsynced_appends() -> None:
    ask = pb.PreVote(attempt=SYNC_AHEAD | 4, probe=True)
    follower = Planning(node="b")
    assert follower.end.takes("a", ask)
    assert follower.take(SyncAhead) == [SyncAhead(0, "a", SYNC_AHEAD | 4, SLACK_BYTES)]
    for sender, other in (
        ("c", ask),
        ("a", pb.PreVote(attempt=SYNC_AHEAD | 4, probe=True, epoch=1)),
        ("a", pb.PreVote(attempt=4, probe=True)),
        ("a", pb.PreVote(attempt=SYNC_AHEAD | 4)),
    ):
        assert not follower.end.takes(sender, other)
    synced, outsider = Planning(node="b", flush=pb.ALWAYS), Planning(node="d", records=0)
    assert not synced.end.takes("a", ask)
    assert not outsider.end.takes("a", ask)
    assert follower.peek() == synced.peek() == outsider.peek() == []


class Unsynced(Stage):
    """A `Stage` with flush=never; nodes in `slow` have not synced ahead yet."""

    def __init__(self) -> None:
        self.slow: set[str] = set()
        self.waiting: list[tuple[str, SyncAhead]] = []
        super().__init__(flush=pb.NEVER)

    def synced_ahead(self, node: str, effect: SyncAhead) -> None:
        if node in self.slow:
            self.waiting.append((node, effect))
        else:
            super().synced_ahead(node, effect)


def test_owner_appends_until_replicas_have_synced_ahead() -> None:
    stage = Unsynced()
    stage.publish("one")
    first = stage.owner()
    other = next(node for node in NODES if node != first.state.node_id)
    stage.slow = {other}
    epoch = first.state.active.epoch
    first.roll_over(Plan(other, NODES, 2), stage.now_ms)
    stage.run()
    assert {node for node, _ in stage.waiting} == {other}
    assert first.moving
    assert first.can_append
    stage.publish("two")
    assert first.state.high_watermark == 2
    assert not any(isinstance(news, EpochFenced) for news in stage.news[first.state.node_id])
    stage.slow.clear()
    for node, effect in stage.waiting:
        stage.replicas[node].synced_ahead(effect, stage.now_ms)
    stage.run()
    assert stage.owner().state.node_id == other
    assert (stage.owner().state.active.epoch, stage.owner().state.active.start_offset) == (epoch + 1, 2)
    assert not first.moving


def test_producers_are_not_fenced_for_a_dead_next_owner() -> None:
    stage = Unsynced()
    stage.publish("one")
    first = stage.owner()
    heir = next(node for node in NODES if node != first.state.node_id)
    stage.slow = {heir}
    epoch = first.state.active.epoch
    first.roll_over(Plan(heir, NODES, 2), stage.now_ms)
    stage.run()
    stage.down = {heir}
    stage.later(200)
    assert not first.moving
    assert first.can_append
    stage.later(first.state.timing.sync_ahead_ms)
    assert (stage.owner(), first.state.active.epoch) == (first, epoch)


def test_epoch_taken_over_meanwhile_is_not_ended_by_plan() -> None:
    stage = Unsynced()
    stage.publish("one")
    first = stage.owner()
    stage.slow = set(NODES)
    first.roll_over(Plan(first.state.node_id, NODES, 2), stage.now_ms)
    stage.run()
    stage.down = {first.state.node_id}
    stage.later(1000)
    stage.down = set()
    stage.slow.clear()
    stage.later(1000)
    assert stage.owner() is not first
    assert not first.moving
    epoch = first.state.active.epoch
    for node, effect in stage.waiting:
        stage.replicas[node].synced_ahead(effect, stage.now_ms)
    stage.later(1000)
    assert {replica.state.active.epoch for replica in stage.replicas.values()} == {epoch}
