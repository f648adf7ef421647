"""Snapshots of a partition's producer state, which shorten its rebuild from the log.

A file is `producers-OFFSET.snap`: a 48-byte header (magic, version, epoch, offset, digest, payload length, CRC32C of
the payload, CRC32C of the header) and the payload, which is opaque to the storage. A file is written under a temporary
name, synced and renamed. The two newest snapshots at committed offsets are kept, so that a damaged one only costs a
longer scan, and all snapshots at uncommitted offsets.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

from crc32c import crc32c

from tidelog_broker.storage.directory.names import NEW_SUFFIX
from tidelog_broker.storage.io.errors import StorageFailedError, is_shortage, space_or_failure, unreadable
from tidelog_broker.storage.io.filesystem import FileSystem
from tidelog_proto.limits import MIB

SNAPSHOT_BYTES_MAX: Final = 64 * MIB
SNAPSHOTS_KEPT: Final = 2
_MAGIC: Final = int.from_bytes(b"TLPS", "little")
_VERSION: Final = 1
_HEADER: Final = struct.Struct("<IIQQIIII8x")
_CRC_AT: Final = 36
_NAME: Final = re.compile(r"producers-(\d{20})\.snap")


class ProducerSnapshot(NamedTuple):
    """The producers' state at one offset of the log; `digest` is the epoch's running digest there."""

    epoch: int
    offset: int
    digest: int
    payload: bytes


def save_snapshot(fs: FileSystem, directory: Path, snapshot: ProducerSnapshot, *, committed: int) -> None:
    """Write a snapshot durably; of those at or below `committed` remove all but the newest `SNAPSHOTS_KEPT`.

    Raises:
        DiskFullError: no space; the older snapshots are unchanged.
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
        for old in [path for path in _paths(fs, directory) if _offset(path) <= committed][:-SNAPSHOTS_KEPT]:
            fs.unlink(old)
    except OSError as error:
        if is_shortage(error):
            raise space_or_failure(f"{path} cannot be written", error) from error
        raise StorageFailedError(f"{path} cannot be written: {error}; check the disk") from error


def load_snapshots(fs: FileSystem, directory: Path) -> Iterator[ProducerSnapshot]:
    """Yield the valid snapshots, newest first.

    Raises:
        StorageFailedError: the disk cannot be read.
    """
    try:
        for path in reversed(_paths(fs, directory)):
            with closing(fs.open_readonly(path)) as file:
                snapshot = _parse(file.pread(min(file.size(), _HEADER.size + SNAPSHOT_BYTES_MAX), 0))
            if snapshot is not None:
                yield snapshot
    except OSError as error:
        raise unreadable(f"the producer snapshots in {directory} cannot be read", error) from error


def drop_snapshots_behind(fs: FileSystem, directory: Path, offset: int) -> None:
    """Remove snapshots at offsets above `offset`, the end of a truncated log: they would hide older, valid ones.

    Raises:
        OSError: a snapshot could not be removed.
    """
    if not fs.exists(directory):
        return
    for path in _paths(fs, directory):
        if _offset(path) > offset:
            fs.unlink(path)


def _paths(fs: FileSystem, directory: Path) -> list[Path]:
    return [directory / name for name in fs.list_dir(directory) if _NAME.fullmatch(name)]


def _offset(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    assert match is not None
    return int(match[1])


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
