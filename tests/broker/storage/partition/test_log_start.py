from __future__ import annotations

import errno
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from tests.broker.faulty_disk import FaultyDisk
from tests.broker.storage.build import HOME
from tests.broker.storage.logs import new_disk
from tests.broker.storage.sim_disk import PowerCutError

from tidelog_broker.storage.io.errors import DiskFullError, StorageFailedError
from tidelog_broker.storage.io.filesystem import RealFileSystem
from tidelog_broker.storage.partition.log_start import (
    LINES_AT,
    NAME,
    has_log_start,
    keep_space,
    load_log_start,
    raise_log_start,
)


def test_highest_offset_is_stored(tmp_path: Path) -> None:
    fs = RealFileSystem()
    assert load_log_start(fs, tmp_path) == 0
    assert load_log_start(fs, tmp_path / "nothing here") == 0
    for offset in (7, 9, 2**60):
        raise_log_start(fs, tmp_path, offset)
        assert load_log_start(fs, tmp_path) == offset
    raise_log_start(fs, tmp_path, 8)
    keep_space(fs, tmp_path)
    assert load_log_start(fs, tmp_path) == 2**60
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


@pytest.mark.parametrize("at", [0, 10, 19, 25])
def test_damaged_line_is_ignored(tmp_path: Path, at: int) -> None:
    fs = RealFileSystem()
    raise_log_start(fs, tmp_path, 5)
    for offset in (1234567890123, 1234567890124):
        raise_log_start(fs, tmp_path, offset)
    raw = bytearray((tmp_path / NAME).read_bytes())
    newest = raw.index(b"1234567890124") // LINES_AT[1]
    raw[LINES_AT[newest] + at] ^= 1
    (tmp_path / NAME).write_bytes(raw)
    assert load_log_start(fs, tmp_path) == 1234567890123
    raw[LINES_AT[1 - newest] + at] ^= 1
    (tmp_path / NAME).write_bytes(raw)
    assert load_log_start(fs, tmp_path) == 0
    (tmp_path / NAME).write_bytes(b"")
    assert load_log_start(fs, tmp_path) == 0
    raise_log_start(fs, tmp_path, 6)
    assert load_log_start(fs, tmp_path) == 6


def test_intact_offset_is_stored_also_if_it_is_0(tmp_path: Path) -> None:
    fs = RealFileSystem()
    assert not has_log_start(fs, tmp_path)
    keep_space(fs, tmp_path)
    assert (has_log_start(fs, tmp_path), load_log_start(fs, tmp_path)) == (True, 0)
    raw = bytearray((tmp_path / NAME).read_bytes())
    for at in LINES_AT:
        assert has_log_start(fs, tmp_path)
        raw[at] ^= 1
        (tmp_path / NAME).write_bytes(raw)
    assert not has_log_start(fs, tmp_path)


def test_one_line_file_of_an_older_version_is_read_and_extended(tmp_path: Path) -> None:
    fs = RealFileSystem()
    raise_log_start(fs, tmp_path, 5)
    (tmp_path / NAME).write_bytes((tmp_path / NAME).read_bytes()[:29])
    assert load_log_start(fs, tmp_path) == 5
    raise_log_start(fs, tmp_path, 6)
    assert load_log_start(fs, tmp_path) == 6


def test_full_disk_overwrites_the_only_line_of_an_older_file(tmp_path: Path) -> None:
    disk = FaultyDisk()
    raise_log_start(disk, tmp_path, 5)
    path = tmp_path / NAME
    one_line = path.read_bytes()[:29]
    path.write_bytes(one_line)
    full = OSError(errno.ENOSPC, "full")
    writes: list[int] = []

    def fails_once(operation: str, _: Path) -> OSError | None:
        if operation == "write":
            writes.append(1)
        return full if operation == "write" and len(writes) == 1 else None

    disk.fail = fails_once
    raise_log_start(disk, tmp_path, 6)
    assert (load_log_start(disk, tmp_path), path.stat().st_size) == (6, 29)
    disk.heal()
    path.write_bytes(one_line)
    keep_space(disk, tmp_path)
    assert (load_log_start(disk, tmp_path), path.stat().st_size) == (5, LINES_AT[1] + 29), (
        "it has its second block early"
    )


@pytest.mark.parametrize("seed", range(40))
def test_power_loss_leaves_the_old_or_the_new_offset(seed: int) -> None:
    random = Random(seed)
    sim = new_disk()
    kept = offset = 0
    for _ in range(5):
        sim.cut_at = sim.steps + random.randrange(12)
        with suppress(PowerCutError):
            while True:
                offset += random.randint(1, 1000)
                raise_log_start(sim, HOME, offset)
                kept = offset
        sim = sim.power_cut(random)
        assert load_log_start(sim, HOME) in {kept, offset}
        kept = offset = load_log_start(sim, HOME)


@pytest.mark.parametrize("operation", ["create", "write", "sync", "rename", "sync_dir"])
def test_disk_failure_at_creation_is_reported(tmp_path: Path, operation: str) -> None:
    disk = FaultyDisk()
    disk.fail = lambda what, path: OSError(5, "broken") if what == operation else None
    with pytest.raises(StorageFailedError):
        raise_log_start(disk, tmp_path, 6)
    disk.heal()
    assert load_log_start(disk, tmp_path) == (6 if operation == "sync_dir" else 0)
    raise_log_start(disk, tmp_path, 7)
    assert load_log_start(disk, tmp_path) == 7


def test_disk_failure_at_an_update_is_reported_and_keeps_the_old_offset(tmp_path: Path) -> None:
    disk = FaultyDisk()
    raise_log_start(disk, tmp_path, 5)
    disk.fail = lambda what, path: OSError(5, "broken") if what == "write" else None
    with pytest.raises(StorageFailedError):
        raise_log_start(disk, tmp_path, 6)
    assert load_log_start(disk, tmp_path) == 5


def test_full_disk_without_a_file_is_reported(tmp_path: Path) -> None:
    disk = FaultyDisk()
    disk.fill_up()
    with pytest.raises(DiskFullError):
        raise_log_start(disk, tmp_path, 6)
    with pytest.raises(DiskFullError):
        keep_space(disk, tmp_path)


def test_full_disk_overwrites_the_lower_line(tmp_path: Path) -> None:
    disk = FaultyDisk()
    keep_space(disk, tmp_path)
    assert load_log_start(disk, tmp_path) == 0
    size_bytes = (tmp_path / NAME).stat().st_size
    disk.fill_up()
    for offset in (6, 7, 8):
        raise_log_start(disk, tmp_path, offset)
        assert disk.log[-1] == ("sync", tmp_path / NAME), "it is durable before anything is deleted"
        assert load_log_start(disk, tmp_path) == offset
    assert (tmp_path / NAME).stat().st_size == size_bytes


def test_error_after_the_rename_is_final(tmp_path: Path) -> None:
    disk = FaultyDisk()
    disk.fail = lambda what, path: OSError(errno.ENOSPC, "full") if what == "sync_dir" else None
    with pytest.raises(StorageFailedError):
        raise_log_start(disk, tmp_path, 6)
