"""The epoch log: appending, reading, rolling, retention, and what a full or failing disk does to it."""

from __future__ import annotations

import contextlib
import errno
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.broker.storage.build import SEGMENT_BYTES, append, batch, needed, read_all, stamp
from tests.broker.storage.logs import EPOCH, create, delete_before, new_disk, reopen
from tests.broker.storage.sim_disk import SimDisk

from tidelog_broker.storage.epoch.epoch_log import EpochLog
from tidelog_broker.storage.io.errors import DiskFullError, NoDescriptorError, StorageFailedError
from tidelog_broker.storage.segment.layout import index_path
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import unpack_header
from tidelog_proto.errors import ProtocolError


def append_and_sync(log: EpochLog, batches: list[bytearray]) -> None:
    append(log, batches)
    log.sync()


def test_appended_batches_are_read_across_rolls_and_after_a_clean_stop() -> None:
    sim = new_disk()
    log = create(sim)
    batches: list[bytes] = []
    for number in range(40):
        batches += append(log, [batch(bytes([number]) * (37 * number + 1), records=number % 4 + 1)])
        assert log.sync() == log.end_offset
    assert log.segment_count > 3
    assert read_all(log) == batches
    assert read_all(log, max_bytes=1) == batches
    assert [header.base_offset for header in log.reader.scan_headers(0)] == [
        unpack_header(one).base_offset for one in batches
    ]
    end, digest = log.end_offset, log.end_digest
    log.close()
    assert sim.open_files == 0
    again = reopen(sim)
    assert (again.end_offset, again.end_digest, again.state) == (end, digest, "active")
    assert read_all(again) == batches
    batches += append(again, [batch(b"more")])
    assert read_all(again) == batches


def test_a_log_may_begin_at_any_offset() -> None:
    log = create(new_disk(), start_offset=1000)
    append(log, [batch(records=5)])
    assert (log.start_offset, log.end_offset) == (1000, 1005)
    assert log.reader.read(1002, 10, limit_offset=1005).next_offset == 1005


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32), max_bytes=st.integers(1, 6000))
def test_read_returns_the_expected_batches(seed: int, max_bytes: int) -> None:
    random = Random(seed)
    log = create(new_disk())
    batches: list[bytes] = []
    for _ in range(20):
        batches += append(log, [batch(random.randbytes(random.randint(1, 900)), records=random.randint(1, 4))])
        if random.random() < 0.5:
            log.sync()
    offset, limit = random.randrange(log.end_offset), random.randint(0, log.end_offset)
    result = log.reader.read(offset, max_bytes, limit_offset=limit)
    headers = [unpack_header(one) for one in batches]
    wanted = [
        raw
        for raw, header in zip(batches, headers, strict=True)
        if header.end_offset > offset and header.end_offset <= limit
    ]
    found = [bytes(one) for one in result.batches]
    assert found == wanted[: len(found)]
    assert bool(found) == bool(wanted)
    assert len(found) <= 1 or sum(map(len, found)) <= max_bytes
    assert result.next_offset == (unpack_header(found[-1]).end_offset if found else offset)


def test_out_of_range_error_has_the_bounds() -> None:
    log = create(new_disk(), start_offset=10)
    append(log, [batch()])
    for offset in (9, 12):
        with pytest.raises(ProtocolError) as caught:
            log.reader.read(offset, 100, limit_offset=11)
        assert caught.value.code == pb.OFFSET_OUT_OF_RANGE
        assert (caught.value.log_start_offset, caught.value.high_watermark) == (10, 11)
    assert log.reader.read(11, 100, limit_offset=11).batches == []


@settings(max_examples=50)
@given(times=st.lists(st.integers(-5, 50), min_size=1, max_size=40), wanted=st.integers(-10, 60))
def test_lookup_by_time_agrees_with_a_scan(times: list[int], wanted: int) -> None:
    log = create(new_disk())
    for time_us in times:
        append(log, [batch(b"x" * 300, timestamp_us=time_us, records=2)])
    expected = next((2 * number for number, time_us in enumerate(times) if time_us >= wanted), None)
    assert log.reader.find_by_time(wanted) == expected


def test_group_larger_than_a_segment_gets_its_own_segment() -> None:
    log = create(new_disk())
    batches = append(log, [batch(b"a")])
    batches += append(log, [batch(b"b" * 3 * SEGMENT_BYTES)])
    batches += append(log, [batch(b"c")])
    assert log.segment_count == 3
    assert read_all(log) == batches


def test_a_lost_short_or_rotten_index_is_rebuilt() -> None:
    for spoil in ("unlink", "short", "rot"):
        sim = new_disk()
        log = create(sim)
        batches: list[bytes] = []
        for _ in range(12):
            batches += append(log, [batch(b"x" * 700)])
            log.sync()
        log.close()
        for path in sim.files(EPOCH, ".idx"):
            if spoil == "unlink":
                sim.unlink(path)
            elif spoil == "short":
                del sim.node(path).current[-5:]
            else:
                sim.node(path).current[70] ^= 1
        log = reopen(sim)
        assert read_all(log) == batches
        assert all(sim.exists(index_path(path)) for path in sim.files(EPOCH, ".seg")[:-1])


def test_delete_before_removes_whole_old_segments_and_keeps_the_newest() -> None:
    sim = new_disk()
    log = create(sim)
    batches: list[bytes] = []
    for _ in range(20):
        batches += append(log, [batch(b"x" * 700)])
        log.sync()
    middle = log.end_offset // 2
    before = log.size_bytes
    freed = delete_before(log, middle)
    assert 0 < log.start_offset <= middle
    assert log.size_bytes == before - freed
    assert read_all(log) == batches[log.start_offset :]
    delete_before(log, log.end_offset + 100)
    assert log.segment_count == 1
    assert len(sim.files(EPOCH, ".seg")) == 1
    append(log, [batch()])
    again = reopen(sim.restart())
    assert again.start_offset == log.start_offset


def test_a_reader_that_holds_a_deleted_segment_gets_an_answer() -> None:
    log = create(new_disk())
    for _ in range(12):
        append(log, [batch(b"x" * 700)])
    headers = log.reader.scan_headers(0)
    assert next(headers).base_offset == 0
    delete_before(log, log.end_offset)
    with pytest.raises(ProtocolError) as caught:
        list(headers)
    assert caught.value.code == pb.OFFSET_OUT_OF_RANGE


def test_full_disk_refuses_before_an_offset_is_assigned() -> None:
    """At each allocation in turn."""
    for nth in range(40):
        sim = new_disk()
        log = create(sim, segment_bytes=60_000)
        batches: list[bytes] = []
        count = 0

        def fail(operation: str, path: Path, nth: int = nth) -> OSError | None:
            nonlocal count
            count += operation == "allocate"
            return OSError(errno.ENOSPC, "full") if operation == "allocate" and count > nth else None

        sim.fail = fail
        try:
            while log.segment_count < 4:
                batches += append(log, [batch(b"x" * 5000), batch(b"y" * 700)])
                log.sync()
        except DiskFullError as error:
            before = (log.end_offset, log.end_digest, log.size_bytes, log.segment_count)
            assert error.code == pb.DISK_FULL  # noqa: PT017 (what follows needs the disk as it is now)
            with pytest.raises(DiskFullError):
                log.ensure_space(10_000)
            assert (log.end_offset, log.end_digest, log.size_bytes, log.segment_count) == before
            assert read_all(log) == batches
            sim.fail = lambda operation, path: None
            batches += append(log, [batch(b"z" * 5000)])
            log.sync()
            assert read_all(reopen(sim.restart())) == batches
        else:
            assert nth > 5
            return
    raise AssertionError("the disk never sufficed")


@pytest.mark.parametrize("nth", range(4))
def test_a_roll_without_a_descriptor_changes_nothing_and_does_not_blame_the_disk(nth: int) -> None:
    sim = new_disk()
    log = create(sim)
    batches = append(log, [batch(b"x" * 3500)])
    log.sync()
    count = 0

    def fail(operation: str, path: Path) -> OSError | None:
        nonlocal count
        count += operation == "create"
        return OSError(errno.EMFILE, "Too many open files") if operation == "create" and count > nth else None

    sim.fail = fail
    with contextlib.suppress(NoDescriptorError):
        log.ensure_space(3000)
    if nth == 0:
        with pytest.raises(NoDescriptorError, match="raise the limit of open files") as caught:
            log.ensure_space(3000)
        assert caught.value.code == pb.OVERLOADED
        assert "disk" not in caught.value.message
    sim.fail = lambda operation, path: None
    batches += append(log, [batch(b"z" * 3000)])
    log.sync()
    assert read_all(log) == batches
    assert read_all(reopen(sim.restart())) == batches


def test_beginning_an_epoch_on_a_full_disk_can_be_tried_again() -> None:
    sim = new_disk()
    sim.free_bytes = 100
    with pytest.raises(DiskFullError):
        create(sim)
    assert sim.open_files == 0
    sim.free_bytes = None
    append(create(sim), [batch()])


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_a_failed_write_or_sync_stops_the_log_for_good(operation: str) -> None:
    sim = new_disk()
    log = create(sim)
    batches = append(log, [batch(b"kept")])
    log.sync()
    sim.fail = lambda what, path: OSError(errno.EIO, "broken") if what == operation else None
    with pytest.raises(StorageFailedError):
        append_and_sync(log, [batch(b"lost")])
    sim.fail = lambda what, path: None
    assert log.state == "failed"
    for again in (lambda: log.ensure_space(64), log.sync, log.seal, lambda: log.append([batch()])):
        with pytest.raises(StorageFailedError, match="broken"):
            again()
    assert not log.has_room(64)
    assert read_all(log)[:1] == batches
    log.close()
    assert sim.open_files == 0


@pytest.mark.parametrize("operation", ["sync", "rename", "sync_dir", "write"])
def test_a_disk_that_fails_while_rolling_stops_the_log(operation: str) -> None:
    sim = new_disk()
    log = create(sim)
    batches = append(log, [batch(b"x" * 3500)])
    log.sync()
    sim.fail = lambda what, path: OSError(errno.EIO, "broken") if what == operation else None

    def roll() -> None:
        log.ensure_space(3000)
        log.sync()

    with pytest.raises(StorageFailedError):
        roll()
    assert log.state == "failed"
    assert read_all(reopen(sim.restart())) == batches


def test_misuse_fails_assertions() -> None:
    log = create(new_disk())
    log.ensure_space(needed([batch()]))
    for wrong in (
        stamp([batch()], offset=1, digest=0),
        stamp([batch()], offset=0, digest=5),
        stamp([batch()], offset=0, digest=0, epoch=1),
        [stamp([batch()], offset=0, digest=0)[0] + b"x"],
        [],
    ):
        with pytest.raises(AssertionError):
            log.append(wrong)
    with pytest.raises(AssertionError, match="ensure_space was not called"):
        log.append(stamp([batch(b"x" * 100_000)], offset=0, digest=0))


def test_has_room_agrees_with_append() -> None:
    log = create(new_disk())
    group = [batch(b"x" * 100)]
    assert log.has_room(needed(group))
    log.append(stamp(group, offset=0, digest=0))
    assert not log.has_room(SEGMENT_BYTES)


def test_unsynced_log_defers_few_segment_syncs() -> None:
    sim = new_disk()
    log = create(sim)
    for _ in range(60):
        append(log, [batch(b"x" * 1500)])
    assert log.segment_count > 20
    assert log._deferred.segment_count <= 4
    log.sync()
    assert not log._deferred.segment_count
    log.close()
    assert sim.open_files == 0


def test_a_sealed_log_takes_no_appends() -> None:
    sim = new_disk()
    log = create(sim)
    batches = append(log, [batch()])
    log.seal()
    assert log.state == "sealed"
    with pytest.raises(StorageFailedError, match="sealed"):
        log.ensure_space(64)
    assert read_all(log) == batches
    log.close()
    assert sim.open_files == 0


def test_reads_stop_at_the_limit_offset() -> None:
    log = create(new_disk())
    append(log, [batch(records=3), batch(records=3)])
    assert log.reader.read(0, 10_000, limit_offset=3).next_offset == 3
    assert log.reader.read(0, 10_000, limit_offset=2).batches == []


def test_simulated_disk_drops_unsynced_writes() -> None:
    """The tests above lean on this."""
    sim = new_disk()
    path = EPOCH.parent / "file"
    file = sim.open(path, create=True)
    file.pwritev([b"a" * 600], 0)
    file.datasync()
    sim.sync_dir(path.parent)
    file.pwritev([b"b" * 600], 0)
    outcomes = {bytes(sim.power_cut(Random(seed)).node(path).current) for seed in range(50)}
    assert outcomes == {first * 512 + second * 88 for first in (b"a", b"b") for second in (b"a", b"b")}
    assert isinstance(sim.restart(), SimDisk)


def test_full_disk_after_the_rename_of_a_new_epoch_is_a_storage_failure() -> None:
    sim = new_disk()
    sim.fail = lambda what, path: (
        OSError(errno.ENOSPC, "full") if (what, path) == ("sync_dir", EPOCH.parent) and sim.exists(EPOCH) else None
    )
    with pytest.raises(StorageFailedError, match="not durably"):
        create(sim)
    assert sim.exists(EPOCH)
