"""An append-only file of small payloads that must never be lost or invented: decisions, fences, incarnations.

The file begins with a header:

| at | size | field of the header |
| --- | --- | --- |
| 0 | 4 | magic, the kind of journal |
| 4 | 4 | version |
| 8 | 8 | nonce: random, new for every file |
| 16 | 44 | reserved, zero |
| 60 | 4 | CRC32C of bytes 0..59 |

The entries follow:

| at | size | field of an entry |
| --- | --- | --- |
| 0 | 4 | magic `TLJE` |
| 4 | 4 | payload length (bytes) |
| 8 | 8 | nonce of the file |
| 16 | 8 | position of the entry itself |
| 24 | 8 | synced position: everything before it was on the disk when the entry was written |
| 32 | 4 | CRC32C of the payload |
| 36 | 4 | CRC32C of bytes 0..35 |
| 40 | | payload, zero-padded to a multiple of 64 |

Entries begin at multiples of 64 bytes; a zero magic ends the content. `append` returns when the group is synced. As in
the segment log, a bad entry that a later entry declares synced is damage: the journal does not open, because replacing
a lost promise by a default would lose acknowledged data. A missing file, too, is damage: the file is created once, with
the data directory. A bad entry that no later one declares synced is a torn group that was never
acknowledged, and is zeroed.

So that damage in the newest group is detected, a mark follows it: an entry with the magic `TLJM` and no payload, which
declares everything before it synced. A mark is written after a short time without appends, at a clean stop, when a
journal without one is opened, and at the end of a compacted file. Damage stays undetected only in a group that was
written right before a crash and is damaged before the next start; closing that gap would need a second sync of every
group.

Space is preallocated, so that a full disk still takes the entries that end an epoch. Compaction writes the live entries
to a new file and renames it; the old file is kept until the new one is durable. After the rename any error is final, a
full disk included: the old file has lost its name, so later entries written to it would be missing at the next open.
"""

from __future__ import annotations

import contextlib
import secrets
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from crc32c import crc32c

from tidelog_broker.storage.directory.names import NEW_SUFFIX
from tidelog_broker.storage.engine.store import padded
from tidelog_broker.storage.io.errors import (
    DamagedError,
    DiskFullError,
    StorageFailedError,
    is_shortage,
    space_or_failure,
)
from tidelog_broker.storage.io.filesystem import File, FileSystem
from tidelog_proto.limits import BATCH_ALIGNMENT_BYTES, MIB

JOURNAL_HEADER_BYTES: Final = 64
ENTRY_HEADER_BYTES: Final = 40
PAYLOAD_BYTES_MAX: Final = MIB
RESERVE_BYTES: Final = MIB
"""Space that a journal keeps allocated after its end, for entries that must be written although the disk is full."""
JOURNAL_BYTES_MAX: Final = 1024 * MIB
"""Largest size of a valid journal."""
JOURNAL_REMEDY: Final = (
    "replace the node by one with an empty directory (--replace), or restore the whole directory from a backup if no "
    "other node has its data"
)
"""The remedy for a lost or damaged journal, whose promises no other node has."""

_CLOSED: Final = "the journal is closed"
_VERSION: Final = 1
_ENTRY_MAGIC_BYTES: Final = b"TLJE"
_ENTRY_MAGIC: Final = int.from_bytes(_ENTRY_MAGIC_BYTES, "little")
_MARK_MAGIC_BYTES: Final = b"TLJM"
_MARK_MAGIC: Final = int.from_bytes(_MARK_MAGIC_BYTES, "little")
_MARK_BYTES: Final = padded(ENTRY_HEADER_BYTES)
_HEADER: Final = struct.Struct("<4sIQ44xI")
_ENTRY: Final = struct.Struct("<IIQQQII")
_U32: Final = struct.Struct("<I")

assert _HEADER.size == JOURNAL_HEADER_BYTES
assert _ENTRY.size == ENTRY_HEADER_BYTES


class Journal:
    """An open journal; used by one thread at a time."""

    def __init__(
        self, fs: FileSystem, magic: bytes, file: File, *, path: Path, nonce: int, end_position: int, is_marked: bool
    ) -> None:
        self.path = path
        self._fs = fs
        self._magic = magic
        self._file = file
        self._nonce = nonce
        self._end_position = end_position
        self._allocated_bytes = file.size()
        self._is_marked = is_marked
        """Whether a mark follows the newest group, or the journal is empty."""
        self._failure = ""

    @staticmethod
    def make(fs: FileSystem, path: Path, magic: bytes) -> None:
        """Create an empty journal, durably; an empty one left by an interrupted start is kept.

        Raises:
            DamagedError: a journal exists that has entries or is damaged.
            DiskFullError: no space.
            StorageFailedError: the disk cannot be read or written.
        """
        if fs.exists(path):
            journal, payloads = Journal.open(fs, path, magic)
            journal.close()
            if payloads:
                raise DamagedError(f"{path} cannot be created: it exists and has {len(payloads)} entries")
            return
        try:
            _write_file(fs, path, magic, [])[0].close()
        except OSError as error:
            raise space_or_failure(f"{path} cannot be created", error) from error

    @classmethod
    def open(cls, fs: FileSystem, path: Path, magic: bytes) -> tuple[Journal, list[bytes]]:
        """Open a journal, and return it with its payloads in order. A missing file is damage.

        Raises:
            DamagedError: the file is missing, or synced bytes have changed.
            NoDescriptorError: no more files can be opened.
            StorageFailedError: the disk cannot be read or written.
        """
        assert len(magic) == 4
        try:
            unnamed = path.with_name(path.name + NEW_SUFFIX)
            if fs.exists(unnamed):
                fs.unlink(unnamed)
            if not fs.exists(path):
                raise DamagedError(
                    f"{path} is missing; it was created with the data directory, and recorded what this node promised "
                    f"to other nodes: {JOURNAL_REMEDY}"
                )
            file = fs.open(path)
            try:
                nonce, payloads, end_position, is_marked = _recover(file, magic)
                journal = cls(fs, magic, file, path=path, nonce=nonce, end_position=end_position, is_marked=is_marked)
                journal.mark()
                fs.sync_dir(path.parent)
            except BaseException:
                file.close()
                raise
        except OSError as error:
            raise space_or_failure(f"{path} cannot be opened", error) from error
        return journal, payloads

    @property
    def size_bytes(self) -> int:
        """The size of the content, without preallocated space."""
        return self._end_position

    def has_reserve(self) -> bool:
        """Allocate the reserve if the disk has space, and return whether at least half of it is allocated.

        Optional entries must not use up the reserve.

        Raises:
            StorageFailedError: the disk failed, now or before.
        """
        self._check()
        self._take_space(0)
        return self._end_position + RESERVE_BYTES // 2 <= self._allocated_bytes

    def append(self, payloads: Sequence[bytes]) -> None:
        """Write a group of payloads and return when it is synced.

        Raises:
            DiskFullError: no space; nothing has changed.
            StorageFailedError: the write or sync failed, now or before.
        """
        self._check()
        if not payloads:
            return
        blob = _pack_entries(payloads, nonce=self._nonce, position=self._end_position)
        self._take_space(len(blob))
        try:
            self._file.pwritev([blob], self._end_position)
            self._file.datasync()
        except OSError as error:
            raise self._fail("a write", error) from error
        self._end_position += len(blob)
        self._is_marked = False

    def mark(self) -> None:
        """Write a mark that everything is synced, unless the last entry is a mark or the disk is full.

        Raises:
            StorageFailedError: the write or sync failed, now or before.
        """
        self._check()
        if self._is_marked:
            return
        try:
            self._take_space(_MARK_BYTES)
        except DiskFullError:
            return
        try:
            self._file.pwritev([_pack_mark(nonce=self._nonce, position=self._end_position)], self._end_position)
            self._file.datasync()
        except OSError as error:
            raise self._fail("writing a sync mark", error) from error
        self._end_position += _MARK_BYTES
        self._is_marked = True

    def compact(self, live: Iterable[bytes]) -> None:
        """Replace the content by these payloads, atomically.

        Raises:
            DiskFullError: no space for the new file; the old one stays in use.
            StorageFailedError: the disk failed.
        """
        self._check()
        try:
            file, nonce, end_position = _write_file(self._fs, self.path, self._magic, list(live))
        except OSError as error:
            if is_shortage(error):
                raise space_or_failure(f"{self.path} cannot be compacted", error) from error
            raise self._fail("compaction", error) from error
        except StorageFailedError as error:
            self._failure = error.message
            raise
        self._file.close()
        self._file, self._nonce, self._end_position = file, nonce, end_position
        self._allocated_bytes = file.size()
        self._is_marked = True

    def close(self) -> None:
        """Write a mark and close the file; all entries are synced already."""
        if not self._failure:
            with contextlib.suppress(StorageFailedError):  # Nothing is lost; the next open checks the content.
                self.mark()
        if self._failure != _CLOSED:
            self._failure = _CLOSED
            self._file.close()

    def _take_space(self, length_bytes: int) -> None:
        """Keep the reserve allocated after the end; if the disk is full, use the reserve."""
        needed = self._end_position + length_bytes
        if needed + RESERVE_BYTES // 2 <= self._allocated_bytes:
            return
        try:
            self._file.allocate(self._allocated_bytes, needed + RESERVE_BYTES - self._allocated_bytes)
            self._allocated_bytes = needed + RESERVE_BYTES
        except OSError as error:
            if not is_shortage(error):
                raise self._fail("allocating space", error) from error
            if needed > self._allocated_bytes:
                raise space_or_failure(f"{length_bytes} bytes cannot be added to {self.path}", error) from error

    def _check(self) -> None:
        if self._failure:
            raise StorageFailedError(f"{self.path} takes no more writes: {self._failure}")

    def _fail(self, what: str, error: OSError) -> StorageFailedError:
        self._failure = f"{what} failed: {error}; check the disk and restart the node"
        return StorageFailedError(f"{self.path}: {self._failure}")


def _pack_header(magic: bytes, nonce: int) -> bytes:
    raw = bytearray(_HEADER.pack(magic, _VERSION, nonce, 0))
    _U32.pack_into(raw, JOURNAL_HEADER_BYTES - 4, crc32c(memoryview(raw)[:-4]))
    return bytes(raw)


def _pack_entries(payloads: Sequence[bytes], *, nonce: int, position: int) -> bytes:
    """Return a group's bytes; each entry declares everything before the group synced."""
    synced_position = position
    parts: list[bytes] = []
    for payload in payloads:
        assert len(payload) <= PAYLOAD_BYTES_MAX
        head = bytearray(_ENTRY.pack(_ENTRY_MAGIC, len(payload), nonce, position, synced_position, crc32c(payload), 0))
        _U32.pack_into(head, ENTRY_HEADER_BYTES - 4, crc32c(memoryview(head)[:-4]))
        length = ENTRY_HEADER_BYTES + len(payload)
        parts += [bytes(head), payload, bytes(padded(length) - length)]
        position += padded(length)
    return b"".join(parts)


def _pack_mark(*, nonce: int, position: int) -> bytes:
    head = bytearray(_ENTRY.pack(_MARK_MAGIC, 0, nonce, position, position, 0, 0))
    _U32.pack_into(head, ENTRY_HEADER_BYTES - 4, crc32c(memoryview(head)[:-4]))
    return bytes(head) + bytes(_MARK_BYTES - ENTRY_HEADER_BYTES)


def _write_file(fs: FileSystem, path: Path, magic: bytes, payloads: Sequence[bytes]) -> tuple[File, int, int]:
    """Write a journal beside `path`, sync it and rename it; return the open file, its nonce and its end.

    Raises:
        OSError: nothing has changed.
        StorageFailedError: the new journal has the name, but perhaps not durably.
    """
    unnamed = path.with_name(path.name + NEW_SUFFIX)
    if fs.exists(unnamed):
        fs.unlink(unnamed)
    nonce = secrets.randbits(64)
    blob = _pack_header(magic, nonce) + _pack_entries(payloads, nonce=nonce, position=JOURNAL_HEADER_BYTES)
    if payloads:
        blob += _pack_mark(nonce=nonce, position=len(blob))  # The file is renamed only after all of it is synced.
    file = fs.open(unnamed, create=True)
    try:
        file.allocate(0, len(blob) + RESERVE_BYTES)
        file.pwritev([blob], 0)
        file.datasync()
        fs.rename(unnamed, path)
    except BaseException:
        file.close()
        with contextlib.suppress(OSError):  # The first error is raised; the next open removes the file.
            fs.unlink(unnamed)
        raise
    try:
        fs.sync_dir(path.parent)
    except OSError as error:
        file.close()
        raise StorageFailedError(
            f"journal {path}: fsync of its directory after the rename failed: {error}; check the disk"
        ) from error
    except BaseException:
        file.close()
        raise
    return file, nonce, len(blob)


def _recover(file: File, magic: bytes) -> tuple[int, list[bytes], int, bool]:
    """Return a journal's nonce, payloads, end, and whether a mark is the last entry; zero a torn tail.

    Raises:
        DamagedError: synced bytes are corrupt, or the file is too large or of another kind or version.
    """
    if file.size() > JOURNAL_BYTES_MAX:
        reason = f"it has {file.size():,} bytes, a journal has at most {JOURNAL_BYTES_MAX:,}"
        raise DamagedError(f"{file.path} is damaged: {reason}; {JOURNAL_REMEDY}")
    data = file.pread(file.size(), 0)
    nonce = _parse_header(file.path, data, magic)
    payloads: list[bytes] = []
    position, is_marked = JOURNAL_HEADER_BYTES, True
    while True:
        payload = _parse_entry(data, position, nonce)
        if payload is not None:
            payloads.append(payload)
            position += padded(ENTRY_HEADER_BYTES + len(payload))
            is_marked = False
        elif _parse_head(data, position, nonce, _MARK_MAGIC) is not None:
            position += _MARK_BYTES
            is_marked = True
        else:
            break
    synced_position = max(JOURNAL_HEADER_BYTES, _newest_synced_position(data, nonce))
    if synced_position > position:
        raise DamagedError(
            f"{file.path} is damaged at byte {position}: a synced entry has a bad header or checksum; {JOURNAL_REMEDY}"
        )
    # The newest group, its mark and the zeroes after them may be only in the page cache, in pages that are marked
    # clean: see `storage.epoch.rewrite`.
    file.pwritev([data[synced_position:position], bytes(len(data) - position)], synced_position)
    file.datasync()
    return nonce, payloads, position, is_marked


def _parse_header(path: Path, data: bytes, magic: bytes) -> int:
    """Return the nonce in a journal's header.

    Raises:
        DamagedError: the header is invalid, or of another version.
    """
    if len(data) < JOURNAL_HEADER_BYTES:
        reason = f"it has {len(data)} bytes, fewer than its header of {JOURNAL_HEADER_BYTES}"
        raise DamagedError(f"{path} is damaged: {reason}; {JOURNAL_REMEDY}")
    found, version, nonce, crc = _HEADER.unpack_from(data)
    if found != magic or crc != crc32c(memoryview(data)[: JOURNAL_HEADER_BYTES - 4]):
        raise DamagedError(f"{path} is damaged: its header has a bad magic or checksum; {JOURNAL_REMEDY}")
    if version != _VERSION:
        raise DamagedError(
            f"{path} has format version {version}, this build reads {_VERSION}; use the build that wrote it"
        )
    return int(nonce)


def _parse_head(data: bytes, at: int, nonce: int, wanted_magic: int) -> tuple[int, int, int] | None:
    """Return payload length, synced position and payload CRC of the entry or mark at `at`; None if neither exists."""
    if len(data) - at < ENTRY_HEADER_BYTES:
        return None
    magic, length, found_nonce, position, synced_position, payload_crc, crc = _ENTRY.unpack_from(data, at)
    if magic != wanted_magic or found_nonce != nonce or position != at:
        return None
    if crc != crc32c(memoryview(data)[at : at + ENTRY_HEADER_BYTES - 4]):
        return None
    return length, synced_position, payload_crc


def _parse_entry(data: bytes, at: int, nonce: int) -> bytes | None:
    head = _parse_head(data, at, nonce, _ENTRY_MAGIC)
    if head is None:
        return None
    length, _, payload_crc = head
    payload = data[at + ENTRY_HEADER_BYTES : at + ENTRY_HEADER_BYTES + length]
    return payload if len(payload) == length and crc32c(payload) == payload_crc else None


def _newest_synced_position(data: bytes, nonce: int) -> int:
    """Return the highest synced position in any entry or mark of the file; 0 if it has neither."""
    newest = 0
    for magic_bytes in (_ENTRY_MAGIC_BYTES, _MARK_MAGIC_BYTES):
        magic = int.from_bytes(magic_bytes, "little")
        found = data.find(magic_bytes, JOURNAL_HEADER_BYTES)
        while found >= 0:
            if found % BATCH_ALIGNMENT_BYTES == 0:
                head = _parse_head(data, found, nonce, magic)
                if head is not None:
                    newest = max(newest, head[1])
            found = data.find(magic_bytes, found + 1)
    return newest
