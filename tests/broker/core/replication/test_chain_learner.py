"""Loading of a replica's chain at a start, and the order of writes when it learns a decision."""

from __future__ import annotations

from tests.broker.core.bench import KEY, ballot, decision, descriptor, end_of, run_of
from tests.broker.core.fetching_bench import FetchingBench, Past

from tidelog_broker.core.replication.chain import EpochChain
from tidelog_broker.core.replication.chain_learner import ChainLearner
from tidelog_broker.core.replication.effects import SetAside, SyncAhead, Truncate, WriteChain, WriteFences
from tidelog_broker.core.replication.fence import Fence
from tidelog_broker.core.replication.ports import Batch, Position
from tidelog_proto import broker_pb2 as pb

BATCHES = run_of(descriptor(), 2, 3, 1)
OTHERS = run_of(descriptor(), 2, 3, 1, fill=b"other")


class Learner(FetchingBench):
    """Replica `b` with its chain. Entered epochs are recorded."""

    def __init__(self, chain: EpochChain | None = None, held: list[Batch] | None = None) -> None:
        super().__init__(chain=chain, held=held)
        self.entered: list[int] = []
        self.learning = ChainLearner(self, self.backfill, entered=lambda value: self.entered.append(value.epoch))

    def learn(self, end: Position, *, placement: tuple[str, ...] = ("a", "b", "c")) -> bytes:
        """Learn a decision with the end of the first epoch and the placement of the next."""
        raw = decision(self.chain, end, owner=placement[-1], placement=placement)
        self.learning.learn("a", 0, [raw])
        return raw


def sealed(end: Position) -> EpochChain:
    """Return a chain whose first epoch is decided."""
    chain = EpochChain(descriptor())
    chain.extend(decision(chain, end))
    return chain


def starting(held: list[Batch], end: Position) -> Learner:
    """Return a replica before its start, in epoch 1 and with a log of epoch 0."""
    learner = Learner(sealed(end))
    learner.store(held)
    return learner


# --- learning ------------------------------------------------------------------------------------------------


def test_decision_is_journaled_before_truncation_and_the_next_fence() -> None:
    learner = Learner(held=BATCHES)
    raw = learner.learn(end_of(BATCHES[:2]))
    chain, cut, fences = learner.take(WriteChain, Truncate, WriteFences, SetAside)
    assert isinstance(chain, WriteChain)
    assert [entry.decision for entry in chain.entries] == [raw]
    assert cut == Truncate(0, 5)
    assert isinstance(fences, WriteFences)
    assert [(entry.epoch, entry.dropped) for entry in fences.entries] == [(1, False), (0, True)]
    assert learner.entered == [0]
    assert (learner.tail.epoch, learner.tail.queued) == (1, Position(5, 0))
    assert not learner.backfill.incomplete


def test_short_copy_is_fetched_after_entering_the_next_epoch() -> None:
    learner = Learner(held=BATCHES[:1])
    learner.learn(end_of(BATCHES))
    assert learner.backfill.incomplete == {0}
    assert learner.backfill.deadline_ms is None
    for _ in range(2):
        learner.wrote()
    _, ask = learner.asked()
    assert (ask.epoch, ask.from_offset, ask.end_offset) == (0, 2, 6)


def test_copy_with_different_content_is_set_aside() -> None:
    learner = Learner(held=OTHERS)
    learner.learn(end_of(BATCHES))
    assert [effect.epoch for effect in learner.take(SetAside)] == [0]
    assert learner.backfill.incomplete == {0}


def test_replica_dropped_from_the_placement_keeps_no_fence() -> None:
    learner = Learner(held=BATCHES)
    learner.learn(end_of(BATCHES), placement=("a", "c"))
    assert learner.fence is None
    [fences] = learner.take(WriteFences)
    assert [(entry.epoch, entry.dropped) for entry in fences.entries] == [(0, True)]


def test_known_decision_changes_nothing_and_a_different_one_halts() -> None:
    learner = Learner(held=BATCHES)
    raw = learner.learn(end_of(BATCHES))
    learner.take()
    learner.learning.learn("c", 0, [raw])
    assert (learner.peek(), learner.halted) == ([], None)
    learner.learning.learn("c", 0, [decision(EpochChain(descriptor()), end_of(BATCHES[:1]))])
    assert learner.halted_permanently


def test_missing_earlier_decisions_are_requested() -> None:
    learner = Learner(held=BATCHES)
    later = Past().chain
    learner.learning.on_update("a", pb.MetadataUpdate(first_epoch=1, decisions=later.decisions[1:]), 0)
    [(to, status)] = learner.sent(pb.EpochStatus)
    assert (to, status.epoch, learner.entered) == ("a", 0, [])


def test_different_chain_before_the_same_epoch_halts() -> None:
    learner = Learner(sealed(end_of(BATCHES)))
    learner.learning.on_status("a", pb.EpochStatus(epoch=1, previous_hash=learner.chain.previous_hash), 0)
    assert learner.halted is None
    learner.learning.on_status("a", pb.EpochStatus(epoch=1, previous_hash=b"another"), 0)
    assert learner.halted_permanently


def unsynced(held: list[Batch]) -> Learner:
    return Learner(EpochChain(descriptor(flush=pb.NEVER)), held)


def test_end_not_accepted_here_is_synced_after_it_is_journaled() -> None:
    learner = unsynced(BATCHES)
    learner.learn(end_of(BATCHES))
    assert [type(effect) for effect in learner.peek()] == [WriteChain, WriteFences]
    learner.wrote()
    assert not any(isinstance(effect, SyncAhead) for effect in learner.peek())
    learner.wrote()
    assert learner.take(SyncAhead) == [SyncAhead(0)]
    assert learner.writes == 0


def test_synced_end_is_not_synced_again() -> None:
    """The log was synced with each append, before the accept, or by a truncation; or it is incomplete or empty."""
    accepted = unsynced(BATCHES)
    value = decision(accepted.chain, end_of(BATCHES), owner="c")
    assert accepted.fence is not None
    accepted.fence.promise(ballot(2))
    accepted.fence.accept(ballot(2), value)
    for learner, end in (
        (Learner(held=BATCHES), end_of(BATCHES)),
        (accepted, end_of(BATCHES)),
        (unsynced(BATCHES), end_of(BATCHES[:2])),
        (unsynced(BATCHES[:1]), end_of(BATCHES)),
        (unsynced(OTHERS), end_of(BATCHES)),
        (unsynced([]), Position(0, 0)),
    ):
        learner.learn(end)
        for _ in range(learner.writes):
            learner.wrote()
        assert learner.take(SyncAhead) == []


def test_end_other_than_the_accepted_one_is_synced() -> None:
    learner = unsynced(BATCHES)
    assert learner.fence is not None
    learner.fence.promise(ballot(2))
    learner.fence.accept(ballot(2), decision(learner.chain, end_of(BATCHES[:2])))
    learner.learn(end_of(BATCHES))
    for _ in range(2):
        learner.wrote()
    assert learner.take(SyncAhead) == [SyncAhead(0)]


# --- beginning -----------------------------------------------------------------------------------------------


def test_start_truncates_records_after_the_decided_end() -> None:
    learner = starting(BATCHES, end_of(BATCHES[:2]))
    learner.learning.load(Fence(KEY, learner.active).opened(), 0)
    assert learner.take(Truncate, SetAside, WriteFences) == [Truncate(0, 5)]
    assert not learner.backfill.incomplete


def test_start_fetches_records_missing_before_the_end() -> None:
    learner = starting(BATCHES[:1], end_of(BATCHES))
    learner.learning.load(Fence(KEY, learner.active).opened(), 0)
    _, ask = learner.asked()
    assert (ask.epoch, ask.from_offset) == (0, 2)


def test_start_sets_aside_content_that_was_not_decided() -> None:
    learner = starting(OTHERS, end_of(BATCHES))
    learner.learning.load(Fence(KEY, learner.active).opened(), 0)
    assert {effect.epoch for effect in learner.take(SetAside)} == {0}


def test_start_without_a_fence_writes_it_and_drops_the_previous_one() -> None:
    learner = starting(BATCHES, end_of(BATCHES))
    learner.learning.load(None, 0)
    [fences] = learner.take(WriteFences)
    assert [(entry.epoch, entry.dropped) for entry in fences.entries] == [(1, False), (0, True)]


def test_start_keeps_promises() -> None:
    fence = Fence(KEY, sealed(end_of(BATCHES)).active)
    stored = fence.promise(pb.Ballot(round=3, node_id="c"))
    learner = starting(BATCHES, end_of(BATCHES))
    learner.learning.load(stored, 0)
    assert learner.promised
    assert learner.take(WriteFences) == []


def test_log_ahead_of_its_chain_halts() -> None:
    learner = Learner()
    learner.store(run_of(descriptor(1), 1))
    learner.learning.load(None, 0)
    assert learner.halted_permanently
