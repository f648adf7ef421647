from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tidelog_broker.storage.io.filesystem import RealFileSystem


def test_writes_of_more_than_iov_max_buffers_are_complete(tmp_path: Path) -> None:
    fs = RealFileSystem()
    file = fs.open(tmp_path / "file", create=True)
    buffers = [bytes([number % 256]) * (number % 7) for number in range(3000)]
    file.pwritev(buffers, 5)
    whole = bytes(5) + b"".join(buffers)
    assert file.pread(len(whole) + 10, 0) == whole
    assert file.size() == len(whole)
    file.close()


def test_a_short_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_pwrite = os.pwrite
    monkeypatch.setattr(os, "pwritev", lambda fd, buffers, at: real_pwrite(fd, b"".join(buffers)[:3], at))
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real_pwrite(fd, bytes(data)[:2], at))
    file = RealFileSystem().open(tmp_path / "file", create=True)
    file.pwritev([b"abcd", b"efgh", b"i"], 1)
    assert file.pread(100, 1) == b"abcdefghi"
    file.close()


@pytest.mark.parametrize("takes", ["all", "some", "no flags"])
def test_durable_write_syncs_the_file_without_rwf_dsync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, takes: str
) -> None:
    real_pwritev, real_datasync = os.pwritev, os.fdatasync
    synced: list[int] = []

    def pwritev(fd: int, buffers: list[bytes], at: int, flags: int = 0) -> int:
        if not flags or takes == "all":
            return real_pwritev(fd, buffers, at, flags)
        if takes == "some":
            return real_pwritev(fd, [buffers[0][:2]], at, flags)
        raise OSError(errno.EOPNOTSUPP, "not here")

    def datasync(fd: int) -> None:
        synced.append(fd)
        real_datasync(fd)

    monkeypatch.setattr(os, "pwritev", pwritev)
    monkeypatch.setattr(os, "fdatasync", datasync)
    file = RealFileSystem().open(tmp_path / "file", create=True)
    file.pwritev_durably([b"abc", b"def"], 1)
    assert file.pread(100, 0) == b"\0abcdef"
    assert len(synced) == (0 if takes == "all" and hasattr(os, "RWF_DSYNC") else 1)
    file.close()


def test_failed_durable_write_is_not_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[int] = []

    def pwritev(fd: int, buffers: list[bytes], at: int, flags: int = 0) -> int:
        del fd, buffers, at
        tries.append(flags)
        raise OSError(errno.EIO, "lost")

    file = RealFileSystem().open(tmp_path / "file", create=True)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", pwritev)
        with pytest.raises(OSError, match="lost"):
            file.pwritev_durably([b"abc"], 0)
    assert len(tries) == 1
    assert file.size() == 0
    file.close()


def test_allocated_space_reads_as_zero_and_survives_mapping_and_truncation(tmp_path: Path) -> None:
    fs = RealFileSystem()
    file = fs.open(tmp_path / "file", create=True)
    file.allocate(0, 8192)
    file.pwritev([b"x"], 8191)
    file.datasync()
    view = file.map()
    assert bytes(view) == bytes(8191) + b"x"
    file.close()
    assert view[8191] == ord("x")
    del view
    again = fs.open(tmp_path / "file")
    again.truncate(10)
    assert again.size() == 10
    again.close()


def test_names(tmp_path: Path) -> None:
    fs = RealFileSystem()
    fs.make_dir(tmp_path / "d")
    fs.open(tmp_path / "d" / "b", create=True).close()
    with pytest.raises(FileExistsError):
        fs.open(tmp_path / "d" / "b", create=True)
    fs.rename(tmp_path / "d" / "b", tmp_path / "d" / "a")
    fs.sync_dir(tmp_path / "d")
    assert fs.list_dir(tmp_path / "d") == ["a"]
    assert fs.is_dir(tmp_path / "d")
    assert not fs.is_dir(tmp_path / "d" / "a")
    fs.unlink(tmp_path / "d" / "a")
    fs.remove_dir(tmp_path / "d")
    assert not fs.exists(tmp_path / "d")


def test_a_readonly_file_refuses_writes(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    file = RealFileSystem().open_readonly(tmp_path / "file")
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.pwritev([b"y"], 0)
    file.close()


def test_a_lock_is_exclusive_and_ends_with_its_file(tmp_path: Path) -> None:
    fs = RealFileSystem()
    first = fs.lock(tmp_path / "lock", b"me\n")
    with pytest.raises(BlockingIOError):
        fs.lock(tmp_path / "lock", b"you\n")
    assert (tmp_path / "lock").read_bytes() == b"me\n"
    first.close()
    fs.lock(tmp_path / "lock", b"you\n").close()


def test_directory_is_synced_without_a_free_descriptor(tmp_path: Path) -> None:
    program = """
import os, resource, sys
from pathlib import Path
from tidelog_broker.storage.io.filesystem import RealFileSystem
fs, held = RealFileSystem(), []
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
while True:
    try:
        held.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        break
fs.sync_dir(Path(sys.argv[1]))
fs.sync_dir(Path(sys.argv[1]))
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, timeout=60)
