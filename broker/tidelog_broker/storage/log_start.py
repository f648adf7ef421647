"""Where a partition's log begins by retention, kept beside it: `log-start`, a line with the offset and its CRC32C.

A copy that begins late may lack what is still to be filled from peers, or what retention has deleted; only this file
tells the two apart. It is written before anything is deleted. A missing or damaged one means 0: then what was deleted
counts as missing until the partition's owner says otherwise.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Final

from crc32c import crc32c

from tidelog_broker.storage.errors import space_or_failure
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


def save_log_start(fs: FileSystem, directory: Path, offset: int) -> None:
    """Keep `offset` durably in the place of the one before it.

    Raises:
        DiskFullError: no space; the old one stands.
        StorageFailedError: the disk failed.
    """
    path = directory / NAME
    unnamed = path.with_name(path.name + NEW_SUFFIX)
    text = b"%020d" % offset
    try:
        if fs.exists(unnamed):
            fs.unlink(unnamed)
        with closing(fs.open(unnamed, create=True)) as file:
            file.pwritev([b"%s %08x" % (text, crc32c(text))], 0)
            file.datasync()
        fs.rename(unnamed, path)
        fs.sync_dir(directory)
    except OSError as error:
        raise space_or_failure(f"{path} cannot be written", error) from error
