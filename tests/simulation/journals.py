"""A node's two journals on its simulated disk, watched: what is durable counts, whether or not the node is told."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tidelog_broker.storage.node.fences import FenceJournal
from tidelog_broker.storage.node.meta_journal import MetaJournal
from tidelog_proto import broker_pb2 as pb

if TYPE_CHECKING:
    from tests.simulation.process import Process

META = Path("/meta")
MADE = Path("/made")


class _Chains(MetaJournal):
    process: Process

    def append(self, entries: Sequence[pb.ChainEntry]) -> None:
        super().append(entries)
        self.process.world.checks.journalled(self.process, entries)


class _Fences(FenceJournal):
    process: Process

    def append(self, entries: Sequence[pb.FenceEntry]) -> None:
        super().append(entries)
        self.process.world.checks.journalled(self.process, entries)


def open_journals(process: Process) -> tuple[MetaJournal, FenceJournal]:
    """Open both, making them on a new disk; a file says that they are there, as node.json does.

    Raises:
        DamagedError, StorageFailedError, DiskFullError: as the journals.
    """
    fs = process.sim_disk
    if not fs.exists(MADE):
        MetaJournal.make(fs, META / "journal")
        FenceJournal.make(fs, META / "fences")
        fs.open(MADE, create=True).close()
        fs.sync_dir(MADE.parent)
    chains, fences = _Chains.open(fs, META / "journal"), _Fences.open(fs, META / "fences")
    assert isinstance(chains, _Chains)
    assert isinstance(fences, _Fences)
    chains.process = fences.process = process
    return chains, fences
