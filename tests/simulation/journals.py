"""A node's two journals, and the workers that append to them: one group at a time, merged over partitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.broker.storage.sim_disk import SimDisk

from tidelog_broker.storage.fences import FenceJournal
from tidelog_broker.storage.meta_journal import MetaJournal

if TYPE_CHECKING:
    from tests.simulation.process import Process

META = Path("/meta")


class NodeJournals(NamedTuple):
    """What a node has decided (its chains) and promised (its fences)."""

    chains: MetaJournal
    fences: FenceJournal

    @classmethod
    def open(cls, disk: SimDisk) -> NodeJournals:
        """Open both, making them on a new disk.

        Raises:
            DamagedError, StorageFailedError, DiskFullError: as the journals.
        """
        if not disk.exists(META):
            disk.make_dir(META)
            disk.sync_dir(META.parent)
        return cls(MetaJournal.open(disk, META / "journal"), FenceJournal.open(disk, META / "fences"))


class JournalWorker:
    """Appends what waits in one synced group, then tells everybody; the next group gathers meanwhile."""

    def __init__(self, process: Process, append: Callable[[Sequence[Any]], None]) -> None:
        self._process = process
        self._append = append
        self._waiting: list[tuple[Sequence[Any], Callable[[], None]]] = []
        self._busy = False

    def submit(self, entries: Sequence[Any], done: Callable[[], None]) -> None:
        """Append entries and call `done` when they are durable."""
        self._waiting.append((entries, done))
        self._begin()

    def _begin(self) -> None:
        if not self._busy and self._waiting:
            self._busy = True
            self._process.after(self._process.write_us(), self._write)

    def _write(self) -> None:
        group, self._waiting = self._waiting, []
        written = self._process.on_disk(lambda: self._write_group(group))
        if written:
            self._process.after(self._process.tell_us(), lambda: self._tell(group))

    def _write_group(self, group: Sequence[tuple[Sequence[Any], Callable[[], None]]]) -> bool:
        entries = [entry for entries, _ in group for entry in entries]
        self._append(entries)
        self._process.world.checks.journalled(self._process, entries)
        return True

    def _tell(self, group: Sequence[tuple[Sequence[Any], Callable[[], None]]]) -> None:
        self._busy = False
        for _, done in group:
            done()
        self._begin()
