"""Resources shared by the logs of a node: the file system, a bounded set of open segments, background threads.

Open segments are leased: a lease keeps the file and its index open while it is read, even if the segment is rolled,
evicted or deleted meanwhile; a deleted file stays readable until its last lease ends. Rejected: a file object that
closes itself when garbage collected, which hides how many descriptors are open.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tidelog_broker.storage.engine.store import Engine
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
"""Upper bound of the number of open segments, whatever the descriptor limit is."""
OPEN_SEGMENTS_MIN: Final = 16
"""Minimum number of open segments besides those that logs append to."""
FILES_PER_SEGMENT: Final = 4
"""Descriptors of one segment: its file, a mapping, and one for each index of keys or tags."""
MEMORY_BYTES_DEFAULT: Final = 256 * MIB
INDEXES_BYTES_MAX: Final = 64 * MIB
"""Memory bound for the indexes of open segments."""


class OpenSegment:
    """An open segment: its file and index. The lock of the `OpenSegments` that contains it guards `leases`."""

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
        """Finds batches by key and tag."""
        self.synced_bytes = synced_bytes
        """Number of bytes that are known to be durable."""
        self._sync_lock = threading.Lock()
        self._sync_failure: OSError | None = None
        self.index_bytes = 0
        """The index size as counted by `OpenSegments`."""
        self.leases = 0
        self.dropped = False
        self.name: Path | None = None
        """The path under which `OpenSegments` contains the segment, or has contained it."""

    def close(self) -> None:
        """Close its files, after the last lease has ended."""
        self.file.close()
        self.hashes.close()

    @property
    def has_failed(self) -> bool:
        """Whether a sync failed: the file stays open, so that a later sync is not taken for a success."""
        return self._sync_failure is not None

    def datasync(self, size_bytes: int) -> None:
        """Make the first `size_bytes`, which are written, durable. Thread-safe.

        A failed sync is never retried: the kernel would report success.

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
    """A least-recently-used set of open segments; leased ones may exceed the bound. Thread-safe."""

    def __init__(self, capacity: int | None = None, *, indexes_bytes_max: int = INDEXES_BYTES_MAX) -> None:
        self._capacity = open_segments_max() if capacity is None else capacity
        self._indexes_bytes_max = indexes_bytes_max
        self._indexes_bytes = 0
        """Size of the indexes in the set, as of each segment's addition or last release."""
        self.mappings = Mappings()
        """Mappings of files in the set; a file that leaves the set is unmapped."""
        self._lock = threading.Lock()
        self._open: dict[Path, OpenSegment] = {}
        self._idle: OrderedDict[Path, OpenSegment] = OrderedDict()
        """The segments of the set without a lease, least recently used first. Thousands of others may be leased: every
        segment that a log appends to."""
        self._held: Counter[Path] = Counter()
        """Paths that are being opened, or that are dropped but still open."""

    def __len__(self) -> int:
        return len(self._open)

    def adopt(self, path: Path, segment: OpenSegment) -> None:
        """Add an open segment with one lease, which `release` ends."""
        with self._lock:
            assert path not in self._open, f"{path} is open already"
            segment.leases = 1
            self._add(path, segment)
        self._evict()

    def peek(self, path: Path) -> OpenSegment | None:
        """Return a segment of the set without a lease, for accounting only; None if it is not in the set."""
        return self._open.get(path)

    def replace(self, path: Path, segment: OpenSegment) -> None:
        """Add a segment as `adopt` does, replacing one of the same path, which closes when its last lease ends."""
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
        """Lease a segment until the block ends, opening it if needed; exceptions of `opener` propagate."""
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
            if not segment.leases and not segment.dropped:  # The index may have grown during the lease.
                self._indexes_bytes += segment.index.size_bytes - segment.index_bytes
                segment.index_bytes = segment.index.size_bytes
                if segment.name is not None:
                    self._idle[segment.name] = segment
            close = segment.dropped and segment.leases == 0
            if close and segment.name is not None:
                self._let_go(segment.name)
        if close:
            self._close(segment)
        self._evict()

    def drop(self, path: Path) -> bool:
        """Remove a segment from the set; it closes when its last lease ends.

        Returns whether the file is unused: it is not open, and no slice of a mapping of it exists.
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
            closing = [segment for path in list(self._idle) if (segment := self._remove(path)) is not None]
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
            self._idle.pop(path, None)
            self._indexes_bytes -= segment.index_bytes
        return segment

    def _close(self, segment: OpenSegment) -> bool:
        """Close a segment without a lease; return whether no slice of its mapping exists."""
        is_free = self.mappings.drop(segment.file)
        segment.close()
        return is_free

    def _dropped(self, path: Path, segment: OpenSegment) -> bool:
        """Mark a segment that left the set; return True if it must be closed now."""
        segment.dropped = True
        if segment.leases:
            self._held[path] += 1
        return segment.leases == 0

    def _let_go(self, path: Path) -> None:
        self._held[path] -= 1
        if not self._held[path]:
            del self._held[path]

    def _take(self, path: Path) -> OpenSegment | None:
        """Lease a segment of the set and return it; if it is missing, register its opening and return None."""
        with self._lock:
            segment = self._open.get(path)
            if segment is not None:
                segment.leases += 1
                self._idle.pop(path, None)
            else:
                self._held[path] += 1
            return segment

    def _put(self, path: Path, mine: OpenSegment) -> OpenSegment:
        """Add a segment that was opened outside the lock, unless another thread has added it."""
        with self._lock:
            if path not in self._open:
                self._add(path, mine)
            segment = self._open[path]
            segment.leases += 1
            self._idle.pop(path, None)
        if segment is not mine:
            mine.close()
        self._evict()
        return segment

    def _evict(self) -> None:
        if self._fits():
            return
        closing: list[OpenSegment] = []
        with self._lock:
            while self._idle and not self._fits():
                path, segment = next(iter(self._idle.items()))
                self._remove(path)
                closing.append(segment)
        for segment in closing:
            self._close(segment)

    def _fits(self) -> bool:
        return len(self._open) <= self._capacity and self._indexes_bytes <= self._indexes_bytes_max


def open_segments_max(limit: int | None = None) -> int:
    """Return how many segments may stay open, at most `OPEN_SEGMENTS_MAX`.

    The number is the maximum of files open for appends plus a sixteenth of the descriptor limit, which counts as at
    least `OPEN_SEGMENTS_MIN`.
    """
    limit = descriptor_limit() if limit is None else limit
    return min(OPEN_SEGMENTS_MAX, active_files_max(limit) + max(OPEN_SEGMENTS_MIN, limit // 16))


@dataclass(slots=True)
class Disk:
    """The shared resources, passed to every log. Without background threads the appender does their work.

    The threads preallocate space, sync rolled segments, sync directories, and index keys and tags. Directory syncs have
    their own thread because the next segment may wait for them, and syncs of records take long. Without the indexer
    readers build the indexes.
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
    """Whether sealed segments are sent from mappings."""
    maps_writes: bool = False
    """Whether segments are appended to through mappings."""
    memory_bytes: int = MEMORY_BYTES_DEFAULT
    """Maximum bytes of records that the memory engine stores on the node."""
    engines_dir: Path | None = None
    """The directory for data that engines keep outside the epochs' directories; see `engine.store.Volume`."""
    rocksdb_preset: str = "normal"
    """The sizes of the RocksDB engine; see `engine.store.Volume`."""
    commit_log_dir: Path | None = None
    """The directory of the node's commit log; None: epochs of the shared file model cannot be opened."""
    engines: dict[str, Engine] = field(default_factory=dict)
    """The engines in use, by name; see `storage.engines`."""

    @property
    def was_full(self) -> bool:
        """Whether the disk has been full since the node started."""
        return self.spares.has_ended

    def note_full(self) -> None:
        """Record that the disk is full: no more spare files are kept."""
        self.spares.end()

    def open_to_append(self, path: Path, *, create: bool = False) -> File:
        """Open the file of a segment that grows; see `FileSystem.open`."""
        file = self.fs.open(path, create=create)
        return MappedWriter(file) if self.maps_writes else file
