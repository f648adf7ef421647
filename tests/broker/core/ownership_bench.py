"""An owner of an epoch under test."""

from __future__ import annotations

import pytest
from tests.broker.core.bench import INCARNATION, NODES, Bench, candidate, decision, descriptor, end_of, run_of

from tidelog_broker.core.replication.chain import EpochChain
from tidelog_broker.core.replication.effects import OwnerConfirmed, RebuildProducers
from tidelog_broker.core.replication.ownership import CONFIRMATION, Ownership
from tidelog_broker.core.replication.ports import Position
from tidelog_broker.core.replication.producers import ProducerTable
from tidelog_proto import broker_pb2 as pb

PAST = run_of(descriptor(), 2, 3)


class Trial(Bench):
    """Replica `b`, which the decision about epoch 0 made the owner of epoch 1 from offset 5."""

    def __init__(
        self,
        *,
        placement: tuple[str, ...] = NODES,
        quorum: int = 2,
        founded: bool = False,
        lost_until: int = 0,
    ) -> None:
        chain = EpochChain(descriptor(owner="b" if founded else "a", placement=NODES))
        if not founded:
            chain.extend(decision(chain, end_of(PAST), placement=placement, quorum=quorum, lost_until=lost_until))
        super().__init__(chain)
        self.raise_watermark(self.active.start_offset)
        self.take()
        self.contests: list[int] = []
        self.resignations: list[int] = []
        self.notes: list[tuple[str, int]] = []
        self.others_are_asked = False
        self.ownership = Ownership(
            self,
            contested=self.contests.append,
            resigned=self.resignations.append,
            noted=lambda node, below: self.notes.append((node, below)),
            others_are_asked=lambda: self.others_are_asked,
        )

    def begin(self) -> RebuildProducers:
        self.ownership.begin()
        [effect] = self.take(RebuildProducers)
        return effect

    def own(self, table: ProducerTable | None = None) -> None:
        self.ownership.rebuilt(self.begin(), table or ProducerTable(), 0, 0)
        self.take()

    def publish(self, *counts: int) -> None:
        self.ownership.accept_group([candidate(count) for count in counts], now_us=1, now_ms=0)

    def ack(
        self,
        end: Position,
        *,
        sender: str = "a",
        epoch: int = 1,
        incarnation: int = INCARNATION,
        status: pb.ReplicaStatus = pb.HELD,
    ) -> None:
        message = pb.ReplicationAck(
            epoch=epoch, owner_incarnation=incarnation, end_offset=end.offset, end_digest=end.digest, status=status
        )
        self.ownership.on_ack(sender, message, 0)

    def answer_confirmation(
        self,
        number: int,
        *,
        sender: str = "a",
        epoch: int = 1,
        promised: pb.Ballot | None = None,
        status: pb.ReplicaStatus = pb.HELD,
    ) -> None:
        reply = pb.PreVoteReply(attempt=CONFIRMATION | number, epoch=epoch, promised=promised, status=status)
        self.ownership.unless_confirmed(lambda *_: pytest.fail("that was no candidate's"))(sender, reply, 0)

    def confirmed(self) -> list[int]:
        return [news.number for news in self.take(OwnerConfirmed)]
