"""Mutations of the code around the core: the order of writes, journals, starts, readers. See `mutants`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

from tests.broker.storage.sim_disk import SimDisk
from tests.simulation.machine import Machine

from tidelog_broker.core.replication.chain import EpochChain
from tidelog_broker.core.replication.effects import SyncLog
from tidelog_broker.core.replication.producers import ProducerTable
from tidelog_broker.core.replication.replica_state import ReplicaState
from tidelog_broker.core.topics import PartitionKey
from tidelog_broker.partition.state import PartitionState
from tidelog_broker.replication import log_writer
from tidelog_broker.replication.driver import ReplicaDriver
from tidelog_broker.replication.logged_producers import LoggedProducers
from tidelog_broker.replication.replica_log import ReplicaLog
from tidelog_broker.storage.epoch.epoch_log import EpochLog
from tidelog_broker.storage.node.fences import FENCES
from tidelog_broker.storage.node.typed_journal import TypedJournal
from tidelog_broker.storage.partition.partition_log import PartitionLog

Replacements = Sequence[tuple[object, str, object]]


def fences_not_written() -> Replacements:
    """Promises are kept in memory only."""

    original = TypedJournal.append

    def append(self: TypedJournal[Any], entries: Sequence[Any]) -> None:
        if self.kind is not FENCES:
            original(self, entries)
            return
        for entry in entries:
            self._take(entry, entry.SerializeToString())

    return [(TypedJournal, "append", append)]


def synced_without_a_name() -> Replacements:
    """Batches in a segment without a durable name are reported as durable."""
    original = EpochLog.sync

    def sync(self: EpochLog) -> int:
        with patch.object(self._deferred, "_names", None):
            return original(self)

    return [(EpochLog, "sync", sync)]


def wiped_node_keeps_its_id() -> Replacements:
    """A node with a replaced disk continues under its old id."""

    def wipe(self: Machine) -> None:
        self.stop("wiped")
        self.disk = SimDisk()

    return [(Machine, "wipe", wipe)]


def truncates_to_watermark() -> Replacements:
    """A restarted node keeps the records of the open epoch that it knew to be committed."""
    known: dict[tuple[str, PartitionKey], tuple[int, int]] = {}
    execute, open_view = ReplicaDriver._execute, ReplicaLog.open

    def remember(self: ReplicaDriver, **how: bool) -> None:
        execute(self, **how)
        known[self.replica.state.node_id, self.key] = (
            self.replica.state.active.epoch,
            self.replica.state.high_watermark,
        )

    def open_cut(store: PartitionLog, chain: EpochChain, *, node_id: str, **rest: Any) -> ReplicaLog:
        view, newest = open_view(store, chain, node_id=node_id, **rest), store.active
        epoch, watermark = known.get((node_id, (store.name.topic_id, store.name.partition)), (-1, 0))
        if newest is not None and newest.epoch == epoch == chain.active.epoch and watermark < newest.end_offset:
            store.truncate_epoch(epoch, watermark)
        return view

    return [(ReplicaDriver, "_execute", remember), (ReplicaLog, "open", open_cut)]


def reboot_forgotten() -> Replacements:
    """That the machine went down is not heeded."""

    def note_reboot(self: ReplicaLog) -> None:
        return

    return [(ReplicaLog, "_note_reboot", note_reboot)]


def reboot_noted_in_memory() -> Replacements:
    """That the machine went down is heeded at the first start after it, and not at the next."""

    def note_reboot(self: ReplicaLog) -> None:
        self._short = self._rebooted and not self.syncs_appends(self._chain.active.epoch)

    return [(ReplicaLog, "_note_reboot", note_reboot)]


def reads_past_commit() -> Replacements:
    """Consumers get uncommitted records."""

    return [(PartitionState, "readable_end", property(lambda self: self.log.end_offset))]


def reads_past_cut() -> Replacements:
    """Consumers get records that are about to be truncated, where others were committed since."""

    return [(ReplicaDriver, "cut_offset", None)]


def producers_forgotten() -> Replacements:
    """A new owner begins without producers."""

    def at(self: LoggedProducers, offset: int, *, log_start: int) -> tuple[ProducerTable, int]:
        return ProducerTable(), 0

    return [(LoggedProducers, "at", at)]


def tells_before_sync() -> Replacements:
    """Appends count as durable when they are in the page cache."""

    def syncs_appends(self: ReplicaLog, epoch: int) -> bool:
        return False

    return [(ReplicaLog, "syncs_appends", syncs_appends), *reboot_forgotten()]


def accepts_unsynced() -> Replacements:
    """An end is accepted while the log before it is in the page cache."""
    perform = log_writer.perform

    def skip(view: ReplicaLog, effect: Any) -> bool:
        return isinstance(effect, SyncLog) or perform(view, effect)

    return [(log_writer, "perform", skip)]


def limbo_not_heeded() -> Replacements:
    """A damaged log takes part with its remaining records."""
    heal = ReplicaLog._heal

    def cut(self: ReplicaLog) -> None:
        heal(self)
        if self.repairing:
            self.end_doubt()

    return [(ReplicaLog, "_heal", cut)]


def deadlines_kept_over_every_step() -> Replacements:
    """An owner does not ask its parts for their deadlines again, whatever a step has done."""
    return [(ReplicaState, "only_replicated", property(lambda _: True, lambda *_: None))]
