"""Opening the commit log after any stop: the newest snapshot, the replay of what follows it, and the end of the log.

Everything that a mark covers was on the disk and is not changed. In the rest, which no mark covers, valid records are
rewritten in place and the ranges between them become fillers, so that the contents are durable before they count (ADR
0051) and a torn write is not examined again; the file is truncated after its last valid record. The next record begins
another file, after records that say where the stores end whose tails were torn.
"""

from __future__ import annotations

import errno
import logging
import secrets
from bisect import bisect_right
from contextlib import closing
from itertools import zip_longest
from pathlib import Path
from typing import Final, NamedTuple

from tidelog_broker.storage.commit_log.commit_log import CommitLog, Sizes
from tidelog_broker.storage.commit_log.log_files import LogFile
from tidelog_broker.storage.commit_log.records import (
    FILE_HEADER_BYTES,
    FILE_SUFFIX,
    FileHeader,
    nonce_in,
    pack_filler,
    unpack_file_header,
)
from tidelog_broker.storage.commit_log.replay import FileReplay, Replay
from tidelog_broker.storage.commit_log.snapshot import SNAPSHOT_SUFFIX, Snapshot, unpack_snapshot
from tidelog_broker.storage.commit_log.tail import Tail
from tidelog_broker.storage.directory.names import NEW_SUFFIX
from tidelog_broker.storage.engine.store import Volume
from tidelog_broker.storage.io.errors import DamagedError, LayoutError, unreadable
from tidelog_broker.storage.io.filesystem import FileSystem
from tidelog_proto.limits import MIB

log = logging.getLogger(__name__)

_WINDOW_BYTES: Final = MIB


class _Found(NamedTuple):
    """A file of the log; `header` is None if it is damaged."""

    path: Path
    base: int
    header: FileHeader | None


def open_log(volume: Volume, directory: Path, sizes: Sizes) -> CommitLog:
    """Recover the log of a node; create its directory if it is missing.

    Raises:
        DamagedError: no header of a file is valid, so nothing in the files can be recognized.
        StorageFailedError: the disk cannot be read or written.
    """
    fs = volume.fs
    try:
        if not fs.exists(directory):
            fs.make_dir(directory)
            fs.sync_dir(directory.parent)
        _remove_unfinished(fs, directory)
        return _recover(volume, directory, sizes)
    except OSError as error:
        raise unreadable(f"{directory} cannot be recovered", error) from error


def _remove_unfinished(fs: FileSystem, directory: Path) -> None:
    for name in fs.list_dir(directory):
        if name.endswith(NEW_SUFFIX):
            fs.unlink(directory / name)


def _recover(volume: Volume, directory: Path, sizes: Sizes) -> CommitLog:
    fs = volume.fs
    found = _files(fs, directory)
    snapshots = _snapshots(fs, directory)
    nonce = _nonce(fs, found, snapshots)
    found = [one for one in found if not _is_unfinished(fs, one, found[-1])]
    snapshot = next((one for one in snapshots if one.nonce == nonce and _is_followed(found, one.position)), None)
    for one in found:
        if one.header is None:
            log.warning("%s: its header is damaged; its records are recognized by those of other files", one.path)
    replay = Replay(snapshot.tails if snapshot else (), synced=snapshot.position if snapshot else 0)
    for one in found:
        if one.header is not None:
            replay.synced = max(replay.synced, one.header.synced)
    results: list[tuple[_Found, FileReplay]] = []
    sizes_of = {one: _logical_bytes(fs, one, following) for one, following in zip_longest(found, found[1:]) if one}
    end = snapshot.position if snapshot else found[0].base if found else 0
    for one in found:
        if one.header is not None and end < min(one.base, one.header.synced):
            replay.lose_range()
        start, end = FILE_HEADER_BYTES, max(end, _aligned(one.base + sizes_of[one]))
        if snapshot is not None and one.base < snapshot.position:
            if one.base + sizes_of[one] <= snapshot.position and one is not found[-1]:
                continue
            start = max(start, snapshot.position - one.base)
        data = _read(fs, one.path)[: sizes_of[one]]
        results.append((one, replay.file(data, start, nonce=nonce, base=one.base)))
    if end < replay.synced:
        replay.lose_range()
    ranges = [(one.base, one.base + sizes_of[one]) for one in found]
    for tail in replay.tails.values():
        _keep_stored(tail, ranges)
    ends = [
        _make_durable(fs, one, result, synced=replay.synced, size_bytes=sizes_of[one], nonce=nonce)
        for one, result in results
    ]
    torn = replay.finish()
    position = max([replay.synced, *ends, *(snapshot.position for snapshot in snapshots)], default=0)
    commit_log = CommitLog(
        volume, directory, nonce=nonce, position=_aligned(position), tails=replay.tails.values(), sizes=sizes
    )
    commit_log.before_first = torn
    commit_log.mark_recovered()
    commit_log.snapshot_position = snapshot.position if snapshot else 0
    for one in found:
        file = fs.open_readonly(one.path)
        end = one.base + min(file.size(), sizes_of[one])
        commit_log.files.add(LogFile(one.path, file, one.base, end, end))
    return commit_log


def _is_followed(found: list[_Found], position: int) -> bool:
    """Return whether the log has everything after a snapshot at a position: files are deleted oldest first."""
    return bool(found) and found[0].base <= position


def _keep_stored(tail: Tail, ranges: list[tuple[int, int]]) -> None:
    """End a tail before the first batch whose file is missing, or ends within the batch."""
    at, entries = 0, tail.entries
    for slot, (position, length) in enumerate(zip(entries.positions, entries.lengths, strict=True)):
        if not ranges[at][0] <= position <= ranges[at][1] - length:
            at = bisect_right(ranges, position, key=lambda one: one[0]) - 1
            if at < 0 or position > ranges[at][1] - length:
                tail.diverge(entries.offsets[slot])
                return


def _aligned(position: int) -> int:
    return -(-position // 64) * 64


def _files(fs: FileSystem, directory: Path) -> list[_Found]:
    found: list[_Found] = []
    for name in fs.list_dir(directory):
        stem = name.removesuffix(FILE_SUFFIX)
        if not name.endswith(FILE_SUFFIX) or not stem.isdigit():
            continue
        path, base = directory / name, int(stem)
        with closing(fs.open_readonly(path)) as file:
            try:
                header = unpack_file_header(file.pread(FILE_HEADER_BYTES, 0))
            except LayoutError:
                header = None
        if header is not None and header.base != base:
            header = None
        found.append(_Found(path, base, header))
    return sorted(found, key=lambda one: one.base)


def _snapshots(fs: FileSystem, directory: Path) -> list[Snapshot]:
    """Return the valid snapshots, newest first."""
    found: list[Snapshot] = []
    for name in sorted(fs.list_dir(directory), reverse=True):
        if name.endswith(SNAPSHOT_SUFFIX):
            try:
                found.append(unpack_snapshot(_read(fs, directory / name)))
            except LayoutError as error:
                log.warning("%s cannot be used, so more of the log is read: %s", directory / name, error)
    return found


def _nonce(fs: FileSystem, found: list[_Found], snapshots: list[Snapshot]) -> int:
    """Return the nonce of the log, a new one for a log without records.

    Raises:
        DamagedError: there are files with contents, but no valid header and no valid record.
    """
    known = [one.header.nonce for one in found if one.header is not None] + [one.nonce for one in snapshots]
    if known:
        return max(set(known), key=known.count)
    for one in found:
        data = _read(fs, one.path)
        nonce = nonce_in(data, base=one.base)
        if nonce is not None:
            return nonce
        if _has_contents(data):
            raise DamagedError.at(one.path, 0, "the file of the commit log has no valid header and no valid record")
    return secrets.randbits(64)


def _has_contents(data: bytes) -> bool:
    """Return whether a file was written after its header."""
    return data.count(0, FILE_HEADER_BYTES) < len(data) - FILE_HEADER_BYTES


def _is_unfinished(fs: FileSystem, one: _Found, newest: _Found) -> bool:
    """Remove a file whose creation a crash has interrupted, before any record was in it; return whether it was one."""
    if one is not newest or one.header is not None or _has_contents(_read(fs, one.path)):
        return False
    fs.unlink(one.path)
    fs.sync_dir(one.path.parent)
    return True


def _logical_bytes(fs: FileSystem, one: _Found, following: _Found | None) -> int:
    """Return the size of a file up to where the next one begins: a crash can undo the truncation of a full file."""
    with closing(fs.open_readonly(one.path)) as file:
        size_bytes = file.size()
    return size_bytes if following is None else min(size_bytes, following.base - one.base)


def _make_durable(fs: FileSystem, one: _Found, result: FileReplay, *, synced: int, size_bytes: int, nonce: int) -> int:
    """Make the part of a file that no mark covers durable and free of torn records; return the file's end."""
    end = one.base + result.end
    if end <= synced and one.base + size_bytes <= max(end, synced):
        return end
    if end <= synced and one.base + size_bytes > synced and result.end < synced - one.base:
        # Synced records at the end of the file are damaged: they stay as they are, for the tools.
        return one.base + size_bytes
    start = max(FILE_HEADER_BYTES, _aligned(synced) - one.base)
    with closing(fs.open(one.path)) as file:
        for bad in result.bad:
            if bad.at >= start:
                filler = pack_filler(bad.size_bytes, nonce=nonce, position=one.base + bad.at)
                file.pwritev([filler], bad.at)
        position = start
        while position < result.end and (data := file.pread(min(_WINDOW_BYTES, result.end - position), position)):
            file.pwritev([data], position)
            if file.pread(len(data), position) != data:
                raise OSError(errno.EIO, "the commit log's contents changed between two reads", str(one.path))
            position += len(data)
        if file.size() > result.end:
            file.truncate(result.end)
        file.datasync()
    return end


def _read(fs: FileSystem, path: Path) -> bytes:
    with closing(fs.open_readonly(path)) as file:
        return file.pread(file.size(), 0)
