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


def test_missing_marks_are_made_again(stand: Stand, caplog: pytest.LogCaptureFixture) -> None:
    three_stores(stand)
    again = restarted(stand)
    (again.database.parent / "marks").unlink()
    for partition in range(STORES):
        again.check(partition, stand.written[partition])
    assert "whether records were lost cannot be checked" in caplog.text
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
