"""Epochs in a chain, read as one log."""

from __future__ import annotations

import errno
import threading
import time
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from tests.broker.storage.build import HOME, PARTITION, SEGMENT_BYTES, TOPIC_ID, append, batch, read_all
from tests.broker.storage.logs import new_disk, open_partition, retain
from tests.broker.storage.sim_disk import PowerCutError, SimDisk

from tidelog_broker.storage.directory.existence_markers import HELD_SUFFIX
from tidelog_broker.storage.io.errors import (
    DamagedError,
    DiskFullError,
    LimboError,
    NotHeldError,
    StorageFailedError,
)
from tidelog_broker.storage.io.workers import IoWorkers
from tidelog_broker.storage.partition.partition_dirs import (
    epoch_dirs,
    partition_dir_name,
    sweep_trash,
)
from tidelog_broker.storage.partition.partition_log import PartitionLog
from tidelog_broker.storage.segment.disk import Disk
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

DIRECTORY = HOME / partition_dir_name("events", TOPIC_ID, PARTITION)


def filled(sim: SimDisk, *, epochs: int = 3, groups: int = 8) -> tuple[PartitionLog, list[bytes]]:
    log = open_partition(sim)
    batches: list[bytes] = []
    for epoch in range(epochs):
        log.start_epoch(epoch, log.end_offset)
        for number in range(groups):
            body = bytes([epoch, number]) * 400
            batches += append(log, [batch(body, records=2, timestamp_us=10 * epoch + number)], epoch=epoch)
            log.sync()
    return log, batches


def test_sealed_epoch_with_a_bad_segment_header_after_a_bad_batch_is_limbo_on_a_real_disk(tmp_path: Path) -> None:
    def opened() -> PartitionLog:
        return PartitionLog.open(
            Disk(), tmp_path, topic="events", topic_id=TOPIC_ID, partition=PARTITION, segment_bytes=SEGMENT_BYTES
        )

    log = opened()
    log.start_epoch(0, 0)
    while log.epochs[0].segment_count < 3:
        append(log, [batch(b"%03d" % log.end_offset * 300)])
    end = log.end_offset
    log.start_epoch(1, end)
    append(log, [batch(b"next")], epoch=1)
    log.close()
    first, _, last = sorted(log.epochs[0].directory.glob("*.seg"))
    for path, position in ((first, first.read_bytes().index(b"001001")), (last, 50)):
        raw = bytearray(path.read_bytes())
        raw[position] ^= 1
        path.write_bytes(raw)
    before = {path: path.read_bytes() for path in log.epochs[0].directory.glob("*.seg")}
    for _ in range(2):
        log = opened()
        assert [epoch.state for epoch in log.epochs] == ["limbo", "active"]
        assert log.limbo is not None
        assert first.name in log.limbo
        assert last.name in log.limbo
        for offset in range(1, end + 1):
            with pytest.raises(DamagedError):
                log.reader.read(offset, 1 << 20, limit_offset=end + 1)
        log.close()
    assert {path: path.read_bytes() for path in before} == before


def test_a_partition_without_an_epoch_is_empty_and_has_no_directory() -> None:
    sim = new_disk()
    log = open_partition(sim)
    assert (log.start_offset, log.end_offset, log.size_bytes, log.state) == (0, 0, 0, "sealed")
    assert log.reader.read(0, 100, limit_offset=0).batches == []
    assert log.reader.find_by_time(0) is None
    assert list(log.reader.scan_headers(0)) == []
    assert next(log.reader.load_producer_snapshots(), None) is None
    assert log.epoch_end(0, 7) == (7, 0)
    assert retain(log, 0) == log.delete_before(9) == 0
    with pytest.raises(StorageFailedError, match="no epoch"):
        log.ensure_space(10)
    log.delete()
    log.close()
    assert not sim.exists(DIRECTORY)


def test_reading_across_epochs_and_restarts() -> None:
    sim = new_disk()
    log, batches = filled(sim)
    for view in (log, open_partition(sim.restart())):
        assert read_all(view) == batches
        assert read_all(view, max_bytes=1) == batches
        assert [header.epoch for header in view.reader.scan_headers(0)] == [0] * 8 + [1] * 8 + [2] * 8
        assert next(view.reader.scan_headers(17)).base_offset == 16
        assert view.reader.find_by_time(12) == 16 + 4
        assert view.reader.find_by_time(99) is None
        assert view.epoch_end(0, 0) == (16, view.epochs[0].end_digest)
        assert [one.state for one in view.epochs] == ["sealed", "sealed", "active"]
    log.close()
    assert sim.open_files == 0


def test_out_of_range_gives_the_bounds_of_the_whole_partition() -> None:
    log, _ = filled(new_disk())
    log.delete_before(20)
    for offset in (0, 49):
        with pytest.raises(ProtocolError) as caught:
            log.reader.read(offset, 10, limit_offset=48)
        assert caught.value.code == pb.OFFSET_OUT_OF_RANGE
        assert (caught.value.log_start_offset, caught.value.high_watermark) == (log.start_offset, 48)


def test_retention_crosses_epochs_and_keeps_the_newest_segment() -> None:
    sim = new_disk()
    log, batches = filled(sim)
    freed = retain(log, 9000)
    assert freed > 0
    assert log.size_bytes <= 9000
    assert log.epochs[0].epoch > 0
    assert read_all(log) == batches[log.start_offset // 2 :]
    assert read_all(open_partition(sim.restart())) == batches[log.start_offset // 2 :]
    retain(log, 0)
    assert [one.segment_count for one in log.epochs] == [1]
    assert list(epoch_dirs(sim, DIRECTORY)) == [2]


def test_everything_before_an_empty_epoch_may_be_deleted() -> None:
    """Producer state at the start of an epoch is saved with it: see `LoggedProducers.keep`."""
    log, _ = filled(new_disk())
    end_offset = log.end_offset
    log.start_epoch(3, end_offset)
    kept = log.epochs[2].segments[-1]
    assert log.epochs[-1].segments[-1].end_offset == kept.end_offset == end_offset
    assert log.outdated(below=0, bytes_max=1, committed=end_offset) == end_offset
    assert log.outdated(below=0, bytes_max=1, committed=end_offset - 1) == kept.base_offset
    log.delete_before(end_offset)
    assert [(one.epoch, one.start_offset, one.end_offset) for one in log.epochs] == [(3, end_offset, end_offset)]


def test_concurrently_deleted_segments_are_not_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    log, _ = filled(new_disk())
    bytes_max = 9000
    expected = log.outdated(below=0, bytes_max=bytes_max, committed=log.end_offset)

    def size_then_delete(self: PartitionLog) -> int:
        size_bytes = sum(one.size_bytes for one in self.epochs)
        self.delete_before(expected)
        return size_bytes

    monkeypatch.setattr(PartitionLog, "size_bytes", property(size_then_delete))
    assert log.outdated(below=0, bytes_max=bytes_max, committed=log.end_offset) in {0, expected}


def test_power_loss_during_retention_leaves_no_gaps() -> None:
    for cut in range(60):
        sim = new_disk()
        log, batches = filled(sim)
        sim.cut_at = sim.steps + cut
        with suppress(PowerCutError):
            retain(log, 0)
            break
        again = open_partition(sim.power_cut(Random(cut)))
        assert again.limbo is None
        assert read_all(again) == batches[again.start_offset // 2 :]
    else:
        raise AssertionError("retention never ended")


def steps_of(sim: SimDisk) -> list[tuple[str, str]]:
    """Note what the disk does from now on: the operation, and the end of the path."""
    noted: list[tuple[str, str]] = []

    def note(operation: str, path: Path) -> OSError | None:
        noted.append((operation, path.name))
        return None

    sim.fail = note
    return noted


def test_first_use_waits_only_for_required_syncs() -> None:
    sim = new_disk()
    log = open_partition(sim)
    noted = steps_of(sim)
    log.start_epoch(0, 0)
    append(log, [batch()], epoch=0)
    log.sync()
    assert [step for step in noted if step[0].startswith("sync")] == [
        ("sync", "00000000000000000000.beg"),  # its header, before it has its name
        ("sync_dir", "epoch-00000000.new"),  # that, before the epoch has its own
        ("sync_dir", HOME.name),  # the partition's name: a thread does it beside these two, if there is one
        ("sync_dir", DIRECTORY.name),
        ("sync", "00000000000000000000.seg"),
    ]


def test_acknowledged_records_survive_kill_in_first_use_and_power_loss() -> None:
    """A killed process leaves names that exist and are not durable; the next process must not rely on them."""
    for cut in range(60):
        is_begun = False
        for seed in range(8):
            sim = new_disk()
            sim.cut_at = sim.steps + cut
            with suppress(PowerCutError):
                open_partition(sim).start_epoch(0, 0)
                is_begun = True
            killed = sim.restart()
            log = open_partition(killed)
            assert log.limbo is None
            log.start_epoch(0, 0)
            stored = append(log, [batch(b"acknowledged")], epoch=0)
            log.sync()
            again = open_partition(killed.power_cut(Random(seed)))
            assert (again.limbo, read_all(again)) == (None, stored), f"cut at step {cut}, seed {seed}"
        if is_begun:
            return
    raise AssertionError("the epoch never began")


def test_acknowledged_records_survive_kill_in_rolls_and_power_loss() -> None:
    """The next process finds segments whose names were never synced, appends after them, and syncs no names again."""
    for cut in range(200):
        sim = new_disk()
        log = open_partition(sim)
        log.start_epoch(0, 0)
        sim.cut_at = sim.steps + cut
        is_filled = False
        with suppress(PowerCutError):
            for number in range(6):
                append(log, [batch(bytes([number]) * 1500)], epoch=0)
            log.sync()
            is_filled = True
        killed = sim.restart()
        log = open_partition(killed)
        append(log, [batch(b"acknowledged")], epoch=0)
        log.sync()
        held = read_all(log)
        for seed in range(4):
            again = open_partition(killed.power_cut(Random(seed)))
            assert (again.limbo, read_all(again)) == (None, held), f"cut at step {cut}, seed {seed}"
        if is_filled:
            assert log.epochs[0].segment_count > 2, "no segment has rolled, and the test sees nothing"
            return
    raise AssertionError("the log was never filled")


def test_power_loss_in_first_use_leaves_a_usable_log() -> None:
    for cut in range(60):
        sim = new_disk()
        sim.cut_at = sim.steps + cut
        stored: list[bytes] | None = None
        with suppress(PowerCutError):
            log = open_partition(sim)
            log.start_epoch(0, 0)
            appended = append(log, [batch()], epoch=0)
            log.sync()
            stored = appended
        again = open_partition(sim.power_cut(Random(cut)))
        assert again.limbo is None
        if stored is not None:
            assert read_all(again) == stored
            return
        again.start_epoch(0, 0)
        append(again, [batch()], epoch=0)
    raise AssertionError("the epoch never began")


def test_epoch_is_created_after_its_partition_directory_is_durable() -> None:
    """Another thread makes that durable meanwhile; else a kill would leave an epoch that the next process trusts."""
    sim, go_on, seen = new_disk(), threading.Event(), list[bool]()
    disk = Disk(sim, namer=IoWorkers(1, name="namer"))
    assert disk.namer is not None
    sync_dir = sim.sync_dir

    def held(path: Path) -> None:
        if path == HOME:
            assert go_on.wait(10), "the test never let go"
            seen.append(sim.exists(DIRECTORY / "epoch-00000000"))
        sync_dir(path)

    sim.sync_dir = held  # type: ignore[method-assign] # a lever
    log = PartitionLog.open(
        disk, HOME, topic="events", topic_id=TOPIC_ID, partition=PARTITION, segment_bytes=SEGMENT_BYTES
    )
    beginning = threading.Thread(target=log.start_epoch, args=(0, 0))
    beginning.start()
    until_s = time.monotonic() + 10
    while not sim.exists(DIRECTORY / "epoch-00000000.new") or not sim.steps:
        assert time.monotonic() < until_s, "the epoch waits for the name to be made at all"
        time.sleep(0.001)
    time.sleep(0.02)
    go_on.set()
    beginning.join(10)
    disk.namer.close()
    assert seen == [False]
    assert log.epochs[0].epoch == 0


def test_failed_directory_sync_is_reported_even_on_a_full_disk() -> None:
    sim = new_disk()
    log = open_partition(sim)
    full, broken = OSError(errno.ENOSPC, "no space"), OSError(errno.EIO, "broken")

    def fail(operation: str, path: Path) -> OSError | None:
        if operation == "allocate":
            return full
        return broken if (operation, path) == ("sync_dir", HOME) else None

    sim.fail = fail
    with pytest.raises(StorageFailedError, match="cannot be created"):
        log.start_epoch(0, 0)


def test_power_loss_while_an_epoch_begins_loses_nothing() -> None:
    for cut in range(60):
        sim = new_disk()
        log, batches = filled(sim, epochs=2)
        sim.cut_at = sim.steps + cut
        with suppress(PowerCutError):
            log.start_epoch(5, log.end_offset)
            break
        again = open_partition(sim.power_cut(Random(cut)))
        assert read_all(again) == batches
        again.start_epoch(6, again.end_offset)
        append(again, [batch()], epoch=6)
    else:
        raise AssertionError("the epoch never began")


def test_beginning_the_same_empty_epoch_again_changes_nothing() -> None:
    sim = new_disk()
    log, _ = filled(sim, epochs=1)
    first = log.start_epoch(1, log.end_offset)
    assert log.start_epoch(1, log.end_offset) is first
    with pytest.raises(AssertionError, match="ends at"):
        log.start_epoch(2, 3)
    append(log, [batch()], epoch=1)
    with pytest.raises(AssertionError, match="after"):
        log.start_epoch(1, log.end_offset)


def test_epoch_may_begin_after_a_gap_that_is_not_read_across() -> None:
    sim = new_disk()
    log, _ = filled(sim, epochs=2)
    log.start_epoch(5, 100)
    later = append(log, [batch(b"after", records=3)], epoch=5)
    log.sync()
    for view in (log, open_partition(sim.restart())):
        assert (view.start_offset, view.end_offset, view.state) == (100, 103, "active")
        assert [one.epoch for one in view.epochs] == [5]
        assert view.copies.partial_epochs == (0, 1)
        assert read_all(view) == later
        for offset in (0, 16, 40, 99):
            with pytest.raises(NotHeldError):
                view.reader.read(offset, 100, limit_offset=103)
        with pytest.raises(ProtocolError) as caught:
            view.reader.read(104, 100, limit_offset=103)
        assert caught.value.code == pb.OFFSET_OUT_OF_RANGE
        assert [header.epoch for header in view.reader.scan_headers(0)] == [5]
        assert view.reader.digest_at(1, 32) is None
        assert view.reader.digest_at(5, 100) == 0
    log.close()


def test_a_partition_may_begin_with_any_epoch() -> None:
    log = open_partition(new_disk())
    log.start_epoch(7, 500)
    assert (log.start_offset, log.end_offset, log.epoch_end(7, 0)) == (500, 500, (500, 0))
    with pytest.raises(NotHeldError):
        log.reader.read(3, 100, limit_offset=500)


def test_offsets_deleted_by_retention_are_out_of_range() -> None:
    log, _ = filled(new_disk())
    log.start_epoch(9, 60)
    append(log, [batch(b"x" * 1500) for _ in range(2)], epoch=9)
    append(log, [batch(b"x" * 1500) for _ in range(2)], epoch=9)
    assert retain(log, 0) > 0
    assert log.start_offset == 62
    with pytest.raises(ProtocolError) as caught:
        log.reader.read(60, 10, limit_offset=64)
    assert caught.value.code == pb.OFFSET_OUT_OF_RANGE


def test_power_loss_while_an_epoch_begins_after_a_gap_leaves_no_gap() -> None:
    for cut in range(100):
        sim = new_disk()
        log, batches = filled(sim, epochs=3)
        sim.cut_at = sim.steps + cut
        with suppress(PowerCutError):
            log.start_epoch(5, 1000)
            break
        again = open_partition(sim.power_cut(Random(cut)))
        assert again.limbo is None
        if again.active is not None and again.active.epoch < 5:
            assert read_all(again) == batches[again.start_offset // 2 :]
            assert again.end_offset == 48
        again.start_epoch(5, 1000)
        append(again, [batch()], epoch=5)
        assert (again.start_offset, again.end_offset) == (1000, 1001)
        assert again.copies.partial_epochs == (0, 1, 2)
    else:
        raise AssertionError("the epoch never began")


def test_disk_failure_while_an_epoch_begins_after_a_gap_is_reported() -> None:
    sim = new_disk()
    log, _ = filled(sim, epochs=2)
    sim.fail = lambda operation, path: OSError(errno.EIO, "broken") if operation == "rename" else None
    with pytest.raises(StorageFailedError, match="broken"):
        log.start_epoch(5, 1000)


def test_a_full_disk_when_an_epoch_begins_can_be_tried_again() -> None:
    sim = new_disk()
    log, batches = filled(sim, epochs=1)
    sim.free_bytes = 10
    with pytest.raises(DiskFullError):
        log.start_epoch(1, log.end_offset)
    sim.free_bytes = None
    log.start_epoch(1, log.end_offset)
    batches += append(log, [batch()], epoch=1)
    assert read_all(log) == batches


def test_damaged_sealed_epoch_is_limbo_and_readable_up_to_the_damage() -> None:
    sim = new_disk()
    log, batches = filled(sim)
    log.close()
    newest = sim.files(DIRECTORY / "epoch-00000001", ".seg")[-1]
    sim.node(newest).current[200] ^= 1
    sim.unlink(newest.with_suffix(".idx"))
    log = open_partition(sim.restart())
    assert log.state == "limbo"
    assert log.limbo is not None
    assert "damaged" in log.limbo
    with pytest.raises(LimboError):
        log.ensure_space(10)
    with pytest.raises(LimboError):
        log.start_epoch(7, log.end_offset)
    assert retain(log, 0) == 0
    damage = log.epochs[1].damage
    assert damage is not None
    offset, found = 0, list[bytes]()
    while offset < damage.offset:
        result = log.reader.read(offset, 10_000, limit_offset=log.end_offset)
        found += [bytes(one) for one in result.batches]
        offset = result.next_offset
    assert found == batches[: damage.offset // 2]
    with pytest.raises(DamagedError):
        log.reader.read(damage.offset, 10_000, limit_offset=log.end_offset)


def test_epoch_without_its_first_header_is_limbo_and_unreadable() -> None:
    sim = new_disk()
    log, _ = filled(sim, epochs=2)
    log.close()
    sim.node(sim.files(DIRECTORY / "epoch-00000001", ".seg")[0]).current[0] ^= 1
    log = open_partition(sim)
    assert (log.state, log.end_offset) == ("limbo", 0)
    with pytest.raises(LimboError):
        log.start_epoch(3, 0)
    assert sim.open_files == 0


def test_delete_removes_everything_and_remains_are_swept() -> None:
    for cut in range(200):
        sim = new_disk()
        log, _ = filled(sim, epochs=1, groups=4)
        sim.cut_at = sim.steps + cut
        with suppress(PowerCutError):
            log.delete()
            assert sim.list_dir(HOME) == []
            break
        again = sim.power_cut(Random(cut))
        sweep_trash(again, HOME)
        assert again.list_dir(HOME) in ([], [DIRECTORY.name], [DIRECTORY.name, DIRECTORY.name + HELD_SUFFIX])
        if again.list_dir(HOME):
            assert open_partition(again).end_offset == 8
    else:
        raise AssertionError("the deletion never ended")


def test_disk_failure_is_reported() -> None:
    sim = new_disk()
    log, _ = filled(sim, epochs=1)
    sim.fail = lambda operation, path: OSError(errno.EIO, "broken") if operation in {"unlink", "rename"} else None
    with pytest.raises(StorageFailedError, match="broken"):
        retain(log, 0)
    with pytest.raises(StorageFailedError, match="broken"):
        log.delete()


def test_snapshots_are_kept_beside_the_log() -> None:
    sim = new_disk()
    log, _ = filled(sim, epochs=1)
    log.save_producer_snapshot(0, 4, 5, b"state", committed=1 << 30)
    snapshot = next(open_partition(sim.restart()).reader.load_producer_snapshots(), None)
    assert snapshot is not None
    assert snapshot == (0, 4, 5, b"state")
