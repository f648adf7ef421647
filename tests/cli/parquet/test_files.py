from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidelog_cli.base.failures import CommandFailed
from tidelog_cli.parquet import files
from tidelog_cli.parquet.files import FILE_SCHEMA, ExportedFile, Source, ends_in, exclusive, name_of

SOURCE = Source("t", b"\x01" * 16)


def rows(start: int, count: int, value: bytes = b"v") -> pa.RecordBatch:
    listed: list[dict[str, Any]] = [
        {"partition": 0, "offset": offset, "timestamp": offset, "key": None, "value": value, "headers": [], "tag": None}
        for offset in range(start, start + count)
    ]
    return pa.RecordBatch.from_pylist(listed, schema=FILE_SCHEMA)


def exported(directory: Path, start: int, end: int, source: Source = SOURCE) -> Path:
    path = directory / name_of(0, start)
    with ExportedFile(path, source, "zstd", 10) as file:
        file.write(rows(start, end - start))
        file.end_offset = end
    return path


def test_file_has_row_groups_and_metadata_of_its_range(tmp_path: Path) -> None:
    path = exported(tmp_path, 5, 40)
    assert pq.read_table(path)["offset"].to_pylist() == list(range(5, 40))
    metadata = pq.read_metadata(path)
    assert [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)] == [10, 10, 10, 5]
    assert metadata.row_group(0).column(4).compression == "ZSTD"
    assert ends_in(tmp_path, SOURCE) == {0: 40}
    assert list(tmp_path.iterdir()) == [path]


def test_a_group_of_large_values_ends_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "ROW_GROUP_BYTES", 1000)
    with ExportedFile(tmp_path / "a.parquet", SOURCE, "none", 1000) as file:
        for start in range(4):
            file.write(rows(start, 1, b"x" * 600))
    assert pq.read_metadata(tmp_path / "a.parquet").num_row_groups == 2


@pytest.mark.parametrize("when", ["while it is written", "at the end"])
def test_failed_write_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    if when == "at the end":
        monkeypatch.setattr(os, "fsync", full)

    def write() -> None:
        with ExportedFile(tmp_path / "a.parquet", SOURCE, "none", 10) as file:
            file.write(rows(0, 30))
            if when == "while it is written":
                full()

    with pytest.raises(OSError, match="No space"):
        write()
    assert list(tmp_path.iterdir()) == []


def test_an_earlier_file_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = exported(tmp_path, 0, 3)

    def write() -> None:
        with ExportedFile(path, SOURCE, "none", 10) as file:
            file.write(rows(0, 30))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write()
    assert pq.read_metadata(path).num_rows == 3


def test_a_directory_is_held_and_cleaned(tmp_path: Path) -> None:
    directory = tmp_path / "deep" / "d"
    with exclusive(directory):
        with pytest.raises(CommandFailed, match="another export writes"), exclusive(directory):
            pass
        (directory / (name_of(0, 0) + ".123.tmp")).touch()
    with exclusive(directory):
        assert list(directory.iterdir()) == []


def test_files_of_something_else_are_refused(tmp_path: Path) -> None:
    assert ends_in(tmp_path, SOURCE) == {}
    exported(tmp_path, 0, 3)
    with pytest.raises(
        CommandFailed, match=r"export of topic 't', not of the existing topic 'u' \(a topic that was deleted"
    ):
        ends_in(tmp_path, Source("u", b"\x02" * 16))
    (tmp_path / name_of(0, 3)).write_bytes(b"PAR1")
    with pytest.raises(CommandFailed, match="cannot be read"):
        ends_in(tmp_path, SOURCE)
    (tmp_path / name_of(0, 3)).unlink()
    (tmp_path / "mine.parquet").touch()
    with pytest.raises(CommandFailed, match="not written by an export"):
        ends_in(tmp_path, SOURCE)
