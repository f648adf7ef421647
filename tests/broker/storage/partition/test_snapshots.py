from __future__ import annotations

import errno
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random

import pytest
from tests.broker.storage.build import HOME
from tests.broker.storage.logs import new_disk
from tests.broker.storage.sim_disk import PowerCutError, SimDisk

from tidelog_broker.storage.io.errors import DiskFullError, StorageFailedError
from tidelog_broker.storage.partition.snapshots import (
    ProducerSnapshot,
    drop_snapshots_behind,
    load_snapshots,
    save_snapshot,
)


def snapshot(offset: int) -> ProducerSnapshot:
    return ProducerSnapshot(epoch=1, offset=offset, digest=9, payload=b"p" * offset)


def load_snapshot(sim: SimDisk, directory: Path) -> ProducerSnapshot | None:
    return next(load_snapshots(sim, directory), None)


def fail_writes(number: int, operation: str, path: Path) -> OSError | None:
    return OSError(number, "no") if operation == "write" else None


def test_newest_snapshot_is_loaded_and_two_are_kept() -> None:
    sim = new_disk()
    assert load_snapshot(sim, HOME) is None
    for offset in (5, 70, 800):
        save_snapshot(sim, HOME, snapshot(offset), committed=800)
    assert load_snapshot(sim, HOME) == snapshot(800)
    assert len(sim.list_dir(HOME)) == 2


def test_uncommitted_snapshots_replace_no_committed_one() -> None:
    sim = new_disk()
    for offset in (5, 70, 80, 90, 800):
        save_snapshot(sim, HOME, snapshot(offset), committed=70)
    assert [one.offset for one in load_snapshots(sim, HOME)] == [800, 90, 80, 70, 5]
    drop_snapshots_behind(sim, HOME, 70)
    assert load_snapshot(sim, HOME) == snapshot(70)
    save_snapshot(sim, HOME, snapshot(800), committed=800)
    assert [one.offset for one in load_snapshots(sim, HOME)] == [800, 70]


def test_snapshots_beyond_a_truncation_are_dropped() -> None:
    sim = new_disk()
    for offset in (5, 70):
        save_snapshot(sim, HOME, snapshot(offset), committed=800)
    drop_snapshots_behind(sim, HOME, 70)
    assert load_snapshot(sim, HOME) == snapshot(70)
    drop_snapshots_behind(sim, HOME, 69)
    assert load_snapshot(sim, HOME) == snapshot(5)
    drop_snapshots_behind(sim, HOME / "nowhere", 0)


def test_corrupt_snapshot_is_skipped_for_the_previous_one() -> None:
    sim = new_disk()
    save_snapshot(sim, HOME, snapshot(5), committed=800)
    save_snapshot(sim, HOME, snapshot(70), committed=800)
    newest = sim.files(HOME, ".snap")[-1]
    content = bytes(sim.node(newest).current)
    for at in [*range(40), 48, len(content) - 1]:
        sim.node(newest).current = bytearray(content)
        sim.node(newest).current[at] ^= 1
        assert load_snapshot(sim, HOME) == snapshot(5)
    for cut in range(len(content)):
        sim.node(newest).current = bytearray(content[:cut])
        assert load_snapshot(sim, HOME) == snapshot(5)


def test_power_loss_leaves_the_old_or_the_new_snapshot() -> None:
    for cut in range(20):
        sim = new_disk()
        save_snapshot(sim, HOME, snapshot(5), committed=800)
        sim.cut_at = sim.steps + cut
        with suppress(PowerCutError):
            save_snapshot(sim, HOME, snapshot(70), committed=800)
            break
        assert load_snapshot(sim.power_cut(Random(cut)), HOME) in (snapshot(5), snapshot(70))
    else:
        raise AssertionError("it was never saved")


def test_full_and_failed_disk_are_distinguished() -> None:
    sim = new_disk()
    for number, kind in ((errno.ENOSPC, DiskFullError), (errno.EIO, StorageFailedError)):
        sim.fail = partial(fail_writes, number)
        with pytest.raises(kind):
            save_snapshot(sim, HOME, snapshot(5), committed=800)
    sim.fail = lambda what, path: None
    save_snapshot(sim, HOME, snapshot(5), committed=800)
    assert load_snapshot(sim, HOME) == snapshot(5)
