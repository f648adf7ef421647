"""The file of the sync marks: slots, damage, and syncs in the background."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tidelog_broker.storage.io.filesystem import File, RealFileSystem
from tidelog_broker.storage.rocksdb.marks import SLOT_BYTES, SyncMarks


@pytest.fixture
def path(tmp_path: Path) -> Path:
    RealFileSystem().open(tmp_path / "marks", create=True).close()
    return tmp_path / "marks"


def opened(path: Path, offer: Callable[[Callable[[], None]], bool] | None = None) -> closing[SyncMarks]:
    return closing(SyncMarks(RealFileSystem().open(path), offer))


def test_marks_are_found_by_store_after_a_start(path: Path) -> None:
    with opened(path) as marks:
        for store in (5, 6, 7):
            marks.write(store, marks.free_slot(), 10 * store)
        marks.write_durably(6, 1, 1)
    with opened(path) as marks:
        assert [marks.found(store) for store in (4, 5, 6, 7)] == [None, 50, 1, 70]
        assert marks.newest_store == 7


def test_slot_of_a_removed_store_is_used_again(path: Path) -> None:
    with opened(path) as marks:
        slots = [marks.free_slot() for _ in range(3)]
        assert slots == [0, 1, 2]
        marks.write(1, 1, 9)
        marks.release(1, 1)
        assert marks.found(1) is None
        assert [marks.free_slot(), marks.free_slot()] == [1, 3]


def test_damaged_slot_is_ignored(path: Path) -> None:
    with opened(path) as marks:
        for store in (1, 2):
            marks.write(store, store, 100)
    data = bytearray(path.read_bytes())
    data[SLOT_BYTES + 8] ^= 1
    path.write_bytes(data + b"torn")
    with opened(path) as marks:
        assert [marks.found(1), marks.found(2)] == [None, 100]


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    return clock


def test_marks_are_synced_in_the_background_once_a_second(path: Path, now: list[float]) -> None:
    offered: list[Callable[[], None]] = []

    def offer(task: Callable[[], None]) -> bool:
        offered.append(task)
        return True

    with opened(path, offer) as marks:
        for _ in range(10):
            marks.write(1, 0, 5)
        assert not offered
        now[0] += 1.0
        for _ in range(10):
            marks.write(1, 0, 6)
        assert len(offered) == 1
        offered[0]()
        now[0] += 1.0
        marks.write(1, 0, 7)
        assert len(offered) == 2


class FailingFile:
    """A file whose sync fails."""

    def __init__(self, file: File) -> None:
        self._file = file

    def datasync(self) -> None:
        raise OSError(5, "Input/output error")

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)


def test_failed_sync_is_reported_by_a_durable_write_only(path: Path) -> None:
    with closing(SyncMarks(FailingFile(RealFileSystem().open(path)), None)) as marks:  # type: ignore[arg-type]
        marks.write(1, 0, 5)
        with pytest.raises(OSError, match="Input/output"):
            marks.write_durably(1, 0, 4)
