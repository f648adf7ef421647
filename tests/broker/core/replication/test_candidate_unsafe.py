"""Unsafe recovery without a quorum: its decision, how the decision is marked, and which nodes continue.

The recovered node's chain wins: where it differs from another one in a decision that only it has marked unsafe, its
node continues, and the node of the other chain halts for good.
"""

from __future__ import annotations

import pytest
from tests.broker.core.bench import ballot
from tests.broker.core.candidate_bench import TIMING, CandidateBench
from tests.broker.core.replication.test_replica import KEY, NODES, Stage

from tidelog_broker.core.replication.chain import EpochChain
from tidelog_broker.core.replication.effects import EpochDecided
from tidelog_broker.core.replication.paxos import decision_value
from tidelog_broker.core.replication.ports import Plan
from tidelog_broker.core.replication.replica import Replica
from tidelog_broker.core.replication.replica_state import DECISIONS_MAX
from tidelog_proto import broker_pb2 as pb


def recover(stage: Stage, node: str) -> Replica:
    """Recover one node, and let its time limit pass."""
    replica = stage.replicas[node]
    replica.candidate.recover_unsafely(stage.now_ms)
    stage.later(2500)
    return replica


def meet(stage: Stage) -> None:
    """Let the nodes compare their chains, as they do periodically in a cluster."""
    for replica in stage.replicas.values():
        for node in NODES:
            replica.state.request_chain(node, stage.now_ms)
    stage.later(2000)


def ends(stage: Stage, node: str) -> list[tuple[int, int, bool]]:
    news = [one for one in stage.news[node] if isinstance(one, EpochDecided)]
    return [(one.epoch, one.end_offset, one.unsafe) for one in news]


def test_single_copy_continues_without_a_quorum_and_marks_the_chain() -> None:
    stage = Stage()
    owner = stage.owner().state.node_id
    stage.publish("one", "two")
    left = next(node for node in NODES if node != owner)
    stage.down = set(NODES) - {left}
    stage.later(20_000)
    assert not any(replica.can_append for node, replica in stage.replicas.items() if node == left)
    epoch = stage.replicas[left].state.active.epoch
    replica = recover(stage, left)
    assert replica.can_append
    assert list(replica.state.active.placement) == [left]
    assert ends(stage, left)[-1] == (epoch, 2, True)
    assert replica.state.decision(epoch).unsafe
    assert stage.publish("three") == 3
    assert replica.state.high_watermark == 3


def test_longest_live_copy_determines_the_end() -> None:
    stage = Stage()
    owner = stage.owner().state.node_id
    named, longer, *_ = (node for node in NODES if node != owner)
    stage.down = {named}
    stage.publish("one", "two")
    stage.down = {owner}
    # Both of the three that are left are a seal quorum: nothing is unsafe then, and nothing lost.
    replica = recover(stage, named)
    assert {unsafe for _, _, unsafe in ends(stage, named)} == {False}
    assert replica.state.high_watermark == 2
    assert stage.logs[named].content() == stage.logs[longer].content()


def test_two_of_five_replicas_combine_their_logs() -> None:
    stage = Stage(("a", "b", "c", "d", "e"), quorum=3)
    owner = stage.owner().state.node_id
    named, longer, *lost = (node for node in stage.replicas if node != owner)
    stage.down = {named}
    stage.publish("one", "two")
    stage.down = {owner, *lost}
    stage.later(2000)
    replica = recover(stage, named)
    assert replica.can_append
    assert ends(stage, named)[-1][1:] == (2, True)
    assert len(stage.logs[named].content()) == 2
    assert stage.replicas[longer].state.active == replica.state.active, "live replicas follow the decision"


def test_returning_replicas_truncate_and_follow() -> None:
    stage = Stage()
    owner = stage.owner().state.node_id
    behind, other = (node for node in NODES if node != owner)
    stage.publish("one")
    stage.down = {behind}
    stage.publish("two", "three")
    stage.later(200)
    assert stage.replicas[other].state.high_watermark == 3
    stage.down = {owner, other}
    recover(stage, behind)
    stage.down = set()
    meet(stage)
    for node in (owner, other):
        replica = stage.replicas[node]
        assert ends(stage, node)[-1][1:] == (1, True), "the decision is marked, because committed records are lost"
        assert (replica.state.high_watermark, replica.state.halted) == (1, None)
        assert len(stage.logs[node].content()) == 1
    assert stage.publish("four") == 2


def test_decision_of_lost_replicas_does_not_halt_the_recovered_copy() -> None:
    stage = Stage()
    owner = stage.owner().state.node_id
    cut, other = (node for node in NODES if node != owner)
    stage.publish("one")
    stage.later(200)
    stage.down = {cut, owner}
    stage.later(200)
    stage.down = {cut}  # the two others roll over, and continue
    stage.owner().roll_over(stage.plan(("", 0), stage.owner().state.active), stage.now_ms)  # type: ignore[arg-type]
    stage.later(500)
    assert stage.publish("two") == 2
    stage.down = {owner, other}
    recovered = recover(stage, cut)
    assert recovered.can_append
    stage.down = set()
    meet(stage)
    assert (recovered.state.halted, recovered.can_append) == (None, True)
    for node in (owner, other):
        assert "fork" in (stage.replicas[node].state.halted or "")
        assert not stage.replicas[node].can_append


def test_two_unsafe_decisions_about_one_epoch_halt_both() -> None:
    stage = Stage()
    stage.publish("one")
    stage.later(200)
    for node in ("a", "b"):
        stage.down = set(NODES) - {node}
        recover(stage, node)
    stage.down = set()
    meet(stage)
    assert all("fork" in (stage.replicas[node].state.halted or "") for node in ("a", "b"))


def test_unsafe_recovery_has_a_time_limit() -> None:
    stage = Stage()
    owner = stage.owner().state.node_id
    left = next(node for node in NODES if node != owner)
    stage.down = set(NODES) - {left}
    replica = stage.replicas[left]
    replica.state.doubt = "damaged"  # it never promises, not even to itself
    replica.candidate.recover_unsafely(stage.now_ms)
    stage.later(replica.state.timing.unsafe_ms + 6000)
    assert replica.candidate.phase in {"waiting", "pre-voting", "idle"}
    replica.state.doubt = ""
    stage.later(6000)
    assert ends(stage, left) == [] or not any(unsafe for _, _, unsafe in ends(stage, left))


# --- a value accepted by one node may be decided or not -------------------------------------------------------


def accept(stage: Stage, node: str, *, proposer: str) -> bytes:
    """Let a node accept the current end of the epoch from a proposer that then disappears."""
    replica = stage.replicas[node]
    value = decision_value(
        replica.state.active, replica.state.tail.queued, replica.state.chain.previous_hash, Plan(proposer, NODES, 2), 1
    )
    ask = pb.OpenEpoch(ballot=pb.Ballot(round=1, node_id=proposer, incarnation=1), value=value)
    replica.receive(proposer, replica.state.about(ask, replica.state.active.epoch), [], stage.now_ms)
    stage.carry_out(node)
    stage.messages.clear()
    assert replica.state.fence is not None
    assert replica.state.fence.entry.accepted_value == value
    return value


def restarted(stage: Stage, node: str, epoch: int, accepted: bytes) -> Replica:
    """Return a restarted node that has accepted the end of the epoch without a journaled decision."""
    before = stage.replicas[node].state.chain
    chain = EpochChain(before.genesis)
    for decision in before.decisions[:epoch]:
        chain.extend(decision)
    cast = pb.Ballot(round=5, node_id=NODES[-1], incarnation=1)
    fence = pb.FenceEntry(
        topic_id=KEY[0], epoch=epoch, descriptor=chain.active, promised=cast, accepted=cast, accepted_value=accepted
    )
    stage.replicas[node] = Replica(
        KEY,
        node_id=node,
        incarnation=stage.incarnations[node],
        chain=chain,
        fence=fence,
        log=stage.logs[node],
        cluster_hints=stage,
        now_ms=stage.now_ms,
    )
    return stage.replicas[node]


def two_go_on(stage: Stage, without: str, *texts: str) -> None:
    """Let the two others end the epoch and acknowledge more records, and then stop."""
    stage.down = {without}
    owner = stage.owner()
    owner.roll_over(Plan(owner.state.node_id, NODES, 2), stage.now_ms)
    stage.later(500)
    for text in texts:
        stage.publish(text)
    assert stage.owner().state.high_watermark == stage.owner().state.tail.queued.offset
    stage.down = set(NODES) - {without}


def test_value_accepted_and_overruled_by_lost_replicas_is_recovered_as_unsafe() -> None:
    stage = Stage()
    stage.publish("one")
    stage.later(200)
    first = stage.owner()
    left, other = (node for node in NODES if node != first.state.node_id)
    epoch = first.state.active.epoch
    accepted = accept(stage, left, proposer=other)
    two_go_on(stage, left, "two", "three")
    assert first.state.decision(epoch) != pb.EpochDecision.FromString(accepted)
    recovered = recover(stage, left)
    assert ends(stage, left)[-1] == (epoch, 1, True)
    assert recovered.state.decision(epoch).unsafe
    assert recovered.can_append
    stage.down = set()
    meet(stage)
    assert (recovered.state.halted, recovered.can_append) == (None, True)
    for node in (first.state.node_id, other):
        assert "fork" in (stage.replicas[node].state.halted or "")
    assert stage.publish("four") == 2


def test_value_decided_by_lost_replicas_determines_the_end() -> None:
    """No node here can know it. The records committed by it are kept; nodes that know the decision are overruled."""
    stage = Stage()
    stage.publish("one", "two")
    stage.later(200)
    first = stage.owner()
    left, other = (node for node in NODES if node != first.state.node_id)
    epoch = first.state.active.epoch
    first.roll_over(Plan(other, NODES, 2), stage.now_ms)
    stage.carry_out(first.state.node_id)
    stage.later(20)
    behind = restarted(stage, left, epoch, stage.replicas[left].state.chain.decisions[epoch])
    stage.down = {left}
    stage.publish("three")
    stage.down = {first.state.node_id, other}
    recover(stage, left)
    assert ends(stage, left)[-1] == (epoch, 2, True)
    assert [behind.state.decision(epoch).end_offset, behind.state.decision(epoch).end_digest] == [
        first.state.decision(epoch).end_offset,
        first.state.decision(epoch).end_digest,
    ]
    stage.down = set()
    meet(stage)
    assert (behind.state.halted, behind.can_append) == (None, True)
    assert all("fork" in (stage.replicas[node].state.halted or "") for node in (first.state.node_id, other))


def test_value_accepted_in_an_earlier_recovery_stays_unsafe() -> None:
    """Its node stopped after it had accepted, and before it journaled the decision."""
    stage = Stage()
    stage.publish("one")
    stage.later(200)
    left, *lost = NODES
    stage.down = set(lost)
    replica = stage.replicas[left]
    epoch = replica.state.active.epoch
    recover(stage, left)
    decided = replica.state.chain.decisions[epoch]
    stage.incarnations[left] += 1
    replica = restarted(stage, left, epoch, decided)
    recover(stage, left)
    assert replica.state.chain.decisions[epoch] == decided
    assert ends(stage, left)[-1] == (epoch, 1, True)
    stage.quorum = 1
    replica.want_owner(stage.now_ms)
    stage.later(500)
    assert stage.publish("two") == 2


# --- two chains meet ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epochs_between", [1, DECISIONS_MAX + 5])
def test_second_recovery_overrules_followers_of_the_first(epochs_between: int) -> None:
    stage = Stage()
    stage.publish("one")
    stage.later(200)
    left, *others = NODES
    stage.down = set(others)
    recover(stage, left)
    stage.down = set()
    meet(stage)
    for _ in range(epochs_between):  # with copies again
        stage.owner().roll_over(Plan(left, NODES, 2), stage.now_ms)
        stage.later(200)
    stage.publish("two")
    stage.later(200)
    assert {len(stage.logs[node].content()) for node in NODES} == {2}
    stage.down = {left}
    stage.later(2000)
    two_go_on(stage, left, "three")
    recovered = recover(stage, left)
    assert recovered.can_append
    stage.publish("instead")
    stage.down = set()
    meet(stage)
    assert (recovered.state.halted, recovered.can_append) == (None, True)
    assert all("fork" in (stage.replicas[node].state.halted or "") for node in others)


def test_older_recovery_is_overruled_at_the_fork_and_not_at_the_mark() -> None:
    """The other chain was recovered, too, but after the fork, so it does not win."""
    stage = Stage()
    stage.publish("one")
    stage.later(200)
    left, *others = NODES
    stage.down = {left}
    stage.later(2000)
    two_go_on(stage, left, "two")
    recover(stage, left)
    stage.down = {left, others[1]}
    recover(stage, others[0])
    assert stage.owner().state.node_id == others[0]
    stage.down = {others[1]}
    meet(stage)
    assert stage.replicas[left].state.halted is None
    assert "fork" in (stage.replicas[others[0]].state.halted or "")


def test_node_outside_the_epoch_learns_of_the_loss() -> None:
    nodes = ("a", "b", "c", "d")
    stage = Stage(nodes)
    owner = stage.owner()
    owner.roll_over(Plan("a", NODES, 2), stage.now_ms)
    stage.later(200)
    stage.publish("one")
    stage.later(200)
    epoch = stage.owner().state.active.epoch
    stage.down = {"b", "c"}
    recover(stage, "a")
    for replica in stage.replicas.values():
        replica.state.request_chain("a", stage.now_ms)
    stage.later(500)
    assert stage.replicas["d"].state.role == "outsider"
    assert ends(stage, "d")[-1] == ends(stage, "a")[-1] == (epoch, 1, True)


def test_owner_of_another_chain_is_detected_by_its_appends() -> None:
    """No chains were exchanged yet; the epochs have the same number on both."""
    stage = Stage()
    stage.publish("one")
    stage.later(200)
    first = stage.owner()
    left = next(node for node in NODES if node != first.state.node_id)
    two_go_on(stage, left, "two")
    recovered = recover(stage, left)
    assert recovered.state.active.epoch == first.state.active.epoch
    stage.down = set()
    stage.publish("three") if stage.owner() is first else first.accept_group([], now_us=0, now_ms=stage.now_ms)
    stage.later(3000)
    assert recovered.state.halted is None
    assert "fork" in (first.state.halted or "")


# --- one step after the other ---------------------------------------------------------------------------------


def test_promises_without_a_quorum_of_accepts_decide_as_unsafe() -> None:
    """One of two replicas is left, which is a seal quorum but no ack quorum, and the node of the next copy is alive."""
    trial = CandidateBench(("a", "b"))
    trial.hints.next = Plan("b", ("b", "c"), 2)
    trial.candidate.recover_unsafely(0)
    trial.agree("b", "c")
    for _ in range(8):
        if trial.decisions:
            break
        if trial.phase == "sealing":
            trial.promise("b", now_ms=trial.candidate.deadline_ms or 0)
            trial.agree("c")
        if trial.phase == "opening":
            trial.accept("b")
        trial.later((trial.candidate.deadline_ms or 0) + TIMING.seal_ms)
    [decided] = map(pb.EpochDecision.FromString, trial.decisions)
    assert decided.unsafe
    assert list(decided.next.placement) == ["b"]


def test_outbid_recovery_retries_soon() -> None:
    """It has a few seconds, while other candidates may have backed off for minutes."""
    trial = CandidateBench(("a", "b"))
    trial.candidate.recover_unsafely(0)
    now_ms = 0
    for round_ in range(1, 12):
        assert trial.phase == "sealing"
        trial.promise("b", status=pb.FENCED, promised=ballot(round_ * 10), now_ms=now_ms)
        due_ms = trial.candidate.deadline_ms
        assert due_ms is not None
        assert due_ms - now_ms <= 2 * TIMING.back_off_ms + TIMING.rank_delay_ms
        now_ms = due_ms
        trial.candidate.tick(now_ms)
