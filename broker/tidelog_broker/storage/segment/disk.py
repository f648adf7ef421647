"""What the logs of a node share: the file system, the bounded set of open segments, the preallocating thread.

Open segments are leased: a lease keeps the file and its index open while it is read, whatever is rolled, evicted or
deleted meanwhile; a deleted file stays readable until its last lease ends, as Unix does it. Rejected: a file object
that closes itself when garbage collected, which hides how many descriptors are open.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tidelog_broker.storage.io.errors import NoDescriptorError
from tidelog_broker.storage.io.filesystem import File, FileSystem, RealFileSystem
from tidelog_broker.storage.io.mapped_writer import MappedWriter
from tidelog_broker.storage.io.workers import IoWorkers
from tidelog_broker.storage.segment.active_files import ActiveFiles, active_files_max
from tidelog_broker.storage.segment.hash_memory import HashMemory
from tidelog_broker.storage.segment.index import Index
from tidelog_broker.storage.segment.mappings import Mappings
from tidelog_broker.storage.segment.segment_hashes import SegmentHashes
from tidelog_broker.storage.segment.spare import SpareBudget
from tidelog_proto.limits import MIB
from tidelog_proto.process.file_descriptors import descriptor_limit

OPEN_SEGMENTS_MAX: Final = 512
"""How many segments stay open at most."""
OPEN_SEGMENTS_MIN: Final = 16
"""Beside those that are appended to."""
FILES_PER_SEGMENT: Final = 4
"""Descriptors of one: the segment's own, a mapping's, and one for each index of keys or tags."""
INDEXES_BYTES_MAX: Final = 64 * MIB
"""What the indexes of those may take in memory."""


class OpenSegment:
    """A segment's file and index, open. `leases` is guarded by the set that holds it."""

    __slots__ = (
        "_sync_failure",
        "_sync_lock",
        "dropped",
        "file",
        "hashes",
        "index",
        "index_bytes",
        "leases",
        "name",
        "synced_bytes",
    )

    def __init__(self, file: File, index: Index, *, synced_bytes: int = 0, hashes: SegmentHashes | None = None) -> None:
        self.file = file
        self.index = index
        self.hashes = hashes or SegmentHashes(file, index)
        """By which its batches are found by key and tag."""
        self.synced_bytes = synced_bytes
        """How much of it is known to be durable."""
        self._sync_lock = threading.Lock()
        self._sync_failure: OSError | None = None
        self.index_bytes = 0
        """What the set counts for its index."""
        self.leases = 0
        self.dropped = False
        self.name: Path | None = None
        """Under which it is in the set, or was."""

    def close(self) -> None:
        """Close its files; nobody has a lease any more."""
        self.file.close()
        self.hashes.close()

    @property
    def has_failed(self) -> bool:
        """Whether a sync of it failed: it stays open, so that nobody takes the next one for a success."""
        return self._sync_failure is not None

    def datasync(self, size_bytes: int) -> None:
        """Make the first `size_bytes` durable, which are written. May be called by any thread.

        A sync that failed is never tried again, by nobody: the kernel would call the next one a success.

        Raises:
            OSError: the sync failed, now or before.
        """
        with self._sync_lock:
            if self._sync_failure is not None:
                raise self._sync_failure
            try:
                self.file.datasync()
            except OSError as error:
                self._sync_failure = error
                raise
            self.synced_bytes = max(self.synced_bytes, size_bytes)


class OpenSegments:
    """A least-recently-used set of open segments, bounded but for those that are leased. Thread-safe."""

    def __init__(self, capacity: int | None = None, *, indexes_bytes_max: int = INDEXES_BYTES_MAX) -> None:
        self._capacity = open_segments_max() if capacity is None else capacity
        self._indexes_bytes_max = indexes_bytes_max
        self._indexes_bytes = 0
        """Of the segments in the set, as they were when they came or were last let go of."""
        self.mappings = Mappings()
        """Those of files in the set; what is in it no more is unmapped."""
        self._lock = threading.Lock()
        self._open: OrderedDict[Path, OpenSegment] = OrderedDict()
        self._held: Counter[Path] = Counter()
        """Paths that are being opened, or are open though they were dropped."""

    def __len__(self) -> int:
        return len(self._open)

    def adopt(self, path: Path, segment: OpenSegment) -> None:
        """Put an opened segment into the set with one lease on it, ended by `release`."""
        with self._lock:
            assert path not in self._open, f"{path} is open already"
            segment.leases = 1
            self._add(path, segment)
        self._evict()

    def peek(self, path: Path) -> OpenSegment | None:
        """Return a segment if it is in the set, without a lease: to be counted, not read."""
        return self._open.get(path)

    def replace(self, path: Path, segment: OpenSegment) -> None:
        """As `adopt`, in place of one that may be in the set; that one closes when its last lease ends."""
        with self._lock:
            old = self._remove(path)
            segment.leases = 1
            self._add(path, segment)
            close = old is not None and self._dropped(path, old)
        if old is not None and close:
            self._close(old)
        self._evict()

    @contextmanager
    def lease(self, path: Path, opener: Callable[[], OpenSegment]) -> Iterator[OpenSegment]:
        """Hold a segment open, opening it if need be; whatever `opener` raises is raised."""
        segment = self._take(path)
        if segment is None:
            try:
                segment = self._put(path, self._opened(opener))
            finally:
                with self._lock:
                    self._let_go(path)
        try:
            yield segment
        finally:
            self.release(segment)

    def release(self, segment: OpenSegment) -> None:
        """End a lease."""
        with self._lock:
            segment.leases -= 1
            assert segment.leases >= 0
            if not segment.leases and not segment.dropped:  # it may have grown meanwhile
                self._indexes_bytes += segment.index.size_bytes - segment.index_bytes
                segment.index_bytes = segment.index.size_bytes
            close = segment.dropped and segment.leases == 0
            if close and segment.name is not None:
                self._let_go(segment.name)
        if close:
            self._close(segment)
        self._evict()

    def drop(self, path: Path) -> bool:
        """Take a segment out of the set; it closes when its last lease ends.

        Whether nobody has the file any more: it is not open, and no slice of a mapping of it is held.
        """
        with self._lock:
            segment = self._remove(path)
            close = segment is not None and self._dropped(path, segment)
            is_free = path not in self._held
        if segment is not None and close:
            is_free = self._close(segment) and is_free
        return is_free

    def close_unused(self) -> None:
        """Close all segments without a lease, to free descriptors."""
        with self._lock:
            unused = [path for path, segment in self._open.items() if segment.leases == 0]
            closing = [segment for path in unused if (segment := self._remove(path)) is not None]
        for segment in closing:
            self._close(segment)

    def _opened(self, opener: Callable[[], OpenSegment]) -> OpenSegment:
        try:
            return opener()
        except NoDescriptorError:
            self.close_unused()
            return opener()

    def _add(self, path: Path, segment: OpenSegment) -> None:
        segment.name = path
        segment.index_bytes = segment.index.size_bytes
        self._indexes_bytes += segment.index_bytes
        self._open[path] = segment

    def _remove(self, path: Path) -> OpenSegment | None:
        segment = self._open.pop(path, None)
        if segment is not None:
            self._indexes_bytes -= segment.index_bytes
        return segment

    def _close(self, segment: OpenSegment) -> bool:
        """Close a segment that nobody leases; whether no slice of it is held."""
        is_free = self.mappings.drop(segment.file)
        segment.close()
        return is_free

    def _dropped(self, path: Path, segment: OpenSegment) -> bool:
        """Mark a segment that left the set; True when it is to be closed now."""
        segment.dropped = True
        if segment.leases:
            self._held[path] += 1
        return segment.leases == 0

    def _let_go(self, path: Path) -> None:
        self._held[path] -= 1
        if not self._held[path]:
            del self._held[path]

    def _take(self, path: Path) -> OpenSegment | None:
        """Lease a segment of the set; without one, note that it is being opened."""
        with self._lock:
            segment = self._open.get(path)
            if segment is not None:
                segment.leases += 1
                self._open.move_to_end(path)
            else:
                self._held[path] += 1
            return segment

    def _put(self, path: Path, mine: OpenSegment) -> OpenSegment:
        """Add a segment that was opened outside the lock; another thread may have been faster."""
        with self._lock:
            if path not in self._open:
                self._add(path, mine)
            segment = self._open[path]
            segment.leases += 1
        if segment is not mine:
            mine.close()
        self._evict()
        return segment

    def _evict(self) -> None:
        if self._fits():
            return
        closing: list[OpenSegment] = []
        with self._lock:
            for path, segment in list(self._open.items()):
                if self._fits():
                    break
                if segment.leases == 0:
                    self._remove(path)
                    closing.append(segment)
        for segment in closing:
            self._close(segment)

    def _fits(self) -> bool:
        return len(self._open) <= self._capacity and self._indexes_bytes <= self._indexes_bytes_max


def open_segments_max(limit: int | None = None) -> int:
    """Return how many segments stay open where `limit` descriptors may be: those of appends, and a sixteenth."""
    limit = descriptor_limit() if limit is None else limit
    return min(OPEN_SEGMENTS_MAX, active_files_max(limit) + max(OPEN_SEGMENTS_MIN, limit // 16))


@dataclass(slots=True)
class Disk:
    """The shared parts, passed to every log. Without background threads the appender does their work itself.

    The threads take space ahead, sync rolled segments, make names durable, and index keys and tags. What makes names
    never waits for a sync of records, which takes long, since the next segment may wait for it. Without the last one
    readers index themselves.
    """

    fs: FileSystem = field(default_factory=RealFileSystem)
    open_segments: OpenSegments = field(default_factory=OpenSegments)
    active_files: ActiveFiles = field(default_factory=ActiveFiles)
    preallocator: IoWorkers | None = None
    syncer: IoWorkers | None = None
    namer: IoWorkers | None = None
    indexer: IoWorkers | None = None
    spares: SpareBudget = field(default_factory=SpareBudget)
    hash_memory: HashMemory = field(default_factory=HashMemory)
    maps_reads: bool = False
    """Whether sealed segments are sent out of mappings."""
    maps_writes: bool = False
    """Whether segments are appended to through mappings."""

    def open_to_append(self, path: Path, *, create: bool = False) -> File:
        """Open the file of a segment that grows; see `FileSystem.open`."""
        file = self.fs.open(path, create=create)
        return MappedWriter(file) if self.maps_writes else file
