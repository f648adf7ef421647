from __future__ import annotations

from tidelog_broker.core.replication.epoch_writer import OffsetAssigner
from tidelog_broker.core.replication.producers import PlacedBatch, ProducerTable
from tidelog_broker.partition.pipeline import PendingAcks
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError


def owner() -> OffsetAssigner:
    descriptor = pb.EpochDescriptor(owner="a", owner_incarnation=1, placement=["a", "b", "c"], ack_quorum=2)
    made = OffsetAssigner(descriptor, producers=ProducerTable())
    made.next_offset = 9
    return made


def stored(end_offset: int, *, epoch: int = 0) -> PlacedBatch:
    return PlacedBatch(0, 1, end_offset - 1, end_offset, epoch, 5)


class Settled(list[int | str]):
    """Outcome of each batch: its end offset, or the text of an error."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[ProtocolError] = []

    def take(self, outcome: PlacedBatch | ProtocolError, duplicate: bool) -> None:
        assert not duplicate
        if isinstance(outcome, ProtocolError):
            self.errors.append(outcome)
            self.append(outcome.message)
        else:
            self.append(outcome.end_offset)


def waiting(*ends: int, acks: pb.Acks = pb.QUORUM) -> tuple[PendingAcks, Settled]:
    subject, settled = PendingAcks(), Settled()
    for end in ends:
        subject.add(acks, stored(end), False, settled.take, epoch=0)
    return subject, settled


def test_each_acks_level_waits_for_its_replicas() -> None:
    holder = owner()
    one, settled_one = waiting(1, 2, 3, acks=pb.ONE)
    most, settled_most = waiting(1, 2, 3)
    every, settled_every = waiting(1, 2, 3, acks=pb.ALL)
    for node, end in (("a", 3), ("b", 2), ("c", 1)):
        holder.acknowledge(node, end)
    for subject in (one, most, every):
        subject.release(holder, holder.high_watermark)
    assert (settled_one, settled_most, settled_every) == ([1, 2, 3], [1, 2], [1])
    assert not one
    assert most
    assert every.all
    assert not most.all


def test_end_of_an_epoch_settles_stored_and_refuses_the_rest() -> None:
    for acks in (pb.ONE, pb.QUORUM, pb.ALL):
        subject, settled = waiting(1, 2, 3, acks=acks)
        subject.decided(2, ProtocolError(pb.EPOCH_CHANGING, "not stored"), held_by_all=2)
        assert settled == [1, 2, "not stored"]
        assert not subject


def test_acks_all_after_the_epoch_needs_held_by_all() -> None:
    subject, settled = waiting(1, 2, 3, acks=pb.ALL)
    subject.decided(2, ProtocolError(pb.EPOCH_CHANGING, "not stored"), held_by_all=1)
    assert (settled[0], settled[2]) == (1, "not stored")
    told = settled.errors[0]
    assert (told.code, told.retriable, told.definite) == (pb.STORED_ON_QUORUM, False, False)
    assert "offset 1" in told.message
    assert not subject


def test_retry_after_a_later_batch_uses_its_own_offset() -> None:
    for acks in (pb.ONE, pb.QUORUM, pb.ALL):
        subject, settled = waiting(3, 1, acks=acks)
        subject.decided(2, ProtocolError(pb.EPOCH_CHANGING, "not stored"), held_by_all=2)
        assert settled == ["not stored", 1]


def test_retry_of_an_ended_epoch_gets_stored_on_quorum() -> None:
    """The owner of the next epoch counts only acknowledgements of that epoch."""
    for acks, expected in ((pb.QUORUM, []), (pb.ALL, [pb.STORED_ON_QUORUM])):
        subject, settled = PendingAcks(), Settled()
        subject.add(acks, stored(4, epoch=2), True, settled.take, epoch=3)
        assert [error.code for error in settled.errors] == expected
        assert bool(subject) == (not expected)


def test_failure_is_reported_to_all_publishes() -> None:
    subject, settled = waiting(1, 2)
    subject.fail(ProtocolError(pb.STORAGE_FAILED, "who knows"))
    assert settled == ["who knows"] * 2


def test_unknown_acks_level_waits_for_a_quorum() -> None:
    subject, settled = waiting(1, acks=7)  # type: ignore[arg-type]  # of a newer client
    holder = owner()
    holder.acknowledge("a", 1)
    subject.release(holder, holder.high_watermark)
    assert not settled
    holder.acknowledge("b", 1)
    subject.release(holder, holder.high_watermark)
    assert settled == [1]
