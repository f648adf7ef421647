"""Reading the batches of a tail from the commit log, as they are or checked."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from crc32c import crc32c

from tidelog_broker.storage.commit_log.log_files import LogFiles
from tidelog_broker.storage.commit_log.records import Boundary
from tidelog_broker.storage.commit_log.replay import continues
from tidelog_broker.storage.commit_log.tail import Tail, TailEntries
from tidelog_broker.storage.io.errors import DamagedError
from tidelog_broker.storage.segment.active_segment import BatchFields, batch_fields
from tidelog_proto.batch.header import MAGIC, unpack_header
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import HEADER_BYTES, KIB

_SPAN_BYTES_MAX: Final = 256 * KIB
"""Batches that lie within this range of the log may be read with one operation."""
_SPAN_FACTOR_MAX: Final = 4
"""At most this many times the bytes that are needed are read."""
_MAGIC_AND_OFFSET: Final = struct.Struct("<I68xQ")


class CheckedBatches(NamedTuple):
    """The batches of a tail up to the first damaged one.

    Attributes:
        end: where they end.
        damage: the damage after them; None if these are all batches of the tail.
    """

    batches: list[memoryview]
    fields: list[BatchFields]
    end: Boundary
    damage: DamagedError | None


def read_entries(files: LogFiles, entries: TailEntries, first: int, stop: int) -> list[memoryview]:
    """Read the batches of the slots `first` to `stop - 1`.

    Raises:
        MovedError: the batches were copied elsewhere, and their file was deleted.
        DamagedError: the file lacks a batch that the index lists.
        OSError: the disk cannot be read.
    """
    found: list[memoryview] = []
    while first < stop:
        following = _span_stop(entries, first, stop)
        found += _read_span(files, entries, first, following)
        first = following
    return found


def _span_stop(entries: TailEntries, first: int, stop: int) -> int:
    """Return the slot before which a read that begins at `first` ends."""
    start, wanted, slot = entries.positions[first], 0, first
    while slot < stop:
        wanted += entries.lengths[slot]
        span = entries.positions[slot] + entries.lengths[slot] - start
        if slot > first and (not 0 <= span <= min(_SPAN_BYTES_MAX, _SPAN_FACTOR_MAX * wanted)):
            break
        slot += 1
    return slot


def _read_span(files: LogFiles, entries: TailEntries, first: int, stop: int) -> list[memoryview]:
    start = entries.positions[first]
    with files.lease(start) as held:
        if entries.positions[stop - 1] >= held.end:  # The last of the batches are in the next file.
            return [one for each in range(first, stop) for one in _read_span(files, entries, each, each + 1)]
        length = entries.positions[stop - 1] + entries.lengths[stop - 1] - start
        data = memoryview(held.file.pread(length, start - held.base))
        found: list[memoryview] = []
        for slot in range(first, stop):
            at = entries.positions[slot] - start
            batch = data[at : at + entries.lengths[slot]]
            if len(batch) < entries.lengths[slot]:
                raise DamagedError.at(held.path, entries.positions[slot] - held.base, "the file ends within a batch")
            if _MAGIC_AND_OFFSET.unpack_from(batch) != (MAGIC, entries.offsets[slot]):
                raise DamagedError.at(
                    held.path,
                    entries.positions[slot] - held.base,
                    f"the index lists a batch at offset {entries.offsets[slot]}; it is missing",
                )
            found.append(batch)
    return found


def read_checked(files: LogFiles, tail: Tail) -> CheckedBatches:
    """Read a whole tail, whose lock is held, and check that its batches are what was appended.

    Raises:
        MovedError, OSError: the disk cannot be read.
    """
    entries = tail.entries
    end, batches, fields = entries.base, list[memoryview](), list[BatchFields]()
    for slot in range(len(entries)):
        try:
            (batch,) = read_entries(files, entries, slot, slot + 1)
            header = unpack_header(batch, typed=True)
            if header.length != len(batch) or not continues(header, batch, end):
                raise _damaged(files, entries, slot, f"the batch does not continue the log at offset {end.offset}")
            if crc32c(batch[HEADER_BYTES:]) != header.body_crc:
                raise _damaged(files, entries, slot, "the body of the batch has a wrong checksum")
        except DamagedError as error:
            return CheckedBatches(batches, fields, end, error)
        except ProtocolError as error:
            return CheckedBatches(batches, fields, end, _damaged(files, entries, slot, error.message))
        end = Boundary(header.end_offset, header.digest)
        batches.append(batch)
        fields.append(batch_fields(batch))
    return CheckedBatches(batches, fields, end, None)


def _damaged(files: LogFiles, entries: TailEntries, slot: int, reason: str) -> DamagedError:
    with files.lease(entries.positions[slot]) as held:
        return DamagedError.at(held.path, entries.positions[slot] - held.base, reason)
