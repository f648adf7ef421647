"""The log start offset of a partition, stored in the file `log-start`: two lines, each an offset with its CRC32C.

A copy that begins late may lack records that are still to be fetched from peers, or that retention has deleted; only
this file distinguishes the two. The file is written before anything is deleted. Missing or damaged, it means 0: deleted
records then count as missing until the partition's owner reports the log start.

An only copy deletes without writing the file, because it has stored the delete offset in its fence. Its file shows that
this node knows what was deleted: a log that begins later has lost files. Earlier builds have no file for an only copy,
and the first ones stored no delete offset; the start of such a log is taken for the log start, and stored.

Each line has its own block, and the higher offset counts. A new offset overwrites the lower one: a torn write leaves
the other line intact, the write needs no space, and one synced write suffices. `keep_space` creates the file early,
because deletions matter most on a full disk. Rejected: writing a new file and renaming it, which needs two syncs and
fails on a full disk.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Final

from crc32c import crc32c

from tidelog_broker.storage.directory.names import NEW_SUFFIX
from tidelog_broker.storage.io.errors import StorageFailedError, is_shortage, space_or_failure
from tidelog_broker.storage.io.filesystem import File, FileSystem

NAME: Final = "log-start"
LINES_AT: Final = (0, 4096)
"""The positions of the lines, each in its own block, because a torn write may destroy a whole block."""
_LINE_BYTES: Final = 29


def load_log_start(fs: FileSystem, directory: Path) -> int:
    """Return the log start offset stored in a partition's directory; 0 if no start is stored, or the file is damaged.

    Raises:
        StorageFailedError: the disk cannot be read.
    """
    return max((offset or 0 for offset in _stored(fs, directory)), default=0)


def has_log_start(fs: FileSystem, directory: Path) -> bool:
    """Return whether a log start offset, also 0, is stored and intact.

    Raises:
        StorageFailedError: the disk cannot be read.
    """
    return any(offset is not None for offset in _stored(fs, directory))


def _stored(fs: FileSystem, directory: Path) -> list[int | None]:
    """Return the offsets of the lines, None for one that is missing or damaged; nothing without a file."""
    path = directory / NAME
    try:
        if not fs.exists(path):
            return []
        with closing(fs.open_readonly(path)) as file:
            return _valid(file)
    except OSError as error:
        raise space_or_failure(f"{path} cannot be read", error) from error


def keep_space(fs: FileSystem, directory: Path) -> None:
    """Create the file with both blocks and offset 0 if it is missing, so that a full disk accepts another offset.

    Raises:
        DiskFullError: no space; the file is still missing.
        StorageFailedError: the disk failed.
    """
    path = directory / NAME
    try:
        if not fs.exists(path):
            return _make(fs, directory, 0)
        with closing(fs.open(path)) as file:
            if file.size() <= LINES_AT[1]:  # An older version stored one line.
                file.pwritev_durably([_line(max(_read(file)))], LINES_AT[1])
    except OSError as error:
        raise space_or_failure(f"{path} cannot be written", error) from error


def raise_log_start(fs: FileSystem, directory: Path, offset: int) -> None:
    """Store `offset` durably, unless a higher one is stored. Calls for the same partition must not overlap.

    Raises:
        DiskFullError: no space; the previous offset is still stored.
        StorageFailedError: the disk failed.
    """
    path = directory / NAME
    try:
        if not fs.exists(path):
            return _make(fs, directory, offset)
        with closing(fs.open(path)) as file:
            stored = _read(file)
            if offset > max(stored):
                _write(file, offset, LINES_AT[stored.index(min(stored))])
    except OSError as error:
        raise space_or_failure(f"{path} cannot be written", error) from error


def _write(file: File, offset: int, at: int) -> None:
    """Overwrite a line; if the disk has no space for a second line, overwrite the only one."""
    try:
        file.pwritev_durably([_line(offset)], at)
    except OSError as error:
        if at == 0 or not is_shortage(error):
            raise
        file.pwritev_durably([_line(offset)], 0)


def _make(fs: FileSystem, directory: Path, offset: int) -> None:
    """Create the file with all of its blocks, durably and atomically."""
    path = directory / NAME
    unnamed = path.with_name(path.name + NEW_SUFFIX)
    try:
        if fs.exists(unnamed):
            fs.unlink(unnamed)
        with closing(fs.open(unnamed, create=True)) as file:
            line = _line(offset)
            file.pwritev([line, bytes(LINES_AT[1] - len(line)), line], 0)
            file.datasync()
        fs.rename(unnamed, path)
    except OSError as error:
        raise space_or_failure(f"{path} cannot be created", error) from error
    try:
        fs.sync_dir(directory)
    except OSError as error:
        raise StorageFailedError(f"{path}: its new name could not be synced: {error}; check the disk") from error


def _line(offset: int) -> bytes:
    text = b"%020d" % offset
    line = b"%s %08x" % (text, crc32c(text))
    assert len(line) == _LINE_BYTES
    return line


def _read(file: File) -> list[int]:
    """Return the offsets of the lines, 0 for one that is missing or damaged."""
    return [offset or 0 for offset in _valid(file)]


def _valid(file: File) -> list[int | None]:
    """Return the offsets of the lines, None for one that is missing or damaged."""
    offsets: list[int | None] = []
    for at in LINES_AT:
        line = file.pread(_LINE_BYTES, at)
        text, crc = line[:20], line[21:]
        is_whole = text.isdigit() and crc == b"%08x" % crc32c(text)
        offsets.append(int(text) if is_whole else None)
    return offsets
