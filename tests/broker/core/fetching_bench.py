"""Fixture for the fetching and serving parts of one replica, which executes its writes."""

from __future__ import annotations

from tests.broker.core.bench import NODES, Bench, decision, descriptor, end_of, run_of

from tidelog_broker.core.replication.acceptor import Opening
from tidelog_broker.core.replication.backfill import Backfill
from tidelog_broker.core.replication.catch_up import CatchUp
from tidelog_broker.core.replication.chain import EpochChain
from tidelog_broker.core.replication.effects import ReadLog, Send, SyncAhead
from tidelog_broker.core.replication.ports import Batch, Position
from tidelog_broker.core.replication.replica_state import Doubt
from tidelog_broker.core.replication.source import Source
from tidelog_proto import broker_pb2 as pb


class FetchingBench(Bench):
    """Replica `b`, a follower of `a`, with its catch-up, backfill and source. Its callbacks are recorded."""

    def __init__(
        self,
        *,
        chain: EpochChain | None = None,
        held: list[Batch] | None = None,
        doubt: Doubt = "",
        incomplete: tuple[int, ...] = (),
    ) -> None:
        super().__init__(chain, held=held or [], doubt=doubt)
        self.acknowledged: list[int] = []
        self.reopened: list[Opening] = []
        self.pushes_from: int | None = None
        self.resumed: list[tuple[str, int]] = []
        self.times_whole = 0
        self.backfill = Backfill(self, whole=self.on_log_complete)
        self.backfill.incomplete = set(incomplete)
        self.catch_up = CatchUp(
            self,
            acknowledge=lambda _now_ms: self.acknowledged.append(self.tail.durable.offset),
            reopen=lambda opening, _now_ms: self.reopened.append(opening),
            raise_log_start=self.backfill.raise_log_start,
        )
        self.source = Source(self, incomplete=lambda: self.backfill.incomplete, resume=self.resumes)

    def on_log_complete(self) -> None:
        self.times_whole += 1

    def resumes(self, node: str, offset: int, now_ms: int) -> bool:
        self.resumed.append((node, offset))
        return self.pushes_from is not None and offset >= self.pushes_from

    def wrote(self, now_ms: int = 0, *, ok: bool = True) -> None:
        """Execute the oldest write on the log, and report its completion."""
        write = next(effect for effect in self.effects if not isinstance(effect, Send | ReadLog | SyncAhead))
        self.effects.remove(write)
        if ok:
            self.disk.do(write)
        super().wrote(now_ms, ok=ok)

    def asked(self) -> tuple[str, pb.Backfill]:
        """Return the only outgoing request; pending writes are kept."""
        sends = [effect for effect in self.effects if isinstance(effect, Send)]
        self.effects = [effect for effect in self.effects if not isinstance(effect, Send)]
        [send] = sends
        assert isinstance(send.message, pb.Backfill)
        [to] = send.to
        return to, send.message

    def promise(self, one: pb.Ballot) -> None:
        assert self.fence is not None
        self.fence.promise(one)

    def reply(
        self,
        batches: list[Batch],
        *,
        sender: str = "a",
        epoch: int = 0,
        base: Position | None = None,
        status: pb.ReplicaStatus = pb.HELD,
        commit: int = 0,
        source_end: int = 6,
        log_start: int = 0,
        now_ms: int = 0,
    ) -> None:
        at = base or (self.tail.queued if epoch == self.tail.epoch else Position(batches[0].header.base_offset, 0))
        message = pb.BackfillReply(
            epoch=epoch,
            status=status,
            base_offset=at.offset,
            previous_digest=at.digest,
            commit_offset=commit,
            source_end_offset=source_end,
            log_start_offset=log_start,
        )
        if not self.catch_up.on_reply(sender, message, batches, now_ms):
            self.backfill.on_reply(sender, message, batches, now_ms)


class Past:
    """Three sealed epochs of 4 records each and an open one, with their batches as written by their owners."""

    def __init__(self, *, placement: tuple[str, ...] = NODES, owner: str = "a") -> None:
        self.chain = EpochChain(descriptor())
        self.batches: list[list[Batch]] = []
        for _ in range(3):
            self.batches.append(run_of(self.chain.active, 1, 1, 2))
            self.chain.extend(decision(self.chain, end_of(self.batches[-1]), owner=owner, placement=placement))

    def lacking(self, *epochs: int, held: tuple[int, ...] = ()) -> FetchingBench:
        trial = FetchingBench(chain=self.chain, incomplete=epochs)
        for epoch in held:
            trial.store(self.batches[epoch])
        trial.backfill.go_on(0)
        return trial
