from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.broker.faulty_disk import FaultyDisk
from tests.broker.replica_logs import (
    ALONE,
    THREE,
    chain_of,
    damage,
    decided,
    group,
    open_log,
    reopened,
    view_of,
    write_epoch,
)
from tests.broker.storage.build import read_all

from tidelog_broker.core.replication.chain import DecidedCompaction
from tidelog_broker.core.replication.effects import ReadLog
from tidelog_broker.core.replication.ports import Position
from tidelog_broker.replication import log_writer
from tidelog_broker.replication.replica_log import ReplicaLog
from tidelog_broker.storage.io.errors import DamagedError
from tidelog_proto import broker_pb2 as pb


def test_view_describes_the_log(tmp_path: Path) -> None:
    disk = FaultyDisk()
    reopened(disk, tmp_path)
    view = view_of(open_log(disk, tmp_path), chain_of(decided(disk, tmp_path)))
    assert view.newest_epoch() == 1
    assert view.limbo() is None
    end = view.epoch_end(1)
    assert end is not None
    assert (end[0], view.digest_at(1, 6)) == (6, end[1])
    assert (view.epoch_end(2), view.digest_at(1, 99), view.digest_at(2, 3)) == (None, None, None)


@pytest.mark.parametrize(("placement", "expected"), [(ALONE, 3), (THREE, 0)])
def test_late_start_counts_as_retention_only_for_a_single_copy(
    tmp_path: Path, placement: tuple[str, ...], expected: int
) -> None:
    disk = FaultyDisk()
    reopened(disk, tmp_path)
    chain = chain_of(decided(disk, tmp_path), placement=placement)
    store = open_log(disk, tmp_path)
    store.delete_before(3)
    assert view_of(store, chain).log_start() == expected
    assert view_of(store, chain, log_start=3).log_start() == 3


def test_start_of_a_single_copy_counts_as_retention_up_to_what_was_deleted(tmp_path: Path) -> None:
    disk = FaultyDisk()
    reopened(disk, tmp_path)
    chain = chain_of(decided(disk, tmp_path), placement=ALONE)
    store = open_log(disk, tmp_path)
    store.delete_before(3)
    assert view_of(store, chain, log_start=0).log_start() == 0, "records are missing that were not deleted"
    deleted = [
        ReplicaLog.open(store, chain, node_id="a", log_start=0, deleted_below=offset).log_start()
        for offset in (2, 3, 5)
    ]
    assert deleted == [2, 3, 3]


def test_records_before_an_unreadable_epoch_of_a_single_copy_do_not_count_as_deleted(tmp_path: Path) -> None:
    disk = FaultyDisk()
    reopened(disk, tmp_path)
    end = decided(disk, tmp_path)
    store = open_log(disk, tmp_path)
    store.close()
    damage(store, 0, b"TLSG")
    store = open_log(disk, tmp_path)
    assert (store.unreadable_epoch, store.start_offset) == (0, 3)
    assert view_of(store, chain_of(end, placement=ALONE)).log_start() == 0


def test_unreadable_sealed_epoch_is_set_aside_if_others_store_it(tmp_path: Path) -> None:
    disk = FaultyDisk()
    reopened(disk, tmp_path)
    end = decided(disk, tmp_path)
    store = open_log(disk, tmp_path)
    store.close()
    damage(store, 0, b"TLSG")
    view = view_of(open_log(disk, tmp_path), chain_of(end))
    assert view.limbo() is None
    assert view.epoch_end(0) is None
    assert view.epoch_end(1) is not None
    assert not view.repairing


def test_damaged_single_copy_is_unchanged(tmp_path: Path) -> None:
    disk = FaultyDisk()
    reopened(disk, tmp_path, broken=(1, b"four"))
    view = view_of(open_log(disk, tmp_path), chain_of((3, 0), placement=ALONE))
    assert view.limbo() is not None
    assert "damaged" in (view.limbo() or "")
    assert view.epoch_end(1) is not None


def test_damaged_open_epoch_is_truncated_and_in_doubt_if_others_store_it(tmp_path: Path) -> None:
    disk = FaultyDisk()
    reopened(disk, tmp_path)
    end = decided(disk, tmp_path)
    store = open_log(disk, tmp_path)
    store.close()
    damage(store, 1, b"four")
    view = view_of(open_log(disk, tmp_path), chain_of(end))
    assert view.limbo() is None
    assert view.repairing
    assert view.doubt == "damaged"
    assert (view.epoch_end(1) or (0, 0))[0] == 4
    view.end_doubt()
    assert not view.repairing


def test_on_a_full_disk_the_damaged_open_epoch_is_limbo_until_a_start_with_space(tmp_path: Path) -> None:
    disk = FaultyDisk()
    reopened(disk, tmp_path)
    chain = chain_of(decided(disk, tmp_path))
    store = open_log(disk, tmp_path)
    store.close()
    damage(store, 1, b"four")
    disk.fill_up()
    view = view_of(open_log(disk, tmp_path), chain)
    assert view.limbo() is not None
    assert not view.repairing
    view.store.close()
    disk.heal()
    view = view_of(open_log(disk, tmp_path), chain)
    assert (view.limbo(), view.doubt, (view.epoch_end(1) or (0, 0))[0]) == (None, "damaged", 4)


def test_reboot_on_a_full_disk_is_recorded_by_a_later_start(tmp_path: Path) -> None:
    disk = FaultyDisk()
    reopened(disk, tmp_path)
    chain = chain_of(decided(disk, tmp_path), flush=pb.NEVER)
    disk.fill_up()
    view = ReplicaLog.open(open_log(disk, tmp_path), chain, node_id="a", log_start=0, rebooted=True)
    assert (view.doubt, view.is_reboot_noted) == ("short", False)
    view.store.close()
    disk.heal()
    view = ReplicaLog.open(open_log(disk, tmp_path), chain, node_id="a", log_start=0, rebooted=True)
    assert (view.doubt, view.is_reboot_noted) == ("short", True)
    view.store.close()
    assert view_of(open_log(disk, tmp_path), chain).doubt == "short"


@pytest.mark.parametrize("lost", ["epoch-00000001", ""])
def test_lost_directory_is_recreated_in_doubt_if_others_store_it(tmp_path: Path, lost: str) -> None:
    disk = FaultyDisk()
    reopened(disk, tmp_path)
    chain = chain_of(decided(disk, tmp_path))
    store = open_log(disk, tmp_path)
    store.close()
    shutil.rmtree(store.directory / lost)
    for _ in range(2):
        view = view_of(open_log(disk, tmp_path), chain)
        assert (view.limbo(), view.doubt, view.epoch_end(1)) == (None, "damaged", (3, 0))
        assert (view.epoch_end(0) is not None) == bool(lost)
        view.store.close()
    view = view_of(open_log(disk, tmp_path), chain)
    view.end_doubt()
    view.store.close()
    assert view_of(open_log(disk, tmp_path), chain).doubt == ""


@pytest.mark.parametrize("how", ["alone", "disk full", "newer than the chain"])
def test_lost_directory_of_a_single_copy_is_limbo(tmp_path: Path, how: str) -> None:
    disk = FaultyDisk()
    reopened(disk, tmp_path)
    end = decided(disk, tmp_path)
    store = open_log(disk, tmp_path)
    store.close()
    shutil.rmtree(store.directory / "epoch-00000001")
    chain = chain_of(end, placement=ALONE if how == "alone" else THREE)
    if how == "newer than the chain":
        chain = chain_of()
    store = open_log(disk, tmp_path)
    if how == "disk full":
        disk.fill_up()
    view = view_of(store, chain)
    assert "lacks epoch 1" in (view.limbo() or "")


@pytest.mark.parametrize("placement", [("b", "c"), THREE])
def test_lost_directory_of_an_earlier_epoch_is_fetched(tmp_path: Path, placement: tuple[str, ...]) -> None:
    """Decided, or of a partition whose open epoch is others': nothing that this node says depends on it."""
    disk = FaultyDisk()
    reopened(disk, tmp_path)
    store = open_log(disk, tmp_path)
    ends = [store.epoch_end(0, 0), store.epoch_end(1, 3)]
    store.close()
    shutil.rmtree(store.directory / "epoch-00000001" if placement == THREE else store.directory)
    view = view_of(open_log(disk, tmp_path), chain_of(*ends, placement=placement))
    assert (view.limbo(), view.doubt, view.epoch_end(2)) == (None, "", None)


@pytest.mark.parametrize(
    ("flush", "rebooted", "doubt"),
    [(pb.ALWAYS, True, ""), (pb.NEVER, True, "short"), (pb.INTERVAL, True, "short"), (pb.NEVER, False, "")],
)
def test_reboot_puts_an_unsynced_epoch_in_doubt(tmp_path: Path, flush: pb.Flush, rebooted: bool, doubt: str) -> None:
    disk = FaultyDisk()
    store = open_log(disk, tmp_path)
    write_epoch(store, 0, b"one")
    store.close()
    view = ReplicaLog.open(open_log(disk, tmp_path), chain_of(flush=flush), node_id="a", log_start=0, rebooted=rebooted)
    assert view.doubt == doubt


def test_doubt_persists_over_a_second_start(tmp_path: Path) -> None:
    disk, chain = FaultyDisk(), chain_of(flush=pb.NEVER)
    store = open_log(disk, tmp_path)
    write_epoch(store, 0, b"one")
    store.close()
    ReplicaLog.open(open_log(disk, tmp_path), chain, node_id="a", log_start=0, rebooted=True).store.close()
    view = ReplicaLog.open(open_log(disk, tmp_path), chain, node_id="a", log_start=0)
    assert view.doubt == "short"
    view.end_doubt()
    view.store.close()
    assert ReplicaLog.open(open_log(disk, tmp_path), chain, node_id="a", log_start=0).doubt == ""


def test_other_nodes_are_read_whole_batches_between_two_positions(tmp_path: Path) -> None:
    disk = FaultyDisk()
    reopened(disk, tmp_path)
    view = view_of(open_log(disk, tmp_path), chain_of(decided(disk, tmp_path)))
    found = view.read_epoch(ReadLog("b", 1, 4, 6, 1 << 20))
    assert (found.base, found.end) == (
        Position(4, view.digest_at(1, 4) or 0),
        Position(6, view.digest_at(1, 6) or 0),
    )
    assert b"".join(found.batches).count(b"fi") == 1
    assert len(view.read_epoch(ReadLog("b", 1, 3, 5, 1 << 20)).batches) > 0
    for absent in (ReadLog("b", 2, 6, 7, 100), ReadLog("b", 1, 6, 7, 100), ReadLog("b", 1, 0, 3, 100)):
        assert not view.read_epoch(absent).batches


def test_rotten_batches_of_the_open_epoch_are_not_sent(tmp_path: Path) -> None:
    disk = FaultyDisk()
    view = view_of(open_log(disk, tmp_path), chain_of())
    for number, body in enumerate((b"one", b"two", b"three")):
        log_writer.append(view, [group(number, view.store.end_digest, body)], synced=True)
    damage(view.store, 0, b"two")
    found = view.read_epoch(ReadLog("b", 0, 0, 3, 1 << 20))
    assert (len(found.batches), found.end) == (1, Position(1, view.digest_at(0, 1) or 0))
    with pytest.raises(DamagedError, match="damaged at offset 1"):
        view.read_epoch(ReadLog("b", 0, 1, 3, 1 << 20))
    assert len(view.read_epoch(ReadLog("b", 0, 2, 3, 1 << 20)).batches) == 1


def test_only_the_newest_epoch_is_synced_ahead(tmp_path: Path) -> None:
    disk = FaultyDisk()
    view = view_of(open_log(disk, tmp_path), chain_of())
    view.sync_ahead(0, 0)
    assert log_writer.append(view, [group(0, 0, b"a")], synced=False)
    disk.log.clear()
    view.sync_ahead(1, 0)
    assert disk.log == []
    view.sync_ahead(0, 0)
    assert [operation for operation, _ in disk.log] == ["sync"]


@pytest.mark.parametrize("beside", ["newest", "part of it", "older"])
def test_start_resumes_another_version_beside_the_log(tmp_path: Path, beside: str) -> None:
    disk = FaultyDisk()
    reopened(disk, tmp_path)
    first = decided(disk, tmp_path)
    ends = {version: (first[0], digest) for version, digest in [("older", 0), ("newest", 0)]}
    made: dict[str, list[bytes]] = {}
    for version in ends:
        (tmp_path / version).mkdir()
        other = open_log(FaultyDisk(), tmp_path / version)
        ends[version] = write_epoch(other, 0, b"zero", b"one", version.encode())
        made[version] = [bytes(one) for one in read_all(other, max_bytes=1)]
    chain = chain_of(first)
    chain.compactions[0] = [
        DecidedCompaction(at, pb.Compaction(epoch=0, end_digest=ends[version][1]))
        for at, version in [(1, "older"), (2, "newest")]
    ]
    store = open_log(disk, tmp_path)
    version, count = ("newest", 2) if beside == "part of it" else (beside, 3)
    store.copies.begin_copy(0, 0, *ends[version])
    store.copies.append_copy(0, made[version][:count])
    store.close()
    view = view_of(open_log(disk, tmp_path), chain)
    assert view.epoch_end(0) == (ends["newest"] if beside == "newest" else first)
    assert view.copy_position(0) is not None
    assert ((view.position_beside(0) or (0, 0))[0]) == (2 if beside == "part of it" else 0)


def test_a_compacted_epoch_that_cannot_be_opened_is_set_aside_under_its_own_name(tmp_path: Path) -> None:
    store = open_log(FaultyDisk(), tmp_path)
    ends = [write_epoch(store, epoch, b"a", b"b") for epoch in range(3)]
    write_epoch(store, 3, b"c")
    store.close()
    compacted = (store.directory / "epoch-00000001").rename(store.directory / "epoch-00000001.c00000002")
    (segment,) = compacted.glob("*.seg")
    segment.write_bytes(b"what" + segment.read_bytes()[4:])
    view = view_of(open_log(FaultyDisk(), tmp_path), chain_of(*ends))
    assert (view.limbo(), [held.epoch for held in view.store.epochs]) == (None, [2, 3])
    assert compacted.with_name("epoch-00000001.c00000002.bad-1").exists()
    assert view.copy_position(0) is not None, "the older one waits"


def test_full_disk_postpones_copies_that_cannot_be_resumed(tmp_path: Path) -> None:
    disk = FaultyDisk()
    reopened(disk, tmp_path)
    first = decided(disk, tmp_path)
    store = open_log(disk, tmp_path)
    store.copies.set_aside(0, "it has rotted")
    (store.directory / "epoch-00000000.fill").mkdir()
    store.close()
    disk.fill_up()
    view = view_of(open_log(disk, tmp_path), chain_of(first))
    assert (view.limbo(), [held.epoch for held in view.store.epochs]) == (None, [1])
