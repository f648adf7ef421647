"""The steps of a takeover: requests, valid answers, transitions and timeouts.

Recoveries without a quorum are in test_candidate_unsafe, concurrent candidates in test_candidate.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from tests.broker.core.bench import INCARNATION, NODES, ballot
from tests.broker.core.candidate_bench import TIMING, CandidateBench

from tidelog_broker.core.replication.candidate import PHASE_TRANSITIONS, Phase
from tidelog_broker.core.replication.ports import Plan, Position
from tidelog_proto import broker_pb2 as pb

FOUR = ("a", "b", "c", "d")
FIVE = ("a", "b", "c", "d", "e")


# --- beginning -----------------------------------------------------------------------------------------


def test_no_takeover_from_a_live_owner() -> None:
    trial = CandidateBench()
    trial.hints.turn = 1
    trial.missing = False
    trial.candidate.consider(0)
    assert (trial.phase, trial.candidate.deadline_ms, trial.out) == ("idle", None, [])


def test_candidates_wait_according_to_their_rank() -> None:
    trial = CandidateBench()
    trial.hints.turn = 2
    trial.candidate.consider(1000)
    assert (trial.phase, trial.out) == ("waiting", [])
    assert trial.candidate.deadline_ms == 1000 + 2 * TIMING.rank_delay_ms
    trial.candidate.tick(1000 + 2 * TIMING.rank_delay_ms - 1)
    assert trial.out == []
    trial.candidate.tick(1000 + 2 * TIMING.rank_delay_ms)
    assert trial.phase == "pre-voting"


def test_owner_that_returns_before_the_turn_is_kept() -> None:
    trial = CandidateBench()
    trial.hints.turn = 1
    trial.candidate.consider(0)
    trial.missing = False
    trial.candidate.tick(10_000)
    assert (trial.phase, trial.out) == ("idle", [])


@pytest.mark.parametrize("missing", [False, True])
def test_idle_replica_agrees_if_it_misses_the_owner(*, missing: bool) -> None:
    trial = CandidateBench()
    trial.missing = missing
    assert trial.candidate.agrees("c", 0) == missing


def test_first_ranked_candidate_does_not_yield_in_its_first_attempt() -> None:
    trial = CandidateBench()
    trial.candidate.consider(0)
    assert not trial.candidate.agrees("c", 0)
    assert trial.candidate.agrees("b", 0), "itself it agrees with"
    trial.later(TIMING.pre_vote_ms)
    assert trial.phase == "waiting"
    assert trial.candidate.agrees("c", TIMING.pre_vote_ms), "it has had its turn"


def test_other_candidates_yield_to_an_active_one() -> None:
    trial = CandidateBench()
    trial.hints.turn = 1
    trial.candidate.consider(0)
    now_ms = trial.candidate.deadline_ms or 0
    assert trial.candidate.agrees("c", now_ms)
    assert trial.candidate.deadline_ms == now_ms + TIMING.yield_ms
    assert trial.phase == "waiting"


def test_retiring_owner_agrees_to_any_candidate() -> None:
    trial = CandidateBench(owner="b")
    trial.retiring = True
    trial.candidate.roll_over(Plan("c", NODES, 2), Position(17, 9), 0)
    assert trial.candidate.agrees("c", 0)
    assert trial.phase == "opening"


# --- the pre-vote --------------------------------------------------------------------------------------


def test_pre_vote_reaches_every_replica_and_precedes_the_seal() -> None:
    trial = CandidateBench(FIVE, quorum=3)
    trial.candidate.consider(0)
    assert set(trial.asked()) == set(FIVE), "itself, too: its own acceptor has a say"
    trial.agree("b")
    trial.agree("c")
    trial.agree("c")
    assert trial.phase == "pre-voting"
    trial.agree("d")
    assert trial.phase == "sealing"
    asked = trial.asked()
    assert set(asked) == set(FIVE)
    assert all(isinstance(message, pb.Seal) and message.epoch == 4 for message in asked.values())


def test_refusals_damaged_replicas_and_other_nodes_do_not_count() -> None:
    trial = CandidateBench(FIVE, quorum=3)
    trial.candidate.consider(0)
    trial.agree("b", "c")
    trial.agree("d", agrees=False)
    trial.agree("z")
    trial.agree("e", attempt=trial.attempt + 1)
    reply = pb.PreVoteReply(attempt=trial.attempt, agrees=True, status=pb.IN_LIMBO)
    trial.candidate.on_pre_vote_reply("e", reply, 0)
    assert trial.phase == "pre-voting"


def test_unanswered_pre_votes_are_repeated_with_back_off_until_the_timeout() -> None:
    trial = CandidateBench()
    trial.candidate.consider(0)
    trial.asked()
    trial.agree("b")
    at_ms = []
    while trial.phase == "pre-voting":
        now_ms = trial.candidate.deadline_ms or 0
        trial.candidate.tick(now_ms)
        if trial.phase == "pre-voting":
            at_ms.append(now_ms)
            assert set(trial.asked()) == {"a", "c"}
    assert at_ms == [100, 300, 700, 1500]
    assert trial.phase == "waiting"


@pytest.mark.parametrize("answers", [False, True])
def test_silent_owner_has_the_whole_pre_vote_to_answer(*, answers: bool) -> None:
    trial = CandidateBench()
    trial.owner_may_be_slow = True
    trial.candidate.consider(0)
    trial.agree("b", "c")
    trial.later(TIMING.pre_vote_ms - 1)
    assert trial.phase == "pre-voting", "a seal quorum agrees, and the owner has not answered yet"
    trial.missing = not answers
    trial.later(TIMING.pre_vote_ms)
    assert trial.phase == ("waiting" if answers else "sealing")


def test_owner_known_to_be_dead_is_not_waited_for() -> None:
    trial = CandidateBench(FIVE, quorum=3)
    trial.owner_may_be_slow = True
    trial.candidate.consider(0)
    trial.agree("b", "c", "d")
    trial.owner_may_be_slow = False
    trial.agree("e")
    assert trial.phase == "sealing"


def test_nodes_of_the_next_epoch_only_are_probed() -> None:
    trial = CandidateBench()
    trial.hints.next = Plan("b", ("b", "c", "d"), 2)
    trial.candidate.consider(0)
    asked = trial.asked()
    assert set(asked) == {*NODES, "d"}
    assert [node for node, one in asked.items() if isinstance(one, pb.PreVote) and one.probe] == ["d"]


# --- SEAL ----------------------------------------------------------------------------------------------


def test_ballot_exceeds_all_known_ones_and_names_this_incarnation() -> None:
    trial = CandidateBench()
    trial.candidate.consider(0)
    trial.agree("b", round_=4)
    trial.out.clear()
    trial.agree("c")
    [first] = {message.ballot.round for message in trial.asked().values() if isinstance(message, pb.Seal)}
    assert (first, trial.ballot) == (5, ballot(5, "b"))
    trial.promise("c", status=pb.FENCED, promised=ballot(9, "c"))
    trial.candidate.tick(10**6)
    trial.agree("b", "c")
    assert trial.ballot == ballot(10, "b")


def test_seal_quorum_ends_the_epoch_at_the_greatest_end() -> None:
    trial = CandidateBench(FIVE, quorum=3).sealing()
    trial.agree(*FIVE)
    trial.promise("b", Position(12, 1))
    trial.promise("c", Position(17, 9))
    trial.promise("c", Position(17, 9))
    assert trial.phase == "sealing"
    trial.hints.incarnations["b"] = INCARNATION - 1  # old news of this very node
    trial.promise("d", Position(15, 3))
    value = trial.value()
    assert (value.epoch, value.end_offset, value.end_digest) == (4, 17, 9)
    assert (value.next.owner, value.next.owner_incarnation, list(value.next.placement)) == ("b", INCARNATION, [*FIVE])


def test_replicas_that_hold_the_end_are_named_as_sources() -> None:
    trial = CandidateBench().sealing()
    trial.agree(*NODES)
    trial.promise("b", Position(12, 1))
    trial.promise("c", Position(17, 9))
    asked = trial.asked()
    assert set(asked) == set(NODES)
    assert all(isinstance(one, pb.OpenEpoch) and list(one.holders) == ["c"] for one in asked.values())


def test_promises_of_other_ballots_and_nodes_do_not_count() -> None:
    trial = CandidateBench().sealing()
    trial.agree(*NODES)
    trial.promise("b")
    own = trial.ballot
    for other in (ballot(own.round - 1, "b"), ballot(own.round + 1, "b"), ballot(own.round, "c"), ballot(1, "b", 1)):
        trial.promise("c", of=other)
    trial.promise("z")
    trial.promise("c", status=pb.IN_LIMBO)
    assert trial.phase == "sealing"


@pytest.mark.parametrize("planned", [Plan("z", ("z",), 1), Plan("b", NODES, 2)], ids=["nobody there", "all there"])
def test_accepted_value_is_proposed_unchanged(planned: Plan) -> None:
    """Even if its placement is dead by now; another takeover follows then."""
    trial = CandidateBench()
    old = pb.EpochDecision(epoch=4, end_offset=12, next=pb.EpochDescriptor(epoch=5, owner="z")).SerializeToString()
    trial.hints.next = planned
    trial.sealing()
    trial.promise("b", Position(17, 9))
    trial.promise("c", Position(12, 1), accepted=(ballot(1, "a"), old))
    assert trial.value().SerializeToString() == old


def test_possibly_short_logs_count_only_if_all_replicas_answered() -> None:
    trial = CandidateBench().sealing()
    trial.agree(*NODES)
    trial.promise("b", Position(12, 1), short=True)
    trial.promise("c", Position(14, 2))
    assert trial.phase == "sealing", "one complete log does not form a seal quorum"
    trial.promise("a", Position(13, 5), short=True)
    value = trial.value()
    assert (value.end_offset, value.short_logs) == (14, True), "records acknowledged by a and b may be lost"


def test_short_logs_do_not_block_a_quorum_of_complete_ones() -> None:
    trial = CandidateBench(FIVE, quorum=3).sealing()
    trial.agree(*FIVE)
    trial.promise("a", Position(19, 7), short=True)
    trial.promise("b", Position(12, 1))
    trial.promise("c", Position(14, 2))
    trial.promise("d", Position(13, 5))
    value = trial.value()
    assert value.end_offset == 19, "e is not awaited, and the records of a count"
    assert not value.short_logs


def test_proposal_waits_for_enough_nodes_of_the_successor_epoch() -> None:
    trial = CandidateBench()
    trial.hints.next = Plan("b", ("b", "d", "e"), 2)
    trial.sealing()
    trial.promise("b")
    trial.promise("c")
    trial.promise("a")
    assert trial.phase == "sealing", "of the next epoch's nodes only this one is known to be there"
    trial.agree("d", agrees=False)
    assert list(trial.value().next.placement) == ["b", "d", "e"]


def test_successor_epoch_needs_a_live_seal_quorum() -> None:
    trial = CandidateBench()
    trial.hints.next = Plan("b", ("b", "d", "e"), 1)
    trial.sealing()
    trial.agree("d", agrees=False)
    for node in NODES:
        trial.promise(node)
    assert trial.phase == "sealing"
    trial.agree("e", agrees=False)
    assert trial.phase == "opening"


def test_successor_epoch_needs_a_live_ack_quorum() -> None:
    trial = CandidateBench(FOUR, quorum=3)
    trial.sealing("b", "c")
    trial.promise("b")
    trial.promise("c")
    assert trial.phase == "sealing", "two seal it, three acknowledge"
    trial.agree("d", agrees=False)
    assert trial.phase == "opening"


def test_silent_planned_owner_is_replaced_by_this_node() -> None:
    trial = CandidateBench()
    trial.hints.next = Plan("a", NODES, 2)
    trial.sealing("b", "c")
    trial.promise("b")
    trial.promise("c")
    assert trial.value().next.owner == "b"


def test_planned_owner_is_named_with_its_newest_incarnation() -> None:
    trial = CandidateBench()
    trial.hints.next = Plan("c", NODES, 2)
    trial.hints.incarnations["c"] = 99
    trial.sealing()
    trial.promise("b")
    trial.promise("c")
    assert (trial.value().next.owner, trial.phase) == ("c", "opening")
    assert pb.EpochDecision.FromString(trial.proposed).next.owner_incarnation == 99


def test_nothing_is_proposed_without_the_planned_owner_or_a_local_copy() -> None:
    trial = CandidateBench()
    trial.hints.next = Plan("d", ("c", "d", "e"), 2)
    trial.sealing()
    trial.agree("e", agrees=False)
    trial.promise("b")
    trial.promise("c")
    assert trial.phase == "sealing"


# --- OPEN_EPOCH ----------------------------------------------------------------------------------------


def test_ack_quorum_of_accepts_is_the_decision() -> None:
    trial = CandidateBench(FIVE, quorum=3).opening()
    trial.accept("b", "c", "c")
    trial.accept("z")
    trial.accept("d", status=pb.IN_LIMBO)
    trial.accept("d", status=pb.DIVERGED)
    trial.accept("d", of=ballot(trial.ballot.round, "c"))
    assert trial.decisions == []
    trial.accept("e")
    assert trial.decisions == [trial.proposed]


def test_seal_quorum_may_be_too_small_to_decide() -> None:
    trial = CandidateBench(FOUR, quorum=3).opening()
    trial.accept("b", "c")
    assert trial.decisions == []
    trial.accept("d")
    assert len(trial.decisions) == 1


def test_accepts_of_an_earlier_attempt_do_not_count() -> None:
    trial = CandidateBench().opening()
    earlier = pb.Ballot()
    earlier.CopyFrom(trial.ballot)
    trial.accept("b")
    trial.accept("c", status=pb.FENCED, promised=ballot(7))
    assert trial.phase == "waiting"
    trial.accept("c", of=earlier)
    trial.candidate.tick(10**6)
    trial.agree(*NODES)
    trial.promise("b")
    trial.promise("c")
    trial.accept("c")
    trial.accept("a", of=earlier)
    assert trial.decisions == []


def test_fetching_replica_is_waited_for_up_to_a_limit() -> None:
    trial, given_up_ms = CandidateBench().opening(), list[int]()
    for now_ms in range(0, TIMING.fetch_ms + 501, 500):
        trial.candidate.tick(now_ms)
        if trial.phase != "opening":
            given_up_ms.append(now_ms)
        trial.accept("c", status=pb.FETCHING, now_ms=now_ms)
    assert given_up_ms[0] == TIMING.fetch_ms
    silent = CandidateBench().opening()
    silent.later(TIMING.open_ms)
    assert silent.phase == "waiting", "without a sign it is given up sooner"


# --- trying again --------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["sealing", "opening"])
def test_outbid_candidate_backs_off_and_repeats_the_pre_vote(phase: str) -> None:
    trial = CandidateBench().sealing() if phase == "sealing" else CandidateBench().opening()
    trial.asked()
    if phase == "sealing":
        trial.promise("c", status=pb.FENCED, promised=ballot(7), now_ms=100)
    else:
        trial.accept("c", status=pb.FENCED, promised=ballot(7), now_ms=100)
    assert (trial.phase, trial.out) == ("waiting", [])
    assert (trial.candidate.deadline_ms or 0) > 100
    trial.candidate.tick(trial.candidate.deadline_ms or 0)
    assert all(isinstance(message, pb.PreVote) for message in trial.asked().values())


def test_back_off_doubles_up_to_a_limit_with_jitter() -> None:
    trial = CandidateBench()
    trial.candidate.consider(0)
    for _ in range(14):
        while trial.phase == "pre-voting":
            trial.candidate.tick(trial.candidate.deadline_ms or 0)
        trial.candidate.tick(trial.candidate.deadline_ms or 0)
    below_ms = trial.hints.asked_below_ms
    assert below_ms[:3] == [80, 160, 320]
    assert all(2 * one == other for one, other in pairwise(below_ms) if other < 5000)
    assert below_ms[-1] == TIMING.back_off_ms_max


def test_half_of_the_back_off_is_fixed() -> None:
    """A candidate that draws 0 has still waited."""
    trial = CandidateBench().sealing()
    trial.promise("c", status=pb.FENCED, promised=ballot(7), now_ms=100)
    assert trial.candidate.deadline_ms == 100 + TIMING.back_off_ms


def test_promises_of_an_earlier_attempt_do_not_count() -> None:
    trial = CandidateBench().sealing()
    trial.promise("b")
    trial.later(TIMING.seal_ms)
    trial.candidate.tick(10**6)
    trial.agree(*NODES)
    assert trial.phase == "sealing"
    trial.promise("c")
    assert trial.phase == "sealing"


def test_agreement_of_an_earlier_attempt_is_requested_again() -> None:
    trial = CandidateBench()
    trial.hints.next = Plan("b", ("b", "d", "e"), 2)
    trial.sealing()
    trial.agree("d", agrees=False)
    trial.later(TIMING.seal_ms)
    trial.candidate.tick(10**6)
    trial.agree("c")
    assert trial.phase == "pre-voting"
    trial.agree("b")
    trial.promise("b")
    trial.promise("c")
    assert trial.phase == "sealing", "d may be gone by now"


def test_short_log_of_an_earlier_attempt_may_be_complete_later() -> None:
    trial = CandidateBench().sealing()
    trial.promise("b", short=True)
    trial.later(TIMING.seal_ms)
    trial.candidate.tick(10**6)
    trial.agree(*NODES)
    trial.promise("b")
    trial.promise("c")
    assert trial.phase == "opening"


def test_decision_of_another_node_ends_the_attempt() -> None:
    trial = CandidateBench().opening()
    trial.candidate.eager = True
    trial.candidate.reset()
    assert (trial.phase, trial.candidate.deadline_ms, trial.candidate.eager) == ("idle", None, False)
    trial.accept("b", "c")
    trial.asked()
    trial.candidate.tick(10**6)
    assert (trial.decisions, trial.out) == ([], [])


# --- a planned roll-over -------------------------------------------------------------------------------


def test_roll_over_proposes_immediately_under_the_reserved_ballot() -> None:
    trial = CandidateBench(owner="b")
    trial.candidate.roll_over(Plan("c", NODES, 2), Position(17, 9), 0)
    asked = trial.asked()
    assert set(asked) == set(NODES)
    for message in asked.values():
        assert isinstance(message, pb.OpenEpoch)
        assert (message.ballot, list(message.holders)) == (ballot(0, "b"), ["b"])
    value = pb.EpochDecision.FromString(trial.proposed)
    assert (value.end_offset, value.end_digest, value.next.owner) == (17, 9, "c")
    trial.accept("b", "c")
    assert trial.decisions == [trial.proposed]


def test_only_the_owner_rolls_over() -> None:
    with pytest.raises(AssertionError):
        CandidateBench(owner="a").candidate.roll_over(Plan("c", NODES, 2), Position(17, 9), 0)


def test_failed_roll_over_continues_with_a_full_seal_at_a_higher_ballot() -> None:
    trial = CandidateBench(owner="b")
    trial.retiring = True
    trial.candidate.roll_over(Plan("c", NODES, 2), Position(17, 9), 0)
    trial.asked()
    trial.later(TIMING.open_ms)
    trial.out.clear()
    trial.candidate.tick(trial.candidate.deadline_ms or 0)
    asked = trial.asked()
    assert all(isinstance(one, pb.Seal) and one.ballot == ballot(1, "b") for one in asked.values())
    assert set(asked) == set(NODES)


# --- the table -----------------------------------------------------------------------------------------


def in_phase(phase: Phase) -> CandidateBench:
    trial = CandidateBench(owner="b")
    if phase in {"waiting", "pre-voting"}:
        trial.hints.turn = 1 if phase == "waiting" else 0
        trial.candidate.consider(0)
    if phase == "sealing":
        trial.sealing()
    if phase in {"opening", "accepted"}:
        trial.opening()
    if phase == "accepted":
        trial.candidate.wait_for_all()
        trial.accept("b", "c")
    assert trial.phase == phase
    return trial


@pytest.mark.parametrize("phase", [phase for phase in PHASE_TRANSITIONS if "opening" not in PHASE_TRANSITIONS[phase]])
def test_owner_in_another_attempt_proposes_no_planned_end(phase: Phase) -> None:
    with pytest.raises(AssertionError, match=f"cannot change from {phase} to opening"):
        in_phase(phase).candidate.roll_over(Plan("b", NODES, 2), Position(15, 3), 0)


@pytest.mark.parametrize("phase", PHASE_TRANSITIONS)
def test_unsafe_recovery_seals_unless_a_quorum_has_accepted(phase: Phase) -> None:
    trial = in_phase(phase)
    trial.candidate.recover_unsafely(0)
    assert ("sealing" in PHASE_TRANSITIONS[phase]) == (trial.phase == "sealing")
    assert len(trial.decisions) == (1 if phase == "accepted" else 0)


@pytest.mark.parametrize("phase", PHASE_TRANSITIONS)
def test_decision_ends_every_attempt(phase: Phase) -> None:
    trial = in_phase(phase)
    trial.candidate.reset()
    assert (trial.phase, trial.candidate.deadline_ms) == ("idle", None)
