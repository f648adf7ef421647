"""A storage engine as a package of its own: each epoch is an SQLite database in its directory.

It shows what an engine needs at least: `Engine`, `EpochStore`, and a reader of whole batches; `ScannedReading` finds
everything else by reading. It has no index, so lookups by key scan the log. An append is an INSERT and a sync a COMMIT,
so a killed process loses what was not synced. One connection serves all threads, which take turns.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tidelog_broker.storage.directory.repair_markers import has_marker, remove_marker, write_marker
from tidelog_broker.storage.engine.reading import FoundBatches
from tidelog_broker.storage.engine.scanned import ScannedReading
from tidelog_broker.storage.engine.store import (
    AppendedGroup,
    Capabilities,
    Damage,
    Engine,
    EpochStart,
    EpochStore,
    State,
    Volume,
    padded,
)
from tidelog_broker.storage.io.errors import (
    DamagedError,
    LimboError,
    StorageFailedError,
    is_shortage,
    space_or_failure,
)
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import Buffer, unpack_header
from tidelog_proto.errors import ProtocolError

FILE_NAME: Final = "epoch.sqlite"
RESERVE_NAME: Final = "reserve"
_SCHEMA: Final = """
PRAGMA synchronous = EXTRA;
CREATE TABLE epoch (topic_id BLOB, partition INT, epoch INT);
CREATE TABLE parts (base INTEGER PRIMARY KEY, digest INT);
CREATE TABLE batches (base INTEGER PRIMARY KEY, end INT, digest INT, data BLOB);
"""


@dataclass(frozen=True)
class SqlitePart:
    """A part of an epoch."""

    path: Path
    base_offset: int
    end_offset: int
    start_digest: int
    size_bytes: int
    is_growing: bool


@dataclass
class Condition:
    """Provides the damage of a store."""

    damage: Damage | None = None


class SqliteReader(ScannedReading):
    """Reads the database of an epoch."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store

    def parts(self) -> Sequence[SqlitePart]:
        return self._store.segments

    def read(
        self, offset: int, max_bytes: int, *, limit_offset: int, at_least_one: bool = True, to_send: bool = False
    ) -> FoundBatches:
        del to_send
        store = self._store
        if store.damage is not None and offset > store.end_offset:
            raise DamagedError.at(store.directory, 0, store.damage.reason)
        if not store.start_offset <= offset <= store.end_offset:
            raise ProtocolError(
                pb.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is out of range; offsets {store.start_offset} to {store.end_offset} can be read",
                log_start_offset=store.start_offset,
                high_watermark=store.end_offset,
            )
        found: list[memoryview] = []
        position = offset
        wanted = "SELECT end, data FROM batches WHERE end > ? AND end <= ? ORDER BY base LIMIT 100"
        while rows := store.rows(wanted, position, limit_offset):
            for end, data in rows:
                max_bytes -= len(data)
                if max_bytes < 0 and (found or not at_least_one):
                    return FoundBatches(found, found, position)
                found.append(memoryview(data))
                position = end
        return FoundBatches(found, found, position)

    def digest_at(self, offset: int) -> int | None:
        known = self._store.rows(
            "SELECT digest FROM batches WHERE end = ?1 UNION ALL SELECT digest FROM parts WHERE base = ?1", offset
        )
        return known[0][0] if known else None

    def batch_start(self, offset: int) -> int | None:
        known = self._store.rows("SELECT base FROM batches WHERE base <= ?1 AND end > ?1", offset)
        return known[0][0] if known else None


class SqliteStore(EpochStore):
    """An epoch in a database."""

    engine = "sqlite"
    is_lost = False

    def __init__(self, volume: Volume, directory: Path, *, segment_bytes: int, sealed_end_offset: int | None) -> None:
        self._fs = volume.fs
        self._lock = threading.Lock()
        self._database = sqlite3.connect(
            directory / FILE_NAME, check_same_thread=False, isolation_level=None, timeout=1
        )
        self.directory, self.segment_bytes = directory, segment_bytes
        self.topic_id, self.partition, self.epoch = self.rows("SELECT * FROM epoch")[0]
        self.held, self.reader = Condition(), SqliteReader(self)
        self._reserved_bytes = 0
        self._is_sealed, self._failure = sealed_end_offset is not None, ""
        self._refresh()
        self.synced_offset = self.end_offset
        self.is_repairing = has_marker(self._fs, directory) and not self._is_sealed
        if sealed_end_offset not in {None, self.end_offset}:
            reason = f"the epoch ends at offset {sealed_end_offset}, its database at {self.end_offset}"
            self.held.damage = Damage(directory, 0, self.end_offset, sealed_end_offset or 0, reason)
        elif self.is_repairing:
            self.held.damage = Damage(directory, 0, self.end_offset, self.end_offset, "records are missing")

    # --- the database ----------------------------------------------------------------------------------

    def rows(self, query: str, *values: object) -> list[Any]:
        """Read rows on any thread."""
        with self._lock:
            return self._database.execute(query, values).fetchall()

    def change(self, *statements: tuple[str, Sequence[Sequence[object]]], commit: bool) -> None:
        """Change rows; a failure is final."""
        if self._failure:
            raise StorageFailedError(f"{self.directory} takes no more writes: {self._failure}")
        try:
            with self._lock:
                if not self._database.in_transaction:
                    self._database.execute("BEGIN IMMEDIATE")
                for statement, values in statements:
                    self._database.executemany(statement, values)
                if commit:
                    self._database.execute("COMMIT")
        except sqlite3.Error as error:
            self._failure = f"{error}; check the disk and restart the node"
            raise StorageFailedError(f"{self.directory}: {self._failure}") from error

    def _refresh(self) -> None:
        """Read the parts and the end."""
        parts = self.rows(
            "SELECT p.base, p.digest, coalesce(max(b.end), p.base), "
            "coalesce(sum((length(b.data) + 63) / 64 * 64), 0) FROM parts p LEFT JOIN batches b ON b.base >= p.base "
            "AND b.base < coalesce((SELECT min(base) FROM parts WHERE base > p.base), 1 << 62) "
            "GROUP BY p.base ORDER BY p.base"
        )
        last = len(parts) - 1
        self._parts = tuple(
            SqlitePart(self.directory / f"{base}", base, end, digest, size, number == last and not self._is_sealed)
            for number, (base, digest, end, size) in enumerate(parts)
        )
        self._end_digest = (self.reader.digest_at(self.end_offset)) or 0

    # --- state -----------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        if self._failure:
            return "failed"
        return "limbo" if self.held.damage is not None else "sealed" if self._is_sealed else "active"

    @property
    def end_offset(self) -> int:
        return self._parts[-1].end_offset

    @property
    def end_digest(self) -> int:
        return self._end_digest

    @property
    def segments(self) -> Sequence[SqlitePart]:
        return self._parts

    # --- appending -------------------------------------------------------------------------------------

    def _check_writable(self) -> None:
        if self.held.damage is not None and not self.is_repairing and not self._failure:
            raise LimboError(f"{self.directory} takes no appends: {self.held.damage.reason}")
        if self._failure or self._is_sealed:
            raise StorageFailedError(f"{self.directory} takes no appends: {self._failure or 'it is sealed'}")

    def has_room(self, needed_bytes: int) -> bool:
        return self.state == "active" and needed_bytes <= self._reserved_bytes and not self._must_roll(needed_bytes)

    def ensure_space(self, needed_bytes: int) -> None:
        self._check_writable()
        if needed_bytes > self._reserved_bytes:
            try:
                with closing(self._fs.open(self.directory / RESERVE_NAME)) as file:
                    file.allocate(0, 2 * needed_bytes + (1 << 16))
                    file.truncate(0)
            except OSError as error:
                raise space_or_failure(f"{self.directory} has no space", error) from error
            self._reserved_bytes = needed_bytes
        if self._must_roll(needed_bytes):
            self.roll()

    def _must_roll(self, needed_bytes: int) -> bool:
        return 0 < self._parts[-1].size_bytes > self.segment_bytes - needed_bytes

    def roll(self) -> bool:
        self._check_writable()
        if not self._parts[-1].size_bytes:
            return False
        self.change(("INSERT INTO parts VALUES (?, ?)", [(self.end_offset, self.end_digest)]), commit=False)
        self._refresh()
        return True

    def append(self, batches: Sequence[Buffer]) -> AppendedGroup:
        self._check_writable()
        base_offset = self.end_offset
        headers = list(map(unpack_header, batches))
        values = [(h.base_offset, h.end_offset, h.digest, bytes(b)) for h, b in zip(headers, batches, strict=True)]
        self.change(("INSERT INTO batches VALUES (?, ?, ?, ?)", values), commit=False)
        self._reserved_bytes = 0
        self._refresh()
        return AppendedGroup(base_offset, self.end_offset, sum(padded(len(one)) for one in batches))

    def sync(self) -> int:
        self._check_writable()
        self.change(commit=True)
        self.synced_offset = self.end_offset
        return self.synced_offset

    def seal(self) -> None:
        self.sync()
        self._is_sealed = True
        self._refresh()

    def close(self, *, sync: bool = True) -> None:
        try:
            if sync and self.state == "active":
                self.sync()
        finally:
            if not self._failure:
                self._failure = "it is closed"
            with self._lock:
                self._database.close()

    # --- changes of the end ----------------------------------------------------------------------------

    def truncate(self, end_offset: int) -> None:
        if self._failure:
            self._check_writable()
        self.decided_digest(end_offset)
        if end_offset != self.end_offset or (self.held.damage is not None and not self.is_repairing):
            at = [(end_offset,)]
            self.change(
                ("DELETE FROM batches WHERE base >= ?", at),
                ("DELETE FROM parts WHERE base > ?", at),
                commit=True,
            )
            self._is_sealed = False
        self._end_repair(end_offset)

    def truncate_to_valid_prefix(self) -> None:
        try:
            write_marker(self._fs, self.directory)
        except OSError as error:
            if is_shortage(error):
                raise space_or_failure(f"{self.directory} cannot be marked", error) from error
            raise StorageFailedError(f"{self.directory}: {error}") from error
        self._is_sealed, self.is_repairing = False, True

    def finish_repair(self) -> None:
        self._end_repair(self.sync())

    def _end_repair(self, end_offset: int) -> None:
        remove_marker(self._fs, self.directory)
        self.held.damage, self.is_repairing = None, False
        self._refresh()
        self.synced_offset = end_offset

    def delete_oldest_segment(self) -> int:
        oldest = self._parts[0]
        below = [(oldest.end_offset,)]
        self.change(
            ("DELETE FROM batches WHERE base < ?", below), ("DELETE FROM parts WHERE base < ?", below), commit=False
        )
        self._refresh()
        return oldest.size_bytes

    def sync_names(self) -> None:
        self.change(commit=True)


class SqliteEngine(Engine):
    """The engine of a node."""

    name = "sqlite"
    capabilities = Capabilities(durable=True, survives_restart=True)

    def __init__(self, volume: Volume) -> None:
        self._volume = volume

    def lay_out(self, directory: Path, start: EpochStart, *, segment_bytes: int) -> None:
        del segment_bytes
        self._volume.fs.open(directory / RESERVE_NAME, create=True).close()
        with closing(sqlite3.connect(directory / FILE_NAME)) as database:
            database.executescript(_SCHEMA)
            database.execute("INSERT INTO epoch VALUES (?, ?, ?)", (start.topic_id, start.partition, start.epoch))
            database.execute("INSERT INTO parts VALUES (?, ?)", (start.offset, start.digest))
            database.commit()

    def open(
        self, directory: Path, *, segment_bytes: int, sealed_end_offset: int | None = None, is_new: bool = False
    ) -> EpochStore:
        del is_new
        try:
            return SqliteStore(
                self._volume, directory, segment_bytes=segment_bytes, sealed_end_offset=sealed_end_offset
            )
        except (sqlite3.Error, IndexError) as error:
            raise DamagedError.at(directory / FILE_NAME, 0, str(error)) from error

    def is_deleted(self, names: Sequence[str]) -> bool:
        return FILE_NAME not in names
