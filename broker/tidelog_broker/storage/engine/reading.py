"""How a store is read, see `storage.engine`: batches, digests, times, candidates of a lookup, parts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from tidelog_broker.storage.io.filesystem import FileSystem
from tidelog_proto.batch.column_slices import TextColumn
from tidelog_proto.batch.header import BatchHeader


class FoundBatches(NamedTuple):
    """Whole batches without padding, and the offset to continue from.

    `heads` are the readable parts: each batch itself, or its header if only system calls may read the batch.
    """

    batches: list[memoryview]
    heads: list[memoryview]
    next_offset: int


class CandidateBatches(NamedTuple):
    """The batches that may match: the listed ones, and all batches from slot `first` to below `stop`."""

    slots: list[int]
    first: int
    stop: int


class Part(Protocol):
    """A range of an epoch that is deleted as a whole, for example a segment."""

    @property
    def path(self) -> Path:
        """Its name, for messages, and as a key as long as the store is open."""
        ...

    @property
    def base_offset(self) -> int:
        """The offset of its first record."""
        ...

    @property
    def end_offset(self) -> int:
        """The offset after its last record."""
        ...

    @property
    def start_digest(self) -> int:
        """The running digest at `base_offset`."""
        ...

    @property
    def size_bytes(self) -> int:
        """Its size."""
        ...

    @property
    def is_growing(self) -> bool:
        """Whether it is appended to."""
        ...


class Indexes(Protocol):
    """The maintenance of a partition's indexes of keys and tags in the background.

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
        """Request a task on the thread that indexes the unindexed parts."""
        ...

    def close(self) -> None:
        """Release the accounted memory: the log is closed."""
        ...


class Extent(ABC):
    """The readable batches `first` to `stop - 1` of a part of a store, numbered by slots.

    Valid only until the generator that has yielded it continues.
    """

    first: int
    stop: int
    end_offset: int
    """End offset of the last batch."""

    @abstractmethod
    def offset_of(self, slot: int) -> int:
        """Return where the batch of a slot begins; for `stop`, where the last batch ends."""

    @abstractmethod
    def slots_below(self, offset: int) -> int:
        """Return the first slot whose batch begins at or after `offset`."""

    @abstractmethod
    def length_of(self, slot: int) -> int:
        """Return the size of a batch in bytes."""

    @abstractmethod
    def span_bytes(self, first: int, stop: int) -> int:
        """Return how many bytes reading some batches at once reads."""

    @abstractmethod
    def window_stop(self, first: int, stop: int) -> int:
        """Return the slot up to which batches are read at once, at least one."""

    @abstractmethod
    def read(self, first: int, stop: int) -> list[memoryview]:
        """Read batches at once; the caller checks them.

        Raises:
            OSError: the disk cannot be read.
        """

    @abstractmethod
    def head(self, slot: int) -> memoryview:
        """Read the header of a batch.

        Raises:
            OSError: the disk cannot be read.
        """

    @abstractmethod
    def place_of(self, slot: int) -> tuple[Path, int]:
        """Return where a batch lies, for messages."""

    def prepare(self, column: TextColumn, indexes: Indexes | None) -> None:
        """Bring the index of a column as close to `stop` as is possible within a lookup.

        Args:
            indexes: maintains the indexes of segments; None: nothing does.

        Raises:
            OSError: the disk cannot be read.
        """
        del column, indexes

    @abstractmethod
    def find(
        self, column: TextColumn | None, key_hash: int, first: int, stop: int, count_max: int, *, newest: bool
    ) -> CandidateBatches:
        """Return about `count_max` batches of slots first..stop-1 that may match, the first ones or the `newest`.

        Without a column, or without an index of it, all may match.
        """


class Scrubbed(NamedTuple):
    """The result of rereading a portion of a part.

    Attributes:
        end: where the next portion begins, for the part itself.
        damage: the reason if it is damaged.
    """

    end: object
    size_bytes: int
    is_done: bool
    damage: str = ""


class ScrubPart(ABC):
    """A sealed part of a store that can be reread to find damage. Equal as long as the part is unchanged."""

    epoch: int
    path: Path
    """The file or directory that is read, for messages."""

    @abstractmethod
    def scrub(self, fs: FileSystem, start: object, bytes_max: int) -> Scrubbed:
        """Read and check about `bytes_max` of the part, from its beginning (None) or from the end of another result.

        Raises:
            OSError: it was deleted or cannot be opened now; its contents are unknown.
        """


class EpochReading(ABC):
    """Reads an epoch's store, on any thread, while one thread appends."""

    @abstractmethod
    def read(
        self, offset: int, max_bytes: int, *, limit_offset: int, at_least_one: bool = True, to_send: bool = False
    ) -> FoundBatches:
        """Read whole batches, starting with the one that holds `offset`, none of which ends above `limit_offset`.

        At least one batch is returned if one is below the limit, however large, unless `at_least_one` is False; the
        first may begin before `offset`. With `to_send` the batches may be memory that only system calls may read.

        Raises:
            ProtocolError: OFFSET_OUT_OF_RANGE below the start or above the end.
            DamagedError: the batches are damaged, or the store is in LIMBO and ends before `offset`.
        """

    @abstractmethod
    def digest_at(self, offset: int) -> int | None:
        """Return the epoch's running digest before `offset`; None if no batch of this store begins or ends there.

        Raises:
            DamagedError: the batch is damaged.
        """

    @abstractmethod
    def batch_start(self, offset: int) -> int | None:
        """Return the base offset of the batch that holds `offset`; None if no batch does."""

    @abstractmethod
    def scan_headers(self, from_offset: int) -> Iterator[BatchHeader]:
        """Yield the headers of all batches from the one that holds `from_offset` to the current end."""

    def find_by_time(self, timestamp_us: int, from_offset: int = 0) -> int | None:
        """Return the base offset of the first batch with a record of at least this timestamp; None without one.

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
