"""A partition's log as seen by its replica, with repair at open.

Opening repairs what other nodes can restore: a damaged sealed epoch is set aside, to be fetched again, and the open
epoch is truncated at its damage and stays in doubt until it has caught up with the owner's log. A single copy is left
unchanged: its partition stays in LIMBO and can be read up to the damage.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from tidelog_broker.core.replication.chain import EpochChain
from tidelog_broker.core.replication.effects import ReadLog
from tidelog_broker.core.replication.ports import Position
from tidelog_broker.core.replication.replica_state import Doubt, syncs_appends
from tidelog_broker.replication.logged_producers import LoggedProducers
from tidelog_broker.storage.engine.store import SEGMENT, SHARED
from tidelog_broker.storage.io.errors import DamagedError, DiskFullError, NotHeldError, StorageFailedError
from tidelog_broker.storage.partition.partition_log import PartitionLog
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import crc_checked_body, unpack_header
from tidelog_proto.errors import ProtocolError

log = logging.getLogger(__name__)


class BatchRange(NamedTuple):
    """Whole batches of one epoch between two positions."""

    batches: Sequence[memoryview]
    base: Position
    end: Position


class ReplicaLog:
    """The core's view of a log, see `core.replication.ports.LogView`. Created by `open`.

    The core calls the methods of `LogView` on the event loop. `log_writer` uses the view on the partition's I/O worker
    as well, or on the event loop while writes are fast; `read_epoch` runs on a read worker.

    Args:
        chain: the partition's chain, which grows while this is used.
        log_start: the stored log start of retention; None if retention has stored no start.
        deleted_below: the delete offset in the fence of the active epoch; effective if this is the only copy.
        rebooted: whether the machine crashed since the log was last open.
    """

    def __init__(
        self,
        store: PartitionLog,
        chain: EpochChain,
        *,
        node_id: str,
        log_start: int | None,
        deleted_below: int = 0,
        rebooted: bool = False,
    ) -> None:
        self.store = store
        self._chain = chain
        store.after_leaving = self._reopen_volatile_copies
        self._node_id = node_id
        self._log_start = log_start or 0
        self._is_start_stored = log_start is not None
        self._deleted_below = deleted_below
        self.producers = LoggedProducers(store, chain, lambda: self._log_start)
        """The producers' state in the log."""
        self._limbo: str | None = None
        self._rebooted = rebooted
        self._short = False
        self._without_producers: int | None = None
        self.is_reboot_noted = True
        """Whether a machine crash, if there was one, is recorded durably."""

    @classmethod
    def open(
        cls,
        store: PartitionLog,
        chain: EpochChain,
        *,
        node_id: str,
        log_start: int | None,
        deleted_below: int = 0,
        rebooted: bool = False,
    ) -> ReplicaLog:
        """Open the view and repair the log; runs on the partition's I/O worker.

        Raises:
            StorageError: the disk failed.
        """
        view = cls(store, chain, node_id=node_id, log_start=log_start, deleted_below=deleted_below, rebooted=rebooted)
        view._heal()
        view._recreate_lost_epoch()
        view._note_reboot()
        view.resume_partial_copies()
        view._look_for_producers()
        return view

    def _look_for_producers(self) -> None:
        try:
            self._without_producers = self.producers.unknown_epoch()
        except StorageFailedError:
            raise
        except ProtocolError as error:  # Damage is reported elsewhere, and a new owner asks other nodes.
            log.warning(
                "%s: the producer state cannot be read from the log; it is fetched from other replicas, if "
                "any, when it is needed: %s",
                self.store.directory.name,
                error,
            )

    # --- what this log reads from the chain -----------------------------------------------------------

    def syncs_appends(self, epoch: int) -> bool:
        """Return whether an append to an epoch is acknowledged only after it is synced."""
        return syncs_appends(self._chain.descriptor(epoch))

    def engine(self, epoch: int) -> str:
        """Return the name of the engine that stores an epoch."""
        return self._chain.descriptor(epoch).engine or SEGMENT

    def shares_log(self, epoch: int) -> bool:
        """Return whether an epoch is synced together with those of other partitions."""
        return self.engine(epoch) == SHARED

    def _others_hold(self, epoch: int) -> bool:
        holders = {*self._chain.descriptor(epoch).placement, *self._chain.active.placement}
        return bool(holders - {self._node_id})

    # --- opening ---------------------------------------------------------------------------------------

    def _heal(self) -> None:
        store, active = self.store, self._chain.active.epoch
        if store.limbo is None:
            return
        log.warning(
            "%s/%d: the log on this node takes no appends: %s; this node restores damaged data from other nodes if "
            "they have it; otherwise run `tidelog log verify DATA`, then stop the node and run `tidelog log repair "
            "DATA`",
            store.name.topic,
            store.name.partition,
            store.limbo,
        )
        while (epoch := store.unreadable_epoch) is not None and epoch < active and self._others_hold(epoch):
            store.copies.set_aside(epoch, "the epoch cannot be opened")
        for held in reversed(store.epochs):
            if held.damage is not None and held.epoch < active and self._others_hold(held.epoch):
                store.copies.set_aside(held.epoch, held.damage.reason)
        if store.repair.repairable_end(active) is not None and self._others_hold(active):
            try:
                store.repair.truncate_to_valid_prefix(active)
            except DiskFullError as error:
                log.warning("%s; then restart this node", error.message)
        still = (
            store.unreadable_epoch is not None
            or store.needs_engine
            or any(held.damage is not None for held in store.epochs)
        )
        if still and not self.repairing:
            self._limbo = store.limbo

    def _recreate_lost_epoch(self) -> None:
        """If the open epoch's directory is missing, begin an empty copy that is marked as lacking records."""
        store, active = self.store, self._chain.active
        lost = store.repair.lost_epoch(active.epoch)
        if self._limbo is not None or lost is None or lost < active.epoch or self._node_id not in active.placement:
            return
        reason = f"{store.directory} lacks epoch {lost}, whose records this node has acknowledged"
        log.warning("%s", reason)
        if lost == active.epoch and store.limbo is None and self._others_hold(lost):
            try:
                store.repair.recreate_directory(lost)
                store.start_epoch(lost, active.start_offset, engine=self.engine(lost), is_lacking=True)
            except DiskFullError as error:
                reason = f"{reason}, and {error.message}"
            else:
                return
        self._limbo = reason

    def _note_reboot(self) -> None:
        """Record durably that the machine crashed during an unsynced epoch.

        A copy that its engine has lost is short, too, without a record: it is lost at every start.
        """
        active, newest = self._chain.active.epoch, self.store.active
        if not self.syncs_appends(active):
            if self._rebooted:
                try:
                    self.store.repair.mark_short(active)
                except DiskFullError as error:  # Retention may free space once the node has started.
                    log.warning("%s; the next start tries again to record the machine crash", error.message)
                    self.is_reboot_noted = False
            self._short = self._rebooted or self.store.repair.is_marked_short(active)
        if newest is not None and newest.epoch == active and newest.is_lost:
            self._short = True
            log.warning(
                "%s/%d: the records of epoch %d were in engine %s and are lost on this node; %s",
                self.store.name.topic,
                self.store.name.partition,
                active,
                newest.engine,
                "fetching them from the other replicas"
                if self._others_hold(active)
                else "DATA_LOSS: no other node has them",
            )

    def resume_partial_copies(self) -> None:
        """Resume the copies beside the log; complete ones that only waited for others are added to it.

        While an epoch cannot be opened, they wait until it is repaired.
        """
        if self.store.unreadable_epoch is not None:
            return
        copies = self.store.copies
        for epoch in copies.partial_epochs:
            is_beside = (
                epoch in copies.partial_epochs
            )  # The epoch may have been added to the log together with the previous one.
            if is_beside and copies.copy_position(epoch) is None and epoch < self._chain.active.epoch:
                self._resume_partial_copy(epoch, self._chain.decision(epoch))

    def _reopen_volatile_copies(self) -> None:
        """Open the copies that have left the log and that a restart would lose.

        Other nodes may fetch them, and clients read them if an epoch between them and the log is lost.
        """
        copies = self.store.copies
        for epoch in copies.partial_epochs:
            if copies.copy_position(epoch) is None and self.is_volatile(epoch):
                self._resume_partial_copy(epoch, self._chain.decision(epoch))

    def _resume_partial_copy(self, epoch: int, decision: pb.EpochDecision) -> None:
        start_offset, end_offset = self._chain.descriptor(epoch).start_offset, decision.end_offset
        digests = self.decided_digests(epoch)
        if start_offset < end_offset <= self._log_start or end_offset < self._log_start:
            self.store.copies.abandon_copy(epoch)
            return
        # The digest before a copy that begins late is unknown on this node. An only copy has deleted records without
        # storing the log start, so it may begin anywhere.
        is_only = not self._others_hold(epoch)
        known = 0 if start_offset >= self._log_start and not is_only else None
        try:
            position = self.store.copies.begin_copy(
                epoch,
                max(start_offset, self._log_start),
                end_offset,
                digests[-1],
                start_digest=known,
                or_digests=digests[:-1],
                engine=self.engine(epoch),
                is_only=is_only,
            )
        except (NotHeldError, DiskFullError) as error:
            log.warning(
                "%s: the partial copy of epoch %d cannot be opened: %s", self.store.directory.name, epoch, error
            )
            return
        newest = (end_offset, digests[-1])
        if self.epoch_end(epoch) is None and position.offset == end_offset:
            self.store.copies.finish_copy(epoch)  # Any version is better than none.
        elif self.epoch_end(epoch) == newest or (position.offset == end_offset and position != newest):
            self.store.copies.abandon_copy(epoch)
        elif position == newest:
            self.store.copies.finish_copy(epoch, self._chain.compactions[epoch][-1].at)

    def decided_digests(self, epoch: int) -> list[int]:
        """Return the valid end digests of a complete copy of a decided epoch, the newest version's last."""
        compactions = self._chain.compactions.get(epoch, ())
        return [self._chain.decision(epoch).end_digest, *(each.terms.end_digest for each in compactions)]

    @property
    def doubt(self) -> Doubt:
        """Why the open epoch's copy may lack acknowledged records; empty if it does not."""
        if self.repairing:
            return "damaged"
        return "short" if self._short else ""

    @property
    def repairing(self) -> bool:
        """Whether the open epoch was truncated at damage and lacks records."""
        newest = self.store.active
        return newest is not None and newest.is_repairing

    def end_doubt(self) -> None:
        """End the doubt: the open epoch is complete, or its end is decided. Runs on the I/O worker.

        Raises:
            StorageFailedError: the disk failed.
        """
        if self.repairing and self.store.active is not None:
            self.store.repair.finish_repair(self.store.active.epoch)
        if self._short:
            self.store.repair.clear_short()
            self._short = False

    # --- for the core ----------------------------------------------------------------------------------

    def limbo(self) -> str | None:
        """Return why the log takes no appends, because its repair at open was impossible; None if it takes them."""
        return self._limbo

    def newest_epoch(self) -> int | None:
        """Return the newest epoch in the log; None if the log has no epoch."""
        return self.store.active.epoch if self.store.active is not None else None

    def epoch_end(self, epoch: int) -> tuple[int, int] | None:
        """Return the end offset and digest of the copy of an epoch; None if the log does not have the epoch."""
        held = self.store.log_of(epoch)
        return (held.end_offset, held.end_digest) if held is not None else None

    def copy_start(self, epoch: int) -> int | None:
        """Return the start offset of the copy of an epoch; None if the log does not have the epoch."""
        held = self.store.log_of(epoch)
        return held.start_offset if held is not None else None

    def digest_at(self, epoch: int, offset: int) -> int | None:
        """Return the running digest at a batch boundary of an epoch.

        None if the offset is not a boundary, this log lacks it, or the lookup fails, which is logged.
        """
        try:
            return self.store.reader.digest_at(epoch, offset)
        except ProtocolError as error:
            log.warning(
                "%s: the digest of epoch %d at offset %d cannot be read: %s",
                self.store.directory.name,
                epoch,
                offset,
                error,
            )
            return None

    def batch_start(self, epoch: int, offset: int) -> int | None:
        """Return the base offset of the batch of an epoch that holds an offset.

        None if no batch does, the epoch has no complete copy, or the lookup fails, which is logged.
        """
        try:
            return self.store.reader.batch_start(epoch, offset)
        except ProtocolError as error:
            log.warning(
                "%s: cannot look up the batch of epoch %d at offset %d: %s",
                self.store.directory.name,
                epoch,
                offset,
                error,
            )
            return None

    def copy_position(self, epoch: int) -> tuple[int, int] | None:
        """Return the end of the partial copy of a sealed epoch, or of the epoch in the log; None if neither exists."""
        return self.store.copies.copy_position(epoch) or self.epoch_end(epoch)

    def position_beside(self, epoch: int) -> tuple[int, int] | None:
        """Return the end of the partial copy of another version beside the log; None if it does not exist."""
        return self.store.copies.copy_position(epoch)

    def log_start(self) -> int:
        """Return retention's log start; for records that no other node ever stored, the start of this log.

        An only copy has deleted records below the delete offset, and below the stored log start if it was opened
        without one: then the start of the log is taken for that of retention, and stored. A log that begins later has
        lost files.
        """
        epochs = range(self._chain.genesis.epoch, self._chain.active.epoch + 1)
        if any(self._others_hold(epoch) for epoch in epochs):
            return self._log_start
        store = self.store
        beside = (copy for epoch in store.copies.partial_epochs if (copy := store.copy_of(epoch)) is not None)
        start_offset = min([store.start_offset, *(copy.start_offset for copy in beside)])
        if (self._is_start_stored or store.unreadable_epoch is not None) and self.may_store_start():
            start_offset = min(start_offset, max(self._chain.deleted_below, self._deleted_below))
        return max(self._log_start, start_offset)

    def may_store_start(self) -> bool:
        """Return whether an only copy may store where it begins: not if an engine loses older epochs in a restart."""
        epochs = range(self._chain.genesis.epoch, self._chain.active.epoch + 1)
        return not any(self.is_volatile(epoch) for epoch in epochs)

    def raise_log_start(self, offset: int) -> None:
        """Raise the log start, because retention has deleted more. A worker may read it concurrently."""
        self._log_start = max(self._log_start, offset)

    def is_volatile(self, epoch: int) -> bool:
        """Return whether a restart of a replica loses its copy of an epoch, because of the epoch's engine."""
        return not self.store.survives_restart(self.engine(epoch))

    def epoch_without_producers(self) -> int | None:
        """Return the newest epoch at whose end the log lacked producer state when opened; None if it was complete."""
        return self._without_producers

    def sync_ahead(self, epoch: int, slack_bytes: int) -> None:
        """Sync the newest epoch ahead, concurrently with its I/O worker; see `EpochReading.sync_ahead`.

        Raises:
            StorageFailedError: a sync failed.
        """
        newest = self.store.active
        if newest is not None and newest.epoch == epoch:
            newest.reader.sync_ahead(slack_bytes)

    # --- reading, on a worker --------------------------------------------------------------------------

    def read_epoch(self, effect: ReadLog) -> BatchRange:
        """Read whole batches of an epoch for another node; none if this log lacks them.

        Batches of an ended epoch may be slices of the log, for system calls only: they are decided, never truncated,
        and a receiver of corrupt ones asks another node. The owner is the only source of the open epoch, so its batches
        are checked.

        Raises:
            DamagedError: the first batch is corrupt.
            ProtocolError: as `EpochReading.read`.
        """
        nothing = BatchRange((), Position(effect.from_offset, 0), Position(effect.from_offset, 0))
        held = self.store.copy_of(effect.epoch)
        if held is None or not held.start_offset <= effect.from_offset < held.end_offset:
            return nothing
        base = held.reader.digest_at(effect.from_offset)
        if base is None:
            return nothing
        is_decided = held.state == "sealed"
        found = held.reader.read(
            effect.from_offset, effect.bytes_max, limit_offset=effect.end_offset, to_send=is_decided
        )
        batches, end_offset = found.batches, found.next_offset
        if not is_decided and (sound := self._sound(batches)) < len(batches):
            end_offset = unpack_header(batches[sound], typed=True).base_offset
            batches = batches[:sound]
        end = held.reader.digest_at(end_offset)
        if end is None:
            return nothing
        return BatchRange(batches, Position(effect.from_offset, base), Position(end_offset, end))

    def _sound(self, batches: Sequence[memoryview]) -> int:
        """Return how many batches precede the first one with a corrupt body."""
        for number, batch in enumerate(batches):
            header = unpack_header(batch, typed=True)
            try:
                crc_checked_body(header, batch)
            except ProtocolError as error:
                if number == 0:
                    what = f"{self.store.directory.name} is damaged at offset {header.base_offset}: {error.message}"
                    raise DamagedError(what) from error
                return number
        return len(batches)
