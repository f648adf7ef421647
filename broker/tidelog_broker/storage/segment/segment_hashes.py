"""Lookup of an open segment's batches by key or tag: in its index files, or in memory for its first batches.

The index need not be consistent with the segment. A lookup first extends the index as far as it searches; batches that
are not indexed yet, because reading them would take too long, are all returned. So a result never lacks a matching
batch, whatever was deleted, truncated or not indexed yet.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path

from tidelog_broker.storage.engine.reading import CandidateBatches
from tidelog_broker.storage.io.errors import LayoutError
from tidelog_broker.storage.io.filesystem import File, FileSystem
from tidelog_broker.storage.segment.hash_entries import collect, window_stop
from tidelog_broker.storage.segment.hash_file import HashFile, pack_hashes
from tidelog_broker.storage.segment.hash_runs import HashRuns
from tidelog_broker.storage.segment.index import Index, SegmentEnd
from tidelog_broker.storage.segment.layout import hash_path
from tidelog_proto.batch.column_slices import TextColumn
from tidelog_proto.batch.header import Buffer


class SegmentHashes:
    """Finds the batches of one segment that may have a key or tag. For any thread with a lease of the segment.

    Args:
        runs: existing in-memory indexes.
    """

    __slots__ = ("_file", "_files", "_given_up", "_index", "_lock", "_looked_for", "_runs")

    def __init__(self, file: File, index: Index, runs: dict[TextColumn, HashRuns] | None = None) -> None:
        self._file = file
        self._index = index
        self._runs = runs or {}
        self._files: dict[TextColumn, HashFile] = {}
        self._given_up: list[HashFile] = []
        self._looked_for: set[TextColumn] = set()
        self._lock = threading.Lock()

    @property
    def size_bytes(self) -> int:
        """The memory of the in-memory indexes, without that of open index files."""
        return sum(runs.size_bytes for runs in list(self._runs.values()))

    def has_file(self, column: TextColumn) -> bool:
        """Return whether a column has an open index file."""
        return column in self._files

    def covered(self, column: TextColumn) -> int:
        """Return the slot below which batches are indexed in a column."""
        file = self._files.get(column)
        return file.slots if file is not None else self._runs.get(column, HashRuns()).covered

    def load(self, fs: FileSystem, segment: Path, column: TextColumn, *, nonce: int, end: SegmentEnd) -> bool:
        """Open the index file of a column of a sealed segment, once; return whether it is valid.

        Raises:
            OSError: the disk cannot be read.
        """
        with self._lock:
            if column not in self._looked_for:
                self._looked_for.add(column)
                self._open_file(fs, segment, column, nonce=nonce, end=end)
            return column in self._files

    def look_again(self, column: TextColumn) -> None:
        """Let the next `load` try again, because the file was written."""
        self._looked_for.discard(column)

    def catch_up(self, columns: Iterable[TextColumn], stop: int, *, windows_max: int) -> bool:
        """Read about `windows_max` MiB into the indexes of columns; return whether all slots below `stop` are indexed.

        Raises:
            OSError: the disk cannot be read.
        """
        for _ in range(windows_max):
            with self._lock:
                indexed_to: dict[TextColumn, int] = {column: self.covered(column) for column in columns}
                first = min(indexed_to.values(), default=stop)
                if first >= stop:
                    return True
                end = window_stop(self._index, first, stop)
                mine: list[TextColumn] = [column for column, covered in indexed_to.items() if covered == first]
                for column, found in collect(self._file, self._index, mine, first, end).items():
                    self._runs[column] = self._runs.get(column, HashRuns()).with_more(found, end)
        return all(self.covered(column) >= stop for column in columns)

    def pack(self, column: TextColumn, *, nonce: int, end: SegmentEnd) -> list[Buffer]:
        """Return the index file of a column of a sealed, completely indexed segment, as a list of buffers."""
        runs = self._runs.get(column, HashRuns())
        assert runs.covered == len(self._index), "all of the segment is in it"
        return pack_hashes(runs, column, nonce=nonce, end=end)

    def find(
        self, column: TextColumn | None, key_hash: int, first: int, stop: int, count_max: int, *, newest: bool
    ) -> CandidateBatches:
        """Return about `count_max` batches of slots first..stop-1 that may match: the oldest, or the `newest` ones.

        Without a column, and where the column is not indexed, every batch may match.

        Raises:
            OSError: the disk cannot be read.
        """
        covered = min(stop, max(first, self.covered(column) if column is not None else 0))
        indexed: list[int] = []
        rest = range(covered, stop)
        if newest:
            rest = rest[-count_max:]
            left = count_max - len(rest)
            if column is not None and left and first < covered:
                indexed = self._look_up(column, key_hash, first, covered, left, newest=True)
            begin = rest.start if not left else indexed[0] if len(indexed) >= left else first
            return CandidateBatches([*indexed, *rest], begin, stop)
        if column is not None and first < covered:
            indexed = self._look_up(column, key_hash, first, covered, count_max, newest=False)
            if len(indexed) >= count_max:
                return CandidateBatches(indexed, first, indexed[-1] + 1)
        rest = rest[: count_max - len(indexed)]
        return CandidateBatches([*indexed, *rest], first, rest.stop)

    def cut(self, count: int, file: File, index: Index) -> SegmentHashes:
        """Return the indexes of the first `count` batches, for a truncated or reopened segment."""
        with self._lock:
            return SegmentHashes(file, index, {column: runs.first(count) for column, runs in self._runs.items()})

    def close(self) -> None:
        """Close the files, after the last lookup."""
        for file in (*self._files.values(), *self._given_up):
            file.close()

    def _look_up(
        self, column: TextColumn, key_hash: int, first: int, stop: int, count_max: int, *, newest: bool
    ) -> list[int]:
        file = self._files.get(column)
        if file is not None:
            try:
                return file.find(key_hash, first, stop, count_max, newest=newest)
            except LayoutError:
                # The file was valid when it was opened. Until it is rebuilt, all batches are returned.
                with self._lock:
                    if self._files.get(column) is file:
                        self._given_up.append(self._files.pop(column))
                slots = range(first, stop)
                return list(slots[-count_max:] if newest else slots[:count_max])
        return self._runs.get(column, HashRuns()).find(key_hash, first, stop, count_max, newest=newest)

    def _open_file(self, fs: FileSystem, segment: Path, column: TextColumn, *, nonce: int, end: SegmentEnd) -> None:
        path = hash_path(segment, column)
        if not fs.exists(path):
            return
        file = fs.open_readonly(path)
        try:
            loaded = HashFile.load(file, column, nonce=nonce, slots=len(self._index), end=end)
        except LayoutError:
            file.close()
        except BaseException:
            file.close()
            raise
        else:
            self._files[column] = loaded
            self._runs.pop(column, None)
