"""Reused segment files: none of their old content is visible, and no reader reads the wrong file."""

from __future__ import annotations

import errno
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.broker.storage.build import SEGMENT_BYTES, append, batch, needed, read_all, stamp
from tests.broker.storage.logs import EPOCH, create, create_log, new_disk, reopen
from tests.broker.storage.sim_disk import PowerCutError

from tidelog_broker.storage.epoch.epoch_log import EpochLog
from tidelog_broker.storage.io.errors import DiskFullError
from tidelog_broker.storage.segment.disk import Disk
from tidelog_broker.storage.segment.spare import SPARE_NAME, Spare, SpareBudget

SPARE = EPOCH / SPARE_NAME
SEGMENT = EPOCH / "00000000000000000000.seg"


def on(disk: Disk, *, segment_bytes: int = SEGMENT_BYTES) -> EpochLog:
    return create_log(disk, EPOCH, segment_bytes=segment_bytes)


def fill(log: EpochLog, segments: int, *, size_bytes: int = 700) -> list[bytes]:
    """Append until the log has this many segments."""
    batches: list[bytes] = []
    while log.segment_count < segments:
        batches += append(log, [batch(b"x" * size_bytes)])
        log.sync()
    return batches


def test_oldest_segment_file_is_reused_for_the_next() -> None:
    sim = new_disk()
    log = create(sim)
    batches = fill(log, 3)
    oldest = sim.node(SEGMENT)
    log.delete_oldest_segment()
    assert sim.node(SPARE) is oldest
    batches += fill(log, 3)
    assert not sim.exists(SPARE)
    assert sim.node(sim.files(EPOCH, ".seg")[-1]) is oldest
    assert read_all(log) == batches[-len(read_all(log)) :]


@settings(max_examples=150)
@given(
    seed=st.integers(0, 2**32),
    always=st.booleans(),
    fixed=st.booleans(),
    cuts=st.lists(st.integers(0, 90), min_size=1, max_size=3),
)
def test_power_loss_anywhere_loses_nothing_synced_and_revives_nothing(
    seed: int, always: bool, fixed: bool, cuts: list[int]
) -> None:
    """With batches of one size old ones lie exactly where new ones go."""
    random = Random(seed)
    sim = new_disk()
    log = create(sim)
    appended: list[bytes] = []
    synced = 0
    for cut in cuts:
        sim.cut_at = sim.steps + cut
        with suppress(PowerCutError):
            for _ in range(40):
                group = [batch(random.randbytes(700 if fixed else random.choice([1, 300, 900])))]
                log.ensure_space(needed(group))
                stamped = stamp(group, offset=log.end_offset, digest=log.end_digest)
                appended += [bytes(one) for one in stamped]
                log.append(stamped)
                if always or random.random() < 0.2:
                    log.sync()
                    synced = len(appended)
                while log.segment_count > 2:
                    log.delete_oldest_segment()
        sim = sim.power_cut(random)
        log = reopen(sim)
        assert log.state == "active", log.damage
        assert not sim.exists(SPARE)
        found = read_all(log)
        assert log.end_offset >= synced, "synced batches are gone"
        assert found == appended[log.start_offset : log.end_offset], "the log has batches that were never appended"
        appended = appended[: log.end_offset]
        synced = log.end_offset


def test_kill_keeps_appended_batches_and_recovery_truncates_old_contents() -> None:
    sim = new_disk()
    log = create(sim)
    batches = fill(log, 3)
    log.delete_oldest_segment()
    batches += fill(log, 3)
    newest = sim.files(EPOCH, ".seg")[-1]
    assert any(sim.node(newest).current[1500:]), "old bytes of the file follow the one new batch"
    again = reopen(sim.restart())
    assert read_all(again) == batches[again.start_offset :]
    assert not any(sim.node(newest).current[1500:])
    batches += append(again, [batch(b"more")])
    assert read_all(again) == batches[again.start_offset :]


def test_clean_stop_removes_the_spare_and_old_contents() -> None:
    sim = new_disk()
    disk = Disk(fs=sim)
    log = on(disk)
    fill(log, 3)
    log.delete_oldest_segment()
    fill(log, 3)
    log.delete_oldest_segment()
    assert disk.spares.kept_bytes > 0
    size_bytes = log.size_bytes
    log.close()
    assert not sim.exists(SPARE)
    assert disk.spares.kept_bytes == 0
    assert sum(len(sim.node(path).current) for path in sim.files(EPOCH, ".seg")) == pytest.approx(size_bytes, abs=64)


def test_file_being_read_is_not_reused() -> None:
    sim = new_disk()
    disk = Disk(fs=sim)
    log = on(disk)
    batches = fill(log, 4)
    headers = log.reader.scan_headers(0)
    next(headers)
    log.delete_oldest_segment()
    assert not sim.exists(SPARE), "a reader has it open"
    for _ in headers:  # to the end of its lease
        pass
    log.delete_oldest_segment()
    assert sim.exists(SPARE)
    assert read_all(log) == batches[log.start_offset :]


def test_file_being_opened_is_not_reused() -> None:
    sim = new_disk()
    disk = Disk(fs=sim)
    log = on(disk)
    fill(log, 3)
    disk.open_segments.drop(SEGMENT)
    opened = log.segments[0].open(disk)  # type: ignore[union-attr]  # the first of three is sealed

    def slow() -> object:
        log.delete_oldest_segment()
        return opened

    with disk.open_segments.lease(SEGMENT, slow):  # type: ignore[arg-type]  # returns what it opened
        assert not sim.exists(SPARE), "its opener has it open"


def test_full_disk_frees_the_spare_and_keeps_no_more() -> None:
    sim = new_disk()
    disk = Disk(fs=sim)
    log = on(disk, segment_bytes=60_000)
    batches = fill(log, 3, size_bytes=5_000)
    log.delete_oldest_segment()
    sim.free_bytes = 0
    batches += append(log, [batch(b"z" * 30_000)])
    assert not sim.exists(SPARE)
    assert disk.spares.kept_bytes == 0
    with pytest.raises(DiskFullError):
        log.ensure_space(100_000)
    log.delete_oldest_segment()
    assert not sim.exists(SPARE)
    assert read_all(log) == batches[log.start_offset :]


def test_spare_that_cannot_be_renamed_stops_the_log() -> None:
    sim = new_disk()
    log = create(sim)
    fill(log, 3)
    sim.fail = lambda operation, path: OSError(errno.EIO, "no") if path == SPARE else None
    with pytest.raises(Exception, match="deleting"):
        log.delete_oldest_segment()
    assert log.state == "failed"


def test_budget_bounds_the_sum_of_spares() -> None:
    sim = new_disk()
    sim.make_dir(EPOCH)
    budget = SpareBudget(100)
    one, two = Spare(sim, budget, EPOCH), Spare(sim, budget, Path("/home"))
    for name in ("1.seg", "2.seg"):
        sim.open(EPOCH / name, create=True).close()
    sim.open(Path("/home/3.seg"), create=True).close()
    assert one.keep(EPOCH / "1.seg", 60)
    assert not one.keep(EPOCH / "2.seg", 10), "a log keeps one"
    assert not two.keep(Path("/home/3.seg"), 60), "there is room for 40"
    assert one.use() == SPARE
    assert one.use() is None
    assert two.keep(Path("/home/3.seg"), 60)
    assert two.discard()
    assert not two.discard()
    budget.end()
    assert not one.keep(EPOCH / "2.seg", 1)
    assert budget.kept_bytes == 0
