"""The chain of epochs is extended only by decisions that continue it."""

from __future__ import annotations

import pytest

from tidelog_broker.core.replication.chain import ChainError, EpochChain, decision_hash
from tidelog_proto import broker_pb2 as pb


def decision(
    epoch: int, end: int, past: bytes, *, next_epoch: int | None = None, next_start: int | None = None, lost: int = 0
) -> bytes:
    return pb.EpochDecision(
        epoch=epoch,
        end_offset=end,
        previous_hash=past,
        lost_until=lost,
        next=pb.EpochDescriptor(
            epoch=epoch + 1 if next_epoch is None else next_epoch,
            owner="b",
            placement=["b"],
            ack_quorum=1,
            start_offset=end if next_start is None else next_start,
        ),
    ).SerializeToString()


def chain() -> EpochChain:
    return EpochChain(pb.EpochDescriptor(owner="a", placement=["a"], ack_quorum=1, start_offset=5))


def test_decision_activates_its_successor_and_is_hashed_into_the_next() -> None:
    subject = chain()
    first = decision(0, 10, b"")
    subject.extend(first)
    assert (subject.active.epoch, subject.active.start_offset) == (1, 10)
    assert subject.previous_hash == decision_hash(first)
    subject.extend(decision(1, 10, decision_hash(first)))
    assert subject.active.epoch == 2


@pytest.mark.parametrize(
    "bad",
    [
        decision(1, 10, b""),
        decision(0, 10, b"x" * 32),
        decision(0, 4, b""),
        decision(0, 10, b"", next_epoch=2),
        decision(0, 10, b"", next_start=11),
        decision(0, 10, b"", lost=10),
    ],
    ids=["other epoch", "other past", "ends before it begins", "skips an epoch", "leaves a hole", "loses nothing"],
)
def test_decision_that_does_not_continue_the_chain_is_refused_without_effect(bad: bytes) -> None:
    subject = chain()
    with pytest.raises(ChainError):
        subject.extend(bad)
    assert subject.active == subject.genesis
    assert subject.decisions == []


def test_lost_records_are_ranges_and_a_range_that_is_decided_again_stays_one() -> None:
    subject = chain()
    for epoch, (end, lost) in enumerate([(10, 0), (20, 50), (30, 50), (50, 0), (60, 70)]):
        subject.extend(decision(epoch, end, subject.previous_hash, lost=lost))
        assert subject.lost_until == lost
    assert subject.lost == ((20, 50), (60, 70))
