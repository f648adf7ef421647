"""The RocksDB engine: the epochs of a node in one database, for devices and for nodes with many small partitions.

The package `rocksdict` has RocksDB. It is imported, and the database opened, when a store is first created or opened.

A batch is a row. Its index entries (offset and time, hashes of keys, hashes of tags) are written together with it, in
one atomic write. The rows of one index entry are those of a group of batches; once a part of the store is full, one
row for each index replaces them. So records of a partition need no files of their own, and partitions that are synced
at the same time share one sync of the WAL.

Each epoch has a directory with one file, `ID.rocks`: the id of the store in the database, and the identity of the
epoch, which the database has, too. A directory that was copied has the same id, so only the removal of the original
deletes the rows (`_is_copy`).
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from crc32c import crc32c

from tidelog_broker.storage.directory.names import NEW_SUFFIX
from tidelog_broker.storage.directory.repair_markers import has_marker, remove_marker
from tidelog_broker.storage.engine.store import Capabilities, Damage, Engine, EpochStart, EpochStore, Volume
from tidelog_broker.storage.io.errors import (
    DamagedError,
    EngineMissingError,
    LayoutError,
    unreadable,
)
from tidelog_broker.storage.rocksdb.database import ROCKSDB, Changes, Database
from tidelog_broker.storage.rocksdb.marks import SyncMarks
from tidelog_broker.storage.rocksdb.opening import DatabaseOpening, check_installed
from tidelog_broker.storage.rocksdb.parts import COLUMNS, IndexCache
from tidelog_broker.storage.rocksdb.presets import BATCHES, META, PRESETS, TIME
from tidelog_broker.storage.rocksdb.rocks_reader import Rows
from tidelog_broker.storage.rocksdb.rocks_store import RocksStore
from tidelog_broker.storage.rocksdb.rows import (
    NEXT_KEY,
    NUMBER,
    STORE_MAX,
    PartRow,
    StoreIdentity,
    pack_identity,
    pack_part,
    pack_short,
    parse_identity,
    row_key,
    store_in,
    store_key,
)
from tidelog_broker.storage.rocksdb.store_recovery import load_contents, store_end, stored_bytes

log = logging.getLogger(__name__)

_FILE_NAME: Final = re.compile(r"([0-9a-f]{16})\.rocks")
_COPY: Final = re.compile(r".*\.bad-\d+")
_CRC_BYTES: Final = 4

CAPABILITIES: Final = Capabilities(
    durable=True, survives_restart=True, replicated=False, compactable=True, indexes=frozenset({"key", "tag"})
)


class RocksEngine(Engine):
    """The RocksDB engine of a node."""

    name = ROCKSDB
    capabilities = CAPABILITIES

    def __init__(self, volume: Volume) -> None:
        self._volume = volume
        self._fs = volume.fs
        self._lock = threading.Lock()
        self._opened: tuple[Database, SyncMarks] | None = None
        self._next = 1
        self._cache = IndexCache(PRESETS[volume.rocksdb_preset].index_cache_bytes)

    # --- the database ----------------------------------------------------------------------------------

    @property
    def database(self) -> Database | None:
        """The open database; None before the first store is created or opened."""
        return self._opened[0] if self._opened is not None else None

    def _open(self) -> tuple[Database, SyncMarks]:
        """Return the database and the sync marks; the first call opens them.

        Raises:
            EngineMissingError: the database cannot be opened.
            StorageError: the disk failed or is full.
        """
        with self._lock:
            if self._opened is None:
                opening = DatabaseOpening(self._volume)
                try:
                    database, marks = opening.open()
                except OSError as error:
                    raise EngineMissingError(
                        ROCKSDB,
                        f"{opening.directory} cannot be opened: {error}",
                        remedy="check the disk and restart the node",
                    ) from error
                try:
                    self.take_stock(opening, database, marks)
                except BaseException:
                    database.close()
                    marks.close()
                    raise
                self._opened = database, marks
            return self._opened

    def take_stock(self, opening: DatabaseOpening, database: Database, marks: SyncMarks) -> None:
        """Find the slots of marks in use and deletions that are complete, and compare all stores with their marks."""
        value = database.get(META, NEXT_KEY)
        stored = NUMBER.unpack(value)[0] if value is not None else 1
        self._next = max(stored, marks.newest_store + 1)  # The database may have lost stores, whose directories remain.
        accepts = opening.accepts_lost_marks
        changes = Changes()
        short = is_news = 0
        for key, value in list(database.rows(META, b"s", b"t")):
            store = store_in(key)
            try:
                identity = parse_identity(value)
            except LayoutError as error:
                log.error("%s: store %d cannot be used: %s", opening.path, store, error)  # noqa: TRY400
                continue
            marks.use(identity.slot)
            try:
                end_offset = store_end(database, store)
            except DamagedError:
                end_offset = None
            mark = marks.found(store)
            if mark is None and accepts and end_offset is not None:
                log.warning("%s: store %d has no sync mark; its end %d is accepted", opening.path, store, end_offset)
                marks.write(store, identity.slot, end_offset)
                continue
            if mark is not None and (end_offset or 0) >= mark:
                continue
            short += 1
            row, found = store_key(b"l", store), pack_short(end_offset, mark)
            if database.get(META, row) != found:
                is_news += 1
                changes.put(META, row, found)
        if accepts:
            marks.sync()
            opening.drop_acceptance()
        what = "%s has lost synced records of %d epochs, or their sync marks; the database as it was before %s"
        if is_news:
            log.error(what, opening.path, short, f"this start is kept in {opening.keep_links()}")
        else:  # Otherwise each start would keep the disk's space of another state.
            opening.drop_links()
            if short:
                log.error(what, opening.path, short, "the start that has found it was kept")
        for key, value in database.rows(META, b"x", b"y"):
            if not self._fs.exists(self._path_of(value)):
                changes.delete(META, key)
        database.write(changes)

    def _path_of(self, value: bytes) -> Path:
        assert self._volume.engines_dir is not None
        return self._volume.engines_dir.parent / value.decode()

    def _value_of(self, directory: Path) -> bytes:
        """Return the directory of a store relative to that of the node, which an operator may move."""
        assert self._volume.engines_dir is not None
        root = self._volume.engines_dir.parent
        return str(directory.relative_to(root) if directory.is_relative_to(root) else directory).encode()

    def close(self) -> None:
        """Close the database; all stores must be closed."""
        with self._lock:
            opened, self._opened = self._opened, None
        if opened is not None:
            opened[0].close()
            opened[1].close()

    # --- stores ----------------------------------------------------------------------------------------

    def lay_out(self, directory: Path, start: EpochStart, *, segment_bytes: int) -> None:
        """Create a store: its file in the directory, and its identity and first part in the database."""
        del segment_bytes
        database, marks = self._open()
        database.reserve(0)
        with self._lock:
            store, self._next = self._next, self._next + 1
        assert store < STORE_MAX
        slot = marks.free_slot()
        identity = pack_identity(StoreIdentity(start, slot))
        try:
            with closing(self._fs.open(directory / f"{store:016x}.rocks", create=True)) as file:
                file.pwritev([identity, crc32c(identity).to_bytes(_CRC_BYTES, "little")], 0)
                file.datasync()
            marks.write_durably(store, slot, start.offset)
        except BaseException:
            marks.release(store, slot)
            raise
        changes = Changes()
        changes.put(META, NEXT_KEY, NUMBER.pack(self._next))
        changes.put(META, store_key(b"s", store), identity)
        changes.put(META, row_key(b"p", store, start.offset), pack_part(PartRow(start.digest)))
        database.write(changes)
        database.sync()

    def open(
        self, directory: Path, *, segment_bytes: int, sealed_end_offset: int | None = None, is_new: bool = False
    ) -> EpochStore:
        """Open a store; see `store_recovery`.

        Raises:
            EngineMissingError: the database cannot be opened.
            DamagedError: the file or the rows of the store are missing or damaged.
            StorageFailedError: the disk cannot be read.
        """
        database, marks = self._open()
        try:
            store, identity = self._identity(database, directory)
            is_marked = has_marker(self._fs, directory)
            if sealed_end_offset is not None and is_marked:
                remove_marker(self._fs, directory)
        except OSError as error:
            raise unreadable(f"{directory} cannot be opened", error) from error
        contents = load_contents(
            database,
            self._cache,
            directory,
            (store, identity),
            mark=marks.found(store),
            sealed_end_offset=sealed_end_offset,
            is_new=is_new,
        )
        is_repairing = is_marked and sealed_end_offset is None
        if contents.damage is None and is_repairing:
            end_offset = contents.end.offset
            reason = "the log was truncated at damage, and the missing records have not been fetched yet"
            contents.damage = Damage(directory, 0, end_offset, end_offset, reason)
        rows = Rows(contents, database, self._cache)
        return RocksStore(self._fs, directory, rows, marks, segment_bytes=segment_bytes, is_repairing=is_repairing)

    def is_deleted(self, names: Sequence[str]) -> bool:
        """Return whether a directory with these file names is the remains of an interrupted deletion.

        Raises:
            EngineMissingError: the database cannot be opened.
        """
        store = _store_of(names)
        return store is None or self._open()[0].get(META, store_key(b"x", store)) is not None

    def forget(self, directory: Path) -> None:
        """Delete the rows of a store whose directory is about to be removed."""
        store = _store_of(self._fs.list_dir(directory))
        if store is None or self._is_copy(directory, f"{store:016x}.rocks"):
            return
        database, marks = self._open()
        value = database.get(META, store_key(b"s", store))
        if value is None:
            return
        try:
            is_own = self._identity_in(directory / f"{store:016x}.rocks") == value
        except DamagedError as error:
            log.warning("%s; its records stay in the database", error.message)
            return
        if not is_own:  # The database has lost the store of this directory, and another one has its id.
            log.warning("%s: store %d of the database has the records of another epoch, which stay", directory, store)
            return
        first, end = row_key(b"", store), store_key(b"", store + 1)
        size_bytes = stored_bytes(database, store)
        changes = Changes()
        changes.put(META, store_key(b"x", store), self._value_of(directory))
        changes.delete(META, store_key(b"s", store))
        changes.delete(META, store_key(b"l", store))
        changes.delete_range(META, row_key(b"p", store), store_key(b"p", store + 1))
        changes.delete_range(BATCHES, first, end)
        for family in (TIME, *COLUMNS):
            for kind in (b"g", b"p"):
                changes.delete_range(family, store_key(kind, store), store_key(kind, store + 1))
        database.write(changes)
        database.sync()
        try:  # Before, a crash might leave a store whose slot has the mark of another one.
            marks.release(store, parse_identity(value).slot)
        except LayoutError:
            log.warning("%s: the slot of the sync mark of store %d stays in use", directory, store)
        database.note_deleted(first, end, size_bytes)

    def _is_copy(self, directory: Path, name: str) -> bool:
        """Return whether a directory is a copy of another one of the same partition, which still exists."""
        if not (directory.name.endswith(NEW_SUFFIX) or _COPY.fullmatch(directory.name)):
            return False
        for other in self._fs.list_dir(directory.parent):
            path = directory.with_name(other)
            if path != directory and not _COPY.fullmatch(other) and self._fs.exists(path / name):
                return True
        return False

    def _identity(self, database: Database, directory: Path) -> tuple[int, StoreIdentity]:
        """Return the id and the identity of the store of a directory.

        Raises:
            DamagedError: the file is missing or damaged, or the database does not have the store.
            OSError: the disk cannot be read.
        """
        store = _store_of(self._fs.list_dir(directory))
        if store is None:
            raise DamagedError.at(directory, 0, "the file ID.rocks is missing")
        path = directory / f"{store:016x}.rocks"
        head = self._identity_in(path)
        value = database.get(META, store_key(b"s", store))
        if value is None:
            raise DamagedError.at(path, 0, f"{database.path} does not have store {store}")
        if value != head:
            raise DamagedError.at(path, 0, f"store {store} of {database.path} has the records of another epoch")
        try:
            return store, parse_identity(value)
        except LayoutError as error:
            raise DamagedError.at(path, 0, str(error)) from error

    def _identity_in(self, path: Path) -> bytes:
        """Read the identity in the file of a directory.

        Raises:
            DamagedError: the file is damaged.
            OSError: the disk cannot be read.
        """
        with closing(self._fs.open_readonly(path)) as file:
            data = file.pread(file.size(), 0)
        head, crc = data[:-_CRC_BYTES], int.from_bytes(data[-_CRC_BYTES:], "little")
        if crc != (found := crc32c(head)):
            raise DamagedError.at(path, 0, f"the file declares CRC32C {crc:#010x}, its bytes have {found:#010x}")
        return head


def _store_of(names: Sequence[str]) -> int | None:
    """Return the store id of a directory with these file names; None if no name contains an id."""
    return next((int(match[1], 16) for name in names if (match := _FILE_NAME.fullmatch(name))), None)


def rocks_engine(volume: Volume) -> Engine:
    """Return the RocksDB engine of a node.

    Raises:
        EngineMissingError: the package `rocksdict` is not installed.
    """
    check_installed()
    return RocksEngine(volume)
