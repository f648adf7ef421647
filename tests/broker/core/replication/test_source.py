"""A source serves durable and complete epochs to replicas whose logs agree with its own."""

from __future__ import annotations

import pytest
from tests.broker.core.bench import descriptor, end_of, run_of
from tests.broker.core.fetching_bench import FetchingBench, Past

from tidelog_broker.core.replication.chain import EpochChain
from tidelog_broker.core.replication.effects import ReadLog, RebuildProducers, Send
from tidelog_broker.core.replication.epoch_writer import OffsetAssigner
from tidelog_broker.core.replication.ports import Batch, Position
from tidelog_broker.core.replication.producers import ProducerTable
from tidelog_broker.core.replication.source import UNKNOWN_END
from tidelog_proto import broker_pb2 as pb

OPEN = run_of(descriptor(), 2, 3, 1)
ZERO = Position(0, 0)


def serve(trial: FetchingBench, *, epoch: int = 0, at: Position = ZERO, end: int = 0, size: int = 1000) -> bool:
    ask = pb.Backfill(epoch=epoch, from_offset=at.offset, from_digest=at.digest, end_offset=end, max_bytes=size)
    return trial.source.on_ask("c", ask, 0)


def owning(held: list[Batch]) -> FetchingBench:
    """Return the replica as the owner of the open epoch."""
    trial = FetchingBench(held=held)
    trial.owner = OffsetAssigner(trial.active, producers=ProducerTable())
    return trial


def test_durable_records_are_served_within_the_requested_range() -> None:
    trial = FetchingBench(held=OPEN[:2])
    trial.queue(OPEN[2:])
    serve(trial)
    assert trial.take(ReadLog) == [ReadLog("c", 0, 0, 5, 1000)]
    serve(trial, at=end_of(OPEN[:1]), end=3, size=10**9)
    assert trial.take(ReadLog) == [ReadLog("c", 0, 2, 3, trial.timing.tail_bytes)]


def test_requester_with_all_records_gets_end_and_commit() -> None:
    trial = owning(OPEN[:2])
    trial.queue(OPEN[2:])
    trial.note_commit(4)
    serve(trial, at=end_of(OPEN[:2]))
    reply = trial.answer(pb.BackfillReply)
    assert (reply.status, reply.base_offset, reply.length, reply.commit_offset) == (pb.HELD, 5, 0, 4)
    assert reply.source_end_offset == 6, "offsets that are given out and not written yet are missing, too"


def test_replica_that_does_not_own_the_open_epoch_gives_no_end_of_it() -> None:
    """A restarted owner may lack records that it had assigned, and that others have acknowledged."""
    trial = FetchingBench(held=OPEN[:2])
    serve(trial, at=end_of(OPEN[:2]))
    reply = trial.answer(pb.BackfillReply)
    assert (reply.status, reply.source_end_offset) == (pb.HELD, UNKNOWN_END)
    trial.source.reply(ReadLog("c", 0, 2, 5, 1000), [OPEN[1].data], end_of(OPEN[:1]), end_of(OPEN[:2]), pb.HELD)
    assert trial.answer(pb.BackfillReply).source_end_offset == UNKNOWN_END


def test_resumed_push_is_not_served_as_well() -> None:
    trial = FetchingBench(held=OPEN)
    trial.pushes_from = 2
    assert serve(trial, at=end_of(OPEN[:1]))
    reply = trial.answer(pb.BackfillReply)
    assert (reply.status, reply.base_offset, reply.end_offset, reply.length) == (pb.HELD, 2, 2, 0)
    assert not serve(trial)
    assert len(trial.take(ReadLog)) == 1


def test_sealed_epoch_is_served_to_its_decided_end() -> None:
    past = Past()
    trial = past.lacking(held=(0, 1, 2))
    trial.pushes_from = 0
    serve(trial, epoch=1, at=Position(4, 0))
    assert trial.take(ReadLog) == [ReadLog("c", 1, 4, 8, 1000)]
    assert trial.resumed == [], "nothing but the open epoch is ever pushed"
    trial.note_commit(13)
    trial.source.reply(ReadLog("c", 1, 4, 8, 1000), (), Position(4, 0), Position(4, 0), pb.HELD)
    reply = trial.answer(pb.BackfillReply)
    assert (reply.commit_offset, reply.source_end_offset) == (0, 8), "a commit is never told of another epoch"


@pytest.mark.parametrize(
    ("epoch", "at", "status"),
    [
        (4, Position(12, 0), pb.BEHIND),
        (2, Position(8, 0), pb.NOT_HELD),
        (1, Position(7, 0), pb.NOT_HELD),
        (1, Position(5, 1), pb.DIVERGED),
    ],
    ids=["of an epoch to come", "of a copy that is not whole", "not at a boundary", "of another history"],
)
def test_range_that_is_not_held_is_refused(epoch: int, at: Position, status: pb.ReplicaStatus) -> None:
    trial = Past().lacking(2, held=(0, 1))
    trial.take()
    serve(trial, epoch=epoch, at=at)
    assert trial.answer(pb.BackfillReply).status == status
    assert trial.take(ReadLog) == []


def test_open_epoch_is_not_served_outside_its_placement() -> None:
    trial = FetchingBench(chain=EpochChain(descriptor(placement=("a", "c"))))
    serve(trial)
    assert trial.answer(pb.BackfillReply).status == pb.NOT_HELD


def test_halted_replica_serves_nothing() -> None:
    trial = FetchingBench(held=OPEN)
    trial.halt("rot")
    serve(trial)
    assert trial.answer(pb.BackfillReply).status == pb.IN_LIMBO


def test_request_without_a_digest_is_served() -> None:
    trial = Past().lacking(held=(0, 1, 2))
    ask = pb.Backfill(epoch=1, from_offset=5, digest_unknown=True, max_bytes=1000)
    trial.source.on_ask("c", ask, 0)
    assert trial.take(ReadLog) == [ReadLog("c", 1, 5, 8, 1000)]


def test_producer_state_at_an_epochs_end_is_looked_up() -> None:
    """A snapshot, or other nodes, may provide the state of an epoch that is deleted or missing here."""
    past = Past()
    ask = pb.Backfill(epoch=2, from_offset=12, producers=True)
    for held in ((0, 1, 2), (0, 1), ()):
        trial = past.lacking(*({0, 1, 2} - set(held)), held=held)
        trial.take()
        trial.source.on_ask("c", ask, 0)
        assert trial.take(RebuildProducers) == [RebuildProducers(2, 12, "c")]


def test_producer_state_is_served_at_batch_boundaries_only() -> None:
    trial = Past().lacking(held=(0, 1, 2))
    trial.source.on_ask("c", pb.Backfill(epoch=2, from_offset=11, producers=True), 0)
    assert [type(effect) for effect in trial.peek()] == [Send]
    assert trial.answer(pb.BackfillReply).status == pb.NOT_HELD


def test_reply_contains_both_ends() -> None:
    trial = owning(OPEN)
    base, end = end_of(OPEN[:1]), end_of(OPEN[:2])
    trial.source.reply(ReadLog("c", 0, 2, 6, 1000), [OPEN[1].data], base, end, pb.HELD)
    [send] = trial.take(Send)
    reply = send.message
    assert isinstance(reply, pb.BackfillReply)
    assert (reply.base_offset, reply.previous_digest) == base
    assert (reply.end_offset, reply.end_digest) == end
    assert (reply.length, reply.source_end_offset) == (len(OPEN[1].data), 6)
    assert [bytes(data) for data in send.batches] == [bytes(OPEN[1].data)]
