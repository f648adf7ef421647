"""Refusal of writes after a failure, in LIMBO and at a seal, and the repair marker of a store."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from tests.broker.storage.logs import EPOCH, create, new_disk
from tests.broker.storage.sim_disk import SimDisk

from tidelog_broker.storage.directory.repair_markers import has_marker
from tidelog_broker.storage.directory.write_guard import WriteGuard
from tidelog_broker.storage.engine.store import Damage
from tidelog_broker.storage.io.errors import DiskFullError, LimboError, StorageFailedError

DAMAGE = Damage(EPOCH, 0, 5, 5, "records are missing")


@pytest.fixture
def disk() -> SimDisk:
    sim = new_disk()
    create(sim).close()
    return sim


@pytest.fixture
def guard(disk: SimDisk) -> WriteGuard:
    return WriteGuard(disk, EPOCH)


def test_state_is_the_most_serious_condition(guard: WriteGuard) -> None:
    assert guard.state(None, is_sealed=False) == "active"
    assert guard.state(None, is_sealed=True) == "sealed"
    assert guard.state(DAMAGE, is_sealed=True) == "limbo"
    guard.give_up("the store is closed")
    assert guard.state(DAMAGE, is_sealed=True) == "failed"


def test_first_failure_refuses_all_later_writes(guard: WriteGuard) -> None:
    guard.check_open()
    error = guard.failed("a write", OSError(errno.EIO, "broken"))
    assert error.message == f"{EPOCH}: a write failed: [Errno {errno.EIO}] broken; check the disk and restart the node"
    assert guard.failed("a sync", OSError(errno.EIO, "broken")).message.startswith(f"{EPOCH}: a sync failed")
    with pytest.raises(StorageFailedError, match="takes no more writes: a write failed"):
        guard.check_open()
    with pytest.raises(StorageFailedError, match="takes no more writes: a write failed"):
        guard.check_sound(DAMAGE, is_repairing=False)


def test_damage_refuses_appends_until_the_repair(guard: WriteGuard) -> None:
    guard.check_sound(None, is_repairing=False)
    guard.check_sound(DAMAGE, is_repairing=True)
    with pytest.raises(LimboError, match="another replica: records are missing"):
        guard.check_sound(DAMAGE, is_repairing=False)


def test_repair_marker_is_created_and_removed(disk: SimDisk, guard: WriteGuard) -> None:
    guard.begin_repair()
    assert has_marker(disk, EPOCH)
    guard.end_repair()
    assert not has_marker(disk, EPOCH)


def test_full_disk_refuses_a_repair_and_the_store_stays_open(disk: SimDisk, guard: WriteGuard) -> None:
    disk.fail = lambda operation, _: OSError(errno.ENOSPC, "full") if operation == "create" else None
    with pytest.raises(DiskFullError, match="cannot be truncated at its damage"):
        guard.begin_repair()
    guard.check_open()


@pytest.mark.parametrize(("operation", "step"), [("create", "writing"), ("unlink", "removing")])
def test_broken_disk_during_a_repair_fails_the_store(
    disk: SimDisk, guard: WriteGuard, operation: str, step: str
) -> None:
    def fail(failing: str, path: Path) -> OSError | None:
        del path
        return OSError(errno.EIO, "broken") if failing == operation else None

    if operation == "unlink":
        guard.begin_repair()
    disk.fail = fail
    with pytest.raises(StorageFailedError, match=f"{step} the repair marker failed"):
        (guard.begin_repair if operation == "create" else guard.end_repair)()
    assert f"{step} the repair marker failed" in guard.failure


def test_append_to_a_sealed_store_names_its_end(guard: WriteGuard) -> None:
    assert guard.sealed(7).message == f"{EPOCH} takes no appends: it is sealed at offset 7"
