"""Mutations of retention: log start, and producer state. See `mutants`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidelog_broker.base.steady_clock import SteadyClock
from tidelog_broker.core.replication.missing_fronts import MissingFronts
from tidelog_broker.core.replication.ownership import Ownership
from tidelog_broker.core.replication.producers import ProducerTable
from tidelog_broker.partition.reader import PartitionReader
from tidelog_broker.partition.retention import Retention
from tidelog_broker.replication import logged_producers, replicas
from tidelog_broker.replication.logged_producers import LoggedProducers
from tidelog_broker.storage.partition import partition_log
from tidelog_broker.storage.partition.append_times import AppendTimes, SegmentTimes
from tidelog_broker.storage.partition.partition_log import PartitionLog
from tidelog_proto import broker_pb2 as pb

Replacements = Sequence[tuple[object, str, object]]


# ------------------------------------------------------------------------------------------ where the log begins


def deletes_what_is_not_committed() -> Replacements:
    """Retention deletes whatever is past the bound."""
    outdated = PartitionLog.outdated

    def everything(self: PartitionLog, *, below: int, bytes_max: int, committed: int) -> int:
        del committed
        return outdated(self, below=below, bytes_max=bytes_max, committed=1 << 60)

    return [(PartitionLog, "outdated", everything)]


def deletes_within_the_bound() -> Replacements:
    """Retention deletes whatever is committed."""
    outdated = PartitionLog.outdated

    def everything(self: PartitionLog, *, below: int, bytes_max: int, committed: int) -> int:
        return outdated(self, below=below, bytes_max=min(bytes_max, 1), committed=committed)

    return [(PartitionLog, "outdated", everything)]


def deletes_what_a_replica_lacks() -> Replacements:
    """Retention deletes committed records without waiting for replicas or for the end of the epoch."""

    def removable(self: Retention) -> int:
        return self._outdated(self._state.replica.state.deleted_below, 0, self._state.high_watermark)

    return [(Retention, "removable", removable)]


def by_wall_clock() -> Replacements:
    """The age of records is measured by the wall clock, regardless of its jumps."""

    def before(self: SteadyClock, age_us: int, newest_at_start_us: int) -> int:
        del newest_at_start_us
        return self._wall_ns() // 1000 - age_us

    return [(SteadyClock, "stamped_before_us", before)]


def stamped_by_wall_clock() -> Replacements:
    """Records are stamped by the wall clock, whatever it does."""
    return [(SteadyClock, "now_us", lambda self: self._wall_ns() // 1000)]


def oldest_record_decides() -> Replacements:
    """A segment goes when its first record is too old."""
    of = AppendTimes._of

    def first(self: AppendTimes, *args: Any) -> SegmentTimes:
        times = of(self, *args)
        return times._replace(last_us=times.first_us)

    return [(AppendTimes, "_of", first)]


def hold_ignored() -> Replacements:
    """Retention does not look whether the topic is held."""
    return [(Retention, "_is_held", False)]


def hold_seen_when_it_begins() -> Replacements:
    """A running deletion continues when the topic is held."""
    delete_below = Retention.delete_files_below

    def all_of_it(self: Retention, offset: int) -> None:
        state, topic = self._state, self._state.topic
        state.topic = pb.TopicRecord()
        state.topic.CopyFrom(topic)
        state.topic.config.hold = False
        try:
            delete_below(self, offset)
        finally:
            state.topic = topic

    return [(Retention, "delete_files_below", all_of_it)]


def deleted_records_shown() -> Replacements:
    """Readers see all records in the log, including deleted ones."""
    return [(PartitionReader, "is_deleted", lambda self, offset: offset < self._log.start_offset)]


def log_start_forgotten() -> Replacements:
    """A restarted node does not know its deletions."""
    return [(replicas, "load_log_start", lambda *_: 0)]


def lost_fronts_not_noticed() -> Replacements:
    """A copy that begins after records that were not deleted counts as whole."""
    return [(MissingFronts, "lacks", lambda self, epoch: False)]


def lost_copies_are_not_left_behind() -> Replacements:
    """Retention waits for a node that has acknowledged records and lost them."""
    lacks_deleted_records = Ownership.lacks_deleted_records

    def once(self: Ownership, node_id: str, from_offset: int, now_ms: int) -> bool:
        follower = next((each for each in self.followers if each.node_id == node_id), None)
        held_offset = follower.held_offset if follower is not None else 0
        return lacks_deleted_records(self, node_id, max(from_offset, held_offset), now_ms)

    return [(Ownership, "lacks_deleted_records", once)]


# ------------------------------------------------------------------------------------------ producers


def snapshot_unchecked() -> Replacements:
    """A producer snapshot is valid for any log, also if its log was truncated since."""

    def at_most(self: LoggedProducers, offset: int) -> Any:
        store = self.store
        at = min(offset, store.end_offset)
        headers = list(store.reader.scan_headers(store.start_offset))
        last = [header for header in headers if header.end_offset <= at][-1:]
        for snapshot in store.reader.load_producer_snapshots():
            behind = [header for header in headers if header.base_offset >= snapshot.offset]
            table = ProducerTable.restore(snapshot.payload)
            return logged_producers.ProducersAt(
                table, last[0] if last else None, min(snapshot.offset, at), iter(behind)
            )
        return None

    return [(LoggedProducers, "_snapshot_at_most", at_most), (partition_log, "drop_snapshots_behind", lambda *_: None)]


def producers_deleted_with_the_log() -> Replacements:
    """Retention keeps no snapshot."""
    return [(LoggedProducers, "keep", lambda *_, **__: None)]


def late_copies_taken_for_whole_ones() -> Replacements:
    """A log that begins after a deletion that preceded it is assumed to have all producer state."""
    scan = LoggedProducers._scan

    def all_of_them(self: LoggedProducers, offset: int, log_start: int) -> Any:
        table, last = scan(self, offset, log_start)
        if table is not None:
            table.known_from = 0
        return table, last

    return [(LoggedProducers, "_scan", all_of_them)]


def producers_of_cut_batches_kept() -> Replacements:
    """A node that owns the partition again continues with its old producer state, regardless of truncated records."""
    open_ = Ownership._open
    known: dict[int, ProducerTable] = {}

    def opened(self: Ownership, table: ProducerTable, *rest: Any, **named: Any) -> None:
        open_(self, known.get(id(self), table), *rest, **named)
        owner = self._state.owner
        assert owner is not None
        known[id(self)] = owner.producers

    return [(Ownership, "_open", opened)]
