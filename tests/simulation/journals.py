"""A node's two journals on its simulated disk, observed: durable entries count, even if the node has not learned it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tidelog_broker.storage.node.fences import FENCES
from tidelog_broker.storage.node.meta_journal import CHAINS
from tidelog_broker.storage.node.typed_journal import TypedJournal
from tidelog_proto import broker_pb2 as pb

if TYPE_CHECKING:
    from tests.simulation.process import Process

META = Path("/meta")
MADE = Path("/made")


E = TypeVar("E", bound=pb.ChainEntry | pb.FenceEntry)


class _Watched(TypedJournal[E]):
    process: Process

    def append(self, entries: Sequence[E]) -> None:
        super().append(entries)
        self.process.world.checks.journalled(self.process, entries)


def open_journals(process: Process) -> tuple[TypedJournal[pb.ChainEntry], TypedJournal[pb.FenceEntry]]:
    """Open both, creating them on a new disk; a file marks their existence, as node.json does.

    Raises:
        DamagedError, StorageFailedError, DiskFullError: as the journals.
    """
    fs = process.sim_disk
    if not fs.exists(MADE):
        TypedJournal.make(fs, META / "journal", CHAINS)
        TypedJournal.make(fs, META / "fences", FENCES)
        fs.open(MADE, create=True).close()
        fs.sync_dir(MADE.parent)
    chains, fences = _Watched.open(fs, META / "journal", CHAINS), _Watched.open(fs, META / "fences", FENCES)
    assert isinstance(chains, _Watched)
    assert isinstance(fences, _Watched)
    chains.process = fences.process = process
    return chains, fences
