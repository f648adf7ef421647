"""Opening a store of the database: its parts, the check of its newest batches, and the comparison with its sync mark.

RocksDB recovers a prefix of what was written. A store that ends below its sync mark has lost synced records, because
the WAL or other files are damaged or missing: it is in LIMBO with both offsets, and nothing of it is removed. A store
that ends at or above its mark has lost at most records that were not synced, as after a power cut. An open epoch
without a mark is in LIMBO, too, because its synced end is unknown; the decided end of a sealed one proves that it is
complete.
"""

from __future__ import annotations

from pathlib import Path

from tidelog_broker.storage.engine.store import Damage, padded
from tidelog_broker.storage.io.errors import DamagedError, LayoutError, StorageFailedError
from tidelog_broker.storage.rocksdb.database import Database
from tidelog_broker.storage.rocksdb.opening import ACCEPTED, MARKS
from tidelog_broker.storage.rocksdb.parts import COLUMNS, PART_BYTES, IndexCache, RocksContents, RocksPart
from tidelog_broker.storage.rocksdb.presets import BATCHES, META, TIME
from tidelog_broker.storage.rocksdb.rocks_reader import Rows, verified_to
from tidelog_broker.storage.rocksdb.rows import (
    StoreIdentity,
    extend_index,
    extend_runs,
    offset_in,
    parse_part,
    row_key,
    store_key,
)
from tidelog_broker.storage.segment.index import SegmentEnd
from tidelog_proto.batch.header import unpack_header
from tidelog_proto.errors import ProtocolError


def load_contents(
    database: Database,
    cache: IndexCache,
    directory: Path,
    identity: tuple[int, StoreIdentity],
    *,
    mark: int | None,
    sealed_end_offset: int | None,
    is_new: bool,
) -> RocksContents:
    """Load the contents of a store; `damage` of the contents says why it is in LIMBO.

    Args:
        identity: the id and the identity of the store.
        mark: the offset below which its records were synced; None if that is lost.
        sealed_end_offset, is_new: as `Engine.open`.

    Raises:
        DamagedError: the store has no valid part.
        StorageFailedError: the disk cannot be read.
    """
    store, (start, slot) = identity
    parts, reason = _read_parts(database, directory, store)
    contents = RocksContents(store, slot, start, parts)
    rows = Rows(contents, database, cache)
    if not reason and not is_new:
        reason = _check_newest(rows)
    end_offset = contents.end.offset
    if sealed_end_offset is not None:
        contents.is_sealed = True
        parts[-1].is_growing = False
    expected = max(mark or 0, sealed_end_offset or 0)
    if mark is not None and end_offset < mark:
        what = f"the database has records up to offset {end_offset}, but those up to {mark} were synced"
        reason = f"{what}: {reason}" if reason else what
    elif sealed_end_offset is not None and end_offset != sealed_end_offset:
        what = f"the epoch ends at offset {sealed_end_offset}, but its records in the database at {end_offset}"
        reason = f"{what}: {reason}" if reason else what
    elif mark is None and sealed_end_offset is None and not is_new:
        expected = end_offset
        what = (
            f"its sync mark in {database.path.parent / MARKS} is missing or damaged, so synced records from "
            f"offset {end_offset} on may be missing; restore {database.path.parent} and the partitions from a backup, "
            f"or create the file {database.path.parent / ACCEPTED} and restart the node to continue with what "
            "the database has"
        )
        reason = f"{reason}; {what}" if reason else what
    elif reason:
        expected = (
            end_offset  # The damaged batch was never synced, but RocksDB has recovered it: the database is damaged.
        )
    if reason:
        contents.damage = Damage(directory, 0, end_offset, expected, reason)
    return contents


def store_end(database: Database, store: int) -> int | None:
    """Return the end offset of a store without loading it; None if it has no valid part."""
    newest: tuple[int, bytes] | None = None
    for key, value in database.rows(META, row_key(b"p", store), store_key(b"p", store + 1)):
        newest = offset_in(key), value
    if newest is None:
        return None
    try:
        row = parse_part(newest[1])
    except LayoutError:
        return None
    base_offset = newest[0]
    if row.is_closed:
        key = row_key(b"p", store, base_offset)
        is_indexed = all(database.get(family, key) is not None for family in (TIME, *COLUMNS))
        return row.end_offset if is_indexed else base_offset
    last = [_last_group(database, family, store) for family in (TIME, *COLUMNS)]
    if len(set(last)) > 1:
        return base_offset  # The indexes differ, so the files are of different moments.
    end_offset = last[0] if last[0] is not None else base_offset
    for _, batch in database.rows(BATCHES, row_key(b"", store, end_offset), store_key(b"", store + 1)):
        try:
            end_offset = unpack_header(batch, typed=True).end_offset
        except ProtocolError:
            return end_offset
    return end_offset


def _last_group(database: Database, family: str, store: int) -> int | None:
    """Return the base offset of the last group in an index of the growing part; None if the index is empty."""
    last = None
    for key, _ in database.rows(family, row_key(b"g", store), store_key(b"g", store + 1)):
        last = offset_in(key)
    return last


def stored_bytes(database: Database, store: int) -> int:
    """Return the approximate size of a store."""
    size_bytes = 0
    for _, value in database.rows(META, row_key(b"p", store), store_key(b"p", store + 1)):
        try:
            row = parse_part(value)
        except LayoutError:
            continue
        size_bytes += row.size_bytes if row.is_closed else PART_BYTES // 4
    return size_bytes


def _read_parts(database: Database, directory: Path, store: int) -> tuple[list[RocksPart], str]:
    """Return the valid parts, and why there are no more; empty if there is no reason.

    Raises:
        DamagedError: there is no valid part.
    """
    parts: list[RocksPart] = []
    for key, value in database.rows(META, row_key(b"p", store), store_key(b"p", store + 1)):
        try:
            part = RocksPart(directory, offset_in(key), parse_part(value))
            before = parts[-1] if parts else None
            _check_order(before, part)
        except LayoutError as error:
            if not parts:
                raise DamagedError.at(directory, 0, str(error)) from error
            return parts, str(error)
        parts.append(part)
        if part.growing is not None:
            reason = _read_growing(database, part, store)
            if reason:
                return parts, reason
    if not parts:
        raise DamagedError.at(directory, 0, f"the database has no part of store {store}")
    return parts, ""


def _check_order(before: RocksPart | None, part: RocksPart) -> None:
    """Raise LayoutError if a part does not continue the one before it."""
    if before is None:
        return
    is_next = (before.end_offset, before.end_digest) == (part.base_offset, part.start_digest)
    if before.growing is not None or not is_next:
        raise LayoutError(
            f"the part at offset {part.base_offset} does not continue the one that ends at {before.end_offset}"
        )


def _read_growing(database: Database, part: RocksPart, store: int) -> str:
    """Load the index of the growing part; return why it is not complete, empty if it is.

    The end of the part is that of its last batch that all indexes have and whose header is valid.
    """
    growing = part.growing
    assert growing is not None
    reason = ""
    try:
        begin, end = row_key(b"g", store), store_key(b"g", store + 1)
        for _, value in database.rows(TIME, begin, end):
            extend_index(growing.batches, value)
        for column in COLUMNS:
            for _, value in database.rows(column, begin, end):
                growing.runs[column] = extend_runs(growing.runs[column], value)
    except (LayoutError, DamagedError) as error:
        reason = error.message if isinstance(error, DamagedError) else str(error)
    index = growing.batches
    count = min(len(index), *(growing.runs[column].covered for column in COLUMNS))
    if count < len(index) and not reason:
        reason = f"{len(index)} batches have an offset, but {count} have entries of all indexes"
    while count and (fault := _take_end(database, part, store, index.offsets[count - 1])):
        count -= 1
        reason = reason or f"the batch at offset {index.offsets[count]} cannot be read: {fault}"
    if count:
        place = index.place(count - 1)
        part.size_bytes = place.position + padded(place.length)
        part.max_timestamp_us = index.times_us[count - 1]
    part.growing = growing.first(count)
    return reason


def _take_end(database: Database, part: RocksPart, store: int, offset: int) -> str:
    """Let a part end after the batch at an offset; return why it cannot, empty if it does."""
    try:
        batch = database.get(BATCHES, row_key(b"", store, offset))
        if batch is None:
            return "the database does not have it"
        header = unpack_header(batch, typed=True)
    except StorageFailedError:
        raise
    except ProtocolError as error:
        return error.message
    part.end_offset, part.end_digest = header.end_offset, header.digest
    return ""


def _check_newest(rows: Rows) -> str:
    """Check the batches of the newest part; end the contents before the first invalid one and return the reason."""
    contents = rows.contents
    part = contents.parts[-1]
    index = rows.index(part).batches
    first = 0 if part.growing is not None else max(0, len(index) - 1)
    digest = part.start_digest
    if first:
        digest = unpack_header(rows.batches(index, first - 1, first)[0], typed=True).digest
    reached, digest, reason = verified_to(rows, index, first, len(index), digest)
    if not reason and digest != part.end_digest:
        return f"the newest part ends with digest {digest:#x}, expected {part.end_digest:#x}"
    if reason:
        offset = index.offsets[reached]
        contents.end = SegmentEnd(offset, 0, digest)
        return f"{reason}, at offset {offset}"
    return ""
