"""Databases that cannot be opened, other formats, and files that an open keeps."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.broker.storage.rocksdb.stand import STORES, Stand, restarted, sorted_tables, three_stores

from tidelog.testing.engine_batches import batch
from tidelog_broker.storage.io.errors import DamagedError, EngineMissingError
from tidelog_broker.storage.rocksdb import opening
from tidelog_broker.storage.rocksdb.presets import Preset, options_text
from tidelog_broker.storage.rocksdb.rocks_engine import RocksEngine


@pytest.fixture
def stand(tmp_path: Path) -> Iterator[Stand]:
    made = Stand(tmp_path / "node")
    yield made
    made.close()


def everything(stand: Stand) -> dict[Path, bytes]:
    """Return the files of the database, without the logs that each attempt to open it writes."""
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


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def cut_wal(stand: Stand) -> tuple[str, bytes]:
    """Remove the second half of the WAL; return its name and what it has then."""
    (wal,) = (path for path in stand.database.glob("*.log") if path.stat().st_size)
    data = wal.read_bytes()[: wal.stat().st_size // 2]
    wal.write_bytes(data)
    return wal.name, data


@pytest.mark.parametrize("change", [remove, zero])
def test_open_epoch_without_its_mark_is_limbo_until_an_operator_accepts_it(
    stand: Stand, change: Callable[[Path], None]
) -> None:
    three_stores(stand)
    again = restarted(stand)
    cut_wal(again)
    change(again.database.parent / "marks")
    ends: list[int] = []
    for _ in range(2):
        store = again.open(0)
        assert store.damage is not None
        assert store.state == "limbo"
        assert "its sync mark in" in store.damage.reason
        ends.append(store.end_offset)
        again.create(3)  # A new partition has a mark, and takes no slot of the others.
        again.append([batch([b"new"])], 3)
        again.sync(3)
        again.close()
        shutil.rmtree(again.directory(3))
        again = Stand(again.root)
    assert ends[0] == ends[1] < 20
    accepted = again.database.parent / opening.ACCEPTED
    accepted.touch()
    store = again.open(0)
    assert (store.state, store.end_offset) == ("active", ends[0])
    assert not accepted.exists()
    again.close()
    again = Stand(again.root)
    assert [again.open(partition).state for partition in range(STORES)] == ["active"] * STORES
    again.close()


def test_sealed_epoch_that_reaches_its_end_needs_no_mark(stand: Stand) -> None:
    three_stores(stand)
    again = restarted(stand)
    (again.database.parent / "marks").unlink()
    assert again.open(0, sealed_end_offset=20).state == "sealed"
    assert again.open(1).state == "limbo"
    again.close()


def test_later_starts_with_the_same_loss_keep_no_other_database(stand: Stand) -> None:
    three_stores(stand)
    again = restarted(stand)
    cut_wal(again)
    for _ in range(3):
        assert again.open(0).state == "limbo"
        again.close()
        again = Stand(again.root)
    assert [path.name for path in again.database.parent.glob("before*")] == ["before-1"]
    assert not (again.database.parent / "opened").exists()


def test_database_before_an_interrupted_open_is_kept(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    """RocksDB removes a damaged WAL while it opens; a process may be killed before the stores are compared."""
    three_stores(stand)
    again = restarted(stand)
    name, data = cut_wal(again)

    class KilledError(BaseException):
        pass

    def killed(*_: object) -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(RocksEngine, "take_stock", killed)
        for _ in range(2):
            with pytest.raises(KilledError):
                again.open(0)
    assert again.open(0).state == "limbo"
    assert (again.database.parent / "before-1" / name).read_bytes() == data
    again.close()


def test_lost_store_does_not_share_its_id_with_a_later_one(stand: Stand) -> None:
    """The removal of a partition that the database has lost removes no records of another one."""
    stand.create(0)
    stand.append([batch([b"k"])], 0)
    stand.sync(0)
    stand.flush()
    stand.create(1)
    stand.append([batch([b"k"])], 1)
    stand.sync(1)
    for has_marks in (True, False):
        root = stand.root.with_name(f"again-{has_marks}")
        shutil.copytree(stand.root, root)
        again = Stand(root)
        (wal,) = (path for path in again.database.glob("*.log") if path.stat().st_size)
        zero(wal)
        if not has_marks:
            (again.database.parent / "marks").unlink()
        with pytest.raises(DamagedError, match="does not have store"):
            again.open(1)
        again.create(2)
        again.append([batch([b"k"])], 2)
        again.sync(2)
        again.engine.forget(again.directory(1))
        again.close()
        again = Stand(root)
        store = again.open(2)
        assert (store.state, store.end_offset) == ("active", 1)
        names = [next(again.directory(partition).glob("*.rocks")).name for partition in (1, 2)]
        assert (names[0] != names[1]) is has_marks
        again.close()


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
    monkeypatch.setattr(opening, "DATABASE_VERSION", 2)
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
