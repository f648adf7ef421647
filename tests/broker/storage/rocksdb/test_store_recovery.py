"""Starts after a power cut, after damage of the database, and after the loss of its files."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
from tests.broker.storage.rocksdb.faults import database_of
from tests.broker.storage.rocksdb.stand import STORES, Stand, restarted, three_stores

from tidelog.testing.engine_batches import batch, read_all
from tidelog_broker.storage.io.errors import DamagedError, LimboError
from tidelog_broker.storage.rocksdb.database import Changes
from tidelog_broker.storage.rocksdb.presets import BATCHES
from tidelog_broker.storage.rocksdb.rows import row_key


@pytest.fixture
def stand(tmp_path: Path) -> Iterator[Stand]:
    made = Stand(tmp_path / "node")
    yield made
    made.close()


def wal(stand: Stand) -> Path:
    """Return the only file of the WAL that has records."""
    (path,) = (path for path in stand.database.glob("*.log") if path.stat().st_size)
    return path


@pytest.mark.parametrize("seed", range(12))
def test_power_cut_loses_only_what_was_not_synced(tmp_path: Path, seed: int) -> None:
    random = Random(f"power cut {seed}")
    stand = Stand(tmp_path / "node")
    for partition in range(STORES):
        stand.create(partition, *random.choice([(0, 0), (500, 77)]))
    for cut in range(3):
        for _ in range(random.randint(1, 60)):
            stand.change(random)
        image = tmp_path / f"image-{cut}"
        stand.power_cut(image, random)
        after = Stand(image)
        for partition in range(STORES):
            after.check(partition, stand.written[partition])
        after.close()
        again = Stand(image)  # A second start finds the same.
        for partition in range(STORES):
            assert again.open(partition).damage is None
        again.close()
    stand.close()


def flip(data: bytearray) -> None:
    data[len(data) // 2] ^= 1


def halve(data: bytearray) -> None:
    del data[len(data) // 2 :]


@pytest.mark.parametrize("change", [flip, halve, None])
def test_damage_of_synced_wal_is_limbo_with_its_bounds(
    stand: Stand, change: Callable[[bytearray], None] | None
) -> None:
    three_stores(stand)
    again = restarted(stand)
    path = wal(again)
    data = bytearray(path.read_bytes())
    if change is None:
        path.unlink()
    else:
        change(data)
        path.write_bytes(data)
    for partition in range(STORES):
        if change is None:  # Not even the identities of the stores were in other files.
            with pytest.raises(DamagedError, match="does not have store"):
                again.open(partition)
            continue
        store, written = again.open(partition), stand.written[partition]
        assert store.damage is not None
        assert (store.state, store.damage.synced_offset, store.damage.offset) == ("limbo", 20, store.end_offset)
        assert f"up to offset {store.end_offset}, but those up to 20 were synced" in store.damage.reason
        assert 0 < store.end_offset < 20
        assert read_all(store) == written.batches[: store.end_offset]
        with pytest.raises(LimboError):
            store.ensure_space(64)
        with pytest.raises(DamagedError):
            store.reader.read(15, 1000, limit_offset=20)
    if change is not None:
        assert (again.database.parent / "before-1" / path.name).read_bytes() == bytes(data)
    again.close()


def test_stores_whose_records_are_in_other_files_survive_damage_of_the_wal(stand: Stand) -> None:
    three_stores(stand)
    stand.flush()
    stand.append([batch([b"late"])], 1)
    stand.sync(1)
    again = restarted(stand)
    path = wal(again)
    data = bytearray(path.read_bytes())
    flip(data)
    path.write_bytes(data)
    for partition in (0, 2):
        again.check(partition, stand.written[partition])
    store = again.open(1)
    assert store.damage is not None
    assert (store.state, store.end_offset, store.damage.synced_offset) == ("limbo", 20, 21)
    again.close()


def test_damage_is_found_again_at_each_start_until_the_store_is_truncated(stand: Stand) -> None:
    three_stores(stand)
    again = restarted(stand)
    path = wal(again)
    data = bytearray(path.read_bytes())
    flip(data)
    path.write_bytes(data)
    ends = [again.open(partition).end_offset for partition in range(STORES)]
    again.close()
    third = Stand(again.root)
    for partition, end_offset in enumerate(ends):
        store = third.open(partition)
        assert (store.state, store.end_offset) == ("limbo", end_offset)
        store.truncate(end_offset)
        assert store.state == "active"
    third.close()
    fourth = Stand(again.root)
    assert [fourth.open(partition).state for partition in range(STORES)] == ["active"] * STORES
    fourth.close()


def test_batch_that_the_database_returns_damaged_is_found_at_the_start(stand: Stand) -> None:
    """RocksDB checks what it has stored; the start checks that this is what was appended."""
    three_stores(stand)
    offset = 19
    damaged = bytearray(stand.written[1].batches[offset])
    damaged[-1] ^= 1
    database, changes = database_of(stand.engine), Changes()
    changes.put(BATCHES, row_key(b"", 2, offset), bytes(damaged))
    database.write(changes)
    again = restarted(stand)
    store = again.open(1)
    assert store.damage is not None
    assert (store.state, store.end_offset, store.damage.synced_offset) == ("limbo", offset, 20)
    assert "declares CRC32C" in store.damage.reason
    assert read_all(store) == stand.written[1].batches[:offset]
    again.check(0, stand.written[0])
    again.close()


def test_unsynced_tail_is_not_damage(stand: Stand) -> None:
    three_stores(stand)
    stand.append([batch([b"late"])], 1)
    again = restarted(stand)
    path = wal(again)
    path.write_bytes(path.read_bytes()[:-10])
    for partition in range(STORES):
        again.check(partition, stand.written[partition])
    assert not list(again.database.parent.glob("before*"))
    again.close()


def test_directory_without_its_store_is_damaged(stand: Stand) -> None:
    three_stores(stand)
    other = Stand(stand.root.with_name("other"))
    other.create(5)
    shutil.copytree(stand.directory(2), other.directory(2))
    with pytest.raises(DamagedError, match="does not have store 3"):
        other.open(2)
    other.close()
