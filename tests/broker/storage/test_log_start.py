from __future__ import annotations

import errno
from pathlib import Path

import pytest
from tests.broker.faulty_disk import FaultyDisk

from tidelog_broker.storage.errors import DiskFullError, StorageFailedError
from tidelog_broker.storage.filesystem import RealFileSystem
from tidelog_broker.storage.log_start import NAME, keep_space, load_log_start, save_log_start


def test_the_newest_offset_is_kept(tmp_path: Path) -> None:
    fs = RealFileSystem()
    assert load_log_start(fs, tmp_path) == 0
    assert load_log_start(fs, tmp_path / "nothing here") == 0
    for offset in (7, 2**60):
        save_log_start(fs, tmp_path, offset)
        assert load_log_start(fs, tmp_path) == offset
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


@pytest.mark.parametrize("at", [0, 10, 19, 25])
def test_a_damaged_one_counts_for_nothing(tmp_path: Path, at: int) -> None:
    fs = RealFileSystem()
    save_log_start(fs, tmp_path, 1234567890123)
    raw = bytearray((tmp_path / NAME).read_bytes())
    raw[at] ^= 1
    (tmp_path / NAME).write_bytes(raw)
    assert load_log_start(fs, tmp_path) == 0
    (tmp_path / NAME).write_bytes(b"")
    assert load_log_start(fs, tmp_path) == 0


@pytest.mark.parametrize("operation", ["create", "write", "sync", "rename", "sync_dir"])
def test_a_disk_that_fails_is_told_and_the_old_one_stands(tmp_path: Path, operation: str) -> None:
    disk = FaultyDisk()
    save_log_start(disk, tmp_path, 5)
    disk.fail = lambda what, path: OSError(5, "broken") if what == operation else None
    with pytest.raises(StorageFailedError):
        save_log_start(disk, tmp_path, 6)
    disk.heal()
    assert load_log_start(disk, tmp_path) == (6 if operation == "sync_dir" else 5)
    save_log_start(disk, tmp_path, 7)
    assert load_log_start(disk, tmp_path) == 7


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    disk = FaultyDisk()
    disk.fill_up()
    with pytest.raises(DiskFullError):
        save_log_start(disk, tmp_path, 6)


@pytest.mark.parametrize("operation", ["create", "rename"])
def test_a_full_disk_has_the_old_one_written_over(tmp_path: Path, operation: str) -> None:
    disk = FaultyDisk()
    keep_space(disk, tmp_path)
    assert load_log_start(disk, tmp_path) == 0
    full = OSError(errno.ENOSPC, "full")
    disk.fail = lambda what, path: full if what == operation else None
    save_log_start(disk, tmp_path, 6)
    assert disk.log[-1] == ("sync", tmp_path / NAME), "it is durable before anything is deleted"
    disk.heal()
    assert load_log_start(disk, tmp_path) == 6
    keep_space(disk, tmp_path)
    assert load_log_start(disk, tmp_path) == 6


def test_an_error_behind_the_rename_is_final(tmp_path: Path) -> None:
    disk = FaultyDisk()
    disk.fail = lambda what, path: OSError(errno.ENOSPC, "full") if what == "sync_dir" else None
    with pytest.raises(StorageFailedError):
        save_log_start(disk, tmp_path, 6)
