"""Reading whole batches, headers and times out of one open segment.

A read is one `pread` into fresh memory, or slices of a mapping where the bytes go to a socket and are large enough: a
mapping saves the copy and costs a walk through the page table (docs/adr/0073). Nobody looks at a slice, see
`storage.io.mapping`, so the headers of its batches are read besides.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tidelog_broker.storage.io.errors import DamagedError
from tidelog_broker.storage.segment.disk import OpenSegment
from tidelog_broker.storage.segment.mappings import Mappings
from tidelog_proto.batch.header import MAGIC, BatchHeader, unpack_header
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import HEADER_BYTES, KIB
from tidelog_proto.wire.gathered_write import JOIN_BYTES_MAX

MAPPED_BYTES_MIN: Final = 64 * KIB
"""Less is read: the copy is cheaper than the mapping, and what is sent may join small parts by looking at them."""
MAPPED_BATCH_BYTES_MIN: Final = 8 * KIB
"""So large are batches on average, or they are read: each header is read by itself beside a mapping."""
AHEAD: Final = 2
"""So many times what is read is asked of the disk, for whoever reads on: else nothing comes while this is sent."""

assert MAPPED_BYTES_MIN > JOIN_BYTES_MAX, "a slice of a mapping is never joined"

_MAGIC_AND_OFFSET: Final = struct.Struct("<I68xQ")


class FoundBatches(NamedTuple):
    """Whole batches without padding, and the offset to go on from.

    `heads` are what may be looked at of each: the batch itself, or its header where the batch is part of a mapping.
    """

    batches: list[memoryview]
    heads: list[memoryview]
    next_offset: int


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
        opened: the segment.
        path: its path, for errors.
        offset: inside the segment.
        limit_offset: only batches that end at or below this.
        end_offset: the segment's end as the caller took it; batches behind it are being written.
        max_bytes: of the stretch of the file that the batches span.
        at_least_one: the first batch may be larger than that.
        mappings: take the batches out of a mapping if that is worth it; only of a segment that nobody writes to.

    Returns:
        The batches and the offset behind the last; nothing and `offset` when there is none to read.

    Raises:
        DamagedError: what lies there is not the batch that the index names.
    """
    index = opened.index
    first = index.slot_of(offset)
    # The last batch in reach: the one behind it begins at or below the limit.
    stop = index.slots_below(end_offset)
    if limit_offset < end_offset:
        stop = min(stop, index.slot_of(limit_offset))
    if first < 0 or first >= stop:
        return FoundBatches([], [], offset)
    start = index.place(first).position
    # One that begins inside the stretch may end behind it; the one before it does not.
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
        raise DamagedError.at(path, start, "the batch that the index names is not there")
    return FoundBatches(batches, heads, next_offset)


def read_headers(opened: OpenSegment, path: Path, *, offset: int, end_offset: int) -> Iterator[BatchHeader]:
    """Yield the headers of the batches from the one that holds `offset` to the end, without their bodies.

    Raises:
        DamagedError: a header does not check.
    """
    index = opened.index
    for slot in range(max(0, index.slot_of(offset)), index.slots_below(end_offset)):
        position = index.place(slot).position
        try:
            yield unpack_header(opened.file.pread(HEADER_BYTES, position))
        except ProtocolError as error:
            raise DamagedError.at(path, position, error.message) from error


def read_digest(opened: OpenSegment, path: Path, offset: int) -> int | None:
    """Return the running digest in front of the batch that begins at `offset`; None when none begins there.

    `offset` lies behind the segment's first batch and below its end.

    Raises:
        DamagedError: the header in front of it does not check.
    """
    index = opened.index
    slot = index.slot_of(offset)
    if slot < 1 or index.offsets[slot] != offset:
        return None
    position = index.place(slot - 1).position
    try:
        header = unpack_header(opened.file.pread(HEADER_BYTES, position))
    except ProtocolError as error:
        raise DamagedError.at(path, position, error.message) from error
    if header.end_offset != offset:
        raise DamagedError.at(path, position, "the batch that the index names is not there")
    return header.digest
