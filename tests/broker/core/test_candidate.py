"""A recovery without a quorum, on an operator's word, two candidates at once, and one that is behind.

Each step of a takeover is in test_candidate_phases.
"""

from __future__ import annotations

import pytest
from tests.broker.core.candidate_bench import TIMING, CandidateBench
from tests.broker.core.test_replica import NODES, Stage

from tidelog_broker.core.effects import EpochDecided
from tidelog_broker.core.replica import Replica
from tidelog_proto import broker_pb2 as pb


def recover(stage: Stage, node: str) -> Replica:
    """Let a node be the one, and give it its time."""
    replica = stage.replicas[node]
    replica.candidate.recover_unsafely(stage.now_ms)
    stage.later(2500)
    return replica


def meet(stage: Stage) -> None:
    """Let the nodes compare their chains, as they do in a cluster from time to time."""
    for replica in stage.replicas.values():
        for node in NODES:
            replica.ask_chain(node, stage.now_ms)
    stage.later(2000)


def ends(stage: Stage, node: str) -> list[tuple[int, int, bool]]:
    news = [one for one in stage.news[node] if isinstance(one, EpochDecided)]
    return [(one.epoch, one.end_offset, one.unsafe) for one in news]


def test_one_copy_goes_on_without_a_quorum_and_the_chain_says_so() -> None:
    stage = Stage()
    owner = stage.owner().node_id
    stage.publish("one", "two")
    left = next(node for node in NODES if node != owner)
    stage.down = set(NODES) - {left}
    stage.later(20_000)
    assert not any(replica.can_append for node, replica in stage.replicas.items() if node == left)
    epoch = stage.replicas[left].active.epoch
    replica = recover(stage, left)
    assert replica.can_append
    assert list(replica.active.placement) == [left]
    assert ends(stage, left)[-1] == (epoch, 2, True)
    assert replica.decision(epoch).unsafe
    assert stage.publish("three") == 3
    assert replica.high_watermark == 3


def test_the_longest_living_copy_counts_and_not_the_named_one() -> None:
    stage = Stage()
    owner = stage.owner().node_id
    named, longer, *_ = (node for node in NODES if node != owner)
    stage.down = {named}
    stage.publish("one", "two")
    stage.down = {owner}
    # Both of the three that are left are a seal quorum: nothing is unsafe then, and nothing lost.
    replica = recover(stage, named)
    assert {unsafe for _, _, unsafe in ends(stage, named)} == {False}
    assert replica.high_watermark == 2
    assert stage.logs[named].content() == stage.logs[longer].content()


def test_with_five_the_two_that_are_left_put_together_what_they_have() -> None:
    stage = Stage(("a", "b", "c", "d", "e"), quorum=3)
    owner = stage.owner().node_id
    named, longer, *lost = (node for node in stage.replicas if node != owner)
    stage.down = {named}
    stage.publish("one", "two")
    stage.down = {owner, *lost}
    stage.later(2000)
    replica = recover(stage, named)
    assert replica.can_append
    assert ends(stage, named)[-1][1:] == (2, True)
    assert len(stage.logs[named].content()) == 2
    assert stage.replicas[longer].active == replica.active, "who is there follows"


def test_others_that_come_back_cut_what_was_given_up_and_follow() -> None:
    stage = Stage()
    owner = stage.owner().node_id
    behind, other = (node for node in NODES if node != owner)
    stage.publish("one")
    stage.down = {behind}
    stage.publish("two", "three")
    stage.later(200)
    assert stage.replicas[other].high_watermark == 3
    stage.down = {owner, other}
    recover(stage, behind)
    stage.down = set()
    meet(stage)
    for node in (owner, other):
        replica = stage.replicas[node]
        assert ends(stage, node)[-1][1:] == (1, True), "records that were committed are gone, and it is told"
        assert (replica.high_watermark, replica.halted) == (1, None)
        assert len(stage.logs[node].content()) == 1
    assert stage.publish("four") == 2


def test_what_was_decided_among_the_lost_does_not_stop_the_recovered_copy() -> None:
    stage = Stage()
    owner = stage.owner().node_id
    cut, other = (node for node in NODES if node != owner)
    stage.publish("one")
    stage.later(200)
    stage.down = {cut, owner}
    stage.later(200)
    stage.down = {cut}  # the two others roll over, and go on
    stage.owner().roll_over(stage.plan(("", 0), stage.owner().active), stage.now_ms)  # type: ignore[arg-type]
    stage.later(500)
    assert stage.publish("two") == 2
    stage.down = {owner, other}
    recovered = recover(stage, cut)
    assert recovered.can_append
    stage.down = set()
    meet(stage)
    assert (recovered.halted, recovered.can_append) == (None, True)
    for node in (owner, other):
        assert "fork" in (stage.replicas[node].halted or "")
        assert not stage.replicas[node].can_append


def test_a_quorum_that_was_decided_twice_by_operators_stops_both() -> None:
    stage = Stage()
    stage.publish("one")
    stage.later(200)
    for node in ("a", "b"):
        stage.down = set(NODES) - {node}
        recover(stage, node)
    stage.down = set()
    meet(stage)
    assert all("fork" in (stage.replicas[node].halted or "") for node in ("a", "b"))


def test_it_is_given_up_after_a_while() -> None:
    stage = Stage()
    owner = stage.owner().node_id
    left = next(node for node in NODES if node != owner)
    stage.down = set(NODES) - {left}
    replica = stage.replicas[left]
    replica.doubt = "damaged"  # it never promises, not even to itself
    replica.candidate.recover_unsafely(stage.now_ms)
    stage.later(replica.timing.unsafe_ms + 6000)
    assert replica.candidate.phase in {"waiting", "pre-voting", "idle"}
    replica.doubt = ""
    stage.later(6000)
    assert ends(stage, left) == [] or not any(unsafe for _, _, unsafe in ends(stage, left))


@pytest.mark.parametrize("acknowledged", [0, 3])
def test_what_one_has_accepted_is_kept(acknowledged: int) -> None:
    """The value that a dead proposer had accepted here may have been decided: it is not replaced."""
    stage = Stage()
    owner = stage.owner()
    if acknowledged:
        stage.publish(*map(str, range(acknowledged)))
    stage.later(200)
    left, other = (node for node in NODES if node != owner.node_id)
    plan = stage.plan(("", 0), owner.active)  # type: ignore[arg-type]
    stage.down = {other}
    owner.roll_over(plan, stage.now_ms)
    stage.carry_out(owner.node_id)
    for _ in range(len(stage.messages)):  # what `left` answers is lost
        sender, send = stage.messages.popleft()
        if send.to == left:
            stage.replicas[left].receive(sender, send.message, [], stage.now_ms)
    stage.carry_out(left)
    stage.messages.clear()
    fence = stage.replicas[left].fence
    assert fence is not None
    accepted = fence.entry.accepted_value
    assert accepted
    epoch = owner.active.epoch
    stage.down = {owner.node_id, other}
    replica = recover(stage, left)
    assert replica.chain.decisions[epoch] == accepted


class Watched(Stage):
    """Notes who seals."""

    sealing: set[str]

    def carry_out(self, node: str) -> None:
        super().carry_out(node)
        self.sealing |= {sender for sender, send in self.messages if isinstance(send.message, pb.Seal)}


def test_two_that_both_believe_to_be_first_do_not_outbid_each_other() -> None:
    Watched.sealing = set()
    stage = Watched()
    end = stage.publish("kept")
    gone = stage.owner().node_id
    stage.down, stage.sealing = {gone}, set()
    stage.now_ms += stage.replicas[gone].timing.heard_ms
    for node in NODES:
        if node != gone:
            stage.replicas[node].tick(stage.now_ms)
    stage.later(1000)
    assert stage.owner().high_watermark == end
    assert len(stage.sealing) == 1


def test_two_that_make_way_for_each_other_do_not_do_so_for_ever() -> None:
    """They ask each other at the same moment, after both had their first attempt; what they send takes 2 ms."""
    trials = {"b": CandidateBench(), "c": CandidateBench()}
    trials["c"].node_id = "c"
    trials["c"].hints.randoms_ms = [0, 40]
    for trial in trials.values():
        trial.candidate.consider(0)
        trial.out.clear()
        trial.later(TIMING.pre_vote_ms)
        assert trial.phase == "waiting"
    on_its_way: list[tuple[int, str, str, pb.PreVote | pb.PreVoteReply]] = []
    for now_ms in range(TIMING.pre_vote_ms, TIMING.pre_vote_ms + 2000):
        arriving = [one for one in on_its_way if one[0] == now_ms]
        for _, sender, to, message in arriving:
            if isinstance(message, pb.PreVoteReply):
                trials[to].candidate.on_pre_vote_reply(sender, message, now_ms)
            else:
                agrees = trials[to].candidate.agrees(sender, now_ms)
                trials[to].out.append((sender, pb.PreVoteReply(attempt=message.attempt, agrees=agrees)))
        for sender, trial in trials.items():
            trial.candidate.tick(now_ms)
            for to, sent in trial.out:
                if to in trials and isinstance(sent, pb.PreVote | pb.PreVoteReply):
                    on_its_way.append((now_ms + (1 if to == sender else 2), sender, to, sent))
            trial.out.clear()
        if "sealing" in {trial.phase for trial in trials.values()}:
            break
    assert {node: trial.phase for node, trial in trials.items()} == {"b": "sealing", "c": "waiting"}


def test_a_node_that_is_behind_reads_what_has_come_before_it_asks_again() -> None:
    trial = CandidateBench()
    trial.candidate.consider(0)
    trial.asked()
    late_ms = 5000  # of the resend at 100 ms, and of giving up
    trial.candidate.tick(100 + late_ms)
    assert (trial.phase, trial.out) == ("pre-voting", [])
    assert trial.candidate.deadline_ms == 100 + late_ms + TIMING.resend_ms
    trial.candidate.tick(100 + 2 * late_ms)
    assert trial.phase == "waiting", "that is done once: what is lost must be asked for again"
    trial.candidate.tick(trial.candidate.deadline_ms or 0)
    trial.asked()
    trial.candidate.tick(100 + 3 * late_ms)
    trial.agree("b", "c")
    assert trial.phase == "sealing"


def test_who_is_asked_for_a_silent_owner_is_asked_anew_when_that_turns_out_to_be_gone() -> None:
    """They have refused, rightly; their next turn to be asked would come much later."""
    trial = CandidateBench()
    trial.owner_may_be_slow = True
    trial.candidate.consider(0)
    first = trial.candidate._attempt
    trial.asked()
    trial.agree("b")
    trial.agree("c", agrees=False)
    trial.later(TIMING.resend_ms)
    trial.asked()
    trial.owner_may_be_slow = False
    trial.candidate.consider(TIMING.resend_ms + 10)
    assert set(trial.asked()) == set(NODES)
    assert trial.candidate._attempt == first + 1, "what they said before does not count"
    trial.candidate.consider(TIMING.resend_ms + 11)
    assert not trial.out, "once is enough"
    trial.agree("b", "c")
    assert trial.phase == "sealing"


@pytest.mark.parametrize("told", ["by gossip", "by its refusal"])
def test_an_owner_that_is_there_after_all_ends_the_pre_vote(told: str) -> None:
    trial = CandidateBench()
    trial.candidate.consider(0)
    trial.missing = False
    if told == "by gossip":
        trial.candidate.consider(10)
    else:
        trial.agree("a", agrees=False)
    assert (trial.phase, trial.candidate.deadline_ms) == ("idle", None)
    trial.missing = True
    trial.asked()
    trial.candidate.consider(500)
    assert set(trial.asked()) == set(NODES), "when it dies then, nothing is left of the first attempt to wait for"


def test_an_owner_that_is_there_after_all_is_not_sealed_because_others_had_agreed_before() -> None:
    trial = CandidateBench()
    trial.owner_may_be_slow = True
    trial.candidate.consider(0)
    trial.agree("b", "c")
    trial.missing = trial.owner_may_be_slow = False  # it has sent something, whatever gossip says of it
    trial.agree("a", agrees=False)
    assert trial.phase == "idle"
