"""The file `shared` in the directory of an epoch whose tail is in the commit log: the store's id, and what it is."""

from __future__ import annotations

import struct
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

from crc32c import crc32c

from tidelog_broker.storage.engine.store import EpochStart
from tidelog_broker.storage.io.errors import DamagedError
from tidelog_broker.storage.io.filesystem import FileSystem

FILE_NAME: Final = "shared"
MOVED_NAME: Final = "moved"
"""An empty file: everything of the store is in the segments of its directory."""
_MAGIC: Final = b"TLSH"
_VERSION: Final = 1
_FILE: Final = struct.Struct("<4sIQ16sIQQI")
_CRC: Final = struct.Struct("<I")


class TailIdentity(NamedTuple):
    """The id of a store in the commit log, and what the store is."""

    store: int
    start: EpochStart


def write_identity(fs: FileSystem, directory: Path, identity: TailIdentity) -> None:
    """Write the file, durably; the caller syncs the directory.

    Raises:
        OSError: the file was not written.
    """
    start = identity.start
    raw = _FILE.pack(
        *(_MAGIC, _VERSION, identity.store, start.topic_id, start.partition, start.epoch, start.offset, start.digest)
    )
    with closing(fs.open(directory / FILE_NAME, create=True)) as file:
        file.pwritev([raw, _CRC.pack(crc32c(raw))], 0)
        file.datasync()


def read_identity(fs: FileSystem, directory: Path) -> TailIdentity:
    """Read the file.

    Raises:
        DamagedError: it is missing or damaged.
        OSError: the disk cannot be read.
    """
    path = directory / FILE_NAME
    if not fs.exists(path):
        raise DamagedError.at(path, 0, "the file is missing")
    with closing(fs.open_readonly(path)) as file:
        data = file.pread(_FILE.size + _CRC.size, 0)
    if len(data) < _FILE.size + _CRC.size:
        raise DamagedError.at(path, 0, f"the file has {len(data)} bytes, expected {_FILE.size + _CRC.size}")
    if _CRC.unpack_from(data, _FILE.size)[0] != crc32c(data[: _FILE.size]):
        raise DamagedError.at(path, 0, "the file has a wrong checksum")
    magic, version, store, *start = _FILE.unpack_from(data)
    if (magic, version) != (_MAGIC, _VERSION):
        raise DamagedError.at(path, 0, f"the file has magic {magic!r} and version {version}")
    return TailIdentity(store, EpochStart(*start))
