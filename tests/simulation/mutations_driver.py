"""Mutations of what stands around the core: the order of writes, journals, starts, readers. See `mutants`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

from tests.broker.storage.sim_disk import SimDisk
from tests.simulation.driver import PartitionDriver
from tests.simulation.machine import Machine
from tests.simulation.process import Process
from tests.simulation.store import Store

from tidelog_broker.core.effects import SyncLog, Write
from tidelog_broker.core.producers import ProducerTable
from tidelog_broker.log_view import LogView
from tidelog_broker.storage.epoch_log import EpochLog
from tidelog_broker.storage.fences import FenceJournal
from tidelog_broker.storage.owed_names import OwedNames
from tidelog_proto import broker_pb2 as pb

Replacements = Sequence[tuple[object, str, object]]


def fences_not_written() -> Replacements:
    """Promises are kept in memory only."""

    def append(self: FenceJournal, entries: Sequence[pb.FenceEntry]) -> None:
        for entry in entries:
            self._take(entry)

    return [(FenceJournal, "append", append)]


def synced_without_a_name() -> Replacements:
    """What is in a segment that has no durable name yet is called durable."""
    original = EpochLog.sync

    def sync(self: EpochLog) -> int:
        with patch.object(self, "_names", OwedNames(self._disk, self.directory)):
            return original(self)

    return [(EpochLog, "sync", sync)]


def wiped_node_keeps_its_id() -> Replacements:
    """A node whose disk was replaced goes on under its old id."""

    def wipe(self: Machine) -> None:
        self.stop("wiped")
        self.disk = SimDisk()

    return [(Machine, "wipe", wipe)]


def truncates_to_watermark() -> Replacements:
    """A node that starts again keeps of the open epoch what it knew to be committed."""
    known: dict[tuple[str, Any], tuple[int, int]] = {}
    pump = PartitionDriver.pump

    def remember(self: PartitionDriver) -> None:
        pump(self)
        known[self.process.node_id, self.key] = (self.replica.active.epoch, self.replica.high_watermark)

    original = Process.open_partitions

    def open_partitions(self: Process) -> None:
        real = Store.open

        def open_store(disk: SimDisk, key: Any, chain: Any, **rest: Any) -> Store:
            store = real(disk, key, chain, **rest)
            epoch, watermark = known.get((self.node_id, key), (-1, 0))
            newest = store.log.active
            if newest is not None and newest.epoch == epoch == chain.active.epoch and watermark < newest.end_offset:
                store.log.truncate_epoch(epoch, watermark)
            return store

        with patch.object(Store, "open", open_store):
            original(self)

    return [(PartitionDriver, "pump", remember), (Process, "open_partitions", open_partitions)]


def reboot_forgotten() -> Replacements:
    """That the machine went down is not heeded."""

    def note_reboot(self: LogView) -> None:
        return

    return [(LogView, "_note_reboot", note_reboot)]


def reboot_noted_in_memory() -> Replacements:
    """That the machine went down is heeded at the first start after it, and not at the next."""

    def note_reboot(self: LogView) -> None:
        self._short = self._rebooted and not self.synced(self._chain.active.epoch)

    return [(LogView, "_note_reboot", note_reboot)]


def reads_past_commit() -> Replacements:
    """Consumers get what the log holds."""

    def read_committed(self: PartitionDriver, offset: int) -> Sequence[memoryview]:
        return self.store.read_committed(offset, self.store.end_offset)

    return [(PartitionDriver, "read_committed", read_committed)]


def reads_past_cut() -> Replacements:
    """Consumers get what is about to be cut off, where something else has been committed since."""

    def cuts(self: PartitionDriver) -> list[int]:
        return []

    return [(PartitionDriver, "cuts", cuts)]


def producers_forgotten() -> Replacements:
    """A new owner begins without producers."""

    def producers_at(self: LogView, offset: int, *, log_start: int) -> tuple[ProducerTable, int]:
        return ProducerTable(), 0

    return [(LogView, "producers_at", producers_at)]


def tells_before_sync() -> Replacements:
    """Appends count as durable when they are in the page cache."""

    def synced(self: LogView, epoch: int) -> bool:
        return False

    return [(LogView, "synced", synced), *reboot_forgotten()]


def accepts_unsynced() -> Replacements:
    """An end is accepted while the log in front of it is in the page cache."""
    perform = Store.perform

    def skip(self: Store, group: Sequence[Write]) -> list[bool]:
        return [True] if isinstance(group[0], SyncLog) else perform(self, group)

    return [(Store, "perform", skip)]


def limbo_not_heeded() -> Replacements:
    """A damaged log takes part as what is left of it."""
    heal = LogView._heal

    def cut(self: LogView) -> None:
        heal(self)
        if self.repairing:
            self.end_doubt()

    return [(LogView, "_heal", cut)]
