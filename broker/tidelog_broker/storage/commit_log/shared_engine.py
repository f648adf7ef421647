"""The engine `segment-shared`: epochs whose newest records share the commit log of the node (ADR 0196)."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, cast

from tidelog_broker.storage.commit_log.commit_log import CommitLog, Sizes
from tidelog_broker.storage.commit_log.log_recovery import open_log
from tidelog_broker.storage.commit_log.records import Boundary
from tidelog_broker.storage.commit_log.shared_reader import SharedContents
from tidelog_broker.storage.commit_log.shared_store import REPAIRING, SharedStore
from tidelog_broker.storage.commit_log.store_directory import finish_move
from tidelog_broker.storage.commit_log.store_identity import (
    FILE_NAME,
    MOVED_NAME,
    TailIdentity,
    read_identity,
    write_identity,
)
from tidelog_broker.storage.commit_log.tail import UNKNOWN_DIGEST, Tail
from tidelog_broker.storage.commit_log.tail_batches import read_entries
from tidelog_broker.storage.commit_log.tidying import Tidying
from tidelog_broker.storage.directory.names import SEGMENT_SUFFIX
from tidelog_broker.storage.directory.repair_markers import has_marker, remove_marker
from tidelog_broker.storage.engine.store import (
    SHARED,
    Capabilities,
    Damage,
    Engine,
    EpochStart,
    EpochStore,
    Volume,
)
from tidelog_broker.storage.epoch.epoch_log import EpochLog
from tidelog_broker.storage.io.errors import DamagedError, EngineMissingError, unreadable
from tidelog_broker.storage.segment.disk import Disk
from tidelog_broker.storage.segment.layout import BEGUN_SUFFIX
from tidelog_proto.batch.header import digest_after, unpack_header

CAPABILITIES: Final = Capabilities(durable=True, survives_restart=True, compactable=True, tierable=True)


class SharedEngine(Engine):
    """The engine of a node whose stores share one commit log, which is opened when it is first needed.

    Args:
        directory: of the commit log.
    """

    name = SHARED
    capabilities = CAPABILITIES

    def __init__(self, disk: Disk, directory: Path, sizes: Sizes | None = None) -> None:
        self._disk = disk
        self._directory = directory
        self._sizes = sizes or Sizes()
        self._lock = threading.Lock()
        self._log: CommitLog | None = None

    @property
    def log(self) -> CommitLog:
        """The commit log.

        Raises:
            DamagedError, StorageFailedError: it cannot be opened; see `open_log`.
        """
        with self._lock:
            if self._log is None:
                self._log = open_log(self._disk, self._directory, self._sizes)
                tidying, syncer = Tidying(self._disk.fs, self._log), self._disk.syncer

                def tidy() -> None:
                    if syncer is None or not syncer.offer(tidying.run):
                        tidying.run()

                self._log.tidy = tidy
            return self._log

    def lay_out(self, directory: Path, start: EpochStart, *, segment_bytes: int) -> None:
        """Write the id of a new store into the directory, then record the store in the log, durably."""
        del segment_bytes
        store = secrets.randbits(63)
        write_identity(self._disk.fs, directory, TailIdentity(store, start))
        tail = Tail(store, start)
        with tail.lock:
            self.log.state(tail)
        self.log.sync()

    def open(
        self, directory: Path, *, segment_bytes: int, sealed_end_offset: int | None = None, is_new: bool = False
    ) -> EpochStore:
        """Open a store: its segments, and its tail in the log.

        Raises:
            DamagedError: the identity of the store, the first segment's header or the whole commit log is damaged.
            StorageFailedError: the disk cannot be read or written.
        """
        del is_new  # The log has a record of the store, durably, since before its directory had its name.
        try:
            return self._open(directory, segment_bytes, sealed_end_offset)
        except OSError as error:
            raise unreadable(f"{directory} cannot be opened", error) from error

    def _open(self, directory: Path, segment_bytes: int, sealed_end_offset: int | None) -> EpochStore:
        fs = self._disk.fs
        names = fs.list_dir(directory)
        if MOVED_NAME in names:
            if FILE_NAME in names:
                finish_move(fs, directory, self.log, read_identity(fs, directory).store)
            return EpochLog.open(
                self._disk, directory, segment_bytes=segment_bytes, sealed_end_offset=sealed_end_offset
            )
        identity = read_identity(fs, directory)
        is_marked = has_marker(fs, directory)
        segments = self._open_segments(directory, names, segment_bytes)
        tail = self.log.tails.get(identity.store)
        is_known = tail is not None
        if tail is None:
            at = _end_of(segments, identity.start)
            tail = Tail(identity.store, identity.start._replace(offset=at.offset, digest=at.digest))
        tail.start = identity.start
        contents = SharedContents(directory, identity.start, self.log, tail, segments)
        damage = self._join(contents, is_known=is_known)
        if sealed_end_offset is not None and damage is None and contents.end.offset != sealed_end_offset:
            end_offset = contents.end.offset
            reason = f"the epoch ends at offset {sealed_end_offset}, but this copy at {end_offset}"
            damage = Damage(directory, 0, end_offset, sealed_end_offset, reason)
        is_repairing = is_marked and damage is None and sealed_end_offset is None
        if is_repairing:
            damage = Damage(directory, 0, contents.end.offset, contents.end.offset, REPAIRING)
        store = SharedStore(self._disk, contents, segment_bytes=segment_bytes, damage=damage, is_repairing=is_repairing)
        if sealed_end_offset is not None and damage is None:
            if segments is not None and segments.is_repairing:
                segments.finish_repair()
            remove_marker(fs, directory)
            store.sealed_at_open()
        return store

    def is_deleted(self, names: Sequence[str]) -> bool:
        """Return whether a directory that contains these file names is the remains of an interrupted deletion."""
        return FILE_NAME not in names and not any(name.endswith(SEGMENT_SUFFIX) for name in names)

    def forget(self, directory: Path) -> None:
        """Record in the log that a store is not needed any more, durably."""
        with suppress(DamagedError):  # Its records keep their files; nothing else refers to them.
            self.log.forget(read_identity(self._disk.fs, directory).store)

    # --------------------------------------------------------------------------------- internals

    def _open_segments(self, directory: Path, names: Sequence[str], segment_bytes: int) -> EpochLog | None:
        """Open the segments; None without segments. A segment that was never completed has nothing that is needed."""
        if not any(name.endswith(SEGMENT_SUFFIX) for name in names):
            for name in names:
                if name.endswith(BEGUN_SUFFIX):
                    self._disk.fs.unlink(directory / name)
            return None
        return EpochLog.open(self._disk, directory, segment_bytes=segment_bytes)

    def _join(self, contents: SharedContents, *, is_known: bool) -> Damage | None:
        """Bring the tail in line with the segments before it; return the damage, None if they fit together."""
        tail, segments = contents.tail, contents.segments
        at = _end_of(segments, contents.start)
        if segments is not None and segments.damage is not None and not segments.is_repairing:
            contents.is_blocked = True
            return segments.damage
        if not is_known:
            reason = f"the commit log {self._directory} has no record of this store, so its newest records are lost"
            return Damage(contents.directory, 0, at.offset, at.offset, reason)
        with tail.lock:
            if tail.is_cut and not len(tail.entries) and tail.end.offset < at.offset and segments is not None:
                segments.truncate(tail.end.offset)  # A crash has interrupted this truncation.
                at = _end_of(segments, contents.start)
            if tail.entries.base.offset < at.offset:
                self._drop_written(contents, at)
        return self._tail_damage(contents, at)

    def _drop_written(self, contents: SharedContents, at: Boundary) -> None:
        """Remove batches from the tail that the segments have."""
        tail, entries = contents.tail, contents.tail.entries
        count = entries.slots_below(at.offset)
        is_doubtful = tail.is_doubtful
        if tail.end.offset <= at.offset:
            tail.restart(at, tail.position)
            tail.is_damaged = is_doubtful or tail.marked_offset > at.offset
        elif count < len(entries) and entries.offsets[count] == at.offset:
            tail.replace(entries.after(count, at), tail.end, tail.position)
        tail.is_doubtful = is_doubtful

    def _tail_damage(self, contents: SharedContents, at: Boundary) -> Damage | None:
        tail = contents.tail
        reason = ""
        if tail.entries.base.offset != at.offset or not self._continues(contents, at):
            base = tail.entries.base
            reason = (
                f"the segments end at offset {at.offset} with digest {at.digest:#010x}, but the records in the commit "
                f"log begin at {base.offset} with {base.digest:#010x}"
            )
            synced_offset = max(tail.end.offset, tail.marked_offset)
            contents.is_blocked = contents.segments is not None
            if not contents.is_blocked:
                contents.tail = Tail(tail.store, contents.start)
                contents.tail.is_damaged = True
            tail.is_damaged = True
            return Damage(contents.directory, 0, at.offset, synced_offset, reason)
        if tail.is_damaged:
            if tail.end.digest == UNKNOWN_DIGEST and (count := len(tail.entries)):
                (last,) = read_entries(contents.log.files, tail.entries, count - 1, count)
                tail.end = tail.end._replace(digest=unpack_header(last, typed=True).digest)
            reason = (
                f"records below offset {tail.marked_offset} were synced, but those from {tail.end.offset} on are bad"
            )
            if tail.is_doubtful and tail.marked_offset <= tail.end.offset:
                reason = (
                    f"a part of the commit log is missing, which may have had records from offset {tail.end.offset} on"
                )
            return Damage(self._directory, 0, tail.end.offset, max(tail.end.offset, tail.marked_offset), reason)
        return None

    def _continues(self, contents: SharedContents, at: Boundary) -> bool:
        """Return whether the tail begins with the digest at the end of the segments; note that digest if so."""
        tail, entries = contents.tail, contents.tail.entries
        if entries.base.digest != UNKNOWN_DIGEST:
            return entries.base.digest == at.digest
        if len(entries):
            (batch,) = read_entries(contents.log.files, entries, 0, 1)
            if unpack_header(batch, typed=True).digest != digest_after(batch, 0, at.digest):
                return False
        else:
            tail.end = at
        tail.entries = entries.after(0, at)
        return True


def _end_of(segments: EpochLog | None, start: EpochStart) -> Boundary:
    if segments is None:
        return Boundary(start.offset, start.digest)
    return Boundary(segments.end_offset, segments.end_digest)


def shared_engine(volume: Volume) -> Engine:
    """Return the engine of a node, whose resources are a `Disk` with the directory of a commit log.

    Raises:
        EngineMissingError: the node has no directory for a commit log.
    """
    disk = cast(Disk, volume)
    if disk.commit_log_dir is None:
        raise EngineMissingError(SHARED, "this process has no directory for a commit log")
    return SharedEngine(disk, disk.commit_log_dir)
