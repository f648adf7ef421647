"""Reading complete copies of older epochs that are not contiguous with the log.

An epoch in between is lost on every node (docs/adr/0189), so these copies never become part of the log. Each contiguous
run of them is read as a log of its own. Records are not indexed there: a search scans them.
"""

from __future__ import annotations

from typing import NamedTuple

from tidelog_broker.storage.engine.store import EpochStore
from tidelog_broker.storage.engines.stores import record_indexes
from tidelog_broker.storage.partition.held_epochs import HeldEpochs
from tidelog_broker.storage.partition.matching import MatchingReader
from tidelog_broker.storage.partition.partition_reader import PartitionLogReader
from tidelog_broker.storage.partition.projecting import ProjectingReader


class RunReaders(NamedTuple):
    """The readers of a contiguous run of epochs from `start_offset` to `end_offset`. Thread-safe."""

    start_offset: int
    end_offset: int
    reader: PartitionLogReader
    matching: MatchingReader
    projecting: ProjectingReader


class DetachedEpochs:
    """Finds the readers of complete copies beside one partition's log. Thread-safe."""

    def __init__(self, held: HeldEpochs) -> None:
        self._held = held
        self._known: tuple[tuple[EpochStore, ...], list[RunReaders]] = ((), [])

    @property
    def runs(self) -> list[RunReaders]:
        """The contiguous runs of copies, oldest first."""
        detached = self._held.detached
        known, runs = self._known
        if known is not detached:
            runs = self._runs_of(detached)
            self._known = (detached, runs)
        return runs

    def run_at(self, offset: int) -> RunReaders | None:
        """Return the run that has the record at an offset; None if no copy beside the log has it."""
        if not self._held.detached:
            return None
        return next((run for run in self.runs if run.start_offset <= offset < run.end_offset), None)

    def _runs_of(self, detached: tuple[EpochStore, ...]) -> list[RunReaders]:
        held, runs = self._held, list[list[EpochStore]]()
        for store in detached:
            if runs and runs[-1][-1].end_offset == store.start_offset:
                runs[-1].append(store)
            else:
                runs.append([store])
        found: list[RunReaders] = []
        for stores in runs:
            run = HeldEpochs(
                held.disk,
                held.directory,
                held.name,
                stores,
                segment_bytes=held.segment_bytes,
                layouts=held.layouts,
            )
            reader = PartitionLogReader(run)
            matching, projecting = MatchingReader(run, record_indexes(run)), ProjectingReader(run, reader)
            found.append(RunReaders(run.start_offset, run.end_offset, reader, matching, projecting))
        return found
