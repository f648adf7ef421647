from __future__ import annotations

from pathlib import Path

import pytest

from tidelog_broker.storage.io.filesystem import RealFileSystem
from tidelog_broker.storage.node.meta_snapshot import load_meta_snapshot, save_meta_snapshot
from tidelog_proto import broker_pb2 as pb

FS = RealFileSystem()


def snapshot(applied: int) -> pb.MetaSnapshot:
    return pb.MetaSnapshot(applied=applied, meta=pb.TopicRecord(name="__meta"), records=[b"a", b"b" * applied])


def test_newest_snapshot_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "state"
    assert load_meta_snapshot(FS, path) is None
    for applied in (9, 3):
        save_meta_snapshot(FS, path, snapshot(applied))
        assert load_meta_snapshot(FS, path) == snapshot(applied)
    assert [one.name for one in tmp_path.iterdir()] == ["state"]


@pytest.mark.parametrize("at", [0, 9, -1])
def test_damaged_snapshot_is_logged_and_ignored(tmp_path: Path, at: int, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "state"
    save_meta_snapshot(FS, path, snapshot(5))
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    assert load_meta_snapshot(FS, path) is None
    assert "waits for __meta" in caplog.text


def test_temporary_file_of_a_crash_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "state.new").write_bytes(b"x" * 1000)
    save_meta_snapshot(FS, tmp_path / "state", snapshot(1))
    assert load_meta_snapshot(FS, tmp_path / "state") == snapshot(1)
