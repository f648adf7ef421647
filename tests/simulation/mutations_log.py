"""Mutations of how the log is written, acknowledged, cut and fetched. See `mutants`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidelog_broker.core.replication import backfill, catch_up, replica
from tidelog_broker.core.replication.acceptor import Acceptor
from tidelog_broker.core.replication.backfill import Backfill
from tidelog_broker.core.replication.catch_up import CatchUp
from tidelog_broker.core.replication.effects import Truncate, WriteChain
from tidelog_broker.core.replication.epoch_writer import OffsetAssigner
from tidelog_broker.core.replication.ownership import Ownership
from tidelog_broker.core.replication.peer_fetch import PeerFetch
from tidelog_broker.core.replication.ports import Batch, Position
from tidelog_broker.core.replication.producers import ProducerTable
from tidelog_broker.core.replication.replica import Replica
from tidelog_broker.core.replication.replica_state import LogTail, ReplicaState
from tidelog_broker.core.replication.source import Source
from tidelog_broker.storage.engine.store import padded
from tidelog_broker.storage.partition.copied_batches import LogPosition
from tidelog_broker.storage.partition.partial_copy import PartialCopy
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import BatchHeader, Buffer
from tidelog_proto.batch.row_layout import Layouts

Replacements = Sequence[tuple[object, str, object]]


def truncates_on_open() -> Replacements:
    """A proposal that ends the epoch earlier cuts the log at once, under whatever ballot it comes."""
    original = Acceptor.on_open

    def on_open(self: Acceptor, sender: str, ask: pb.OpenEpoch, now_ms: int) -> None:
        state = self._state
        end_offset = pb.EpochDecision.FromString(ask.value).end_offset
        if ask.epoch == state.active.epoch and state.active.start_offset <= end_offset < state.tail.durable.offset:
            digest = state.position_of(ask.epoch, end_offset)
            if digest is not None and state.tail.durable == state.tail.queued:
                state.write(Truncate(ask.epoch, end_offset))
                state.tail = LogTail(ask.epoch, state.active.start_offset, Position(end_offset, digest))
        original(self, sender, ask, now_ms)

    return [(Acceptor, "on_open", on_open)]


def appends_after_proposal() -> Replacements:
    """The owner continues to append after it has proposed the end of its epoch."""

    def assigner(self: Replica) -> OffsetAssigner | None:
        return self.state.owner

    def may_acknowledge(self: ReplicaState) -> bool:
        return self.owner is not None

    return [
        (Replica, "assigner", property(assigner)),
        (ReplicaState, "may_acknowledge", property(may_acknowledge)),
    ]


def owner_goes_on_after_promise() -> Replacements:
    """An owner that has promised its epoch's end to another node continues: it appends, and counts acknowledgements.

    Either alone is harmless. A batch that it counts without appending was durable on each counted node before the
    promise that would have to miss it; and a batch that it appends without counting is an ordinary tail.
    """

    def stop_appending(self: Replica, now_ms: int) -> None:
        self._promised_ms = now_ms
        self.catch_up.stop()

    def assigner(self: Replica) -> OffsetAssigner | None:
        return self.state.owner if self.state.role == "owner" and self.state.halted is None else None

    def may_acknowledge(self: ReplicaState) -> bool:
        return self.owner is not None

    return [
        (Replica, "_stop_appending", stop_appending),
        (Replica, "assigner", property(assigner)),
        (ReplicaState, "may_acknowledge", property(may_acknowledge)),
    ]


def _unchecked(batches: Sequence[Batch], *, epoch: int, owner_incarnation: int, base: Position) -> list[Position]:
    del epoch, owner_incarnation, base
    return [Position(batch.header.end_offset, batch.header.digest) for batch in batches]


def backfill_unchecked() -> Replacements:
    """Fetched batches are taken as they come, and a copy that is long enough counts, in the core and on the disk."""
    filled = Backfill._add_complete

    def filled_anyhow(self: Backfill, fetch: PeerFetch) -> None:
        assert fetch.end is not None
        self._at = fetch.end
        filled(self, fetch)

    def append(self: PartialCopy, batches: Sequence[Buffer], layouts: Layouts | None = None) -> LogPosition:
        self.log.ensure_space(sum(padded(len(batch)) for batch in batches))
        self.log.append(batches)
        return self.position

    def is_complete(self: PartialCopy) -> bool:
        return self.position.offset == self.target.end.offset

    return [
        (backfill, "check_run", _unchecked),
        (catch_up, "check_run", _unchecked),
        (Backfill, "_add_complete", filled_anyhow),
        (PartialCopy, "append", append),
        (PartialCopy, "is_complete", property(is_complete)),
    ]


def commit_by_bare_offset() -> Replacements:
    """A commit counts whatever epoch it is about."""
    original = Replica._on_append

    def on_append(self: Replica, sender: str, append: pb.AppendBatch, batches: Any, now_ms: int) -> None:
        self.state.note_commit(append.commit_offset)
        original(self, sender, append, batches, now_ms)

    return [(Replica, "_on_append", on_append)]


def ack_by_bare_offset() -> Replacements:
    """An acknowledgement counts whatever epoch, owner and content it is about."""

    original = Ownership.on_ack

    def on_ack(self: Ownership, sender: str, ack: pb.ReplicationAck, now_ms: int) -> None:
        original(self, sender, ack, now_ms)
        state = self._state
        if state.owner is not None and self._pushes is not None and sender in self._pushes.followers:
            end_offset = min(ack.end_offset, state.tail.queued.offset)
            self._pushes.acknowledged(sender, end_offset, now_ms)
            state.raise_watermark(state.owner.acknowledge(sender, end_offset))

    return [(Ownership, "on_ack", on_ack)]


def old_tail_is_duplicate() -> Replacements:
    """Batches after the end of an epoch count as the beginning of the next one."""
    original = Replica._on_append

    def on_append(self: Replica, sender: str, append: pb.AppendBatch, batches: Any, now_ms: int) -> None:
        old = _old_end(self.state)
        if append.epoch == self.state.active.epoch and self.state.tail.queued.offset < append.end_offset <= old:
            ack = pb.ReplicationAck(
                owner_incarnation=append.owner_incarnation,
                end_offset=append.end_offset,
                end_digest=append.end_digest,
                status=pb.HELD,
            )
            self.state.send(sender, self.state.about(ack, append.epoch))
            return
        original(self, sender, append, batches, now_ms)

    return [(Replica, "_on_append", on_append), *tail_not_truncated()]


def old_tail_in_next_epoch() -> Replacements:
    """SEAL of an epoch is answered with the tail of the previous one."""
    original = Acceptor.on_seal

    def on_seal(self: Acceptor, sender: str, ask: pb.Seal, now_ms: int) -> None:
        state = self._state
        old = _old_end(state)
        if ask.epoch == state.active.epoch and state.tail.durable.offset < old:
            tail = state.tail
            state.tail = LogTail(tail.epoch, tail.start_offset, Position(old, 1))
            original(self, sender, ask, now_ms)
            return
        original(self, sender, ask, now_ms)

    return [(Acceptor, "on_seal", on_seal), *tail_not_truncated()]


def _old_end(state: ReplicaState) -> int:
    before = state.log.epoch_end(state.active.epoch - 1)
    return before[0] if before is not None else 0


def tail_not_truncated() -> Replacements:
    """Batches after the decided end of an epoch are not truncated."""
    original = ReplicaState.write

    def write(self: ReplicaState, effect: Any, then: Any = None) -> None:
        if not isinstance(effect, Truncate):
            original(self, effect, then)

    return [(ReplicaState, "write", write)]


def acknowledges_and_fetches_after_promise() -> Replacements:
    """A promise stops neither acknowledgements nor running fetches."""

    def acknowledge(self: Replica, now_ms: int) -> None:
        del now_ms
        if self.state.halted is None and not self.state.doubt and self.state.active.owner != self.state.node_id:
            self._send_ack(pb.HELD)

    def stop_appending(self: Replica, now_ms: int) -> None:
        self._promised_ms = now_ms
        if self.state.role == "owner":
            self.state.become("retiring")

    original = CatchUp._take

    def take_tail(self: CatchUp, fetch: Any, *rest: Any) -> None:
        fence = self._state.fence
        kept = pb.Ballot()
        if fence is not None and fence.promised is not None:
            kept.CopyFrom(fence.entry.promised)
            if self._opening is None:
                fence.entry.ClearField("promised")
            else:
                fence.entry.promised.CopyFrom(self._opening.message.ballot)
        original(self, fetch, *rest)
        if fence is not None and kept.round:
            fence.entry.promised.CopyFrom(kept)

    return [
        (Replica, "_acknowledge", acknowledge),
        (Replica, "_stop_appending", stop_appending),
        (CatchUp, "_take", take_tail),
    ]


def fill_cut_short() -> Replacements:
    """The fetched part of a sealed epoch counts after the first read."""
    original = Backfill._ask

    def ask(self: Backfill, fetch: PeerFetch, now_ms: int) -> None:
        if self._at.digest:
            self._fetch = None
            self.incomplete.discard(fetch.epoch)
        else:
            original(self, fetch, now_ms)

    return [(Backfill, "_ask", ask)]


def retries_are_new() -> Replacements:
    """A producer's sequence numbers are not looked at."""

    def check(self: ProducerTable, header: BatchHeader) -> None:
        return None

    return [(ProducerTable, "check", check)]


def one_ack_fewer() -> Replacements:
    """The owner completes a publish one acknowledgement too soon."""
    original = OffsetAssigner.__init__

    def init(self: OffsetAssigner, *arguments: Any, **rest: Any) -> None:
        original(self, *arguments, **rest)
        self.ack_quorum = max(1, self.ack_quorum - 1)

    return [(OffsetAssigner, "__init__", init)]


def end_is_watermark() -> Replacements:
    """After a start, everything that the log holds counts as committed."""
    original = Replica._load

    def load(self: Replica, *arguments: Any) -> None:
        original(self, *arguments)
        self.state.high_watermark = max(self.state.high_watermark, self.state.tail.durable.offset)

    return [(Replica, "_load", load)]


def restarted_owner_resumes() -> Replacements:
    """A node that is named as the owner continues its old epoch."""
    original = Replica._load

    def load(self: Replica, stored: Any, now_ms: int) -> None:
        if self.state.active.owner == self.state.node_id and self.state.active.epoch > 0:
            self.state.active.owner_incarnation = self.state.incarnation
        original(self, stored, now_ms)
        if self.state.active.owner == self.state.node_id and self.state.active.epoch > 0 and stored is not None:
            self.state.owner = OffsetAssigner(self.state.active, producers=ProducerTable())
            self.state.owner.next_offset, self.state.owner.digest = self.state.tail.queued

    return [(Replica, "_load", load)]


def enters_before_journal() -> Replacements:
    """The next epoch is entered, and the old log cut, while the decision is not journalled at all."""
    original = ReplicaState.write

    def write(self: ReplicaState, effect: Any, then: Any = None) -> None:
        if not isinstance(effect, WriteChain):
            original(self, effect, then)

    return [(ReplicaState, "write", write)]


def duplicates_unchecked() -> Replacements:
    """A repeated append is not compared with the stored batch."""

    def agrees(self: Replica, append: pb.AppendBatch) -> bool:
        return True

    return [(Replica, "_agrees", agrees), (replica, "check_run", _unchecked)]


def doubt_ended_by_the_first_answer() -> Replacements:
    """A copy that lost its tail counts again once the owner has answered, although the rest is still on its way."""
    original = CatchUp._finish

    def tail_fetched(self: CatchUp, source_end: int, now_ms: int) -> None:
        del source_end
        original(self, 0, now_ms)

    return [(CatchUp, "_finish", tail_fetched)]


def doubt_ended_by_a_restarted_owner() -> Replacements:
    """A copy that lost records counts again once it has what a restarted owner has, which may lack the same ones."""

    def open_end(self: Source) -> int:
        return self._state.tail.queued.offset

    return [(Source, "_open_end", open_end)]
