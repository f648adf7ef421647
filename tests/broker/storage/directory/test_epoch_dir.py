"""An epoch's directory exists completely or not at all."""

from __future__ import annotations

import errno
from contextlib import suppress
from random import Random

import pytest
from tests.broker.storage.build import HOME, PARTITION, SEGMENT_BYTES, TOPIC_ID
from tests.broker.storage.logs import EPOCH, new_disk, reopen
from tests.broker.storage.sim_disk import PowerCutError, SimDisk

from tidelog_broker.storage.directory.epoch_dir import make_epoch_dir
from tidelog_broker.storage.directory.existence_markers import marked_newest
from tidelog_broker.storage.engine.store import SEGMENT
from tidelog_broker.storage.epoch.recovery import lay_out_segments
from tidelog_broker.storage.io.errors import DiskFullError, StorageFailedError
from tidelog_broker.storage.segment.active_segment import SegmentStart
from tidelog_broker.storage.segment.disk import Disk


def make(sim: SimDisk, *, is_newest: bool = True, is_lacking: bool = False) -> None:
    start = SegmentStart(TOPIC_ID, PARTITION, 0, 0, 0, 0)
    make_epoch_dir(
        sim,
        EPOCH,
        lambda unnamed: lay_out_segments(Disk(sim), unnamed, start, segment_bytes=SEGMENT_BYTES),
        epoch=0,
        engine=SEGMENT,
        is_newest=is_newest,
        is_lacking=is_lacking,
    )


@pytest.mark.parametrize("is_lacking", [False, True])
@pytest.mark.parametrize("power", [False, True])
def test_crash_at_each_step_leaves_a_complete_directory_or_none(power: bool, is_lacking: bool) -> None:
    for cut in range(40):
        sim = new_disk()
        sim.cut_at = cut
        is_made = False
        with suppress(PowerCutError):
            make(sim, is_lacking=is_lacking)
            is_made = True
        again = sim.power_cut(Random(cut)) if power else sim.restart()
        if is_made:
            assert marked_newest(again, HOME) == 0
            assert again.exists(EPOCH)
        if again.exists(EPOCH):
            assert reopen(again).state == ("limbo" if is_lacking else "active")
        else:
            assert marked_newest(again, HOME) is None
            make(again, is_lacking=is_lacking)
        if is_made:
            break
    else:
        raise AssertionError("it was never made")


def test_copy_beside_the_log_gets_no_newest_marker() -> None:
    sim = new_disk()
    make(sim, is_newest=False)
    assert marked_newest(sim, HOME) is None
    assert reopen(sim).state == "active"


@pytest.mark.parametrize("operation", ["create", "make_dir", "allocate"])
def test_full_disk_refuses_creation_and_changes_nothing(operation: str) -> None:
    sim = new_disk()
    full = OSError(errno.ENOSPC, "full")
    sim.fail = lambda what, path: full if what == operation else None
    with pytest.raises(DiskFullError, match="epoch 0 cannot be created"):
        make(sim)
    assert not sim.exists(EPOCH)
    sim.fail = lambda what, path: None
    make(sim)
    assert reopen(sim).state == "active"


def test_error_after_the_rename_is_final() -> None:
    sim = new_disk()
    broken = OSError(errno.ENOSPC, "full")
    sim.fail = lambda what, path: broken if what == "sync_dir" and path == HOME else None
    with pytest.raises(StorageFailedError, match="not durably"):
        make(sim)
