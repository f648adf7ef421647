"""What a start finds in the database after a power cut, damage, and the loss of files."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
from tests.broker.storage.rocksdb.stand import Stand

from tidelog.testing.engine_batches import batch, read_all
from tidelog_broker.storage.io.errors import DamagedError, EngineMissingError, LimboError
from tidelog_broker.storage.rocksdb import opening
from tidelog_broker.storage.rocksdb.presets import Preset, options_text
from tidelog_broker.storage.rocksdb.rocks_engine import RocksEngine

STORES = 3


@pytest.fixture
def stand(tmp_path: Path) -> Iterator[Stand]:
    made = Stand(tmp_path / "node")
    yield made
    made.close()


def restarted(stand: Stand) -> Stand:
    """Return the node after a kill: the database was not closed, and its files are copied."""
    root = stand.root.with_name(stand.root.name + "-again")
    shutil.copytree(stand.root, root)
    again = Stand(root)
    again.written = stand.written
    return again


def three_stores(stand: Stand) -> None:
    """Append to three stores in turn and sync; only the last groups of store 1 are not synced."""
    for partition in range(STORES):
        stand.create(partition)
    for number in range(20):
        for partition in range(STORES):
            stand.append([batch([b"k%d" % number], size_bytes=200)], partition)
    for partition in range(STORES):
        stand.sync(partition)


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


def sorted_tables(stand: Stand) -> list[Path]:
    """Flush and close; return the files of the column families with records, largest first."""
    stand.flush()
    stand.close()
    return sorted(stand.database.glob("*.sst"), key=lambda path: -path.stat().st_size)


def test_damaged_batch_is_found_by_its_checksum(tmp_path: Path) -> None:
    stand = Stand(tmp_path / "node")
    stand.create()
    while stand.stores[0].segment_count < 4:
        stand.append([batch([b"k"], size_bytes=1500)])
    stand.sync()
    stand.stores[0].close()
    path = sorted_tables(stand)[0]
    data = bytearray(path.read_bytes())
    data[600] ^= 1
    path.write_bytes(data)
    again = Stand(tmp_path / "node")
    store = again.open()
    with pytest.raises(DamagedError, match="is damaged: Corruption"):
        read_all(store)
    damaged = [part.scrub(again.volume.fs, None, 1 << 20).damage for part in store.scrub_parts(is_newest=True)]
    assert any("Corruption" in one for one in damaged)
    again.close()


def everything(stand: Stand) -> dict[Path, bytes]:
    """Return the files of the database, without those that an attempt to open writes anew."""
    files = (path for path in stand.database.iterdir() if not path.name.startswith("LOG"))
    return {path: path.read_bytes() for path in files}


def remove(path: Path) -> None:
    path.unlink()


def overwrite(path: Path) -> None:
    path.write_bytes(b"\xff" * path.stat().st_size)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("CURRENT", remove),
        ("CURRENT", overwrite),
        ("MANIFEST-*", remove),
        ("MANIFEST-*", overwrite),
        ("*.sst", remove),
        ("", shutil.rmtree),
    ],
)
def test_database_that_cannot_be_opened_is_not_changed(
    tmp_path: Path, name: str, change: Callable[[Path], None]
) -> None:
    stand = Stand(tmp_path / "node")
    stand.create()
    stand.append([batch([b"k"])])
    stand.sync()
    sorted_tables(stand)
    change(next(iter(stand.database.glob(name))) if name else stand.database)
    before = everything(stand) if stand.database.exists() else {}
    again = Stand(tmp_path / "node")
    for _ in range(2):
        with pytest.raises(EngineMissingError, match=r"engine rocksdb cannot be used: .*restore .*from a backup"):
            again.open()
    after = everything(stand) if stand.database.exists() else {}
    assert {path: data for path, data in after.items() if path in before} == before
    again.close()


def test_missing_marks_are_made_again(stand: Stand, caplog: pytest.LogCaptureFixture) -> None:
    three_stores(stand)
    again = restarted(stand)
    (again.database.parent / "marks").unlink()
    for partition in range(STORES):
        again.check(partition, stand.written[partition])
    assert "whether records were lost cannot be checked" in caplog.text
    again.close()


def test_directory_without_its_store_is_damaged(stand: Stand) -> None:
    three_stores(stand)
    other = Stand(stand.root.with_name("other"))
    other.create(5)
    shutil.copytree(stand.directory(2), other.directory(2))
    with pytest.raises(DamagedError, match="does not have store 3"):
        other.open(2)
    other.close()


def test_database_of_an_older_format_of_rocksdb_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def older(preset: Preset) -> str:
        return options_text(preset).replace("format_version=5", "format_version=2").replace("kXXH3", "kCRC32c")

    monkeypatch.setattr(opening, "options_text", older)
    stand = Stand(tmp_path / "node")
    three_stores(stand)
    sorted_tables(stand)
    monkeypatch.undo()
    again = Stand(tmp_path / "node")
    for partition in range(STORES):
        again.check(partition, stand.written[partition])
    again.close()


def test_database_of_a_later_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "FORMAT_VERSION", 2)
    stand = Stand(tmp_path / "node")
    stand.create()
    stand.close()
    monkeypatch.undo()
    again = Stand(tmp_path / "node")
    with pytest.raises(EngineMissingError, match="has format version 2, and this release reads version 1; start the"):
        again.open()
    again.close()


def test_engine_can_be_opened_after_its_lock_is_free(stand: Stand) -> None:
    three_stores(stand)
    other = RocksEngine(stand.volume)
    with pytest.raises(EngineMissingError, match=r"another process has .* open: .*end that process, and restart"):
        other.open(stand.directory(0), segment_bytes=4096)
    stand.close()
    assert other.open(stand.directory(0), segment_bytes=4096).end_offset == 20
    other.close()


def test_files_that_a_cut_manifest_does_not_name_are_kept(tmp_path: Path) -> None:
    """RocksDB opens with a manifest that ends early, and removes the files behind its end."""
    stand = Stand(tmp_path / "node")
    stand.create()
    stand.append([batch([b"k"])])
    stand.sync()
    tables = sorted_tables(stand)
    (manifest,) = stand.database.glob("MANIFEST-*")
    data = manifest.read_bytes()
    kept = {path.name: path.read_bytes() for path in tables}
    for size in range(len(data) - 8, 0, -8):
        root = tmp_path / f"cut-{size}"
        shutil.copytree(stand.root, root)
        (root / manifest.relative_to(stand.root)).write_bytes(data[:size])
        again = Stand(root)
        try:
            is_limbo = again.open().state == "limbo"
        except (DamagedError, EngineMissingError):
            is_limbo = False
        again.close()
        if is_limbo:
            before = again.database.parent / "before-1"
            assert {name: (before / name).read_bytes() for name in kept} == kept
            return
    raise AssertionError("no cut of the manifest opens")
