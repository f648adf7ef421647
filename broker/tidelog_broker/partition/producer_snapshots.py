"""Periodic snapshots of a partition's producer state beside the log, which shorten the scan at a start."""

from __future__ import annotations

import logging
from typing import Final

from tidelog_broker.base.offload import Offload
from tidelog_broker.core.replication.epoch_writer import OffsetAssigner
from tidelog_broker.partition.state import PartitionState
from tidelog_broker.replication.replica_log import ReplicaLog
from tidelog_broker.storage.partition.snapshots import ProducerSnapshot

log = logging.getLogger(__name__)

PRODUCER_SNAPSHOT_BATCHES: Final = 4096
"""Bound on the batches after the newest snapshot, which a takeover has to scan."""


class SnapshotWriter:
    """Writes the snapshots of one partition. All methods are for the event loop's thread."""

    def __init__(self, state: PartitionState, view: ReplicaLog, workers: Offload, io_key: int) -> None:
        self._state = state
        self._view = view
        self._workers = workers
        self._io_key = io_key
        self.batches = 0
        """Batches appended since the newest snapshot; the partition counts them."""
        self.due_batches = PRODUCER_SNAPSHOT_BATCHES
        """The number of batches from which on `write_due` has to be called."""
        self._first: ProducerSnapshot | None = None
        """Producer state that this node's log does not contain, to be written as soon as the log exists."""

    def begin_epoch(self, owner: OffsetAssigner) -> None:
        """Handle the beginning of an epoch that this node owns.

        Producer state that the log does not contain, because another node reported it, is written at once: the epoch
        may end before a batch is appended, and the other node may have failed by then. It is stored as the state at the
        end of the previous epoch.
        """
        if owner.is_logged or owner.next_offset == 0:
            return
        ended = self._state.replica.state.decision(owner.epoch - 1)
        snapshot = ProducerSnapshot(ended.epoch, ended.end_offset, ended.end_digest, owner.producers.snapshot())
        if self._state.log.epochs:
            self._write(snapshot)
        else:
            self._first = snapshot
            self.due_batches = 0

    def write_due(self) -> None:
        """Write the snapshots that are due, after an append."""
        if self._first is not None:
            snapshot, self._first = self._first, None
            self.due_batches = PRODUCER_SNAPSHOT_BATCHES
            self._write(snapshot)
        if self.batches >= PRODUCER_SNAPSHOT_BATCHES:
            self.save()

    def save(self) -> None:
        """Write a snapshot of the current log in the background, unless nothing was appended since the last one."""
        if not self.batches:
            return
        self.batches = 0
        replica = self._state.replica
        owner = replica.state.owner
        if owner is not None:
            self._write(ProducerSnapshot(owner.epoch, owner.next_offset, owner.digest, owner.producers.snapshot()))
            return
        tail, log_start = replica.state.tail, replica.state.log_start
        epoch, (offset, digest) = tail.epoch, tail.durable
        committed, store = self._state.high_watermark, self._state.log

        def rebuild_and_save() -> None:
            table, _ = self._view.producers.at(offset, log_start=log_start)
            if table is not None:
                store.save_producer_snapshot(epoch, offset, digest, table.snapshot(), committed=committed)

        self._workers.start(self._io_key, rebuild_and_save, lambda _, error: self._written(error))

    def _write(self, snapshot: ProducerSnapshot) -> None:
        store, committed = self._state.log, self._state.high_watermark
        self._workers.start(
            self._io_key,
            lambda: store.save_producer_snapshot(*snapshot, committed=committed),
            lambda _, error: self._written(error),
        )

    def _written(self, error: BaseException | None) -> None:
        if error is not None:
            # The log has the same state, unless another node has reported it: then nodes are asked for it again.
            log.warning(
                "%s: cannot write the producer snapshot, so the next start of this node has to read more of the log: "
                "%s",
                self._state.name,
                error,
            )
