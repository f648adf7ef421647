"""Reading whole batches, headers and digests from one open segment.

A read is one `pread` into fresh memory, or slices of a mapping if the bytes go to a socket and are large enough: a
mapping saves the copy but costs a walk through the page table (docs/adr/0073). Only system calls may read a slice, see
`storage.io.mapping`, so the headers of its batches are read separately.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tidelog_broker.storage.engine.reading import FoundBatches
from tidelog_broker.storage.io.errors import DamagedError, unreadable
from tidelog_broker.storage.segment.disk import OpenSegment
from tidelog_broker.storage.segment.mappings import Mappings
from tidelog_proto.batch.header import MAGIC, BatchHeader, unpack_header
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import HEADER_BYTES, KIB
from tidelog_proto.wire.frames import JOIN_BYTES_MAX

MAPPED_BYTES_MIN: Final = 64 * KIB
"""Smaller reads copy: that is cheaper than mapping, and the sender may join small parts, which touches their pages."""
MAPPED_BATCH_BYTES_MIN: Final = 8 * KIB
"""Smallest average batch size for which a mapping pays, because each header is read separately."""
AHEAD: Final = 2
"""Read-ahead as a multiple of the read, so that the disk works while the batches are sent."""

assert MAPPED_BYTES_MIN > JOIN_BYTES_MAX, "a slice of a mapping is never joined"

_MAGIC_AND_OFFSET: Final = struct.Struct("<I68xQ")


def read_batches(
    opened: OpenSegment,
    path: Path,
    *,
    offset: int,
    limit_offset: int,
    end_offset: int,
    max_bytes: int,
    at_least_one: bool,
    mappings: Mappings | None = None,
) -> FoundBatches:
    """Read batches from the one that holds `offset` on, as many as fit `max_bytes`.

    Args:
        path: the segment's path, for errors.
        offset: an offset inside the segment.
        limit_offset: only batches that end at or below it are read.
        end_offset: the segment's end as loaded by the caller; later batches are being written.
        max_bytes: bound on the file range that the batches span.
        at_least_one: the first batch may exceed the bound.
        mappings: if given, batches may come from a mapping; only for a segment that is not written to.

    Returns:
        The batches and the offset after the last; no batches and `offset` if the segment has none from there on.

    Raises:
        DamagedError: the file lacks the first batch that the index lists.
    """
    index = opened.index
    first = index.slot_of(offset)
    # A batch ends where the next one begins, so batches before the one that holds the limit end at or below the limit.
    stop = index.slots_below(end_offset)
    if limit_offset < end_offset:
        stop = min(stop, index.slot_of(limit_offset))
    if first < 0 or first >= stop:
        return FoundBatches([], [], offset)
    start = index.place(first).position
    # A batch that begins within the range may end after it; the one before it does not.
    fitting = index.slots_before_position(start + max_bytes + 1, first, stop)
    last = index.place(fitting - 1)
    if last.position + last.length - start > max_bytes:
        fitting -= 1
    if fitting <= first:
        if not at_least_one:
            return FoundBatches([], [], offset)
        fitting = first + 1
    stop = fitting
    last = index.place(stop - 1)
    length_bytes = last.position + last.length - start
    next_offset = index.offsets[stop] if stop < index.slots_below(end_offset) else end_offset
    places = [index.place(slot) for slot in range(first, stop)]
    data: memoryview | None = None
    if mappings is not None and length_bytes >= max(MAPPED_BYTES_MIN, len(places) * MAPPED_BATCH_BYTES_MIN):
        opened.file.read_ahead(start, AHEAD * length_bytes)
        data = mappings.take(opened.file, start, length_bytes)
    if data is None:
        data = memoryview(opened.file.pread(length_bytes, start))
        batches = [data[place.position - start : place.position - start + place.length] for place in places]
        heads = batches
    else:
        batches = [data[place.position - start : place.position - start + place.length] for place in places]
        heads = [memoryview(opened.file.pread(HEADER_BYTES, place.position)) for place in places]
    if (
        len(data) < length_bytes
        or len(heads[0]) < HEADER_BYTES
        or _MAGIC_AND_OFFSET.unpack_from(heads[0]) != (MAGIC, index.offsets[first])
    ):
        raise DamagedError.at(path, start, f"the index lists a batch at offset {index.offsets[first]}; it is missing")
    return FoundBatches(batches, heads, next_offset)


def read_headers(opened: OpenSegment, path: Path, *, offset: int, end_offset: int) -> Iterator[BatchHeader]:
    """Yield the headers of the batches from the one that holds `offset` to the end, without their bodies.

    Raises:
        DamagedError: a header is corrupt.
        StorageFailedError, NoDescriptorError: the disk cannot be read.
    """
    index = opened.index
    for slot in range(max(0, index.slot_of(offset)), index.slots_below(end_offset)):
        position = index.place(slot).position
        try:
            yield unpack_header(opened.file.pread(HEADER_BYTES, position), typed=True)
        except ProtocolError as error:
            raise DamagedError.at(path, position, error.message) from error
        except OSError as error:
            raise unreadable(f"{path} cannot be read", error) from error


def read_digest(opened: OpenSegment, path: Path, offset: int) -> int | None:
    """Return the running digest before the batch that begins at `offset`; None if no batch begins there.

    Args:
        offset: an offset above the segment's base offset and below its end.

    Raises:
        DamagedError: the previous header is corrupt.
        StorageFailedError, NoDescriptorError: the disk cannot be read.
    """
    index = opened.index
    slot = index.slot_of(offset)
    if slot < 1 or index.offsets[slot] != offset:
        return None
    position = index.place(slot - 1).position
    try:
        header = unpack_header(opened.file.pread(HEADER_BYTES, position), typed=True)
    except ProtocolError as error:
        raise DamagedError.at(path, position, error.message) from error
    except OSError as error:
        raise unreadable(f"{path} cannot be read", error) from error
    if header.end_offset != offset:
        found = header.end_offset
        raise DamagedError.at(path, position, f"the batch ends at offset {found}, but the index lists {offset}")
    return header.digest
