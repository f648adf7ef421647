"""Offline verification of a commit log, for `tidelog log inspect` and `verify`: reads everything, changes nothing."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from tidelog_broker.storage.commit_log.records import (
    FILE_HEADER_BYTES,
    FILE_SUFFIX,
    Kind,
    is_batch,
    nonce_in,
    payload_of,
    records_in,
    unpack_file_header,
)
from tidelog_broker.storage.commit_log.replay import BadRange, Replay
from tidelog_broker.storage.commit_log.tail import Tail
from tidelog_broker.storage.io.errors import LayoutError
from tidelog_broker.storage.io.filesystem import FileSystem
from tidelog_proto.batch.header import unpack_header
from tidelog_proto.errors import ProtocolError


class BadTail(NamedTuple):
    """A store that has lost synced records.

    Attributes:
        offset: the first offset that is lost or damaged.
        message: a text for the operator.
    """

    offset: int
    message: str


class LogFileReport(NamedTuple):
    """The contents and the faults of one file of a commit log.

    Attributes:
        fault: why the file's header is invalid; empty if it is valid.
        bad: the ranges without a valid record before the last one.
        used_bytes: where the last valid record ends.
    """

    path: Path
    size_bytes: int
    fault: str
    bad: list[BadRange]
    used_bytes: int
    batches: int
    records: int
    marks: int


class CommitLogReport(NamedTuple):
    """The files of a commit log, and the stores that have lost synced records."""

    files: list[LogFileReport]
    bad_tails: list[BadTail]


def verify_commit_log(fs: FileSystem, directory: Path) -> CommitLogReport:
    """Read all files of a commit log, without its snapshots.

    Raises:
        OSError: the disk cannot be read.
    """
    paths = sorted(directory / name for name in fs.list_dir(directory) if name.endswith(FILE_SUFFIX))
    nonce, replay, files = _nonce(fs, paths), Replay(), list[LogFileReport]()
    for path in paths:
        data, base = _read(fs, path), int(path.stem)
        fault = ""
        try:
            replay.synced = max(replay.synced, unpack_file_header(data).synced)
        except LayoutError as error:
            fault = str(error)
        found = replay.file(data, FILE_HEADER_BYTES, nonce=nonce, base=base)
        counts = _counts(data, nonce=nonce, base=base)
        files.append(LogFileReport(path, len(data), fault, found.bad, found.end, *counts))
    replay.finish()
    return CommitLogReport(files, [_bad_tail(tail) for tail in replay.tails.values() if tail.is_damaged])


def _bad_tail(tail: Tail) -> BadTail:
    start, end_offset = tail.start, tail.end.offset
    return BadTail(
        end_offset,
        f"partition {start.partition} of topic id {start.topic_id.hex()}, epoch {start.epoch}: records below offset "
        f"{tail.marked_offset} were synced, but those from {end_offset} on are damaged or missing",
    )


def _nonce(fs: FileSystem, paths: list[Path]) -> int:
    for path in paths:
        data = _read(fs, path)
        try:
            return unpack_file_header(data).nonce
        except LayoutError:
            nonce = nonce_in(data, base=int(path.stem))
            if nonce is not None:
                return nonce
    return 0


def _counts(data: bytes, *, nonce: int, base: int) -> tuple[int, int, int]:
    """Return the number of batches, of their records, and of marks."""
    batches = records = marks = 0
    for found in records_in(data, FILE_HEADER_BYTES, nonce=nonce, base=base):
        marks += found.kind == Kind.MARK
        if is_batch(found.kind):
            batches += 1
            try:
                records += unpack_header(payload_of(data, found.at, found.length), typed=True).record_count
            except ProtocolError:
                continue
    return batches, records, marks


def _read(fs: FileSystem, path: Path) -> bytes:
    with closing(fs.open_readonly(path)) as file:
        return file.pread(file.size(), 0)
