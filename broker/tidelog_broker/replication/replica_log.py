"""A partition's log as its replica sees it: what it holds, what lies damaged, what its headers say of producers.

Opening heals what others can give back: a damaged sealed epoch is set aside, to be filled again, and the open epoch is
cut in front of its damage and stays in doubt until the owner's log has been caught up with. A copy that nobody else
has is left as it is: its partition stays in LIMBO and can be read up to the damage.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tidelog_broker.core.replication.chain import EpochChain
from tidelog_broker.core.replication.effects import KnownLater, ReadLog
from tidelog_broker.core.replication.ports import Position
from tidelog_broker.core.replication.producers import ProducerTable
from tidelog_broker.core.replication.replica_state import Doubt
from tidelog_broker.storage.epoch.epoch_log import EpochLog
from tidelog_broker.storage.io.errors import DiskFullError, NotHeldError, StorageFailedError
from tidelog_broker.storage.partition.partition_log import PartitionLog
from tidelog_broker.storage.partition.snapshots import ProducerSnapshot
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.header import BatchHeader, Flags

log = logging.getLogger(__name__)


class Stretch(NamedTuple):
    """Whole batches of one epoch between two positions."""

    batches: Sequence[memoryview]
    base: Position
    end: Position


class _Known(NamedTuple):
    """The producers' state at an offset, the last header in front of that if it is here, and the headers behind it."""

    table: ProducerTable
    last: BatchHeader | None
    offset: int
    headers: Iterator[BatchHeader]


class ReplicaLog:
    """What the core asks of a log, see `core.replication.ports.LogView`; used by the event loop. Made by `open`.

    Args:
        store: the log.
        chain: the partition's chain, which grows while this is used.
        node_id: this node.
        log_start: where retention has cut, as it was kept.
        rebooted: whether the machine went down since the log was last open.
    """

    def __init__(
        self, store: PartitionLog, chain: EpochChain, *, node_id: str, log_start: int, rebooted: bool = False
    ) -> None:
        self.store = store
        self._chain = chain
        self._node_id = node_id
        self._log_start = log_start
        store.leaving = self._keep_producers_of_what_leaves
        self._limbo: str | None = None
        self._synced: tuple[int, bool] | None = None
        self._rebooted = rebooted
        self._short = False
        self.is_reboot_noted = True
        """Whether nothing is left to be written down of the machine's going down."""

    @classmethod
    def open(
        cls, store: PartitionLog, chain: EpochChain, *, node_id: str, log_start: int, rebooted: bool = False
    ) -> ReplicaLog:
        """Heal what can be healed; runs on the partition's I/O worker.

        Raises:
            StorageError: the disk failed.
        """
        view = cls(store, chain, node_id=node_id, log_start=log_start, rebooted=rebooted)
        view._heal()
        view._begin_again()
        view._note_reboot()
        view.go_on_filling()
        return view

    # --- the chain, as this log needs it ---------------------------------------------------------------

    def descriptor(self, epoch: int) -> pb.EpochDescriptor:
        """Return the descriptor of an epoch of the chain."""
        chain = self._chain
        if epoch == chain.active.epoch:
            return chain.active
        if epoch == chain.genesis.epoch:
            return chain.genesis
        return pb.EpochDecision.FromString(chain.decisions[epoch - chain.genesis.epoch - 1]).next

    def _decision(self, epoch: int) -> pb.EpochDecision:
        return pb.EpochDecision.FromString(self._chain.decisions[epoch - self._chain.genesis.epoch])

    def synced(self, epoch: int) -> bool:
        """Whether an append to an epoch counts only once it is synced."""
        known = self._synced
        if known is None or known[0] != epoch:
            known = self._synced = (epoch, self.descriptor(epoch).flush in {pb.ALWAYS, pb.FLUSH_UNSPECIFIED})
        return known[1]

    def _others_hold(self, epoch: int) -> bool:
        holders = {*self.descriptor(epoch).placement, *self._chain.active.placement}
        return bool(holders - {self._node_id})

    # --- opening ---------------------------------------------------------------------------------------

    def _heal(self) -> None:
        store, active = self.store, self._chain.active.epoch
        if store.limbo is None:
            return
        log.warning("%s: %s", store.name.topic, store.limbo)
        while (epoch := store.unreadable_epoch) is not None and epoch < active and self._others_hold(epoch):
            store.copies.set_aside(epoch, "it cannot be opened")
        for held in reversed(store.epochs):
            if held.damage is not None and held.epoch < active and self._others_hold(held.epoch):
                store.copies.set_aside(held.epoch, held.damage.reason)
        if store.repair.repairable_end(active) is not None and self._others_hold(active):
            try:
                store.repair.cut_to_good(active)
            except DiskFullError as error:
                log.warning("%s; free some space and start this node again", error.message)
        still = store.unreadable_epoch is not None or any(held.damage is not None for held in store.epochs)
        if still and not self.repairing:
            self._limbo = store.limbo

    def _begin_again(self) -> None:
        """Where the open epoch's directory is missing, begin an empty copy that lacks all that it once held."""
        store, active = self.store, self._chain.active
        lost = store.repair.lost_epoch(active.epoch)
        if self._limbo is not None or lost is None or lost < active.epoch or self._node_id not in active.placement:
            return
        reason = f"{store.directory} has lost epoch {lost}: what this node has acknowledged of it is missing"
        log.warning("%s", reason)
        if lost == active.epoch and store.limbo is None and self._others_hold(lost):
            try:
                store.repair.make_again(lost)
                store.start_epoch(lost, active.start_offset, is_lacking=True)
            except DiskFullError as error:
                reason = f"{reason}, and {error.message}"
            else:
                return
        self._limbo = reason

    def _note_reboot(self) -> None:
        """Remember, past this start, that the machine went down under an epoch that is not synced."""
        active = self._chain.active.epoch
        if not self.synced(active):
            if self._rebooted:
                try:
                    self.store.repair.note_short(active)
                except DiskFullError as error:  # retention may make space, if the node starts
                    log.warning("%s; the next start is told again", error.message)
                    self.is_reboot_noted = False
            self._short = self._rebooted or self.store.repair.is_short(active)

    def go_on_filling(self) -> None:
        """Take up the copies that lie beside the log; those that are whole, and only waited for others, come in.

        While an epoch cannot be opened, they wait for what is decided about it.
        """
        if self.store.unreadable_epoch is not None:
            return
        copies = self.store.copies
        for epoch in copies.fill_epochs:
            is_beside = epoch in copies.fill_epochs  # the one before may have brought it in
            if is_beside and copies.fill_position(epoch) is None and epoch < self._chain.active.epoch:
                self._go_on_filling(epoch, self._decision(epoch))

    def _go_on_filling(self, epoch: int, decision: pb.EpochDecision) -> None:
        start_offset, end_offset = self.descriptor(epoch).start_offset, decision.end_offset
        digests = self.decided_digests(epoch)
        if start_offset < end_offset <= self._log_start or end_offset < self._log_start:
            self.store.copies.abandon_fill(epoch)
            return
        # Where it begins late, the digest in front of it is not known here.
        known = 0 if start_offset >= self._log_start else None
        try:
            position = self.store.copies.begin_fill(
                epoch,
                max(start_offset, self._log_start),
                end_offset,
                digests[-1],
                start_digest=known,
                or_digests=digests[:-1],
            )
        except (NotHeldError, DiskFullError) as error:
            log.warning("%s: %s", self.store.directory.name, error)
            return
        newest = (end_offset, digests[-1])
        if self.epoch_end(epoch) is None and position.offset == end_offset:
            self.store.copies.finish_fill(epoch)  # any version is better than none
        elif self.epoch_end(epoch) == newest or (position.offset == end_offset and position != newest):
            self.store.copies.abandon_fill(epoch)
        elif position == newest:
            self.store.copies.finish_fill(epoch, self._chain.compactions[epoch][-1].at)

    def decided_digests(self, epoch: int) -> list[int]:
        """With which digests a whole copy of a decided epoch may end, the newest version's last."""
        compactions = self._chain.compactions.get(epoch, ())
        return [self._decision(epoch).end_digest, *(each.terms.end_digest for each in compactions)]

    @property
    def doubt(self) -> Doubt:
        """Why the open epoch's copy may lack what it acknowledged."""
        if self.repairing:
            return "damaged"
        return "short" if self._short else ""

    @property
    def repairing(self) -> bool:
        """Whether the open epoch was cut in front of damage and lacks what it once held."""
        newest = self.store.active
        return newest is not None and newest.is_repairing

    def end_doubt(self) -> None:
        """What the open epoch lacked is here, or its end is decided; runs on the I/O worker.

        Raises:
            StorageFailedError: the disk failed.
        """
        if self.repairing and self.store.active is not None:
            self.store.repair.finish_repair(self.store.active.epoch)
        if self._short:
            self.store.repair.forget_short()
            self._short = False

    # --- for the core ----------------------------------------------------------------------------------

    def limbo(self) -> str | None:
        """Why the log is damaged for good; None when it is not."""
        return self._limbo

    def newest_epoch(self) -> int | None:
        """The newest epoch with anything in the log."""
        return self.store.active.epoch if self.store.active is not None else None

    def epoch_end(self, epoch: int) -> tuple[int, int] | None:
        """End offset and digest of the copy of an epoch; None when there is none."""
        held = self.log_of(epoch)
        return (held.end_offset, held.end_digest) if held is not None else None

    def copy_start(self, epoch: int) -> int | None:
        """Where the copy of an epoch begins; None when there is none."""
        held = self.log_of(epoch)
        return held.start_offset if held is not None else None

    def digest_at(self, epoch: int, offset: int) -> int | None:
        """The running digest at a batch boundary; None when that is none, or not here."""
        try:
            return self.store.reader.digest_at(epoch, offset)
        except ProtocolError as error:
            log.warning("%s: the digest at offset %d cannot be read: %s", self.store.directory.name, offset, error)
            return None

    def batch_start(self, epoch: int, offset: int) -> int | None:
        """Where the batch begins that holds an offset; None when none does here."""
        try:
            return self.store.reader.batch_start(epoch, offset)
        except ProtocolError as error:
            log.warning("%s: no batch at offset %d can be found: %s", self.store.directory.name, offset, error)
            return None

    def fill_position(self, epoch: int) -> tuple[int, int] | None:
        """How far a partial copy of a sealed epoch reaches; None without one."""
        return self.store.copies.fill_position(epoch) or self.epoch_end(epoch)

    def position_beside(self, epoch: int) -> tuple[int, int] | None:
        """How far another version reaches that is filled beside the log's; None without one."""
        return self.store.copies.fill_position(epoch)

    def log_start(self) -> int:
        """Retention has deleted what lies before this offset; what nobody else ever had is gone by retention, too."""
        epochs = range(self._chain.genesis.epoch, self._chain.active.epoch + 1)
        alone = not any(self._others_hold(epoch) for epoch in epochs)
        return max(self._log_start, self.store.start_offset) if alone else self._log_start

    def raise_log_start(self, offset: int) -> None:
        """Retention has deleted more: what lies below is not waited for. May be called while a worker reads it."""
        self._log_start = max(self._log_start, offset)

    def log_of(self, epoch: int) -> EpochLog | None:
        """Return the log of an epoch, if it is in the partition's log."""
        return next((held for held in self.store.epochs if held.epoch == epoch), None)

    def sync_ahead(self, epoch: int, slack_bytes: int) -> None:
        """Have the disk take what the newest epoch holds, beside its I/O worker; see `EpochReader.sync_ahead`.

        Raises:
            StorageFailedError: a sync failed.
        """
        newest = self.store.active
        if newest is not None and newest.epoch == epoch:
            newest.reader.sync_ahead(slack_bytes)

    # --- reading, on a worker --------------------------------------------------------------------------

    def read_epoch(self, effect: ReadLog) -> Stretch:
        """Read whole batches of an epoch for another node; nothing when they are not here.

        Those of an epoch that has ended may be slices of the log, which nobody looks at: they are decided, never cut.
        """
        nothing = Stretch((), Position(effect.from_offset, 0), Position(effect.from_offset, 0))
        held = self.log_of(effect.epoch)
        if held is None or not held.start_offset <= effect.from_offset < held.end_offset:
            return nothing
        base = held.reader.digest_at(effect.from_offset)
        if base is None:
            return nothing
        is_decided = held.state == "sealed"
        found = held.reader.read(
            effect.from_offset, effect.bytes_max, limit_offset=effect.end_offset, to_send=is_decided
        )
        end = held.reader.digest_at(found.next_offset)
        if end is None:
            return nothing
        return Stretch(found.batches, Position(effect.from_offset, base), Position(found.next_offset, end))

    def producers_at(
        self, offset: int, *, log_start: int, may_forget: bool = False
    ) -> tuple[ProducerTable | None, int]:
        """Rebuild what the log says of producers at `offset`, and the append timestamp there.

        What retention has deleted, below `log_start`, is forgotten; with `may_forget`, what compaction has taken out
        without a snapshot here, too.

        Returns:
            None for the table when the log here does not reach there without a hole, from a snapshot or from its start.
        """
        if offset == 0:
            return ProducerTable(), 0
        try:
            table, _ = self._scan_producers(offset, log_start, may_forget=may_forget)
            return table, self._last_append_us(offset) if table is not None else 0
        except ProtocolError as error:
            log.warning("%s: the producers cannot be told: %s", self.store.directory.name, error)
            return None, 0

    def _last_append_us(self, offset: int) -> int:
        """Return when the last batch in front of an offset was appended; of a derived one, a moment later."""
        while offset > self.store.start_offset:
            last = next(self.store.reader.scan_headers(offset - 1), None)
            if last is None or last.append_timestamp_us:
                return last.append_timestamp_us if last is not None else 0
            offset = last.base_offset  # compaction has left no record of it
        return 0

    def keep_producers(self, below: int, *, committed: int, log_start: int) -> ProducerSnapshot | None:
        """Return a snapshot to be saved before retention deletes what lies below an offset: it knows what that says.

        Snapshots count by what the log holds in front of them, so the newest one would be lost with that. Runs on the
        I/O worker.

        Returns:
            None when one counts that lies behind, or the log says nothing of producers.

        Raises:
            StorageError: the disk failed, or something is damaged.
        """
        store = self.store
        offset = min(committed, store.end_offset)
        beginning = self._beginning(below)
        snapshots = (one for one in store.reader.load_producer_snapshots() if below <= one.offset <= offset)
        if any(self._behind(one) is not None and (one.offset > below or one[:3] == beginning) for one in snapshots):
            return None
        table, last = self._scan_producers(offset, log_start)
        if table is None or table.is_empty:
            return None
        if (
            beginning is not None and beginning[1] == offset
        ):  # all that is committed goes: only what follows tells of it
            return ProducerSnapshot(*beginning, table.snapshot())
        return (
            ProducerSnapshot(last.epoch, last.end_offset, last.digest, table.snapshot()) if last is not None else None
        )

    def _beginning(self, below: int) -> tuple[int, int, int] | None:
        """Return epoch, offset and digest where the log begins once what lies below an offset has gone."""
        segments = [segment for held in self.store.epochs for segment in held.segments]
        first = next((one for one in segments if one.end_offset > below), segments[-1]) if segments else None
        return (first.header.epoch, first.base_offset, first.header.start_digest) if first is not None else None

    def _keep_producers_of_what_leaves(self) -> None:
        """Save what the log says of producers before it leaves for an epoch that begins behind a hole.

        What leaves comes in again when the hole is filled, unless retention has deleted that far meanwhile: then
        nothing else would say what producers had sent into it. The snapshot counts where the next epoch begins. Runs
        on the I/O worker.

        Raises:
            StorageFailedError: the disk failed.
        """
        store, newest = self.store, self.store.active
        assert newest is not None
        later = range(newest.epoch + 1, self._chain.active.epoch)
        following = next((one for one in later if self._decision(one).end_offset > newest.end_offset), None)
        if following is None or self.descriptor(following).start_offset != newest.end_offset:
            return
        try:
            table, _ = self._scan_producers(newest.end_offset, self._log_start)
            if table is not None and not table.is_empty:
                store.save_producer_snapshot(
                    following, newest.end_offset, 0, table.snapshot(), committed=newest.end_offset
                )
        except StorageFailedError:
            raise
        except ProtocolError as error:  # no space, or damaged: another node may know
            log.warning("%s: what was sent before the hole may be forgotten: %s", store.directory.name, error)

    def producers_at_end(self, epoch: int, *, committed: int, log_start: int) -> ProducerSnapshot | None:
        """Return a snapshot to be saved before a sealed epoch is compacted: it knows what its batches say of producers.

        Runs on the I/O worker.

        Returns:
            None when one counts that lies there or behind; and where the log here does not tell, as it came compacted
            from another node: before this one owns the partition it asks others, see `producers_at`.

        Raises:
            StorageError: the disk failed, or something is damaged.
        """
        if self.knows_producers_at(epoch, committed=committed):
            return None
        decision = self._decision(epoch)
        end_offset = decision.end_offset
        table, _ = self._scan_producers(end_offset, log_start)
        return None if table is None else ProducerSnapshot(epoch, end_offset, decision.end_digest, table.snapshot())

    def knows_producers_at(self, epoch: int, *, committed: int | None = None) -> bool:
        """Whether a snapshot counts that lies at a decided epoch's end or behind it; not behind `committed`.

        Raises:
            StorageError: the disk failed, or something is damaged.
        """
        end_offset = self._decision(epoch).end_offset
        snapshots = (one for one in self.store.reader.load_producer_snapshots() if end_offset <= one.offset)
        if committed is not None:
            snapshots = (one for one in snapshots if one.offset <= committed)
        return any(self._behind(one) is not None for one in snapshots)

    def counts(self, snapshot: ProducerSnapshot) -> bool:
        """Whether a snapshot is of this log, see `_behind`.

        Raises:
            StorageError: the disk failed, or something is damaged.
        """
        return self._behind(snapshot) is not None

    def producers_later(self, offset: int) -> KnownLater | None:
        """Return the earliest snapshot that counts and lies at an offset or behind it; None without one.

        Raises:
            StorageError: the disk failed, or something is damaged.
        """
        snapshots = [one for one in self.store.reader.load_producer_snapshots() if one.offset >= offset]
        found = next(filter(self.counts, reversed(snapshots)), None)
        return KnownLater(*found) if found is not None else None

    def epoch_without_producers(self) -> int | None:
        """The newest epoch that is here as compaction left it, where no snapshot says what producers sent into it."""
        chain = self._chain
        for epoch, compactions in sorted(chain.compactions.items(), reverse=True):
            end = self.epoch_end(epoch)
            if end is not None and end[1] in {each.terms.end_digest for each in compactions}:
                return None if self.knows_producers_at(epoch) else epoch
        return None

    def _scan_producers(
        self, offset: int, log_start: int, *, may_forget: bool = False
    ) -> tuple[ProducerTable | None, BatchHeader | None]:
        """Return the table, and the header of the last batch below `offset` if one was seen."""
        store = self.store
        known = self._snapshot_at_most(offset)
        if known is None:
            if store.start_offset > log_start or not store.epochs:
                return None, None
            known = _Known(ProducerTable(), None, store.start_offset, store.reader.scan_headers(store.start_offset))
        table, last, at, headers = known
        for header in headers:
            if header.end_offset > offset:
                break
            if header.flags & Flags.DERIVED:
                if not may_forget:
                    return None, None  # compaction has taken out what it said of producers
                table = ProducerTable()  # what was known may be out of date: who is unknown begins anew, and is told
            table.apply(header)
            last, at = header, header.end_offset
        return (table, last) if at == offset else (None, None)

    def _snapshot_at_most(self, offset: int) -> _Known | None:
        """Return the newest snapshot that counts, and what is behind it; see `_behind`."""
        for snapshot in self.store.reader.load_producer_snapshots():
            if snapshot.offset <= offset and (behind := self._behind(snapshot)) is not None:
                return _Known(ProducerTable.restore(snapshot.payload), behind[0], snapshot.offset, behind[1])
        return None

    def _behind(self, snapshot: ProducerSnapshot) -> tuple[BatchHeader | None, Iterator[BatchHeader]] | None:
        """Return the last header that a snapshot covers and those behind it, if it counts.

        A snapshot can be ahead of a log whose unsynced tail was lost, and the log can have grown past its offset with
        other records since: it counts only if the batch that ends there carries its epoch and digest. One that was
        made at an epoch's start, from what a peer told, has the digest 0, and the epoch begins there. Where retention
        has deleted that batch, the segment behind it tells the same digest. At the end that was decided for a whole
        epoch it counts however compaction has changed that epoch since.
        """
        store, held = self.store, self.log_of(snapshot.epoch)
        if held is not None and self._is_decided_end(held, snapshot):
            return None, store.reader.scan_headers(snapshot.offset)
        if held is not None and (held.start_offset, held.start_digest) == (snapshot.offset, snapshot.digest):
            return None, store.reader.scan_headers(snapshot.offset)
        if not store.start_offset < snapshot.offset <= store.end_offset:
            return None
        headers = store.reader.scan_headers(snapshot.offset - 1)
        last = next(headers, None)
        if last is None or (last.epoch, last.end_offset, last.digest) != snapshot[:3]:
            return None
        return last, headers

    def _is_decided_end(self, held: EpochLog, snapshot: ProducerSnapshot) -> bool:
        if not self._chain.genesis.epoch <= snapshot.epoch < self._chain.active.epoch:
            return False
        decision = self._decision(snapshot.epoch)
        is_whole = held.end_offset == decision.end_offset and held.damage is None
        return is_whole and (decision.end_offset, decision.end_digest) == (snapshot.offset, snapshot.digest)
