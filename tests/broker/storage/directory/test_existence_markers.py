"""A marker exists for each directory that must exist, and no crash leaves a marker for one that never existed."""

from __future__ import annotations

import errno
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from tests.broker.storage.build import HOME, PARTITION, TOPIC_ID, append, batch, read_all
from tests.broker.storage.logs import disk_on, new_disk, open_partition
from tests.broker.storage.sim_disk import PowerCutError, SimDisk

from tidelog_broker.storage.directory.existence_markers import (
    HELD_SUFFIX,
    has_directory_marker,
    mark_directory,
    mark_newest,
    marked_newest,
    prepare_newest_marker,
    recreate_directory,
    remove_directory_marker,
)
from tidelog_broker.storage.io.errors import DiskFullError
from tidelog_broker.storage.partition.partition_dirs import forget_partition_dir, partition_dir_name

DIRECTORY = HOME / partition_dir_name("events", TOPIC_ID, PARTITION)


def lose(sim: SimDisk, path: Path) -> None:
    """Take a directory away, durably."""
    parent = sim.directory(path.parent)
    del parent.names[path.name]
    parent.sync()


def with_epochs(sim: SimDisk, epochs: int) -> None:
    log = open_partition(sim)
    for epoch in range(epochs):
        log.start_epoch(epoch, log.end_offset)
        append(log, [batch(b"x" * 100)], epoch=epoch)
        log.sync()
    log.close()


def test_newest_epoch_marker_is_written_once() -> None:
    sim = new_disk()
    sim.make_dir(DIRECTORY)
    assert marked_newest(sim, DIRECTORY) is None
    prepare_newest_marker(sim, DIRECTORY)
    assert marked_newest(sim, DIRECTORY) is None
    for epoch in (0, 7, 123_456_789):
        prepare_newest_marker(sim, DIRECTORY)
        mark_newest(sim, DIRECTORY, epoch)
        assert marked_newest(sim, DIRECTORY) == epoch
        assert len(sim.list_dir(DIRECTORY)) == 1


def test_directory_marker_is_created_and_removed() -> None:
    sim = new_disk()
    assert not has_directory_marker(sim, DIRECTORY)
    for _ in range(2):
        mark_directory(sim, DIRECTORY)
        assert has_directory_marker(sim, DIRECTORY)
        assert sim.list_dir(HOME) == [DIRECTORY.name + HELD_SUFFIX]
    for _ in range(2):
        remove_directory_marker(sim, DIRECTORY)
        assert sim.list_dir(HOME) == []


def test_lost_directory_is_distinguished_from_one_that_never_existed() -> None:
    sim = new_disk()
    assert open_partition(sim).repair.lost_epoch(5) is None
    with_epochs(sim, 3)
    assert open_partition(sim).repair.lost_epoch(5) is None
    lose(sim, DIRECTORY / "epoch-00000002")
    assert open_partition(sim).repair.lost_epoch(5) == 2
    assert read_all(open_partition(sim)), "the older epochs are readable"
    lose(sim, DIRECTORY)
    assert open_partition(sim).repair.lost_epoch(5) == 5


@pytest.mark.parametrize("how", ["filled", "set aside"])
def test_an_epoch_that_lies_beside_the_log_is_not_lost(how: str) -> None:
    sim = new_disk()
    with_epochs(sim, 2)
    log = open_partition(sim)
    if how == "filled":
        log.copies.begin_copy(1, 1, 9, 77)
    else:
        log.copies.set_aside(1, "rot")
    assert open_partition(sim.restart()).repair.lost_epoch(1) is None


def test_recreated_copy_is_in_limbo_until_repaired() -> None:
    sim = new_disk()
    with_epochs(sim, 2)
    lose(sim, DIRECTORY / "epoch-00000001")
    log = open_partition(sim)
    log.start_epoch(1, 1, is_lacking=True)
    for one in (log, open_partition(sim.restart())):
        assert (one.state, one.end_offset, one.repair.lost_epoch(1)) == ("limbo", 1, None)
    log.repair.append_repair(1, [])
    log.repair.finish_repair(1)
    assert open_partition(sim.restart()).state == "active"


def test_directory_without_markers_gets_them_at_open() -> None:
    sim = new_disk()
    with_epochs(sim, 2)
    sim.unlink(DIRECTORY / "newest-00000001")
    remove_directory_marker(sim, DIRECTORY)
    open_partition(sim)
    sim = sim.power_cut(Random(1))
    assert (marked_newest(sim, DIRECTORY), has_directory_marker(sim, DIRECTORY)) == (1, True)


def test_full_disk_without_space_for_markers_can_be_opened() -> None:
    sim = new_disk()
    with_epochs(sim, 1)
    sim.unlink(DIRECTORY / "newest-00000000")
    full = OSError(errno.ENOSPC, "full")
    sim.fail = lambda operation, path: full if operation == "create" else None
    log = open_partition(sim)
    assert (log.end_offset, marked_newest(sim, DIRECTORY)) == (1, None)
    with pytest.raises(DiskFullError):
        log.start_epoch(1, 1)
    assert log.end_offset == 1
    sim.fail = lambda operation, path: None
    log.start_epoch(1, 1)
    assert marked_newest(sim, DIRECTORY) == 1


@pytest.mark.parametrize("power", [False, True])
def test_no_crash_leaves_a_marker_without_its_epoch(power: bool) -> None:
    for cut in range(70):
        sim = new_disk()
        sim.cut_at = cut
        with suppress(PowerCutError):
            with_epochs(sim, 3)
        again = sim.power_cut(Random(cut)) if power else sim.restart()
        log = open_partition(again)
        assert log.repair.lost_epoch(0) is None, f"cut at {cut}"
        newest = log.active.epoch if log.active is not None else None
        if newest is not None:
            assert marked_newest(again.power_cut(Random(cut)), DIRECTORY) == newest


@pytest.mark.parametrize("power", [False, True])
def test_loss_is_detected_again_after_an_interrupted_recreation(power: bool) -> None:
    for cut in range(40):
        sim = new_disk()
        with_epochs(sim, 2)
        lose(sim, DIRECTORY)
        sim.cut_at = sim.steps + cut
        with suppress(PowerCutError):
            recreate_directory(sim, DIRECTORY, 1)
            open_partition(sim).start_epoch(1, 1, is_lacking=True)
        again = open_partition(sim.power_cut(Random(cut)) if power else sim.restart())
        assert again.repair.lost_epoch(1) == 1 or again.state == "limbo", f"cut at {cut}"


def test_deletion_removes_the_marker_before_the_directory() -> None:
    for cut in range(40):
        sim = new_disk()
        with_epochs(sim, 1)
        log = open_partition(sim)
        sim.cut_at = sim.steps + cut
        with suppress(PowerCutError):
            log.delete()
        assert open_partition(sim.power_cut(Random(cut))).repair.lost_epoch(0) is None, f"cut at {cut}"
    sim = new_disk()
    with_epochs(sim, 1)
    lose(sim, DIRECTORY)
    forget_partition_dir(disk_on(sim), DIRECTORY)
    assert sim.list_dir(HOME) == []
    with_epochs(sim, 1)
    open_partition(sim).delete()
    assert sim.list_dir(HOME) == []
