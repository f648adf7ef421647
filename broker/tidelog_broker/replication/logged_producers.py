"""What the headers of a partition's log say of its producers, and the snapshots that say what they do not any more.

Retention and compaction take headers away, and a log that leaves in front of a hole does: before that, what they say is
kept in a snapshot beside the log (`storage.partition.snapshots`). A snapshot counts by what the log holds around it.

A log that begins behind offset 0 tells of all producers only with such a snapshot. A copy that began late, as retention
had deleted what lies in front, never had those headers, and one that was fetched compacted never had the epoch's: what
they tell is known from an offset on (`ProducerTable.known_from`), and others are asked for the rest.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tidelog_broker.core.replication.chain import EpochChain
from tidelog_broker.core.replication.effects import LaterSnapshot
from tidelog_broker.core.replication.producers import ProducerTable, known_from
from tidelog_broker.storage.io.errors import StorageFailedError
from tidelog_broker.storage.partition.partition_log import PartitionLog
from tidelog_broker.storage.partition.snapshots import ProducerSnapshot
from tidelog_proto.batch.header import BatchHeader, Flags
from tidelog_proto.errors import ProtocolError

log = logging.getLogger(__name__)


class _Known(NamedTuple):
    """The producers' state at an offset, the last header in front of that if it is here, and the headers behind it."""

    table: ProducerTable
    last: BatchHeader | None
    offset: int
    headers: Iterator[BatchHeader]


class LoggedProducers:
    """See the module. All methods are for the partition's I/O worker, or a reader where they keep nothing.

    Args:
        store: the log.
        chain: the partition's chain, which grows while this is used.
        log_start: returns where retention has cut.
    """

    def __init__(self, store: PartitionLog, chain: EpochChain, log_start: Callable[[], int]) -> None:
        self.store = store
        self._chain = chain
        self._log_start = log_start
        store.before_leaving = self._keep_what_leaves

    def at(self, offset: int, *, log_start: int) -> tuple[ProducerTable | None, int]:
        """Rebuild what the log says of producers at `offset`, and the append timestamp there.

        Returns:
            None for the table when the log here does not reach there without a hole, from a snapshot or from
            `log_start`, below which retention has deleted. One that says less than all has a `known_from`.
        """
        if offset == 0:
            return ProducerTable(), 0
        try:
            table, _ = self._scan(offset, log_start)
            # A log that begins behind a hole has no batch in front of it to tell the time: the snapshot does.
            return table, max(self._last_append_us(offset), table.last_append_timestamp_us) if table is not None else 0
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

    def keep(self, below: int, *, committed: int, log_start: int) -> ProducerSnapshot | None:
        """Return a snapshot to be saved before retention deletes what lies below an offset: it knows what that says.

        Snapshots count by what the log holds in front of them, so the newest one would be lost with that. Runs on the
        I/O worker.

        One of no producers at all is kept, too: without it nobody could tell later that there were none.

        Returns:
            None when one counts that lies behind and knows as much, or the log here cannot tell.

        Raises:
            StorageError: the disk failed, or something is damaged.
        """
        store = self.store
        offset = min(committed, store.end_offset)
        beginning = self._beginning(below)
        behind = [
            known_from(one.payload)
            for one in store.reader.load_producer_snapshots()
            if below <= one.offset <= offset and (one.offset > below or one[:3] == beginning) and self.counts(one)
        ]
        if 0 in behind:
            return None
        table, last = self._scan(offset, log_start)
        if table is None or table.known_from >= min([*behind, offset]):
            return None
        if beginning is not None and beginning[1] == offset:
            return ProducerSnapshot(
                *beginning, table.snapshot()
            )  # all goes that is committed: what follows tells of it
        if last is None:
            return None
        return ProducerSnapshot(last.epoch, last.end_offset, last.digest, table.snapshot())

    def _beginning(self, below: int) -> tuple[int, int, int] | None:
        """Return epoch, offset and digest where the log begins once what lies below an offset has gone."""
        segments = [segment for held in self.store.epochs for segment in held.segments]
        first = next((one for one in segments if one.end_offset > below), segments[-1]) if segments else None
        return (first.header.epoch, first.base_offset, first.header.start_digest) if first is not None else None

    def _keep_what_leaves(self) -> None:
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
        except ProtocolError as error:  # no space, or damaged: another node may know
            log.warning("%s: what was sent before the hole may be forgotten: %s", store.directory.name, error)

    def at_end(self, epoch: int, *, committed: int, log_start: int) -> ProducerSnapshot | None:
        """Return a snapshot to be saved before a sealed epoch is compacted: it knows what its batches say of producers.

        Runs on the I/O worker.

        Returns:
            None when one counts that lies there or behind and knows as much; and where the log here does not tell, as
            it came compacted from another node: before this one owns the partition it asks others, see `at`.

        Raises:
            StorageError: the disk failed, or something is damaged.
        """
        decision = self._chain.decision(epoch)
        end_offset = decision.end_offset
        behind = [
            known_from(one.payload)
            for one in self.store.reader.load_producer_snapshots()
            if end_offset <= one.offset <= committed and self.counts(one)
        ]
        if 0 in behind:
            return None
        table, _ = self._scan(end_offset, log_start)
        if table is None or table.known_from >= min([*behind, end_offset]):
            return None
        return ProducerSnapshot(epoch, end_offset, decision.end_digest, table.snapshot())

    def knows_at(self, epoch: int) -> bool:
        """Whether a snapshot counts that lies at a decided epoch's end or behind it, and knows all.

        Raises:
            StorageError: the disk failed, or something is damaged.
        """
        return self.later(self._chain.decision(epoch).end_offset) is not None

    def counts(self, snapshot: ProducerSnapshot) -> bool:
        """Whether a snapshot is of this log, see `_behind`.

        Raises:
            StorageError: the disk failed, or something is damaged.
        """
        return self._behind(snapshot) is not None

    def later(self, offset: int) -> LaterSnapshot | None:
        """Return the earliest snapshot that counts, knows all and lies at an offset or behind it; None without one.

        Raises:
            StorageError: the disk failed, or something is damaged.
        """
        snapshots = [one for one in self.store.reader.load_producer_snapshots() if one.offset >= offset]
        whole = (one for one in reversed(snapshots) if self.counts(one) and not known_from(one.payload))
        found = next(whole, None)
        return LaterSnapshot(*found) if found is not None else None

    def unknown_epoch(self) -> int | None:
        """The newest epoch of which neither headers nor a snapshot say what producers sent into it, or in front of it.

        Compaction left it so, or the log here begins with it, or behind it, and never had what lies in front.

        Raises:
            StorageError: the disk failed, or something is damaged.
        """
        chain, store = self._chain, self.store
        for epoch, compactions in sorted(chain.compactions.items(), reverse=True):
            held = store.log_of(epoch)
            if held is not None and held.end_digest in {each.terms.end_digest for each in compactions}:
                return None if self.knows_at(epoch) else epoch
        if not store.epochs or not 0 < store.start_offset <= self._log_start():
            return None  # it has a front, or waits for one
        epoch = min(store.epochs[0].epoch, chain.active.epoch - 1)
        return epoch if epoch >= chain.genesis.epoch and self.later(store.start_offset) is None else None

    def _scan(self, offset: int, log_start: int) -> tuple[ProducerTable | None, BatchHeader | None]:
        """Return the table, and the header of the last batch below `offset` if one was seen."""
        store = self.store
        known = self._snapshot_at_most(offset)
        if known is None:
            if store.start_offset > log_start or not store.epochs:
                return None, None
            begin = store.start_offset
            known = _Known(ProducerTable(known_from=begin), None, begin, store.reader.scan_headers(begin))
        table, last, at, headers = known
        for header in headers:
            if header.end_offset > offset:
                break
            if header.flags & Flags.DERIVED:  # it says nothing of producers, and has a time that is rounded up
                last_append_us = table.last_append_timestamp_us
                table = ProducerTable(known_from=header.end_offset)  # what was known may be out of date
                table.last_append_timestamp_us = last_append_us
            else:
                table.apply(header)
            last, at = header, header.end_offset
        return (table, last) if at == offset else (None, None)

    def _snapshot_at_most(self, offset: int) -> _Known | None:
        """Return the newest of the snapshots that count and know most, and what is behind it; see `_behind`."""
        best: _Known | None = None
        for snapshot in self.store.reader.load_producer_snapshots():
            if snapshot.offset <= offset and (behind := self._behind(snapshot)) is not None:
                table = ProducerTable.restore(snapshot.payload)
                if best is None or table.known_from < best.table.known_from:
                    best = _Known(table, behind[0], snapshot.offset, behind[1])
                if not table.known_from:
                    break
        return best

    def _behind(self, snapshot: ProducerSnapshot) -> tuple[BatchHeader | None, Iterator[BatchHeader]] | None:
        """Return the last header that a snapshot covers and those behind it, if it counts.

        A snapshot can be ahead of a log whose unsynced tail was lost, and the log can have grown past its offset with
        other records since: it counts only if the batch that ends there carries its epoch and digest. One that was
        made at an epoch's start, from what a peer told, has the digest 0, and the epoch begins there. Where retention
        has deleted that batch, the segment behind it tells the same digest. At the end that was decided for an epoch it
        counts however compaction has changed that epoch since, and whether the log reaches there or begins there.
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
        """Whether a snapshot lies at the decided end of an epoch, and the log here holds what follows."""
        chain, store = self._chain, self.store
        if not chain.genesis.epoch <= snapshot.epoch < chain.active.epoch:
            return False
        decision, held = chain.decision(snapshot.epoch), store.log_of(snapshot.epoch)
        if (decision.end_offset, decision.end_digest) != (snapshot.offset, snapshot.digest):
            return False
        if held is not None:
            return held.end_offset == decision.end_offset and held.damage is None
        return bool(store.epochs) and store.start_offset <= snapshot.offset <= store.end_offset
