"""Maintenance of a partition's indexes of keys and tags, on a thread that no append waits for.

A rolled segment gets its index files. The growing segment is read into an in-memory index one MiB at a time, and so are
the segments of a log that was opened or whose topic has just been given an index. Results do not depend on the indexes:
a lookup reads small unindexed parts itself, and scans larger ones. If a file cannot be written on a full disk, it is
retried when the next segment is rolled; until then the index stays in memory while its segment is open.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final, Literal, Protocol, cast

from tidelog_broker.storage.directory.names import NEW_SUFFIX
from tidelog_broker.storage.engine.store import EpochStore, Volume
from tidelog_broker.storage.epoch.epoch_log import EpochLog
from tidelog_broker.storage.epoch.held_segments import Segment
from tidelog_broker.storage.io.filesystem import FileSystem
from tidelog_broker.storage.segment.active_segment import ActiveSegment
from tidelog_broker.storage.segment.disk import Disk, OpenSegment
from tidelog_broker.storage.segment.layout import hash_path
from tidelog_broker.storage.segment.sealed_segment import SealedSegment
from tidelog_proto.batch.column_slices import TextColumn
from tidelog_proto.batch.header import Buffer
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import MIB

log = logging.getLogger(__name__)

BEHIND_BYTES_MAX: Final = 1 * MIB
"""Number of appended bytes after which an update of the growing segment's index is requested."""
CATCH_UP_BYTES_MAX: Final = 4 * MIB
"""Maximum bytes that a lookup itself reads into an index."""
CATCH_UP_BATCHES_MAX: Final = 4096
"""Maximum number of batches that a lookup itself reads into an index."""
_STEP_WINDOWS: Final = 16
"""Maximum number of MiB that one task reads on the thread that all partitions share."""
_ALL_WINDOWS: Final = 1 << 20

_Mark = tuple[int, TextColumn]
"""Identifies an index file: the nonce of its segment, and its column."""
_State = Literal["there", "lacking", "failed"]


class IndexedLog(Protocol):
    """Provides the stores of a partition's epochs to `RecordIndexes`, which indexes those of the segment engine."""

    @property
    def disk(self) -> Volume:
        """The resources of the node: a `Disk`."""
        ...

    @property
    def epochs(self) -> tuple[EpochStore, ...]:
        """The epochs' stores, oldest first."""
        ...


class RecordIndexes:
    """Maintains the indexes of one partition's segments by key and tag.

    `columns` is set on the event loop; everything else is thread-safe.
    """

    def __init__(self, held: IndexedLog) -> None:
        self._held = held
        self._disk = cast(Disk, held.disk)
        self.columns: frozenset[TextColumn] = frozenset()
        """The columns that have an index."""
        self._lock = threading.Lock()
        self._is_requested = False
        self._marks: dict[_Mark, _State] = {}
        """The known state of sealed segments' index files."""
        self._may_lack = True
        """Whether sealed segments may lack index files; otherwise these segments are not examined."""
        self._seen_segment: Segment | None = None
        self._seen_bytes = 0

    @property
    def size_bytes(self) -> int:
        """The memory used by the indexes of open segments."""
        return sum(
            opened.hashes.size_bytes
            for _, segment in self._segments()
            if (opened := self._disk.open_segments.peek(segment.path)) is not None
        )

    @property
    def missing_bytes(self) -> int:
        """The approximate size of the part of the log that is not indexed and has to be scanned."""
        if not self.columns:
            return 0
        return sum(self._missing_bytes_of(segment) for _, segment in self._segments())

    def _missing_bytes_of(self, segment: Segment) -> int:
        if not isinstance(segment, ActiveSegment):
            is_done = all(self._marks.get((segment.header.nonce, column)) == "there" for column in self.columns)
            return 0 if is_done else segment.size_bytes
        opened = segment.opened
        covered = min(opened.hashes.covered(column) for column in self.columns)
        if covered == len(opened.index):
            return 0
        return max(0, segment.size_bytes - opened.index.place(covered).position)

    def close(self) -> None:
        """End the accounting of these indexes' memory, because the log is closed."""
        self._disk.hash_memory.holds(self, 0)

    def switch(self, columns: frozenset[TextColumn]) -> None:
        """Change the indexed columns; existing records are indexed, too."""
        if columns != self.columns:
            self.columns = columns
            self._may_lack = True
            if columns:
                self.request()

    def appended(self) -> None:
        """Request indexing if enough bytes were appended. Called by the appending thread if `columns` is not empty."""
        newest = self._held.epochs[-1]
        if not isinstance(newest, EpochLog):
            return
        segment = newest.segments[-1]
        size_bytes = segment.size_bytes
        if segment is not self._seen_segment:
            self._forget_marks()
            self._seen_segment, self._seen_bytes = segment, size_bytes
            self.request()
        elif size_bytes - self._seen_bytes >= BEHIND_BYTES_MAX:
            self._seen_bytes = size_bytes
            self.request()

    def request(self) -> None:
        """Queue a task that indexes the unindexed parts on the indexing thread, unless one is queued already."""
        indexer = self._disk.indexer
        if indexer is None:
            return
        with self._lock:
            if self._is_requested:
                return
            self._is_requested = True
        if not indexer.offer(self._work):
            self._is_requested = False

    def prepare(self, segment: Segment, opened: OpenSegment, column: TextColumn, stop: int) -> None:
        """Extend a segment's index towards slot `stop` before a lookup.

        A part that is larger than CATCH_UP_BYTES_MAX or CATCH_UP_BATCHES_MAX is left to the indexing thread, if there
        is one, and the lookup scans it. While the memory for indexes is full, the lookup scans any unindexed part.

        Raises:
            OSError: the disk cannot be read.
        """
        hashes, index = opened.hashes, opened.index
        fs, has_thread = self._disk.fs, self._disk.indexer is not None
        if isinstance(segment, SealedSegment):
            if hashes.load(fs, segment.path, column, nonce=segment.header.nonce, end=segment.end):
                return
            self._note_lack((segment.header.nonce, column))
            if not has_thread:
                hashes.catch_up([column], len(index), windows_max=_ALL_WINDOWS)
                self._make_file(segment, opened, column)
                return
        covered = hashes.covered(column)
        if covered < stop:
            missing_bytes = index.place(stop - 1).position - index.place(covered).position
            is_little = missing_bytes <= CATCH_UP_BYTES_MAX and stop - covered <= CATCH_UP_BATCHES_MAX
            if self._disk.hash_memory.is_full:
                return
            if is_little or not has_thread:
                hashes.catch_up([column], stop, windows_max=_ALL_WINDOWS)
                self._disk.hash_memory.holds(self, hashes.size_bytes)
            else:
                self.request()

    def _note_lack(self, mark: _Mark) -> None:
        """Record that an index file is missing or invalid; request it unless creating it has just failed."""
        if self._marks.get(mark) == "there":
            del self._marks[mark]
        if mark not in self._marks:
            self._marks[mark] = "lacking"
            self._may_lack = True
            self.request()

    def _forget_marks(self) -> None:
        """Forget the state of deleted segments' index files, and failures, so that indexing is retried."""
        nonces = {segment.header.nonce for _, segment in self._segments()}
        marks = list(self._marks.items())
        self._may_lack = True
        self._marks = {mark: state for mark, state in marks if state != "failed" and mark[0] in nonces}

    # --------------------------------------------------------------------------- on the indexing thread

    def _work(self) -> None:
        self._is_requested = False
        if self._step():
            self.request()

    def _step(self) -> bool:
        """Index one part that is not indexed, newest segment first; return whether there may be more."""
        may_lack, self._may_lack = self._may_lack, False
        for epoch, segment in self._segments():
            columns: list[TextColumn] = [column for column in self.columns if not self._is_done(segment, column)]
            try:
                took_time = bool(columns) and self._index(epoch, segment, columns)
            except (OSError, ProtocolError) as error:
                # The segment was deleted or closed meanwhile, or is damaged, which a reader reports.
                log.info(
                    "%s cannot be indexed by %s; if it still exists, lookups scan it: %s",
                    segment.path,
                    " and ".join(columns),
                    error,
                )
                for column in columns:
                    self._marks[segment.header.nonce, column] = "failed"
                continue
            if took_time:
                self._may_lack |= may_lack
                return True
            if not may_lack:
                return False  # Only the newest segment has changed, so the older ones need no work.
        return False

    def _is_done(self, segment: Segment, column: TextColumn) -> bool:
        """Return whether a column of a segment needs no work: its index file exists, or indexing it has failed."""
        mark = (segment.header.nonce, column)
        if isinstance(segment, ActiveSegment):
            return self._marks.get(mark) == "failed"
        if mark not in self._marks and self._disk.fs.exists(hash_path(segment.path, column)):
            self._marks[mark] = "there"
        return self._marks.get(mark) in {"there", "failed"}

    def _segments(self) -> Iterator[tuple[EpochLog, Segment]]:
        for epoch in reversed(self._held.epochs):
            if isinstance(epoch, EpochLog):
                for segment in reversed(epoch.segments):
                    yield epoch, segment

    def _log_of(self, epoch: int) -> EpochLog | None:
        return next((log for log in self._held.epochs if log.epoch == epoch and isinstance(log, EpochLog)), None)

    def _index(self, epoch: EpochLog, segment: Segment, columns: list[TextColumn]) -> bool:
        """Extend the indexes of a segment; return whether that took so long that this task must end."""
        with epoch.segment_reader.lease(segment) as opened:
            if isinstance(segment, ActiveSegment):
                stop = opened.index.slots_below(min(epoch.end_offset, segment.end_offset))
                memory = self._disk.hash_memory
                # The amount may be lower than the last one, because this segment has just begun.
                memory.holds(self, opened.hashes.size_bytes)
                if memory.is_full:
                    return False  # Lookups scan this segment until it is rolled and gets its index file.
                is_there = opened.hashes.catch_up(columns, stop, windows_max=_STEP_WINDOWS)
                memory.holds(self, opened.hashes.size_bytes)
                return not is_there
            if opened.hashes.catch_up(columns, len(opened.index), windows_max=_STEP_WINDOWS):
                for column in columns:
                    self._make_file(segment, opened, column)
            return True

    def _make_file(self, segment: SealedSegment, opened: OpenSegment, column: TextColumn) -> None:
        """Write the index file of a sealed segment, which has been read completely."""
        fs, hashes, epoch = self._disk.fs, opened.hashes, self._log_of(segment.header.epoch)
        mark = (segment.header.nonce, column)
        self._marks[mark] = "failed"
        if hashes.has_file(column):  # The file is open, even if its rename failed.
            self._marks[mark] = "there"
        elif epoch is not None:
            pieces = hashes.pack(column, nonce=segment.header.nonce, end=segment.end)
            with epoch.segment_reader.naming(segment) as may_name:
                if may_name and _write(fs, hash_path(segment.path, column), pieces):
                    self._marks[mark] = "there"
            hashes.look_again(column)
            hashes.load(fs, segment.path, column, nonce=segment.header.nonce, end=segment.end)


def _write(fs: FileSystem, path: Path, pieces: list[Buffer]) -> bool:
    """Write and rename an index file; return whether that succeeded. No sync is needed: readers check the CRCs."""
    unnamed = path.with_name(path.name + NEW_SUFFIX)
    try:
        if fs.exists(unnamed):
            fs.unlink(unnamed)
        with closing(fs.open(unnamed, create=True)) as file:
            file.pwritev(pieces, 0)
        fs.rename(unnamed, path)
    except OSError as error:
        log.warning(
            "the index file %s cannot be written: %s; check the disk and its free space; this node tries again when "
            "the log begins its next segment",
            path,
            error,
        )
        with contextlib.suppress(OSError):
            fs.unlink(unnamed)
        return False
    return True
