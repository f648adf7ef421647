"""The interfaces for reading a store: batches, digests, lookups by time, key or tag, parts. See `storage.engine`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from tidelog_broker.storage.io.filesystem import FileSystem
from tidelog_proto.batch.column_slices import TextColumn
from tidelog_proto.batch.header import BatchHeader


class FoundBatches(NamedTuple):
    """The result of a read: whole batches without padding.

    Attributes:
        heads: for each batch the memory that Python code may read: the batch itself, or a copy of its header if only
            system calls may read the batch.
        next_offset: the offset to continue from.
    """

    batches: list[memoryview]
    heads: list[memoryview]
    next_offset: int


class CandidateBatches(NamedTuple):
    """The result of a lookup in an index.

    Attributes:
        slots: the batches that may match, ascending.
        first, stop: the lookup covered the slots `first` to `stop - 1`: no batch of them matches unless it is listed.
    """

    slots: list[int]
    first: int
    stop: int


class Part(Protocol):
    """A range of an epoch that is deleted as a whole, for example a segment."""

    @property
    def path(self) -> Path:
        """A path that names the part in messages; unique and unchanged while the store is open."""
        ...

    @property
    def base_offset(self) -> int:
        """The offset of the part's first record."""
        ...

    @property
    def end_offset(self) -> int:
        """The offset after the part's last record."""
        ...

    @property
    def start_digest(self) -> int:
        """The running digest at `base_offset`."""
        ...

    @property
    def size_bytes(self) -> int:
        """The space that the part's contents take, without preallocated space."""
        ...

    @property
    def is_growing(self) -> bool:
        """Whether the part takes appends."""
        ...


class Indexes(Protocol):
    """Maintains the indexes of keys and tags of a `PartitionLog` in the background.

    `columns` is set on the event loop; everything else is thread-safe.
    """

    columns: frozenset[TextColumn]
    """The columns that have an index."""

    @property
    def size_bytes(self) -> int:
        """The memory used by indexes."""
        ...

    @property
    def missing_bytes(self) -> int:
        """The approximate size of the part of the log that is not indexed and has to be scanned."""
        ...

    def switch(self, columns: frozenset[TextColumn]) -> None:
        """Change the indexed columns; existing records are indexed, too."""
        ...

    def appended(self) -> None:
        """Request indexing if enough bytes were appended. Called by the appending thread if `columns` is not empty."""
        ...

    def request(self) -> None:
        """Queue a task that indexes the unindexed parts on the indexing thread, unless one is queued already."""
        ...

    def close(self) -> None:
        """End the accounting of these indexes' memory, because the log is closed."""
        ...


class Extent(ABC):
    """The readable batches `first` to `stop - 1` of a part of a store. These numbers are the batches' slots.

    An extent and its slots are valid only until the generator that has yielded it continues.
    """

    first: int
    stop: int
    end_offset: int
    """End offset of the last batch."""

    @abstractmethod
    def offset_of(self, slot: int) -> int:
        """Return the base offset of the batch in a slot; for `stop`, the end offset of the last batch."""

    @abstractmethod
    def slots_below(self, offset: int) -> int:
        """Return the first slot whose batch begins at or after `offset`."""

    @abstractmethod
    def length_of(self, slot: int) -> int:
        """Return the size of a batch in bytes."""

    @abstractmethod
    def span_bytes(self, first: int, stop: int) -> int:
        """Return how many bytes `read` with these arguments reads from the store."""

    @abstractmethod
    def window_stop(self, first: int, stop: int) -> int:
        """Return the slot before which a `read` that begins at `first` should end to stay small; at most `stop`."""

    @abstractmethod
    def read(self, first: int, stop: int) -> list[memoryview]:
        """Read the batches `first` to `stop - 1` in one operation. They are not verified.

        Raises:
            StorageFailedError, NoDescriptorError: the disk cannot be read.
        """

    @abstractmethod
    def head(self, slot: int) -> memoryview:
        """Read the header of a batch.

        Raises:
            StorageFailedError, NoDescriptorError: the disk cannot be read.
        """

    @abstractmethod
    def place_of(self, slot: int) -> tuple[Path, int]:
        """Return the path of a batch's file or part, and the batch's position in it, for messages."""

    def prepare(self, column: TextColumn, indexes: Indexes | None) -> None:
        """Extend the index of a column towards `stop` before a lookup; do nothing without an index.

        A large unindexed part may be left to `indexes`; `find` then returns all batches of that part.

        Args:
            indexes: maintains the indexes of segments in the background; None if nothing does.

        Raises:
            StorageFailedError, NoDescriptorError: the disk cannot be read.
        """
        del column, indexes

    @abstractmethod
    def find(
        self, column: TextColumn | None, key_hash: int, first: int, stop: int, count_max: int, *, newest: bool
    ) -> CandidateBatches:
        """Return up to about `count_max` batches of slots first..stop-1 that may match: the oldest or `newest` ones.

        Without a column, or without an index of it, every batch may match.

        Raises:
            StorageFailedError, NoDescriptorError: the disk cannot be read.
        """


class Scrubbed(NamedTuple):
    """The result of rereading a portion of a part.

    Attributes:
        end: where the next portion begins, in a form that only the part itself interprets.
        size_bytes: the size of the portion.
        is_done: whether no portion is left to read, because the part ends here or is damaged.
        damage: a description of the damage, for the operator; empty if nothing is damaged.
    """

    end: object
    size_bytes: int
    is_done: bool
    damage: str = ""


class ScrubPart(ABC):
    """A sealed part of a store that can be reread to find damage.

    Two objects for the same part are equal as long as the part is unchanged.
    """

    epoch: int
    path: Path
    """The file or directory that is read, for messages."""

    @abstractmethod
    def scrub(self, fs: FileSystem, start: object, bytes_max: int) -> Scrubbed:
        """Read and check about `bytes_max` of the part.

        Args:
            start: None for the beginning of the part, or `Scrubbed.end` of the previous portion.

        Raises:
            OSError: the part was deleted or cannot be opened now, so whether it is damaged is unknown.
        """


class EpochReading(ABC):
    """The reading side of an epoch's store, for any thread, while one thread appends."""

    @abstractmethod
    def read(
        self, offset: int, max_bytes: int, *, limit_offset: int, at_least_one: bool = True, to_send: bool = False
    ) -> FoundBatches:
        """Read whole batches, starting with the one that holds `offset`, none of which ends above `limit_offset`.

        At least one batch is returned if one is below the limit, however large, unless `at_least_one` is False; the
        first may begin before `offset`. With `to_send` the batches may be slices of a memory mapping, which only system
        calls may read.

        Raises:
            ProtocolError: OFFSET_OUT_OF_RANGE below the start or above the end.
            DamagedError: the batches are damaged, or the store is in LIMBO and ends before `offset`.
            StorageFailedError: the store cannot be read.
        """

    @abstractmethod
    def digest_at(self, offset: int) -> int | None:
        """Return the epoch's running digest before `offset`; None if no batch of this store begins or ends there.

        Raises:
            DamagedError: the batch is damaged.
            StorageFailedError, NoDescriptorError: the store cannot be read.
        """

    @abstractmethod
    def batch_start(self, offset: int) -> int | None:
        """Return the base offset of the batch that holds `offset`; None if no batch does."""

    @abstractmethod
    def scan_headers(self, from_offset: int) -> Iterator[BatchHeader]:
        """Yield the headers of all batches from the one that holds `from_offset` to the current end."""

    def find_by_time(self, timestamp_us: int, from_offset: int = 0) -> int | None:
        """Return the base offset of the first batch with a record of at least this timestamp; None if no batch has one.

        Only batches that end after `from_offset` count.
        """
        for header in self.scan_headers(from_offset):
            if header.max_timestamp_us >= timestamp_us and header.end_offset > from_offset:
                return header.base_offset
        return None

    @abstractmethod
    def extents(self, offset: int, limit_offset: int) -> Generator[Extent]:
        """Yield the extents from the batch that holds `offset` on, oldest first, as far as they are contiguous."""

    @abstractmethod
    def extents_reversed(self, limit_offset: int) -> Generator[Extent]:
        """Yield the extents below `limit_offset`, newest first."""

    def sync_ahead(self, slack_bytes: int) -> None:
        """Sync most of the appended bytes while more are appended; up to `slack_bytes` may stay unsynced.

        Gives no durability guarantee; it shortens the next `sync`.

        Raises:
            StorageFailedError: a sync failed; every later sync fails, too.
        """
        del slack_bytes
