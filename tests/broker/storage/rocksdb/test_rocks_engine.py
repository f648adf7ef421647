"""Requirements of the engine, its shared resources, and removed and copied stores."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.broker.storage.rocksdb.faults import database_of
from tests.broker.storage.rocksdb.stand import Stand

from tidelog.testing.engine_batches import batch, read_all
from tidelog_broker.storage.engines import stores
from tidelog_broker.storage.engines.stores import engine_named, engine_names, is_deleted, remove_store
from tidelog_broker.storage.io.errors import DamagedError, EngineMissingError
from tidelog_broker.storage.rocksdb.database import ROCKSDB
from tidelog_broker.storage.rocksdb.presets import FAMILIES
from tidelog_broker.storage.segment.disk import Disk


@pytest.fixture
def stand(tmp_path: Path) -> Iterator[Stand]:
    made = Stand(tmp_path / "node")
    yield made
    made.close()


def rows(stand: Stand) -> dict[str, int]:
    """Return the number of rows of each column family."""
    database = database_of(stand.engine)
    return {family: sum(1 for _ in database.rows(family, b"", b"\xff" * 20)) for family in FAMILIES}


def fill(stand: Stand, partition: int) -> None:
    while stand.stores[partition].segment_count < 4:
        stand.append([batch([b"a", b"b"], size_bytes=500)], partition)
    stand.sync(partition)


def test_engine_without_its_package_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    monkeypatch.setattr(stores, "find_spec", lambda name: None)
    assert ROCKSDB not in engine_names()
    with pytest.raises(
        EngineMissingError, match=r"engine rocksdb is not installed: .*pip install 'tidelog\[rocksdb\]'"
    ):
        engine_named(Disk(), ROCKSDB)


def test_capabilities_are_known_without_a_database(tmp_path: Path) -> None:
    volume = Disk(engines_dir=tmp_path / "engines")
    can = engine_named(volume, ROCKSDB).capabilities
    assert (can.durable, can.survives_restart, can.replicated, can.compactable) == (True, True, False, True)
    assert not (tmp_path / "engines").exists()
    assert ROCKSDB in engine_names()


def test_removed_store_leaves_one_row_until_the_next_start(stand: Stand) -> None:
    stand.create(0)
    before = rows(stand)
    stand.create(1)
    fill(stand, 1)
    stand.stores.pop(1).close()
    remove_store(stand.volume, stand.directory(1))
    after = rows(stand)
    assert after == {**before, "default": before["default"] + 1}
    stand.close()
    again = Stand(stand.root)
    again.open(0)
    assert rows(again) == before
    again.close()


def test_store_whose_removal_was_interrupted_is_deleted(stand: Stand) -> None:
    stand.create(0)
    stand.stores[0].close()
    stand.engine.forget(stand.directory(0))
    stand.close()
    again = Stand(stand.root)
    assert is_deleted(again.volume, again.directory(0))
    remove_store(again.volume, again.directory(0))
    assert not again.directory(0).exists()
    again.close()


def test_directory_without_its_file_is_the_rest_of_a_deletion(stand: Stand) -> None:
    stand.create(0)
    assert not is_deleted(stand.volume, stand.directory(0))
    next(iter(stand.directory(0).glob("*.rocks"))).unlink()
    assert is_deleted(stand.volume, stand.directory(0))
    with pytest.raises(DamagedError, match=r"the file ID\.rocks is missing"):
        stand.open(0)


@pytest.mark.parametrize("name", ["epoch-00000007.new", "epoch-00000007.bad-1"])
def test_removal_of_a_copied_directory_keeps_the_records_of_the_original(stand: Stand, name: str) -> None:
    store = stand.create(0)
    fill(stand, 0)
    copy = stand.directory(0).with_name(name)
    shutil.copytree(stand.directory(0), copy)
    remove_store(stand.volume, copy)
    assert not copy.exists()
    assert read_all(store) == stand.written[0].batches
    store.close()
    assert read_all(stand.open(0)) == stand.written[0].batches


def test_removal_of_a_replaced_version_deletes_its_records(stand: Stand) -> None:
    """`HeldEpochs.replace` renames the old version of an epoch to a name like this before it is removed."""
    stand.create(0)
    fill(stand, 0)
    stand.stores.pop(0).close()
    renamed = stand.directory(0).with_name("epoch-00000007.1.new")
    stand.directory(0).rename(renamed)
    remove_store(stand.volume, renamed)
    assert rows(stand)["batches"] == 0


def test_sync_mark_is_that_of_one_store(stand: Stand) -> None:
    """The slot of a removed store is used again, and its mark does not count for the next one."""
    stand.create(0)
    fill(stand, 0)
    stand.stores.pop(0).close()
    remove_store(stand.volume, stand.directory(0))
    stand.create(1)
    stand.stores[1].close()
    stand.close()
    again = Stand(stand.root)
    store = again.open(1)
    assert (store.damage, store.end_offset) == (None, 0)
    assert (again.database.parent / "marks").stat().st_size == 32
    again.close()


def test_file_of_a_store_is_checked(stand: Stand) -> None:
    stand.create(0)
    path = next(iter(stand.directory(0).glob("*.rocks")))
    data = bytearray(path.read_bytes())
    data[9] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedError, match="declares CRC32C"):
        stand.open(0)


def test_space_of_deleted_records_is_reclaimed(stand: Stand) -> None:
    store = stand.create(0)
    store.segment_bytes = 1 << 20
    for _ in range(16):
        stand.append([batch([b"a"], size_bytes=1_000_000)])
    stand.sync()
    stand.flush()

    def size() -> int:
        size_bytes = 0
        for path in stand.database.glob("*.sst"):
            with contextlib.suppress(FileNotFoundError):  # RocksDB has just removed it.
                size_bytes += path.stat().st_size
        return size_bytes

    before = size()
    while store.segment_count > 2:
        store.delete_oldest_segment()
    deadline_s = time.monotonic() + 30
    while size() > before * 2 / 3:
        assert time.monotonic() < deadline_s, f"{size()} of {before} bytes are left"
        time.sleep(0.01)
