"""Producer state rebuilt from batch headers, and snapshots that are kept before the headers are deleted."""

from __future__ import annotations

from pathlib import Path

from tests.broker.faulty_disk import FaultyDisk
from tests.broker.replica_logs import chain_of, decided, open_log, reopened, view_of

from tidelog_broker.core.replication.producers import ProducerTable, known_from
from tidelog_broker.storage.partition.partition_log import PartitionLog
from tidelog_proto.batch.header import BatchHeader


def of_one(store: PartitionLog) -> bytes:
    """A snapshot that knows one producer."""
    return of_one_at(next(store.reader.scan_headers(0)))


def of_one_at(header: BatchHeader) -> bytes:
    """A snapshot that knows one producer, of a batch."""
    table = ProducerTable()
    table.apply(header._replace(producer_id=7, base_sequence=0))
    return table.snapshot()


def test_producer_state_is_known_only_without_a_gap(tmp_path: Path) -> None:
    disk = FaultyDisk()
    reopened(disk, tmp_path)
    chain = chain_of(decided(disk, tmp_path))
    store = open_log(disk, tmp_path)
    view = view_of(store, chain)
    assert view.producers.at(0, log_start=0)[0] is not None
    table, timestamp_us = view.producers.at(6, log_start=0)
    assert table is not None
    assert timestamp_us == 7
    assert view.producers.at(7, log_start=0) == (None, 0), "the log does not reach there"
    store.delete_before(3)
    assert view.producers.at(6, log_start=0) == (None, 0), "its front is missing"
    assert view.producers.at(6, log_start=3)[0] is not None, "its front is gone for good"


def test_snapshot_of_an_epochs_start_replaces_missing_history(tmp_path: Path) -> None:
    disk = FaultyDisk()
    reopened(disk, tmp_path)
    chain = chain_of(decided(disk, tmp_path))
    store = open_log(disk, tmp_path)
    store.delete_before(3)
    view = view_of(store, chain)
    store.save_producer_snapshot(1, 5, 12345, ProducerTable().snapshot(), committed=9)
    assert view.producers.at(6, log_start=0) == (None, 0), "another log's digest"
    store.save_producer_snapshot(1, 3, 0, ProducerTable().snapshot(), committed=9)
    assert view.producers.at(6, log_start=0)[0] is not None


def test_snapshot_ahead_of_the_log_is_skipped(tmp_path: Path) -> None:
    disk = FaultyDisk()
    reopened(disk, tmp_path)
    chain = chain_of(decided(disk, tmp_path))
    store = open_log(disk, tmp_path)
    view = view_of(store, chain)
    header = next(store.reader.scan_headers(4))
    store.save_producer_snapshot(header.epoch, header.end_offset, header.digest, of_one(store), committed=6)
    store.save_producer_snapshot(1, 6, 12345, ProducerTable().snapshot(), committed=6)
    store.delete_before(3)
    table, _ = view.producers.at(6, log_start=0)
    assert table is not None
    assert len(table) == 1


def test_producer_state_is_saved_before_a_deletion(tmp_path: Path) -> None:
    disk = FaultyDisk()
    reopened(disk, tmp_path)
    chain = chain_of(decided(disk, tmp_path))
    store = open_log(disk, tmp_path)
    view = view_of(store, chain)
    first = next(store.reader.scan_headers(0))
    store.save_producer_snapshot(first.epoch, first.end_offset, first.digest, of_one(store), committed=6)
    snapshot = view.producers.keep(3, committed=5, log_start=0)
    assert snapshot is not None
    assert 3 < snapshot.offset <= 5, "it must be known by a batch that stays, and is committed"
    store.save_producer_snapshot(*snapshot, committed=5)
    assert view.producers.keep(3, committed=5, log_start=0) is None, "there is one"
    store.delete_before(3)
    table, _ = view.producers.at(6, log_start=3)
    assert table is not None
    assert len(table) == 1, "producers with deleted records only are removed"


def test_producer_state_is_saved_before_epochs_leave_the_log(tmp_path: Path) -> None:
    disk = FaultyDisk()
    reopened(disk, tmp_path)
    store = open_log(disk, tmp_path)
    end = store.epoch_end(0, 0)
    third = (9, 77)
    view = view_of(store, chain_of(end, store.epoch_end(1, 3), third))
    first = next(store.reader.scan_headers(0))
    store.save_producer_snapshot(first.epoch, first.end_offset, first.digest, of_one(store), committed=6)
    store.start_epoch(3, 9)
    assert (store.start_offset, store.end_offset) == (9, 9), "epoch 2 is missing, and the older ones wait for it"
    [kept] = [one for one in store.reader.load_producer_snapshots() if one.offset == 6]
    assert kept[:3] == (2, 6, 0), "it counts where the missing epoch begins"
    assert len(ProducerTable.restore(kept.payload)) == 1
    assert view.producers.at(9, log_start=0) == (None, 0)


def test_log_after_a_gap_knows_the_last_append_time(tmp_path: Path) -> None:
    disk = FaultyDisk()
    reopened(disk, tmp_path)
    chain = chain_of(decided(disk, tmp_path))
    store = open_log(disk, tmp_path)
    view = view_of(store, chain)
    table, timestamp_us = view.producers.at(6, log_start=0)
    assert table is not None
    assert timestamp_us > 0
    store.save_producer_snapshot(2, 9, 0, table.snapshot(), committed=9)
    store.start_epoch(2, 9)
    assert store.start_offset == 9
    table, known_us = view.producers.at(9, log_start=0)
    assert table is not None
    assert len(table) == 0, "nothing here is numbered: only the time is known"
    assert known_us == timestamp_us, "the time of producer state never goes backwards"


def test_late_copy_knows_producers_only_from_its_start(tmp_path: Path) -> None:
    """Other nodes may have the state before a batch was sent; the state since then is kept in any case."""
    disk = FaultyDisk()
    reopened(disk, tmp_path)
    chain = chain_of(decided(disk, tmp_path))
    store = open_log(disk, tmp_path)
    store.delete_before(3)
    view = view_of(store, chain, log_start=3)
    table, timestamp_us = view.producers.at(6, log_start=3)
    assert table is not None
    assert (table.known_from, timestamp_us) == (3, 7)
    assert view.epoch_without_producers() == 0, "the one in front of it is asked for"
    partly = view.producers.keep(5, committed=6, log_start=3)
    assert partly is not None
    assert known_from(partly.payload) == 3
    store.save_producer_snapshot(*partly, committed=6)
    assert view.producers.keep(5, committed=6, log_start=3) is None, "an equivalent snapshot exists"
    assert view.producers.later(3) is None, "the incomplete state is not used"

    first = next(store.reader.scan_headers(3))
    store.save_producer_snapshot(first.epoch, first.end_offset, first.digest, of_one_at(first), committed=6)
    table, _ = view.producers.at(6, log_start=3)
    assert table is not None
    assert (table.known_from, len(table)) == (0, 1), "an older one that knows all goes before a newer one"
    kept = view.producers.keep(5, committed=6, log_start=3)
    assert kept is not None
    assert known_from(kept.payload) == 0, "the deletion keeps it although another snapshot exists"
    assert view_of(store, chain, log_start=3).epoch_without_producers() is None


def test_empty_producer_state_is_saved(tmp_path: Path) -> None:
    disk = FaultyDisk()
    reopened(disk, tmp_path)
    store = open_log(disk, tmp_path)
    view = view_of(store, chain_of(store.epoch_end(0, 0)), log_start=3)
    snapshot = view.producers.keep(3, committed=6, log_start=0)
    assert snapshot is not None
    store.save_producer_snapshot(*snapshot, committed=6)
    store.delete_before(3)
    table, _ = view.producers.at(6, log_start=3)
    assert table is not None
    assert (table.known_from, len(table)) == (0, 0), "a copy that began late would not know that"


def test_snapshot_at_a_decided_end_is_valid_for_any_continuation(tmp_path: Path) -> None:
    """An owner keeps so what others have told; its log may lack the epoch, or the epoch may have no records."""
    disk = FaultyDisk()
    reopened(disk, tmp_path)
    store = open_log(disk, tmp_path)
    second = store.epoch_end(1, 3)
    chain = chain_of(store.epoch_end(0, 0), second, (second[0], 0), (9, 77))
    store.delete_before(3)
    view = view_of(store, chain, log_start=3)
    told = of_one_at(next(store.reader.scan_headers(3)))
    store.save_producer_snapshot(2, 6, 0, told, committed=6)
    table, _ = view.producers.at(6, log_start=3)
    assert table is not None
    assert (table.known_from, len(table)) == (0, 1), "epoch 2 is empty and has no directory"
    store.save_producer_snapshot(3, 9, 77, told, committed=9)
    assert view.producers.at(9, log_start=3) == (None, 0), "the log does not reach there"
    store.start_epoch(4, 9)
    table, _ = view.producers.at(9, log_start=3)
    assert table is not None
    assert (table.known_from, len(table)) == (0, 1), "it begins there: epoch 3 is missing"
    store.save_producer_snapshot(3, 9, 78, told, committed=9)
    assert view.producers.at(9, log_start=3) == (None, 0), "that is not how the epoch ended"
