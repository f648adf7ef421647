"""A follower accepts only the next contiguous append of its owner, and acknowledges nothing after a promise."""

from __future__ import annotations

import pytest
from tests.broker.core.bench import INCARNATION, KEY, Hints, Log, ballot, descriptor, end_of, run_of

from tidelog_broker.core.replication.chain import EpochChain
from tidelog_broker.core.replication.effects import Append, Send
from tidelog_broker.core.replication.ports import Batch, Position
from tidelog_broker.core.replication.replica import Replica
from tidelog_proto import broker_pb2 as pb

BATCHES = run_of(descriptor(), 2, 3, 1)
OTHERS = run_of(descriptor(), 2, 3, 1, fill=b"other")


class Follower:
    """Replica `b` of an epoch that `a` owns."""

    def __init__(self) -> None:
        self.replica = Replica(
            KEY,
            node_id="b",
            incarnation=INCARNATION,
            chain=EpochChain(descriptor()),
            fence=None,
            log=Log(),
            cluster_hints=Hints(),
            now_ms=0,
        )
        self.replica.wrote(0)
        self.replica.take_effects()

    def append(
        self,
        batches: list[Batch],
        base: Position,
        *,
        sender: str = "a",
        incarnation: int = INCARNATION,
        epoch: int = 0,
        commit: int = 0,
        log_start: int = 0,
        acknowledged: int = 0,
        now_ms: int = 0,
    ) -> bool:
        end = end_of(batches) if batches else base
        message = pb.AppendBatch(
            epoch=epoch,
            owner=sender,
            owner_incarnation=incarnation,
            base_offset=base.offset,
            end_offset=end.offset,
            previous_digest=base.digest,
            end_digest=end.digest,
            commit_offset=commit,
            log_start_offset=log_start,
            acknowledged_offset=acknowledged,
        )
        return self.replica.receive(sender, message, batches, now_ms)

    def seal(self, round_: int = 1) -> None:
        self.replica.receive("c", pb.Seal(ballot=ballot(round_)), [], 0)

    def said(self) -> list[object]:
        return [effect.message for effect in self.replica.take_effects() if isinstance(effect, Send)]

    def acks(self) -> list[tuple[int, pb.ReplicaStatus]]:
        return [(ack.end_offset, ack.status) for ack in self.said() if isinstance(ack, pb.ReplicationAck)]

    def doubt(self) -> str:
        return self.replica.state.doubt

    def due_ms(self) -> int | None:
        return self.replica.deadline_ms

    @property
    def queued(self) -> int:
        return self.replica.state.tail.queued.offset


ZERO = Position(0, 0)


def test_append_is_acknowledged_when_durable() -> None:
    follower = Follower()
    follower.append(BATCHES[:2], ZERO)
    assert follower.acks() == []
    follower.replica.wrote(0)
    assert follower.acks() == [(5, pb.HELD)]


def test_nothing_is_acknowledged_after_a_promise() -> None:
    follower = Follower()
    follower.append(BATCHES[:1], ZERO)
    follower.seal()
    follower.replica.take_effects()
    follower.replica.wrote(0)
    follower.replica.wrote(0)
    said = follower.said()
    assert [type(message) for message in said] == [pb.SealReply]
    follower.append(BATCHES[1:2], end_of(BATCHES[:1]))
    assert follower.queued == 2, "nor is anything taken"
    assert follower.acks() == [(2, pb.FENCED)]
    follower.append([], end_of(BATCHES[:1]))
    assert follower.acks() == [(2, pb.FENCED)], "the owner learns that its epoch has ended"


def test_repeated_append_is_acknowledged_and_an_overlap_adds_new_batches() -> None:
    follower = Follower()
    follower.append(BATCHES[:2], ZERO)
    follower.replica.wrote(0)
    follower.acks()
    follower.append(BATCHES[:2], ZERO)
    assert follower.acks() == [(5, pb.HELD)]
    follower.append(BATCHES[1:], end_of(BATCHES[:1]))
    [append] = [effect for effect in follower.replica.take_effects() if isinstance(effect, Append)]
    assert (append.base_offset, append.end_offset) == (5, 6)


def test_gap_is_fetched() -> None:
    follower = Follower()
    follower.append(BATCHES[1:2], end_of(BATCHES[:1]))
    assert follower.queued == 0
    [ask] = [message for message in follower.said() if isinstance(message, pb.Backfill)]
    assert ask.from_offset == 0


def test_contiguous_append_changes_no_deadline() -> None:
    follower = Follower()
    assert follower.due_ms() is not None, "a timeout runs for an owner that was never heard of"
    assert not follower.append(BATCHES[:1], ZERO, commit=2)
    follower.replica.wrote(0)
    assert follower.due_ms() is None
    assert not follower.append([], end_of(BATCHES[:1]), commit=2)
    assert not follower.append(BATCHES[1:2], end_of(BATCHES[:1]))
    assert follower.due_ms() is None
    assert follower.append(BATCHES[2:], end_of(BATCHES[:2]), log_start=2), "older records may be missing now"
    assert follower.append(BATCHES[2:], Position(9, 9))
    assert follower.due_ms() is not None, "it repeats the request for missing records"
    assert follower.append(OTHERS[:1], ZERO)


@pytest.mark.parametrize(
    ("batches", "base"),
    [
        (OTHERS[:2], ZERO),
        (BATCHES[1:], end_of(OTHERS[:1])),
        (BATCHES[2:], end_of(OTHERS[:2])),
        ([], Position(2, 99)),
        (OTHERS[:1], ZERO),
    ],
    ids=["a repetition", "a continuation", "the next one", "an empty one", "a part"],
)
def test_append_with_a_different_history_halts(batches: list[Batch], base: Position) -> None:
    follower = Follower()
    follower.append(BATCHES[:2], ZERO)
    follower.replica.wrote(0)
    follower.acks()
    follower.append(batches, base)
    assert follower.acks() == [(5, pb.DIVERGED)]
    assert follower.replica.state.halted is not None
    follower.append(BATCHES[2:], end_of(BATCHES[:2]))
    assert (follower.queued, follower.acks()) == (5, [(5, pb.IN_LIMBO)])


def test_only_the_named_owner_incarnation_may_append() -> None:
    follower = Follower()
    follower.append(BATCHES[:1], ZERO, sender="c")
    follower.append(BATCHES[:1], ZERO, incarnation=INCARNATION + 1)
    follower.append(BATCHES[:1], ZERO, incarnation=INCARNATION - 1)
    assert follower.queued == 0
    said = follower.said()
    assert [type(message) for message in said] == [pb.EpochStatus] * 2, "each node's chain is another one: they compare"


def test_append_of_a_later_epoch_requests_the_chain() -> None:
    follower = Follower()
    follower.append(BATCHES[:1], ZERO, epoch=1)
    assert follower.queued == 0
    assert [type(message) for message in follower.said()] == [pb.EpochStatus]


def test_append_without_disk_space_is_not_acknowledged_and_retried() -> None:
    follower = Follower()
    follower.append(BATCHES[:1], ZERO)
    follower.replica.wrote(0, ok=False)
    assert (follower.queued, follower.acks()) == (0, [])
    retry_ms = follower.replica.state.timing.peer_fetch_ms
    follower.append(BATCHES[:1], ZERO, now_ms=retry_ms - 1)
    follower.append(BATCHES[1:2], end_of(BATCHES[:1]), now_ms=retry_ms - 1)
    assert (follower.queued, follower.said()) == (0, []), "neither a write nor a request for records"
    follower.append(BATCHES[:1], ZERO, now_ms=retry_ms)
    follower.replica.wrote(retry_ms)
    assert follower.acks() == [(2, pb.HELD)]


def test_readers_see_records_committed_and_durable_here() -> None:
    follower = Follower()
    follower.append(BATCHES[:1], ZERO, commit=5)
    assert follower.replica.state.high_watermark == 0
    follower.replica.wrote(0)
    assert follower.replica.state.high_watermark == 2
    follower.append(BATCHES[1:2], end_of(BATCHES[:1]))
    follower.replica.wrote(0)
    assert follower.replica.state.high_watermark == 5


def test_follower_that_lost_acknowledged_records_does_not_vote_until_caught_up() -> None:
    """Its disk was rolled back by less than a second, which only the owner detects."""
    follower = Follower()
    follower.append(BATCHES[:1], ZERO)
    follower.replica.wrote(0)
    follower.said()
    follower.append([], end_of(BATCHES[:1]), acknowledged=2)
    assert follower.doubt() == "", "it has the acknowledged records"
    follower.said()
    follower.append([], end_of(BATCHES[:1]), acknowledged=3)
    assert follower.doubt() == "damaged"
    assert [type(message) for message in follower.said()] == [pb.Backfill], "it requests missing records from the owner"
    follower.seal()
    [reply] = [message for message in follower.said() if isinstance(message, pb.SealReply)]
    assert reply.status == pb.IN_LIMBO
