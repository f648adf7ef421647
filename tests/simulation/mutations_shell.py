"""Mutations of the shell around a replica: notifications, answers, reads, kept and deleted data. See `mutants`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tidelog_broker.base.group_commit import GroupCommit
from tidelog_broker.core.replication.effects import Append
from tidelog_broker.core.replication.epoch_writer import OffsetAssigner
from tidelog_broker.node import reboot_mark
from tidelog_broker.partition.access import Access
from tidelog_broker.partition.partition import Partition
from tidelog_broker.partition.pipeline import PendingAcks, Pipeline, _settle
from tidelog_broker.partition.reader import PartitionReader
from tidelog_broker.replication import log_writer
from tidelog_broker.replication.driver import ReplicaDriver
from tidelog_broker.replication.journals import Chains
from tidelog_broker.replication.replicas import Replication
from tidelog_broker.storage.node.fences import FENCES
from tidelog_broker.storage.node.node_dir import NodeDir
from tidelog_broker.storage.node.typed_journal import TypedJournal
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

Replacements = Sequence[tuple[object, str, object]]


# ------------------------------------------------------------------------------------------ journals


def fences_told_at_once() -> Replacements:
    """A fence counts as written when it is on its way to the disk."""

    def write_fences(self: Chains, entries: Sequence[pb.FenceEntry], done: Callable[[], None]) -> None:
        self._fence_writes.submit(entries, lambda: None)
        done()

    return [(Chains, "write_fences", write_fences)]


def later_entries_told_too() -> Replacements:
    """Effects gathered while a group was written are executed with it."""
    ended = GroupCommit._ended

    def tell_all(self: GroupCommit[Any], error: BaseException | None) -> None:
        waiting = self._waiting
        self._waiting = [(entries, lambda: None) for entries, _ in waiting]
        self._group += [([], done) for _, done in waiting]
        ended(self, error)

    return [(GroupCommit, "_ended", tell_all)]


def compaction_drops_the_newest() -> Replacements:
    """A compacted journal of fences lacks the entry that made it too large."""
    compact = TypedJournal._compact

    def drop(self: TypedJournal[Any]) -> None:
        kept = dict(self._live)
        if self.kind is FENCES:
            self._live.popitem()
        compact(self)
        self._live = kept

    return [(TypedJournal, "_compact", drop)]


# ------------------------------------------------------------------------------------------ starts


def reboot_not_told_to_logs() -> Replacements:
    """Logs are opened as if the machine had not gone down."""
    init = Replication.__init__

    def forget(self: Replication, *arguments: Any, rebooted: bool, **rest: Any) -> None:
        del rebooted
        init(self, *arguments, rebooted=False, **rest)

    return [(Replication, "__init__", forget)]


def reboot_noted_too_soon() -> Replacements:
    """That the machine went down is forgotten although not every log is open."""

    async def note(directory: NodeDir, *_: Any) -> None:
        directory.mark_reboot_noted()

    return [(reboot_mark, "clear_reboot_mark", note)]


# ------------------------------------------------------------------------------------------ writes


def appends_told_at_once() -> Replacements:
    """An append counts as written when it is on its way to the disk."""

    def append(self: ReplicaDriver, group: list[Append]) -> None:
        synced = self.view.syncs_appends(group[0].epoch)
        self._tools.io.start(self._io_key, lambda: log_writer.append(self.view, group, synced=synced), lambda *_: None)
        self._appended(group, 0.0, ok=True, error=None)

    return [(ReplicaDriver, "_append", append)]


def doubt_ended_by_any_write() -> Replacements:
    """The note that a copy is short is deleted with the first write, whatever the core thinks."""

    def look(self: ReplicaDriver) -> None:
        if not self._writing:
            self._in_doubt, self._writing = False, True
            self._tools.io.start(self._io_key, self.view.end_doubt, lambda _, error: self._repaired(error))

    return [(ReplicaDriver, "_check_doubt", look)]


def clock_taken_as_it_is() -> Replacements:
    """Batches are stamped with the clock, also after it was set back."""
    assign = OffsetAssigner.assign

    def stamp(self: OffsetAssigner, *arguments: Any, now_us: int) -> Any:
        self._last_append_timestamp_us = 0
        return assign(self, *arguments, now_us=now_us)

    return [(OffsetAssigner, "assign", stamp)]


# ------------------------------------------------------------------------------------------ answers


def owner_is_a_quorum() -> Replacements:
    """acks=quorum is answered when the owner has written it."""
    release, appended = PendingAcks.release, Partition.appended

    def settle_appended(self: Partition, appends: Sequence[Append], *, seconds: float) -> None:
        appended(self, appends, seconds=seconds)
        self.pipeline.released()

    def early(self: PendingAcks, owner: OffsetAssigner, high_watermark: int) -> None:
        _settle(self.quorum, owner.held_by(owner.node_id))
        release(self, owner, high_watermark)

    return [
        (PendingAcks, "release", early),
        (Partition, "appended", settle_appended),
        (Partition, "acknowledged", lambda self: self.pipeline.released()),
    ]


def all_is_a_quorum() -> Replacements:
    """acks=all is answered when a quorum holds it."""
    add = PendingAcks.add

    def as_quorum(self: PendingAcks, acks: pb.Acks, *rest: Any, **named: Any) -> None:
        add(self, pb.QUORUM if acks == pb.ALL else acks, *rest, **named)

    return [(PendingAcks, "add", as_quorum)]


def cut_off_is_stored() -> Replacements:
    """At the end of an epoch the batches after it are answered as stored."""
    decided = PendingAcks.decided

    def everything(self: PendingAcks, end_offset: int, refusal: ProtocolError, **rest: Any) -> None:
        del end_offset
        decided(self, 1 << 60, refusal, **rest)

    return [(PendingAcks, "decided", everything)]


def stored_is_denied() -> Replacements:
    """At the end of an epoch stored batches are answered as not stored."""
    decided = PendingAcks.decided

    def nothing(self: PendingAcks, end_offset: int, refusal: ProtocolError, **rest: Any) -> None:
        del end_offset
        decided(self, 0, refusal, **rest)

    return [(PendingAcks, "decided", nothing)]


def retries_answered_at_once() -> Replacements:
    """A retry is answered with where its first attempt went, whether or not that is committed."""
    add = PendingAcks.add

    def known(self: PendingAcks, acks: pb.Acks, stored: Any, duplicate: bool, settle: Any, **rest: Any) -> None:
        if duplicate:
            settle(stored, duplicate)
        else:
            add(self, acks, stored, duplicate, settle, **rest)

    return [(PendingAcks, "add", known)]


def goes_on_in_an_ended_epoch() -> Replacements:
    """A batch with reserved space is appended although the epoch has ended meanwhile."""

    def made_space(
        self: Pipeline, owner: OffsetAssigner, picked: Any, error: BaseException | None, **rest: Any
    ) -> None:
        del owner
        original(self, self._state.assigner, picked, error, **rest)  # type: ignore[arg-type]

    original = Pipeline._made_space
    return [(Pipeline, "_made_space", made_space)]


# ------------------------------------------------------------------------------------------ readers


def memory_read_past_commit() -> Replacements:
    """Readers get batches in memory, committed or not."""

    def read_hot(self: PartitionReader, offset: int, bytes_max: int, records_max: int | None = None) -> Any:
        return self._ring.read(offset, bytes_max, records_max)

    return [(PartitionReader, "read_hot", read_hot)]


def refused_behind_what_it_knows() -> Replacements:
    """An offset after the known end is refused without asking a quorum."""

    async def ensure(self: Access, offset: int, record_epoch: int | None = None) -> None:
        del record_epoch
        if offset > self._state.high_watermark:
            raise self._state.out_of_range(offset)

    return [(Access, "ensure_given_out", ensure)]


def confirmed_at_once() -> Replacements:
    """An owner believes that it is one."""

    async def confirm(self: Access) -> None:
        await self.ensure_readable()
        await self.ensure_active()

    return [(Access, "confirm_owner", confirm)]
