"""Logical deletion: an offset is effective once an ack quorum has durably noted it, and in every later epoch."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.broker.core.bench import INCARNATION, NODES, Bench, ballot, descriptor, end_of, run_of

from tidelog_broker.core.replication.chain import EpochChain
from tidelog_broker.core.replication.deletion import Deletion
from tidelog_broker.core.replication.effects import RecordsDeleted, WriteFences
from tidelog_broker.core.replication.epoch_writer import OffsetAssigner
from tidelog_broker.core.replication.paxos import Promise, choose_value, decision_value
from tidelog_broker.core.replication.ports import Plan, Position
from tidelog_broker.core.replication.producers import ProducerTable
from tidelog_proto import broker_pb2 as pb

HELD = run_of(descriptor(), 10)
END = end_of(HELD)


class Trial(Bench):
    """A replica with ten committed records; callbacks are recorded."""

    def __init__(
        self, node: str = "a", *, quorum: int = 2, placement: Sequence[str] = NODES, chain: EpochChain | None = None
    ) -> None:
        chain = chain or EpochChain(descriptor(quorum=quorum, placement=placement))
        super().__init__(chain, node=node, held=HELD if not chain.decisions else ())
        self.high_watermark = END.offset
        if self.active.owner == node:
            self.owner = OffsetAssigner(self.active, producers=ProducerTable())
        self.told: list[tuple[int, int]] = []
        self.acknowledged: list[int] = []
        self.deletion = Deletion(
            self, tell=lambda noting, counts: self.told.append((noting, counts)), acknowledge=self.acknowledged.append
        )

    def hear(self, deleting_below: int, deleted_below: int = 0) -> None:
        self.deletion.heard(pb.AppendBatch(deleting_below=deleting_below, deleted_below=deleted_below))

    def promise(self) -> None:
        assert self.fence is not None
        assert self.fence.promise(ballot(1)) is not None

    def fences(self) -> list[int]:
        return [entry.deleting_below for write in self.take(WriteFences) for entry in write.entries]

    @property
    def noted(self) -> int:
        return self.deletion.noted

    @property
    def counts(self) -> int:
        return self.deleted_below


def ended(chain: EpochChain, end: Position, deleted_below: int, *, unsafe: bool = False) -> bytes:
    plan = Plan("b", NODES, 2)
    return decision_value(
        chain.active, end, chain.previous_hash, plan, INCARNATION, deleted_below=deleted_below, unsafe=unsafe
    )


# --- the owner -----------------------------------------------------------------------------------------


def test_offset_is_effective_once_an_ack_quorum_has_noted_it() -> None:
    owner = Trial()
    owner.deletion.propose(4)
    assert owner.told == [(4, 0)], "the others are asked to note it"
    owner.wrote()
    assert owner.counts == 0
    owner.deletion.on_ack("b", 3)
    assert owner.counts == 3, "up to there both have noted it"
    owner.deletion.on_ack("b", 4)
    assert owner.counts == 4
    assert owner.told == [(4, 0), (4, 3), (4, 4)]
    assert len(owner.take(RecordsDeleted)) == 2
    owner.deletion.on_ack("c", 4)
    assert owner.take(RecordsDeleted) == [], "a repeated acknowledgement changes nothing"
    assert len(owner.told) == 3


def test_owners_note_counts_only_once_durable() -> None:
    owner = Trial(quorum=2)
    owner.deletion.propose(4)
    assert owner.fences() == [4]
    owner.deletion.on_ack("b", 4)
    assert (owner.noted, owner.counts, owner.acknowledged) == (0, 0, [])
    owner.wrote(now_ms=9)
    assert (owner.noted, owner.counts, owner.acknowledged) == (4, 4, [9])


def test_each_replica_counts_once_and_others_and_late_acks_do_not() -> None:
    owner = Trial(quorum=3)
    owner.deletion.propose(4)
    owner.wrote()
    for sender, offset in (("b", 4), ("b", 4), ("d", 4), ("c", 2), ("c", 1)):
        owner.deletion.on_ack(sender, offset)
    assert owner.counts == 2


def test_offset_is_noted_once_and_only_if_committed() -> None:
    owner = Trial()
    owner.deletion.propose(END.offset)
    for offset in (END.offset, 1):
        owner.deletion.propose(offset)
    assert owner.fences() == [END.offset]
    assert len(owner.told) == 1
    with pytest.raises(AssertionError, match="exceeds high watermark"):
        owner.deletion.propose(END.offset + 1)


def test_nothing_is_noted_or_effective_after_a_promise() -> None:
    owner = Trial()
    owner.deletion.propose(4)
    owner.wrote()
    owner.promise()
    owner.deletion.on_ack("b", 4)
    owner.deletion.propose(5)
    assert owner.counts == 0
    assert owner.fences() == [4]
    assert owner.deletion.proposed == 4, "a planned end carries it all the same"


# --- the others ----------------------------------------------------------------------------------------


def test_follower_acknowledges_its_durable_note_and_follows_the_owner() -> None:
    follower = Trial("b")
    follower.hear(4)
    follower.hear(4)
    assert follower.fences() == [4]
    assert (follower.noted, follower.acknowledged) == (0, [])
    follower.wrote(now_ms=9)
    assert (follower.noted, follower.acknowledged, follower.counts) == (4, [9], 0)
    follower.hear(4, 4)
    follower.hear(4, 2)
    assert follower.counts == 4
    assert len(follower.take(RecordsDeleted)) == 1


def test_follower_notes_nothing_after_a_promise() -> None:
    follower = Trial("b")
    follower.promise()
    follower.hear(4)
    assert (follower.fences(), follower.writes, follower.noted) == ([], 0, 0)


# --- from epoch to epoch -------------------------------------------------------------------------------


def test_candidate_carries_the_highest_offset_of_its_seal_quorum() -> None:
    chain = EpochChain(descriptor())
    promises = [Promise("b", *END, deleting_below=4), Promise("c", *END, deleting_below=7)]
    value = choose_value(
        promises,
        descriptor=chain.active,
        previous_hash=b"",
        plan=Plan("b", NODES, 2),
        owner_incarnation=INCARNATION,
        deleted_below=2,
    )
    chain.extend(value)
    later = Trial("b", chain=chain)
    later.deletion.load()
    assert (later.counts, later.deletion.proposed, later.noted) == (7, 7, 0)
    chain.extend(ended(chain, Position(END.offset, 0), later.deletion.proposed))
    assert chain.deleted_below == 7


def test_offset_that_was_only_noted_is_void_after_the_epoch() -> None:
    owner = Trial()
    owner.deletion.propose(6)
    owner.wrote()
    owner.fence = None
    owner.deletion.enter(pb.EpochDecision.FromString(ended(owner.chain, END, 3)))
    assert (owner.counts, owner.noted, owner.deletion.proposed) == (3, 0, 0)
    owner.deletion.on_ack("b", 6)
    assert owner.counts == 3, "a note in the previous epoch does not count as a vote in this one"


def test_write_that_completes_after_the_epoch_is_ignored() -> None:
    follower = Trial("b")
    follower.hear(4)
    follower.fence = None
    follower.deletion.enter(pb.EpochDecision.FromString(ended(follower.chain, END, 0)))
    follower.wrote()
    assert (follower.noted, follower.acknowledged) == (0, [])


def test_end_without_a_quorum_limits_the_delete_offset() -> None:
    chain = EpochChain(descriptor())
    value = chain.extend(ended(chain, Position(5, 1), 8, unsafe=True))
    replica = Trial("b")
    replica.hear(8, 8)
    replica.deletion.enter(value)
    assert (replica.counts, chain.deleted_below) == (5, 5)


@pytest.mark.parametrize(("placement", "counts"), [(("a",), 4), (NODES, 0)])
def test_start_loads_noted_offsets_and_a_single_copy_is_its_own_quorum(placement: tuple[str, ...], counts: int) -> None:
    owner = Trial(placement=placement, quorum=min(2, len(placement)))
    assert owner.fence is not None
    owner.fence.delete_below(4)
    owner.deletion.load()
    assert (owner.noted, owner.counts, owner.deletion.proposed) == (4, counts, 4)
