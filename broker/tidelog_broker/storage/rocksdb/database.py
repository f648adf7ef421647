"""The database of a node: writes, group commit, reads, and the space that it needs on the disk.

A write copies into memory and then lets the operating system write the WAL, so a killed process loses nothing. `sync`
syncs the WAL for all stores whose writes it finds, so partitions that wait together share one sync.

RocksDB cannot continue after a failed write of its WAL. So a disk that becomes full is noticed before: `reserve`
checks that `margin_bytes` are free, and a file `reserve` takes space that is given to RocksDB when they are not, so
that it can finish its work in the background and record deletions.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from tidelog_broker.storage.io.errors import (
    DamagedError,
    EngineBusyError,
    StorageFailedError,
    is_shortage,
    space_or_failure,
)
from tidelog_broker.storage.io.filesystem import File, FileSystem
from tidelog_broker.storage.io.workers import IoWorkers
from tidelog_broker.storage.rocksdb.presets import FAMILIES, META, Preset
from tidelog_proto.limits import KIB, MIB

if TYPE_CHECKING:
    from rocksdict import ColumnFamily, Rdict, WriteBatch

log = logging.getLogger(__name__)

ROCKSDB: Final = "rocksdb"
"""The name of the engine."""

STALL_REFUSED_S: Final = 0.1
"""How long `reserve` waits for a stalled database before it refuses a group."""

STALL_FAILED_S: Final = 30.0
"""How long a write, whose offsets are assigned, waits for a stalled database before it fails."""

_STALL_STEP_S: Final = 0.005
CHUNK_BYTES: Final = MIB
"""Size of a group from which it is written in several steps, so that a write does not hold Python's lock for long."""
_GRANTED_BYTES: Final = 64 * KIB


class Changes:
    """Changes of rows that are applied together, in their order."""

    __slots__ = ("_deleted_ranges", "_rows")

    def __init__(self) -> None:
        self._deleted_ranges: list[tuple[str, bytes, bytes]] = []
        self._rows: list[tuple[str, bytes, bytes | None]] = []

    def put(self, family: str, key: bytes, value: bytes) -> None:
        """Write a row."""
        self._rows.append((family, key, value))

    def delete(self, family: str, key: bytes) -> None:
        """Delete a row."""
        self._rows.append((family, key, None))

    def delete_range(self, family: str, begin: bytes, end: bytes) -> None:
        """Delete the rows from `begin` on, below `end`, before the other changes."""
        self._deleted_ranges.append((family, begin, end))

    def add_to(self, batch: WriteBatch, handles: Mapping[str, ColumnFamily]) -> None:
        """Add the changes to a batch of RocksDB, which can be written once, even if that fails."""
        for family, begin, end in self._deleted_ranges:
            batch.delete_range(begin, end, handles[family])
        for family, key, value in self._rows:
            if value is None:
                batch.delete(key, handles[family])
            else:
                batch.put(key, value, handles[family])


class Database:
    """An open database. Thread-safe. A failed write or sync is final: `failure` is then its reason.

    Args:
        opened: the open database, also an attribute.
        path: the directory of the database, for messages.
        reserve: the file that takes space.
    """

    def __init__(self, opened: Rdict, fs: FileSystem, path: Path, reserve: File, preset: Preset) -> None:
        import rocksdict  # noqa: PLC0415 - the package is needed only while the engine is used

        self._rocksdict = rocksdict
        self.opened = opened
        self._fs = fs
        self.path = path
        self.preset = preset
        self.families = {name: opened.get_column_family(name) for name in FAMILIES}
        self._handles = {name: opened.get_column_family_handle(name) for name in FAMILIES}
        self._write_options = rocksdict.WriteOptions()
        self._write_options.no_slowdown = True
        self.failure = ""
        self.waiting = 0
        """The number of callers that wait for a sync."""
        self._is_stalled = False
        self._reserve = reserve
        self._reserve_bytes = preset.margin_bytes // 2
        self._credit_bytes = 0
        self._is_full = False
        self._space_lock = threading.Lock()
        self._syncing = threading.Condition()
        self._syncs_begun = 0
        self._syncs_done = 0
        self._is_syncing = False
        self._deleted_bytes = 0
        self._deleted: list[tuple[bytes, bytes]] = []
        self._reclaimer = IoWorkers(1, name="rocksdb", niceness=10)

    # --- writing ---------------------------------------------------------------------------------------

    def write(self, changes: Changes) -> None:
        """Apply changes; they survive the end of the process, but not a crash of the machine before the next `sync`.

        Raises:
            StorageFailedError: the write failed, now or before; the changes may be applied after a restart.
        """
        self._check()
        deadline_s = 0.0
        while True:
            batch = self._rocksdict.WriteBatch(raw_mode=True)
            changes.add_to(batch, self._handles)
            try:
                self.opened.write(batch, self._write_options)
                break
            except Exception as error:  # rocksdict raises no narrower class.
                if not self._may_pass(error):
                    raise self._failed("a write", error) from error
                deadline_s = deadline_s or time.monotonic() + STALL_FAILED_S
                if time.monotonic() >= deadline_s:
                    what = f"a write waited {STALL_FAILED_S:.0f} s for the database"
                    raise self._failed(what, error) from error
            time.sleep(_STALL_STEP_S)
        try:
            self.opened.flush_wal(sync=False)
        except Exception as error:
            raise self._failed("a write", error) from error

    def _may_pass(self, error: Exception) -> bool:
        """Note why the database refuses writes; return whether it may accept them again."""
        text = str(error)
        if "stall" in text.lower():
            self._is_stalled = True
            return True
        if "No space left" in text and "Seen error" not in text:
            with self._space_lock:
                self._give_up_reserve()
            return True
        return False

    def sync(self) -> None:
        """Make everything that was written durable; callers that wait together share a sync.

        Raises:
            StorageFailedError: the sync failed, now or before. It is never retried.
        """
        with self._syncing:
            needed = self._syncs_begun + 1
            while self._syncs_done < needed:
                self._check()
                if not self._is_syncing:
                    break
                self.waiting += 1
                self._syncing.wait()
                self.waiting -= 1
            else:
                return
            self._is_syncing = True
            self._syncs_begun += 1
            begun = self._syncs_begun
        is_synced = False
        try:
            self.flush_wal()
            is_synced = True
        except Exception as error:
            raise self._failed("a sync", error) from error
        except BaseException as error:  # A panic of rocksdict, or Ctrl-C: the sync may not have happened.
            self._failed("a sync", error)
            raise
        finally:
            with self._syncing:
                self._is_syncing = False
                if is_synced:
                    self._syncs_done = begun
                self._syncing.notify_all()

    def flush_wal(self) -> None:
        """Sync the WAL, without those who wait for a sync."""
        self.opened.flush_wal(sync=True)

    def _check(self) -> None:
        if self.failure:
            raise StorageFailedError(f"{self.path} takes no more writes: {self.failure}")

    def _failed(self, what: str, error: BaseException) -> StorageFailedError:
        if not self.failure:
            self.failure = f"{what} failed: {error}; check the disk and restart the node"
            log.error("%s: %s", self.path, self.failure)
        return StorageFailedError(f"{self.path}: {self.failure}")

    # --- space -----------------------------------------------------------------------------------------

    @property
    def is_pressed(self) -> bool:
        """Whether `reserve` should be called before the next write, although space was reserved."""
        return self._is_stalled or bool(self.failure) or self.is_stopped()

    def reserve(self, needed_bytes: int) -> int:
        """Reserve space for a write; return how many bytes were reserved.

        Raises:
            DiskFullError: no space; nothing has changed.
            EngineBusyError: the database does not accept writes now; nothing has changed.
            StorageFailedError: the database has failed.
        """
        self._check()
        self._await_stall()
        granted_bytes = max(needed_bytes, _GRANTED_BYTES)
        with self._space_lock:
            if granted_bytes > self._credit_bytes:
                self._credit_bytes = 0
                self._check_space(granted_bytes)
                self._credit_bytes = max(self.preset.margin_bytes // 16, granted_bytes)
            self._credit_bytes -= granted_bytes
        return granted_bytes

    def _check_space(self, needed_bytes: int) -> None:
        size_bytes = self._reserve_bytes + self.preset.margin_bytes + needed_bytes
        try:
            self._reserve.allocate(0, size_bytes)
            self._reserve.truncate(self._reserve_bytes)
            self._is_full = False
        except OSError as error:
            if not is_shortage(error):
                raise self._failed("checking the space of the disk", error) from error
            self._give_up_reserve()
            what = f"{size_bytes:,} bytes, which engine rocksdb needs for {self.path}, are not free"
            raise space_or_failure(what, error) from error

    def _give_up_reserve(self) -> None:
        self._credit_bytes = 0
        self._is_full = True
        with suppress(OSError):
            self._reserve.truncate(0)
        self._begin_reclaiming()

    def _await_stall(self) -> None:
        self.look_for_stall()
        deadline_s = 0.0
        while self._is_stalled:
            if not self.is_stopped():
                self._is_stalled = False
                return
            deadline_s = deadline_s or time.monotonic() + STALL_REFUSED_S
            if time.monotonic() >= deadline_s:
                raise EngineBusyError(
                    f"engine rocksdb accepts no records now, because the disk of {self.path} stores them more slowly "
                    "than they arrive; send again"
                )
            time.sleep(_STALL_STEP_S)

    def is_stopped(self) -> bool:
        """Return whether the database stalls writes."""
        return bool(self.opened.property_int_value("rocksdb.is-write-stopped"))

    def look_for_stall(self) -> None:
        """Note whether the database stalls writes, so that the next group is refused before it has offsets."""
        if self.is_stopped():
            self._is_stalled = True

    # --- reading ---------------------------------------------------------------------------------------

    def get(self, family: str, key: bytes) -> bytes | None:
        """Read a row; None if the key has no row.

        Raises:
            DamagedError: the row is damaged.
            StorageFailedError: the disk cannot be read.
        """
        return self.get_many(family, [key])[0]

    def get_many(self, family: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """Read rows, without Python's lock.

        Raises:
            DamagedError: a row is damaged.
            StorageFailedError: the disk cannot be read.
        """
        try:
            return cast("list[bytes | None]", self.families[family].get(list(keys)))
        except Exception as error:
            raise self.unreadable(error) from error

    def rows(self, family: str, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows from `begin` on, below `end`.

        Raises:
            DamagedError: a row is damaged.
            StorageFailedError: the disk cannot be read.
        """
        try:
            for key, value in self.families[family].items(from_key=begin):
                found = cast(bytes, key)
                if found >= end:
                    return
                yield found, cast(bytes, value)
        except Exception as error:
            raise self.unreadable(error) from error

    def unreadable(self, error: Exception) -> DamagedError | StorageFailedError:
        """Convert an error of a read."""
        if str(error).startswith("Corruption"):
            return DamagedError(f"{self.path} is damaged: {error}; repair it from another copy or a backup")
        return StorageFailedError(f"{self.path} cannot be read: {error}; check the disk")

    # --- the space of deleted records ------------------------------------------------------------------

    def note_deleted(self, begin: bytes, end: bytes, size_bytes: int) -> None:
        """Reclaim the space of deleted batches in the background: once it is large enough, or if the disk is full."""
        with self._space_lock:
            self._deleted_bytes += size_bytes
            self._deleted.append((begin, end))
            if self._deleted_bytes >= self.preset.reclaim_bytes or self._is_full:
                self._begin_reclaiming()

    def _begin_reclaiming(self) -> None:
        ranges, self._deleted, self._deleted_bytes = self._deleted, [], 0
        if ranges:
            self._reclaimer.offer(lambda: self._reclaim(ranges))

    def _reclaim(self, ranges: Sequence[tuple[bytes, bytes]]) -> None:
        merged: list[list[bytes]] = []
        for begin, end in sorted(ranges):
            if merged and begin <= merged[-1][1]:
                merged[-1][1] = max(end, merged[-1][1])
            else:
                merged.append([begin, end])
        for begin, end in merged:
            try:
                self.families["batches"].compact_range(begin, end)
            except Exception as error:  # noqa: BLE001 - rocksdict raises no narrower class.
                log.warning("the space of deleted records in %s is reclaimed later: %s", self.path, error)
                return

    def close(self) -> None:
        """Sync the WAL and close the database; later calls fail."""
        self._reclaimer.close()
        with suppress(StorageFailedError):
            self.sync()
        self.failure = self.failure or "the database is closed"
        self._handles.clear()
        for family in self.families.values():
            with suppress(Exception):
                family.close()
        with suppress(Exception):
            self.opened.close()
        self._reserve.close()


def first_error_line(error: Exception) -> str:
    """Return an error of `rocksdict` as one line."""
    return " ".join(str(error).split())


assert META in FAMILIES
