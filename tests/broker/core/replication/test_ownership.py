"""Ownership of an epoch: exact producer state first, then pushing, and acknowledgements of this epoch only."""

from __future__ import annotations

import pytest
from tests.broker.core.bench import INCARNATION, NODES, ballot, candidate, decision, descriptor, end_of, run_of
from tests.broker.core.ownership_bench import PAST, Trial

from tidelog_broker.core.replication.chain import EpochChain
from tidelog_broker.core.replication.effects import (
    Append,
    CommitMoved,
    LaterSnapshot,
    OwnerReady,
    RebuildProducers,
    Send,
)
from tidelog_broker.core.replication.ownership import CONFIRMATION, CONFIRMATIONS_MAX
from tidelog_broker.core.replication.ports import Plan, Position
from tidelog_broker.core.replication.producers import ProducerTable
from tidelog_proto import broker_pb2 as pb


def known_from(offset: int) -> ProducerTable:
    """Return the partial state of a copy without its front."""
    return ProducerTable(known_from=offset)


def told(table: ProducerTable) -> pb.BackfillReply:
    """Return another node's reply with producer state."""
    return pb.BackfillReply(base_offset=5, producers=table.snapshot())


# --- beginning -----------------------------------------------------------------------------------------


def test_no_offset_is_assigned_before_producer_state_is_exact() -> None:
    trial = Trial()
    effect = trial.begin()
    assert (effect.epoch, effect.offset, effect.to) == (0, 5, "")
    assert (trial.role, trial.owner) == ("opening", None)
    with pytest.raises(AssertionError):
        trial.publish(1)
    trial.ownership.rebuilt(effect, ProducerTable(), 0, 0)
    assert trial.role == "owner"
    assert trial.owner is not None
    assert trial.owner.next_offset == 5
    assert [type(effect) for effect in trial.peek()] == [OwnerReady, Send, Send], "and all replicas are notified"


def test_retry_after_a_takeover_gets_the_first_offset() -> None:
    """Whether the state comes from this log or from another replica."""
    table = ProducerTable()
    [first] = run_of(descriptor(), 3)
    placed = table.apply(first.header._replace(producer_id=9, base_sequence=0))
    for remote in (False, True):
        trial = Trial()
        effect = trial.begin()
        trial.ownership.rebuilt(effect, None if remote else table, 77, 0)
        if remote:
            reply = pb.BackfillReply(base_offset=5, producers=table.snapshot(), append_timestamp_us=77)
            assert trial.ownership.take_producers("a", reply, 0)
        trial.take()
        group = trial.ownership.accept_group([candidate(3, producer=9), candidate(1)], now_us=1, now_ms=0)
        assert (group.outcomes[0], group.duplicates) == (placed, [True, False])
        assert group.headers[0].append_timestamp_us == 77, "time does not go back across the takeover either"
        owner = trial.owner
        assert owner is not None
        kept = ProducerTable.restore(owner.producers.snapshot())
        assert kept.last_append_timestamp_us == 77, "nor after a snapshot of it"


def test_producer_state_of_another_position_or_too_late_is_ignored() -> None:
    trial = Trial()
    trial.begin()
    for other in (RebuildProducers(0, 4), RebuildProducers(1, 5)):
        trial.ownership.rebuilt(other, ProducerTable(), 0, 0)
    assert trial.owner is None
    trial.ownership.leave()
    trial.enter()
    trial.ownership.rebuilt(RebuildProducers(0, 5), ProducerTable(), 0, 0)
    assert trial.owner is None, "the epoch has ended, so its request is void"


def test_incomplete_log_makes_the_owner_ask_other_nodes_in_turn() -> None:
    trial = Trial()
    trial.ownership.rebuilt(trial.begin(), None, 0, 0)
    [(to, ask)] = trial.sent(pb.Backfill)
    assert (to, ask.epoch, ask.from_offset, ask.producers) == ("a", 0, 5, True)
    assert trial.ownership.take_producers("a", pb.BackfillReply(status=pb.NOT_HELD, base_offset=5), 10)
    trial.ownership.tick(10)
    assert [to for to, _ in trial.sent(pb.Backfill)] == ["c"]
    assert trial.ownership.deadline_ms() == 10 + trial.timing.peer_fetch_ms
    assert trial.owner is None


def test_nothing_is_dropped_while_holders_of_older_epochs_are_asked() -> None:
    trial = Trial()
    trial.ownership.rebuilt(trial.begin(), None, 0, 0)
    trial.others_are_asked = True
    for node, now_ms in (("a", 10), ("c", 20)):
        trial.ownership.tick(now_ms)
        assert trial.ownership.take_producers(node, pb.BackfillReply(status=pb.NOT_HELD, base_offset=5), now_ms)
    assert trial.take(RebuildProducers) == [], "all replicas have answered, and others may know"
    trial.others_are_asked = False
    trial.ownership.on_log_complete()
    [asked] = trial.take(RebuildProducers)
    trial.ownership.rebuilt(asked, ProducerTable(), 0, 30)
    assert trial.owner is not None


def test_partial_state_makes_the_owner_ask_nodes_with_complete_state() -> None:
    trial = Trial()
    trial.ownership.rebuilt(trial.begin(), known_from(3), 50, 0)
    assert (trial.owner, [to for to, _ in trial.sent(pb.Backfill)]) == (None, ["a"])
    assert trial.ownership.take_producers("a", told(known_from(2)), 10)
    trial.ownership.tick(10)
    assert (trial.owner, [to for to, _ in trial.sent(pb.Backfill)]) == (None, ["c"])
    whole = ProducerTable()
    [first] = run_of(descriptor(), 3)
    whole.apply(first.header._replace(producer_id=9, base_sequence=0))
    assert trial.ownership.take_producers("c", told(whole), 20)
    assert trial.owner is not None
    assert (len(trial.owner.producers), trial.owner.is_logged) == (1, False)


def test_most_complete_state_is_used_if_none_is_complete() -> None:
    trial = Trial()
    trial.ownership.rebuilt(trial.begin(), known_from(3), 50, 0)
    most = known_from(2)
    [first] = run_of(descriptor(), 3)
    most.apply(first.header._replace(producer_id=9, base_sequence=0))
    assert trial.ownership.take_producers("a", told(most), 10)
    trial.ownership.tick(10)
    trial.others_are_asked = True
    assert trial.ownership.take_producers("c", told(known_from(4)), 20)
    assert trial.role == "opening", "those of older epochs may know"
    trial.others_are_asked = False
    trial.ownership.rebuilt(RebuildProducers(0, 5), known_from(3), 50, 30)
    owner = trial.owner
    assert owner is not None
    assert (len(owner.producers), owner.producers.known_from, owner.is_logged) == (1, 0, False)
    assert owner.producers.last_append_timestamp_us == 50, "also of one that knows less"


def test_only_copy_opens_with_partial_state() -> None:
    trial = Trial(placement=("b",), quorum=1)
    trial.chain = EpochChain(descriptor(owner="b", placement=("b",), quorum=1))
    trial.chain.extend(decision(trial.chain, end_of(PAST), placement=("b",), quorum=1))
    trial.ownership.rebuilt(trial.begin(), known_from(3), 50, 0)
    assert trial.owner is not None
    assert not trial.owner.is_logged


def test_requester_of_later_state_gets_complete_state_if_available() -> None:
    trial = Trial()
    later = LaterSnapshot(1, 9, 7, ProducerTable().snapshot())
    trial.ownership.rebuilt(RebuildProducers(0, 5, "c"), known_from(3), 0, 0, later=later)
    reply = trial.answer(pb.BackfillReply)
    assert (reply.status, reply.producers, reply.producers_epoch, reply.end_offset) == (pb.HELD, later.payload, 1, 9)


def test_replies_with_batches_or_from_other_nodes_are_not_producer_state() -> None:
    trial = Trial()
    batches = pb.BackfillReply(base_offset=5, length=100, source_end_offset=9)
    assert not trial.ownership.take_producers("a", batches, 0), "nothing was asked"
    trial.ownership.rebuilt(trial.begin(), None, 0, 0)
    end_reached = pb.BackfillReply(base_offset=5, source_end_offset=9)
    stranger = pb.BackfillReply(base_offset=5, producers=ProducerTable().snapshot())
    assert not trial.ownership.take_producers("a", batches, 0)
    assert not trial.ownership.take_producers("a", pb.BackfillReply(base_offset=5, length=100), 0)
    assert not trial.ownership.take_producers("a", end_reached, 0)
    assert not trial.ownership.take_producers("c", stranger, 0)
    assert not trial.ownership.take_producers("a", pb.BackfillReply(base_offset=4), 0)
    assert trial.owner is None


def test_owner_halts_without_state_and_other_nodes() -> None:
    chain = EpochChain(descriptor(owner="b", placement=("b",), quorum=1))
    chain.extend(decision(chain, end_of(PAST), placement=("b",), quorum=1))
    trial = Trial()
    trial.chain = chain
    trial.ownership.rebuilt(trial.begin(), None, 0, 0)
    assert trial.halted is not None
    trial.take()
    trial.ownership.on_log_complete()
    assert trial.peek() == [], "and it is final for this epoch"


def test_completed_log_is_used_while_other_nodes_cannot_answer() -> None:
    trial = Trial()
    first = trial.begin()
    trial.ownership.rebuilt(first, None, 0, 0)
    assert [to for to, _ in trial.sent(pb.Backfill)] == ["a"]
    trial.ownership.on_log_complete()
    assert trial.take(RebuildProducers) == [first]
    trial.ownership.rebuilt(first, None, 0, 10)
    assert trial.sent(pb.Backfill) == [], "the others are asked in turn as before"
    trial.ownership.rebuilt(first, ProducerTable(), 0, 20)
    assert trial.owner is not None
    trial.take()
    trial.ownership.on_log_complete()
    assert trial.peek() == [], "an owner knows"


def test_request_of_another_node_is_answered_without_opening() -> None:
    trial = Trial()
    trial.begin()
    trial.ownership.rebuilt(RebuildProducers(0, 5, "c"), ProducerTable(), 42, 0)
    [(to, reply)] = trial.sent(pb.BackfillReply)
    assert (to, reply.status, reply.epoch, reply.base_offset) == ("c", pb.HELD, 0, 5)
    assert (reply.append_timestamp_us, reply.source_end_offset) == (42, 0)
    trial.ownership.rebuilt(RebuildProducers(0, 5, "c"), None, 0, 0)
    assert trial.answer(pb.BackfillReply).status == pb.NOT_HELD
    assert trial.owner is None


def test_founding_owner_opens_alone() -> None:
    trial = Trial(founded=True)
    trial.ownership.begin_first(0)
    assert trial.owner is not None
    assert len(trial.take(OwnerReady)) == 1
    with pytest.raises(AssertionError):
        Trial().ownership.begin_first(0)


# --- replicating ---------------------------------------------------------------------------------------


def test_group_is_queued_and_sent_to_all_followers_immediately() -> None:
    trial = Trial()
    trial.own()
    trial.publish(2, 1)
    effects = trial.peek()
    assert [type(effect) for effect in effects] == [Append, Send]
    [append] = [effect for effect in effects if isinstance(effect, Append)]
    assert (append.epoch, append.base_offset, append.end_offset) == (1, 5, 8)
    sends = [effect for effect in effects if isinstance(effect, Send)]
    assert [send.to for send in sends] == [["a", "c"]]
    assert trial.owner is not None
    assert trial.tail.queued == Position(8, trial.owner.digest)


def test_group_without_new_batches_writes_and_sends_nothing() -> None:
    trial = Trial()
    trial.own()
    trial.ownership.accept_group([candidate(1, producer=9)], now_us=1, now_ms=0)
    trial.take()
    trial.ownership.accept_group([candidate(1, producer=9)], now_us=1, now_ms=0)
    assert trial.peek() == []


def test_records_durable_on_a_quorum_are_committed_including_the_owners_disk() -> None:
    trial = Trial()
    trial.own()
    trial.publish(2)
    trial.publish(1)
    first, second = Position(7, trial.position_of(1, 7) or 0), trial.tail.queued
    trial.ack(first)
    assert trial.high_watermark == 5, "one of three"
    trial.ack(second, sender="c")
    assert trial.high_watermark == 7, "two of three, and the owner's disk is not needed"
    trial.wrote()
    assert trial.high_watermark == 7
    trial.wrote()
    assert trial.high_watermark == 8
    assert len(trial.take(CommitMoved)) == 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"incarnation": INCARNATION + 1},
        {"incarnation": INCARNATION - 1},
        {"epoch": 0},
        {"epoch": 2},
        {"sender": "z"},
        {"status": pb.IN_LIMBO},
        {"status": pb.DIVERGED},
    ],
    ids=[
        "a later start",
        "an earlier start",
        "the epoch before",
        "an epoch to come",
        "a stranger",
        "limbo",
        "diverged",
    ],
)
def test_unrelated_acknowledgements_do_not_count(wrong: dict[str, object]) -> None:
    trial = Trial()
    trial.own()
    trial.publish(1)
    trial.wrote()
    trial.ack(trial.tail.queued, **wrong)  # type: ignore[arg-type]
    assert trial.high_watermark == 5
    assert trial.contests == []
    trial.ack(trial.tail.queued)
    assert trial.high_watermark == 6


def test_acknowledgement_of_other_content_or_unassigned_offsets_does_not_count() -> None:
    trial = Trial()
    trial.own()
    trial.publish(2)
    trial.wrote()
    end = trial.tail.queued
    for wrong in (Position(end.offset, end.digest ^ 1), Position(6, end.digest), Position(end.offset + 1, 0)):
        trial.ack(wrong)
    assert trial.high_watermark == 5


def test_nothing_is_committed_after_a_promise() -> None:
    trial = Trial()
    trial.own()
    trial.publish(1)
    trial.ack(trial.tail.queued)
    assert trial.fence is not None
    trial.fence.promise(ballot(1))
    trial.take()
    trial.wrote()
    trial.ack(trial.tail.queued, sender="c")
    assert trial.high_watermark == 5
    trial.ownership.tick(10_000)
    assert trial.peek() == [], "no message is sent"
    assert trial.ownership.deadline_ms() is None


def test_fenced_acknowledgement_contests_the_epoch() -> None:
    trial = Trial()
    trial.own()
    trial.ack(Position(5, 0), sender="z", status=pb.FENCED)
    trial.ack(Position(5, 0), incarnation=INCARNATION - 1, status=pb.FENCED)
    assert trial.contests == []
    trial.ack(Position(5, 0), status=pb.FENCED)
    assert trial.contests == [0]


def test_left_epoch_has_no_owner() -> None:
    trial = Trial()
    trial.own()
    trial.publish(1)
    asked = trial.ownership.confirm()
    trial.ownership.leave()
    trial.answer_confirmation(asked)
    assert trial.confirmed() == []
    assert (trial.owner, list(trial.ownership.followers), trial.ownership.deadline_ms()) == (None, [], None)
    trial.ack(trial.tail.queued)
    trial.ack(trial.tail.queued, sender="c")
    assert trial.high_watermark == 5
    assert not trial.ownership.resume("c", 5, 0)


def test_only_an_owner_without_a_promise_resumes_pushing() -> None:
    trial = Trial()
    assert not trial.ownership.resume("c", 5, 0)
    trial.own()
    trial.publish(1)
    trial.take()
    assert not trial.ownership.resume("z", 5, 0)
    assert trial.ownership.resume("c", 5, 0)
    assert [send.to for send in trial.take(Send)] == [("c",)]
    assert trial.fence is not None
    trial.fence.promise(ballot(1))
    assert not trial.ownership.resume("c", 5, 0)
    assert trial.peek() == []


def test_commit_is_sent_in_time_to_live_replicas_only() -> None:
    trial = Trial()
    trial.own()
    trial.hints.dead = {"c"}
    trial.publish(1)
    trial.ack(trial.tail.queued)
    trial.wrote()
    trial.take()
    due_ms = trial.ownership.deadline_ms()
    assert due_ms is not None
    assert due_ms <= trial.timing.heartbeat_ms
    trial.ownership.tick(due_ms)
    [(to, beat)] = trial.sent(pb.AppendBatch)
    assert (to, beat.commit_offset, beat.length) == ("a", 6, 0)


def idle_owner() -> Trial:
    """Return an owner whose followers have received everything."""
    trial = Trial()
    trial.own()
    for now_ms in (0, 10_000):
        trial.ownership.tick(now_ms)
        for node in ("a", "c"):
            trial.ack(Position(5, 0), sender=node)
    trial.take()
    return trial


def test_returning_replica_gets_an_immediate_heartbeat() -> None:
    trial = idle_owner()
    trial.ownership.tick(20_000)
    assert trial.peek() == [], "all replicas have all records"
    trial.ownership.liveness_changed(20_000)
    trial.ownership.tick(20_000)
    assert {to for to, _ in trial.sent(pb.AppendBatch)} == {"a", "c"}


def test_replica_in_doubt_about_the_owner_gets_a_heartbeat() -> None:
    trial = idle_owner()
    trial.ownership.greet("c", 20_000)
    trial.ownership.tick(20_000)
    assert {to for to, _ in trial.sent(pb.AppendBatch)} == {"c"}
    trial.ownership.greet("c", 20_001)
    assert trial.ownership.deadline_ms() == 20_001, "regardless of the previous heartbeat"
    trial.ownership.greet("z", 20_001)


def test_replica_that_requests_deleted_records_needs_the_next_epoch() -> None:
    trial = Trial()
    assert not trial.ownership.lacks_deleted_records("c", 0, 0)
    trial.own()
    trial.publish(3)
    trial.log_start = 7
    assert trial.ownership.lacks_deleted_records("c", 5, 0)
    assert not trial.ownership.lacks_deleted_records("c", 7, 0)
    assert not trial.ownership.lacks_deleted_records("z", 5, 0)
    trial.ack(trial.tail.queued, sender="c")
    assert not trial.ownership.lacks_deleted_records("c", 5, 0), "a late request for records that it has"
    assert trial.ownership.lacks_deleted_records("c", 5, trial.timing.peer_fetch_ms), "repeated: it has lost them"
    trial.ack(trial.tail.queued, sender="c")
    assert not trial.ownership.lacks_deleted_records("c", 5, trial.timing.peer_fetch_ms), "it holds it after all"


def test_owner_that_rolls_over_stays_the_owner_if_it_stores_the_epoch() -> None:
    trial = Trial()
    trial.hints.next = Plan("c", NODES, 2)
    assert trial.ownership.plan_next() == Plan("b", NODES, 2)
    trial.hints.next = Plan("c", ("a", "c"), 2)
    assert trial.ownership.plan_next() == Plan("c", ("a", "c"), 2)


# --- being the owner still -----------------------------------------------------------------------------


def test_confirmation_needs_a_quorum_of_answers_to_its_question() -> None:
    trial = Trial()
    trial.own()
    first = trial.ownership.confirm()
    asks = trial.sent(pb.PreVote)
    assert {(to, ask.epoch, ask.attempt) for to, ask in asks} == {(to, 1, CONFIRMATION | first) for to in ("a", "c")}
    second = trial.ownership.confirm()
    trial.take()
    trial.answer_confirmation(first)
    assert trial.confirmed() == [first]
    trial.answer_confirmation(first, sender="c")
    assert trial.confirmed() == [], "the second question was asked later: old answers do not count for it"
    trial.answer_confirmation(second, sender="c")
    assert trial.confirmed() == [second]


def test_repeated_answer_counts_once() -> None:
    chain = EpochChain(descriptor())
    five = ("a", "b", "c", "d", "e")
    chain.extend(decision(chain, end_of(PAST), placement=five, quorum=3))
    trial = Trial(placement=five, quorum=3)
    trial.own()
    number = trial.ownership.confirm()
    for _ in range(3):
        trial.answer_confirmation(number)
    assert trial.confirmed() == []
    trial.answer_confirmation(number, sender="e")
    assert trial.confirmed() == [number]


@pytest.mark.parametrize(
    "wrong",
    [{"promised": ballot(1)}, {"promised": ballot(0, "b")}, {"status": pb.IN_LIMBO}, {"epoch": 0}, {"sender": "z"}],
    ids=["promised", "the reserved ballot", "limbo", "another epoch", "a stranger"],
)
def test_unrelated_answers_do_not_confirm(wrong: dict[str, object]) -> None:
    trial = Trial()
    trial.own()
    number = trial.ownership.confirm()
    trial.answer_confirmation(number, **wrong)  # type: ignore[arg-type]
    assert trial.confirmed() == []


def test_own_promise_prevents_confirmation() -> None:
    trial = Trial()
    trial.own()
    number = trial.ownership.confirm()
    assert trial.fence is not None
    trial.fence.promise(ballot(1))
    trial.answer_confirmation(number)
    assert trial.confirmed() == []
    with pytest.raises(AssertionError):
        trial.ownership.confirm()


def test_answer_to_a_later_question_confirms_earlier_ones() -> None:
    trial = Trial()
    trial.own()
    first, second = trial.ownership.confirm(), trial.ownership.confirm()
    trial.answer_confirmation(second)
    assert trial.confirmed() == [second]
    trial.answer_confirmation(first)
    assert trial.confirmed() == []


def test_single_replica_is_confirmed_immediately() -> None:
    trial = Trial(placement=("b",), quorum=1)
    trial.own()
    number = trial.ownership.confirm()
    assert trial.confirmed() == [number]


def test_number_of_open_confirmations_is_limited() -> None:
    trial = Trial()
    trial.own()
    numbers = [trial.ownership.confirm() for _ in range(CONFIRMATIONS_MAX + 5)]
    trial.answer_confirmation(numbers[4])
    assert trial.confirmed() == [], "the oldest are forgotten"
    trial.answer_confirmation(numbers[5])
    assert trial.confirmed() == [numbers[5]], "and no more of them than it takes"
    trial.answer_confirmation(numbers[-1])
    assert trial.confirmed() == [numbers[-1]]


def test_pre_votes_of_a_candidate_are_passed_on() -> None:
    trial = Trial()
    seen: list[int] = []
    handle = trial.ownership.unless_confirmed(lambda _sender, reply, _now_ms: seen.append(reply.attempt))
    handle("a", pb.PreVoteReply(attempt=3, epoch=1), 0)
    assert seen == [3]
