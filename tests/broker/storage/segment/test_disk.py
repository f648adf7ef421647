from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NoReturn

import pytest
from tests.broker.storage.sim_disk import SimDisk

from tidelog_broker.storage.io.errors import NoDescriptorError
from tidelog_broker.storage.segment.disk import OpenSegment, OpenSegments
from tidelog_broker.storage.segment.index import Index


class Opener:
    def __init__(self) -> None:
        self.sim = SimDisk()
        self.opened = 0

    def open(self, path: Path) -> OpenSegment:
        self.opened += 1
        if not self.sim.exists(path):
            self.sim.open(path, create=True).close()
        return OpenSegment(self.sim.open_readonly(path), Index())


def test_least_recently_used_segments_are_closed_beyond_the_capacity() -> None:
    opener, segments = Opener(), OpenSegments(2)
    for name in ("a", "b", "a", "c", "a", "b"):
        path = Path("/" + name)
        with segments.lease(path, partial(opener.open, path)) as opened:
            assert opened.file.size() == 0
    assert opener.opened == 4
    assert len(segments) == opener.sim.open_files == 2


class Unscanned(dict[Path, OpenSegment]):
    def __iter__(self) -> Iterator[Path]:
        raise AssertionError("all open segments are examined")

    def items(self) -> NoReturn:
        raise AssertionError("all open segments are examined")


class UnscannedSegments(OpenSegments):
    def forbid_scans(self) -> None:
        self._open = Unscanned(self._open)


def test_a_read_does_not_examine_the_segments_that_logs_append_to() -> None:
    opener, segments = Opener(), UnscannedSegments(2)
    for number in range(20):
        path = Path(f"/appended-{number}")
        segments.adopt(path, opener.open(path))
    segments.forbid_scans()
    for name in ("/a", "/b", "/a"):
        with segments.lease(Path(name), partial(opener.open, Path(name))):
            assert len(segments) == 21
    assert len(segments) == opener.sim.open_files == 20


def test_leased_segment_stays_open() -> None:
    opener, segments = Opener(), OpenSegments(1)
    path = Path("/a")
    with segments.lease(path, lambda: opener.open(path)) as opened:
        for name in ("/b", "/c"):
            with segments.lease(Path(name), partial(opener.open, Path(name))):
                pass
        segments.drop(path)
        assert opened.file.size() == 0
        assert opener.sim.open_files >= 1
    assert path not in segments._open
    with pytest.raises(AssertionError, match="closed twice"):
        opened.file.close()


def test_failed_sync_is_kept_for_all_callers() -> None:
    opener = Opener()
    segment = opener.open(Path("/a"))
    segment.datasync(5)
    assert segment.synced_bytes == 5
    segment.datasync(3)
    assert segment.synced_bytes == 5
    error = OSError(errno.EIO, "input/output error")
    opener.sim.fail = lambda operation, _path: error if operation == "sync" else None
    with pytest.raises(OSError, match="input/output"):
        segment.datasync(9)
    opener.sim.fail = lambda _operation, _path: None
    with pytest.raises(OSError, match="input/output"):
        segment.datasync(9)
    assert segment.synced_bytes == 5


def test_an_adopted_segment_is_open_until_it_is_released_and_evicted() -> None:
    opener, segments = Opener(), OpenSegments(0)
    segment = opener.open(Path("/a"))
    segments.adopt(Path("/a"), segment)
    assert opener.sim.open_files == 1
    segments.release(segment)
    assert opener.sim.open_files == 0
    segments.drop(Path("/a"))


def test_a_replaced_segment_stays_open_while_it_is_leased() -> None:
    opener, segments = Opener(), OpenSegments(4)
    path = Path("/a")
    with segments.lease(path, partial(opener.open, path)) as old:
        new = opener.open(path)
        segments.replace(path, new)
        assert old.file.size() == 0
        with segments.lease(path, partial(opener.open, path)) as found:
            assert found is new
        assert opener.sim.open_files == 2
    assert opener.sim.open_files == 1
    segments.release(new)
    segments.replace(path, opener.open(path))
    assert opener.sim.open_files == 1


def test_concurrent_opens_share_one_segment() -> None:
    opener, segments = Opener(), OpenSegments(4)
    path = Path("/a")
    opener.open(path).file.close()
    both = threading.Barrier(2)

    def slow() -> OpenSegment:
        both.wait()
        return opener.open(path)

    found: list[OpenSegment] = []

    def use() -> None:
        with segments.lease(path, slow) as opened:
            found.append(opened)

    threads = [threading.Thread(target=use) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] is found[1]
    assert opener.sim.open_files == 1


def test_without_a_descriptor_unleased_segments_are_closed_and_the_open_is_retried() -> None:
    opener, segments = Opener(), OpenSegments(8)
    for name in ("/a", "/b"):
        with segments.lease(Path(name), partial(opener.open, Path(name))):
            pass

    def open_third() -> OpenSegment:
        if opener.sim.open_files > 1:
            raise NoDescriptorError("too many open files")
        return opener.open(Path("/c"))

    with (
        segments.lease(Path("/leased"), partial(opener.open, Path("/leased"))),
        segments.lease(Path("/c"), open_third) as opened,
    ):
        assert opened.file.size() == 0
        assert opener.sim.open_files == len(segments) == 2


def test_failed_open_leaves_nothing() -> None:
    segments = OpenSegments(4)

    def fail() -> OpenSegment:
        raise OSError("no")

    with pytest.raises(OSError, match="no"), segments.lease(Path("/a"), fail):
        pass
    assert len(segments) == 0
