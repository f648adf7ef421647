from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.broker.faulty_disk import FaultyDisk
from tests.broker.replica_logs import chain_of, group, open_log, view_of, write_epoch
from tests.broker.storage.build import read_all

from tidelog_broker.core.replication.chain import DecidedCompaction
from tidelog_broker.core.replication.effects import (
    Append,
    AppendPartialCopy,
    FinishPartialCopy,
    KeepProducers,
    SetAside,
    SyncLog,
    Truncate,
)
from tidelog_broker.core.replication.producers import ProducerTable
from tidelog_broker.replication import log_writer
from tidelog_broker.replication.replica_log import ReplicaLog
from tidelog_broker.storage.io.errors import StorageFailedError
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import unpack_header


def fresh(path: Path) -> tuple[FaultyDisk, ReplicaLog]:
    disk = FaultyDisk()
    return disk, view_of(open_log(disk, path), chain_of())


def syncs(disk: FaultyDisk) -> int:
    return sum(1 for operation, path in disk.log if operation == "sync" and path.suffix == ".seg")


def test_consecutive_appends_are_one_write_and_one_sync(tmp_path: Path) -> None:
    disk, view = fresh(tmp_path)
    first = group(0, 0, b"a", b"b")
    assert log_writer.append(view, [first], synced=True)
    digest = view.store.end_digest
    second = group(2, digest, b"c")
    third = group(3, _digest_after(second), b"d", b"e")
    disk.log.clear()
    assert log_writer.append(view, [second, third], synced=True)
    assert syncs(disk) == 1
    assert [len(one) for one in read_all(view.store)] != []
    assert view.store.end_offset == view.store.synced_offset == 5


def _digest_after(append: Append) -> int:
    return unpack_header(append.batches[-1]).digest


def test_append_without_sync_is_not_synced(tmp_path: Path) -> None:
    disk, view = fresh(tmp_path)
    assert log_writer.append(view, [group(0, 0, b"a")], synced=False)
    disk.log.clear()
    assert log_writer.append(view, [group(1, view.store.end_digest, b"b")], synced=False)
    assert syncs(disk) == 0
    assert view.store.end_offset == 2


def test_discontinuous_append_is_skipped(tmp_path: Path) -> None:
    _, view = fresh(tmp_path)
    assert not log_writer.append(view, [group(1, 5, b"b")], synced=True)
    assert view.store.end_offset == 0
    assert not view.store.epochs


def test_full_disk_writes_nothing_and_is_not_a_failure(tmp_path: Path) -> None:
    disk, view = fresh(tmp_path)
    disk.fill_up()
    assert not log_writer.append(view, [group(0, 0, b"a")], synced=True)
    disk.heal()
    assert log_writer.append(view, [group(0, 0, b"a")], synced=True)
    disk.fill_up()
    large = group(1, view.store.end_digest, b"x" * 500_000)
    assert not log_writer.append(view, [large], synced=True)
    disk.heal()
    assert log_writer.append(view, [large], synced=True)
    assert view.store.end_offset == 2


def test_has_room_only_for_a_continuation_of_the_active_segment(tmp_path: Path) -> None:
    _, view = fresh(tmp_path)
    first = group(0, 0, b"a")
    assert not log_writer.has_room(view, first, 128)
    assert log_writer.append(view, [first], synced=True)
    after = group(1, view.store.end_digest, b"b")
    assert log_writer.has_room(view, after, log_writer.padded_bytes([after]))
    assert not log_writer.has_room(view, group(2, 0, b"c"), 128)
    assert not log_writer.has_room(view, group(1, 0, b"b", epoch=1, start_offset=1), 128)
    assert not log_writer.has_room(view, after, 1 << 30)


def test_tail_is_truncated(tmp_path: Path) -> None:
    _, view = fresh(tmp_path)
    write_epoch(view.store, 0, b"a", b"b", b"c")
    assert log_writer.perform(view, Truncate(0, 1))
    assert view.store.end_offset == 1


def test_unsynced_appends_are_synced_when_the_epoch_ends(tmp_path: Path) -> None:
    disk, view = fresh(tmp_path)
    assert log_writer.perform(view, SyncLog(0)), "an epoch without records has no log"
    assert log_writer.append(view, [group(0, 0, b"a", b"b")], synced=False)
    disk.log.clear()
    assert log_writer.perform(view, SyncLog(0))
    assert syncs(disk) == 1
    assert view.store.synced_offset == 2
    assert log_writer.perform(view, SyncLog(0))
    assert syncs(disk) == 1, "once is enough"


def test_unsynced_rolled_segments_are_synced_when_the_epoch_ends(tmp_path: Path) -> None:
    disk, view = fresh(tmp_path)
    for offset in range(3):
        assert log_writer.append(view, [group(offset, view.store.end_digest, b"x" * 40_000)], synced=False)
    disk.log.clear()
    assert log_writer.perform(view, SyncLog(0))
    newest_gets_its_name = ["write", "sync", "rename", "sync_dir"]
    assert [operation for operation, _ in disk.log] == [*newest_gets_its_name, *["sync"] * 3]


def test_failed_sync_is_a_failure(tmp_path: Path) -> None:
    disk, view = fresh(tmp_path)
    assert log_writer.append(view, [group(0, 0, b"a")], synced=False)
    disk.break_at("sync")
    with pytest.raises(StorageFailedError):
        log_writer.perform(view, SyncLog(0))


def test_sealed_epoch_is_fetched_beside_the_log_and_added_when_complete(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    source = open_log(FaultyDisk(), tmp_path / "source")
    end = write_epoch(source, 0, b"a", b"b", b"c")
    batches = [memoryview(one) for one in read_all(source, max_bytes=1)]
    disk = FaultyDisk()
    (tmp_path / "copy").mkdir()
    view = view_of(open_log(disk, tmp_path / "copy"), chain_of(end))
    first = AppendPartialCopy(0, 0, 0, 2, batches[:2], *end)
    assert log_writer.perform(view, first)
    assert (view.copy_position(0) or (0, 0))[0] == 2
    assert log_writer.perform(view, first), "existing batches are skipped"
    disk.fill_up()
    large = AppendPartialCopy(0, 0, 2, 3, batches[2:], *end)
    log_writer.perform(view, large)
    disk.heal()
    assert log_writer.perform(view, large)
    assert view.store.end_offset == 0, "it does not count yet"
    assert log_writer.perform(view, FinishPartialCopy(0))
    assert read_all(view.store) == read_all(source)
    assert log_writer.perform(view, FinishPartialCopy(0)), "twice is fine"


@pytest.mark.parametrize("whose", [b"a", b"x"])
def test_longer_copy_than_known_is_resumed_only_if_identical(tmp_path: Path, whose: bytes) -> None:
    """As a start finds one: of another version it may end between other batches, or between the same ones."""
    (tmp_path / "source").mkdir()
    (tmp_path / "copy").mkdir()
    source = open_log(FaultyDisk(), tmp_path / "source")
    end = write_epoch(source, 0, b"a", b"b", b"c")
    batches = [memoryview(one) for one in read_all(source, max_bytes=1)]
    copy = open_log(FaultyDisk(), tmp_path / "copy")
    write_epoch(copy, 0, whose)
    view = view_of(copy, chain_of(end))
    assert log_writer.perform(view, AppendPartialCopy(0, 0, 0, 2, batches[:2], *end)) == (whose == b"a")
    if whose == b"x":
        assert view.copy_position(0) is None, "the core looks again, and finds nothing"
        assert log_writer.perform(view, AppendPartialCopy(0, 0, 0, 2, batches[:2], *end))
    assert log_writer.perform(view, AppendPartialCopy(0, 0, 2, 3, batches[2:], *end))
    assert log_writer.perform(view, FinishPartialCopy(0))
    assert read_all(view.store) == read_all(source)


def test_incomplete_copy_is_fetched_again(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "copy").mkdir()
    source = open_log(FaultyDisk(), tmp_path / "source")
    end = write_epoch(source, 0, b"a", b"b", b"c")
    batches = [memoryview(one) for one in read_all(source, max_bytes=1)]
    view = view_of(open_log(FaultyDisk(), tmp_path / "copy"), chain_of(end))
    assert log_writer.perform(view, AppendPartialCopy(0, 0, 0, 2, batches[:2], *end))
    assert log_writer.perform(view, FinishPartialCopy(0))
    assert view.copy_position(0) is None


def test_copy_begins_at_the_log_start(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "copy").mkdir()
    source = open_log(FaultyDisk(), tmp_path / "source")
    first = write_epoch(source, 0, b"a", b"b")
    second = write_epoch(source, 1, b"c", b"d", b"e", b"f")
    batches = [memoryview(one) for one in read_all(source, max_bytes=1)]
    digest = source.reader.digest_at(1, 4)
    copy, chain = open_log(FaultyDisk(), tmp_path / "copy"), chain_of(first, second)
    view = view_of(copy, chain)
    write_epoch(copy, 0, b"a", b"b")
    write_epoch(copy, 1, b"c")
    unknown = AppendPartialCopy(1, 4, 4, 5, batches[4:5], *second, None)
    assert not log_writer.perform(view, unknown), "the stored part ends below the batch, so it cannot be continued"
    assert log_writer.perform(view, replace(unknown, start_digest=digest))
    assert view.copy_position(1) == (5, source.reader.digest_at(1, 5))
    copy.close()
    view = view_of(open_log(FaultyDisk(), tmp_path / "copy"), chain, log_start=4)
    assert (view.copy_position(1) or (0, 0))[0] == 5, "a start goes on with it"
    assert log_writer.perform(view, AppendPartialCopy(1, 4, 5, 6, batches[5:], *second, None))
    assert log_writer.perform(view, FinishPartialCopy(1))
    assert [log.epoch for log in view.store.epochs] == [1]
    assert read_all(view.store) == [bytes(one) for one in batches[4:]]
    assert view.epoch_end(1) == second
    view.store.close()
    view = view_of(open_log(FaultyDisk(), tmp_path / "copy"), chain, log_start=4)
    assert view.store.start_offset == 4
    assert view.store.copies.partial_epochs == (), "retention has deleted what the older epoch holds"


def test_set_aside_ignores_missing_epochs(tmp_path: Path) -> None:
    _, view = fresh(tmp_path)
    write_epoch(view.store, 0, b"a")
    assert log_writer.perform(view, SetAside(5, "not here"))
    assert log_writer.perform(view, SetAside(0, "it differs"))
    assert view.epoch_end(0) is None


def test_complete_older_version_is_not_overwritten(tmp_path: Path) -> None:
    """It has left the log since the newest one was asked for; others may make theirs of it."""
    disk = FaultyDisk()
    store = open_log(disk, tmp_path)
    first = write_epoch(store, 0, b"a", b"b")
    second = write_epoch(store, 1, b"c")
    write_epoch(store, 2, b"d")
    chain = chain_of(first, second)
    newest = DecidedCompaction(1, pb.Compaction(epoch=0, end_digest=77))
    chain.compactions[0] = [newest]
    view = view_of(store, chain)
    store.copies.set_aside(1, "it has rotted")
    batches = group(0, 0, b"x").batches
    assert not log_writer.perform(view, AppendPartialCopy(0, 0, 0, 1, batches, first[0], 77))
    assert view.copy_position(0) == first


def test_producer_state_of_a_later_offset_is_saved_if_the_log_agrees(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "copy").mkdir()
    source, copy = open_log(FaultyDisk(), tmp_path / "source"), open_log(FaultyDisk(), tmp_path / "copy")
    first = write_epoch(source, 0, b"a", b"b")
    second = write_epoch(source, 1, b"c")
    write_epoch(copy, 0, b"a", b"b")
    theirs, mine = view_of(source, chain_of(first)), view_of(copy, chain_of(first))
    source.save_producer_snapshot(1, *second, ProducerTable(known_from=2).snapshot(), committed=3)
    assert theirs.producers.later(2) is None, "an incomplete snapshot is not used"
    state = ProducerTable().snapshot()
    source.save_producer_snapshot(1, *second, state, committed=3)
    assert theirs.producers.later(2) == (1, *second, state)
    keep = KeepProducers(0, 1, *second, state)
    assert not log_writer.perform(mine, keep), "the log has not come so far"
    write_epoch(copy, 1, b"c")
    assert log_writer.perform(mine, keep)
    assert mine.producers.knows_at(0)
    assert log_writer.perform(mine, keep), "twice is fine"
    (tmp_path / "other").mkdir()
    other = open_log(FaultyDisk(), tmp_path / "other")
    write_epoch(other, 0, b"a", b"b")
    write_epoch(other, 1, b"X")
    assert not log_writer.perform(view_of(other, chain_of(first)), keep), "it is of another log"
