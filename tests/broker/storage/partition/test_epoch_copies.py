"""Copies of epochs beside the log, and into it: each operation, with the power cut at each of its steps."""

from __future__ import annotations

import errno
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from tests.broker.storage.build import PARTITION, TOPIC_ID, append, batch, read_all
from tests.broker.storage.decided import DIRECTORY, copy, decided, fill, rot, stamped, whole
from tests.broker.storage.logs import new_disk, open_partition
from tests.broker.storage.sim_disk import PowerCutError, SimDisk

from tidelog_broker.storage.io.errors import DivergedError, LimboError, NotHeldError, StorageFailedError
from tidelog_broker.storage.io.workers import IoWorkers
from tidelog_broker.storage.partition.partition_log import PartitionLog
from tidelog_broker.storage.segment.disk import Disk
from tidelog_proto.batch.header import unpack_header

HISTORY = decided(Random(5), epochs=5, batches_min=6, batches_max=9)


def with_hole(sim: SimDisk) -> PartitionLog:
    """Epochs 0 and half of 1, then 4."""
    log = open_partition(sim)
    log.start_epoch(0, 0)
    copy(log, HISTORY[0].batches)
    log.start_epoch(1, HISTORY[1].start_offset)
    copy(log, HISTORY[1].batches[:3])
    log.start_epoch(4, HISTORY[4].start_offset)
    copy(log, HISTORY[4].batches)
    log.sync()
    return log


ALL = [raw for one in HISTORY for raw in one.batches]


def test_copying_newest_first_extends_the_readable_log_downwards() -> None:
    sim = new_disk()
    log = with_hole(sim)
    assert list(log.copies.partial_epochs) == [0, 1]
    assert log.copies.copy_position(0) is None
    for epoch in (3, 2, 1, 0):
        assert fill(log, HISTORY[epoch])
        assert log.start_offset == HISTORY[epoch].start_offset
        assert read_all(open_partition(sim.power_cut(Random(epoch)))) == read_all(log)
    assert read_all(log) == ALL
    assert list(log.copies.partial_epochs) == []


def test_complete_copy_is_added_when_the_next_epoch_begins() -> None:
    log = open_partition(new_disk())
    log.start_epoch(1, HISTORY[1].start_offset)
    copy(log, HISTORY[1].batches[:3])
    assert not fill(log, HISTORY[3]), "the log ends before it"
    log.start_epoch(4, HISTORY[4].start_offset)
    copy(log, HISTORY[4].batches)
    assert [one.epoch for one in log.epochs] == [3, 4]
    assert list(log.copies.partial_epochs) == [1]
    assert read_all(log) == HISTORY[3].batches + HISTORY[4].batches


def test_copying_oldest_first_is_added_with_the_last_copy() -> None:
    log = with_hole(new_disk())
    for epoch in (0, 1, 2):
        assert not fill(log, HISTORY[epoch])
        assert log.start_offset == HISTORY[4].start_offset
        with pytest.raises(NotHeldError):
            log.reader.read(0, 100, limit_offset=log.end_offset)
    assert fill(log, HISTORY[3])
    assert read_all(log) == ALL


def test_prefix_and_complete_copy_are_not_fetched_again() -> None:
    log = with_hole(new_disk())
    one = HISTORY[1]
    position = log.copies.begin_copy(1, one.start_offset, one.end_offset, one.end_digest)
    assert position.offset == unpack_header(one.batches[2]).end_offset
    zero = HISTORY[0]
    assert log.copies.begin_copy(0, 0, zero.end_offset, zero.end_digest) == (zero.end_offset, zero.end_digest)
    assert log.copies.copy_position(0) == (zero.end_offset, zero.end_digest)


def test_partial_copy_restarted_with_another_end_uses_it() -> None:
    log = with_hole(new_disk())
    one = HISTORY[1]
    cut = unpack_header(one.batches[1])
    assert log.copies.begin_copy(1, one.start_offset, one.end_offset, one.end_digest) == log.copies.begin_copy(
        1, one.start_offset, one.end_offset, one.end_digest
    )
    assert log.copies.begin_copy(1, one.start_offset, cut.end_offset, cut.digest) == (cut.end_offset, cut.digest)


def test_partial_copy_can_be_abandoned_and_must_be_begun() -> None:
    sim = new_disk()
    log = with_hole(sim)
    log.copies.abandon_copy(0)
    log.copies.abandon_copy(0)
    fill(log, HISTORY[2])
    log.copies.abandon_copy(2)
    assert list(log.copies.partial_epochs) == [1]
    for epoch in (0, 1, 2):
        with pytest.raises(NotHeldError):
            log.copies.append_copy(epoch, HISTORY[epoch].batches[:1])
        with pytest.raises(NotHeldError):
            log.copies.finish_copy(epoch)
    log.close()
    assert sim.open_files == 0


def test_a_node_without_the_active_epoch_may_hold_sealed_ones() -> None:
    log = open_partition(new_disk())
    assert fill(log, HISTORY[2])
    assert not fill(log, HISTORY[4])
    assert fill(log, HISTORY[3])
    assert fill(log, HISTORY[1])
    assert [one.epoch for one in log.epochs] == [1, 2, 3, 4]
    assert {one.state for one in log.epochs} == {"sealed"}


def test_newest_epoch_that_ends_too_early_is_resumed() -> None:
    for crash in (False, True):
        sim = new_disk()
        log = open_partition(sim)
        log.start_epoch(0, 0)
        copy(log, HISTORY[0].batches)
        log.start_epoch(1, HISTORY[1].start_offset)
        copy(log, HISTORY[1].batches[:3])
        one = HISTORY[1]
        position = log.copies.begin_copy(1, one.start_offset, one.end_offset, one.end_digest)
        assert position.offset == unpack_header(one.batches[2]).end_offset
        assert read_all(log) == HISTORY[0].batches
        if crash:
            log = open_partition(sim.power_cut(Random(0)))
        assert fill(log, one)
        assert read_all(log) == HISTORY[0].batches + one.batches
        log.start_epoch(2, one.end_offset)


def test_empty_epoch_is_fetched_anywhere() -> None:
    log = open_partition(new_disk())
    log.start_epoch(3, 0)
    copy(log, [bytes(one) for one in stamped([batch()], 3, 0)])
    log.start_epoch(7, 1)
    assert log.copies.begin_copy(5, 1, 1, 0) == (1, 0)
    assert log.copies.finish_copy(5)
    assert [one.epoch for one in log.epochs] == [3, 7]
    assert list(log.copies.partial_epochs) == []


def test_retention_deletes_old_partial_copies_first() -> None:
    sim = new_disk()
    log = with_hole(sim)
    fill(log, HISTORY[2])
    log.delete_before(HISTORY[2].end_offset - 1)
    assert list(log.copies.partial_epochs) == [0, 1, 2]
    log.delete_before(HISTORY[2].end_offset)
    assert list(log.copies.partial_epochs) == [0, 1]
    log.delete_before(log.start_offset - 1)
    assert list(log.copies.partial_epochs) == [0, 1]
    log.delete_before(log.start_offset)
    assert list(log.copies.partial_epochs) == []
    assert sorted(name for name in sim.list_dir(DIRECTORY) if name.startswith("epoch")) == ["epoch-00000004"]


def test_log_before_a_permanent_gap_is_replaced_by_the_copy_after_it() -> None:
    log = open_partition(new_disk())
    log.start_epoch(0, 0)
    copy(log, HISTORY[0].batches)
    behind = HISTORY[4]
    fill(log, behind)
    assert (log.start_offset, log.end_offset) == (0, HISTORY[0].end_offset)
    assert not log.copies.is_overtaken(behind.start_offset - 1), "the batches in between can still be fetched"
    log.delete_before(behind.start_offset - 1)
    assert log.end_offset == HISTORY[0].end_offset
    assert log.copies.is_overtaken(behind.start_offset)
    log.delete_before(behind.start_offset)
    assert (log.start_offset, log.end_offset) == (behind.start_offset, behind.end_offset)
    assert list(log.copies.partial_epochs) == []


def test_empty_epoch_before_a_permanent_gap_is_replaced() -> None:
    log = open_partition(new_disk())
    log.start_epoch(0, 0)
    behind = HISTORY[4]
    log.copies.begin_copy(4, behind.start_offset, behind.end_offset, behind.end_digest)
    log.copies.append_copy(4, behind.batches)
    assert not log.copies.finish_copy(4)
    assert log.copies.is_overtaken(behind.start_offset)
    log.delete_before(behind.start_offset)
    assert (log.start_offset, log.end_offset) == (behind.start_offset, behind.end_offset)


def test_power_loss_while_a_copy_is_added() -> None:
    for cut in range(60):
        sim = new_disk()
        log = with_hole(sim)
        for epoch in (3, 2):
            fill(log, HISTORY[epoch])
        one = HISTORY[1]
        log.copies.begin_copy(1, one.start_offset, one.end_offset, one.end_digest)
        log.copies.append_copy(1, one.batches[3:])
        sim.cut_at = sim.steps + cut
        with suppress(PowerCutError):
            assert log.copies.finish_copy(1)
            return
        again = open_partition(sim.power_cut(Random(cut)))
        assert again.limbo is None
        if again.start_offset == HISTORY[2].start_offset:
            assert fill(again, one)
        assert read_all(again) == [raw for epoch in HISTORY[1:] for raw in epoch.batches]
    raise AssertionError("the copy never came in")


def test_truncation_removes_snapshots_of_the_tail() -> None:
    log = open_partition(new_disk())
    log.start_epoch(0, 0)
    copy(log, HISTORY[0].batches)
    middle = unpack_header(HISTORY[0].batches[2])
    log.save_producer_snapshot(0, middle.end_offset, middle.digest, b"then", committed=1 << 30)
    log.save_producer_snapshot(0, log.end_offset, log.end_digest, b"now", committed=1 << 30)
    log.truncate_epoch(0, middle.end_offset)
    snapshot = next(log.reader.load_producer_snapshots(), None)
    assert snapshot is not None
    assert snapshot.payload == b"then"
    with pytest.raises(DivergedError):
        log.truncate_epoch(0, middle.end_offset + 1)
    log.truncate_epoch(3, 99)
    assert log.end_offset == middle.end_offset
    with pytest.raises(AssertionError, match="sealed"):
        log.truncate_epoch(-1, 0)


def test_real_disk_behaves_like_the_simulated_one(tmp_path: Path) -> None:
    preallocator = IoWorkers(1, name="preallocate")
    disk = Disk(preallocator=preallocator)

    def reopened() -> PartitionLog:
        return PartitionLog.open(
            disk, tmp_path, topic="events", topic_id=TOPIC_ID, partition=PARTITION, segment_bytes=1 << 20
        )

    try:
        log = reopened()
        log.start_epoch(0, 0)
        for one in decided(Random(8), epochs=1, batches_min=200, batches_max=200, bytes_max=20_000)[0].batches:
            copy(log, [one])
        half = next(log.reader.scan_headers(log.end_offset // 2))
        log.truncate_epoch(0, half.end_offset)
        kept = read_all(log)
        kept += [bytes(one) for one in append(log, [batch(b"on" * 5000)])]
        log.close()
        log = reopened()
        assert read_all(log) == kept
        end, digest = log.end_offset, log.end_digest
        log.start_epoch(1, end + 100)
        assert log.copies.partial_epochs == (0,)
        log.close()
        log = reopened()
        assert log.copies.begin_copy(0, 0, end, digest) == (end, digest)
        assert not log.copies.finish_copy(0)
        log.copies.set_aside(1, "for a test")
        assert log.limbo is not None
        log.close()
    finally:
        preallocator.close()


# ------------------------------------------------------------------------------------------ damage


def test_a_damaged_sealed_epoch_is_set_aside_and_fetched_again() -> None:
    sim = new_disk()
    whole(sim, HISTORY).close()
    rot(sim, HISTORY[2], -1)
    log = open_partition(sim.restart())
    assert log.state == "limbo"
    path = log.copies.set_aside(2, "rot")
    assert path.name == "epoch-00000002.bad-1"
    assert (log.state, log.start_offset, log.copies.partial_epochs) == ("active", HISTORY[3].start_offset, (0, 1))
    assert open_partition(sim.restart()).limbo is None
    for epoch in (2, 1, 0):
        assert fill(log, HISTORY[epoch])
    assert read_all(log) == ALL
    append(log, [batch()], epoch=4)
    log.close()
    assert sim.open_files == 0


def test_unreadable_sealed_epoch_leaves_newer_ones_readable() -> None:
    sim = new_disk()
    whole(sim, HISTORY).close()
    sim.node(sim.files(DIRECTORY / "epoch-00000002", ".seg")[0]).current[0] ^= 1
    log = open_partition(sim.restart())
    assert (log.state, log.start_offset) == ("limbo", HISTORY[3].start_offset)
    assert read_all(log) == [raw for one in HISTORY[3:] for raw in one.batches]
    with pytest.raises(LimboError):
        log.ensure_space(64)
    with pytest.raises(LimboError):
        log.start_epoch(5, log.end_offset)
    log.copies.set_aside(2, "rot")
    assert (log.state, log.copies.partial_epochs) == ("active", (0, 1))
    for epoch in (2, 1, 0):
        assert fill(log, HISTORY[epoch])
    assert read_all(log) == ALL


def test_newest_epoch_set_aside_is_limbo_until_replaced() -> None:
    for unreadable in (False, True):
        for by_fill in (False, True):
            sim = new_disk()
            whole(sim, HISTORY).close()
            if unreadable:
                sim.node(sim.files(DIRECTORY / "epoch-00000004", ".seg")[0]).current[0] ^= 1
            else:
                rot(sim, HISTORY[4], 1)
            log = open_partition(sim.restart())
            assert log.state == "limbo"
            log.copies.set_aside(4, "rot")
            for view in (log, open_partition(sim.power_cut(Random(1)))):
                assert view.state == "limbo"
                assert read_all(view) == [raw for one in HISTORY[:4] for raw in one.batches]
                with pytest.raises(LimboError):
                    view.ensure_space(64)
                with pytest.raises(LimboError):
                    view.start_epoch(4, HISTORY[4].start_offset)
            if by_fill:
                assert fill(log, HISTORY[4])
                assert read_all(log) == ALL
            else:
                log.start_epoch(5, HISTORY[4].end_offset)
                assert log.start_offset == HISTORY[4].end_offset
            assert log.limbo is None
            assert open_partition(sim.power_cut(Random(1))).limbo is None


def test_power_loss_while_a_copy_is_set_aside() -> None:
    for epoch in (1, 4):
        for cut in range(60):
            sim = new_disk()
            whole(sim, HISTORY).close()
            rot(sim, HISTORY[epoch], -1 if epoch == 1 else 1)
            log = open_partition(sim)
            assert log.state == "limbo"
            sim.cut_at = sim.steps + cut
            with suppress(PowerCutError):
                log.copies.set_aside(epoch, "rot")
                break
            again = open_partition(sim.power_cut(Random(cut)))
            missing = again.active is None or again.active.epoch < epoch
            assert again.state == "limbo" or (epoch < again.epochs[0].epoch and not missing)
            if again.limbo is not None and not missing:
                again.copies.set_aside(epoch, "rot")
            for one in reversed(HISTORY):
                if one.epoch not in {log.epoch for log in again.epochs}:
                    assert fill(again, one)
            assert again.limbo is None
            assert read_all(again) == ALL
        else:
            raise AssertionError("the copy was never set aside")


@pytest.mark.parametrize("operation", ["rename", "sync_dir"])
def test_disk_failure_is_reported(operation: str) -> None:
    sim = new_disk()
    log = with_hole(sim)
    three = HISTORY[3]
    log.copies.begin_copy(3, three.start_offset, three.end_offset, three.end_digest)
    log.copies.append_copy(3, three.batches)
    sim.fail = lambda what, path: OSError(errno.EIO, "broken") if what == operation else None
    with pytest.raises(StorageFailedError, match="broken"):
        log.copies.finish_copy(3)
    with pytest.raises(StorageFailedError, match="broken"):
        log.copies.set_aside(4, "rot")
    sim.fail = lambda what, path: OSError(errno.EIO, "broken") if what == "unlink" else None
    with pytest.raises(StorageFailedError, match="broken"):
        log.copies.abandon_copy(0)
