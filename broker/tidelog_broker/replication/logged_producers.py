"""The producers' state in the headers of a partition's log, and in snapshots beside it.

Retention and compaction remove headers, and so does the removal of epochs before a gap: the state is saved before that
in a snapshot beside the log (`storage.partition.snapshots`). A snapshot is validated by the log around it.

A log that begins after offset 0 has the state of all producers only with such a snapshot. A copy that began late, after
retention, never had the earlier headers, and a copy that was fetched compacted never had the epoch's: their state is
known from an offset on (`ProducerTable.known_from`), and other nodes are asked for the rest.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tidelog_broker.core.replication.chain import EpochChain
from tidelog_broker.core.replication.effects import LaterSnapshot
from tidelog_broker.core.replication.lost_offsets import is_filling
from tidelog_broker.core.replication.producers import ProducerTable, known_from
from tidelog_broker.storage.io.errors import StorageFailedError
from tidelog_broker.storage.partition.partition_log import PartitionLog
from tidelog_broker.storage.partition.snapshots import ProducerSnapshot
from tidelog_proto.batch.header import BatchHeader, Flags
from tidelog_proto.errors import ProtocolError

log = logging.getLogger(__name__)


class ProducersAt(NamedTuple):
    """The producers' state at an offset, the header before it if the log has that, and the headers after it."""

    table: ProducerTable
    last: BatchHeader | None
    offset: int
    headers: Iterator[BatchHeader]


class LoggedProducers:
    """Rebuilds the producers' state from one partition's log and the snapshots beside it.

    For the partition's I/O worker; methods that save nothing may also run on a reader thread.

    Args:
        chain: the partition's chain, which grows while this is used.
        log_start: returns the offset below which retention has deleted records.
    """

    def __init__(self, store: PartitionLog, chain: EpochChain, log_start: Callable[[], int]) -> None:
        self.store = store
        self._chain = chain
        self._log_start = log_start
        store.before_leaving = self._keep_what_leaves

    def at(self, offset: int, *, log_start: int) -> tuple[ProducerTable | None, int]:
        """Rebuild the producers' state at `offset`, and the append timestamp there.

        Returns:
            None for the table if the log does not reach `offset` without a gap, from a snapshot or from
            `log_start`, below which retention has deleted; also if it cannot be read, which is logged. An incomplete
            table has a `known_from`. The timestamp is 0 if it is unknown.
        """
        if offset == 0:
            return ProducerTable(), 0
        try:
            table, _ = self._scan(offset, log_start)
            # A log that begins after a gap has no earlier batch with an append time: the snapshot has that time.
            return table, max(self._last_append_us(offset), table.last_append_timestamp_us) if table is not None else 0
        except ProtocolError as error:
            log.warning(
                "%s: the producer state cannot be read from the log; it is fetched from other replicas, if "
                "any, when it is needed: %s",
                self.store.directory.name,
                error,
            )
            return None, 0

    def _last_append_us(self, offset: int) -> int:
        """Return the append time of the last batch before an offset that has one; for a derived batch, slightly later.

        0 if no batch of the log has one.
        """
        while offset > self.store.start_offset:
            last = next(self.store.reader.scan_headers(offset - 1), None)
            if last is None or last.append_timestamp_us:
                return last.append_timestamp_us if last is not None else 0
            offset = last.base_offset  # A batch emptied by compaction.
        return 0

    def keep(self, below: int, *, committed: int, log_start: int) -> ProducerSnapshot | None:
        """Return a snapshot to be saved before retention deletes the records below an offset.

        A snapshot is validated by the batch before it, so the newest one would be lost with that batch. Runs on the I/O
        worker.

        An empty state is saved, too: otherwise a later start could not know that there were no producers.

        Returns:
            None if a valid later snapshot has the same information, or the state is unknown.

        Raises:
            StorageError: the disk failed, or something is damaged.
        """
        store = self.store
        offset = min(committed, store.end_offset)
        beginning = store.beginning_above(below)
        headers_after = [
            known_from(one.payload)
            for one in store.reader.load_producer_snapshots()
            if below <= one.offset <= offset and (one.offset > below or one[:3] == beginning) and self.counts(one)
        ]
        if 0 in headers_after:
            return None
        table, last = self._scan(offset, log_start)
        if table is None or table.known_from >= min([*headers_after, offset]):
            return None
        if beginning is not None and beginning[1] == offset:
            return ProducerSnapshot(
                *beginning, table.snapshot()
            )  # All committed records are deleted: the next segment's header validates the snapshot.
        if last is None:
            return None
        return ProducerSnapshot(last.epoch, last.end_offset, last.digest, table.snapshot())

    def _keep_what_leaves(self) -> None:
        """Save the producers' state before all epochs leave the log, because the next epoch begins after a gap.

        These epochs return to the log when the missing ones have been fetched, unless retention deletes them before:
        then only the snapshot has the state. It is valid where the next epoch begins. Runs on the I/O worker.

        Raises:
            StorageFailedError: the disk failed.
        """
        store, newest = self.store, self.store.active
        assert newest is not None
        later = range(newest.epoch + 1, self._chain.active.epoch)
        following = next((one for one in later if self._chain.decision(one).end_offset > newest.end_offset), None)
        if following is None or self._chain.descriptor(following).start_offset != newest.end_offset:
            return
        try:
            table, _ = self._scan(newest.end_offset, self._log_start())
            if table is not None and table.known_from < newest.end_offset:
                store.save_producer_snapshot(
                    following, newest.end_offset, 0, table.snapshot(), committed=newest.end_offset
                )
        except StorageFailedError:
            raise
        except ProtocolError as error:  # The disk is full or the log damaged: another node may have the state.
            log.warning(
                "%s: the producer state cannot be saved before a gap in the log; unless another node has the state, "
                "batches that producers send again may be stored twice: %s",
                store.directory.name,
                error,
            )

    def at_end(self, epoch: int, *, committed: int, log_start: int) -> ProducerSnapshot | None:
        """Return a snapshot to be saved before a sealed epoch is compacted.

        Runs on the I/O worker.

        Returns:
            None if a valid snapshot there or later has the same information; or if the log lacks the state, because the
            epoch was fetched in compacted form: this node asks others for it before it owns the partition, see `at`.

        Raises:
            StorageError: the disk failed, or something is damaged.
        """
        decision = self._chain.decision(epoch)
        end_offset = decision.end_offset
        headers_after = [
            known_from(one.payload)
            for one in self.store.reader.load_producer_snapshots()
            if end_offset <= one.offset <= committed and self.counts(one)
        ]
        if 0 in headers_after:
            return None
        table, _ = self._scan(end_offset, log_start)
        if table is None or table.known_from >= min([*headers_after, end_offset]):
            return None
        return ProducerSnapshot(epoch, end_offset, decision.end_digest, table.snapshot())

    def knows_at(self, epoch: int) -> bool:
        """Return whether a valid, complete snapshot exists at or after a decided epoch's end.

        Raises:
            StorageError: the disk failed, or something is damaged.
        """
        return self.later(self._chain.decision(epoch).end_offset) is not None

    def counts(self, snapshot: ProducerSnapshot) -> bool:
        """Return whether a snapshot is valid for this log, see `_headers_after`.

        Raises:
            StorageError: the disk failed, or something is damaged.
        """
        return self._headers_after(snapshot) is not None

    def later(self, offset: int) -> LaterSnapshot | None:
        """Return the earliest valid, complete snapshot at or after an offset; None if no snapshot is.

        Raises:
            StorageError: the disk failed, or something is damaged.
        """
        snapshots = [one for one in self.store.reader.load_producer_snapshots() if one.offset >= offset]
        whole = (one for one in reversed(snapshots) if self.counts(one) and not known_from(one.payload))
        found = next(whole, None)
        return LaterSnapshot(*found) if found is not None else None

    def unknown_epoch(self) -> int | None:
        """Return the newest epoch at whose end neither headers nor a snapshot contain the complete producers' state.

        That epoch was compacted, or the log begins with it or after it and never had earlier records. None if there is
        no such epoch.

        Raises:
            StorageError: the disk failed, or something is damaged.
        """
        chain, store = self._chain, self.store
        for epoch, compactions in sorted(chain.compactions.items(), reverse=True):
            held = store.log_of(epoch)
            if held is not None and held.end_digest in {each.terms.end_digest for each in compactions}:
                return None if self.knows_at(epoch) else epoch
        if not store.epochs or not 0 < store.start_offset <= self._log_start():
            return None  # The log has the beginning of the epoch, or fetches it.
        epoch = min(store.epochs[0].epoch, chain.active.epoch - 1)
        return epoch if epoch >= chain.genesis.epoch and self.later(store.start_offset) is None else None

    def _scan(self, offset: int, log_start: int) -> tuple[ProducerTable | None, BatchHeader | None]:
        """Return the producers' state at `offset`, and the header of the last scanned batch below it.

        Both are None if the log, with its snapshots, does not have that state.
        """
        store = self.store
        known = self._snapshot_at_most(offset)
        if known is None:
            if offset <= log_start and store.end_offset < offset:
                return ProducerTable(known_from=offset), None  # Everything before is deleted.
            if store.start_offset > log_start or not store.epochs:
                return None, None
            begin = store.start_offset
            known = ProducersAt(ProducerTable(known_from=begin), None, begin, store.reader.scan_headers(begin))
        table, last, at, headers = known
        for header in headers:
            if header.end_offset > offset:
                break
            # A batch that compaction has left has no producers, and its time is rounded up.
            if header.flags & Flags.DERIVED and not is_filling(header):
                last_append_us = table.last_append_timestamp_us
                table = ProducerTable(known_from=header.end_offset)  # The state known so far may be outdated.
                table.last_append_timestamp_us = last_append_us
            else:
                table.apply(header)
            last, at = header, header.end_offset
        if at == offset:
            return table, last
        is_rest_gone = offset <= log_start and store.end_offset < offset
        return (ProducerTable(known_from=offset), None) if is_rest_gone else (None, None)

    def _snapshot_at_most(self, offset: int) -> ProducersAt | None:
        """Return the newest of the valid snapshots with the most complete state, and the headers after it.

        Only snapshots at or before `offset` count; None if no such snapshot is valid.
        """
        best: ProducersAt | None = None
        for snapshot in self.store.reader.load_producer_snapshots():
            if snapshot.offset <= offset and (headers_after := self._headers_after(snapshot)) is not None:
                table = ProducerTable.restore(snapshot.payload)
                if best is None or table.known_from < best.table.known_from:
                    best = ProducersAt(table, headers_after[0], snapshot.offset, headers_after[1])
                if not table.known_from:
                    break
        return best

    def _headers_after(self, snapshot: ProducerSnapshot) -> tuple[BatchHeader | None, Iterator[BatchHeader]] | None:
        """Check a snapshot against the log; return the headers of the batches after it, or None if it is invalid.

        The first result is the header of the last batch that the snapshot covers, None if that batch is not read. A
        snapshot may describe records that a crash has removed from the log and that others have replaced. It is valid
        in one of three cases:

        - It is at the decided end of its epoch, even if the epoch was compacted since.
        - The log of its epoch begins at its offset with its digest: the epoch starts there (digest 0), or retention has
          deleted the batches before it.
        - The batch that ends at its offset has its epoch and digest.
        """
        store, held = self.store, self.store.log_of(snapshot.epoch)
        if self._is_decided_end(snapshot):
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

    def _is_decided_end(self, snapshot: ProducerSnapshot) -> bool:
        """Return whether a snapshot is at the decided end of an epoch, and the log holds what follows."""
        chain, store = self._chain, self.store
        if not chain.genesis.epoch <= snapshot.epoch < chain.active.epoch:
            return False
        decision, held = chain.decision(snapshot.epoch), store.log_of(snapshot.epoch)
        if (decision.end_offset, decision.end_digest) != (snapshot.offset, snapshot.digest):
            return False
        if held is not None:
            return held.end_offset == decision.end_offset and held.damage is None
        return bool(store.epochs) and store.start_offset <= snapshot.offset <= store.end_offset
