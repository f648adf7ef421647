"""Tidying of the commit log: snapshots of the tails, copies of small tails, deletion of files (ADR 0196).

A file is deleted only when no tail has records in it and everything that was copied out of it is durable (S2).
"""

from __future__ import annotations

import logging
import threading
from contextlib import closing
from typing import Final

from tidelog_broker.storage.commit_log.commit_log import CommitLog
from tidelog_broker.storage.commit_log.log_files import MovedError
from tidelog_broker.storage.commit_log.snapshot import (
    SNAPSHOT_HEADER_BYTES,
    SNAPSHOT_SUFFIX,
    pack_snapshot,
    pack_tails,
    snapshot_path,
)
from tidelog_broker.storage.commit_log.tail import Tail
from tidelog_broker.storage.commit_log.tail_batches import read_checked
from tidelog_broker.storage.directory.names import NEW_SUFFIX
from tidelog_broker.storage.io.errors import DamagedError, DiskFullError, StorageError, is_shortage
from tidelog_broker.storage.io.filesystem import FileSystem

log = logging.getLogger(__name__)

_SNAPSHOTS_KEPT: Final = 2
_FILES_MIN: Final = 16


class Tidying:
    """Tidies one commit log; one thread at a time."""

    def __init__(self, fs: FileSystem, commit_log: CommitLog) -> None:
        self._fs = fs
        self._log = commit_log
        self._lock = threading.Lock()

    def run(self) -> None:
        """Write a snapshot, copy tails out of the oldest files if the log is too large, and delete unused files."""
        if self._log.failure or not self._lock.acquire(blocking=False):
            return
        try:
            self.save_snapshot()
            while self._is_too_large() and self._copy_out_of_oldest():
                self.delete_unused()
            self.delete_unused()
        except DiskFullError as error:
            log.warning("the commit log is not tidied now: %s", error.message)
        except StorageError as error:  # The log's next append or sync fails, too.
            log.warning("the commit log cannot be tidied: %s", error.message)
        except OSError as error:
            if is_shortage(error):
                log.warning("the commit log %s is not tidied now: %s", self._log.directory, error)
            else:
                self._log.failed("tidying", error)
        finally:
            self._lock.release()

    # --- snapshots -------------------------------------------------------------------------------------

    def save_snapshot(self) -> None:
        """Save the state of all tails at the current position, once everything before it is durable."""
        held = self._log
        with held.lock:
            position = held.position
            count, tails = pack_tails(held.tails.values())
        held.sync()
        path = snapshot_path(held.directory, position)
        unnamed = path.with_name(path.name + NEW_SUFFIX)
        if self._fs.exists(path):
            return
        if self._fs.exists(unnamed):
            self._fs.unlink(unnamed)
        with closing(self._fs.open(unnamed, create=True)) as file:
            head = pack_snapshot(held.nonce, position, count, tails)
            file.allocate(0, SNAPSHOT_HEADER_BYTES + len(tails))
            file.pwritev([head, tails], 0)
            file.datasync()
        self._fs.rename(unnamed, path)
        self._fs.sync_dir(held.directory)
        held.snapshot_position = position
        names = [name for name in self._fs.list_dir(held.directory) if name.endswith(SNAPSHOT_SUFFIX)]
        for name in sorted(names)[:-_SNAPSHOTS_KEPT]:
            self._fs.unlink(held.directory / name)

    # --- files -----------------------------------------------------------------------------------------

    def _is_too_large(self) -> bool:
        held = self._log
        size_bytes, sizes = held.files.size_bytes, held.sizes
        live_bytes = sum(tail.size_bytes for tail in list(held.tails.values()))
        files_max = _FILES_MIN + 4 * size_bytes // sizes.file_bytes
        return size_bytes > max(sizes.log_bytes_min, 2 * live_bytes) or len(held.files.all) > files_max

    def _copy_out_of_oldest(self) -> bool:
        """Copy every tail that has records in the oldest file to the end of the log; return whether all are copied."""
        held = self._log
        files = held.files.all
        if len(files) < 2:
            return False
        below = files[1].base
        are_copied = True
        for tail in [tail for tail in list(held.tails.values()) if tail.oldest_position < below]:
            are_copied &= self._copy(tail, below)
        return are_copied

    def _copy(self, tail: Tail, below: int) -> bool:
        with tail.lock:
            if tail.is_forgotten or tail.oldest_position >= below:
                return True
            if tail.is_damaged or tail.is_broken:
                return False
            try:
                checked = read_checked(self._log.files, tail)
                if checked.damage is not None:
                    raise checked.damage
            except (DamagedError, MovedError, OSError) as error:
                log.warning(
                    "the records of store %016x in the commit log cannot be read, so its file stays: %s; check the "
                    "disk",
                    tail.store,
                    error,
                )
                return False
            self._log.copy_forward(tail, checked.batches, checked.fields)
            return True

    def delete_unused(self) -> None:
        """Delete the oldest files while no tail has records in them, after a sync of all copies."""
        held = self._log
        with held.lock:
            oldest = min((tail.oldest_position for tail in held.tails.values()), default=held.position)
        held.sync()  # Not before: a record that replaces older ones has to be durable, too.
        while len(files := held.files.all) > 1 and files[1].base <= oldest:
            held.delete_oldest()
