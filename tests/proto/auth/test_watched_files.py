from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from tidelog_proto.auth.watched_files import Followed, NamedFileError, read_named

log = logging.getLogger(__name__)


def written(path: Path, content: bytes, mode: int = 0o600) -> Path:
    path.touch(mode=0o600)
    path.write_bytes(content)
    path.chmod(mode)
    return path


def test_a_file_is_read_whole_and_no_further_than_it_may_be(tmp_path: Path) -> None:
    assert read_named(written(tmp_path / "a", b"x" * 10), "it", 10) == b"x" * 10
    with pytest.raises(NamedFileError, match=r"it in .*/a has more than 9 bytes"):
        read_named(tmp_path / "a", "it", 9)
    with pytest.raises(NamedFileError, match=r"cannot read it in .*/none: No such file"):
        read_named(tmp_path / "none", "it", 9)
    with pytest.raises(NamedFileError, match="null byte"):
        read_named(Path("a\0b"), "it", 9)


@pytest.mark.timeout(20)
def test_pipe_without_a_writer_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(NamedFileError, match="it is not a regular file"):
        read_named(tmp_path / "pipe", "it", 9, is_secret=True)


@pytest.mark.parametrize(
    ("mode", "secret", "owners"), [(0o600, True, True), (0o640, True, False), (0o604, False, False)]
)
def test_who_else_may_read_it(tmp_path: Path, mode: int, secret: bool, owners: bool) -> None:
    path = written(tmp_path / "a", b"x", mode)
    assert read_named(path, "it", 9) == b"x"
    for is_taken, kind in ((secret, "is_secret"), (owners, "is_owners")):
        if is_taken:
            assert read_named(path, "it", 9, **{kind: True}) == b"x"
        else:
            with pytest.raises(NamedFileError, match=rf"\(mode {mode:o}\): chmod 600 {path}"):
                read_named(path, "it", 9, **{kind: True})


def test_last_content_stays_in_use_and_the_fault_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path / "a", b"one")
    followed = Followed(lambda: read_named(path, "it", 9), NamedFileError, log)
    assert (followed.look(), followed.value) == (False, b"one")
    written(path, b"x" * 10)
    assert [followed.look(), followed.look(), followed.value] == [False, False, b"one"]
    assert [each.split(" has ")[1] for each in caplog.messages] == [
        "more than 9 bytes; check that the path names the right file; the last valid content stays in use"
    ]
    written(path, b"two")
    assert (followed.look(), followed.value) == (True, b"two")
    written(path, b"x" * 10)
    assert not followed.look()
    assert len(caplog.messages) == 2, "it was right in between"
