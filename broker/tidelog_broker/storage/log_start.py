"""Where a partition's log begins by retention, kept beside it: `log-start`, a line with the offset and its CRC32C.

A copy that begins late may lack what is still to be filled from peers, or what retention has deleted; only this file
tells the two apart. It is written before anything is deleted. A missing or damaged one means 0: then what was deleted
counts as missing until the partition's owner says otherwise.

A new one is made beside and renamed. A full disk refuses that just when something must be deleted: then the old one is
written over in its place, and a crash in the middle leaves a damaged one. So that there is an old one, `keep_space`
makes it early. Rejected: always writing in place, which risks that for nothing.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Final

from crc32c import crc32c

from tidelog_broker.storage.errors import StorageFailedError, is_disk_full, space_or_failure
from tidelog_broker.storage.filesystem import FileSystem
from tidelog_broker.storage.segment import NEW_SUFFIX

NAME: Final = "log-start"
_BYTES: Final = 29


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
            text = file.pread(_BYTES, 0)
    except OSError as error:
        raise space_or_failure(f"{path} cannot be read", error) from error
    offset, crc = text[:20], text[21:]
    return int(offset) if crc == b"%08x" % crc32c(offset) and offset.isdigit() else 0


def keep_space(fs: FileSystem, directory: Path) -> None:
    """Make the file, with offset 0, if there is none: so that a full disk can take another offset.

    Raises:
        DiskFullError: no space; there is still none.
        StorageFailedError: the disk failed.
    """
    if not fs.exists(directory / NAME):
        save_log_start(fs, directory, 0)


def save_log_start(fs: FileSystem, directory: Path, offset: int) -> None:
    """Keep `offset` durably in the place of the one before it.

    Raises:
        DiskFullError: no space, and no old one to write over, or one that takes space, too; the old one stands.
        StorageFailedError: the disk failed.
    """
    path = directory / NAME
    text = b"%020d" % offset
    line = b"%s %08x" % (text, crc32c(text))
    assert len(line) == _BYTES
    try:
        try:
            _replace(fs, path, line)
        except OSError as error:
            if not is_disk_full(error) or not fs.exists(path):
                raise
            with closing(fs.open(path)) as file:
                file.pwritev([line], 0)
                file.datasync()
            return
    except OSError as error:
        raise space_or_failure(f"{path} cannot be written", error) from error
    try:
        fs.sync_dir(directory)
    except OSError as error:
        raise StorageFailedError(f"{path}: its new name could not be synced: {error}; check the disk") from error


def _replace(fs: FileSystem, path: Path, line: bytes) -> None:
    """Give a new file the name; not yet durably.

    Raises:
        OSError: the old one stands.
    """
    unnamed = path.with_name(path.name + NEW_SUFFIX)
    if fs.exists(unnamed):
        fs.unlink(unnamed)
    with closing(fs.open(unnamed, create=True)) as file:
        file.pwritev([line], 0)
        file.datasync()
    fs.rename(unnamed, path)
