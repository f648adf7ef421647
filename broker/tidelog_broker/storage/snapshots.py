"""Snapshots of a partition's producer state: a shortcut for the rebuild from the log, never the truth.

A file is `producers-OFFSET.snap`: a 48-byte header (magic, version, epoch, offset, digest, payload length, CRC32C of
the payload, CRC32C of the header) and the payload, which is the caller's. It is written beside, synced and renamed;
the two newest are kept, so that a damaged one costs a longer scan and nothing else.
"""

from __future__ import annotations

import re
import struct
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

from crc32c import crc32c

from tidelog_broker.storage.errors import DiskFullError, StorageFailedError, is_disk_full
from tidelog_broker.storage.filesystem import FileSystem
from tidelog_broker.storage.segment import NEW_SUFFIX
from tidelog_proto.limits import MIB

SNAPSHOT_BYTES_MAX: Final = 64 * MIB
SNAPSHOTS_KEPT: Final = 2
_MAGIC: Final = int.from_bytes(b"TLPS", "little")
_VERSION: Final = 1
_HEADER: Final = struct.Struct("<IIQQIIII8x")
_CRC_AT: Final = 36
_NAME: Final = re.compile(r"producers-(\d{20})\.snap")


class ProducerSnapshot(NamedTuple):
    """The producers' state at one point of the log; `digest` is the epoch's running digest there."""

    epoch: int
    offset: int
    digest: int
    payload: bytes


def save_snapshot(fs: FileSystem, directory: Path, snapshot: ProducerSnapshot) -> None:
    """Write a snapshot durably and remove all but the newest ones.

    Raises:
        DiskFullError: no space; the older ones are still there.
        StorageFailedError: the disk failed.
    """
    assert len(snapshot.payload) <= SNAPSHOT_BYTES_MAX
    path = directory / f"producers-{snapshot.offset:020d}.snap"
    unnamed = path.with_name(path.name + NEW_SUFFIX)
    try:
        if fs.exists(unnamed):
            fs.unlink(unnamed)
        with closing(fs.open(unnamed, create=True)) as file:
            file.pwritev([_pack_header(snapshot), snapshot.payload], 0)
            file.datasync()
        fs.rename(unnamed, path)
        fs.sync_dir(directory)
        for old in _paths(fs, directory)[:-SNAPSHOTS_KEPT]:
            fs.unlink(old)
    except OSError as error:
        if is_disk_full(error):
            raise DiskFullError(f"no space for {path.name}: {error}") from error
        raise StorageFailedError(f"{path} cannot be written: {error}") from error


def load_snapshot(fs: FileSystem, directory: Path) -> ProducerSnapshot | None:
    """Return the newest snapshot that checks, None without one.

    Raises:
        StorageFailedError: the disk does not read.
    """
    try:
        for path in reversed(_paths(fs, directory)):
            with closing(fs.open_readonly(path)) as file:
                snapshot = _parse(file.pread(min(file.size(), _HEADER.size + SNAPSHOT_BYTES_MAX), 0))
            if snapshot is not None:
                return snapshot
    except OSError as error:
        raise StorageFailedError(f"the snapshots in {directory} cannot be read: {error}") from error
    return None


def drop_snapshots_behind(fs: FileSystem, directory: Path, offset: int) -> None:
    """Remove snapshots of what was cut off the log: they would hide older ones that still count.

    Raises:
        OSError: one could not be removed.
    """
    if not fs.exists(directory):
        return
    for path in _paths(fs, directory):
        match = _NAME.fullmatch(path.name)
        assert match is not None
        if int(match[1]) > offset:
            fs.unlink(path)


def _paths(fs: FileSystem, directory: Path) -> list[Path]:
    return [directory / name for name in fs.list_dir(directory) if _NAME.fullmatch(name)]


def _pack_header(snapshot: ProducerSnapshot) -> bytes:
    fields = (_MAGIC, _VERSION, snapshot.epoch, snapshot.offset, snapshot.digest, len(snapshot.payload))
    raw = bytearray(_HEADER.pack(*fields, crc32c(snapshot.payload), 0))
    struct.pack_into("<I", raw, _CRC_AT, crc32c(memoryview(raw)[:_CRC_AT]))
    return bytes(raw)


def _parse(data: bytes) -> ProducerSnapshot | None:
    if len(data) < _HEADER.size:
        return None
    magic, version, epoch, offset, digest, length, payload_crc, crc = _HEADER.unpack_from(data)
    if (magic, version) != (_MAGIC, _VERSION) or crc != crc32c(memoryview(data)[:_CRC_AT]):
        return None
    payload = data[_HEADER.size :]
    if len(payload) != length or crc32c(payload) != payload_crc:
        return None
    return ProducerSnapshot(epoch, offset, digest, payload)
