"""The store of an epoch in the database; see `rocks_engine`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tidelog_broker.storage.directory.write_guard import WriteGuard
from tidelog_broker.storage.engine.reading import ScrubPart
from tidelog_broker.storage.engine.store import AppendedGroup, EpochStore, State, padded
from tidelog_broker.storage.io.errors import StorageFailedError
from tidelog_broker.storage.io.filesystem import FileSystem
from tidelog_broker.storage.rocksdb.database import CHUNK_BYTES, ROCKSDB, Changes
from tidelog_broker.storage.rocksdb.marks import SyncMarks
from tidelog_broker.storage.rocksdb.parts import COLUMNS, PART_BYTES, RocksPart, hashes_of
from tidelog_broker.storage.rocksdb.presets import BATCHES, META, TIME
from tidelog_broker.storage.rocksdb.rocks_reader import RocksReader, RocksScrubPart, Rows
from tidelog_broker.storage.rocksdb.rows import PartRow, pack_entries, pack_index, pack_part, row_key, store_key
from tidelog_broker.storage.segment.active_segment import BatchFields, check_group
from tidelog_broker.storage.segment.hash_entries import BatchEntries
from tidelog_broker.storage.segment.index import Index, SegmentEnd
from tidelog_proto.batch.header import Buffer


class RocksStore(EpochStore):
    """The store of an epoch in the database of the node."""

    engine = ROCKSDB
    is_lost = False

    def __init__(
        self,
        fs: FileSystem,
        directory: Path,
        rows: Rows,
        marks: SyncMarks,
        *,
        segment_bytes: int,
        is_repairing: bool,
    ) -> None:
        contents = rows.contents
        self.directory = directory
        self.topic_id, self.partition, self.epoch = contents.start[:3]
        self.held = contents
        self.is_repairing = is_repairing
        self.segment_bytes = segment_bytes
        self.synced_offset = contents.end.offset
        self._contents = contents
        self._rows = rows
        self.reader = RocksReader(rows)
        self._database = rows.database
        self._marks = marks
        self._cache = rows.cache
        self._reserved_bytes = 0
        self._guard = WriteGuard(fs, directory)

    # ----------------------------------------------------------------------------------------- state

    @property
    def state(self) -> State:
        """Whether the store takes appends, and if not, why."""
        return self._guard.state(self._contents.damage, is_sealed=self._contents.is_sealed)

    @property
    def end_offset(self) -> int:
        """The offset after the last record; in LIMBO, after the last readable one."""
        return self._contents.end.offset

    @property
    def end_digest(self) -> int:
        """The running digest at the end."""
        return self._contents.end.digest

    @property
    def segments(self) -> tuple[RocksPart, ...]:
        """The parts, oldest first."""
        return self._contents.parts

    # ------------------------------------------------------------------------------------ appending

    def has_room(self, needed_bytes: int) -> bool:
        """Return whether a group fits the reserved space and the newest part, and the database accepts writes."""
        contents = self._contents
        if self._guard.failure or contents.is_sealed or contents.damage is not None or self._database.is_pressed:
            return False
        return needed_bytes <= self._reserved_bytes and not self._must_roll(needed_bytes)

    def ensure_space(self, needed_bytes: int) -> None:
        """Reserve space for a group, and begin another part if the newest is full.

        Raises:
            DiskFullError: no space; nothing has changed.
            EngineBusyError: the database accepts no writes now; nothing has changed.
            LimboError: the store is in LIMBO.
            StorageFailedError: the store is closed or sealed, or the database has failed.
        """
        self._check_writable()
        if needed_bytes > self._reserved_bytes or self._database.is_pressed:
            self._reserved_bytes += self._database.reserve(needed_bytes)
        if self._must_roll(needed_bytes):
            self._roll()

    def roll(self) -> bool:
        """Begin another part if the newest has batches; return whether it did.

        Raises:
            DiskFullError, EngineBusyError, LimboError, StorageFailedError: as `ensure_space`.
        """
        self._check_writable()
        if not self._newest.end_offset > self._newest.base_offset:
            return False
        self._database.reserve(0)
        self._roll()
        return True

    def append(self, batches: Sequence[Buffer]) -> AppendedGroup:
        """Append a group of stamped batches, for which `ensure_space` was called. Does not sync.

        Raises:
            StorageFailedError: the write failed, now or before; any part of the group may be stored.
        """
        self._check_writable()
        before = self._contents.end
        fields = check_group(batches, epoch=self.epoch, offset=before.offset, digest=before.digest)
        size_bytes = first = 0
        chunk_bytes = 0
        for number, batch in enumerate(batches):
            if chunk_bytes and chunk_bytes + len(batch) > CHUNK_BYTES:
                size_bytes += self._append(batches[first:number], fields[first:number])
                first, chunk_bytes = number, 0
            chunk_bytes += len(batch)
        size_bytes += self._append(batches[first:], fields[first:])
        self._reserved_bytes = max(0, self._reserved_bytes - size_bytes)
        self._database.look_for_stall()
        return AppendedGroup(before.offset, self._contents.end.offset, size_bytes)

    def _append(self, batches: Sequence[Buffer], fields: Sequence[BatchFields]) -> int:
        """Append a group with its index entries; return its size."""
        part, store = self._newest, self._contents.store
        growing = part.growing
        assert growing is not None, "a part that takes appends grows"
        first = len(growing.batches)
        found = hashes_of(batches, fields, first)
        changes = Changes()
        index, position = Index(), part.size_bytes
        for batch, one in zip(batches, fields, strict=True):
            changes.put(BATCHES, row_key(b"", store, one.base_offset), bytes(batch))
            index.append(one.base_offset, position, len(batch), one.max_timestamp_us)
            position += padded(len(batch))
        key = row_key(b"g", store, fields[0].base_offset)
        if first:  # The times of an index are running maxima.
            _raise_times(index, growing.batches.times_us[-1])
        changes.put(TIME, key, pack_index(index, at=first))
        for column, entries in found.items():
            changes.put(column, key, pack_entries(entries, first, first + len(batches)))
        self._write(changes)
        before_bytes = part.size_bytes
        part.append([len(batch) for batch in batches], fields, found)
        self._contents.end = SegmentEnd(part.end_offset, 0, part.end_digest)
        return part.size_bytes - before_bytes

    def sync(self) -> int:
        """Make all appended batches durable and return their end offset.

        Raises:
            StorageFailedError: the sync failed, now or before. It is never retried.
        """
        self._check_writable()
        target = self._contents.end.offset
        try:
            self._database.sync()
        except StorageFailedError as error:
            self._guard.give_up(error.message)
            raise
        if target != self.synced_offset:
            self.synced_offset = target
            self._mark(target)
        return target

    def _mark(self, offset: int) -> None:
        try:
            self._marks.write(self._contents.store, self._contents.slot, offset)
        except OSError as error:
            raise self._guard.failed("writing the sync mark", error) from error

    def seal(self) -> None:
        """Seal the epoch at its end: close the newest part, sync, and take no more appends.

        Raises:
            StorageFailedError: as `sync`.
        """
        self._check_writable()
        part = self._newest
        if part.growing is not None and part.end_offset > part.base_offset:
            changes = Changes()
            closed = self._close_part(changes, part)
            self._write(changes)
            self._contents.parts = (*self._contents.parts[:-1], closed)
        self.sync()
        part.is_growing = False
        self._contents.is_sealed = True

    def close(self, *, sync: bool = True) -> None:
        """Sync, and take no more writes; a store whose state is not `active` is only closed.

        Raises:
            StorageFailedError: the last sync failed.
        """
        try:
            if sync and self.state == "active":
                self.sync()
        finally:
            self._guard.give_up("the store is closed")

    # ------------------------------------------------------------------------------------ changes of the end

    def truncate(self, end_offset: int) -> None:
        """Truncate the store at a batch boundary, durably, and make it appendable; ends LIMBO, sealing and repair.

        A sealed store that ends at `end_offset` stays sealed.

        Raises:
            DivergedError: no batch of this store ends at `end_offset`; nothing has changed.
            DamagedError: the batch at `end_offset` is damaged; nothing has changed.
            StorageFailedError: the disk failed, now or before.
        """
        self._guard.check_open()
        if self.state == "active":
            self.sync()
        digest = self.decided_digest(end_offset)
        if end_offset != self.end_offset or (self._contents.damage is not None and not self.is_repairing):
            self._cut(end_offset, digest)
        self.synced_offset = end_offset
        self._end_repair()

    def truncate_to_valid_prefix(self) -> None:
        """Truncate a store in LIMBO at its damage: it stays in LIMBO but takes appends of the missing records.

        Raises:
            DiskFullError: no space for the repair marker; nothing was truncated.
            StorageFailedError: the disk failed, now or before.
        """
        self._guard.check_open()
        assert self._contents.damage is not None, "there is no damage"
        if self.is_repairing:
            return
        self._guard.begin_repair()
        self._cut(self.end_offset, self.end_digest)
        self.is_repairing = True

    def finish_repair(self) -> None:
        """End LIMBO. Call it only if nothing is missing, or if an operator gives the missing records up.

        Raises:
            StorageFailedError: the disk failed, now or before.
        """
        assert self.is_repairing, "nothing is missing"
        self.sync()
        self._end_repair()

    def _cut(self, end_offset: int, end_digest: int) -> None:
        """Remove everything from a batch boundary on, durably. The mark is lowered first, so it is never too high."""
        contents, store = self._contents, self._contents.store
        try:
            mark = self._marks.found(store)  # Without a mark, the truncation decides what the store has.
            mark = self.start_offset if mark is None else mark
            self._marks.write_durably(store, contents.slot, min(end_offset, mark))
        except OSError as error:
            raise self._guard.failed("writing the sync mark", error) from error
        number = contents.number_of(end_offset)
        old = contents.parts[number]
        index = self._rows.index(old)
        count = index.batches.slots_below(end_offset)
        part = RocksPart(self.directory, old.base_offset, PartRow(old.start_digest))
        part.growing = index.first(count)
        if count:
            place = part.growing.batches.place(count - 1)
            part.size_bytes = place.position + padded(place.length)
            part.max_timestamp_us = part.growing.batches.times_us[count - 1]
        part.end_offset, part.end_digest = end_offset, end_digest
        changes = Changes()
        changes.delete_range(BATCHES, row_key(b"", store, end_offset), store_key(b"", store + 1))
        self._delete_rows(changes, old.base_offset)
        changes.put(META, row_key(b"p", store, part.base_offset), pack_part(PartRow(part.start_digest)))
        if count:
            key = row_key(b"g", store, part.base_offset)
            changes.put(TIME, key, pack_index(part.growing.batches, at=0))
            for column in COLUMNS:
                runs = part.growing.runs[column]
                entries = BatchEntries(runs.entries(), list(runs.open_slots))
                changes.put(column, key, pack_entries(entries, 0, count))
        self._write(changes)
        self._sync_database()
        for cut in contents.parts[number:]:
            self._cache.drop(store, cut.base_offset)
        contents.end = SegmentEnd(end_offset, 0, end_digest)
        contents.parts = (*contents.parts[:number], part)
        contents.is_sealed = False

    def _delete_rows(self, changes: Changes, base_offset: int) -> None:
        """Delete the rows of the parts from an offset on, and those of the growing part."""
        store = self._contents.store
        changes.delete_range(META, row_key(b"p", store, base_offset), store_key(b"p", store + 1))
        for family in (TIME, *COLUMNS):
            changes.delete_range(family, row_key(b"p", store, base_offset), store_key(b"p", store + 1))
            changes.delete_range(family, store_key(b"g", store), store_key(b"g", store + 1))

    # --------------------------------------------------------------------------------- parts

    def delete_oldest_segment(self) -> int:
        """Delete the oldest of several parts and return the bytes freed.

        Raises:
            StorageFailedError: the disk failed.
        """
        contents, store = self._contents, self._contents.store
        assert len(contents.parts) > 1, "the newest part stays"
        oldest, following = contents.parts[:2]
        begin, end = oldest.base_offset, following.base_offset
        changes = Changes()
        changes.delete_range(BATCHES, row_key(b"", store, begin), row_key(b"", store, end))
        for family in (META, TIME, *COLUMNS):
            changes.delete(family, row_key(b"p", store, begin))
        self._write(changes)
        contents.parts = contents.parts[1:]
        self._cache.drop(store, begin)
        self._database.note_deleted(row_key(b"", store, begin), row_key(b"", store, end), oldest.size_bytes)
        return oldest.size_bytes

    def sync_names(self) -> None:
        """Make deletions durable.

        Raises:
            StorageFailedError: the disk failed, now or before.
        """
        self._sync_database()

    def scrub_parts(self, *, is_newest: bool) -> Sequence[ScrubPart]:
        """Return the closed parts."""
        del is_newest
        return [RocksScrubPart(self._rows, self.epoch, part) for part in self._contents.parts if part.growing is None]

    def _must_roll(self, needed_bytes: int) -> bool:
        """Return whether a group needs another part; a group larger than a part gets its own."""
        part = self._newest
        full_bytes = min(self.segment_bytes, PART_BYTES)
        return part.growing is None or (part.size_bytes > 0 and part.size_bytes + needed_bytes > full_bytes)

    def _roll(self) -> None:
        changes = Changes()
        old = self._newest
        closed = old if old.growing is None else self._close_part(changes, old)
        begun = RocksPart(self.directory, closed.end_offset, PartRow(closed.end_digest))
        key = row_key(b"p", self._contents.store, begun.base_offset)
        changes.put(META, key, pack_part(PartRow(begun.start_digest)))
        self._write(changes)
        self._contents.parts = (*self._contents.parts[:-1], closed, begun)

    def _close_part(self, changes: Changes, part: RocksPart) -> RocksPart:
        """Replace the index rows of the growing part by those of a closed one; return the closed part."""
        store, growing = self._contents.store, part.growing
        assert growing is not None
        key, count = row_key(b"p", store, part.base_offset), len(growing.batches)
        changes.put(META, key, pack_part(part.row))
        changes.put(TIME, key, pack_index(growing.batches, at=0))
        for column in COLUMNS:
            runs = growing.runs[column]
            entries = BatchEntries(runs.entries(), list(runs.open_slots))
            changes.put(column, key, pack_entries(entries, 0, count))
        for family in (TIME, *COLUMNS):
            changes.delete_range(family, store_key(b"g", store), store_key(b"g", store + 1))
        return RocksPart(self.directory, part.base_offset, part.row)

    # --------------------------------------------------------------------------------- internals

    @property
    def _newest(self) -> RocksPart:
        return self._contents.parts[-1]

    def _check_writable(self) -> None:
        contents = self._contents
        self._guard.check_sound(contents.damage, is_repairing=self.is_repairing)
        if contents.is_sealed:
            raise self._guard.sealed(contents.end.offset)

    def _write(self, changes: Changes) -> None:
        try:
            self._database.write(changes)
        except StorageFailedError as error:
            self._guard.give_up(error.message)
            raise

    def _sync_database(self) -> None:
        try:
            self._database.sync()
        except StorageFailedError as error:
            self._guard.give_up(error.message)
            raise

    def _end_repair(self) -> None:
        self._guard.end_repair()
        self._contents.damage, self.is_repairing = None, False


def _raise_times(index: Index, least_us: int) -> None:
    """Raise the running maxima of an index to at least a time."""
    times_us = index.times_us
    for slot in range(len(index)):
        if times_us[slot] >= least_us:
            return
        times_us[slot] = least_us
