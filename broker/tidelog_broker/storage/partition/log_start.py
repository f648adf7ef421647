"""Where a partition's log begins by retention, kept beside it in `log-start`: two lines, an offset and its CRC32C each.

A copy that begins late may lack what is still to be filled from peers, or what retention has deleted; only this file
tells the two apart. It is written before anything is deleted. A missing or damaged one means 0: then what was deleted
counts as missing until the partition's owner says otherwise.

Each line has a block of its own, and the higher one counts. A new offset goes over the lower one, in its place: a crash
in the middle leaves the other, a full disk has no need to refuse it, and one synced write is all it takes. `keep_space`
makes the file early, because a full disk is when deleting matters most. Rejected: a new file beside that is renamed,
which takes two syncs, and a full disk refuses it.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Final

from crc32c import crc32c

from tidelog_broker.storage.io.errors import StorageFailedError, is_shortage, space_or_failure
from tidelog_broker.storage.io.filesystem import File, FileSystem
from tidelog_broker.storage.segment.layout import NEW_SUFFIX

NAME: Final = "log-start"
LINES_AT: Final = (0, 4096)
"""In blocks of their own: where a write is torn, the disk may lose all of the block around it."""
_LINE_BYTES: Final = 29


def load_log_start(fs: FileSystem, directory: Path) -> int:
    """Return the offset that is kept in a partition's directory, 0 without one.

    Raises:
        StorageFailedError: the disk does not read.
    """
    path = directory / NAME
    try:
        if not fs.exists(path):
            return 0
        with closing(fs.open_readonly(path)) as file:
            return max(_read(file))
    except OSError as error:
        raise space_or_failure(f"{path} cannot be read", error) from error


def keep_space(fs: FileSystem, directory: Path) -> None:
    """Make the file with all of its blocks, with offset 0 if there is none: so that a full disk takes another offset.

    Raises:
        DiskFullError: no space; there is still none.
        StorageFailedError: the disk failed.
    """
    path = directory / NAME
    try:
        if not fs.exists(path):
            return _make(fs, directory, 0)
        with closing(fs.open(path)) as file:
            if file.size() <= LINES_AT[1]:  # as one line was once kept
                file.pwritev_durably([_line(max(_read(file)))], LINES_AT[1])
    except OSError as error:
        raise space_or_failure(f"{path} cannot be written", error) from error


def raise_log_start(fs: FileSystem, directory: Path, offset: int) -> None:
    """Keep `offset` durably, unless a higher one is kept. One thread of a node at a time may call this for a partition.

    Raises:
        DiskFullError: no space; what was kept before still is.
        StorageFailedError: the disk failed.
    """
    path = directory / NAME
    try:
        if not fs.exists(path):
            return _make(fs, directory, offset)
        with closing(fs.open(path)) as file:
            kept = _read(file)
            if offset > max(kept):
                _write(file, offset, LINES_AT[kept.index(min(kept))])
    except OSError as error:
        raise space_or_failure(f"{path} cannot be written", error) from error


def _write(file: File, offset: int, at: int) -> None:
    """Write a line over. A full disk may have no space for a second one: then the only one is written over."""
    try:
        file.pwritev_durably([_line(offset)], at)
    except OSError as error:
        if at == 0 or not is_shortage(error):
            raise
        file.pwritev_durably([_line(offset)], 0)


def _make(fs: FileSystem, directory: Path, offset: int) -> None:
    """Make the file with all of its blocks, durably, under its name or not at all."""
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
        raise space_or_failure(f"{path} cannot be made", error) from error
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
    """Return the offsets of the lines, 0 for one that is not there or damaged."""
    offsets: list[int] = []
    for at in LINES_AT:
        line = file.pread(_LINE_BYTES, at)
        text, crc = line[:20], line[21:]
        is_whole = text.isdigit() and crc == b"%08x" % crc32c(text)
        offsets.append(int(text) if is_whole else 0)
    return offsets
