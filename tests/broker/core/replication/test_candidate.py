"""Two concurrent candidates, and an overloaded one.

The steps of a takeover are in test_candidate_phases, recoveries without a quorum in test_candidate_unsafe.
"""

from __future__ import annotations

import pytest
from tests.broker.core.candidate_bench import TIMING, CandidateBench
from tests.broker.core.replication.test_replica import NODES, Stage

from tidelog_proto import broker_pb2 as pb


class Watched(Stage):
    """Records which nodes seal."""

    sealing: set[str]

    def carry_out(self, node: str) -> None:
        super().carry_out(node)
        self.sealing |= {sender for sender, send in self.messages if isinstance(send.message, pb.Seal)}


def test_two_candidates_that_both_rank_first_do_not_outbid_each_other() -> None:
    Watched.sealing = set()
    stage = Watched()
    end = stage.publish("kept")
    gone = stage.owner().state.node_id
    stage.down, stage.sealing = {gone}, set()
    stage.now_ms += stage.replicas[gone].state.timing.heard_ms
    for node in NODES:
        if node != gone:
            stage.replicas[node].tick(stage.now_ms)
    stage.later(1000)
    assert stage.owner().state.high_watermark == end
    assert len(stage.sealing) == 1


def test_two_candidates_do_not_yield_to_each_other_forever() -> None:
    """Both ask each other at the same time, after both failed once; messages take 2 ms."""
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


def test_overloaded_candidate_reads_pending_answers_before_asking_again() -> None:
    trial = CandidateBench()
    trial.candidate.consider(0)
    trial.asked()
    late_ms = 5000  # of the resend at 100 ms, and of giving up
    trial.candidate.tick(100 + late_ms)
    assert (trial.phase, trial.out) == ("pre-voting", [])
    assert trial.candidate.deadline_ms == 100 + late_ms + TIMING.resend_ms
    trial.candidate.tick(100 + 2 * late_ms)
    assert trial.phase == "waiting", "the shortcut applies once; lost requests must be repeated"
    trial.candidate.tick(trial.candidate.deadline_ms or 0)
    trial.asked()
    trial.candidate.tick(100 + 3 * late_ms)
    trial.agree("b", "c")
    assert trial.phase == "sealing"


def test_pre_vote_about_a_silent_owner_is_repeated_when_it_is_dead() -> None:
    """They refused correctly; without the repetition they would be asked again much later."""
    trial = CandidateBench()
    trial.owner_may_be_slow = True
    trial.candidate.consider(0)
    first = trial.attempt
    trial.asked()
    trial.agree("b")
    trial.agree("c", agrees=False)
    trial.later(TIMING.resend_ms)
    trial.asked()
    trial.owner_may_be_slow = False
    trial.candidate.consider(TIMING.resend_ms + 10)
    assert set(trial.asked()) == set(NODES)
    assert trial.attempt == first + 1, "earlier answers do not count"
    trial.candidate.consider(TIMING.resend_ms + 11)
    assert not trial.out, "once is enough"
    trial.agree("b", "c")
    assert trial.phase == "sealing"


@pytest.mark.parametrize("told", ["by gossip", "by its refusal"])
def test_live_owner_ends_the_pre_vote(told: str) -> None:
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


def test_live_owner_is_not_sealed_despite_earlier_agreement() -> None:
    trial = CandidateBench()
    trial.owner_may_be_slow = True
    trial.candidate.consider(0)
    trial.agree("b", "c")
    trial.missing = trial.owner_may_be_slow = False  # the owner has sent a message, regardless of gossip
    trial.agree("a", agrees=False)
    assert trial.phase == "idle"
