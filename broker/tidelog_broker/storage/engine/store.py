"""The interfaces that a storage engine implements: `Engine` and `EpochStore`; see `storage.engine`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NamedTuple, Protocol

from tidelog_broker.storage.engine.reading import EpochReading, Part, ScrubPart
from tidelog_broker.storage.io.errors import DivergedError
from tidelog_broker.storage.io.filesystem import FileSystem
from tidelog_broker.storage.io.workers import IoWorkers
from tidelog_proto.batch.column_slices import TextColumn
from tidelog_proto.batch.header import BatchHeader, Buffer
from tidelog_proto.limits import BATCH_ALIGNMENT_BYTES, FETCH_BYTES_MAX

SEGMENT: Final = "segment"
"""The name of the segment engine, which stores each epoch whose directory names no engine."""

SHARED: Final = "segment-shared"
"""The name of the engine of the shared file model: the newest records are in the commit log of the node."""

State = Literal["active", "sealed", "limbo", "failed"]
"""`active`: the store takes appends; `sealed`: its epoch has ended; `limbo`: the store is damaged or lacks records;
`failed`: a write or sync has failed, or the store was closed.
"""

Call = Literal["reserve", "append", "sync", "truncate", "seal", "read", "find", "delete_oldest"]
"""Calls of a store that may wait for a disk or a network, unless its engine lists them in `never_wait`."""


def padded(length_bytes: int) -> int:
    """Return the space that a batch of this length takes in a store: rounded up to `BATCH_ALIGNMENT_BYTES`."""
    return -(-length_bytes // BATCH_ALIGNMENT_BYTES) * BATCH_ALIGNMENT_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """The capabilities of an engine.

    Attributes:
        durable: `sync` returns when the records are on a disk.
        survives_restart: `open` finds what was synced before the process ended.
        replicated: it may store partitions with more than one replica.
        compactable: its epochs may be compacted, into epochs of the same engine.
        tierable: its sealed epochs may be moved to slower storage.
        indexes: the columns that it has an index of; lookups by other columns scan the log.
        bytes_max: maximum bytes of records that it stores on a node; 0 if it has no limit of its own.
        batch_bytes_max: maximum size of a batch in bytes.
        never_wait: calls that never wait for a disk or a network.
        write_behind: its topics may have `flush=async`; a variant of the engine then stores them.
    """

    durable: bool
    survives_restart: bool
    replicated: bool = True
    compactable: bool = True
    tierable: bool = False
    indexes: frozenset[TextColumn] = frozenset()
    bytes_max: int = 0
    batch_bytes_max: int = FETCH_BYTES_MAX
    never_wait: frozenset[Call] = frozenset()
    write_behind: bool = False


class EpochStart(NamedTuple):
    """The identity and the beginning of an epoch's store.

    Attributes:
        digest: the running digest before `offset`: not 0 in a copy that lacks the beginning of the epoch.
    """

    topic_id: bytes
    partition: int
    epoch: int
    offset: int
    digest: int = 0


@dataclass(frozen=True, slots=True)
class Damage:
    """The damage because of which a store is in LIMBO.

    Attributes:
        path: the damaged file, or the directory of the epoch.
        position: the byte of the file at which the damage begins; 0 for a directory.
        offset: the first offset that cannot be read.
        synced_offset: the records below it are known to have been synced.
        reason: a text for the operator.
    """

    path: Path
    position: int
    offset: int
    synced_offset: int
    reason: str


class DamageSource(Protocol):
    """Provides the damage of an `EpochStore` as an attribute, which each append reads at less cost than a property."""

    damage: Damage | None
    """The damage or lack of records that keeps the store in LIMBO, without appends; None if the store is sound."""


class AppendedGroup(NamedTuple):
    """The offsets of an appended group of batches, and the space that it takes in the store."""

    base_offset: int
    end_offset: int
    length_bytes: int


STAGED_BYTES: Final = 32
"""The space that a staged batch may take in addition to its padded size and half of that."""


class StagedBatch(NamedTuple):
    """A stamped batch that continues a store, as `EpochStore.stage` has prepared it for `SyncGroup.append_staged`.

    Attributes:
        place: the engine's own object for the store.
    """

    place: object
    batch: Buffer
    header: BatchHeader


class SyncGroup(Protocol):
    """Stores that are made durable together."""

    def sync(self) -> None:
        """Make everything durable that was appended to any of the stores before.

        Raises:
            StorageFailedError: the sync failed, now or before. It is never retried.
        """
        ...

    def has_room(self, size_bytes: int) -> bool:
        """Reserve space for batches until `append_staged`, unless that has to wait; return whether it was reserved.

        Args:
            size_bytes: the padded size of the batches, and `STAGED_BYTES` for each.

        Raises:
            StorageFailedError: the group has failed.
        """
        ...

    def append_staged(self, staged: Sequence[StagedBatch]) -> None:
        """Append the staged batches, of different stores of the group, with one write, and end their reservations.

        Does not sync.

        Raises:
            StorageFailedError: the write failed, now or before; any part of any batch may be stored.
        """
        ...


class EpochStore(ABC):
    """The store of one epoch. One thread at a time may append, any thread may read.

    To append a group of batches, call `ensure_space` before their offsets are assigned, then `append`, then `sync`.
    After a failed write or sync the store takes no more writes.

    Attributes:
        held: provides `damage` to the appending thread.
        reader: reads the store, on any thread.
        is_repairing: whether the store is in LIMBO because it lacks records that it once had, and takes appends of
            just these records.
        is_lost: whether the engine may have lost records that the store had in an earlier process; the store then has a
            prefix of them, which may be empty.
        segment_bytes: the size of parts that begin from now on.
        synced_offset: everything below it is durable, provided that the engine itself is durable.
        sync_group: the stores that `sync` makes durable together with this one; None if it is alone.
    """

    engine: str
    directory: Path
    topic_id: bytes
    partition: int
    epoch: int
    held: DamageSource
    reader: EpochReading
    is_repairing: bool
    is_lost: bool
    segment_bytes: int
    synced_offset: int
    sync_group: SyncGroup | None = None

    @property
    @abstractmethod
    def state(self) -> State:
        """Whether the store takes appends, and if not, why."""

    @property
    def damage(self) -> Damage | None:
        """The damage or lack of records that keeps the store in LIMBO, without appends; None if the store is sound."""
        return self.held.damage

    @property
    def start_offset(self) -> int:
        """The first offset that the store still has."""
        return self.segments[0].base_offset

    @property
    def start_digest(self) -> int:
        """The running digest at `start_offset`."""
        return self.segments[0].start_digest

    @property
    @abstractmethod
    def end_offset(self) -> int:
        """The offset after the last appended record; in LIMBO, after the last readable one."""

    @property
    @abstractmethod
    def end_digest(self) -> int:
        """The running digest at the end."""

    @property
    @abstractmethod
    def segments(self) -> Sequence[Part]:
        """The parts, oldest first, at least one. The sequence is replaced as a whole, never mutated."""

    @property
    def segment_count(self) -> int:
        """The number of parts."""
        return len(self.segments)

    @property
    def oldest_end_offset(self) -> int:
        """The end offset of the oldest part."""
        return self.segments[0].end_offset

    @property
    def size_bytes(self) -> int:
        """The size of all parts, without preallocated space."""
        return sum(part.size_bytes for part in self.segments)

    @abstractmethod
    def has_room(self, needed_bytes: int) -> bool:
        """Return whether `ensure_space` would succeed for this many bytes without waiting."""

    @abstractmethod
    def ensure_space(self, needed_bytes: int) -> None:
        """Reserve space for a group, whose batches are padded to `BATCH_ALIGNMENT_BYTES`; may begin another part.

        Raises:
            DiskFullError: no space; nothing has changed and the store stays usable.
            LimboError: the store is damaged.
            StorageFailedError: the store has failed or is sealed.
        """

    @abstractmethod
    def roll(self) -> bool:
        """Begin another part if the newest has batches; return whether it did.

        Raises:
            DiskFullError, LimboError, StorageFailedError: as `ensure_space`.
        """

    @abstractmethod
    def append(self, batches: Sequence[Buffer]) -> AppendedGroup:
        """Append a group of stamped, contiguous batches, for which `ensure_space` was called. Does not sync.

        Raises:
            StorageFailedError: the write failed, now or before; any part of the group may be stored.
        """

    def may_stage(self, needed_bytes: int) -> bool:
        """Return whether a batch of this padded size may be staged, if the `sync_group` has room for it."""
        del needed_bytes
        return False

    def stage(self, batch: Buffer, header: BatchHeader) -> StagedBatch:
        """Prepare a stamped batch for `append_staged` of the store's `sync_group`.

        `may_stage` has returned True for it, and nothing else is appended to the store before.
        """
        raise NotImplementedError(f"engine {self.engine!r} has no sync group, so its stores stage no batches")

    def note_synced(self) -> None:
        """Record that a sync of the store's `sync_group` has covered everything that was appended to the store.

        Raises:
            StorageFailedError: the store has failed.
        """
        self.sync()

    @abstractmethod
    def sync(self) -> int:
        """Make all appended batches durable, if the engine is durable, and return their end offset.

        Raises:
            StorageFailedError: the sync failed, now or before. It is never retried.
        """

    @abstractmethod
    def seal(self) -> None:
        """Seal the epoch at its end: sync, and take no more appends.

        Raises:
            StorageFailedError: as `sync`.
        """

    @abstractmethod
    def truncate(self, end_offset: int) -> None:
        """Truncate the store at a batch boundary, durably, and make it appendable; ends LIMBO, sealing and repair.

        A sealed store that ends at `end_offset` stays sealed.

        Raises:
            DivergedError: no batch of this store ends at `end_offset`; nothing has changed.
            DamagedError: the batch at `end_offset` is damaged; nothing has changed.
            StorageFailedError: the disk failed, now or before.
        """

    @abstractmethod
    def truncate_to_valid_prefix(self) -> None:
        """Truncate a store in LIMBO at its damage: it stays in LIMBO but takes appends of the missing records.

        Raises:
            DiskFullError: no space; nothing was truncated.
            StorageFailedError: the disk failed, now or before.
        """

    @abstractmethod
    def finish_repair(self) -> None:
        """End LIMBO; syncs first. Call it only if nothing is missing, or if an operator gives the missing records up.

        Raises:
            StorageFailedError: the disk failed, now or before.
        """

    @abstractmethod
    def delete_oldest_segment(self) -> int:
        """Delete the oldest of several parts and return the bytes freed; `sync_names` makes the deletion durable.

        Raises:
            StorageFailedError: the disk failed.
        """

    @abstractmethod
    def close(self, *, sync: bool = True) -> None:
        """Sync, and close the files. A store whose state is not `active` is only closed.

        Raises:
            StorageFailedError: the last sync failed; the files are closed nevertheless.
        """

    @abstractmethod
    def sync_names(self) -> None:
        """Make the deletion and the beginning of parts durable. Any thread may call it.

        Raises:
            StorageFailedError: the disk failed, now or before; the store's next operation fails, too.
        """

    def detach(self) -> None:
        """Write everything readable that the engine keeps elsewhere into the directory, which is about to be set aside.

        Raises:
            StorageFailedError: the disk failed.
        """
        return

    def decided_digest(self, end_offset: int) -> int:
        """Return the running digest at the offset where the epoch was decided to end.

        Raises:
            DivergedError: no batch of this store ends there.
            DamagedError: the batch at `end_offset` is damaged.
        """
        digest = self.reader.digest_at(end_offset)
        if digest is None:
            raise DivergedError(f"{self.directory}: no batch ends at offset {end_offset}, the epoch's decided end")
        return digest

    def scrub_parts(self, *, is_newest: bool) -> Sequence[ScrubPart]:
        """Return the parts that can be reread to find damage; `is_newest`: the epoch may still be appended to."""
        del is_newest
        return ()


class Engine(ABC):
    """Creates and opens the stores of epochs. A node has one object of each engine. Thread-safe."""

    name: str
    capabilities: Capabilities

    @abstractmethod
    def lay_out(self, directory: Path, start: EpochStart, *, segment_bytes: int) -> None:
        """Create the files of a new, empty store in a new directory; the caller syncs and renames the directory.

        Raises:
            OSError: the disk failed or is full; the caller removes the directory.
        """

    @abstractmethod
    def open(
        self, directory: Path, *, segment_bytes: int, sealed_end_offset: int | None = None, is_new: bool = False
    ) -> EpochStore | None:
        """Open a store after any stop; its unsynced tail may be missing.

        Args:
            sealed_end_offset: the end of the epoch if another one follows it: the store takes no appends and ends
                there, or is in LIMBO. None for the newest epoch.
            is_new: whether this process has just created the directory, durably, so that nothing in it can be lost.

        Returns:
            The store; None if `sealed_end_offset` is given and the engine has lost the contents.

        Raises:
            DamagedError: nothing in the directory is valid.
            StorageFailedError: the disk cannot be read or written.
        """

    def is_deleted(self, names: Sequence[str]) -> bool:
        """Return whether a directory that contains these file names is the remains of an interrupted deletion."""
        del names
        return False

    def forget(self, directory: Path) -> None:
        """Release the data that the engine keeps outside a closed store's directory, which is about to be removed.

        The directory may be a copy of another one, whose data must stay.
        """
        del directory

    def close(self) -> None:  # noqa: B027 - most engines have nothing to release
        """Release the engine's resources when the node stops; all stores are closed. The engine is not used again."""


class Volume(Protocol):
    """The resources of a node that engines and logs share."""

    fs: FileSystem
    namer: IoWorkers | None
    """Syncs directories in the background; None: the caller syncs."""
    memory_bytes: int
    """Maximum bytes of records that the memory engine stores on the node."""
    engines_dir: Path | None
    """The directory for data that engines keep outside the epochs' directories; None: without a directory.

    Each engine creates a directory of its name in it.
    """
    rocksdb_preset: str
    """The sizes of the RocksDB engine: small, normal or large."""
    engines: dict[str, Engine]
    """The engines in use, by name; see `storage.engines`."""

    @property
    def was_full(self) -> bool:
        """Whether the disk has been full since the node started."""
        ...

    def note_full(self) -> None:
        """Record that the disk is full."""
        ...


EngineFactory = Callable[[Volume], Engine]
"""The type of the objects that the entry points of the group `tidelog.engines` refer to."""
