"""Opening the database of a node, and the reasons for which that may be refused.

    ENGINES/rocksdb/db/        the database of RocksDB
    ENGINES/rocksdb/marks      the sync marks of the stores
    ENGINES/rocksdb/reserve    space for a full disk
    ENGINES/rocksdb/options/   the options of the preset
    ENGINES/rocksdb/opened/    the database as it was before the open that is under way or was interrupted, by links
    ENGINES/rocksdb/before-1/  the database as it was before an open that found synced records missing, by links
    ENGINES/rocksdb/accept-lost-marks  made by an operator, see `ACCEPTED`

A database is created only if no file of an earlier one exists, except of a creation that was interrupted before its
last file, `marks`: RocksDB would begin an empty database if only its file `CURRENT` were missing. A database that
cannot be opened is never changed or repaired by a start; its partitions are unavailable, and the others are not
affected.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidelog_broker.storage.directory.names import NEW_SUFFIX
from tidelog_broker.storage.engine.store import Volume
from tidelog_broker.storage.io.errors import EngineMissingError, StorageFailedError
from tidelog_broker.storage.io.filesystem import File, FileSystem
from tidelog_broker.storage.rocksdb.database import ROCKSDB, Database, first_error_line
from tidelog_broker.storage.rocksdb.marks import SyncMarks
from tidelog_broker.storage.rocksdb.presets import META, OPTIONS_NAME, PRESETS, options_text
from tidelog_broker.storage.rocksdb.rows import DATABASE_VERSION, FORMAT, FORMAT_KEY

if TYPE_CHECKING:
    from rocksdict import Rdict

log = logging.getLogger(__name__)

_DATABASE: Final = "db"
MARKS: Final = "marks"
_RESERVE: Final = "reserve"
_OPTIONS: Final = "options"
_LINKS: Final = "opened"
_KEPT: Final = "before"
ACCEPTED: Final = "accept-lost-marks"
"""The file by which an operator accepts what the database has of stores whose marks are lost; a start removes it."""
WAL_SUFFIX: Final = ".log"
_TABLE_SUFFIX: Final = ".sst"


def check_installed() -> None:
    """Check that the package `rocksdict` can be imported.

    Raises:
        EngineMissingError: it cannot.
    """
    try:
        import rocksdict  # noqa: F401, PLC0415 - the package is needed only while the engine is used
    except ImportError as error:
        raise EngineMissingError(
            ROCKSDB,
            f"{error}",
            what="is not installed",
            remedy="install it on this node with pip install 'tidelog[rocksdb]', and restart the node",
        ) from error


class DatabaseOpening:
    """Opens the database of a node in the directory of engines of its volume."""

    def __init__(self, volume: Volume) -> None:
        check_installed()
        if volume.engines_dir is None:
            raise EngineMissingError(ROCKSDB, "it has no directory for its database", remedy="start a node")
        self._volume = volume
        self._fs: FileSystem = volume.fs
        self.directory = volume.engines_dir / ROCKSDB
        self.path = self.directory / _DATABASE
        self._preset = PRESETS[volume.rocksdb_preset]
        self.is_new = False
        self._has_linked = False

    def open(self) -> tuple[Database, SyncMarks]:
        """Open the database, and create it if no file of an earlier one exists.

        Raises:
            EngineMissingError: it cannot be opened; nothing has changed.
            OSError: the disk failed or is full.
        """
        for directory in (self.directory.parent, self.directory):
            if not self._fs.exists(directory):
                self._fs.make_dir(directory)
                self._fs.sync_dir(directory.parent)
        self._check_present()
        self._link()
        opened = self._open_database()
        try:
            self._check_format(opened)
            marks, reserve = self._file(MARKS), self._file(_RESERVE)
        except BaseException:
            opened.close()
            raise
        namer = self._volume.namer
        database = Database(opened, self._fs, self.path, reserve, self._preset)
        return database, SyncMarks(marks, namer.offer if namer is not None else None)

    def _check_present(self) -> None:
        names = self._fs.list_dir(self.path) if self._fs.exists(self.path) else []
        has_records = any(name.endswith((WAL_SUFFIX, _TABLE_SUFFIX)) for name in names)
        self.is_new = "CURRENT" not in names and not has_records and not self._fs.exists(self.directory / MARKS)
        if not self.is_new and "CURRENT" not in names:
            missing = self.path / "CURRENT" if names else self.path
            raise self._refused(f"{missing} is missing")

    def _open_database(self) -> Rdict:
        import rocksdict  # noqa: PLC0415 - see `check_installed`

        options_dir = self.directory / _OPTIONS
        if not self._fs.exists(options_dir):
            self._fs.make_dir(options_dir)
        path = options_dir / OPTIONS_NAME
        if self._fs.exists(path):
            self._fs.unlink(path)
        file = self._fs.open(path, create=True)
        try:
            file.pwritev([options_text(self._preset).encode()], 0)
        finally:
            file.close()
        cache = rocksdict.Cache(self._preset.cache_bytes)
        try:
            options, families = rocksdict.Options.load_latest(str(options_dir), cache=cache)
            options.create_if_missing(self.is_new)
            options.create_missing_column_families(True)
            return rocksdict.Rdict(str(self.path), options, families)
        except Exception as error:
            reason = first_error_line(error)
            if self._has_linked:
                self.drop_links()  # Nothing has changed.
            if "lock" in reason.lower():
                raise EngineMissingError(
                    ROCKSDB,
                    f"another process has {self.path} open: {reason}",
                    remedy="end that process, and restart the node",
                ) from error
            raise self._refused(f"{self.path} cannot be opened: {reason}") from error

    def _check_format(self, opened: Rdict) -> None:
        value = opened.get(FORMAT_KEY)
        if value is None and not self._fs.exists(self.directory / MARKS):
            self.is_new = True  # Also if an earlier creation was interrupted.
            value = FORMAT.pack(DATABASE_VERSION, secrets.randbits(64))
            opened.put(FORMAT_KEY, value)
            opened.flush_wal(sync=True)
            opened.flush(wait=True)  # A missing WAL is then damage of the stores alone.
            self._fs.sync_dir(self.directory)
        if not isinstance(value, bytes) or len(value) != FORMAT.size:
            raise self._refused(f"{self.path} has no format version in its column family {META}")
        version = FORMAT.unpack(value)[0]
        if version != DATABASE_VERSION:
            raise EngineMissingError(
                ROCKSDB,
                f"{self.path} has format version {version}, and this release reads version {DATABASE_VERSION}",
                remedy="start the release that wrote it",
            )

    def _refused(self, reason: str) -> EngineMissingError:
        return EngineMissingError(
            ROCKSDB, reason, remedy=f"stop the node and restore {self.directory} and the partitions from a backup"
        )

    def _file(self, name: str) -> File:
        path = self.directory / name
        if self._fs.exists(path):
            return self._fs.open(path)
        if name == MARKS and not self.is_new:
            log.warning("%s is missing and is created again, without the marks that it had", path)
        file = self._fs.open(path, create=True)
        self._fs.sync_dir(self.directory)
        return file

    @property
    def accepts_lost_marks(self) -> bool:
        """Whether an operator accepts what the database has of stores whose marks are lost."""
        return self._fs.exists(self.directory / ACCEPTED)

    def drop_acceptance(self) -> None:
        """Remove the operator's file, because the stores have marks again."""
        self._fs.unlink(self.directory / ACCEPTED)

    # --- the database before the open ------------------------------------------------------------------

    def _link(self) -> None:
        """Keep the database by links: recovery ends at damage, and RocksDB then removes later files.

        Links of an open that was interrupted are kept instead: RocksDB may have removed these files already.
        """
        made = self.directory / _LINKS
        links = made.with_name(_LINKS + NEW_SUFFIX)
        for rest in (links, self.directory / _KEPT):  # Earlier builds made them as `before`.
            shutil.rmtree(rest, ignore_errors=True)
        if self.is_new or made.exists():
            return
        links.mkdir(mode=0o750)
        for name in self._fs.list_dir(self.path):
            try:
                if name.endswith((WAL_SUFFIX, _TABLE_SUFFIX)):
                    os.link(self.path / name, links / name)
                    continue
            except OSError:  # The file system has no links, or no more of this file.
                log.debug("%s cannot be linked", name)
            shutil.copyfile(self.path / name, links / name)
        links.rename(made)
        self._has_linked = True

    def drop_links(self) -> None:
        """Remove the earlier state, because no synced record is missing."""
        shutil.rmtree(self.directory / _LINKS, ignore_errors=True)

    def keep_links(self) -> Path:
        """Keep the earlier state, because synced records are missing; return its directory."""
        number = 1
        while (kept := self.directory / f"{_KEPT}-{number}").exists():
            number += 1
        try:
            (self.directory / _LINKS).rename(kept)
            self._fs.sync_dir(self.directory)
        except OSError as error:
            raise StorageFailedError(f"{kept} cannot be created: {error}; check the disk") from error
        return kept
