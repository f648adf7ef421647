"""Shared state of a replica's parts: ordered writes, a monotone watermark, and synchronization of chains."""

from __future__ import annotations

import pytest
from tests.broker.core.bench import INCARNATION, KEY, NODES, Bench, decision, descriptor, end_of, run_of

from tidelog_broker.core.replication.chain import EpochChain, decision_hash
from tidelog_broker.core.replication.effects import Append, CommitMoved, Halted, Send, WriteFences
from tidelog_broker.core.replication.paxos import decision_value
from tidelog_broker.core.replication.ports import Plan, Position
from tidelog_broker.core.replication.replica_state import (
    DECISIONS_MAX,
    PARTICIPATION_TRANSITIONS,
    ROLE_TRANSITIONS,
    Participation,
    Role,
)
from tidelog_proto import broker_pb2 as pb


def chain_of(*ends: int, placements: tuple[tuple[str, ...], ...] = ()) -> EpochChain:
    """Return a chain whose epochs end at `ends`; the placement of epoch n + 1 is `placements[n]`."""
    chain = EpochChain(descriptor())
    for epoch, end in enumerate(ends):
        placement = placements[epoch] if placements else NODES
        chain.extend(decision(chain, Position(end, end + 1), owner=placement[0], placement=placement))
    return chain


# --- writes --------------------------------------------------------------------------------------------


def test_append_is_queued_in_order_and_counts_when_durable() -> None:
    bench, batches, ends = Bench(), run_of(descriptor(), 2, 3, 1), list[int]()
    for run in (batches[:2], batches[2:]):
        positions = [Position(one.header.end_offset, one.header.digest) for one in run]
        bench.queue_append(
            [batch.data for batch in run], positions, lambda now_ms: ends.append(bench.tail.durable.offset + now_ms)
        )
    first, second = bench.take(Append)
    assert (first.epoch, first.start_offset, first.base_offset, first.end_offset) == (0, 0, 0, 5)
    assert (second.base_offset, second.end_offset) == (5, 6)
    assert (bench.tail.queued.offset, bench.tail.durable.offset) == (6, 0)
    bench.wrote(1000)
    assert bench.tail.durable == end_of(batches[:2])
    bench.wrote(2000)
    assert ends == [1005, 2006]


def test_write_for_an_epoch_left_meanwhile_is_ignored() -> None:
    bench, called = Bench(), list[int]()
    batches = run_of(descriptor(), 2)
    bench.queue_append([batch.data for batch in batches], [end_of(batches)], called.append)
    old = bench.tail
    bench.tail = type(old)(1, 2, Position(2, 0))
    bench.wrote()
    assert (called, bench.tail.durable) == ([], Position(2, 0))
    assert old.durable == end_of(batches)


def test_failed_append_discards_later_queued_ones() -> None:
    bench, batches = Bench(), run_of(descriptor(), 1, 1, 1)
    for batch in batches:
        bench.queue([batch])
    bench.wrote()
    bench.wrote(ok=False)
    assert bench.tail.queued.offset == 1
    bench.queue(batches[1:2])
    bench.wrote(ok=False)  # the third, which was given up with the second
    assert bench.tail.queued.offset == 2, "groups queued since then continue the log"
    bench.wrote()
    assert (bench.tail.durable.offset, bench.writes) == (2, 0)


def test_other_writes_must_not_fail() -> None:
    bench = Bench()
    bench.write(WriteFences([]))
    with pytest.raises(AssertionError):
        bench.wrote(ok=False)


# --- messages ------------------------------------------------------------------------------------------


def test_message_to_this_node_is_not_sent() -> None:
    bench = Bench()
    bench.send("b", pb.Seal())
    assert bench.take(Send) == []
    bench.send("c", pb.Seal(), [memoryview(b"x")])
    [send] = bench.take(Send)
    assert (send.to, [bytes(data) for data in send.batches]) == (("c",), [b"x"])


def test_messages_contain_partition_and_epoch() -> None:
    message = Bench().about(pb.Seal(), 3)
    assert (message.topic_id, message.partition, message.epoch) == (*KEY, 3)


# --- the chain -----------------------------------------------------------------------------------------


def test_message_of_an_older_epoch_is_answered_with_the_chain() -> None:
    chain = chain_of(5, 9, 9)
    bench = Bench(chain)
    assert not bench.is_current("c", 1, 0)
    [(to, update)] = bench.sent(pb.MetadataUpdate)
    assert (to, update.first_epoch, list(update.decisions)) == ("c", 1, chain.decisions[1:])
    assert update.genesis == chain.genesis


def test_message_of_a_newer_epoch_requests_the_chain() -> None:
    bench = Bench(chain_of(5))
    assert not bench.is_current("c", 2, 0)
    [(to, status)] = bench.sent(pb.EpochStatus)
    assert (to, status.epoch, status.previous_hash) == ("c", 1, bench.chain.previous_hash)


def test_message_of_the_active_epoch_is_current() -> None:
    bench = Bench(chain_of(5))
    assert bench.is_current("c", 1, 0)
    assert bench.peek() == []


def test_chain_requests_are_rate_limited() -> None:
    bench = Bench()
    asked_at_ms = []
    for now_ms in range(0, 121, 10):
        bench.request_chain("c", now_ms)
        asked_at_ms += [now_ms] if bench.take(Send) else []
    assert asked_at_ms == [0, 50, 100]
    bench.request_chain("a", 121)
    bench.request_chain("b", 121)
    assert [send.to for send in bench.take(Send)] == [("a",)], "another one may be asked at once"
    assert not bench.to_self


def test_long_chain_is_sent_in_parts() -> None:
    bench = Bench(chain_of(*range(DECISIONS_MAX + 3)))
    bench.send_chain("c", 2)
    update = bench.answer(pb.MetadataUpdate)
    assert list(update.decisions) == bench.chain.decisions[2 : 2 + DECISIONS_MAX]
    for nothing_new in (bench.active.epoch, bench.active.epoch + 1):
        bench.send_chain("c", nothing_new)
    bench.send_chain("b", 0)
    assert (bench.take(Send), list(bench.to_self)) == ([], [])


def test_epoch_starts_at_the_decided_end_of_the_previous_one() -> None:
    chain = chain_of(5, 9)
    bench = Bench(chain)
    assert [bench.start_of(epoch) for epoch in range(3)] == [0, 5, 9]
    assert [bench.decision(epoch).end_offset for epoch in range(2)] == [5, 9]
    assert [bench.hash_before(epoch) for epoch in range(3)] == [b"", *map(decision_hash, chain.decisions)]


def test_live_replicas_of_a_sealed_epoch_come_first() -> None:
    bench = Bench(chain_of(5, 9, placements=(("b", "d"), ("d", "e"))))
    assert bench.holders_of(0) == ["a", "b", "c", "d", "e"]
    assert bench.holders_of(1) == ["b", "d", "e"]
    bench.hints.dead = {"a", "b"}
    assert bench.holders_of(0) == ["c", "d", "e", "a", "b"], "dead nodes may come back, and are asked last"


def test_replicas_of_later_epochs_may_hold_a_sealed_epoch() -> None:
    bench = Bench(chain_of(2, 4, 6, placements=(("d", "e"), ("e", "f"), ("g", "h"))))
    bench.hints.dead = {"a", "b", "c", "d", "e"}
    assert bench.holders_of(0)[:3] == ["f", "g", "h"], "it was filled in where epoch 2 lived; all before that are gone"
    assert bench.holders_of(1)[0] == "f"


def test_digests_come_from_the_log_for_sealed_epochs_and_from_memory_for_the_open_one() -> None:
    chain = chain_of(5)
    sealed, opened = run_of(descriptor(), 2, 3), run_of(chain.active, 4)
    bench = Bench(chain, held=opened)
    bench.store(sealed)
    assert bench.position_of(0, 0) == 0
    assert bench.position_of(0, 2) == sealed[0].header.digest
    assert bench.position_of(0, 3) is None
    assert bench.position_of(1, 5) == 0, "an epoch begins with the digest 0"
    bench.disk.epochs.clear()
    assert bench.position_of(1, 9) == opened[0].header.digest


def test_membership_follows_the_active_epoch() -> None:
    chain = chain_of(5, placements=(("a", "c"),))
    bench = Bench(chain)
    assert not bench.is_member
    bench.extend_chain(decision(chain, Position(7, 0), placement=("b",), quorum=1))
    assert bench.is_member


# --- commit --------------------------------------------------------------------------------------------


def test_watermark_follows_committed_and_durable_records() -> None:
    bench, batches = Bench(), run_of(descriptor(), 2, 3)
    bench.queue(batches)
    bench.note_commit(4)
    bench.note_commit(2)
    assert bench.high_watermark == 0
    bench.wrote()
    assert bench.high_watermark == 4, "told before it was durable: it counts once it is"
    bench.note_commit(9)
    assert bench.high_watermark == 5
    assert len(bench.take(CommitMoved)) == 2


def test_watermark_never_decreases_and_reports_only_changes() -> None:
    bench = Bench(held=run_of(descriptor(), 5))
    bench.note_commit(3)
    bench.note_commit(1)
    bench.raise_watermark(2)
    assert bench.high_watermark == 3
    assert len(bench.take(CommitMoved)) == 1


def test_decided_end_below_the_watermark_is_an_error_unless_unsafe() -> None:
    bench = Bench(held=run_of(descriptor(), 5))
    bench.note_commit(5)
    with pytest.raises(AssertionError):
        bench.commit_ends(4, unsafe=False)
    bench.commit_ends(4, unsafe=True)
    assert bench.high_watermark == 4


# --- trouble -------------------------------------------------------------------------------------------


def test_first_reason_of_a_halt_is_kept() -> None:
    bench = Bench()
    bench.halt("first")
    bench.halt("second", permanently=True)
    bench.halt("third")
    assert [halted.reason for halted in bench.take(Halted)] == ["first"]
    assert (bench.halted, bench.halted_permanently) == ("first", True)


def test_fork_halts_for_good() -> None:
    bench = Bench(chain_of(5))
    bench.forks("c", 1, "another past")
    assert (bench.halted, bench.halted_permanently) == ("another past", True)
    bench = Bench(chain_of(5))
    bench.differs("c", 0, pb.EpochDecision(epoch=0))
    assert "two decisions about epoch 0" in (bench.halted or "")
    assert bench.halted_permanently


def unsafe_chain(*ends: int, unsafe: set[int]) -> EpochChain:
    chain = EpochChain(descriptor())
    for epoch, end in enumerate(ends):
        plan = Plan("b", NODES, 2)
        chain.extend(
            decision_value(chain.active, Position(end, 0), chain.previous_hash, plan, 7, unsafe=epoch in unsafe)
        )
    return chain


def test_fork_is_searched_back_to_the_first_unsafe_decision() -> None:
    bench = Bench(unsafe_chain(*range(5, 75), unsafe={2}))
    bench.forks("c", 70, "another past")
    bench.forks("c", 6, "another past")
    bench.forks("c", 3, "another past")
    asked = bench.sent(pb.EpochStatus)
    assert [(to, ask.epoch) for to, ask in asked] == [("c", 6), ("c", 2), ("c", 2)]
    assert asked[1][1].previous_hash == bench.hash_before(2)
    assert bench.halted is None
    bench.forks("c", 2, "they part before that")
    assert bench.halted_permanently
    bench.forks("c", 70, "no more of it")
    assert bench.sent(pb.EpochStatus) == []


@pytest.mark.parametrize(
    ("here", "there", "goes_on", "tells"),
    [(True, False, True, True), (False, True, False, False), (True, True, False, True), (False, False, False, True)],
)
def test_fork_is_evaluated_at_the_first_difference_of_the_chains(
    *, here: bool, there: bool, goes_on: bool, tells: bool
) -> None:
    bench = Bench(unsafe_chain(5, 6, 7, unsafe={0} | ({1} if here else set())))
    other = unsafe_chain(5, 9, unsafe={0} | ({1} if there else set()))
    bench.differs("c", 1, pb.EpochDecision.FromString(other.decisions[1]))
    assert (bench.halted is None) == goes_on
    assert ("DATA_LOSS" in (bench.halted or "")) == there
    assert [update.first_epoch for _, update in bench.sent(pb.MetadataUpdate)] == ([1] if tells else [])


def test_doubt_ends_once_the_owners_end_is_durable_here() -> None:
    bench, batches = Bench(doubt="short"), run_of(descriptor(), 2, 3)
    bench.queue(batches[:1])
    bench.queue(batches[1:])
    bench.wrote()
    assert bench.doubt == "short", "where the owner's log ends is not known"
    bench.doubt_ends = 5
    bench.end_doubt_if_whole()
    assert bench.doubt == "short"
    bench.wrote()
    assert not bench.doubt


@pytest.mark.parametrize(("owner", "promised"), [(False, False), (True, True)])
def test_only_an_owner_without_a_promise_may_acknowledge(*, owner: bool, promised: bool) -> None:
    bench = Bench(EpochChain(descriptor(owner="b")))
    if owner:
        bench.owner = object()  # type: ignore[assignment]
    assert bench.fence is not None
    assert bench.may_acknowledge == owner
    if promised:
        bench.fence.promise(pb.Ballot(round=1, node_id="c", incarnation=INCARNATION))
    assert bench.promised == promised
    assert not bench.may_acknowledge


# --- roles ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ROLE_TRANSITIONS)
def test_roles_change_only_as_allowed(role: Role) -> None:
    for other in ROLE_TRANSITIONS:
        bench = Bench()
        bench.role = role
        if other in ROLE_TRANSITIONS[role]:
            bench.become(other)
            assert bench.role == other
        else:
            with pytest.raises(AssertionError, match=f"{role} of epoch 0 cannot become {other}"):
                bench.become(other)
            assert bench.role == role


def test_decision_resets_every_role() -> None:
    for role in ROLE_TRANSITIONS:
        for placement, expected in ((("b",), "follower"), (("a",), "outsider")):
            chain = chain_of(5)
            bench = Bench(chain)
            bench.role = role
            bench.extend_chain(decision(chain, Position(7, 0), owner=placement[0], placement=placement, quorum=1))
            bench.enter()
            assert bench.role == expected


# --- participation ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("participation", PARTICIPATION_TRANSITIONS)
def test_participation_changes_only_as_allowed(participation: Participation) -> None:
    bench = Bench()
    if participation != "participating":
        bench.halt("this copy is wrong", permanently=participation == "halted permanently")
    assert bench.participation == participation
    if "participating" in PARTICIPATION_TRANSITIONS[participation]:
        bench.enter()
        assert (bench.participation, bench.halted) == ("participating", None)
    else:
        with pytest.raises(AssertionError, match="halted permanently cannot become participating"):
            bench.enter()
        bench.halt("a lesser reason")
        assert (bench.participation, bench.halted) == ("halted permanently", "this copy is wrong")


def test_next_epoch_ends_halt_and_doubt() -> None:
    bench = Bench(doubt="damaged")
    bench.halt("this copy is wrong")
    bench.fetched(5)
    bench.enter()
    assert not bench.doubt
    assert bench.doubt_ends is None
    assert bench.halted is None


def test_doubt_ends_once_fetched_records_are_durable() -> None:
    bench = Bench(doubt="short")
    bench.queue(run_of(descriptor(), 2))
    bench.fetched(2)
    assert (bench.doubt, bench.doubt_ends) == ("short", 2)
    bench.wrote()
    assert not bench.doubt
