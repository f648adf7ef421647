"""Scanning a segment file: batches and marks in order, up to the first block that is neither.

The scan checks everything: header and body CRC32C, contiguous offsets, the epoch, and the running digest. It reads with
`pread` through a window, not through a mapping: a disk error then raises OSError instead of SIGBUS, and waiting for a
cold page does not hold the GIL.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

from crc32c import crc32c

from tidelog_broker.storage.engine.store import padded
from tidelog_broker.storage.io.filesystem import File
from tidelog_broker.storage.segment.index import Index, SegmentEnd
from tidelog_broker.storage.segment.layout import (
    MARK_BYTES,
    MARK_MAGIC_BYTES,
    SEGMENT_HEADER_BYTES,
    SegmentHeader,
    parse_mark,
)
from tidelog_proto.batch.header import BatchHeader, digest_after, unpack_header
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import BATCH_ALIGNMENT_BYTES, HEADER_BYTES, MIB

WINDOW_BYTES: Final = MIB
_ZERO_MAGIC: Final = bytes(4)
_ZERO_WINDOW: Final = bytes(WINDOW_BYTES)


class Window:
    """Reads a file sequentially with few large `pread`s."""

    def __init__(self, file: File, window_bytes: int = WINDOW_BYTES) -> None:
        self._file = file
        self._window_bytes = window_bytes
        self._at = 0
        self._data = memoryview(b"")

    def get(self, position: int, length_bytes: int) -> memoryview:
        """Return `length_bytes` bytes from `position` on; fewer at the end of the file."""
        start = position - self._at
        if start < 0 or start + length_bytes > len(self._data):
            self._data = memoryview(self._file.pread(max(length_bytes, self._window_bytes), position))
            self._at = position
            start = 0
        return self._data[start : start + length_bytes]


@dataclass(frozen=True, slots=True)
class Stop:
    """The place and reason at which a scan ended: a zero magic, the end of the file, a bad block, or `bytes_max`."""

    kind: Literal["zero", "end", "bad", "more"]
    position: int
    reason: str = ""


@dataclass(slots=True)
class SegmentScan:
    """The result of a scan: the valid prefix of a segment."""

    header: SegmentHeader
    end_position: int
    end_offset: int
    end_digest: int
    synced_offset: int
    """The highest synced offset of the marks in the valid prefix and of the segment's header."""
    synced_end: SegmentEnd
    """The end of the part that a mark in the valid prefix declares synced; the scan's start without such a mark."""
    index: Index = field(default_factory=Index)
    stop: Stop = field(default_factory=lambda: Stop("zero", 0))
    records: int = 0
    marks: int = 0

    @property
    def end(self) -> SegmentEnd:
        """The end of the valid prefix, as an index file stores it."""
        return SegmentEnd(self.end_offset, self.end_position, self.end_digest)


def read_segment_header(file: File) -> SegmentHeader:
    """Read the header of a segment file.

    Raises:
        LayoutError: it is invalid.
    """
    return SegmentHeader.unpack(file.pread(SEGMENT_HEADER_BYTES, 0))


def scan_segment(
    file: File, header: SegmentHeader, start: SegmentEnd | None = None, *, bytes_max: int | None = None
) -> SegmentScan:
    """Scan a segment and return its valid prefix, every byte of which is read.

    Args:
        start: the batch boundary at which the scan begins; None for the start of the segment.
        bytes_max: the scan stops after about this many bytes and can be resumed; None for no limit.
    """
    start = start or SegmentEnd(header.base_offset, SEGMENT_HEADER_BYTES, header.start_digest)
    scan = SegmentScan(
        header, start.position, start.offset, start.digest, synced_offset=header.synced_offset, synced_end=start
    )
    window = Window(file)
    last = None if bytes_max is None else start.position + bytes_max
    while True:
        if last is not None and scan.end_position >= last:
            scan.stop = Stop("more", scan.end_position)
            return scan
        stop = _step(window, scan)
        if stop is not None:
            scan.stop = stop
            return scan


def _step(window: Window, scan: SegmentScan) -> Stop | None:
    """Extend the valid prefix by the next block; return why the scan stops if there is no valid next block."""
    position = scan.end_position
    head = window.get(position, HEADER_BYTES)
    if len(head) == 0:
        return Stop("end", position)
    magic = bytes(head[:4])
    if magic == _ZERO_MAGIC:
        return Stop("zero", position)
    if magic == MARK_MAGIC_BYTES:
        synced = parse_mark(head, 0, nonce=scan.header.nonce, position=position)
        if synced is None:
            return Stop("bad", position, "a sync mark has a bad checksum or position")
        scan.synced_offset = max(scan.synced_offset, synced)
        if synced >= scan.end_offset:
            scan.synced_end = scan.end
        scan.marks += 1
        scan.end_position = position + MARK_BYTES
        return None
    try:
        header = unpack_header(head, typed=True)
    except ProtocolError as error:
        return Stop("bad", position, error.message)
    fault = check_chain(header, head, scan)
    if fault:
        return Stop("bad", position, fault)
    batch = window.get(position, header.length)
    if len(batch) < header.length:
        return Stop("bad", position, f"the header declares a batch of {header.length} bytes, got {len(batch)}")
    if (found_crc := crc32c(batch[HEADER_BYTES:])) != header.body_crc:
        return Stop(
            "bad",
            position,
            f"the header declares CRC32C {header.body_crc:#010x} for the body, its bytes have {found_crc:#010x}",
        )
    scan.index.append(header.base_offset, position, header.length, header.max_timestamp_us)
    scan.end_position = position + padded(header.length)
    scan.end_offset = header.end_offset
    scan.end_digest = header.digest
    scan.records += header.record_count
    return None


def check_chain(header: BatchHeader, raw: memoryview, scan: SegmentScan) -> str:
    """Return why a batch does not continue the valid prefix; empty if it does."""
    if header.epoch != scan.header.epoch:
        return f"found a batch of epoch {header.epoch} in epoch {scan.header.epoch}"
    if header.base_offset != scan.end_offset:
        return f"found a batch at offset {header.base_offset}, expected {scan.end_offset}"
    if header.digest != (digest := digest_after(raw, 0, scan.end_digest)):
        return f"found a batch with digest {header.digest:#x}, expected {digest:#x}"
    return ""


@dataclass(frozen=True, slots=True)
class Remainder:
    """The content after the valid prefix."""

    synced_offset: int | None
    """The highest synced offset of the sync marks in this content; None without a mark."""
    dirty: list[tuple[int, int]]
    """Ranges (position, bytes) that are not all zero."""


def examine_tail(file: File, *, nonce: int, position: int) -> Remainder:
    """Search everything after the valid prefix for marks and for bytes that are not zero."""
    synced: int | None = None
    dirty: list[tuple[int, int]] = []
    for at, chunk in _chunks(file, position):
        if chunk == (_ZERO_WINDOW if len(chunk) == WINDOW_BYTES else bytes(len(chunk))):
            continue
        dirty.append((at, len(chunk)))
        for found in _find_marks(chunk, at, nonce=nonce):
            synced = found if synced is None else max(synced, found)
    return Remainder(synced, dirty)


def _chunks(file: File, position: int) -> Iterator[tuple[int, bytes]]:
    while chunk := file.pread(WINDOW_BYTES, position):
        yield position, chunk
        position += len(chunk)


def _find_marks(chunk: bytes, at: int, *, nonce: int) -> Iterator[int]:
    """Yield the synced offsets of the marks in a chunk whose position `at` is aligned."""
    found = chunk.find(MARK_MAGIC_BYTES)
    while found >= 0:
        if found % BATCH_ALIGNMENT_BYTES == 0:
            synced = parse_mark(chunk, found, nonce=nonce, position=at + found)
            if synced is not None:
                yield synced
        found = chunk.find(MARK_MAGIC_BYTES, found + 1)
